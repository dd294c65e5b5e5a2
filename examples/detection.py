"""Matching in a detector: predictions and objects of all pictures in one call.

DETR (Carion et al., 2020) matches its queries with the objects of a picture by a cost of class, L1
distance and overlap of boxes, in a loop over the pictures with scipy. Here the loop is one call of
``oaxe.linear_assignment``. It returns lists of pairs, as DETR's own loss wants them. On a GPU the
pairs stay there and nothing waits: how many there are, the host knows from the shapes of targets.

Run me: python examples/detection.py
"""

import time
from importlib.util import find_spec

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import oaxe


def corners(boxes):
    """Boxes as (centre x, centre y, width, height) to their corners."""
    centre, size = boxes.split(2, -1)
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def generalized_iou(a, b):
    """Overlap of all pairs, (batch, queries, 4) and (batch, objects, 4) of corners."""

    def area(boxes):
        return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)

    a, b = a.unsqueeze(2), b.unsqueeze(1)
    low, high = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    inner = torch.cat(
        [torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])], -1
    )
    both = area(inner)
    union = area(a) + area(b) - both
    hull = area(torch.cat([low, high], -1))
    return both / union - (hull - union) / hull


class Matcher(nn.Module):
    """Takes and returns what the matcher of DETR does, also that of ``transformers``."""

    def __init__(self, class_cost=1.0, bbox_cost=5.0, giou_cost=2.0):
        super().__init__()
        self.weights = class_cost, bbox_cost, giou_cost

    @torch.no_grad()
    def forward(self, outputs, targets):
        """For each picture, the matched queries and their objects, two tensors of one length."""
        return match(*self.costs(outputs, targets), [len(t["boxes"]) for t in targets])

    def costs(self, outputs, targets):
        """(batch, queries, objects), and which objects are there: (batch, objects)."""
        classes = pad_sequence([t["class_labels"] for t in targets], batch_first=True)
        boxes = pad_sequence([t["boxes"] for t in targets], batch_first=True, padding_value=0.5)
        real = [torch.ones_like(t["class_labels"], dtype=torch.bool) for t in targets]
        there = pad_sequence(real, batch_first=True)
        probability, predicted = outputs["logits"].softmax(-1), outputs["pred_boxes"]
        wanted = classes.unsqueeze(1).expand(-1, probability.shape[1], -1)
        by_class, by_distance, by_overlap = self.weights
        cost = -by_class * probability.gather(2, wanted)
        cost += by_distance * torch.cdist(predicted, boxes, p=1)
        cost -= by_overlap * generalized_iou(corners(predicted), corners(boxes))
        return cost, there


def match(cost, there, numbers):
    """All pictures at once. ``numbers``, of objects, are on the host: slices need no other."""
    item = oaxe.linear_assignment(cost, column_mask=there)  # (batch, queries), or -1
    query = item.lt(0).int().argsort(dim=1, stable=True)  # the matched ones first
    item = item.gather(1, query)
    return [(q[:n], i[:n]) for q, i, n in zip(query, item, numbers, strict=True)]


def match_in_a_loop(cost, there):
    """Picture by picture."""
    pictures = zip(cost.cpu(), there.cpu(), strict=True)
    pairs = [linear_sum_assignment(c[:, real]) for c, real in pictures]
    return [(torch.from_numpy(query), torch.from_numpy(item)) for query, item in pairs]


def pictures(batch, queries, most, classes=91):
    """Outputs of a detector, and up to so many objects a picture."""

    def boxes(*shape):
        return torch.cat([torch.rand(*shape, 2), torch.rand(*shape, 2) * 0.3 + 0.01], -1)

    outputs = {
        "logits": torch.randn(batch, queries, classes + 1),
        "pred_boxes": boxes(batch, queries),
    }
    numbers = torch.randint(most + 1, (batch,)).tolist()
    targets = [{"class_labels": torch.randint(classes, (n,)), "boxes": boxes(n)} for n in numbers]
    return outputs, targets


def milliseconds(function, *arguments, rounds=5):
    """The best of a few rounds, and the result."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        result = function(*arguments)
        best = min(best, time.perf_counter() - start)
    return best * 1e3, result


def main(batch=16, queries=300, most=40):
    torch.manual_seed(0)
    outputs, targets = pictures(batch, queries, most)
    building, (cost, there) = milliseconds(Matcher().costs, outputs, targets)
    ours, matches = milliseconds(match, cost, there, [len(t["boxes"]) for t in targets])
    theirs, expected = milliseconds(match_in_a_loop, cost, there)
    same = all(
        mine.equal(other)
        for pair, expected_pair in zip(matches, expected, strict=True)
        for mine, other in zip(pair, expected_pair, strict=True)
    )
    print(f"{batch} pictures, {queries} queries, up to {most} objects; same matches: {same}")
    print(f"costs {building:.2f} ms; matching: oaxe {ours:.2f} ms, scipy {theirs:.2f} ms")
    if find_spec("transformers"):
        compare_with_transformers(outputs, targets)
    return same


def compare_with_transformers(outputs, targets):
    from transformers.loss.loss_for_object_detection import HungarianMatcher

    ours, _ = milliseconds(Matcher(), outputs, targets)
    theirs, _ = milliseconds(HungarianMatcher(1, 5, 2), outputs, targets)
    print(f"costs and matching: oaxe {ours:.1f} ms, matcher of transformers {theirs:.1f} ms")


def swap_matcher_of_transformers():
    """DETR of ``transformers``, and detectors that share its loss, match with oaxe from now on."""
    from transformers.loss import loss_for_object_detection

    loss_for_object_detection.HungarianMatcher = Matcher


if __name__ == "__main__":
    main()
