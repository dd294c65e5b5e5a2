"""Weights of another model to start from: what is taken, what is said of it, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.systems import System
from oaxe.text.manifest import SPLITS
from oaxe.text.prepare import prepare
from oaxe.training.settings import Settings
from oaxe.training.start import groups, take_over
from tests.models import micro
from tests.runs import OAXE, SMALL, make_data, same, settings_of, train_small

FROZEN = {"optim__lr": 0.0, "optim__warmup": 0, "train__steps": 1}


def weights_of(system: System) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in system.state_dict().items()}


def saved(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model/model.safetensors")


def started(printed: str) -> str:
    """The line that says what was taken over."""
    (line,) = [line for line in printed.splitlines() if "started from" in line]
    return line


@pytest.mark.parametrize(
    ("names", "among", "expected"),
    [
        ([], ["a"], []),
        (["a"], ["a", "b"], ["a"]),
        (["a.x", "a.y"], ["a.x", "a.y", "b"], ["a.*"]),
        (["a.x", "a.y.z"], ["a.x", "a.y.z", "a.y.w"], ["a.x", "a.y.z"]),
        (["l.1.x", "l.1.y"], ["l.1.x", "l.1.y", "l.11.x", "l.0.x"], ["l.1.*"]),
        (["b.x", "a"], ["a", "b.x", "bb.x"], ["b.*", "a"]),
    ],
)
def test_groups_of_names(names: list[str], among: list[str], expected: list[str]) -> None:
    assert groups(names, among) == expected


def test_takes_everything_of_the_same_architecture() -> None:
    model, other = micro(options={"loss": "oaxe"}), micro()
    theirs = weights_of(other)
    start = take_over(model, other)
    assert same(model.state_dict(), theirs)
    assert same(other.state_dict(), theirs)
    assert str(start) == f"all {len(theirs)} tensors"
    assert not start.is_doubtful


@pytest.mark.parametrize("system", ["cmlm", "glat", "ctc"])
def test_takes_what_an_autoregressive_model_has(system: str) -> None:
    model, teacher = micro(system), micro("transformer")
    own, theirs = weights_of(model), weights_of(teacher)
    start = take_over(model, teacher)
    new = [n for n in own if n.startswith("length.") or (system == "ctc" and ".target_pos" in n)]
    for name, weights in model.state_dict().items():
        if system != "ctc" and name == "transformer.source_positions.weight":
            assert weights[1:].equal(theirs[name][:-1])  # LENGTH comes before the first word
        else:
            assert weights.equal((own if name in new else theirs)[name]), name
    assert len(new) == start.all_tensors - start.tensors == (1 if system == "ctc" else 2)
    n_new, n_all = (sum(own[n].numel() for n in names) for names in (new, own))
    assert start.share == pytest.approx(1 - n_new / n_all)
    assert not start.is_doubtful
    group = "transformer.target_positions.*" if system == "ctc" else "length.*"
    assert f" % of the weights; new: {group}; model.system: transformer there" in str(start)


@pytest.mark.parametrize(("here", "there"), [(9, 12), (12, 9)])
def test_takes_the_positions_that_both_have(here: int, there: int) -> None:
    model, other = (micro("transformer", max_length=n) for n in (here, there))
    own, theirs = weights_of(model), weights_of(other)
    start, found = take_over(model, other), model.state_dict()
    for side in ("source", "target"):
        name, common = f"transformer.{side}_positions.weight", min(here, there) + 2
        assert len(found[name]) == here + 2
        assert found[name][:common].equal(theirs[name][:common])
        assert found[name][common:].equal(own[name][common:])
        del own[name], theirs[name]
    assert all(found[name].equal(theirs[name]) for name in own)
    assert start.tensors == start.all_tensors
    assert (start.share < 1) == (here > there)
    text = "transformer.source_positions.weight[11:], transformer.target_positions.weight[11:]"
    assert (text in str(start)) == (here > there)
    assert "model.max_length" in str(start)


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])
def test_takes_the_layers_that_both_have(here: int, there: int) -> None:
    model, other = (micro("transformer", decoder_layers=n) for n in (here, there))
    own, theirs = weights_of(model), weights_of(other)
    start = take_over(model, other)
    for name, weights in model.state_dict().items():
        assert weights.equal(theirs[name] if name in theirs else own[name]), name
    assert start.new == ["transformer.decoder.1.*"] * (here > there)
    assert start.is_doubtful == (here > there)  # the same system: perhaps of a wrong size
    assert f"model.decoder_layers: {there} there, {here} here" in str(start)


def test_a_start_with_less_than_half_or_another_use_of_the_weights_is_doubtful() -> None:
    def start(system: str = "cmlm", norm: str = "post", **architecture: Any) -> Any:
        return take_over(micro(), micro(system, norm, **architecture))

    assert not start("transformer").is_doubtful
    assert not start("transformer", ffn=32).is_doubtful
    little = start("transformer", ffn=32, decoder_layers=0)
    assert 0 < little.share < 0.5
    assert little.is_doubtful
    assert start("transformer", "pre").is_doubtful
    assert start("transformer", heads=2).is_doubtful


def test_a_long_list_is_cut() -> None:
    start = take_over(micro(decoder_layers=9), micro("transformer", decoder_layers=1))
    assert len(start.new) == 9  # eight layers, and the lengths
    shown = ", ".join(f"transformer.decoder.{n}.*" for n in range(1, 7))
    assert f"; new: {shown} and 3 more; model.decoder_layers: 1 there" in str(start)


def test_nothing_fits_a_model_of_other_dimensions() -> None:
    """Not even the biases whose size is the same."""
    model, other = micro(), micro(dim=16)
    own = weights_of(model)
    start = take_over(model, other)
    assert same(model.state_dict(), own)
    assert (start.share, start.tensors) == (0.0, 0)


def test_the_same_weights_to_the_last_bit(data: Path, tmp_path: Path) -> None:
    """XE, then OaXE: the common case."""
    first, second = tmp_path / "first", tmp_path / "second"
    train_small(settings_of(data, first, train__steps=4))
    changes = {**OAXE, **FROZEN, "train__init_from": str(first)}
    _, printed = train_small(settings_of(data, second, **changes))
    assert started(printed) == f"started from {first}: all {len(saved(first))} tensors"
    assert same(saved(first), saved(second))
    first.rename(tmp_path / "gone")  # only the beginning needs it
    result, printed = train_small(settings_of(data, second, **changes | {"train__steps": 2}))
    assert result["step"] == 2
    assert "started from" not in printed


@pytest.mark.parametrize("system", ["cmlm", "glat", "ctc"])
def test_a_run_from_an_autoregressive_model(system: str, data: Path, tmp_path: Path) -> None:
    """What the teacher lacks is as random as without it."""
    teacher, random, student = (tmp_path / name for name in ("teacher", "random", "student"))
    train_small(settings_of(data, teacher, model__system="transformer", train__steps=4))
    own = {"model__system": system, **FROZEN}
    train_small(settings_of(data, random, **own))
    _, printed = train_small(settings_of(data, student, **own, train__init_from=str(teacher)))
    fresh = {"ctc": {"transformer.target_positions.weight"}}.get(
        system, {"length.output.weight", "length.output.bias"}
    )
    moved = "transformer.source_positions.weight"
    for name, weights in saved(student).items():
        if name == moved and system != "ctc":
            assert weights[1:].equal(saved(teacher)[name][:-1])
        else:
            assert weights.equal(saved(random if name in fresh else teacher)[name]), name
    n = len(saved(random))
    assert len(saved(student)) == n
    assert started(printed).startswith(f"started from {teacher}: {n - len(fresh)} of {n} tensors, ")
    assert started(printed).endswith(f"model.system: transformer there, {system} here")


def test_a_run_from_a_model_of_another_size(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more layers, perhaps by mistake: it warns. Of other dimensions: nothing can be taken."""
    monkeypatch.setitem(SIZES, "small", {**SMALL, "decoder_layers": 2})
    monkeypatch.setitem(SIZES, "base", {**SMALL, "dim": 8})
    there = tmp_path / "there"
    train_small(settings_of(data, there, train__steps=1))
    start = {"train__init_from": str(there), **OAXE, "train__steps": 1}
    _, printed = train_small(settings_of(data, tmp_path / "deeper", **start, model__size="small"))
    line = started(printed)
    assert line.startswith(f"warning: started from {there}: ")
    assert line.endswith("; new: transformer.decoder.1.*; model.size: tiny there, small here")
    with pytest.raises(UserError) as error:
        train_small(settings_of(data, tmp_path / "narrow", **start, model__size="base"))
    assert str(error.value).splitlines() == [
        f"train.init_from {there} has no weights that fit this model:",
        "  model.size: tiny there, base here",
        "Give a model of the same size, change the settings of this run, or start from random "
        "weights: --set train.init_from=null",
    ]
    assert not (tmp_path / "narrow").exists()


def test_folders_that_are_no_start(data: Path, tmp_path: Path) -> None:
    def start_from(name: str, prepared: Path = data) -> None:
        settings = settings_of(prepared, tmp_path / "run", train__init_from=str(tmp_path / name))
        train_small(settings)

    with pytest.raises(UserError, match=r"is no folder; train that run.*--set train.init_from=nul"):
        start_from("nowhere")
    assert not (tmp_path / "run").exists()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished/config.yaml").touch()
    with pytest.raises(UserError, match="not finished"):
        start_from("unfinished")
    train_small(settings_of(data, tmp_path / "first", train__steps=1))
    with pytest.raises(UserError, match=r"other subwords.*--subwords"):
        start_from("first", make_data(tmp_path / "other", digits="01234"))


@pytest.mark.parametrize("system", ["cmlm", "language_model"])
def test_init_from_a_model_of_the_other_direction(system: str, data: Path, tmp_path: Path) -> None:
    own = {"model__system": system, "train__steps": 1}
    train_small(settings_of(data, tmp_path / "there", **own))
    start = {"train__init_from": str(tmp_path / "there"), **own}

    def turned(source: str, target: str) -> Settings:
        """On the same pairs from right to left, with the same subwords."""
        folder = tmp_path / f"{source}-{target}"
        pairs = {s: (data.parent / f"{s}.tgt", data.parent / f"{s}.src") for s in SPLITS[:2]}
        prepare(
            folder, source_language=source, target_language=target, train=pairs["train"],
            valid=pairs["valid"], subwords=data / "subwords.model",
        )  # fmt: skip
        return settings_of(folder, tmp_path / f"{source}-{target}-run", **start)

    into = r"\? to aa" if system == "language_model" else "bb to aa"
    with pytest.raises(
        UserError, match=rf"there translates aa to bb, but \S+/bb-aa is {into}; give"
    ):
        train_small(turned("bb", "aa"))
    assert not (tmp_path / "bb-aa-run/config.yaml").exists()
    if system == "language_model":  # which has only one language
        assert train_small(turned("cc", "bb"))[0]["step"] == 1
    assert train_small(turned("aa-AA", "bb"))[0]["step"] == 1  # a region is no other language
