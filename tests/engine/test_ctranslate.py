"""A model exported for CTranslate2 has the same translations there."""

from pathlib import Path
from typing import Any

import pytest
import torch

from oaxe.decoding.exported import export
from oaxe.decoding.translator import Translator
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.decoding.samples import SENTENCES
from tests.models import eager_to_end, micro

ctranslate2: Any = pytest.importorskip("ctranslate2")


def translations(folder: Path, subwords: Subwords, lines: list[str], beam: int) -> list[list[str]]:
    source = [[subwords.piece(i) for i in tokens] for tokens in subwords.encode(lines)]
    model = ctranslate2.Translator(str(folder), intra_threads=1)
    found = model.translate_batch(
        source, beam_size=beam, length_penalty=1, max_decoding_length=40, max_batch_size=4
    )
    return [result.hypotheses[0] for result in found]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_same_tokens_greedy_and_with_a_beam(norm: str, subwords: Subwords, tmp_path: Path) -> None:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"max_length": 120, "encoder_layers": 3}
    system = micro("transformer", norm, vocab_size=subwords.vocab_size, **sizes)
    ours = Translator(eager_to_end(system, 2.5), subwords)
    export(ours, tmp_path / "new", format="ctranslate2")
    lines = [line for line in SENTENCES if line.strip()]
    for beam in (1, 5):
        found = translations(tmp_path / "new", subwords, lines, beam)
        expected = [t[0].tokens for t in ours.translate_scored(lines, beam=beam, max_ratio=20.0)]
        ended = [i for i, tokens in enumerate(expected) if len(tokens) < 40]
        assert len(ended) > 3
        assert len({tuple(expected[i]) for i in ended}) > 2
        for i in ended:
            assert found[i] == [subwords.piece(token) for token in expected[i]]


def test_int8_is_smaller_and_translates(subwords: Subwords, tmp_path: Path) -> None:
    system = eager_to_end(micro("transformer", vocab_size=subwords.vocab_size, max_length=60))
    before = system.state_dict()["transformer.tokens.weight"].clone()
    for int8 in (False, True):
        export(Translator(system, subwords), tmp_path / str(int8), int8=int8, format="ctranslate2")
    assert system.state_dict()["transformer.tokens.weight"].equal(before)
    sizes = [(tmp_path / str(int8) / "model.bin").stat().st_size for int8 in (False, True)]
    assert sizes[1] < sizes[0] / 2
    assert translations(tmp_path / "True", subwords, SENTENCES[:1], 1)
    other = Translator(micro(vocab_size=subwords.vocab_size), subwords)
    with pytest.raises(UserError, match=r"autoregressive models .*, this is a cmlm"):
        export(other, tmp_path / "other", format="ctranslate2")
