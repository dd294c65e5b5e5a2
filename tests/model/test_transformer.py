"""The Transformer: what it sees, what it does not, how large it is, and that it learns."""

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import oaxe
from oaxe.model.masking import causal_inputs, ctc_inputs, decoder_inputs
from oaxe.model.transformer import SIZES, Size, Transformer, places_from_end
from oaxe.search.beam import beam_search
from oaxe.search.one_pass import translate_batch
from oaxe.text.symbols import BLANK, EOS, LENGTH, MASK, PAD, SYMBOLS

VOCAB = 30
KINDS: dict[str, dict[str, Any]] = {
    "at": {"causal": True},
    "nat": {"causal": False},
    "ctc": {"causal": False, "upsample": 2},
    "nat from both ends": {"causal": False, "positions": "both"},
}
GRID = list(product(KINDS, ["post", "pre"]))
MICRO = Size(dim=32, ffn=64, heads=4, encoder_layers=2, decoder_layers=2)


def micro(kind: str = "nat", norm: str = "post", **options: Any) -> Transformer:
    """A model of random weights, large enough for every path to matter and words to differ."""
    arguments = {"vocab_size": VOCAB, **MICRO, "max_length": 12, "norm": norm, **KINDS[kind]}
    model = Transformer(**{**arguments, **options}).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if parameter.dim() == 1 else 0.2
            scale = {"tokens": 0.7, "target_positions": 2.0}.get(name.split(".")[0], scale)
            parameter.add_(torch.randn_like(parameter), alpha=scale)
    return model


def random_batch(*lengths: int) -> Tensor:
    """Sentences of these many tokens, EOS at the end, padded on the right."""
    rows = [torch.cat([torch.randint(len(SYMBOLS), VOCAB, (n - 1,)), torch.tensor([EOS])])
            for n in lengths]  # fmt: skip
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_padding_and_batch_mates_change_nothing(kind: str, norm: str) -> None:
    model = micro(kind, norm)
    source, inputs = random_batch(9, 3, 5), random_batch(4, 7, 2)
    hidden, length_logits = model(source, inputs, inputs != PAD)
    for row in range(3):
        alone = source[row : row + 1, : (source[row] != PAD).sum()]
        n = int((inputs[row] != PAD).sum())
        own = inputs[row : row + 1, :n]
        expected, expected_length = model(alone, own, own != PAD)
        torch.testing.assert_close(hidden[row : row + 1, :n], expected, rtol=1e-4, atol=1e-5)
        if length_logits is not None:
            torch.testing.assert_close(length_logits[row : row + 1], expected_length)


def test_places_from_the_end() -> None:
    model = micro(positions="both")
    assert model.source_from_end is not None
    with torch.no_grad():
        model.source_positions.weight.zero_()
    mask = torch.tensor([[True] * 3 + [False], [True] * 4])
    assert places_from_end(mask).tolist() == [[2, 1, 0, 0], [3, 2, 1, 0]]
    # with places from the start out of the way, the sum of embeddings is left to compare
    seen: list[Tensor] = []
    hook = model.source_norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    source = random_batch(6)
    model.encode(source)
    hook.remove()
    tokens = F.pad(source, (1, 0), value=LENGTH)
    expected = model.tokens(tokens) + model.source_from_end.weight[torch.arange(6, -1, -1)]
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_only_the_causal_model_is_blind_to_the_future(norm: str) -> None:
    source, inputs = random_batch(6), random_batch(8)
    changed = inputs.clone()
    changed[0, 5] = 7 if inputs[0, 5] != 7 else 8
    for kind, sees_it in (("at", False), ("nat", True)):
        model = micro(kind, norm)
        before, _ = model(source, inputs, inputs != PAD)
        after, _ = model(source, changed, inputs != PAD)
        same = torch.isclose(before, after, rtol=1e-4, atol=1e-6).all(2)[0]
        assert same[:5].all() != sees_it
        assert not same[5:].any()


def test_rows_that_share_a_sentence_equal_rows_with_copies_of_it() -> None:
    model = micro()
    source, inputs = random_batch(9, 3), random_batch(4, 7, 2, 5, 5, 6)
    shared = model.decode(inputs, inputs != PAD, model.encode(source))
    copied = model.decode(inputs, inputs != PAD, model.encode(source.repeat_interleave(3, 0)))
    real = inputs != PAD
    torch.testing.assert_close(shared[real], copied[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_cache_changes_nothing(norm: str) -> None:
    model = micro("at", norm)
    encoded = model.encode(random_batch(5, 8))
    inputs = random_batch(6, 6, 6, 6)
    whole = model.decode(inputs, inputs != PAD, encoded)
    cache = model.new_cache(encoded)
    pieces = [inputs[:, :2], *inputs[:, 2:].split(1, 1)]  # type: ignore[no-untyped-call]
    steps = [model.decode(piece, piece != PAD, encoded, cache) for piece in pieces]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
    assert cache[0].length == 6


@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_a_gradient_for_every_parameter(kind: str, norm: str) -> None:
    model = micro(kind, norm).train()
    source, inputs = random_batch(14), random_batch(13)
    if kind == "ctc":
        inputs = ctc_inputs(source[:, 1:], 2)
    hidden, length_logits = model(source[:, int(kind.startswith("nat")) :], inputs, inputs != PAD)
    loss = model.logits(hidden).square().sum()
    if length_logits is not None:
        loss = loss + F.cross_entropy(length_logits, torch.tensor([13 - 1]))
    loss.backward()  # type: ignore[no-untyped-call]
    names = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert names == []


def test_an_empty_target_is_harmless() -> None:
    model = micro("nat").train()
    source, inputs = random_batch(4, 4), torch.tensor([[MASK, MASK], [PAD, PAD]])
    hidden, _ = model(source, inputs, inputs != PAD)
    hidden[0].sum().backward()
    assert hidden[0].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_where_the_norm_is(norm: str) -> None:
    """After post-norm, states are normalised; the last step of pre-norm is a norm of its own."""
    model = Transformer(vocab_size=VOCAB, **MICRO, max_length=12, causal=False, norm=norm).eval()  # type: ignore[arg-type]
    layer = model.encoder[0]
    x = 10 * torch.randn(2, 5, 32)
    out = layer(x, torch.ones(2, 5, dtype=torch.bool))
    if norm == "post":
        torch.testing.assert_close(out.mean(2), torch.zeros(2, 5), atol=1e-5, rtol=0)
        torch.testing.assert_close(out.std(2, correction=0), torch.ones(2, 5), atol=1e-3, rtol=0)
    else:
        torch.testing.assert_close(out, x, atol=1.0, rtol=0)  # the residual path is untouched
    hidden = model.encode(random_batch(5)).hidden
    torch.testing.assert_close(hidden.std(2, correction=0), torch.ones(1, 6), atol=1e-2, rtol=0)


def test_parameters_of_base_counted_by_hand() -> None:
    d, ffn, vocab, longest = 512, 2048, 32_000, 256
    attention = 4 * (d * d + d)
    feed_forward = d * ffn + ffn + ffn * d + d
    norm = 2 * d
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    embeddings = vocab * d + 2 * (longest + 2) * d + 2 * norm
    length = (d + 1) * (longest + 1)
    with torch.device("meta"):
        base = Transformer(vocab_size=vocab, **SIZES["base"], max_length=longest, causal=False)
        at = Transformer(vocab_size=vocab, **SIZES["base"], max_length=longest, causal=True)
    assert base.n_parameters == encoder + decoder + embeddings + length == 60_920_577
    assert at.n_parameters == encoder + decoder + embeddings
    assert base.output_weight is base.tokens.weight


def test_initial_weights() -> None:
    model = Transformer(vocab_size=5000, **SIZES["tiny"], max_length=50, causal=False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
        elif "norm.weight" in name:
            assert (parameter == 1).all()
        else:
            assert (parameter == 0).all(), name
    assert Transformer(**model.architecture).n_parameters == model.n_parameters


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast(kind: str) -> None:
    model = micro(kind)
    source, inputs = random_batch(5, 9), random_batch(6, 3)
    expected, _ = model(source, inputs, inputs != PAD)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = model(source, inputs, inputs != PAD)
        assert model.logits(hidden).dtype == torch.bfloat16
    real = inputs != PAD
    assert (hidden.float() - expected)[real].abs().mean() < 0.05
    hidden.float().sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_into_one_graph(kind: str) -> None:
    model = micro(kind, encoder_layers=1, decoder_layers=1)
    encode = torch.compile(model.encode, fullgraph=True, backend="eager", dynamic=True)
    decode = torch.compile(model.decode, fullgraph=True, backend="eager", dynamic=True)
    for lengths in ((5, 9), (4, 3, 8)):
        source, inputs = random_batch(*lengths), random_batch(*lengths)
        expected, _ = model(source, inputs, inputs != PAD)
        ours = decode(inputs, inputs != PAD, encode(source))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        ours.sum().backward()  # type: ignore[no-untyped-call]


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        micro(heads=5)
    with pytest.raises(ValueError, match='"post" or "pre", got \'mid\''):
        micro(norm="mid")
    with pytest.raises(ValueError, match='positions must be "start", or "both" if not causal'):
        micro("at", positions="both")
    with pytest.raises(ValueError, match="causal model has no places"):
        micro("at", upsample=2)
    model = micro()
    assert model.encode(random_batch(13)).hidden.shape[1] == 14  # LENGTH, 12 tokens, EOS
    with pytest.raises(ValueError, match="15 tokens does not fit into 14 positions; max_length is"):
        model.encode(random_batch(14))


# Tests that must learn: the digits of a string in reverse.


def digit_strings(n: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Source with EOS, target, and the target as lists; ids 7..16 are the digits."""
    lengths = torch.randint(3, 6, (n,)).tolist()
    strings = [torch.randint(7, 17, (length,)) for length in lengths]
    pad = torch.nn.utils.rnn.pad_sequence
    source = pad([torch.cat([s, torch.tensor([EOS])]) for s in strings], batch_first=True)
    target = pad([s.flip(0) for s in strings], batch_first=True)
    return source, target, [s.flip(0).tolist() for s in strings]


def learner(**kind: Any) -> Transformer:
    size = Size(dim=64, ffn=256, heads=4, encoder_layers=2, decoder_layers=2)
    return Transformer(vocab_size=17, **size, max_length=8, dropout=0.0, **kind)


def train(model: Transformer, loss_of_batch: Any, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 50, 2 * (steps - step) / steps)
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def exact(hypotheses: list[Any], expected: list[list[int]]) -> float:
    same = [h[0].tokens == e for h, e in zip(hypotheses, expected, strict=True)]
    return float(sum(same)) / len(same)


def test_one_pass_model_learns_to_reverse_by_xe_then_oaxe() -> None:
    model = learner(causal=False)

    def loss_of_batch(loss: Any) -> Tensor:
        source, target, _ = digit_strings(64)
        inputs, charged = decoder_inputs(target, "unobserved")
        hidden, length_logits = model(source, inputs, inputs != PAD)
        assert length_logits is not None
        lengths = (target != PAD).sum(1)
        out: Tensor = loss(model.logits(hidden), charged)
        return out + F.cross_entropy(length_logits, lengths)

    for loss, steps in ((oaxe.xe_loss, 350), (oaxe.oaxe_loss, 50)):
        train(model, partial(loss_of_batch, loss), steps)
        source, _, expected = digit_strings(200)
        hypotheses = translate_batch(model, source, length_candidates=1, deduplicate=False)
        assert exact(hypotheses, expected) > 0.95


def test_ctc_model_learns_to_reverse() -> None:
    model = learner(causal=False, upsample=2)

    def loss_of_batch() -> Tensor:
        source, target, _ = digit_strings(64)
        inputs = ctc_inputs(source, 2)
        hidden, _ = model(source, inputs, inputs != PAD)
        charged = target.masked_fill(target == PAD, -100)
        return oaxe.ctc_loss(
            model.logits(hidden), charged, blank=BLANK, logit_mask=inputs != PAD, reduction="mean"
        )

    train(model, loss_of_batch, 450)
    source, _, expected = digit_strings(200)
    assert exact(translate_batch(model, source), expected) > 0.9  # 0.945 to 0.975 over seeds


def test_autoregressive_model_learns_to_reverse() -> None:
    model = learner(causal=True)

    def loss_of_batch() -> Tensor:
        source, target, _ = digit_strings(64)
        inputs, charged = causal_inputs(target)
        hidden, _ = model(source, inputs, inputs != PAD)
        return oaxe.xe_loss(model.logits(hidden), charged)

    train(model, loss_of_batch, 450)
    source, _, expected = digit_strings(200)
    assert exact(beam_search(model, source, beam=1), expected) > 0.95
    assert exact(beam_search(model, source, beam=4), expected) > 0.95
