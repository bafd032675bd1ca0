"""An immutable view of a table: paths, options, history, live files. Reads only."""
