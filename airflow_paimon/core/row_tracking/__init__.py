"""Row tracking: the row ids of files, and their treatment by a publish."""
