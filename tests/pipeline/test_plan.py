"""The arithmetic of plans, what they know of the text, and the speed that they are made with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from oaxe.pipeline import recipes
from oaxe.pipeline.plan import (
    MOST_EPOCHS,
    SHARES,
    Asked,
    Plan,
    Training,
    ask,
    check_updates,
    doubts,
    find_plan,
    make_plan,
    plan_table,
    save_plan,
)
from oaxe.pipeline.probe import random_corpus, seconds_an_update
from oaxe.pipeline.recipes import GLANCING, Machine
from oaxe.pipeline.survey import hold_out, survey
from oaxe.support.errors import UserError
from oaxe.text.lines import Pair, read_lines
from oaxe.text.prepare import prepare
from oaxe.training.settings import build_settings

LINE = "ein Satz mit acht Wörtern und einem Punkt"  # 41 characters: about 10 subwords


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    files = tmp_path / "a.en", tmp_path / "a.de"
    for path in files:
        path.write_text("".join(f"{LINE} {path.suffix[1:]}{i}\n" for i in range(1_000)))
    return files


def asked_for(pair: Pair, **changes: Any) -> Asked:
    how: dict[str, Any] = {"minutes": 100.0, "device": "cpu"} | changes
    return ask("en", "de", {"train": pair, "valid": None, "test": None}, **how)


def taking(teacher: float, one_pass: float, bigrams: float) -> Any:
    """A probe that finds these seconds."""

    def probe(content: Mapping[str, Any], vocab: int, lengths: Sequence[Any], device: str) -> float:
        system = content["model"]["system"]
        if system == "transformer":
            return teacher
        return bigrams if system in content else one_pass

    return probe


def test_minutes_become_updates(pair: Pair) -> None:
    plan = make_plan(asked_for(pair), taking(2.7, 9.6, 12.0))
    assert plan.teacher.updates == 0.27 * 100 * 60 / 2.7
    assert plan.teacher.update_tokens == 1_024
    assert plan.one_pass.updates == pytest.approx(3 * 0.48 * 100 * 60 / 9.6, abs=1)
    assert plan.one_pass.update_tokens == 1_024  # smaller ones, or there would be 300 of them
    assert plan.bigrams.updates == 30  # the least, and not smaller ones
    assert plan.bigrams.update_tokens == 3_072
    assert plan.minutes == pytest.approx(100, abs=0.2)
    assert (plan.pairs, plan.held_out, plan.size) == (1_000, 50, "tiny")
    table = plan_table(plan)
    assert "1,000 pairs, 50 of them held out" in table.title
    assert [row[1] for row in table.rows] == ["600", "900", "30", "", ""]


def test_few_updates_are_told_with_what_would_be_enough(pair: Pair) -> None:
    plan = make_plan(asked_for(pair), taking(2.7, 9.6, 12.0))
    assert doubts(plan).startswith("expect little: the teacher has 600 updates")
    assert doubts(plan).endswith("give --minutes 167")
    assert doubts(replace(plan, teacher=Training(1_000, 1_024, 2.7))) == ""
    little_text = make_plan(asked_for(pair), taking(1e-3, 1e-3, 1e-3))
    assert doubts(little_text).endswith("give more text")


def test_fine_tuning_and_distillation_are_optional(pair: Pair) -> None:
    plan = make_plan(asked_for(pair, distil=True), taking(2.7, 9.6, 300.0))
    assert plan.bigrams.updates == 0
    assert plan.teacher.updates == int(0.22 * 6000 / 2.7)
    rows = [row[0] for row in plan_table(plan).rows]
    assert "fine-tuning for bigrams" not in rows
    assert "distillation (not limited)" in rows


def test_little_text_is_not_read_for_ever(pair: Pair) -> None:
    plan = make_plan(asked_for(pair), taking(1e-3, 1e-3, 1e-3))
    tokens = sum(target for _, target in survey(pair).lengths)
    assert plan.teacher.updates == 70 * tokens // 1_024
    assert plan.one_pass.updates == 180 * tokens // 3_072
    assert plan.minutes < 30


def test_too_few_minutes(pair: Pair) -> None:
    with pytest.raises(UserError, match=r"one-pass model gets 30 of the 50 .* --minutes 167 or"):
        make_plan(asked_for(pair), taking(1.0, 288.0, 1.0))


@pytest.mark.parametrize(
    ("pairs", "device", "size", "vocab"),
    [(1_000, "cpu", "tiny", 4_000), (29_000, "cpu", "tiny", 4_000),
     (300_000, "cpu", "tiny", 8_000), (29_000, "cuda", "small", 8_000),
     (300_000, "cuda", "base", 16_000), (5_000_000, "cuda", "base", 32_000)],
)  # fmt: skip
def test_sizes(pair: Pair, pairs: int, device: str, size: str, vocab: int) -> None:
    from oaxe.pipeline.plan import choose_sizes

    asked = replace(asked_for(pair), device=device)
    found = replace(survey(pair), pairs=pairs, most_subwords=10**6)
    assert choose_sizes(asked, found) == (size, vocab)
    assert choose_sizes(replace(asked, size="big", vocab_size=77), found) == ("big", 77)


def test_plans_are_kept(pair: Pair, tmp_path: Path) -> None:
    out, asked = tmp_path / "out", asked_for(pair)
    assert find_plan(out, asked) is None
    plan = make_plan(asked, taking(1.0, 1.0, 1.0))
    save_plan(out, plan)
    assert find_plan(out, asked) == plan
    with pytest.raises(UserError, match="system: ctc_glat there, dag here"):
        find_plan(out, asked_for(pair, system="dag"))


@pytest.mark.parametrize("system", GLANCING)
@pytest.mark.parametrize("size", ["tiny", "base"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_recipes_are_settings(system: str, size: str, device: str) -> None:
    machine = Machine(device, size, 1_000, 100)
    for content in (
        recipes.teacher(machine, 50),
        recipes.one_pass(machine, 5_000, system),
        recipes.bigrams(machine, 40, system),
    ):
        content["data"]["folder"] = content["run"] = "x"
        settings = build_settings(content)
        assert settings.optim.warmup < settings.train.steps / 5
        assert 0 < settings.validation.every <= settings.train.steps


@pytest.mark.parametrize("recipe", ["teacher", "one_pass", "bigrams"])
def test_the_speed_of_updates_is_measured(recipe: str) -> None:
    system = () if recipe == "teacher" else ("ctc_glat",)
    content = getattr(recipes, recipe)(Machine("cpu", "tiny", 1_000, 100), 100, *system)
    content["data"]["update_tokens"] = 64
    assert 0 < seconds_an_update(content, 100, [(5, 7), (4, 2)], "cpu") < 5


def test_random_text_has_the_lengths_of_the_text() -> None:
    corpus = random_corpus([(5, 7), (4, 900)], 50, max_length=20, tokens=100)
    assert corpus.source_lengths.tolist() == [5, 4] * 4
    assert corpus.target_lengths.tolist() == [7, 20] * 4


def test_a_vocabulary_of_the_surveyed_size_can_be_learned(pair: Pair, tmp_path: Path) -> None:
    for text in ("a b c\n" * 30, "don't 12-3 Foo. Bar, foo!\n" * 30, pair[0].read_text()):
        files = tmp_path / "t.en", tmp_path / "t.de"
        for path in files:
            path.write_text(text)
        size = survey(files).most_subwords
        found = prepare(
            tmp_path / "data", source_language="en", target_language="de", train=files,
            vocab_size=size, max_length=None, overwrite=True,
        )  # fmt: skip
        assert found.vocab_size == size


def test_pairs_are_held_out(pair: Pair, tmp_path: Path) -> None:
    lines = pair[0].read_text().split("\n")[:-1]
    lines[0] = lines[10]  # which is held out: the 11th of every 20
    pair[0].write_text("\n".join(lines) + "\n")
    pair[1].write_text("\n".join(lines) + "\n")
    hold_out(tmp_path / "text", pair, 1_000)
    train, valid = (read_lines(tmp_path / "text" / f"{s}.source") for s in ("train", "valid"))
    assert valid == lines[10::20]
    assert len(train) == 1_000 - 50 - 1
    assert set(train).isdisjoint(valid)
    assert read_lines(tmp_path / "text" / "train.target") == train


def test_problems_are_named(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--system must be one of ctc_glat, dag, got dga"):
        asked_for(pair, system="dga")
    with pytest.raises(UserError, match=r"--size must be one of tiny, .* did you mean small"):
        asked_for(pair, size="smal")
    with pytest.raises(UserError, match=r"cannot read .*missing"):
        asked_for((pair[0], tmp_path / "missing"))
    pair[1].write_text("one line\n")
    with pytest.raises(UserError, match=r"1,000 lines, .* has 1"):
        make_plan(asked_for(pair), taking(1, 1, 1))
    few = tmp_path / "few.en", tmp_path / "few.de"
    for path in few:
        path.write_text(f"{LINE}\n" * 19)
    with pytest.raises(UserError, match="of 19 training pairs none can be held out"):
        hold_out(tmp_path / "text", few, 19)


def test_a_damaged_plan_is_no_traceback(pair: Pair, tmp_path: Path) -> None:
    out, asked = tmp_path / "out", asked_for(pair)
    save_plan(out, make_plan(asked, taking(1.0, 1.0, 1.0)))
    path = out / "plan.yaml"
    path.write_text(path.read_text().replace("vocab_size", "vocab"))
    with pytest.raises(UserError, match="vocab is not an option"):
        find_plan(out, asked)


def test_a_plan_knows_its_machine(pair: Pair) -> None:
    plan: Plan = make_plan(asked_for(pair), taking(1.0, 1.0, 1.0))
    assert plan.machine == Machine("cpu", "tiny", 1_000, 2_000)


@pytest.mark.parametrize(("seconds", "needed"), [(0.39, 2), (16.0, 50), (0.33, 2), (17.0, 50)])
def test_too_few_minutes_are_told_with_the_number_that_is_enough(
    seconds: float, needed: int
) -> None:
    asked = mock.Mock(minutes=1.0, shares=SHARES)
    updates = int(60 * SHARES["teacher"] / seconds)
    with pytest.raises(UserError, match=rf"the teacher model gets {updates} of ") as caught:
        check_updates("teacher", Training(updates, 1024, seconds), asked)
    assert f"; give --minutes {needed} or more" in str(caught.value)
    check_updates("teacher", Training(50, 1024, seconds), asked)


def test_too_little_text_is_no_matter_of_minutes() -> None:
    asked = mock.Mock(minutes=30.0, shares=SHARES)
    for name, epochs in MOST_EPOCHS.items():
        with pytest.raises(UserError, match=rf"{epochs} epochs of it make 1 of .*more text"):
            check_updates(name, Training(1, 1024, 0.7), asked)
