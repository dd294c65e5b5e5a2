"""How good translations are: scores, what is behind them, and a report of both."""
