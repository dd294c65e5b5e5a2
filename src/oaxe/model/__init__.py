"""The Transformer, and what its decoder is given to read."""
