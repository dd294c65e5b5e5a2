"""Recorded passes on a CUDA device: ``pytest -m gpu``; test_replay.py emulates them."""

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from oaxe.decoding.translator import Translator
from oaxe.model.transformer import SIZES
from oaxe.search.replay import Replays, compute
from oaxe.systems import System, build, find
from oaxe.text.subwords import train_subwords
from oaxe.text.symbols import PAD
from tests.gpu import GPU
from tests.models import eager_to_end

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
        ("dslp", {}),
        ("lanmt", {"refine_steps": 2}),
        ("flowseq", {}),
        ("dag", {"method": "greedy"}),
        ("dag", {"method": "lookahead"}),
        ("dag", {"method": "beam"}),
        ("ctc", {"method": "beam", "bonus": 0.5}),
    ],
)
@pytest.mark.parametrize("bf16", [False, True])
def test_replayed_passes_give_the_same(name: str, decoding: dict[str, Any], bf16: bool) -> None:
    """As without graphs, whatever came before, and after the weights have changed."""
    model = random_system(500, name)
    how, replays = model.decoding_type(**decoding), Replays(model)
    for _ in range(2):
        scores = set()
        for length in (3, 40, 9, 3, 10, 61):
            source = torch.randint(9, 500, (1, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
                found, expected = (
                    {h.length: h for h in model.translate(source, how, call)[0]}
                    for call in (replays, compute)
                )
            common = found.keys() & expected.keys()
            assert len(common) >= len(found) - 2 * bf16  # a rounding may choose another length
            scores.add(round(found[max(found)].score, 4))
            for ours, theirs in ((found[n], expected[n]) for n in common):
                if not bf16:
                    assert ours.tokens == theirs.tokens
                if not bf16 or "refine_steps" not in decoding:  # or mask other words
                    assert ours.score == pytest.approx(theirs.score, abs=0.1 if bf16 else 1e-4)
        assert len(scores) > 3  # so that one that is not replayed would be noticed
        with torch.no_grad():
            weights = model.transformer.tokens.weight
            weights.add_(0.1 * torch.randn_like(weights))


@pytest.mark.parametrize("batch_tokens", [None, 16 * 5 * 8])
@pytest.mark.parametrize("beam", [1, 5])
def test_recorded_steps_give_the_same(beam: int, batch_tokens: int | None) -> None:
    """As without graphs and as on a CPU, in any order of shapes, with slots that are refilled."""
    model: Any = eager_to_end(random_system(500, "transformer"), factor=1.5)
    on_cpu = copy.deepcopy(model).cpu()
    how, replays = model.decoding_type(beam=beam, length_penalty=0.6), Replays(model)
    for _ in range(2):
        found_lengths = set()
        for lengths in ([9], [3, 30, 9, 61, 17, 2] * 20, [14], [25, 24, 7], [6, 5] * 17, [9]):
            source = pad_sequence([torch.randint(9, 500, (n,)) for n in lengths], True, PAD)
            expected = on_cpu.translate(source, how)
            for call in (replays, compute):
                found = model.translate(source.cuda(), how, call, batch_tokens=batch_tokens)
                same = 0
                for mine, theirs in zip(found, expected, strict=True):
                    same += mine[0].tokens == theirs[0].tokens
                    assert mine[0].score == pytest.approx(theirs[0].score, abs=1e-2)
                assert same >= 0.97 * len(lengths)  # a rounding may tip a close decision
            found_lengths |= {hypotheses[0].length for hypotheses in found}
        assert len(found_lengths) > 5
        with torch.no_grad():
            for here, there in zip(model.parameters(), on_cpu.parameters(), strict=True):
                here.add_(0.01 * torch.randn_like(here))
                there.copy_(here)
    assert replays.are_of(model)


@pytest.mark.parametrize("beam", [1, 5])
def test_recorded_steps_in_half_precision(beam: int) -> None:
    """So many rows that our own kernels are recorded. Scores are those of the same tokens."""
    model: Any = eager_to_end(random_system(500, "transformer"), factor=1.5)
    how, replays = model.decoding_type(beam=beam), Replays(model)
    lengths = torch.randint(2, 17, (600,)).tolist()
    source = pad_sequence([torch.randint(9, 500, (n,)) for n in lengths], True, PAD).cuda()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            found = model.translate(source, how, replays, batch_tokens=16 * beam * 512)
            expected = model.translate(source, how)
        differences = [abs(a[0].score - b[0].score) for a, b in zip(found, expected, strict=True)]
        assert sum(differences) / len(differences) < 0.02
        same = sum(a[0].tokens == b[0].tokens for a, b in zip(found, expected, strict=True))
        assert same > 0.5 * len(lengths)
        with torch.no_grad():
            model.transformer.decoder[0].feed_forward.sublayer.inner.weight.mul_(1.2)


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
