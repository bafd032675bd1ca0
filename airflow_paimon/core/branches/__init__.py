"""The life of branches and tags: create, delete, rename, publish, roll back, protect."""
