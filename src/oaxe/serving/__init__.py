"""A translator for others to ask, over HTTP."""
