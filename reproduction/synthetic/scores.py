"""What a model says to number sequences, and how much of it is right."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from oaxe.model.transformer import Transformer
from oaxe.search.one_pass import predict
from oaxe.text.batches import collate, cut
from oaxe.text.corpus import Corpus
from oaxe.text.symbols import BLANK, MASK, PAD
from reproduction.synthetic.task import Task

NONE = "none"  # of the orderings


@dataclass(frozen=True)
class Outcome:
    exact_match: float  # percent of outputs that are one of the orderings
    repetition: float  # percent of numbers said again, though the source has them less often
    confidence: float  # mean probability of the numbers that were said
    chosen: dict[str, int]  # how many outputs follow each ordering, or none


@torch.no_grad()
def outputs(
    model: Transformer, corpus: Corpus, *, blanks: bool = False, batch_tokens: int = 16_384
) -> tuple[list[list[int]], float]:
    """The best number in every place, given the length of the target, and their mean probability.

    Args:
        blanks: let the model say BLANK, and remove it, after training with AXE.
    """
    device = model.output_weight.device
    was_training = model.training
    model.eval()
    order = np.argsort(corpus.target_lengths, kind="stable")
    said: list[list[int]] = [[] for _ in order]
    probability = 0.0
    for indices in cut(corpus.source_lengths, corpus.target_lengths, order, batch_tokens):
        batch = collate(corpus, indices).to(device)
        mask = batch.target != PAD
        inputs = torch.where(mask, MASK, PAD)
        tokens, log_probs = predict(
            model, model.encode(batch.source), inputs, mask, mask, may_be_blank=blanks
        )
        probability += float(log_probs.exp()[mask].double().sum())
        for i, row, n in zip(indices, tokens.tolist(), mask.sum(1).tolist(), strict=True):
            said[i] = [token for token in row[:n] if token != BLANK]
    model.train(was_training)
    return said, probability / max(int(corpus.target_lengths.sum()), 1)


def outcome(task: Task, corpus: Corpus, said: list[list[int]], confidence: float) -> Outcome:
    chosen = dict.fromkeys([*task.orders([0]), NONE], 0)
    again = 0
    for source, output in zip(map(np.ndarray.tolist, corpus.sources), said, strict=True):
        chosen[ordering_of(task, source, output)] += 1
        again += repeats(source, output)
    total = max(len(said), 1)
    return Outcome(
        exact_match=100 * (total - chosen[NONE]) / total if said else 0.0,
        repetition=100 * again / max(int(corpus.source_lengths.sum()), 1),
        confidence=confidence,
        chosen=chosen,
    )


def ordering_of(task: Task, source: list[int], output: list[int]) -> str:
    """The first ordering of the task that the output follows."""
    return next((name for name, right in task.orders(source).items() if right == output), NONE)


def repeats(source: list[int], output: list[int]) -> int:
    """How many numbers of the output are there once too often; once is never too often.

    Example:
        >>> repeats([7, 8, 8, 9], [7, 7, 8, 8])
        1
    """
    share = Counter(set(output)) | Counter(source)
    return (Counter(output) - share).total()
