"""The one error that is the user's to mend: the command line shows its message, no traceback."""


class UserError(ValueError):
    """What was wrong, the value, what is allowed, what to do next."""
