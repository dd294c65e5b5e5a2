"""Recorded passes, emulated: test_gpu_decoding.py replays real ones.

As a graph, an emulated one reads inputs and weights and writes its results where they were when it
was recorded; and as graphs in shared memory, it may spoil the results of all others.
"""

import copy
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from oaxe.decoding import translator as translator_module
from oaxe.decoding.translator import Translator
from oaxe.model.masking import causal_inputs
from oaxe.search.hypothesis import Hypothesis, forbidden
from oaxe.search.one_pass import translate_lengths
from oaxe.search.replay import Call, Replays, Tensors, compute
from oaxe.systems import LengthSystem, System, cmlm
from oaxe.text.subwords import Subwords, train_subwords
from oaxe.text.symbols import EOS, PAD
from tests.models import eager_to_end, micro, random_batch

SENTENCES = [
    "a small dog runs",
    "two men",
    "the old dog sleeps in a boat near the water",
    "men run over a boat",
]


class Graph:
    recorded: ClassVar[list["Graph"]] = []

    def __init__(self, compute: Callable[[], Tensors]) -> None:
        self.compute = compute
        self.out = tuple(tensor.clone() for tensor in compute())
        self.replays = 0
        Graph.recorded.append(self)

    def replay(self) -> None:
        new = self.compute()
        for tensor in chain(*(graph.out for graph in Graph.recorded)):
            tensor.fill_(1)
        for old, tensor in zip(self.out, new, strict=True):
            old.copy_(tensor)
        self.replays += 1


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Graph]]:
    def record(
        self: Replays,
        function: Callable[..., Tensors],
        model: nn.Module,
        inputs: Sequence[Tensor],
        options: dict[str, Any],
        low: torch.dtype | None,
    ) -> tuple[Graph, list[Tensor], Tensors]:
        own, then = [tensor.clone() for tensor in inputs], copy.deepcopy(model)
        for mine, weights in zip(then.parameters(), model.parameters(), strict=True):
            mine.data = weights.data  # where they are now
        graph = Graph(torch.no_grad()(lambda: function(then, *own, **options)))
        return graph, own, graph.out

    monkeypatch.setattr(Replays, "_record", record)
    monkeypatch.setattr(translator_module, "is_on_gpu", lambda device: True)
    yield Graph.recorded
    Graph.recorded.clear()


@pytest.fixture
def subwords(tmp_path: Path) -> Subwords:
    return train_subwords(SENTENCES, tmp_path / "subwords.model", 50)


@pytest.fixture
def translator(subwords: Subwords) -> Translator:
    return Translator(micro(vocab_size=subwords.vocab_size, max_length=40), subwords)


def plainly(translator: Translator) -> list[str]:
    """The translations without graphs, no two of which are equal."""
    plain = Translator(
        translator.system, translator.subwords, decoding=translator.decoding, cuda_graphs=False
    )
    found = [plain.translate([sentence])[0] for sentence in SENTENCES]
    assert len(set(found)) == len(SENTENCES)
    return found


def decode(
    system: System, source: Tensor, call: Call = compute, **decoding: Any
) -> list[list[Hypothesis]]:
    """``lengths`` are given to a CMLM; the others are fields of the system's ``Decoding``."""
    if "lengths" in decoding:
        assert isinstance(system, LengthSystem)
        return translate_lengths(system, source, call=call, **decoding)
    return system.translate(source, system.decoding_type(**decoding), call)


@pytest.mark.parametrize(
    ("system", "options", "architecture", "decoding"),
    [
        ("cmlm", {}, {}, {}),
        ("cmlm", {}, {"max_length": 12}, {}),
        ("cmlm", {}, {"positions": "both"}, {}),
        ("cmlm", {"loss": "axe"}, {}, {}),  # which removes blanks
        ("cmlm", {}, {}, {"refine_steps": 3}),
        ("cmlm", {}, {}, {"repeats": "keep"}),
        ("cmlm", {}, {}, {"repeats": "forbid"}),
        ("cmlm", {}, {}, {"length_candidates": 1}),
        ("cmlm", {}, {}, {"length_candidates": 60}),
        ("cmlm", {}, {}, {"length_penalty": 2.0}),
        ("cmlm", {}, {}, {"lengths": torch.tensor([[3, 21]])}),
        ("crf", {}, {}, {}),
        ("crf", {"beam": 5}, {"max_length": 12}, {"repeats": "forbid"}),
        ("ctc", {}, {}, {}),
        ("ctc", {"upsample": 3}, {}, {}),
        ("dslp", {}, {}, {}),
        ("lanmt", {}, {}, {"refine_steps": 2}),
        ("flowseq", {"latent": 4, "flow_steps": 2}, {}, {}),
        ("ctc", {}, {"max_length": 12}, {}),
        ("dag", {}, {}, {}),
        ("dag", {"vertices": 2}, {"max_length": 12}, {}),
        ("dag", {}, {}, {"method": "lookahead"}),
        ("dag", {}, {}, {"method": "beam"}),
        ("ctc", {}, {}, {"method": "beam", "bonus": 0.2}),
    ],
)
def test_padded_and_replayed_passes_give_the_same(
    system: str,
    options: dict[str, Any],
    architecture: dict[str, Any],
    decoding: dict[str, Any],
    emulated: list[Graph],
) -> None:
    ours = micro(system, options=options, **{"max_length": 40, **architecture}).double()
    replays, scores = Replays(ours), set()
    sources = [random_batch(min(n, ours.max_length) + 1) for n in (3, 30, 9, 40, 3, 17, 30, 1)]
    for source in sources:
        (expected,) = decode(ours, source, **decoding)
        (found,) = decode(ours, source, replays, **decoding)
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine.tokens, mine.length) == (theirs.tokens, theirs.length)
            assert mine.score == pytest.approx(theirs.score, rel=1e-5)
        scores.add(tuple(round(hypothesis.score, 3) for hypothesis in found))
    assert len(scores) == len(sources)  # so that one that is not replayed would be noticed
    n_calls = {"cmlm": 2, "crf": 2, "flowseq": 2, "lanmt": 4}.get(system, 1) * len(sources)
    assert sum(graph.replays for graph in emulated) == n_calls
    assert len(emulated) < n_calls  # lengths are rounded
    assert all(graph.replays for graph in emulated)


def test_several_sentences_too() -> None:
    model, source = micro(), random_batch(9, 4)
    found, expected = (decode(model, source, call) for call in (Replays(model), compute))
    for mine, theirs in zip(chain(*found), chain(*expected), strict=True):
        assert mine.tokens == theirs.tokens


def test_other_options_and_precisions_are_recorded_anew(
    emulated: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source, lengths = micro(), random_batch(9), torch.tensor([[8]])
    replays = Replays(model)
    for _ in range(2):
        decode(model, source, replays, lengths=lengths)
    assert len(emulated) == 2  # read, write
    decode(model, source, replays, lengths=lengths, repeats="keep")
    assert len(emulated) == 3
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    decode(model, source, replays, lengths=lengths)
    assert len(emulated) == 5
    model.transformer.output_weight.data.mul_(2)
    assert replays.are_of(model)


def test_a_source_that_is_too_long_is_an_error_as_without() -> None:
    for system in ("cmlm", "ctc"):
        model = micro(system)
        for call in (Replays(model), compute):
            with pytest.raises(ValueError, match="max_length"):
                decode(model, random_batch(15), call)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("batch_tokens", [None, 16 * 3 * 8])
def test_recorded_steps_give_the_same(
    beam: int, batch_tokens: int | None, emulated: list[Graph]
) -> None:
    """One sentence or many, of many lengths, all at once or more than there are slots for."""
    ours: Any = eager_to_end(micro("transformer", max_length=40)).double()
    how, replays = ours.decoding_type(beam=beam, length_penalty=0.6), Replays(ours)
    found_lengths = set[int]()
    for lengths in ([9], [3, 30, 9, 41, 3, 17, 30, 2] * 3, [14], [25, 24, 7], [6, 5] * 17):
        source = random_batch(*lengths)
        expected = ours.translate(source, how)
        found = ours.translate(source, how, replays, batch_tokens=batch_tokens)
        found_lengths |= {len(hypotheses[0].tokens) for hypotheses in found}
        for mine, theirs in zip(chain(*found), chain(*expected), strict=True):
            assert mine.tokens == theirs.tokens
            assert mine.score == pytest.approx(theirs.score, rel=1e-5)
    assert len(found_lengths) > 4
    assert sum(graph.replays for graph in emulated) > len(emulated)


@torch.no_grad()
def forced_score(model: Any, source: Tensor, tokens: Sequence[int]) -> float:
    """The mean log-probability of a translation and its end among the words that may be said.

    In one pass, in float32.
    """
    inputs, wanted = causal_inputs(torch.tensor([tokens], dtype=torch.long))
    encoded = model.transformer.encode(source.unsqueeze(0))
    hidden = model.transformer.decode(inputs, torch.ones_like(inputs, dtype=torch.bool), encoded)
    logits = hidden @ model.transformer.output_weight.T
    logits[:, :, forbidden(logits.device, EOS)] = -torch.inf
    logits[:, 0, EOS] = -torch.inf  # no translation is empty
    return float(logits.log_softmax(2).gather(2, wanted.unsqueeze(2)).mean())


def test_recorded_steps_in_low_precision(emulated: list[Graph]) -> None:
    """The linear layers are converted once a call: they see weights that were changed in place.

    Roundings tip decisions of the search: scores are compared with those of the same words, forced.
    """
    ours = eager_to_end(micro("transformer", max_length=40))
    how, replays, source = ours.decoding_type(beam=2), Replays(ours), random_batch(9, 3, 14)
    scores = []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            found = ours.translate(source, how, replays)
        for row, hypotheses in zip(source, found, strict=True):
            for hypothesis in hypotheses:
                forced = forced_score(ours, row[row != PAD], hypothesis.tokens)
                assert hypothesis.score == pytest.approx(forced, rel=0.02)
        scores.append(found[0][0].score)
        for weight in ours.transformer.decoder.parameters():
            weight.data.mul_(1.1)
    assert len(set(scores)) == 3
    assert replays.are_of(ours)
    n_graphs = len(emulated)
    ours.translate(source, how, replays)  # in float32
    assert len(emulated) > n_graphs


def test_batches_of_an_autoregressive_model_are_recorded(
    subwords: Subwords, emulated: list[Graph]
) -> None:
    model = eager_to_end(micro("transformer", vocab_size=subwords.vocab_size, max_length=40))
    translator = Translator(model, subwords, decoding={"beam": 2})
    expected = plainly(translator)
    assert not emulated
    many = [*SENTENCES, ""] * 20
    assert translator.translate(many, batch_tokens=128) == [*expected, ""] * 20
    assert [translator.translate([sentence])[0] for sentence in SENTENCES] == expected
    n_graphs = len(emulated)
    assert translator.translate(many, batch_tokens=128) == [*expected, ""] * 20
    assert len(emulated) == n_graphs > 0


def test_only_a_sentence_alone_is_replayed(translator: Translator, emulated: list[Graph]) -> None:
    expected = plainly(translator)
    assert translator.translate(SENTENCES, batch_tokens=1) == expected  # batches of one
    assert not emulated
    for _ in range(2):
        for sentence, wanted in zip(SENTENCES, expected, strict=True):
            assert translator.translate(["", sentence, " "]) == ["", wanted, ""]
    assert sum(graph.replays for graph in emulated) == 2 * 2 * len(SENTENCES)
    translator.cuda_graphs = False
    n_replays = sum(graph.replays for graph in emulated)
    assert translator.translate(SENTENCES[:1]) == expected[:1]
    assert sum(graph.replays for graph in emulated) == n_replays
    assert translator._replays is None  # nor is their memory kept


def test_changed_weights(translator: Translator) -> None:
    """Those changed in place are seen; for others, and for other modules, it is recorded anew."""
    before = plainly(translator)
    assert [translator.translate([sentence])[0] for sentence in SENTENCES] == before
    model = translator.system.transformer
    positions = model.target_positions
    other = micro(vocab_size=model.tokens.num_embeddings, max_length=40)
    changes: list[Callable[[], object]] = [
        lambda: positions.weight.data.neg_(),
        lambda: setattr(positions, "weight", nn.Parameter(positions.weight.data.roll(1, 0))),
        lambda: setattr(positions.weight, "data", -positions.weight.data),
        lambda: model.decoder.pop(0),
        lambda: setattr(model, "encoder", other.transformer.encoder),
        lambda: register_parametrization(positions, "weight", nn.ReLU()),
        lambda: setattr(translator, "system", other),
    ]
    for change in changes:
        change()
        expected = plainly(translator)
        assert expected != before
        assert [translator.translate([sentence])[0] for sentence in SENTENCES] == expected
        before = expected


def test_threads_share_a_translator(translator: Translator) -> None:
    expected = plainly(translator)
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            if translator.translate([SENTENCES[number]]) != [expected[number]]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(SENTENCES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_record_their_own(translator: Translator, emulated: list[Graph]) -> None:
    expected = plainly(translator)
    translator.translate(SENTENCES[:1])
    assert translator._replays is not None
    replays = translator._replays
    for other in (copy.deepcopy(replays), pickle.loads(pickle.dumps(replays))):
        assert other.model is not translator.system
        assert other.are_of(other.model)
        assert not other.are_of(translator.system)
    n_graphs = len(emulated)
    other_translator = copy.deepcopy(translator)
    assert other_translator.translate(SENTENCES[:1]) == expected[:1]
    assert len(emulated) == n_graphs + 2


def test_goes_on_if_recording_fails(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plainly(translator)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Replays, "_record", fail)
    with pytest.warns(UserWarning, match="without them, more slowly: out of memory"):
        assert translator.translate(SENTENCES[:1]) == expected[:1]
    assert translator.translate(SENTENCES[1:2]) == expected[1:2]  # no second warning


def test_errors_that_are_not_of_graphs(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not of a graph")

    monkeypatch.setattr(cmlm.Model, "translate", fail)
    with pytest.raises(RuntimeError, match="not of a graph"):
        translator.translate(SENTENCES[:1])
    assert translator.cuda_graphs
