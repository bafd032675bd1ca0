"""How tables fare: figures of their files and metadata, a score with reasons, and what mends them."""
