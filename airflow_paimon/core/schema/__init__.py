"""Schema changes, and how a branch's schemas map onto main's."""
