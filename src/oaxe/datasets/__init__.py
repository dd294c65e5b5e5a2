"""Data sets by name: where they come from, and their files on this machine."""
