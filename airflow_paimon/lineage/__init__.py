"""What operations read and write, for assets and OpenLineage, and what is made from a table."""
