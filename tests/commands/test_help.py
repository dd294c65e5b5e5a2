"""Every option of every command says what it does and what its default is."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from oaxe.commands.app import app
from oaxe.commands.options import Decoding
from oaxe.support.errors import UserError
from oaxe.systems import built_in, find


def parameters(command: Any, path: str = "oaxe") -> Iterator[tuple[str, Any]]:
    for parameter in command.params:
        if parameter.name not in ("help", "install_completion", "show_completion"):  # Typer's
            yield f"{path} {parameter.name}", parameter
    for name, inner in getattr(command, "commands", {}).items():
        yield from parameters(inner, f"{path} {name}")


PARAMETERS = dict(parameters(typer.main.get_command(app)))


def test_there_are_parameters() -> None:
    assert len(PARAMETERS) > 60
    assert {"oaxe train configuration", "oaxe serve beam", "oaxe data get name"} <= set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_help_is_a_sentence(name: str) -> None:
    text = PARAMETERS[name].help
    assert text.endswith(".")
    assert text[0].isupper() or text.startswith("cpu")


@pytest.mark.parametrize("name", PARAMETERS)
def test_help_names_the_default(name: str) -> None:
    """Typer shows the defaults of values, but neither of flags nor of those left out."""
    parameter = PARAMETERS[name]
    repeats = parameter.multiple or parameter.nargs == -1
    if name == "oaxe version" or parameter.required or repeats:
        return
    assert ("Default: " in parameter.help) == (parameter.default in (None, False))


def test_no_command_names_a_kind_of_model_by_its_code() -> None:
    for name, parameter in PARAMETERS.items():
        assert not parameter.help.startswith(("nat", "at:", "ctc", "lm:")), name


def test_decoding_options_are_the_same_everywhere() -> None:
    shared = list(inspect.signature(Decoding).parameters)
    for option in shared:
        helps = {
            PARAMETERS[f"oaxe {command} {option}"].help
            for command in ("translate", "serve", "evaluate")
        }
        assert len(helps) == 1


def test_flags_of_decoding_are_options_of_a_system() -> None:
    known = {field.name for name in built_in() for field in dataclasses.fields(find(name).Decoding)}
    given = Decoding(1, "merge", 2, 3, 0.5).given
    assert len(given) == 5
    assert set(given) <= known


def test_any_option_of_decoding_can_be_set() -> None:
    assert Decoding().given == {}
    assert Decoding(beam=3, changes=["max_ratio=3", "beam=4"]).given == {"beam": 4, "max_ratio": 3}
    with pytest.raises(UserError, match="--set wants KEY=VALUE, got 'max_ratio'"):
        _ = Decoding(changes=["max_ratio"]).given
