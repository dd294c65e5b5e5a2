"""An exported model: the passes by ONNX Runtime, the rest in numpy; torch is never imported."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from oaxe.engine.checks import DECODINGS as DECODINGS
from oaxe.engine.checks import check_config, check_threads, load_tables
from oaxe.engine.output import FloatOutput, Int8Output, compute_alone
from oaxe.engine.passes import shared
from oaxe.engine.search import (
    MOST_RATIO,
    Bools,
    Floats,
    Ints,
    collapsed,
    differs_from_previous,
    from_end,
    graph_inputs,
    least_likely,
    likely_lengths,
    padded,
    step_by_step,
    viterbi,
)
from oaxe.search import ctc_beam_cpu, graph_beam_cpu
from oaxe.search.batches import batches
from oaxe.search.ctc_beam_cpu import Labels
from oaxe.search.graph_beam_cpu import Graph
from oaxe.search.hypothesis import Hypothesis, Positions, special
from oaxe.search.ngram_table import ngram_table
from oaxe.search.options import CTCDecoding, DAGDecoding, LengthDecoding
from oaxe.support.errors import UserError
from oaxe.text.symbols import BLANK, LENGTH, MASK, PAD

ENCODER, DECODER, TABLES = FILES = ("encoder.onnx", "decoder.onnx", "tables.safetensors")
# Values of options that need torch, and what there is instead.
MISSING: dict[type[Any], dict[str, tuple[set[object], str]]] = {
    CTCDecoding: {"method": ({"samples"}, "greedy or beam")},
    DAGDecoding: {"method": ({"samples"}, "another method")},
    LengthDecoding: {
        "repeats": ({"forbid"}, "merge or keep"),
        "score_merged": ({True}, "false"),
    },
}


def missing(decoding: Any) -> Iterator[tuple[str, object, str]]:
    """Options that only the torch model has: name, value, and what there is instead."""
    for kind, options in MISSING.items():
        for name, (values, others) in options.items():
            value = getattr(decoding, name, None)
            if isinstance(decoding, kind) and value in values:
                yield name, value, others


def check(decoding: Any) -> None:
    """Raises UserError for options that only the torch model has."""
    for name, value, others in missing(decoding):
        raise UserError(
            f"an exported model has no {name}: {value}; take {others}, or the model that it "
            "was made from, which translates with torch"
        )


def replaced(decoding: Any) -> dict[str, Any]:
    """What an exported model does instead of options that only the torch model has: its defaults.

    Example:
        >>> replaced(DECODINGS["dag"](method="samples", length_penalty=1.5))
        {'method': 'viterbi'}
    """
    return {name: getattr(type(decoding)(), name) for name, *_ in missing(decoding)}


class Engine:
    """What a :class:`~oaxe.decoding.translator.Translator` asks of a system, on a CPU.

    Args:
        folder: of :func:`oaxe.engine.export.export`.
        config: its ``config.json``.
        threads: that compute; None: as many as there are cores, or as OMP_NUM_THREADS says.
    """

    translates, refills, training, device = True, False, False, "cpu"
    # Source subwords of a pass with padding, or vertices of a DAG. Of more, the results of a layer
    # leave the cache, and sentences of other lengths are padded; see docs/export.md.
    at_once = 128
    no_ncm = "the engine for CPUs finds the best translation only"

    def __init__(self, folder: Path, config: Mapping[str, Any], threads: int | None = None) -> None:
        check_config(config, folder)
        check_threads(threads)
        self.name, self.options = config["system"], config["options"]
        self.max_length = config["architecture"]["max_length"]
        self.precision = config["precision"]
        self.sha256 = [config["sha256"][name] for name in FILES]
        self.threads = threads or available_threads()
        self._pool = ThreadPoolExecutor(self.threads, "passes", compute_alone)
        self.tables = load_tables(folder / TABLES, config)
        tokens = self.tables["tokens"]
        self.output: FloatOutput | Int8Output = FloatOutput(tokens)
        if "scale" in self.tables:
            more = self.tables["scale"], self.tables["sums"], self.threads
            self.output = Int8Output(tokens, *more)
        self.vocab_size = self.output.vocab_size
        self._encoder, self._decoder = (session(folder / name) for name in (ENCODER, DECODER))

    def to(self, device: object) -> "Engine":
        if str(device) != "cpu":
            raise UserError(
                f"a model that was exported for a CPU cannot be on {device}; leave out the device, "
                "or give the model that it was exported from"
            )
        return self

    def check(self, decoding: Any) -> None:
        check(decoding)

    @property
    def decoding_type(self) -> type[Any]:
        return DECODINGS[self.name]

    def rows(self, decoding: Any) -> int:
        """How many hypotheses of a sentence are decoded side by side, for the size of batches."""
        if self.name == "dag":
            return int(self.options["vertices"])
        return int(getattr(decoding, "length_candidates", 1))

    def translate(self, sources: Sequence[Sequence[int]], decoding: Any) -> list[list[Hypothesis]]:
        """Hypotheses of each sentence, best first; ``sources`` end with EOS.

        Passes are computed side by side, with a thread each: threads that share a pass wait for
        each other after every operator.
        """
        factor = 1 if isinstance(decoding, LengthDecoding) else self.rows(decoding)
        passes = shared([len(tokens) for tokens in sources], self.at_once // factor, self.threads)
        sides = [[sources[i] for i in indices] for indices in passes]
        work = partial(self._pass, decoding)
        results = map(work, sides) if len(passes) == 1 else self._pool.map(work, sides)
        found = dict(zip(chain.from_iterable(passes), chain.from_iterable(results), strict=True))
        return [found[i] for i in range(len(sources))]

    def _pass(self, decoding: Any, sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        if isinstance(decoding, LengthDecoding):
            return self._by_length(sources, decoding)
        if isinstance(decoding, DAGDecoding):
            return self._by_path(padded(sources), decoding)
        return self._by_position(padded(sources), decoding)

    def _by_length(
        self, sources: Sequence[Sequence[int]], how: LengthDecoding
    ) -> list[list[Hypothesis]]:
        source = padded([[LENGTH, *tokens] for tokens in sources])
        memory, logits = self._encode(source)
        n_tokens = np.array([len(tokens) - 1 for tokens in sources])
        lengths = likely_lengths(logits, n_tokens, how.length_candidates, how.length_share)
        factor = getattr(how, "length_multiplier", 1.0)
        if factor != 1:
            stretched = (np.rint(row * factor).astype(row.dtype) for row in lengths)
            lengths = [row.clip(1, self.max_length) for row in stretched]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for some in self._of_equally_many(lengths):
            count = len(lengths[some[0]])
            seen = source[some] != PAD
            longest = int(seen.sum(1).max())
            rows = self._of_lengths(
                np.concatenate([lengths[i] for i in some]),
                memory[some, :longest],
                seen[:, :longest],
                how,
            )
            for number, i in enumerate(some):
                of_sentence = rows[number * count : (number + 1) * count]
                found[i] = sorted(of_sentence, key=lambda h: h.score, reverse=True)
        return found

    def _of_equally_many(self, lengths: Sequence[Ints]) -> Iterator[list[int]]:
        """Sentences that have as many candidates, and together not too many positions."""
        for count in sorted({len(row) for row in lengths}):
            some = [i for i, row in enumerate(lengths) if len(row) == count]
            longest = [count * int(lengths[i].max()) for i in some]
            for part in batches(longest, self.at_once):
                yield [some[k] for k in part]

    def _of_lengths(
        self, lengths: Ints, memory: Floats, seen: Bools, how: LengthDecoding
    ) -> list[Hypothesis]:
        mask = np.arange(lengths.max()) < lengths[:, None]
        has_blanks = self.options.get("loss", {}).get("name") == "axe"
        never = special(*([BLANK] if has_blanks else []))
        predict = partial(self._predict, memory=memory, seen=seen, never=never)
        tokens, log_probs = predict(np.where(mask, MASK, PAD), mask, mask)
        steps = getattr(how, "refine_steps", 1)
        for step in range(1, steps):
            masked = least_likely(log_probs, mask, lengths * (steps - step) // steps)
            again, again_log_probs = predict(np.where(masked, MASK, tokens), mask, masked)
            tokens = np.where(masked, again, tokens)
            log_probs = np.where(masked, again_log_probs, log_probs)
        totals = log_probs.sum(1)
        scores = totals / (lengths**how.length_penalty).astype(np.float32)
        rows = []
        columns = zip(tokens, log_probs, lengths, scores, totals, strict=True)
        for row, log_prob, length, score, total in columns:
            words = row[:length]
            kept = np.flatnonzero(words != BLANK)
            if how.repeats != "keep":
                kept = kept[differs_from_previous(words[kept][None])[0]]
            said = Positions(words, log_prob[:length], kept)
            found = words[kept].tolist(), float(score), int(length), float(total)
            rows.append(Hypothesis(*found, said))
        return rows

    def _by_position(self, source: Ints, how: CTCDecoding) -> list[list[Hypothesis]]:
        """CTC: the likeliest label of each position, or text over all alignments."""
        inputs = source.repeat(int(self.options["upsample"]), 1)
        mask = inputs != PAD
        memory, _ = self._encode(source)
        hidden = self._decode(inputs, mask, memory, source != PAD)[0]
        n = how.top_words if how.method == "beam" else 1
        found = Labels(*self.output.likely(hidden[mask], special(BLANK), n, BLANK))
        lengths = mask.sum(1)
        if how.method == "beam":
            table = ngram_table(how.lm, self.vocab_size)
            search = ctc_beam_cpu.How(how.beam, how.bonus, table, how.lm_weight)
            return ctc_beam_cpu.prefix_beam(found, lengths, search)
        return collapsed(found, lengths, how.bonus)

    def _by_path(self, source: Ints, how: DAGDecoding) -> list[list[Hypothesis]]:
        """DAG: the words of a path through the graph, or text over all paths."""
        inputs = graph_inputs(source, int(self.options["vertices"]))
        mask = inputs != PAD
        memory, _ = self._encode(source)
        hidden, links = self._decode(inputs, mask, memory, source != PAD)
        last, limit = mask.sum(1) - 1, MOST_RATIO * (source != PAD).sum(1)
        penalty = how.length_penalty
        if how.method == "beam":
            likely = self._likely(hidden, inputs == MASK, special(), how.top_words)
            table = ngram_table(how.lm, self.vocab_size)
            search = graph_beam_cpu.How(how.beam, penalty, table, how.lm_weight)
            return graph_beam_cpu.prefix_beam(Graph(*likely, links, last, limit), search)
        words, log_probs = self._likeliest(hidden, inputs == MASK, special())
        if how.method == "viterbi":
            rows = viterbi(words, log_probs, links, last, limit, penalty)
        else:
            weight = float(how.method == "lookahead")
            rows = step_by_step(words, log_probs, links, last, weight, penalty)
        return [[row] for row in rows]

    def _encode(self, source: Ints) -> tuple[Floats, Floats]:
        """Hidden states of the source, and the logits of the length if the model predicts it."""
        mask = source != PAD
        given = {"x": self._embedded(source, mask, "source"), "mask": mask.astype(np.int32)}
        found: list[Floats] = self._encoder.run(None, given)
        return found[0], found[-1]

    def _predict(
        self,
        inputs: Ints,
        mask: Bools,
        where: Bools,
        memory: Floats,
        seen: Bools,
        never: Sequence[int],
    ) -> tuple[Ints, Floats]:
        """The likeliest words at the positions ``where``, their log-probabilities; 0 elsewhere."""
        return self._likeliest(self._decode(inputs, mask, memory, seen)[0], where, never)

    def _decode(self, inputs: Ints, mask: Bools, memory: Floats, seen: Bools) -> list[Floats]:
        given = {
            "x": self._embedded(inputs, mask, "target"),
            "mask": mask.astype(np.int32),
            "memory": memory,
            "memory_mask": seen.astype(np.int32),
        }
        if "links" in self.tables:
            given["positions"] = self.tables["links"][: inputs.shape[1]]
        found: list[Floats] = self._decoder.run(None, given)
        return found

    def _likeliest(self, hidden: Floats, where: Bools, never: Sequence[int]) -> tuple[Ints, Floats]:
        tokens, log_probs = self._likely(hidden, where, never, 1)
        return tokens[:, :, 0], log_probs[:, :, 0]

    def _likely(
        self, hidden: Floats, where: Bools, never: Sequence[int], n: int
    ) -> tuple[Ints, Floats]:
        """The same of the likeliest n words, in order: ``(rows, length, n)``."""
        found = self.output.likely(hidden[where], never, n)
        shape = *where.shape, found.words.shape[1]
        tokens, log_probs = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        tokens[where], log_probs[where] = found.words, found.log_probs
        return tokens, log_probs

    def _embedded(self, tokens: Ints, mask: Bools, side: str) -> Floats:
        """``(rows, length, dim)``: what the graphs read, before it is normalised."""
        x = self.output.embed(tokens)
        x += self.tables[f"{side}_positions"][: tokens.shape[1]]
        if f"{side}_from_end" in self.tables:
            x += self.tables[f"{side}_from_end"][from_end(mask)]
        return x


def session(path: Path) -> Any:
    """What runs a graph: ONNX Runtime, or where it is not installed numpy."""
    try:
        if find_spec("onnxruntime") is None:
            from oaxe.engine import plain

            _say_once()
            return plain.Session(path)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the caller's
        options.enable_mem_pattern = False  # it keeps memory for every shape that was ever seen
        return onnxruntime.InferenceSession(
            path,
            options,
            providers=["CPUExecutionProvider"],
            # Its fused operator takes four times as long as an addition and a normalisation.
            disabled_optimizers=["SkipLayerNormFusion"],
        )
    except Exception as error:  # those of ONNX Runtime have no other base
        raise UserError(f"{path} cannot be read: {error}; export it again") from None


@cache
def _say_once() -> None:
    warnings.warn(
        "ONNX Runtime is not installed: numpy computes, three to nine times slower; "
        'pip install "oaxe[cpu]"',
        stacklevel=2,
    )


def available_threads() -> int:
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity else os.cpu_count() or 1
