"""Schema changes, and the mapping of a branch's schemas onto main's."""
