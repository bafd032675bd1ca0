"""Bytes <-> values, one file format a module. Nothing here reads or writes a storage."""
