"""Strict configuration: frozen dataclasses are the only home of names, types, defaults and help.

A mapping (from YAML) becomes a dataclass; unknown keys, wrong types and missing values are all
reported together, each with the nearest valid name.
"""

import dataclasses
import math
import operator
import reprlib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from oaxe.support.errors import UserError, did_you_mean, listed, nearest

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    at_least: float = 0,
    at_most: float = 1_000_000_000,
    below: float = math.inf,
) -> Any:
    """A dataclass field with a default, one sentence of help, and bounds if it is a number."""
    bounds = {"at least": at_least, "at most": at_most, "below": below}
    return dataclasses.field(default=default, metadata={"help": help, "bounds": bounds})


def required(help: str) -> Any:
    """A dataclass field that the user has to give."""
    return dataclasses.field(metadata={"help": help})


@dataclass(frozen=True)
class Choice:
    """One of several named alternatives, with the options that belong to it."""

    name: str
    options: Any


def choice(alternatives: Mapping[str, type[Any]], default: str, help: str) -> Any:
    """A dataclass field of type :class:`Choice`: one of these classes of options, by name.

    In YAML ``loss: oaxe`` takes all defaults; ``loss: {name: oaxe, truncation: 0.15}`` changes
    some of them.
    """
    for name, kind in alternatives.items():
        if any(field.name == "name" for field in dataclasses.fields(kind)):
            raise TypeError(f"{name}: an option cannot be called `name`, which makes the choice")
    return dataclasses.field(
        default_factory=lambda: Choice(default, alternatives[default]()),
        metadata={"help": help, "alternatives": dict(alternatives), "default": default},
    )


def load(kind: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """A YAML file, changed by ``section.key=value`` overrides; one error lists all problems."""
    return build(kind, read(path, overrides), where=str(path))


def read_text(path: Path) -> str:
    """A YAML file as it is."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; give the path of a YAML file"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{path} is not valid YAML: {error}; save it as UTF-8, or give another file"
        ) from None


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The content of a YAML file, changed by overrides, before any of it is checked."""
    from oaxe.support.strict_yaml import parse  # models do without YAML

    text = read_text(path)
    try:
        content = parse(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise UserError(
            f"{path} must hold sections of `key: value`, got {_short(content)}; "
            "`oaxe config show` prints them all"
        )
    for change in overrides:
        override(content, change)
    return content


def build(kind: type[T], content: Mapping[str, Any], where: str = "configuration") -> T:
    """An instance of a settings class; one error lists all problems of the content."""
    problems: list[str] = []
    value = _build(kind, content, "", problems)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise UserError(f"{where}: {count}{listed(problems)}")
    return value


def to_mapping(value: Any) -> Any:
    """The inverse of :func:`build`: plain dicts and lists, ready for YAML or JSON."""
    if isinstance(value, Choice):
        return {"name": value.name, **to_mapping(value.options)}
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


def check_same(before: Mapping[str, Any], now: Mapping[str, Any], what: str, advice: str) -> None:
    """Raises UserError with all values that differ, between ``what`` is wrong and ``advice``."""
    if differences := changed(before, now):
        raise UserError(f"{what}:{listed(differences)}\n{advice}")


def documented(kind: type[Any], indent: str = "") -> str:
    """All options with their defaults and help, as YAML that can be edited."""
    from oaxe.support.strict_yaml import in_one_line

    lines = []
    for field, hint in _fields(kind):
        if "alternatives" in field.metadata:
            lines += [f"{indent}{field.name}:", *_documented_choice(field, indent + "  ")]
        elif _is_section(hint):
            lines += [f"{indent}{field.name}:", *documented(hint, indent + "  ").splitlines()]
        else:
            text = "???"
            if field.default is not dataclasses.MISSING:
                text = in_one_line(to_mapping(field.default))
            lines.append(
                _line(f"{indent}{field.name}: {text}", _type_name(hint), field.metadata["help"])
            )
    return "".join(f"{line}\n" for line in lines)


def _documented_choice(field: dataclasses.Field[Any], indent: str) -> list[str]:
    """The default with its options; the options of the others as comments."""
    default, alternatives = field.metadata["default"], field.metadata["alternatives"]
    lines = [_line(f"{indent}name: {default}", " | ".join(alternatives), field.metadata["help"])]
    lines += documented(alternatives[default], indent).splitlines()
    for name, kind in alternatives.items():
        if name != default:
            options = documented(kind, indent + "# ").splitlines()
            lines.append(f"{indent}# with name: {name}" + ("" if options else " (no options)"))
            lines += options
    return lines


def _line(start: str, type_name: str, help: str) -> str:
    return f"{start:<36}  # {type_name}: {help}"


def class_of(sections: Mapping[str, Any]) -> type[Any]:
    """A settings class whose top-level names are only known at run time.

    ``sections`` maps each name to a settings class, or to a type and its field:
    ``{"data": DataSettings, "run": (str, required("folder for the results"))}``.
    """
    fields = [
        (name, *kind) if isinstance(kind, tuple) else (name, kind, required("has no default"))
        for name, kind in sections.items()
    ]
    return dataclasses.make_dataclass("Sections", fields, frozen=True, kw_only=True)


def override(content: dict[str, Any], change: str) -> None:
    """Change one value of a content by ``section.key=value``, as ``--set`` gives it."""
    from oaxe.support.strict_yaml import parse

    name, equals, text = change.partition("=")
    if not equals or not name:
        raise UserError(f"--set wants KEY=VALUE, got {change!r}; for example optim.lr=1e-4")
    *sections, key = name.strip().split(".")
    for section in sections:
        inside = content.get(section)
        if inside is None:
            inside = {}
        elif isinstance(inside, str):  # perhaps a choice: `loss: oaxe`
            inside = {"name": inside}
        elif not isinstance(inside, dict):
            raise UserError(f"--set {change}: {section} is a value, not a section")
        content[section] = inside
        content = inside
    try:
        content[key] = parse(text)
    except ValueError:
        raise UserError(f"--set {change}: {text!r} is not a YAML value") from None


def _is_section(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint)


def _fields(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


def _build(kind: type[Any], content: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(content, Mapping):
        problems.append(
            f"{path.rstrip('.')} must be a section of `key: value`, got {_short(content)}"
        )
        return None
    fields = _fields(kind)
    names = [field.name for field, _ in fields]
    for key in content:
        if key not in names:
            known = f"; known: {', '.join(names)}" if names else "; there are none here"
            parts = [(f.name, getattr(hint, "__dataclass_fields__", ())) for f, hint in fields]
            inside = [name for name, options in parts if key in options]
            close = did_you_mean(_plain(key), names, path)
            if inside and not close:
                close = f"; did you mean {path}{inside[0]}.{_plain(key)}?"
            problems.append(f"{path}{_plain(key)} is not an option{close or known}")
    values: dict[str, Any] = {}
    before = len(problems)
    for field, hint in fields:
        name = path + field.name
        given = content.get(field.name)
        if "alternatives" in field.metadata:
            values[field.name] = _build_choice(field, given, name, problems)
        elif _is_section(hint):
            values[field.name] = _build(hint, {} if given is None else given, name + ".", problems)
        elif field.name in content and given != "???":
            values[field.name] = _convert(hint, given, name, problems)
            _check_bounds(field, values[field.name], name, problems)
        elif field.default is dataclasses.MISSING:
            problems.append(f"{name} is missing: {field.metadata['help']}")
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except UserError as error:  # __post_init__: values that do not go together
        problems += [path + line for line in str(error).split("\n")]
        return None


def _build_choice(
    field: dataclasses.Field[Any], given: Any, path: str, problems: list[str]
) -> Choice | None:
    """``given`` is a name, a section with or without a name, or None: the default."""
    default, alternatives = field.metadata["default"], field.metadata["alternatives"]
    options = dict(given) if isinstance(given, Mapping) else {}
    name = options.pop("name", default) if isinstance(given, Mapping | None) else given
    known = isinstance(name, str) and name in alternatives
    if not known:
        where = f"{path}.name" if isinstance(given, Mapping) else path
        names = ", ".join(alternatives)
        hint = did_you_mean(_plain(name), alternatives)
        problems.append(f"{where} must be one of {names}, got {_short(name)}{hint}")
        name = nearest(_plain(name), alternatives)  # its options are checked too
        if name is None:
            return None
    kind = alternatives[name]
    for key in [key for key in options if key not in kind.__dataclass_fields__]:
        owners = [
            other for other in alternatives if key in alternatives[other].__dataclass_fields__
        ]
        if owners:
            del options[key]
            problems.append(f"{path}.{key} is an option of {' and '.join(owners)}, not of {name}")
    built = _build(kind, options, f"{path}.", problems)
    return Choice(name, built) if known else None


def _check_bounds(
    field: dataclasses.Field[Any], value: Any, name: str, problems: list[str]
) -> None:
    """Reports the first bound that a number, or one of a list, violates; nan violates all."""
    bounds = field.metadata.get("bounds", {})
    holds = {"at least": operator.ge, "at most": operator.le, "below": operator.lt}
    for number in value if isinstance(value, tuple) else [value]:
        if isinstance(number, int | float) and not isinstance(number, bool):
            broken = (kind for kind, bound in bounds.items() if not holds[kind](number, bound))
            if kind := next(broken, None):
                shown = list(value) if isinstance(value, tuple) else value
                problems.append(f"{name} must be {kind} {bounds[kind]:,}, got {_short(shown)}")
                return


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
        names = [str(choice) for choice in choices]
        close = did_you_mean(_plain(value), names)
        problems.append(f"{name} must be one of {', '.join(names)}, got {_short(value)}{close}")
        return None
    if isinstance(value, Mapping):
        problems.append(f"{name} is a value, not a section; got {_short(value)}")
        return None
    if origin is tuple:
        if choices[-1] is ... and isinstance(value, list):
            choices = choices[:1] * len(value)
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
        return float(value) if abs(value) < 1e300 else math.inf  # which is above all bounds
    elif type(value) is hint:
        return value
    problems.append(f"{name} must be {_type_name(hint)}, got {_short(value)}")
    return None


class _Short(reprlib.Repr):
    """Abbreviates values: a few lines of YAML with anchors can stand for gigabytes."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 2, 100, 100, 60

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if abs(x) < 1e300 else "a number of over 300 digits"


_short = _Short().repr


def _plain(value: Any) -> str:
    """The abbreviated value, without quotes around a text."""
    return value[:100] if isinstance(value, str) else _short(value)


def _type_name(hint: Any) -> str:
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(map(str, choices))
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(choice) for choice in choices)
    if origin is tuple:
        return f"[{', '.join(map(_type_name, choices))}]"
    names = {int: "whole number", float: "number", str: "text", bool: "true/false", ...: "..."}
    return names.get(hint, "null" if hint is type(None) else str(hint))
