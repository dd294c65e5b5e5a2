"""``oaxe build``: from parallel text to a one-pass translator, through the ordinary commands."""
