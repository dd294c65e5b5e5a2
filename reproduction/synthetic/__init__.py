"""The paper's section 3: numbers in, the same numbers out, in one of several orders."""
