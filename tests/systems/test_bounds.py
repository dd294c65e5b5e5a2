"""A saved model may say any number: none takes memory or time without end."""

import dataclasses
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from oaxe.support.config import build
from oaxe.support.errors import UserError
from oaxe.systems import built_in, find

MOST = 100_000  # of any whole number


def whole_numbers(kind: type[Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each option that holds one, and a content in which it is a billion."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if "alternatives" in field.metadata:
            for name, options in field.metadata["alternatives"].items():
                for inside, content in whole_numbers(options, f"{path}{field.name}."):
                    yield inside, {field.name: {"name": name, **content}}
        elif dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            for inside, content in whole_numbers(hint, f"{path}{field.name}."):
                yield inside, {field.name: content}
        elif hint is int or int in get_args(hint):
            yield path + field.name, {field.name: 10**9}


CASES = [
    pytest.param(kind, option, content, id=f"{name} {part} {option}")
    for name in built_in()
    for part, kind in (("options", find(name).Options), ("decoding", find(name).Decoding))
    for option, content in whole_numbers(kind)
]


@pytest.mark.parametrize(("kind", "option", "content"), CASES)
def test_whole_numbers_have_an_upper_bound(
    kind: type[Any], option: str, content: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=rf"{option} must be at most [\d,]+, got 1") as error:
        build(kind, content)
    (most,) = [line for line in str(error.value).splitlines() if f"{option} must be" in line]
    assert int(most.split("at most ")[1].split(", got")[0].replace(",", "")) <= MOST


def test_options_of_all_kinds_are_found() -> None:
    names = {param.id for param in CASES}
    assert {
        "flowseq options flow_steps",
        "lanmt decoding refine_steps",
        "cmlm options loss.n",
        "ctc options objective.n",
        "dag decoding samples",
    } <= names
