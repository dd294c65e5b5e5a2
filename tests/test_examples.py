"""The examples run, at a small size, and learn what they say."""

from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

import oaxe

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> dict[str, Any]:
    return run_path(str(EXAMPLES / name))


def test_every_example_is_tested() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert names == {"detection.py", "phrases.py", "speech_separation.py", "tags.py"}


def test_detection_matches_as_scipy_does(capsys: pytest.CaptureFixture[str]) -> None:
    detection = load("detection.py")
    assert detection["main"](batch=5, queries=20, most=6)
    assert "same matches: True" in capsys.readouterr().out
    torch.manual_seed(1)
    outputs, targets = detection["pictures"](4, 8, 8)
    targets[2] = {name: value[:0] for name, value in targets[2].items()}  # an empty picture
    matches = detection["Matcher"]()(outputs, targets)
    assert [len(query) for query, _ in matches] == [len(t["boxes"]) for t in targets]
    for (query, item), target in zip(matches, targets, strict=True):
        assert query.equal(query.sort().values)
        assert sorted(item.tolist()) == list(range(len(target["boxes"])))


class NothingIsCopied(TorchFunctionMode):
    """On the device "meta", where no value can be read, no number of the host is written either."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        assert function not in (torch.tensor, torch.as_tensor, torch.from_numpy), function
        return function(*arguments, **(options or {}))


def test_the_matcher_waits_for_no_value() -> None:
    detection = load("detection.py")
    outputs, targets = detection["pictures"](4, 20, 6)
    there = [
        {name: value.to("meta") for name, value in each.items()} for each in (outputs, *targets)
    ]
    with NothingIsCopied():
        matches = detection["Matcher"]()(there[0], there[1:])
    for pair, target in zip(matches, targets, strict=True):
        for index in pair:
            assert index.is_meta
            assert index.dtype == torch.long
            assert index.shape == target["class_labels"].shape


@pytest.mark.parametrize(
    "copy",
    [Tensor.cpu, Tensor.tolist, Tensor.nonzero, lambda values: values.sum().item(),
     lambda values: values[values > 0], lambda values: torch.tensor([3], device=values.device)],
)  # fmt: skip
def test_copies_would_be_noticed(copy: Callable[[Tensor], Any]) -> None:
    with NothingIsCopied(), pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        copy(torch.zeros(3, device="meta"))


def test_overlap_of_boxes() -> None:
    overlap = load("detection.py")["generalized_iou"]
    boxes = torch.tensor([[[0.0, 0.0, 2.0, 2.0]]])
    others = torch.tensor([[[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [3.0, 0.0, 4.0, 2.0]]])
    expected = torch.tensor([[[1.0, 1 / 7 - 2 / 9, -2 / 8]]])
    torch.testing.assert_close(overlap(boxes, others), expected)


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_matcher_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.loss import loss_for_object_detection as theirs

    detection = load("detection.py")
    outputs, targets = detection["pictures"](4, 20, 6)
    expected = theirs.HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)(outputs, targets)
    monkeypatch.setattr(theirs, "HungarianMatcher", theirs.HungarianMatcher)  # put back after
    detection["swap_matcher_of_transformers"]()
    found = theirs.HungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)(outputs, targets)
    for pair, others in zip(found, expected, strict=True):
        assert all(ours.equal(other) for ours, other in zip(pair, others, strict=True))


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_detector_of_transformers_trains_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses and gradients, to the last bit, also of a picture without objects."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
    from transformers.loss import loss_for_object_detection as theirs

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, out_features=["stage4"]
    )
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=backbone, num_labels=9, d_model=32, encoder_layers=1, decoder_layers=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=20, auxiliary_loss=True,
    )  # fmt: skip
    model = DetrForObjectDetection(config).train()
    pictures = torch.randn(3, 3, 64, 64)
    labels = [
        {"class_labels": torch.randint(9, (n,)), "boxes": torch.rand(n, 4) * 0.4 + 0.1}
        for n in (3, 0, 7)
    ]

    def step() -> tuple[dict[str, float], list[torch.Tensor]]:
        torch.manual_seed(1)  # dropout
        model.zero_grad()
        out = model(pixel_values=pictures, labels=labels)
        out.loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return {name: float(value) for name, value in out.loss_dict.items()}, gradients

    losses, gradients = step()
    monkeypatch.setattr(theirs, "HungarianMatcher", theirs.HungarianMatcher)  # put back after
    load("detection.py")["swap_matcher_of_transformers"]()
    our_losses, our_gradients = step()
    assert our_losses == losses
    assert len(gradients) > 50
    assert all(ours.equal(other) for ours, other in zip(our_gradients, gradients, strict=True))


def test_speech_separation_learns_in_any_order_only() -> None:
    example = load("speech_separation.py")
    losses = torch.randn(5, 4, 4)
    best = [min(sum(p[i, o[i]] for i in range(4)) for o in permutations(range(4))) for p in losses]
    expected = torch.tensor(best).mean() / 4
    torch.testing.assert_close(example["permutation_invariant"](losses), expected)
    assert example["train"](example["permutation_invariant"], voices=3, steps=100) > 5
    assert example["train"](example["in_order"], voices=2, steps=60) < 2


def test_tags_are_found_in_any_order_only() -> None:
    train = load("tags.py")["train"]
    assert train(oaxe.oaxe_loss, steps=100) > 0.4
    assert train(oaxe.xe_loss, steps=100) < 0.15


def test_phrases_stay_whole() -> None:
    example = load("phrases.py")
    torch.manual_seed(0)
    logits, phrases = torch.randn(2, 3, 2, 7), torch.randint(7, (2, 3, 2))
    phrases[0, 1, 1] = -100
    best = sum(
        min(
            F.cross_entropy(words.flatten(0, 1), target[list(order)].flatten(), reduction="sum")
            for order in permutations(range(3))
        )
        for words, target in zip(logits, phrases, strict=True)
    )
    torch.testing.assert_close(example["phrase_loss"](logits, phrases), torch.as_tensor(best) / 11)
    whole, _ = example["train"](example["phrase_loss"], steps=100)
    mixed, bags = example["train"](example["word_loss"], steps=100)
    assert whole > 0.7
    assert mixed < 0.6
    assert bags > 0.8
