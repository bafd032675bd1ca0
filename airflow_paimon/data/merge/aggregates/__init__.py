"""The aggregate functions: each folds the records of a key into one value of a column (docs/contributing/format.md,
Merging).
"""
