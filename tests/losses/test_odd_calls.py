"""Odd calls of the losses: each has the value of a slow reference, or is explained.

The references enumerate all that a model can say, in float64. `python -m tests.campaign` makes many
more of these calls.
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations, groupby, permutations, product
from traceback import extract_tb
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oaxe
from oaxe.losses.imputer import linear_imputer_loss
from tests.losses.test_ngram_oaxe import brute_force as ngram_oaxe_by_brute_force
from tests.oracles import axe_by_brute_force, oaxe_by_brute_force

ZERO = torch.tensor(0.0, dtype=torch.float64)
NEVER = ZERO + torch.inf
Said = tuple[list[tuple[int, ...]], Tensor]  # outputs, and the log-probability of each


@cache
def sequences(vocab: int, length: int) -> list[tuple[int, ...]]:
    return list(product(range(vocab), repeat=length))


def of_positions(logits: Tensor) -> Said:
    """All that independent positions may say."""
    words = sequences(logits.shape[1], len(logits))
    numbers = torch.tensor(words, dtype=torch.long).view(len(words), len(logits))
    return words, logits.log_softmax(1)[range(len(logits)), numbers].sum(1)


def of_ctc(logits: Tensor, blank: int) -> Said:
    labels, scores = of_positions(logits)
    return [tuple(w for w, _ in groupby(some) if w != blank) for some in labels], scores


def of_graph(logits: Tensor, links: Tensor) -> Said:
    last, words, scores = len(logits) - 1, [], [logits.new_zeros(0)]
    for size in range(len(logits)):
        for inner in combinations(range(1, last), max(0, size - 1)):
            path = [0, *inner, last] if size else [0]
            if path[-1] == last:
                said, score = of_positions(logits[path])
                words += said
                scores.append(score + links[path[:-1], path[1:]].sum())
    return words, torch.cat(scores)


def likelihood(said: Said, words: list[int]) -> Tensor:
    chosen = [i for i, one in enumerate(said[0]) if one == tuple(words)]
    if not chosen or bool((said[1][chosen] == -torch.inf).all()):
        return NEVER
    return -said[1][chosen].logsumexp(0)


def ngrams(words: Any, n: int) -> Counter[tuple[int, ...]]:
    """None is a gap, and in no n-gram."""
    found = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    return Counter({gram: count for gram, count in found.items() if None not in gram})


def matches(said: Said, words: list[Any], n: int) -> tuple[Tensor, Tensor]:
    """How many n-grams of the target are expected, and n-grams at all."""
    outputs, probability = said[0], said[1].exp()
    matched = ZERO
    found = [ngrams(one, n) for one in outputs]
    for ngram, most in ngrams(words, n).items():
        count = probability.new_tensor([one[ngram] for one in found])
        matched = matched + (probability * count).sum().clamp(max=most)
    number = (probability * probability.new_tensor([one.total() for one in found])).sum()
    return matched, number


class Sentence(NamedTuple):
    """What takes part of one sentence, in float64."""

    logits: Tensor  # (predictions, vocab)
    words: list[int]
    links: Tensor  # (predictions, predictions)
    target: list[int | None]  # the words, and a gap for each ignored one


def xe(one: Sentence, weight: Any = None, label_smoothing: float = 0.0) -> Tensor:
    words = torch.tensor(one.words, dtype=torch.long)
    options: Any = {"weight": weight, "label_smoothing": label_smoothing, "reduction": "sum"}
    return torch.nn.functional.cross_entropy(one.logits, words, **options)


def oaxe_(one: Sentence, truncation: float, label_smoothing: float, weight: Any = None) -> Tensor:
    if not one.words:
        return ZERO
    given = one.logits.unsqueeze(0), torch.tensor([one.words])
    return oaxe_by_brute_force(*given, -100, label_smoothing, truncation or -1, weight)


def ngram_oaxe(one: Sentence, n: int) -> Tensor:
    if not one.words:
        return ZERO
    return ngram_oaxe_by_brute_force(one.logits, one.words, n)


def axe(one: Sentence, blank: int, delta: float) -> Tensor:
    if not len(one.logits):
        return ZERO
    return axe_by_brute_force(one.logits, torch.tensor(one.words, dtype=torch.long), blank, delta)


def ctc(one: Sentence, blank: int, zero_infinity: bool = True) -> Tensor:
    cost = likelihood(of_ctc(one.logits, blank), one.words)
    return ZERO if cost == torch.inf and zero_infinity else cost


def coco(one: Sentence, blank: int, ctc_weight: float) -> Tensor:
    if not one.words:
        return ZERO
    cost, positions = -one.logits.log_softmax(1), range(len(one.logits))
    matched = [ZERO] if len(one.words) > len(positions) else [
        torch.stack(
            [cost[j, one.words[places.index(j)] if j in places else blank] for j in positions]
        ).sum()
        for places in permutations(positions, len(one.words))
    ]  # fmt: skip
    return ctc_weight * ctc(one, blank) + (1 - ctc_weight) * torch.stack(matched).min()


def dag(one: Sentence, zero_infinity: bool = False) -> Tensor:
    if not one.words:
        return ZERO
    cost = likelihood(of_graph(one.logits, one.links), one.words) if len(one.logits) else NEVER
    return ZERO if cost == torch.inf and zero_infinity else cost


def bag(one: Sentence, n: int) -> Tensor:
    matched, number = matches(of_positions(one.logits), one.target, n)
    return (number + ngrams(one.target, n).total()) / 2 - matched


def ctc_ngram(one: Sentence, blank: int, n: int) -> Tensor:
    if len(one.words) < n:
        return ZERO
    matched, number = matches(of_ctc(one.logits, blank), one.words, n)
    return len(one.words) * (1 - 2 * matched / (number + len(one.words) - n + 1))


def dag_ngram(one: Sentence, n: int) -> Tensor:
    if len(one.words) < n or not len(one.logits):
        return ZERO + len(one.words) * (len(one.words) >= n)
    said = of_graph(one.logits, one.links)
    matched, number = matches(said, one.words, n)
    length = (said[1].exp() * ZERO.new_tensor([len(words) for words in said[0]])).sum()
    precision = matched / number if number > 0 else ZERO
    return len(one.words) * (1 - (1 - len(one.words) / length).clamp(max=0).exp() * precision)


class Loss(NamedTuple):
    plain: Callable[..., Any]
    linear: Callable[..., Any]
    reference: Callable[..., Tensor]
    module: Callable[..., torch.nn.Module] | None = None
    mask: str = ""  # "any", "prefix", or none: then there is a target for each prediction
    options: dict[str, list[Any]] = {}  # noqa: RUF012 - never changed


SMOOTH: dict[str, list[Any]] = {"label_smoothing": [0.0, 0.1, 1, torch.tensor(0.3)]}
INFINITE: dict[str, list[Any]] = {"zero_infinity": [False, True]}
TRUNCATION: dict[str, list[Any]] = {"truncation": [0, 0.0, 0.2, 0.999]}
N: dict[str, list[Any]] = {"n": [1, 2, 3, 10**9]}
BLANKS: Any = {"rest": "blanks"}
LOSSES = {
    "xe": Loss(oaxe.xe_loss, oaxe.linear_xe_loss, xe, oaxe.XELoss, options=SMOOTH),
    "oaxe": Loss(
        oaxe.oaxe_loss, oaxe.linear_oaxe_loss, oaxe_, oaxe.OaXELoss, options=SMOOTH | TRUNCATION
    ),
    "ngram_oaxe": Loss(oaxe.ngram_oaxe_loss, oaxe.linear_ngram_oaxe_loss, ngram_oaxe, options=N),
    "axe": Loss(
        oaxe.axe_loss, oaxe.linear_axe_loss, axe, oaxe.AXELoss, "any", {"delta": [0, 0.5, 1.0, 3]}
    ),
    "ctc": Loss(oaxe.ctc_loss, oaxe.linear_ctc_loss, ctc, oaxe.CTCLoss, "any", INFINITE),
    "coco": Loss(
        partial(oaxe.coco_loss, **BLANKS),
        partial(oaxe.linear_coco_loss, **BLANKS),
        coco,
        mask="any",
        options={"ctc_weight": [0, 0.1, 1.0]},
    ),
    "dag": Loss(oaxe.dag_loss, oaxe.linear_dag_loss, dag, oaxe.DAGLoss, "prefix", INFINITE),
    "dag_ngram": Loss(
        oaxe.dag_ngram_loss, oaxe.linear_dag_ngram_loss, dag_ngram, mask="prefix", options=N
    ),
    "bag": Loss(
        oaxe.bag_of_ngrams_loss,
        oaxe.linear_bag_of_ngrams_loss,
        bag,
        oaxe.BagOfNgramsLoss,
        "prefix",
        N,
    ),
    "ctc_ngram": Loss(
        oaxe.ctc_ngram_loss,
        oaxe.linear_ctc_ngram_loss,
        ctc_ngram,
        mask="any",
        options={"n": [1, 2]},
    ),
}
KINDS = ["noise", "noise", "sharp", "equal", "huge", "impossible"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CLOSE: dict[torch.dtype, Any] = {
    torch.float16: {"rtol": 1e-2, "atol": 1e-3},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-3},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float64: {"rtol": 1e-7, "atol": 1e-9},
}
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]


def odd_logits(kind: str, *shape: int) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    if kind == "impossible":
        return x.masked_fill(
            (torch.rand(shape) < 0.2) & (x < x.max(-1, keepdim=True).values), -torch.inf
        )
    return x * {"noise": 1, "sharp": 30, "equal": 0, "huge": 1e4}[kind]


def odd_layout(pick: Callable[..., Any], x: Tensor) -> Tensor:
    """The same numbers, otherwise in memory."""
    how = pick(["plain", "turned", "every second", "a part"])
    if how == "turned":
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "every second":
        return torch.stack([x, x + 1], -1).flatten(-2)[..., ::2]
    if how == "a part":
        return torch.nn.functional.pad(x, (1, 2))[..., 1:-2]
    return x


class Call(NamedTuple):
    loss: Loss
    kind: str
    tensors: dict[str, Tensor]  # logits, links if any, target
    options: dict[str, Any]
    sentences: list[Sentence]  # what a reference is given


def odd_call(name: str, seed: int) -> Call:
    torch.manual_seed(seed)
    loss = LOSSES[name]

    def pick(choices: list[Any]) -> Any:
        return choices[int(torch.randint(len(choices), ()))]

    batch, length, vocab = pick([0, 1, 2, 3]), pick([0, 1, 2, 3, 4]), pick([1, 2, 3, 4])
    words = length if not loss.mask else pick([0, 1, 2, 3])
    kind, dtype = pick(KINDS), pick(DTYPES)
    logits = odd_logits(kind, batch, length, vocab).to(dtype)
    options = {option: pick(values) for option, values in loss.options.items()}
    sayable = list(range(vocab))
    if "blank" in inspect.signature(loss.plain).parameters:
        options["blank"] = blank = pick(sayable)
        sayable.remove(blank)
    target = torch.tensor(sayable or [0])[torch.randint(max(1, len(sayable)), (batch, words))]
    ignored = torch.rand(batch, words) < pick([0.0, 0.3, 1.0 if pick([0, 1]) else 0.6])
    whole = pick(WHOLE)
    ignore_index = pick([-100, -1, vocab, 127, 10**12, *range(vocab)])
    fits = torch.iinfo(whole).min <= ignore_index <= torch.iinfo(whole).max
    if not sayable:
        ignored = torch.ones_like(ignored)
    if not fits:
        whole = torch.int64
    target = target.masked_fill(ignored, ignore_index).to(whole)
    ignored = target == ignore_index
    if ignore_index != -100 or pick([False, True]):
        options["ignore_index"] = ignore_index
    mask = torch.ones(batch, length, dtype=torch.bool)
    if loss.mask and pick([False, True]):
        mask = torch.rand(batch, length) < pick([0.0, 0.5, 0.9, 1.0])
        if loss.mask == "prefix":
            mask = mask.cummin(1).values if mask.numel() else mask
        options["logit_mask"] = mask
    if "weight" in inspect.signature(loss.plain).parameters and pick([False, True]):
        options["weight"] = torch.rand(vocab).to(dtype) * pick([0, 1, 5])
    logits = odd_layout(pick, logits).requires_grad_()
    tensors = {"logits": logits, "target": odd_layout(pick, target)}
    links = torch.zeros(batch, length, length, dtype=torch.float64)
    if name.startswith("dag"):
        links = -torch.rand(batch, length, length) - math.log(max(1, length))  # together at most 1
        links = links.masked_fill(torch.rand(links.shape) < pick([0.0, 0.3]), -torch.inf)
        if name == "dag_ngram":  # wants them to add up to one
            later = torch.ones(length, length).triu(1).bool() & mask.unsqueeze(1)
            links = torch.randn(links.shape).double().masked_fill(~later, -torch.inf)
            links = links.log_softmax(2).masked_fill(~later, -torch.inf)
        else:
            links = links.to(pick(DTYPES))
        tensors = {"logits": tensors["logits"], "links": odd_layout(pick, links), **tensors}
    sentences = []
    for b in range(batch):
        kept = mask[b] if loss.mask else ~ignored[b]
        here = links[b].double()[kept][:, kept]
        said = target[b][~ignored[b]].tolist()
        gaps = [
            None if gone else word
            for word, gone in zip(target[b].tolist(), ignored[b], strict=True)
        ]
        sentences.append(Sentence(tensors["logits"][b].double()[kept], said, here, gaps))
    return Call(loss, kind, tensors, options, sentences)


def reference(call: Call) -> Tensor:
    """``(batch,)``"""
    accepted = inspect.signature(call.loss.reference).parameters
    options = {
        name: value.double() if isinstance(value, Tensor) else value
        for name, value in call.options.items()
        if name in accepted
    }
    values = [call.loss.reference(one, **options) for one in call.sentences]
    return torch.stack([NEVER, *values])[1:]


def total(losses: Tensor) -> Tensor:
    """One value a sentence."""
    return losses.double() if losses.dim() == 1 else losses.double().sum(1)


def all_equal(ours: Tensor, expected: Tensor, logits: Tensor) -> None:
    """Where the loss is infinite it may be NaN as well, as where one is taken from the other."""
    rough = 1e-10 if logits.dtype == torch.float64 else 1e-5
    size = 1 + logits[logits.isfinite()].detach().abs().sum().item()
    known, ours = (x.double().nan_to_num(torch.nan, torch.nan) for x in (expected, ours))
    torch.testing.assert_close(ours, known, rtol=rough, atol=rough * size, equal_nan=True)


CONTEXTS: list[Callable[[], Any]] = [
    torch.no_grad,
    torch.inference_mode,
    partial(torch.autocast, "cpu", dtype=torch.bfloat16),
]
ODD = pytest.mark.filterwarnings("ignore:logits sum to 1", "ignore:target holds the blank")


@ODD
@pytest.mark.parametrize("name", LOSSES)
@given(seed=st.integers(0, 2**32))
def test_an_odd_call(name: str, seed: int) -> None:
    call = odd_call(name, seed)
    loss, options, tensors = call.loss, call.options, call.tensors
    logits = tensors["logits"]
    try:
        losses = loss.plain(**tensors, **options, reduction="none")
    except oaxe.NotFiniteError:
        assert not logits.isfinite().all()
        return
    expected = reference(call)
    all_equal(total(losses), expected, logits)
    assert not (losses < 0).any()
    precisions = [x.dtype for x in tensors.values() if x.is_floating_point()]
    assert losses.dtype == torch.promote_types(
        torch.float32, torch.promote_types(precisions[0], precisions[-1])
    )
    if losses.isfinite().all():
        (gradient,) = torch.autograd.grad(losses.sum() + 0 * total(logits).sum(), logits)
        assert gradient.isfinite().all()
        if call.kind == "noise":
            (wanted,) = torch.autograd.grad(expected.sum() + 0 * logits.sum(), logits)
            torch.testing.assert_close(gradient, wanted, **CLOSE[logits.dtype])
        summed = loss.plain(**tensors, **options, reduction="sum")
        all_equal(summed, expected.sum(), logits)
    with CONTEXTS[seed % len(CONTEXTS)]():
        again = loss.plain(**tensors, **options, reduction="none")
    assert again.equal(losses) or losses.isnan().any()
    if loss.module:
        mask = {key: options.pop(key) for key in ("logit_mask",) if key in options}
        again = loss.module(**options, reduction="none")(**tensors, **mask)
        assert again.equal(losses) or losses.isnan().any()


@ODD
@pytest.mark.parametrize("name", LOSSES)
@given(seed=st.integers(0, 2**32))
def test_an_odd_call_of_a_linear_layer(name: str, seed: int) -> None:
    """Whose embedding is the identity, so that its logits are its input, exactly."""
    call = odd_call(name, seed)
    logits = call.tensors.pop("logits")
    if not logits.isfinite().all():
        return
    one = torch.eye(logits.shape[2], dtype=logits.dtype, requires_grad=True)
    bias = torch.zeros(logits.shape[2], dtype=logits.dtype, requires_grad=True)
    capacity = [None, logits[..., 0].numel(), 99][seed % 3]
    losses = call.loss.linear(
        logits, one, **call.tensors, **call.options, linear_bias=bias, capacity=capacity
    )
    expected = call.loss.plain(logits, **call.tensors, **call.options)
    all_equal(losses, expected, logits)
    if call.kind == "noise" and losses.isfinite():
        ours, theirs = (
            torch.autograd.grad(x + 0 * logits.sum(), logits)[0] for x in (losses, expected)
        )
        torch.testing.assert_close(ours, theirs, **CLOSE[logits.dtype])


@given(seed=st.integers(0, 2**32), of_graph_=st.booleans())
def test_the_best_path_of_an_odd_call(seed: int, of_graph_: bool) -> None:
    """It says the target, and no other alignment is likelier."""
    call = odd_call("dag" if of_graph_ else "ctc", seed)
    options = {key: value for key, value in call.options.items() if key != "zero_infinity"}
    find: Any = oaxe.dag_best_path if of_graph_ else oaxe.ctc_best_path
    mask = options.get("logit_mask", torch.ones(call.tensors["logits"].shape[:2]) > 0)
    ignore_index = options.get("ignore_index", -100)
    for b, path in enumerate(find(**call.tensors, **options)):
        one = call.sentences[b]
        if of_graph_:
            kept, nothing = path[call.tensors["target"][b].long() != ignore_index].tolist(), -1
            last = len(one.logits) - 1
            inner = combinations(range(1, last), max(0, len(one.words) - 2))
            places = [[0, *some, last] for some in inner] if last > 0 else [[0]]
            paths = [place for place in places if len(place) == len(one.words) and last >= 0]
        else:
            kept, nothing = path[mask[b]].tolist(), ignore_index
            assert (path[~mask[b]] == ignore_index).all()
            said = zip(sequences(one.logits.shape[1], len(one.logits)),
                       of_ctc(one.logits, options["blank"])[0], strict=True)  # fmt: skip
            paths = [[*labels] for labels, words in said if list(words) == one.words]
        scores = {tuple(some): path_score(one, some, of_graph_) for some in paths}
        best = max(scores.values(), default=-torch.inf)
        if best == -torch.inf:
            assert all(place == nothing for place in kept)
        else:
            rough = 1e-4 * (1 + abs(best))
            assert scores[tuple(kept)] == pytest.approx(best, abs=rough)


def path_score(one: Sentence, path: list[int], of_graph_: bool) -> float:
    log_probs = one.logits.log_softmax(1)
    if of_graph_:
        score = log_probs[path, one.words].sum() + one.links[path[:-1], path[1:]].sum()
    else:
        score = log_probs[range(len(path)), path].sum()
    return score.item()


@pytest.mark.parametrize("name", LOSSES)
def test_shapes_alone(name: str) -> None:
    """Without numbers, as where a model is planned."""
    for seed in range(8):
        call = odd_call(name, seed)
        logits = call.tensors.pop("logits").detach().nan_to_num(neginf=0)
        one = torch.eye(logits.shape[2], dtype=logits.dtype)
        forms: list[tuple[Any, tuple[Tensor, ...]]] = [
            (call.loss.plain, (logits,)),
            (call.loss.linear, (logits, one)),
        ]
        for form, layer in forms:
            given, options = (
                {k: v.to("meta") if isinstance(v, Tensor) and v.dim() else v for k, v in x.items()}
                for x in (call.tensors, call.options)
            )
            losses = form(*layer, **call.tensors, **call.options, reduction="none")
            shape = form(*(x.to("meta") for x in layer), **given, **options, reduction="none")
            assert (shape.shape, shape.dtype) == (losses.shape, losses.dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_no_second_derivative_of_a_linear_layer(name: str) -> None:
    form = FORMS[f"linear {name}"]
    takes = inspect.signature(form).parameters
    hidden = torch.randn(2, 3, 5, requires_grad=True)
    right = {key: value for key, value in RIGHT.items() if key in takes} | {"input": hidden}
    loss = form(**right | {"target": torch.tensor([[4, 1, 2], [1, 3, 1]])})
    (first,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="this loss has no second derivative"):
        (first**2).sum().backward()  # type: ignore[no-untyped-call]


LOGITS = torch.randn(2, 3, 5)
NOT_TENSORS: list[Any] = [None, "x", 1.5, [1], torch.nn.Linear(2, 2)]
NOT_NUMBERS: list[Any] = [
    None,
    "x",
    [1],
    1j,
    torch.ones(2),
    LOGITS.to_sparse(),
    torch.nan,
    -1,
    object,
]
NOT_WHOLE: list[Any] = [None, "x", [1], 1j, 1.5, True, torch.ones(2).long(), torch.tensor(0.5)]
NOT_FLOATS: list[Any] = [
    LOGITS.long(), LOGITS > 0, LOGITS.to(torch.complex64), LOGITS.to(torch.float8_e4m3fn),
    LOGITS.to_sparse(), LOGITS[0], LOGITS[:1], LOGITS[:, :, None], LOGITS.to("meta"),
]  # fmt: skip
WRONG: dict[str, list[Any]] = {
    "logits": [*NOT_TENSORS, *NOT_FLOATS, LOGITS[..., :0], LOGITS[..., :2]],
    "input": [*NOT_TENSORS, *NOT_FLOATS, LOGITS[..., :2]],
    "linear_weight": [
        *NOT_TENSORS, LOGITS, torch.eye(4), torch.eye(5).double(), torch.eye(5).to_sparse(),
    ],
    "linear_bias": [*NOT_TENSORS[1:], torch.ones(4), torch.ones(1, 5)],
    "links": [*NOT_TENSORS, *NOT_FLOATS, torch.ones(2, 3, 2)],
    "target": [*NOT_TENSORS, torch.ones(2, 3), torch.ones(2, 3) > 0, torch.ones(3).long(),
               torch.ones(1, 3).long(), torch.full((2, 3), 5), torch.full((2, 3), -1),
               torch.ones(2, 3).long().to_sparse(), torch.ones(2, 3, device="meta").long()],
    "shown": [*NOT_TENSORS, torch.ones(2, 3), torch.ones(2, 2).long()],
    "weight": [*NOT_TENSORS[1:], torch.ones(4), torch.ones(5).long(), torch.ones(5).to_sparse()],
    "logit_mask": [*NOT_TENSORS[1:], torch.ones(2, 3), torch.ones(2, 2) > 0, torch.ones(3) > 0],
    "blank": [*NOT_WHOLE, -1, 5, 10**30],
    "n": [*NOT_WHOLE, 0, -1],
    "capacity": [*NOT_WHOLE[1:], -1],
    "ignore_index": [*NOT_WHOLE, 2**63, -(10**30)],
    "label_smoothing": [*NOT_NUMBERS, 1.01],
    "truncation": [*NOT_NUMBERS, 1.0],
    "delta": [*NOT_NUMBERS, torch.inf],
    "ctc_weight": [*NOT_NUMBERS, 2],
    "reduction": ["avg", None, 1, b"mean", ["mean"], torch.ones(2)],
    "rest": ["words", None, 1, ["blanks"], torch.ones(2)],
}  # fmt: skip
RIGHT: dict[str, Any] = {
    "logits": LOGITS,
    "input": LOGITS,
    "linear_weight": torch.eye(5),
    "links": torch.zeros(2, 3, 3),
    "target": torch.full((2, 3), 4),
    "shown": torch.full((2, 3), -100),
    "blank": 0,
    "capacity": 6,
    "logit_mask": torch.ones(2, 3) > 0,  # without, all take part, and a capacity says nothing
}
FORMS: dict[str, Callable[..., Any]] = {
    **{name: loss.plain for name, loss in LOSSES.items()},
    **{f"linear {name}": loss.linear for name, loss in LOSSES.items()},
    "coco": oaxe.coco_loss,
    "linear coco": oaxe.linear_coco_loss,
    "linear imputer": linear_imputer_loss,
    "best order": oaxe.best_order,
    "ctc path": oaxe.ctc_best_path,
    "linear ctc path": oaxe.linear_ctc_best_path,
    "dag path": oaxe.dag_best_path,
    "linear dag path": oaxe.linear_dag_best_path,
}


@pytest.mark.parametrize("name", FORMS)
def test_a_wrong_argument_is_explained(name: str) -> None:
    """By an error of ours that names an argument, not one from within torch."""
    form = FORMS[name]
    takes = inspect.signature(form).parameters
    right = {key: value for key, value in RIGHT.items() if key in takes}
    form(**right)
    for argument in takes:
        for wrong in WRONG.get(argument, []):
            with pytest.raises((ValueError, TypeError)) as caught:
                form(**{**right, argument: wrong})
            said, place = str(caught.value), extract_tb(caught.tb)[-1]
            assert "oaxe/losses" in place.filename, (argument, wrong, said)
            assert any(known in said for known in takes), (argument, wrong, said)
