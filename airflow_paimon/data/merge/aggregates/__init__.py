"""The aggregate functions: each folds the records of a key into one value of a column (docs/format.md, Merging)."""
