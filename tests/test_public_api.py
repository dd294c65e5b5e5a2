"""The public names and how they are called are those of public_api.txt: a change is on purpose.

After one: python -m tests.test_public_api > tests/public_api.txt
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import oaxe

STORED = Path(__file__).with_name("public_api.txt")


def arguments(function: Callable[..., Any]) -> str:
    """Names, order, kinds and defaults; types are mypy's."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def described() -> Iterator[str]:
    for name in sorted(oaxe.__all__):
        value = getattr(oaxe, name)
        if not inspect.isclass(value):
            yield f"{name}{arguments(value)}"
            continue
        yield f"class {name}" + ("" if issubclass(value, Exception) else arguments(value))
        for member in sorted(vars(value)):
            found = getattr(value, member)
            if not member.startswith("_") and inspect.isroutine(found):
                yield f"    {member}{arguments(found)}"


def test_public_api() -> None:
    assert list(described()) == STORED.read_text(encoding="utf-8").splitlines(), (
        "the public names or their arguments have changed; if that is intended, say so in "
        "CHANGELOG.md and run python -m tests.test_public_api > tests/public_api.txt"
    )


def test_everything_public_has_types() -> None:
    """All arguments and results, also of methods; the compiled modules have stubs that fit."""
    for name in oaxe.__all__:
        value = getattr(oaxe, name)
        functions = [value]
        if inspect.isclass(value):
            members = (getattr(value, member) for member in vars(value) if member[0] != "_")
            functions = [member for member in members if inspect.isroutine(member)]
        for function in functions:
            signature = inspect.signature(function)
            assert signature.return_annotation is not signature.empty, function
            given = [p for p in signature.parameters.values() if p.name != "self"]
            assert all(p.annotation is not p.empty for p in given), function
    source = Path(str(oaxe.__file__)).parent
    stubs = sorted(source.rglob("*.pyi"))
    assert stubs == sorted(path.with_suffix(".pyi") for path in source.rglob("_*.c"))
    for stub in stubs:
        nodes = ast.parse(stub.read_text(encoding="utf-8")).body
        named = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        compiled = import_module(f"oaxe.{stub.parent.name}.{stub.stem}")
        assert named == {name for name in vars(compiled) if not name.startswith("_")}


if __name__ == "__main__":
    print("\n".join(described()))
