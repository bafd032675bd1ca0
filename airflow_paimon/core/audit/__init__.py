"""Who changed a table, why, by what, and who approved it: gathered from its snapshots and records."""
