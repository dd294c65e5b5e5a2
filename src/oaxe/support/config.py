"""Strict configuration: frozen dataclasses are the only home of names, types, defaults and help.

A mapping (from YAML) becomes a dataclass; unknown keys, wrong types and missing values are all
reported together, each with the nearest valid name.
"""

import dataclasses
import difflib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from oaxe.support.errors import UserError

T = TypeVar("T")


def option(default: Any, help: str) -> Any:
    """A dataclass field with a default and one sentence of help."""
    return dataclasses.field(default=default, metadata={"help": help})


def required(help: str) -> Any:
    """A dataclass field that the user has to give."""
    return dataclasses.field(metadata={"help": help})


def load(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """A YAML file, changed by ``section.key=value`` overrides; one error lists all faults."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; give the path of a YAML file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UserError(
            f"{path} must hold sections of `key: value`, not a {type(content).__name__}"
        )
    for override in overrides:
        _override(content, override)
    return build(kind, content, where=str(path))


def build(kind: type[T], content: Mapping[str, Any], where: str = "configuration") -> T:
    problems: list[str] = []
    value = _build(kind, content, "", problems)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UserError(f"{where}: {count}\n" + "\n".join(f"  {problem}" for problem in problems))
    return value  # type: ignore[no-any-return]


def to_mapping(value: Any) -> Any:
    """The inverse of :func:`build`: plain dicts and lists, ready for YAML or JSON."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: to_mapping(getattr(value, field.name)) for field in fields}
    return list(value) if isinstance(value, tuple) else value


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"optim": {"lr": 1}}`` as ``{"optim.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= flatten(item, f"{prefix}{key}.")
        else:
            flat[prefix + key] = item
    return flat


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """A line for each value that differs.

    Example:
        >>> changed({"optim": {"lr": 1, "warmup": 5}}, {"optim": {"lr": 2, "warmup": 5}})
        ['optim.lr: 1 there, 2 here']
    """
    old, new = flatten(before), flatten(now)
    return [
        f"{name}: {old.get(name, 'none')} there, {new.get(name, 'none')} here"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def documented(kind: type[Any], indent: str = "") -> str:
    """All options with their defaults and help, as YAML that can be edited."""
    lines = []
    for field, hint in _fields(kind):
        if _is_section(hint):
            lines.append(f"{indent}{field.name}:")
            lines.append(documented(hint, indent + "  ").rstrip("\n"))
        else:
            text = "???"
            if field.default is not dataclasses.MISSING:
                value = to_mapping(field.default)
                text = yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
            start = f"{indent}{field.name}: {text}"
            lines.append(f"{start:<36}  # {_type_name(hint)}: {field.metadata['help']}")
    return "\n".join(lines) + "\n"


def _override(content: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise UserError(
            f"--set wants section.key=value, got {override!r}; for example optim.lr=1e-4"
        )
    *sections, key = name.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise UserError(f"--set {override}: {section} is a value, not a section")
    try:
        content[key] = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"--set {override}: {text!r} is not a YAML value") from None


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _build(kind: type[Any], content: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(content, Mapping):
        problems.append(f"{path.rstrip('.')} must be a section of `key: value`, got {content!r}")
        return None
    fields = _fields(kind)
    names = [field.name for field, _ in fields]
    for key in content:
        if key not in names:
            close = difflib.get_close_matches(str(key), names, n=1)
            hint = f"did you mean {path}{close[0]}?" if close else f"known: {', '.join(names)}"
            problems.append(f"{path}{key} is not an option; {hint}")
    values: dict[str, Any] = {}
    before = len(problems)
    for field, hint in fields:
        name = path + field.name
        if _is_section(hint):
            section = content.get(field.name)
            values[field.name] = _build(
                hint, {} if section is None else section, name + ".", problems
            )
        elif field.name in content and content[field.name] != "???":
            values[field.name] = _convert(hint, content[field.name], name, problems)
        elif field.default is dataclasses.MISSING:
            problems.append(f"{name} is missing: {field.metadata['help']}")
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except UserError as error:  # __post_init__: values that do not go together
        problems += [path + line for line in str(error).split("\n")]
        return None


def _convert(hint: Any, value: Any, name: str, problems: list[str]) -> Any:
    """The value as the annotated type, or a problem."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in choices:
            return None
        (hint,) = [choice for choice in choices if choice is not type(None)]
        return _convert(hint, value, name, problems)
    if origin is Literal:
        if value in choices:
            return value
        close = difflib.get_close_matches(str(value), map(str, choices), n=1)
        hint_text = f"; did you mean {close[0]}?" if close else ""
        problems.append(
            f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}{hint_text}"
        )
        return None
    if origin is tuple:
        if isinstance(value, list) and len(value) == len(choices):
            return tuple(
                _convert(choice, item, f"{name}[{i}]", problems)
                for i, (choice, item) in enumerate(zip(choices, value, strict=True))
            )
    elif hint is float and isinstance(value, str):
        try:
            return float(value)  # YAML reads 1e-4 as text
        except ValueError:
            pass
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    problems.append(f"{name} must be {_type_name(hint)}, got {value!r}")
    return None


def _type_name(hint: Any) -> str:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(map(str, choices))
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(choice) for choice in choices)
    if origin is tuple:
        return f"[{', '.join(map(_type_name, choices))}]"
    names = {int: "whole number", float: "number", str: "text", bool: "true/false"}
    return names.get(hint, "null" if hint is type(None) else str(hint))
