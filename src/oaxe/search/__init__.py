"""How words are chosen: beam search, and all positions in one pass."""
