"""How well a model does on held-out text: loss, and BLEU of real translations."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oaxe.decoding.likelihood import log_likelihoods
from oaxe.decoding.translator import Translator
from oaxe.support.devices import half_precision
from oaxe.systems import Progress, System
from oaxe.text.batches import collate
from oaxe.text.bleu import corpus_bleu
from oaxe.text.corpus import Corpus
from oaxe.text.plans import cut
from oaxe.training.ranks import Ranks
from oaxe.training.settings import Settings

SHOWN = ("loss", "length_accuracy")  # statistics that are worth a line at validation


class Validation:
    """Validation on held-out text, shared out over the ranks, which all get the same result."""

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        ranks: Ranks,
        score: Callable[["Validation"], float] = lambda _: 0.0,  # the higher the better
        metric: str = "bleu",  # its name in the log
    ) -> None:
        self.corpus, self.settings, self.ranks = corpus, settings, ranks
        self.metric, self._score = metric, score
        wanted = settings.validation.max_sentences or len(corpus)
        self.n_sentences = min(wanted, len(corpus))

    @classmethod
    def of(cls, translator: Translator, data: Path, settings: Settings) -> "Validation":
        """On the validation text of a prepared folder, without other ranks."""
        metric, score = metric_of(translator)
        ranks = Ranks(0, 1, translator.system.device)
        return cls(Corpus.open(data, "valid"), settings, ranks, score, metric)

    def run(self, system: System) -> dict[str, float]:
        system.eval()
        return {**self.statistics(system), self.metric: self.score()}

    def score(self) -> float:
        return self._score(self)

    @torch.no_grad()
    def statistics(self, system: System) -> dict[str, float]:
        """The loss, and the accuracy of predicted lengths; masks are the same every time."""
        settings, ranks = self.settings, self.ranks
        lengths = self.corpus.source_lengths, self.corpus.target_lengths
        order = np.argsort(lengths[1][: self.n_sentences], kind="stable")
        # Validation text is not filtered by length: sentences that are too long are translated,
        # cut, but have no loss.
        longest = np.maximum(*lengths)[order]
        limit = min(settings.model.max_length, settings.data.batch_tokens - 1)
        batches = cut(*lengths, order[longest <= limit], settings.data.batch_tokens)
        torch.manual_seed(0)
        end = torch.ones((), dtype=torch.float64, device=ranks.device)
        at_end = Progress(end, end, system.phase(1.0, 1.0))
        sums = torch.zeros(len(SHOWN), 2, dtype=torch.float64, device=ranks.device)
        for indices in batches[ranks.rank :: ranks.world_size]:
            batch = collate(self.corpus, indices).to(ranks.device)
            example = system.example(batch.source, batch.target)
            with half_precision(ranks.device.type, settings.train.precision == "bf16"):
                found = system(example, at_end)[1]
            for row, name in enumerate(SHOWN):
                if name in found:
                    sums[row] += torch.stack([number.detach().double() for number in found[name]])
        totals = ranks.add_up(sums).tolist()
        return {
            name: total / max(number, 1)
            for name, (total, number) in zip(SHOWN, totals, strict=True)
            if number or name == "loss"
        }


def metric_of(translator: Translator) -> tuple[str, Callable[[Validation], float]]:
    """The metric that chooses the best checkpoints: its name, and how it is measured."""
    if translator.system.translates:
        return "bleu", lambda validation: float(scores(translator, validation)["score"])
    return "log_probability", lambda validation: mean_log_probability(translator, validation)


def scores(translator: Translator, validation: Validation) -> dict[str, Any]:
    """BLEU of the validation text, see :func:`corpus_bleu`."""
    corpus, settings, ranks = validation.corpus, validation.settings, validation.ranks
    sources = corpus.sources_text[: validation.n_sentences]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # long lines: the same at every validation
        mine = translator.translate(
            sources[ranks.rank :: ranks.world_size],
            batch_tokens=settings.data.batch_tokens,
            bf16=settings.train.precision == "bf16",
        )
    references = corpus.targets_text[: validation.n_sentences]
    return corpus_bleu(ranks.collect(mine), [references], translator.languages[1])


def choose_decoding(translator: Translator, validation: Validation) -> list[dict[str, float]]:
    """Let the translator decode as is best by BLEU; returns all that was tried, best first.

    The values that :meth:`System.choices` has of an option are tried with the best of the others,
    first of all options in turn, then once more of all but the last. What the translator had before
    is only given up for something better.
    """
    choices = translator.system.choices(translator.decoding_with())

    def tried(**options: float) -> dict[str, float]:
        translator.change_decoding(**options)
        found = scores(translator, validation)
        return {
            **{name: getattr(translator.decoding_with(), name) for name in choices},
            "bleu": found["score"],
            "length_ratio": found["output_length"] / max(found["reference_length"], 1),
        }

    records = [tried()] if choices else []
    for name in (*choices, *[*choices][:-1]):
        best = max(records, key=lambda record: record["bleu"])
        before = {option: best[option] for option in choices}
        given = [before | {name: value} for value in choices[name]]
        known = [{option: record[option] for option in choices} for record in records]
        records += [tried(**options) for options in given if options not in known]
    records.sort(key=lambda record: -record["bleu"])
    if records:
        translator.change_decoding(**{name: records[0][name] for name in choices})
    return records


def mean_log_probability(lm: Translator, validation: Validation) -> float:
    """The mean over subwords of the target, ends of sentences included; long ones are cut."""
    ranks, limit = validation.ranks, lm.system.max_length
    targets = [validation.corpus.targets[i][:limit].tolist() for i in range(validation.n_sentences)]
    mine = targets[ranks.rank :: ranks.world_size]
    budget = validation.settings.data.batch_tokens
    found: list[float] = ranks.collect(log_likelihoods(lm, mine, batch_tokens=budget))
    return sum(found) / sum(len(target) + 1 for target in targets)
