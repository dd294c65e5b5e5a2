import threading
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oaxe.support.errors import UserError
from oaxe.text import batches, plans
from oaxe.text.batches import Update, UpdateLoader, collate
from oaxe.text.corpus import Corpus, Sentences
from oaxe.text.plans import Limits, cut, plan_bands, plan_epoch, plan_packed, shape_of
from oaxe.text.symbols import EOS, PAD

MAX_TOKENS, UPDATE_TOKENS = 100, 400


def random_corpus(n: int, seed: int = 0, longest: int = 30) -> Corpus:
    rng = np.random.default_rng(seed)

    def side() -> Sentences:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, n))])
        return Sentences(rng.integers(7, 1000, offsets[-1]).astype(np.uint16), offsets)

    return Corpus(side(), side())


def loader(corpus: Corpus, start: int = 0, **options: Any) -> UpdateLoader:
    limits = {"max_tokens": MAX_TOKENS, "update_tokens": UPDATE_TOKENS, "seed": 1, "epoch": 0}
    limits |= {name: options.pop(name) for name in vars(Limits(1, 1, 1, 1)) if name in options}
    return UpdateLoader(corpus, Limits(**limits), start, **options)


def same(a: Update, b: Update) -> bool:
    return (a[:3], a[4], len(a[3])) == (b[:3], b[4], len(b[3])) and all(
        torch.equal(x.source, y.source)
        and torch.equal(x.target, y.target)
        and torch.equal(x.indices, y.indices)
        for x, y in zip(a[3], b[3], strict=True)
    )


lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200)


@given(
    lengths,
    st.integers(31, 300),
    st.integers(1, 600),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_sentence_once_within_the_limits(
    pairs: list[tuple[int, int]],
    max_tokens: int,
    update_tokens: int,
    world_size: int,
    epoch: int,
    mix_lengths: bool,
) -> None:
    source, target = np.array(pairs).T
    plan = plan_epoch(
        source,
        target,
        Limits(max_tokens, update_tokens, 5, epoch, world_size),
        mix_lengths=mix_lengths,
    )
    shared = [batch for u in plan for r in range(world_size) for batch in u[r::world_size]]
    assert sorted(np.concatenate(shared).tolist()) == list(range(len(pairs)))
    for update in plan:
        assert len(update) > 0
        for batch in update:
            assert len(batch) * (source[batch].max() + 1) <= max_tokens
            assert len(batch) * target[batch].max() <= max_tokens
        sentences = sum(map(len, update))
        assert len(update) % world_size == 0 or len(update) == sentences


def test_updates_have_equal_sizes_and_batches_are_full() -> None:
    corpus = random_corpus(20_000)
    source, target = corpus.source_lengths, corpus.target_lengths
    plan = plan_epoch(source, target, Limits(1000, 8000, seed=1, epoch=0))
    sizes = [sum(target[batch].sum() for batch in update) for update in plan]
    assert len(plan) == round(target.sum() / 8000)
    assert max(abs(size - 8000) for size in sizes) < 1000
    padded = sum(len(b) * target[b].max() for update in plan for b in update)
    assert target.sum() / padded > 0.98


def test_mixed_lengths_are_in_every_batch() -> None:
    corpus = random_corpus(20_000)
    source, target = corpus.source_lengths, corpus.target_lengths
    plan = partial(plan_epoch, source, target, Limits(8000, 8000, seed=1, epoch=0))
    spread = {}
    for mix in (True, False):
        batches = [batch for update in plan(mix_lengths=mix) for batch in update]
        spread[mix] = np.std([target[batch].mean() for batch in batches if len(batch) > 50])
    assert spread[True] < 0.2 * target.std()
    assert spread[False] > 0.8 * target.std()


def test_an_update_has_the_same_sentences_for_any_number_of_ranks() -> None:
    corpus = random_corpus(500)
    plans = [
        plan_epoch(
            corpus.source_lengths,
            corpus.target_lengths,
            Limits(MAX_TOKENS, UPDATE_TOKENS, 1, 2, world_size),
        )
        for world_size in (1, 2, 8)
    ]
    one, two, eight = ([sorted(np.concatenate(u).tolist()) for u in plan] for plan in plans)
    assert one == two == eight
    assert len(one) > 10


def test_plan_depends_on_seed_and_epoch_alone() -> None:
    corpus = random_corpus(300)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        np.random.default_rng().random()
        updates = plan_epoch(
            corpus.source_lengths,
            corpus.target_lengths,
            Limits(MAX_TOKENS, UPDATE_TOKENS, seed, epoch),
        )
        return [batch.tolist() for update in updates for batch in update]

    assert plan(1, 0) == plan(1, 0)
    different = [plan(1, 0), plan(1, 1), plan(2, 0), plan(0, 1)]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])
    groups = [{frozenset(batch) for batch in p} for p in different]
    assert groups[0] != groups[1]  # other company, not only another order


@given(lengths, st.integers(31, 300), st.integers(1, 300))
def test_cut_equals_adding_one_sentence_at_a_time(
    pairs: list[tuple[int, int]], max_tokens: int, max_target_tokens: int
) -> None:
    source, target = np.array(pairs).T
    order = np.random.default_rng(0).permutation(len(pairs))
    expected: list[list[int]] = []
    for i in order.tolist():
        more = [*(expected[-1] if expected else []), i]
        fits = len(more) * (max(source[more]) + 1) <= max_tokens
        fits &= len(more) * max(target[more]) <= min(max_tokens, max_target_tokens)
        if fits and expected:
            expected[-1] = more
        else:
            expected.append([i])
    found = cut(source, target, order, max_tokens, max_target_tokens)
    assert [batch.tolist() for batch in found] == expected


def test_collate_equals_a_loop_over_tokens() -> None:
    corpus = random_corpus(50)
    indices = np.array([3, 49, 0, 17])
    batch = collate(corpus, indices)
    width_source = max(len(corpus.sources[i]) for i in indices) + 1
    width_target = max(len(corpus.targets[i]) for i in indices)
    for row, i in enumerate(indices):
        source = [*corpus.sources[i].tolist(), EOS]
        target = corpus.targets[i].tolist()
        assert batch.source[row].tolist() == source + [PAD] * (width_source - len(source))
        assert batch.target[row].tolist() == target + [PAD] * (width_target - len(target))
    assert batch.indices.tolist() == indices.tolist()
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.n_target_tokens == int((batch.target != PAD).sum())


@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_together_see_every_sentence_once_an_epoch(world_size: int) -> None:
    corpus = random_corpus(400)
    seen: list[int] = []
    totals = []
    for rank in range(world_size):
        with loader(corpus, rank=rank, world_size=world_size) as updates:
            first = next(updates)
            epoch = [first, *islice(updates, first.n_updates - 1)]
            following = next(updates)
        assert [update.number for update in epoch] == list(range(first.n_updates))
        assert (following.epoch, following.number) == (1, 0)
        seen += [i for update in epoch for batch in update.batches for i in batch.indices.tolist()]
        totals.append([sum(batch.n_target_tokens for batch in update.batches) for update in epoch])
        assert all(update.batches for update in epoch)
    assert sorted(seen) == list(range(400))
    assert [u.n_target_tokens for u in epoch] == np.sum(totals, axis=0).tolist()


def test_resumes_at_any_update() -> None:
    corpus = random_corpus(100)
    with loader(corpus) as updates:
        whole = list(islice(updates, 12))
    n = whole[0].n_updates
    assert 2 < n < 10  # the stream crosses into the next epoch
    for start, update in enumerate(whole):
        with loader(corpus, update.number, epoch=update.epoch) as updates:
            rest = list(islice(updates, 12 - start))
        assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))
    with loader(corpus, n) as updates:  # saved after the last update
        assert same(next(updates), whole[n])
    with loader(corpus, n + 1) as updates, pytest.raises(UserError, match="has only"):
        next(updates)


def test_an_error_in_the_thread_reaches_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise OSError("disk gone")
        return collate(*arguments)

    monkeypatch.setattr(batches, "collate", broken)
    updates = loader(random_corpus(100), max_tokens=1000)
    with pytest.raises(OSError, match="disk gone"):
        list(updates)
    assert list(updates) == []  # closed: no hang


def test_close_stops_the_thread_in_any_state() -> None:
    before = threading.active_count()
    for taken in (0, 1, 5):
        updates = loader(random_corpus(100))
        list(islice(updates, taken))
        updates.close()
        updates.close()
    assert threading.active_count() == before


def test_rejects_impossible_options() -> None:
    corpus = random_corpus(10)
    small = r"a batch of 5; raise data\.batch_tokens"
    with loader(corpus, max_tokens=5) as updates, pytest.raises(UserError, match=small):
        next(updates)
    with pytest.raises(UserError, match="or more"):
        loader(corpus, update_tokens=0)
    with pytest.raises(UserError, match=r"rank 2 is not in 0\.\.1"):
        loader(corpus, rank=2, world_size=2)
    with pytest.raises(UserError, match="empty"):
        loader(random_corpus(0))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_packed_batches_are_alike_and_hold_every_sentence_once(world_size: int) -> None:
    rng = np.random.default_rng(3)
    targets = np.maximum(rng.lognormal(2.5, 0.6, 3_000).astype(np.int64), 1)
    sources = np.maximum(targets + rng.integers(-3, 4, 3_000), 1)
    limits = {"max_tokens": 900, "update_tokens": 2_000, "seed": 1}
    plan = plan_packed(sources, targets, Limits(**limits, epoch=0, world_size=world_size))
    batches = [batch for update in plan for batch in update]
    assert sorted(np.concatenate(batches).tolist()) == list(range(3_000))
    assert {len(update) for update in plan} == {3} if world_size != 2 else {4}
    assert max(map(len, batches)) - min(map(len, batches)) <= 2
    of_updates = [int(targets[np.concatenate(update)].sum()) for update in plan]
    assert max(of_updates) - min(of_updates) <= targets.max()
    shape = shape_of(plan, sources, targets)
    for batch in batches:
        assert len(batch) <= shape.rows
        assert (sources[batch] + 1).sum() <= shape.room.source
        assert targets[batch].sum() <= shape.room.target
    # The number of ranks changes the batches, but not the updates; the epoch changes both.
    alone = plan_packed(sources, targets, Limits(**limits, epoch=0))
    assert [set(np.concatenate(u)) for u in alone] == [set(np.concatenate(u)) for u in plan]
    other = plan_packed(sources, targets, Limits(**limits, epoch=1))
    assert [set(np.concatenate(u)) for u in other] != [set(np.concatenate(u)) for u in plan]


def test_packed_plans_of_few_sentences() -> None:
    lengths = np.array([3, 4])
    limits = {"max_tokens": 100, "seed": 1, "epoch": 0}
    assert len(plan_packed(lengths, lengths, Limits(update_tokens=1, **limits))) == 2
    assert (
        len(plan_packed(lengths, lengths, Limits(update_tokens=99, world_size=3, **limits))[0]) == 2
    )
    assert plan_packed(lengths[:0], lengths[:0], Limits(update_tokens=9, **limits)) == []


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("max_tokens", [400, 2_000])
def test_batches_of_a_band_are_alike_and_the_same_in_all_epochs(
    max_tokens: int, world_size: int
) -> None:
    corpus = random_corpus(700)
    sides = corpus.source_lengths, corpus.target_lengths
    limits: dict[str, Any] = {"max_tokens": max_tokens, "update_tokens": 1_000, "seed": 1}
    all_shapes, updates = set(), []
    for epoch in range(3):
        plan, shapes = plan_bands(*sides, Limits(**limits, epoch=epoch, world_size=world_size))
        assert sorted(i for update in plan for b in update for i in b) == list(range(700))
        assert len(plan) == round(sides[1].sum() / 1_000)
        for update, of_update in zip(plan, shapes, strict=True):
            assert len(update) % world_size == 0
            assert abs(sum(sides[1][b].sum() for b in update) - 1_000) < 150
            for batch, shape in zip(update, of_update, strict=True):
                assert shape.rows - len(batch) <= 2
                assert (sides[0][batch] + 1).max() <= shape.source
                assert (sides[0][batch] + 1).sum() <= shape.room.source
                assert sides[1][batch].max() <= shape.target
                assert sides[1][batch].sum() <= shape.room.target <= 1.1 * max_tokens + 256
                all_shapes.add(shape)
        updates.append([frozenset(np.concatenate(update).tolist()) for update in plan])
    assert 3 < len(all_shapes) <= plans.BANDS
    assert updates[0] != updates[1]
    alone, _ = plan_bands(*sides, Limits(**limits, epoch=2))
    assert [frozenset(np.concatenate(update).tolist()) for update in alone] == updates[2]
    assert plan_bands(sides[0][:0], sides[1][:0], Limits(**limits, epoch=0)) == ([], [])


@pytest.mark.parametrize("bands", [1, 2, 3, 6])
def test_bands_have_the_least_squares(bands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "BANDS", bands)
    for seed, n in enumerate((1, 2, 6, 9, 9, 9)):
        source = np.sort(np.random.default_rng(seed).integers(1, 9, n))
        same_targets = np.ones(n, np.int64)  # so that a batch is a sentence

        def area(cuts: tuple[int, ...], source: Any = source) -> int:
            return sum(len(part) * int(part[-1] + 1) ** 2 for part in np.split(source, cuts))

        found = plans._bands(np.arange(n), source, same_targets, n)
        assert np.concatenate([some for some, _ in found]).tolist() == list(range(n))
        assert [len(some) for some, _ in found] == [n_batches for _, n_batches in found]
        cuts = tuple(np.cumsum([n_batches for _, n_batches in found])[:-1].tolist())
        every = (c for k in range(min(bands, n)) for c in combinations(range(1, n), k))
        assert len(cuts) < bands
        assert area(cuts) == min(map(area, every))


def test_a_sentence_longer_than_a_batch_is_a_band() -> None:
    lengths = np.array([1, 1, 100, 1])
    plan, shapes = plan_bands(lengths, lengths, Limits(200, 20, seed=1, epoch=0, world_size=2))
    assert sorted(i for update in plan for b in update for i in b) == [0, 1, 2, 3]
    assert {shape.source for update in shapes for shape in update} == {2, 101}


def test_the_loader_gives_each_batch_the_shape_of_its_band() -> None:
    corpus, seen = random_corpus(300), set()
    options = {"packed": True, "in_bands": True, "update_tokens": 200, "max_tokens": 100}
    with loader(corpus, **options) as updates:
        first = list(islice(updates, 9))
    for update in first:
        assert sum(batch.n_target_tokens for batch in update.batches) == update.n_target_tokens
        for batch in update.batches:
            assert batch.room is not None
            assert (batch.source != PAD).sum() <= batch.room.source
            assert batch.source.shape[1] < 31 + 1
            seen.add((batch.source.shape, batch.room))
    assert len(seen) > 3
    with loader(corpus, 4, **options) as updates:
        assert all(same(a, b) for a, b in zip(first[4:], updates, strict=False))
