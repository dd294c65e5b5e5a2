"""Outputs of a model for number sequences, and how many of them are right."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from oaxe.search.one_pass import predict
from oaxe.systems.cmlm import Model
from oaxe.text.batches import collate
from oaxe.text.corpus import Corpus
from oaxe.text.plans import cut
from oaxe.text.symbols import BLANK, MASK, PAD
from reproduction.synthetic.task import Task

NONE = "none"  # of the orderings is followed


@dataclass(frozen=True)
class Scores:
    exact_match: float  # percent of outputs that are one of the orderings
    repetition: float  # percent of numbers that are repeated more often than in the source
    confidence: float  # mean probability of the output numbers
    chosen: dict[str, int]  # how many outputs follow each ordering, or none


@torch.no_grad()
def outputs(
    model: Model, corpus: Corpus, *, batch_tokens: int = 16_384
) -> tuple[list[list[int]], float]:
    """The likeliest number at every position, given the target length; their mean probability."""
    was_training = model.training
    model.eval()
    order = np.argsort(corpus.target_lengths, kind="stable")
    found: list[list[int]] = [[] for _ in order]
    probability = 0.0
    for indices in cut(corpus.source_lengths, corpus.target_lengths, order, batch_tokens):
        batch = collate(corpus, indices).to(model.device)
        mask = batch.target != PAD
        inputs = torch.where(mask, MASK, PAD)
        encoded, _ = model.length.encode(model.transformer, batch.source)
        blanks = model.criterion.has_blanks  # removed below
        tokens, log_probs = predict(
            model.transformer, encoded, inputs, mask, mask, may_be_blank=blanks
        )
        probability += float(log_probs.exp()[mask].double().sum())
        for i, row, n in zip(indices, tokens.tolist(), mask.sum(1).tolist(), strict=True):
            found[i] = [token for token in row[:n] if token != BLANK]
    model.train(was_training)
    return found, probability / max(int(corpus.target_lengths.sum()), 1)


def score(task: Task, corpus: Corpus, found: list[list[int]], confidence: float) -> Scores:
    chosen = dict.fromkeys([*task.orders([0]), NONE], 0)
    repeated = 0
    for source, output in zip(map(np.ndarray.tolist, corpus.sources), found, strict=True):
        chosen[ordering_of(task, source, output)] += 1
        repeated += repeats(source, output)
    total = max(len(found), 1)
    return Scores(
        exact_match=100 * (total - chosen[NONE]) / total if found else 0.0,
        repetition=100 * repeated / max(int(corpus.source_lengths.sum()), 1),
        confidence=confidence,
        chosen=chosen,
    )


def ordering_of(task: Task, source: list[int], output: list[int]) -> str:
    """The first ordering of the task that the output follows."""
    return next((name for name, right in task.orders(source).items() if right == output), NONE)


def repeats(source: list[int], output: list[int]) -> int:
    """How many numbers of the output repeat another one more often than the source does.

    Example:
        >>> repeats([7, 8, 8, 9], [7, 7, 8, 8])
        1
    """
    share = Counter(set(output)) | Counter(source)
    return (Counter(output) - share).total()
