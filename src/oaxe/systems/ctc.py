"""CTC: more positions than words, with blanks; the loss sums over all monotone alignments.

As Libovický and Helcl (2018): the decoder reads every source token several times, so that no length
has to be predicted. Decoding takes the likeliest label of each position, collapses repeats and
removes blanks. Or, by beam search, it looks for the text that is likeliest over all alignments; or,
of labels that it draws at random, for the text that is most like the others.

A trained model can be fine-tuned for the n-grams that it has in common with the target (NMLA, Shao
et al., 2022), see :mod:`oaxe.losses.ngrams`, or for its words in any order (CoCO), see
:mod:`oaxe.losses.coco`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from oaxe.criteria.lattices import CTC_OBJECTIVES, CTCLikelihood
from oaxe.losses import linear_ctc_best_path
from oaxe.losses.arguments import kept_first
from oaxe.losses.divergence import linear_divergence
from oaxe.model.masking import IGNORED, causal_inputs, upsampled
from oaxe.model.statistics import Statistics
from oaxe.model.transformer import Encoded, Transformer
from oaxe.model.weak_decoder import WeakDecoder
from oaxe.search import ctc_beam_cpu
from oaxe.search.consensus import TEMPERATURES, generator_of, ranked
from oaxe.search.ctc_beam import Positions, ctc_prefix_beam
from oaxe.search.hypothesis import Hypothesis
from oaxe.search.ngram_table import ngram_table
from oaxe.search.ngrams import WEIGHTS, Fluency, LanguageModel, language_model
from oaxe.search.one_pass import differs_from_previous, hypotheses
from oaxe.search.options import CTCDecoding, DAGDecoding
from oaxe.search.replay import Call, Tensors, compute, padded_source
from oaxe.search.words import likeliest, likeliest_words, sampled_words
from oaxe.support.config import Choice, choice, option
from oaxe.systems import Example, Paper, Progress, System, section
from oaxe.text.plans import Room
from oaxe.text.symbols import BLANK, BOS, PAD

PAPER = Paper(
    "End-to-End Non-Autoregressive Neural Machine Translation with Connectionist Temporal "
    "Classification",
    "https://aclanthology.org/D18-1336",
    {"raw": {"wmt14-en-de": 17.7, "wmt14-de-en": 19.8}},
)
MOST_IMPOSSIBLE = 0.02  # of the targets
BONUSES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # worth trying


@dataclass(frozen=True)
class Upsampling:
    """Of all systems that are built on this one; what else there is to choose here, they leave."""

    upsample: int = option(
        2, "positions of the decoder for each source subword", at_least=1, at_most=100
    )
    objective = Choice("likelihood", CTCLikelihood())
    weak_decoder = consistency = 0.0


@dataclass(frozen=True)
class Options(Upsampling):
    objective: Choice = choice(CTC_OBJECTIVES, "likelihood", "what is learned")
    weak_decoder: float = option(
        0.0, "weight of the loss of an autoregressive layer that only training has; 0: none"
    )
    consistency: float = option(
        0.0, "weight of the divergence between two passes of other dropout; 0: one pass"
    )


Decoding = CTCDecoding


class Model(System):
    transformer_type: ClassVar[type[Transformer]] = Transformer
    no_ncm = "its output is the sum of many alignments, of which decoding sees one"
    chooses_decoding = True
    training_parts = ("weak",)

    def __init__(self, architecture: Mapping[str, Any], options: Upsampling) -> None:
        super().__init__(architecture, options)
        positions = options.upsample * (architecture["max_length"] + 1)
        self.transformer = self.transformer_type(
            **architecture, causal=False, target_positions=positions
        )
        self.weak = WeakDecoder(**architecture) if options.weak_decoder else None

    def example(self, source: Tensor, target: Tensor) -> Example:
        inputs = upsampled(source, self.options.upsample)
        wanted = target.masked_fill(target == PAD, IGNORED)
        return Example.of(source, inputs, wanted, target)

    def room(self, rows: int, source: int, target: int) -> Room:
        return Room(source, self.options.upsample * source, target + rows)

    def forward(self, example: Example, progress: Progress) -> tuple[Tensor, Statistics]:
        return self.learn(example, example.inputs, self.transformer.encode(example.source))

    def learn(
        self, example: Example, inputs: Tensor, encoded: Encoded
    ) -> tuple[Tensor, Statistics]:
        """The loss of a decoder that reads ``inputs``."""
        hidden = self.transformer.decode(inputs, example.mask, encoded)
        loss = words = self.objective(hidden, example)
        seen: Statistics = {}
        if self.options.consistency and self.training:
            again = self.transformer.encode(example.source)
            other = self.transformer.decode(inputs, example.mask, again)
            words = (words + self.objective(other, example)) / 2
            weight, capacity = self.transformer.output_weight, self.transformer.capacity
            divergence = linear_divergence(
                hidden, other, weight, mask=example.mask, capacity=capacity
            )
            seen = {"divergence": (divergence, example.mask.sum())}
            loss = words + self.options.consistency * divergence
        statistics = {"loss": (words, example.n_words), "impossible": impossible(example), **seen}
        if self.weak is not None and self.training:
            sentence = with_ends(example.target)
            weak, of_weak = self.weak.loss(self.transformer, sentence, hidden, example.mask)
            loss, statistics = loss + self.options.weak_decoder * weak, statistics | of_weak
        return loss, statistics

    def objective(self, hidden: Tensor, example: Example) -> Tensor:
        """The summed loss of the decoder's states, see :mod:`oaxe.criteria.lattices`."""
        weight, capacity = self.transformer.output_weight, self.transformer.capacity
        how = {"logit_mask": example.mask, "reduction": "sum", "capacity": capacity}
        return self.options.objective.options(hidden, weight, example.target, **how)

    def best_path(self, hidden: Tensor, example: Example) -> Tensor:
        """``(batch, positions)``: the likeliest alignment; IGNORED where there is none."""
        return linear_ctc_best_path(
            hidden,
            self.transformer.output_weight,
            example.target,
            blank=BLANK,
            logit_mask=example.mask,
        )

    def advice(self, means: Mapping[str, float], *, from_scratch: bool) -> str:
        options = section(self.name)
        on_start = advice_on_start(means, from_scratch, self.options.objective, options)
        return on_start or advice_on_length(means, f"{options}.upsample")

    @torch.no_grad()
    def translate(
        self, source: Tensor, decoding: Decoding, call: Call = compute
    ) -> list[list[Hypothesis]]:
        if decoding.method == "beam" and source.device.type == "cpu" and call is compute:
            return beam_on_cpu(self, source, decoding)
        return in_one_pass(self, source, search, decoding, call)

    def choices(self, decoding: Decoding) -> Mapping[str, Sequence[float]]:
        if decoding.method == "samples":
            return {"temperature": TEMPERATURES}
        asks = decoding.method == "beam" and decoding.lm is not None
        return {"bonus": BONUSES} | ({"lm_weight": WEIGHTS} if asks else {})

    def weights_from(self, other: System) -> dict[str, Tensor]:
        """Without the positions of a decoder that counts words: here they count source subwords."""
        return other.state_dict() if isinstance(other, Model) else but_target_positions(other)


def but_target_positions(other: System) -> dict[str, Tensor]:
    """All weights of a model but the positions of its decoder."""
    positions = (".target_positions.", ".target_from_end.")
    weights = other.state_dict()
    return {name: w for name, w in weights.items() if not any(p in name for p in positions)}


def advice_on_start(
    means: Mapping[str, float], from_scratch: bool, objective: Choice, section: str
) -> str:
    """For objectives that are not for random weights."""
    if means or not from_scratch or not objective.options.fine_tunes:
        return ""
    return (
        f"{section}.objective {objective.name} is for fine-tuning, and learns next to nothing from "
        "random weights: begin with those of a run with the objective likelihood (train.init_from)"
    )


def advice_on_length(means: Mapping[str, float], option: str) -> str:
    """A warning for systems that derive the number of positions from the source, by an option."""
    if means.get("impossible", 0.0) <= MOST_IMPOSSIBLE:
        return ""
    return (
        f"more than {MOST_IMPOSSIBLE:.0%} of the targets are longer than their positions, and "
        f"teach nothing: raise {option}, or prepare the data with a lower --max-ratio"
    )


def with_ends(target: Tensor) -> Tensor:
    """BOS, the words of ``target (batch, words)``, EOS; nothing but IGNORED if it has none.

    Example:
        >>> with_ends(torch.tensor([[8, 9], [8, IGNORED], [IGNORED, IGNORED]]))
        tensor([[   1,    8,    9,    2],
                [   1,    8,    2, -100],
                [-100, -100, -100, -100]])
    """
    _, wanted = causal_inputs(target.masked_fill(target == IGNORED, PAD))
    sentence = F.pad(wanted, (1, 0), value=BOS)
    return sentence.masked_fill((target[:, :1] == IGNORED), IGNORED)


def impossible(example: Example) -> tuple[Tensor, Tensor]:
    """A statistic: the sentences whose target does not fit into their positions."""
    too_few = needed_positions(example.target) > example.mask.sum(1)
    return too_few.sum(), example.n_sentences


def needed_positions(target: Tensor) -> Tensor:
    """``(batch,)``: one a word, and a blank between equal neighbours.

    Example:
        >>> needed_positions(torch.tensor([[8, 8, 9, IGNORED]]))
        tensor([4])
    """
    real = target != IGNORED
    equal = (target[:, 1:] == target[:, :-1]) & real[:, 1:]
    return real.sum(1) + equal.sum(1)


def in_one_pass(
    model: System,
    source: Tensor,
    search: Callable[..., Tensors],
    decoding: CTCDecoding | DAGDecoding,
    call: Call,
    *,
    skips: bool = False,
) -> list[list[Hypothesis]]:
    """What a search in one pass finds, with the n-gram model that it asks for."""
    if decoding.method == "samples":
        call = compute  # random numbers are drawn anew for each sentence
    recorded = call is not compute
    if recorded:
        source = padded_source(source, model.max_length)
    asked = decoding.lm if decoding.method == "beam" else None
    lm = language_model(asked, model.vocab_size, source.device)
    found = call(search, model, source, decoding=decoding, lm=lm, everywhere=recorded)
    return hypotheses(*found, batch=len(source), skips=skips)


def beam_on_cpu(model: Model, source: Tensor, decoding: Decoding) -> list[list[Hypothesis]]:
    """The search by beam, compiled rather than on tensors."""
    mask, hidden = last_states(model, source)
    found = likeliest_words(model.transformer, hidden, mask, decoding.top_words, may_be_blank=True)
    labels = ctc_beam_cpu.Labels(*(of[mask].numpy() for of in found))
    table = ngram_table(decoding.lm, model.vocab_size)
    how = ctc_beam_cpu.How(decoding.beam, decoding.bonus, table, decoding.lm_weight)
    return ctc_beam_cpu.prefix_beam(labels, mask.sum(1).numpy(), how)


def last_states(model: Model, source: Tensor) -> tuple[Tensor, Tensor]:
    """Which positions of the decoder are real, and their states."""
    inputs = upsampled(source, model.options.upsample)
    mask = inputs != PAD
    return mask, model.transformer.decode(inputs, mask, model.transformer.encode(source))


def search(
    model: Model, source: Tensor, *, decoding: Decoding, lm: LanguageModel | None, everywhere: bool
) -> Tensors:
    """See :func:`hypotheses`."""
    mask, hidden = last_states(model, source)
    if decoding.method == "beam":
        n_words = decoding.top_words
        found = likeliest_words(model.transformer, hidden, mask, n_words, may_be_blank=True)
        positions = Positions(*found, mask)
        fluency = Fluency(lm, decoding.lm_weight)
        return ctc_prefix_beam(positions, beam=decoding.beam, bonus=decoding.bonus, fluency=fluency)
    if decoding.method == "samples":
        return samples(model, hidden, mask, decoding)
    labels, log_probs = likeliest(
        model.transformer,
        hidden,
        mask,
        may_be_blank=True,
        bonus=decoding.bonus,
        everywhere=everywhere,
    )
    return collapsed(labels, log_probs, mask)


def samples(model: Model, hidden: Tensor, mask: Tensor, decoding: Decoding) -> Tensors:
    """Labels that are drawn for all positions; ranked by how alike they are, collapsed."""
    found = sampled_words(
        model.transformer,
        hidden,
        decoding.samples,
        may_be_blank=True,
        temperature=decoding.temperature,
        generator=generator_of(hidden.device),
    )
    labels, log_probs = (x.transpose(1, 2).flatten(0, 1) for x in found)  # (batch * n, positions)
    each = mask.repeat_interleave(decoding.samples, 0)
    return ranked(collapsed(labels, log_probs * each, each), len(mask))


def collapsed(tokens: Tensor, log_probs: Tensor, mask: Tensor) -> Tensors:
    """Repeats collapsed, then blanks removed: see :func:`hypotheses`."""
    keep = mask & differs_from_previous(tokens) & (tokens != BLANK)
    at, (total, lengths) = kept_first(keep), (log_probs.sum(1), mask.sum(1))
    said = tokens, log_probs, lengths, at
    return tokens.gather(1, at), keep.sum(1), total / lengths, total, lengths, *said
