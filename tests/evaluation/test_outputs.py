"""Names of outputs, and the outputs in files."""

from itertools import pairwise
from pathlib import Path

import pytest

from oaxe.evaluation.outputs import names_and_paths
from oaxe.support.errors import UserError
from tests.evaluation.samples import load, near, plain_bleu, run, sentences, write


def test_names() -> None:
    assert names_and_paths(["a=x/y", "runs/b", "x=y=z"]) == {"a": "x/y", "b": "runs/b", "x": "y=z"}
    assert names_and_paths(["runs/lr=3"]) == {"lr=3": "runs/lr=3"}
    with pytest.raises(UserError, match="two outputs are called b: runs/b and other/b"):
        names_and_paths(["runs/b", "other/b"])
    for nothing in ("=x", "x=", ""):
        with pytest.raises(UserError, match="NAME=path"):
            names_and_paths([nothing])


def test_deduplication_of_words(tmp_path: Path) -> None:
    reference = sentences(3, 30)
    output = near(reference, 4)
    hyp, ref = write(tmp_path / "out.txt", output), write(tmp_path / "ref.txt", reference)
    run("--hyp", hyp, "--ref", ref, "--json", tmp_path / "scores.json")
    both = load(tmp_path / "scores.json")["deduplication"]
    once = [
        " ".join(w for before, w in pairwise(["", *line.split()]) if w != before) for line in output
    ]
    refs = [[line] for line in reference]
    assert both["unit"] == "words"
    assert both["is_scored"] is False
    assert both["bleu_without"] == pytest.approx(plain_bleu(output, refs))
    assert both["bleu_with"] == pytest.approx(plain_bleu(once, refs))
    assert both["bleu_with"] > both["bleu_without"] + 1
