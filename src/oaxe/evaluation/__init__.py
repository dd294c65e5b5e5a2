"""How good translations are: one metric a file, and a report of all of them."""
