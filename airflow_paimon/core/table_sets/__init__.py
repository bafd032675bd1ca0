"""New versions of table sets: claimed, tagged on every table, made visible by one put; old versions expire."""
