"""Searches stored files for rows, and erases them."""
