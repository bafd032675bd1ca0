"""What people look at: lists as values, which the page, the command line, notebooks and reports render."""
