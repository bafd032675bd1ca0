"""Chain tables: layout, state, set-up, plans of reads, compaction and expiry, the commit guard."""
