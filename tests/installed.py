"""What is installed works: `python -P tests/installed.py`, with the extras `toolkit` and `cpu`."""

import pkgutil
import re
import shutil
import subprocess
from importlib import import_module


def main() -> None:
    import oaxe
    from oaxe.support.extras import missing_extra

    assert oaxe.assignment_backend() == "c"
    imported = 0
    for module in pkgutil.walk_packages(oaxe.__path__, "oaxe."):
        if ".kernels" in module.name or module.name.endswith(".__main__"):  # need a GPU; would run
            continue
        try:
            import_module(module.name)
            imported += 1
        except ModuleNotFoundError as error:
            if re.search("toolkit|cpu", missing_extra(error) or "toolkit"):
                raise
    assert imported > 150
    run = shutil.which("oaxe")
    assert run, "no command oaxe"
    for *command, expected in (
        ["config", "list", "multi30k/at "],
        ["translate", "How are you today?", "Wie geht es "],
    ):
        done = subprocess.run([run, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(expected), done.stdout
    print(f"{imported} modules, {run} and {oaxe.__path__[0]} work")


if __name__ == "__main__":
    main()
