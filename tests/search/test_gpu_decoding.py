"""Recorded passes on a CUDA device: ``pytest -m gpu``; test_replay.py emulates them."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oaxe.decoding.translator import Translator
from oaxe.model.transformer import SIZES
from oaxe.search.replay import Replays, compute
from oaxe.systems import System, build, find
from oaxe.text.subwords import train_subwords
from tests.gpu import GPU

pytestmark = GPU


def random_system(vocab_size: int, name: str = "cmlm") -> System:
    """A model whose random weights translate different sentences differently."""
    architecture = {"vocab_size": vocab_size, **SIZES["small"], "max_length": 60}
    model = build(name, architecture, find(name).Options()).cuda().eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            nn.init.normal_(weights, std=0.05)
    return model


@pytest.mark.parametrize(
    ("name", "decoding"),
    [
        ("cmlm", {}),
        ("cmlm", {"refine_steps": 3}),
        ("cmlm", {"length_candidates": 60}),  # so many positions that our own kernels are recorded
        ("ctc", {}),
        ("dag", {}),
        ("dag", {"method": "lookahead"}),
    ],
)
@pytest.mark.parametrize("bf16", [False, True])
def test_replayed_passes_give_the_same(name: str, decoding: dict[str, Any], bf16: bool) -> None:
    """As without graphs, whatever came before, and after the weights have changed."""
    model = random_system(500, name)
    how, replays = model.decoding_type(**decoding), Replays(model)
    for _ in range(2):
        outputs = set()
        for length in (3, 40, 9, 3, 10, 61):
            source = torch.randint(9, 500, (1, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                found, expected = (
                    {h.length: h for h in model.translate(source, how, call)[0]}
                    for call in (replays, compute)
                )
            common = found.keys() & expected.keys()
            assert len(common) >= len(found) - 2 * bf16  # a rounding may choose another length
            outputs.add(tuple(found[max(found)].tokens))
            for ours, theirs in ((found[n], expected[n]) for n in common):
                if not bf16:
                    assert ours.tokens == theirs.tokens
                if not bf16 or "refine_steps" not in decoding:  # or mask other words
                    assert ours.score == pytest.approx(theirs.score, abs=0.1 if bf16 else 1e-4)
        assert len(outputs) > 3
        with torch.no_grad():
            weights = model.transformer.tokens.weight
            weights.add_(0.1 * torch.randn_like(weights))


def test_a_translator_replays_and_goes_on_after_a_move(tmp_path: Path) -> None:
    """One sentence by graphs, several without, and a model that left the GPU and came back."""
    sentences = ["a small dog runs", "two men", "", "the old dog sleeps in a boat near the water"]
    subwords = train_subwords([*sentences[:2], sentences[3]], tmp_path / "subwords.model", 45)
    model = random_system(subwords.vocab_size)
    replayed, plain = (Translator(model, subwords, cuda_graphs=graphs) for graphs in (True, False))
    before = None
    for _ in range(2):
        for lines in ([sentences[0]], sentences, [sentences[3]], [""], [sentences[1]]):
            found, expected = (
                [[(t.text, t.length, t.score) for t in of] for of in t.translate_scored(lines)]
                for t in (replayed, plain)
            )
            for ours, theirs in zip(chain(*found), chain(*expected), strict=True):
                assert ours[:2] == theirs[:2]
                assert ours[2] == pytest.approx(theirs[2], abs=1e-4)
        assert replayed._replays is not None
        assert replayed._replays._graphs
        assert replayed._replays is not before
        before = replayed._replays
        assert len(set(plain.translate(sentences))) == len(sentences)
        model.cpu()
        assert replayed.translate(sentences) == plain.translate(sentences)
        assert replayed._replays is None
        with torch.no_grad():
            model.transformer.tokens.weight.mul_(1.5)
        model.cuda()
    assert replayed.cuda_graphs  # none has failed


def test_replays_in_inference_mode_and_without() -> None:
    model = random_system(500)
    how, source = model.decoding_type(), torch.randint(9, 500, (1, 20), device="cuda")
    replays, expected = Replays(model), model.translate(source, how)[0][0].tokens
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert model.translate(source, how, replays)[0][0].tokens == expected
