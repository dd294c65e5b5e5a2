"""An exported model whose description was changed is refused, never loaded to fail later."""

import json
from pathlib import Path
from typing import Any

import pytest

from oaxe.decoding.exported import export
from oaxe.decoding.translator import Translator
from oaxe.engine.checks import FACTORS
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.decoding.samples import translator

TABLES = "does not fit its config.json, or is not finite"
REMOVED = object()


def change(folder: Path, **changes: Any) -> None:
    """Values of config.json; those of an object's names if both are objects."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        if isinstance(value, dict) and name != "sha256":
            value = {n: v for n, v in (config[name] | value).items() if v is not REMOVED}
        config[name] = value
    path.write_text(json.dumps({n: v for n, v in config.items() if v is not REMOVED}))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("ctc", {"sha256": {}}, '"sha256" in .* lacks decoder.onnx, encoder.onnx, subwords.model'),
        ("ctc", {"sha256": "x"}, '"sha256" in .* lacks every file'),
        ("ctc", {"sha256": REMOVED}, "lacks sha256; take the file that was written"),
        ("ctc", {"system": ["x"]}, r"\"system\" must be a name, got \['x'\]"),
        ("ctc", {"system": "none"}, "system 'none'; this version"),
        ("ctc", {"precision": ["int8"]}, r"precision of .* float32, int8, got \['int8'\]"),
        ("ctc", {"precision": "int8"}, f"{TABLES}: scale, sums, tokens"),
        ("ctc", {"languages": "en"}, '"languages" must be two names'),
        ("ctc", {"decoding": {"beam": 10**9}}, "beam must be at most 1,000, got"),
        ("ctc", {"architecture": [1]}, r'"architecture" must be an object .* got \[1\]'),
        ("ctc", {"architecture": {"max_length": REMOVED}}, "is none: it lacks max_length; copy"),
        ("ctc", {"architecture": {"vocab_size": REMOVED}}, "is none: it lacks vocab_size; copy"),
        ("ctc", {"architecture": {"max_length": "many"}}, "max_length must be a number .* 'many'"),
        ("ctc", {"architecture": {"max_length": 2.5}}, r"max_length must be a number .* 2\.5"),
        ("ctc", {"architecture": {"max_length": 10**12}}, "max_length must be a number from 0 to"),
        ("ctc", {"architecture": {"vocab_size": 61}}, f"{TABLES}: tokens"),
        ("ctc", {"architecture": {"max_length": 100_000}}, "source_positions, target_positions"),
        ("ctc", {"architecture": {"max_length": 5}}, "source_positions, target_positions"),
        ("ctc", {"architecture": {"positions": "both"}}, "source_from_end, target_from_end"),
        ("ctc", {"options": {"upsample": 90}}, f"{TABLES}: target_positions; export"),
        ("ctc", {"options": {"upsample": True}}, "must be a number from 1 to 100, got True"),
        ("ctc", {"system": "cmlm"}, f"{TABLES}: target_positions; export"),
        ("dag", {"options": {"vertices": 90}}, f"{TABLES}: links, target_positions; export"),
        ("dag", {"architecture": {"heads": 8}}, f"{TABLES}: links; export"),
        ("cmlm", {"architecture": {"max_length": 41}}, "source_positions, target_positions"),
        ("cmlm from both ends", {"architecture": {"max_length": 41}}, "source_from_end, source_"),
        ("cmlm", {"options": {"loss": ["axe"]}}, r"loss of cmlm .* got \['axe'\]; copy"),
        ("cmlm", {"system": "ctc", "options": {"upsample": 1}}, f"{TABLES}: target_positions"),
    ],
)
def test_rejects_impossible_descriptions(
    kind: str, changes: dict[str, Any], message: str, subwords: Subwords, tmp_path: Path
) -> None:
    export(translator(subwords, kind), tmp_path)
    Translator.from_pretrained(tmp_path, threads=1)
    change(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained(tmp_path, threads=1)


@pytest.mark.parametrize("threads", [0, -5])
def test_rejects_impossible_threads(threads: int, subwords: Subwords, tmp_path: Path) -> None:
    export(translator(subwords), tmp_path)
    with pytest.raises(
        ValueError, match=f"threads must be from 1 to 1,024, got {threads}; leave it"
    ):
        Translator.from_pretrained(tmp_path, threads=threads)


@pytest.mark.parametrize("kind", ["ctc", "dag"])
def test_the_longest_line_fits(kind: str, subwords: Subwords, tmp_path: Path) -> None:
    ours = translator(subwords, kind)
    assert kind in FACTORS
    export(ours, tmp_path)
    engine = Translator.from_pretrained(tmp_path, threads=1)
    with pytest.warns(UserWarning, match="cut after 40 subwords"):
        assert engine.translate(["the dog sleeps " * 50]) != [""]
