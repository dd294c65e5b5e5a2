"""How well a model does on held-out text: loss, and BLEU of real translations."""

import warnings
from collections.abc import Callable

import numpy as np
import sacrebleu
import torch

from oaxe.decoding.likelihood import log_likelihoods
from oaxe.decoding.translator import Translator
from oaxe.text.batches import collate, cut
from oaxe.text.corpus import Corpus
from oaxe.text.languages import bleu_tokenizer
from oaxe.training.objective import STATS, Objective, make_example
from oaxe.training.ranks import Ranks
from oaxe.training.settings import Settings


class Validation:
    """Shared out over the ranks; every rank gets the same result."""

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        ranks: Ranks,
        score: Callable[["Validation"], float],  # the higher the better
        metric: str,  # its name in the log
    ) -> None:
        self.corpus, self.settings, self.ranks = corpus, settings, ranks
        self.metric, self._score = metric, score
        wanted = settings.validation.max_sentences or len(corpus)
        self.n_sentences = min(wanted, len(corpus))

    def run(self, objective: Objective) -> dict[str, float]:
        objective.eval()
        return {**self.loss(objective), self.metric: self.score()}

    def score(self) -> float:
        return self._score(self)

    @torch.no_grad()
    def loss(self, objective: Objective) -> dict[str, float]:
        """Loss and length accuracy; masks are the same at every validation."""
        settings, ranks = self.settings, self.ranks
        lengths = self.corpus.source_lengths, self.corpus.target_lengths
        order = np.argsort(lengths[1][: self.n_sentences], kind="stable")
        # Validation text is not filtered by length: what is too long is translated, cut, but has
        # no loss.
        longest = np.maximum(*lengths)[order]
        limit = min(settings.model.max_length, settings.data.batch_tokens - 1)
        batches = cut(*lengths, order[longest <= limit], settings.data.batch_tokens)
        torch.manual_seed(0)
        sums = torch.zeros(len(STATS), device=ranks.device)
        for indices in batches[ranks.rank :: ranks.world_size]:
            batch = collate(self.corpus, indices).to(ranks.device)
            model, inputs = settings.model, settings.loss.masking
            example = make_example(batch.source, batch.target, model.kind, inputs, model.upsample)
            with torch.autocast(
                ranks.device.type, torch.bfloat16, enabled=settings.train.precision == "bf16"
            ):
                sums += objective(example, 0.0)[1]
        total = dict(zip(STATS, ranks.add_up(sums).tolist(), strict=True))
        result = {"loss": total["loss"] / max(total["words"], 1)}
        if objective.model.length is not None:
            result["length_accuracy"] = total["length_right"] / max(total["sentences"], 1)
        return result


def bleu(translator: Translator, validation: Validation) -> float:
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
    tokenizer = bleu_tokenizer(translator.languages[1])
    score = sacrebleu.corpus_bleu(ranks.collect(mine), [references], tokenize=tokenizer)
    return float(score.score)


def mean_log_probability(lm: Translator, validation: Validation) -> float:
    """Of a subword of the target, ends of sentences included; what is too long is cut."""
    ranks, limit = validation.ranks, lm.model.max_length
    targets = [validation.corpus.target(i)[:limit].tolist() for i in range(validation.n_sentences)]
    mine = targets[ranks.rank :: ranks.world_size]
    budget = validation.settings.data.batch_tokens
    found: list[float] = ranks.collect(log_likelihoods(lm, mine, batch_tokens=budget))
    return sum(found) / sum(len(target) + 1 for target in targets)


def decoding_options(settings: Settings) -> dict[str, bool | int | float]:
    """How the trained model should be decoded, at validation and afterwards."""
    validation = settings.validation
    if settings.model.kind == "at":
        return {"beam": validation.beam, "length_penalty": validation.length_penalty}
    if settings.model.kind in ("ctc", "lm"):
        return {}
    return {
        "length_candidates": validation.length_candidates,
        "deduplicate": validation.deduplicate,
        "remove_blanks": settings.loss.name == "axe",
        "length_penalty": validation.length_penalty,
    }
