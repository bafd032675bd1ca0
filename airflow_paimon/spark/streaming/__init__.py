"""Structured Streaming: tables and branches as sources and targets of streams."""
