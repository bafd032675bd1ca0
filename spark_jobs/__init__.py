"""One thin script per operation, submitted to Spark or run as a plain Python program."""
