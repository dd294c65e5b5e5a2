"""Training text in the words of an autoregressive teacher."""
