"""YAML as plain values. A key that is given twice is an error, as is a section without end."""

from typing import Any

import yaml

MOST_KEYS = 1_000  # of a section


class _Loader(yaml.SafeLoader):
    """YAML takes the last of several values for the same key; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value[:100]} is given twice; remove one of them",
                    problem_mark=key.start_mark,
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges the sections that ``<<`` names, which may name others."""
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise yaml.MarkedYAMLError(
                problem=f"more than {MOST_KEYS:,} keys in one section", problem_mark=node.start_mark
            )


def parse(text: str) -> Any:
    """The value that a text stands for; ValueError if it is not YAML.

    Example:
        >>> parse("lr: 1.0e-3")
        {'lr': 0.001}
    """
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def in_one_line(value: Any) -> str:
    """A plain value as YAML.

    Example:
        >>> in_one_line([1, None])
        '[1, null]'
    """
    return str(yaml.safe_dump(value, default_flow_style=True)).split("\n")[0]
