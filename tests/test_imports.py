"""Imports go only down the data flow. Imports inside functions count too."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "oaxe"

# A room imports itself and the rooms before it.
ORDER = (
    "support",
    "text",
    "losses",
    "model",
    "criteria",
    "search",
    "systems",
    "engine",
    "decoding",
    "training",
    "distillation",
    "evaluation",
    "pipeline",
    "serving",
    "commands",
)
ALONE = ("support", "losses")  # these import themselves only
OUTSIDE = ("reproduction", "benchmarks", "examples", "tests")

# (module, what it imports): exceptions that are still to be removed.
KNOWN: set[tuple[str, str]] = set()


def module_name(path: Path) -> str:
    parts = ("oaxe", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(tree: ast.AST) -> set[str]:
    """Modules that are imported anywhere in a file; names that are taken from `oaxe` itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write the whole name of the module"
            module = str(node.module)
            if module == "oaxe":  # `from oaxe import losses`, `from oaxe import __version__`
                found |= {f"oaxe.{alias.name}" for alias in node.names}
            else:
                found.add(module)
    if "oaxe" in found:  # `import oaxe`, then `oaxe.__version__`
        found.remove("oaxe")
        found |= {
            f"oaxe.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "oaxe"
        }
    return found


def is_allowed(importer: str, imported: str) -> bool:
    room, other = room_of(importer), room_of(imported)
    if imported.split(".")[0] != "oaxe":
        return imported.split(".")[0] not in OUTSIDE
    if other == "__version__" or room == other:
        return True
    if room not in ORDER:  # oaxe/__init__.py and __main__.py, which are above everything
        return other in ORDER
    if other not in ORDER or room in ALONE:
        return False
    return ORDER.index(other) < ORDER.index(room)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
WRONG = {
    (module, imported)
    for module, path in MODULES.items()
    for imported in imports_of(ast.parse(path.read_text(encoding="utf-8")))
    if not is_allowed(module, imported)
}


def test_every_room_has_its_position_in_the_order() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms <= set(ORDER)
    assert len(MODULES) > 50


def test_imports_go_only_down_the_data_flow() -> None:
    assert not WRONG - KNOWN


def test_known_exceptions_are_still_needed() -> None:
    assert not KNOWN - WRONG, "these imports are gone: remove them from KNOWN"


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("oaxe.model.transformer", "oaxe.text.symbols", True),
        ("oaxe.text.symbols", "oaxe.model.transformer", False),
        ("oaxe.losses.xe", "oaxe.losses.softmax", True),
        ("oaxe.losses.xe", "oaxe.support.errors", False),
        ("oaxe.support.locks", "oaxe.text.lines", False),
        ("oaxe.support.environment", "oaxe.__version__", True),
        ("oaxe.losses.xe", "oaxe.oaxe_loss", False),
        ("oaxe.training.run", "oaxe.commands.app", False),
        ("oaxe.commands.app", "oaxe.training.run", True),
        ("oaxe.commands.app", "reproduction", False),
        ("oaxe.text.lines", "benchmarks.losses", False),
        ("oaxe.text.lines", "numpy", True),
        ("oaxe", "oaxe.losses", True),
        ("oaxe.__main__", "oaxe.commands.app", True),
    ],
)
def test_rule(importer: str, imported: str, allowed: bool) -> None:
    assert is_allowed(importer, imported) is allowed


def test_finds_imports_inside_functions() -> None:
    code = "def f():\n    from oaxe.a import b\n    import c.d, e\n    from oaxe import losses\n"
    assert imports_of(ast.parse(code)) == {"oaxe.a", "c.d", "e", "oaxe.losses"}


def test_finds_names_that_are_taken_from_the_package() -> None:
    code = "import oaxe\nprint(oaxe.__version__)\ndef f():\n    oaxe.Translator.translate\n"
    assert imports_of(ast.parse(code)) == {"oaxe.__version__", "oaxe.Translator"}
