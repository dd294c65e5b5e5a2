"""Directives ``commands`` and ``settings``: what `--help` and `oaxe config show` say, in tables."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from oaxe.commands.app import app
from oaxe.systems import built_in, find, section
from oaxe.training.settings import documented_settings

LINE = re.compile(
    r"(?P<indent>[ #]*)(?P<name>\w+): (?P<default>.*?) +# (?P<kind>.*?): (?P<help>.*)"
)


def marked(text: str) -> str:
    """With options that it names as code."""
    return re.sub(r"`[^`]*`|(?<![\w-])(--[\w-]+)", lambda m: f"`{m[1]}`" if m[1] else m[0], text)


def cell(text: str) -> str:
    return marked(" ".join(text.split())).replace("|", r"\|")


def code(text: str) -> str:
    return "`{}`".format(text.replace("|", r"\|")) if text else ""


def commands(command: Any, name: str = "oaxe") -> Iterator[str]:
    """A section for every command, as Markdown."""
    for part, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, f"{name} {part}")
    if hasattr(command, "commands"):
        return
    yield f"## {name}\n\n{marked(command.help)}\n"
    rows = [row(parameter) for parameter in command.params if not parameter.hidden]
    if rows:
        yield "\n".join(["| | default | |", "|---|---|---|", *rows, ""])


def row(parameter: Any) -> str:
    is_option = parameter.opts[0].startswith("-")
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name.upper()]
    if parameter.metavar:
        names = (
            [f"{names[0]} {parameter.metavar}", *names[1:]] if is_option else [parameter.metavar]
        )
    default = "" if parameter.default in (None, False, True, ()) else str(parameter.default)
    shown = "required" if parameter.required else code(default)
    return f"| {', '.join(map(code, names))} | {shown} | {cell(parameter.help or '')} |"


def settings() -> Iterator[str]:
    """A section for every section of a configuration, and then for every system."""
    for name, rows in sections(documented_settings("cmlm")).items():
        if name not in ("cmlm", "decoding"):
            yield f"## {name}\n\n{table(rows)}"
    for system in built_in():
        module = find(system)
        about = (module.__doc__ or "").partition("\n")[0]
        of_system = sections(documented_settings(system))
        rows = of_system.get(section(system), []) + of_system["decoding"]
        yield f"## System {system}\n\n{about} [{module.PAPER.title}]({module.PAPER.url}).\n"
        yield table(rows)


def sections(text: str) -> dict[str, list[str]]:
    """Rows of tables, by the section at the top."""
    found: dict[str, list[str]] = {"run": []}
    path, alternative = [""], ""
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if named := re.match(r" *# with name: (\w+)", line):
            alternative = named[1]
        elif header := re.fullmatch(r" *(\w+):", line):
            path, alternative = [*path[:depth], header[1]], ""
            found.setdefault(path[0], [])
        elif option := LINE.fullmatch(line):
            if "#" not in option["indent"]:
                path, alternative = path[:depth], ""
            name = ".".join([*path, option["name"]])
            where = f", with `name: {alternative}`" if alternative else ""
            default = "required" if option["default"] == "???" else code(option["default"])
            found[path[0] if path else "run"].append(
                f"| {code(name)} | {default} | {cell(option['kind'])} | "
                f"{cell(option['help'])}{where} |"
            )
    return found


def table(rows: list[str]) -> str:
    return "\n".join(["| | default | | |", "|---|---|---|---|", *rows, ""])


class Commands(SphinxDirective):
    def run(self) -> list[Node]:
        text = "\n".join(commands(typer.main.get_command(app)))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Settings(SphinxDirective):
    def run(self) -> list[Node]:
        return self.parse_text_to_nodes("\n".join(settings()), allow_section_headings=True)


def setup(app: Sphinx) -> None:
    app.add_directive("commands", Commands)
    app.add_directive("settings", Settings)
