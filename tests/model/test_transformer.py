"""The Transformer: what it sees, what it does not see, and how large it is."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from oaxe.model.transformer import SIZES, Transformer, initialise, positions_from_end
from oaxe.text.plans import Room
from oaxe.text.symbols import MASK, PAD
from tests.models import MICRO, VOCAB, hidden_states, micro_transformer, random_batch

KINDS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "one pass": {"causal": False},
    "one pass, more positions": {"causal": False, "target_positions": 26},
    "one pass, positions from both ends": {"causal": False, "positions": "both"},
}
GRID = list(product(KINDS, ["post", "pre"]))


@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_padding_and_batch_mates_change_nothing(kind: str, norm: str) -> None:
    model = micro_transformer(norm, **KINDS[kind])
    source, inputs = random_batch(9, 3, 5), random_batch(4, 7, 2)
    hidden = hidden_states(model, source, inputs)
    for row in range(3):
        alone = source[row : row + 1, : (source[row] != PAD).sum()]
        n = int((inputs[row] != PAD).sum())
        expected = hidden_states(model, alone, inputs[row : row + 1, :n])
        torch.testing.assert_close(hidden[row : row + 1, :n], expected, rtol=1e-4, atol=1e-5)


def test_positions_from_the_end() -> None:
    model = micro_transformer(positions="both")
    assert model.source_from_end is not None
    with torch.no_grad():
        model.source_positions.weight.zero_()
    mask = torch.tensor([[True] * 3 + [False], [True] * 4])
    assert positions_from_end(mask).tolist() == [[2, 1, 0, 0], [3, 2, 1, 0]]
    # with positions from the start out of the way, the sum of embeddings is left to compare
    seen: list[Tensor] = []
    hook = model.source_norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    source = random_batch(6)
    model.encode(source)
    hook.remove()
    expected = model.tokens(source) + model.source_from_end.weight[torch.arange(5, -1, -1)]
    torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_only_the_causal_model_is_blind_to_the_future(norm: str) -> None:
    source, inputs = random_batch(6), random_batch(8)
    changed = inputs.clone()
    changed[0, 5] = 7 if inputs[0, 5] != 7 else 8
    for causal in (True, False):
        model = micro_transformer(norm, causal=causal)
        before, after = (hidden_states(model, source, i) for i in (inputs, changed))
        same = torch.isclose(before, after, rtol=1e-4, atol=1e-6).all(2)[0]
        assert same[:5].all() == causal
        assert not same[5:].any()


@pytest.mark.parametrize("room", [None, Room(17, 13)])
def test_decoding_layer_by_layer_equals_decoding_at_once(room: Room | None) -> None:
    model = micro_transformer(decoder_layers=3)
    source, inputs = random_batch(9, 3, 5), random_batch(4, 7, 2)
    seen = []

    def between(hidden: Tensor, number: int) -> Tensor:
        seen.append((number, hidden))
        return hidden

    expected = hidden_states(model, source, inputs)
    mask = inputs != PAD
    with model.packed(room):
        states = model.decode_by_layer(inputs, mask, model.encode(source), between)
    torch.testing.assert_close(states[-1][mask], expected[mask])
    assert [number for number, _ in seen] == [0, 1]
    assert all(given is own for (_, given), own in zip(seen, states, strict=False))


def test_rows_that_share_a_sentence_equal_rows_with_copies_of_it() -> None:
    model = micro_transformer()
    source, inputs = random_batch(9, 3), random_batch(4, 7, 2, 5, 5, 6)
    shared = hidden_states(model, source, inputs)
    copied = hidden_states(model, source.repeat_interleave(3, 0), inputs)
    real = inputs != PAD
    torch.testing.assert_close(shared[real], copied[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_the_cache_changes_nothing(norm: str) -> None:
    """Two rows a sentence; the second sentence begins later, in a place that was used before."""
    model = micro_transformer(norm, causal=True)
    source, inputs = random_batch(5, 8), random_batch(6, 6, 6, 6)
    whole = model.decode(inputs, inputs != PAD, model.encode(source)).view(2, 2, 6, -1)
    tokens = inputs.view(2, 2, 6)
    cache = model.new_cache(2, 8, rows=2, steps=9)
    model.begin(source.flip(0), cache, torch.tensor([0, 1]))
    model.begin(source[:1], cache, torch.tensor([0]))
    for step in range(8):
        if step == 2:
            model.begin(source[1:], cache, torch.tensor([1]))
        steps = torch.tensor([min(step, 5), step - 2 if step >= 2 else step])
        given = torch.stack([tokens[i, :, n] for i, n in enumerate(steps.tolist())])
        found = model.decode_next(given, steps, cache, room=step + 1)
        for i, n in enumerate(steps.tolist()):
            if i == 0 or step >= 2:
                torch.testing.assert_close(found[i], whole[i, :, n], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_row_goes_on_from_what_another_was() -> None:
    model = micro_transformer(causal=True)
    source, inputs = random_batch(5), random_batch(4, 4)
    crossed = torch.cat([inputs.flip(0)[:, :2], inputs[:, 2:]], 1)
    whole = model.decode(crossed, crossed != PAD, model.encode(source))
    cache = model.new_cache(1, 5, rows=2, steps=4)
    model.begin(source, cache, torch.tensor([0]))
    for step in range(4):
        if step == 2:
            cache.paths.copy_(cache.paths.flip(1))
        found = model.decode_next(inputs[None, :, step], torch.tensor([step]), cache, step + 1)
    torch.testing.assert_close(found[0], whole[:, 3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "norm"), GRID)
def test_a_gradient_for_every_parameter(kind: str, norm: str) -> None:
    model = micro_transformer(norm, **KINDS[kind]).train()
    # as long as can be, so that every position is read
    n_source, n_target = (
        positions.num_embeddings for positions in (model.source_positions, model.target_positions)
    )
    hidden = hidden_states(model, random_batch(n_source), random_batch(n_target))
    model.logits(hidden).square().sum().backward()  # type: ignore[no-untyped-call]
    names = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert names == []


def test_an_empty_target_is_harmless() -> None:
    model = micro_transformer().train()
    source, inputs = random_batch(4, 4), torch.tensor([[MASK, MASK], [PAD, PAD]])
    hidden = hidden_states(model, source, inputs)
    hidden[0].sum().backward()  # type: ignore[no-untyped-call]
    assert hidden[0].isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_where_the_norm_is(norm: str) -> None:
    """After post-norm, states are normalised; the last step of pre-norm is a norm of its own."""
    model = Transformer(vocab_size=VOCAB, **MICRO, max_length=12, causal=False, norm=norm).eval()  # type: ignore[arg-type]
    initialise(model)
    layer = model.encoder[0]
    x = 10 * torch.randn(2, 5, 32)
    out = layer(x, torch.ones(2, 5, dtype=torch.bool))
    if norm == "post":
        torch.testing.assert_close(out.mean(2), torch.zeros(2, 5), atol=1e-5, rtol=0)
        torch.testing.assert_close(out.std(2, correction=0), torch.ones(2, 5), atol=1e-3, rtol=0)
    else:
        torch.testing.assert_close(out, x, atol=1.0, rtol=0)  # the residual path is untouched
    hidden = model.encode(random_batch(5)).hidden
    torch.testing.assert_close(hidden.std(2, correction=0), torch.ones(1, 5), atol=1e-2, rtol=0)


def test_parameters_of_base_counted_by_hand() -> None:
    d, ffn, vocab, longest = 512, 2048, 32_000, 256
    attention = 4 * (d * d + d)
    feed_forward = d * ffn + ffn + ffn * d + d
    norm = 2 * d
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    embeddings = vocab * d + 2 * (longest + 2) * d + 2 * norm
    with torch.device("meta"):
        base = Transformer(vocab_size=vocab, **SIZES["base"], max_length=longest, causal=False)
        more = Transformer(
            vocab_size=vocab,
            **SIZES["base"],
            max_length=longest,
            causal=False,
            target_positions=600,
        )
    n_parameters, n_more = (sum(p.numel() for p in m.parameters()) for m in (base, more))
    assert n_parameters == encoder + decoder + embeddings == 60_788_736
    assert n_more == n_parameters + (600 - longest - 2) * d
    assert base.output_weight is base.tokens.weight


def test_initial_weights() -> None:
    model = Transformer(vocab_size=5000, **SIZES["tiny"], max_length=50, causal=False)
    initialise(model)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
        elif "norm.weight" in name:
            assert (parameter == 1).all()
        else:
            assert (parameter == 0).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast(kind: str) -> None:
    model = micro_transformer(**KINDS[kind])
    source, inputs = random_batch(5, 9), random_batch(6, 3)
    expected = hidden_states(model, source, inputs)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = hidden_states(model, source, inputs)
        assert model.logits(hidden).dtype == torch.bfloat16
    real = inputs != PAD
    assert (hidden.float() - expected)[real].abs().mean() < 0.05
    hidden.float().sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", KINDS)
def test_compiles_into_one_graph(kind: str) -> None:
    model = micro_transformer(**KINDS[kind], encoder_layers=1, decoder_layers=1)
    encode = torch.compile(model.encode, fullgraph=True, backend="eager", dynamic=True)
    decode = torch.compile(model.decode, fullgraph=True, backend="eager", dynamic=True)
    for lengths in ((5, 9), (4, 3, 8)):
        source, inputs = random_batch(*lengths), random_batch(*lengths)
        expected = hidden_states(model, source, inputs)
        ours = decode(inputs, inputs != PAD, encode(source))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
        ours.sum().backward()  # type: ignore[no-untyped-call]


def test_rejects_arguments_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        micro_transformer(heads=5)
    with pytest.raises(ValueError, match='"post" or "pre", got \'mid\''):
        micro_transformer(norm="mid")
    with pytest.raises(ValueError, match='positions must be "start", or "both" if not causal'):
        micro_transformer(causal=True, positions="both")


def test_rejects_sequences_longer_than_its_positions() -> None:
    model = micro_transformer(target_positions=5)
    encoded = model.encode(random_batch(14))  # LENGTH, 12 tokens, EOS
    with pytest.raises(ValueError, match="15 tokens does not fit into 14 positions; max_length is"):
        model.encode(random_batch(15))
    with pytest.raises(ValueError, match="6 tokens does not fit into 5 positions"):
        model.decode(random_batch(6), torch.ones(1, 6, dtype=torch.bool), encoded)
