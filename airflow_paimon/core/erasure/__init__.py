"""What is left of rows that are to be erased: all stored files, and who reaches them."""
