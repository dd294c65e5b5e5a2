"""Benchmarks, one file each, run from a clone: python -m benchmarks --help."""
