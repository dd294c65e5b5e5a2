"""The command line, as the console script ``oaxe`` and as ``python -m oaxe``."""

import sys


def main() -> None:
    try:
        from oaxe.commands.app import run
    except ModuleNotFoundError as error:
        from oaxe.support.extras import missing_extra

        if install := missing_extra(error):
            sys.exit(f"error: the command line needs: {install}")
        raise
    run()


if __name__ == "__main__":
    main()
