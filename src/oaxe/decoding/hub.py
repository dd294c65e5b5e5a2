"""Sharing a translator: its card, which says what it is and how to use it, and the way to the hub.

The card is a README.md whose front matter the Hugging Face hub reads: languages, task, library. It
names no licence: that is the choice of the owners of the training data.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from oaxe.decoding.saved import FILES, is_of_the_hub
from oaxe.support.config import build, flatten
from oaxe.support.errors import UserError
from oaxe.support.files import write_whole
from oaxe.text.languages import NAMES

if TYPE_CHECKING:
    from oaxe.systems import System

CARD = "README.md"
# A card without this line is the user's own, and stays.
MARK = "<!-- Written by oaxe, and written anew with the model as long as this line is here. -->"

TRANSLATES = """```sh
pip install "oaxe[toolkit]"
echo {example} | oaxe translate --model {name}
```

```python
import oaxe

translator = oaxe.Translator.from_pretrained("{name}")
translator.translate(["{example}"])
```

Give it one sentence a line; `translate_paragraphs` splits longer texts."""

SCORES = """A language model, which measures how fluent translations are:

```sh
oaxe evaluate --model MODEL --lm {name} --data DATA --out report
```"""


def model_card(
    system: "System",
    languages: tuple[str, str],
    decoding: Mapping[str, Any],
    name: str = "path/to/model",
) -> str:
    """The text of the card.

    Args:
        languages: codes of source and target; either may be empty.
        decoding: its defaults.
        name: what :meth:`Translator.from_pretrained` is given.
    """
    paper = sys.modules[type(system).__module__].PAPER
    reference = f"[{paper.title}]({paper.url})" if paper.url else paper.title
    use = (TRANSLATES if system.translates else SCORES).format(name=name, example="Hello")
    how = build(system.decoding_type, decoding, "decoding")
    options = "\n".join(f"| `{option}` | {_value(value)} |" for option, value in decoding.items())
    details = {"system": system.name, **flatten(system.description()["options"])}
    details |= flatten(system.architecture)
    rows = "\n".join(f"| {row} | {_value(value)} |" for row, value in details.items())
    front = yaml.safe_dump(_front_matter(system, languages), sort_keys=False, allow_unicode=True)
    millions = system.n_parameters / 1e6
    parts = [
        f"---\n{front}---\n{MARK}",
        f"# {_title(system, languages)}",
        f"`{system.name}` of {reference}, {millions:.3g} million weights, made with oaxe.",
        f"## How to use\n\n{use}",
    ]
    if system.translates:
        parts.append(
            f"## Decoding\n\nBy default: {how}.\n\n| option | default |\n|---|---|\n{options}"
        )
    parts.append(f"## Model\n\n| | |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _front_matter(system: "System", languages: tuple[str, str]) -> dict[str, Any]:
    # The hub knows codes of two or three letters, without regions; x-name is no code.
    codes = [
        code.lower() for name in languages if (code := re.split("[-_]", name)[0]) not in ("", "x")
    ]
    front: dict[str, Any] = {"language": list(dict.fromkeys(codes))} if codes else {}
    front["library_name"] = "oaxe"
    if system.translates:
        front["pipeline_tag"] = "translation"
    return {**front, "tags": [system.name.rpartition(".")[2]]}


def _title(system: "System", languages: tuple[str, str]) -> str:
    source, target = (NAMES.get(code, code) for code in languages)
    if not system.translates:
        return f"Language model of {target or source or 'text'}"
    return f"Translation from {source} to {target}" if source and target else "Translation"


def _value(value: object) -> str:
    """A cell of a table, without the paths of the author's machine."""
    text = str(value)
    return "a file" if "/" in text or "\\" in text else text.replace("|", "\\|")


def write_card(folder: Path, text: str) -> None:
    """Write the card, unless there is one of the user's own."""
    path = folder / CARD
    if not path.is_file() or MARK in path.read_text(encoding="utf-8", errors="replace"):
        write_whole(path, text)


def push(folder: Path, name: str, private: bool | None, revision: str | None, message: str) -> str:
    """Put a saved folder on the hub, as one commit; its id. A card that is there already stays."""
    from huggingface_hub import HfApi  # slow to import, and rarely needed

    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        has_card = api.file_exists(name, CARD, revision=revision)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            revision=revision,
            commit_message=message,
            allow_patterns=[*FILES, *([] if has_card else [CARD])],
        )
    except Exception as error:
        if not is_of_the_hub(error):
            raise
        raise UserError(
            f"the Hugging Face hub did not take {name}: {' '.join(str(error).split())}; "
            "give a name such as owner/model, and log in with `hf auth login`"
        ) from None
    return str(commit.oid)
