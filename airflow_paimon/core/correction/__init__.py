"""What can be said of a correction before it runs: what its SQL names, and what is refused."""
