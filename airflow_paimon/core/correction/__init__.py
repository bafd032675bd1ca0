"""What can be said of a correction before it runs: what its SQL names, and how long it will take."""
