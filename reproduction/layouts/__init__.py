"""The forms that a table of the paper takes: each turns results into a report."""
