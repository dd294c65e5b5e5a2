"""The examples on a CUDA device: ``pytest -m gpu``."""

import torch

from tests.gpu import GPU
from tests.test_examples import load

pytestmark = GPU


def test_the_matcher_of_detectors_does_not_synchronize() -> None:
    detection = load("detection.py")
    matcher = detection["Matcher"]()
    outputs, targets = detection["pictures"](4, 20, 6)
    expected = matcher(outputs, targets)
    there = [{name: value.cuda() for name, value in each.items()} for each in (outputs, *targets)]
    matcher(there[0], there[1:])  # the kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        matches = matcher(there[0], there[1:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for found, pair in zip(matches, expected, strict=True):
        assert all(ours.cpu().equal(same) for ours, same in zip(found, pair, strict=True))
