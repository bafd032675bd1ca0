"""The life of branches and tags: create, delete, rename, protect."""
