"""Rules that the rows of a branch have to keep before it is published, their results, and the gate at the publish."""
