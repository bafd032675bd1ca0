"""Work on all files of a table: in parts, in several processes or Spark tasks, in a bounded amount of memory."""
