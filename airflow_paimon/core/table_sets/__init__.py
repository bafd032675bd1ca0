"""New versions of table sets: tagged on every table, then made visible by one put; old versions expire."""
