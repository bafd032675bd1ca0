"""Encoders and decoders, one module per file format. Nothing here reads or writes a storage."""
