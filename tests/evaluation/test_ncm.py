"""NCM from the probabilities of the model."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from oaxe.decoding.translator import Translator
from oaxe.evaluation.ncm import ncm
from oaxe.text.symbols import BLANK, BOS, EOS, LENGTH, MASK, PAD, UNK
from tests.evaluation.samples import SOURCES, load, run_models


@pytest.mark.parametrize("penalty", [1.0, 2.0])
def test_ncm_from_the_probabilities_of_the_model(
    folder: Path, tmp_path: Path, penalty: float
) -> None:
    ours: Any = Translator.from_pretrained(folder / "cmlm")
    scored = ours.translate_scored(SOURCES, repeats="keep", length_penalty=penalty)
    found = [best[0] for best in scored]
    log_p, positions = 0.0, 0
    for line, best in zip(SOURCES, found, strict=True):
        if not line:
            continue
        (tokens,) = ours.subwords.encode([line])
        masks = torch.full((1, len(best.tokens)), MASK)
        with torch.no_grad():
            source = torch.tensor([[*tokens, EOS]])
            encoded, _ = ours.system.length.encode(ours.system.transformer, source)
            hidden = ours.system.transformer.decode(masks, masks > 0, encoded)
            logits = ours.system.transformer.logits(hidden)[0]
        logits[:, [PAD, BOS, EOS, UNK, MASK, BLANK, LENGTH]] = float("-inf")
        p = logits.softmax(-1)
        assert p.argmax(-1).tolist() == best.tokens
        log_p += sum(math.log(p[n, token]) for n, token in enumerate(best.tokens))
        positions += len(best.tokens)
    assert ncm(found) == pytest.approx(-log_p / positions, rel=1e-4)
    assert ncm([]) == 0
    options = "--length-penalty", str(penalty), "--json", str(tmp_path / "scores.json")
    run_models(folder, "--model", f"CMLM={folder}/cmlm", *options)
    reported = load(tmp_path / "scores.json")["systems"]["CMLM"]["ncm"]
    assert reported == pytest.approx(-log_p / positions, rel=1e-4)
