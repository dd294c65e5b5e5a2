"""Parallel text by name."""
