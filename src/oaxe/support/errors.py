"""The one error that is the user's to mend: the command line shows its message, no traceback."""

EXIT_INTERRUPTED = 130  # 128 + SIGINT: what shells and schedulers know an interruption by


class UserError(ValueError):
    """What was wrong, the value, what is allowed, what to do next."""

    exit_code = 1  # of the program
