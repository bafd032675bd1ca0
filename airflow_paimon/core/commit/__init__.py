"""The committer: drafts become snapshots by compare-and-swap; what retries need to recognise their own commits."""
