"""The model in the box: a small translator that comes with the package, the default of commands."""

from pathlib import Path

from oaxe.support.errors import UserError

BOX = Path(__file__).parents[1] / "models" / "en-de"


def model_in_the_box() -> Path:
    """Its folder; UserError where the package was installed without it."""
    if not (BOX / "config.json").is_file():
        raise UserError(
            f"this installation has no model of its own: {BOX} is missing. Give one with --model "
            "(Python: a path), or install oaxe anew from a whole copy of its repository"
        )
    return BOX
