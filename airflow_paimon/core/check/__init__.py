"""check_table finds what crashes and other engines left; repair_table mends it."""
