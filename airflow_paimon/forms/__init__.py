"""What a trigger form, and whatever else is no code of the DAG's, may ask for; where an argument comes from."""
