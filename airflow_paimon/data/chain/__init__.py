"""Rows of chain tables: reads, compaction of buckets, commits of compacted partitions."""
