"""What may be asked of this package, and what it answers: requests, their flags, results."""
