"""What may be missing of this package: extras by their modules, and the compiled part."""

import warnings
from functools import cache
from importlib.util import find_spec

from oaxe.support.errors import UserError

# As in pyproject.toml, by the names that Python imports.
EXTRAS = {
    "toolkit": (
        "filelock",
        "huggingface_hub",
        "jinja2",
        "markupsafe",
        "rich",
        "sacrebleu",
        "safetensors",
        "sentencepiece",
        "tensorboard",
        "typer",
        "yaml",
    ),
    "plot": ("matplotlib",),
    "cpu": ("onnx", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
    "serve": ("httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
}
DISPENSABLE = {"httptools"}  # there is a slower substitute


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to run if an import failed because an extra is not installed; None for other modules.

    Example:
        >>> missing_extra(ModuleNotFoundError(name="matplotlib.figure"))
        'pip install "oaxe[plot]"'
    """
    package = (error.name or "").split(".")[0]
    for extra, modules in EXTRAS.items():
        if package in modules:
            return f'pip install "oaxe[{extra}]"'
    return None


def require_extra(extra: str, feature: str, *modules: str) -> None:
    """Raises UserError, before long work, if an extra or one of its modules is not installed."""
    needed = set(modules or EXTRAS[extra]) - DISPENSABLE
    if any(find_spec(module) is None for module in needed):
        raise UserError(f'{feature} needs: pip install "oaxe[{extra}]"')


@cache
def warn_not_compiled(instead: str) -> None:
    """Say once what is done without the compiled part of this package."""
    warnings.warn(
        f"oaxe is installed without its compiled part: {instead}. Install a wheel that has it, or "
        "a C compiler and then oaxe again (pip install --force-reinstall --no-deps --no-cache-dir)",
        stacklevel=2,
    )
