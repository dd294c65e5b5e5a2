"""What every system has, how one is found, and that a name in a file cannot cause an import."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from oaxe import systems
from oaxe.model.masking import IGNORED
from oaxe.support.config import build, to_mapping
from oaxe.support.errors import UserError
from oaxe.systems import Example, Paper, Progress, System, built_in, find
from oaxe.text.symbols import PAD
from tests.models import micro, random_batch

LM = {"lm": "folder", "lm_weight": 0.1, "samples": 4, "temperature": 0.5}
SHARE = {"length_penalty": 0.5, "length_share": 0.1}
CTC_DECODING = {"method": "beam", "bonus": 0.5, "beam": 7, "top_words": 3, **LM}

# Values that are not defaults, for each field of Options and of Decoding.
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cmlm": (
        {
            "loss": {"name": "oaxe", "truncation": 0.25},
            "label_smoothing": 0.2,
            "inputs": "partial-all",
            "length_weight": 0.5,
            "xe_weight": 0.3,
            "annealing": True,
            "annealing_c": 3.0,
            "annealing_lambda": 0.5,
        },
        {
            "length_candidates": 2,
            "repeats": "keep",
            "length_penalty": 0.5,
            "length_share": 0.1,
            "refine_steps": 3,
            "length_multiplier": 1.5,
            "score_merged": True,
        },
    ),
    "crf": (
        {"rank": 3, "beam": 5, "xe": 0.25, "label_smoothing": 0.2, "length_weight": 0.5},
        {"length_candidates": 2, "repeats": "forbid", **SHARE},
    ),
    "ctc": (
        {
            "upsample": 3,
            "objective": {"name": "ngrams", "n": 1},
            "weak_decoder": 0.5,
            "consistency": 0.2,
        },
        CTC_DECODING,
    ),
    "ctc_glat": (
        {
            "upsample": 3,
            "objective": {"name": "ngrams", "n": 1},
            "weak_decoder": 0.5,
            "consistency": 0.2,
            "start": 0.4,
            "end": 0.2,
        },
        CTC_DECODING,
    ),
    "dag": (
        {
            "vertices": 3,
            "start": 0.4,
            "end": 0.2,
            "objective": {"name": "ngrams", "n": 3},
            "weak_decoder": 0.5,
        },
        {"method": "lookahead", "length_penalty": 0.5, "beam": 7, "top_words": 3, **LM},
    ),
    "lanmt": (
        {"latent": 4, "free_nats": 0.5, "label_smoothing": 0.2, "length_weight": 0.5},
        {"refine_steps": 2, "repeats": "keep"},
    ),
    "dslp": ({"upsample": 3, "mixed": 0.5}, CTC_DECODING),
    "ddrs": ({"upsample": 3, "references": 2}, CTC_DECODING),
    "flowseq": (
        {
            "latent": 4,
            "flow_steps": 2,
            "warmup": 0.5,
            "word_dropout": 0.1,
            "label_smoothing": 0.2,
            "length_weight": 0.5,
        },
        {"length_candidates": 2, "repeats": "forbid", **SHARE},
    ),
    "hint": (
        {
            "teacher": "runs/at",
            "states": 0.5,
            "attention": 0.5,
            "student_above": 0.2,
            "teacher_below": 0.8,
            "label_smoothing": 0.2,
            "length_weight": 0.5,
        },
        {"length_candidates": 2, "repeats": "keep", **SHARE},
    ),
    "imputer": ({"upsample": 3, "shown": 0.5}, CTC_DECODING),
    "language_model": ({"label_smoothing": 0.0}, {}),
    "transformer": ({"label_smoothing": 0.2}, {"beam": 4, "length_penalty": 0.6, "max_ratio": 1.5}),
}


def training_batch(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Source with EOS, and a target of half as many words, without."""
    targets = random_batch(*(max(n // 2, 2) for n in lengths))
    return random_batch(*lengths), targets.masked_fill(targets < 7, PAD)


def progress_of(system: System, epoch: float = 0.0, epochs: float = math.inf) -> Progress:
    times = torch.tensor([epoch, epochs], dtype=torch.float64)
    return Progress(times[0], times[1], system.phase(epoch, epochs))


@pytest.mark.parametrize("name", built_in())
def test_every_system_has_its_parts(name: str) -> None:
    module = find(name)
    assert isinstance(module.PAPER, Paper)
    assert module.PAPER.title
    assert module.PAPER.url.startswith("https://")
    assert set(module.PAPER.bleu) <= {"raw", "distilled"}
    assert module.__doc__
    for part in (module.Options, module.Decoding):
        assert [field.name for field in dataclasses.fields(part)] == list(vars(part()))
        with pytest.raises(dataclasses.FrozenInstanceError):
            part().new = 1
    assert str(module.Decoding())
    assert issubclass(module.Model, System)
    model = micro(name)
    assert (model.name, model.decoding_type) == (name, module.Decoding)
    assert model.n_parameters == sum(p.numel() for p in model.parameters()) > 0
    assert model.device == torch.device("cpu")
    assert model.rows(module.Decoding()) >= 1
    assert bool(model.no_ncm) or model.translates
    for option, values in model.choices(module.Decoding()).items():
        assert len(values) > 2
        assert all(build(module.Decoding, {option: value}) for value in values)
        assert getattr(module.Decoding(), option) in values
    assert bool(model.choices(module.Decoding())) or not model.chooses_decoding


@pytest.mark.parametrize("name", OTHER)
def test_options_and_decoding_round_trip_through_yaml(name: str) -> None:
    module = find(name)
    for kind, other in zip((module.Options, module.Decoding), OTHER[name], strict=True):
        assert other.keys() == {field.name for field in dataclasses.fields(kind)}
        for content in ({}, other):
            value = build(kind, content)
            mapping = yaml.safe_load(yaml.safe_dump(to_mapping(value)))
            assert build(kind, mapping) == value
            assert json.loads(json.dumps(mapping)) == mapping  # as a saved model has them
        changed = {field: build(kind, {field: v}) for field, v in _alone(other).items()}
        assert all(value != kind() for value in changed.values())


def _alone(options: dict[str, Any]) -> dict[str, Any]:
    """Those that can be changed without the others."""
    return {name: value for name, value in options.items() if name != "annealing"}


@pytest.mark.parametrize("name", OTHER)
def test_a_description_builds_the_same_model(name: str) -> None:
    model = micro(name, "pre", options=OTHER[name][0])
    described = json.loads(json.dumps(model.description()))
    options = build(find(described["system"]).Options, described["options"])
    again = systems.build(described["system"], described["architecture"], options)
    assert again.options == model.options
    again.load_state_dict(model.state_dict())


# Options that change what is learned.
LEARNING: list[tuple[str, dict[str, Any]]] = [
    ("ctc", {"objective": "ngrams"}),
    ("ctc_glat", {"objective": "ngrams"}),
    ("ctc", {"objective": "coco"}),
    ("ctc", {"weak_decoder": 0.5}),
    ("dag", {"weak_decoder": 0.5}),
    ("ctc_glat", {"consistency": 0.5}),
    ("dag", {"objective": "ngrams"}),
]


@pytest.mark.parametrize(("name", "options"), LEARNING)
def test_training_step_of_options(name: str, options: dict[str, Any]) -> None:
    check_training_step(micro(name, "pre", options=options, dropout=0.0))


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("name", built_in())
def test_training_step(name: str, norm: str) -> None:
    check_training_step(micro(name, norm, dropout=0.0))


def check_training_step(model: System) -> None:
    """Statistics are sums and numbers; every weight that takes part has a gradient."""
    model.train()
    source, target = training_batch(12, 6, 9)
    example = model.example(source, target)
    assert example.length.tolist() == (target != PAD).sum(1).tolist()
    assert int(example.n_words) == int((example.target != IGNORED).sum()) > 0
    loss, statistics = model(example, progress_of(model))
    assert loss.shape == ()
    total, number = statistics["loss"]
    assert 0 < int(number) <= int(example.n_words)
    assert 0 < total.item() <= loss.item() + 1e-3
    for pair in statistics.values():
        assert [tensor.shape for tensor in pair] == [(), ()]
    loss.backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert missing == []


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in OTHER), *LEARNING])
def test_padding_and_batch_mates_change_no_loss(name: str, options: dict[str, Any]) -> None:
    """The loss of a batch is the sum of those of its sentences: a mean of means would show."""
    model = micro(name, options={"inputs": "unobserved"} if name == "cmlm" else options)
    source, target = training_batch(12, 6, 9, 4)
    whole, _ = model(model.example(source, target), progress_of(model))
    parts = []
    for row in range(len(source)):
        alone = (t[row : row + 1, : int((t[row] != PAD).sum())] for t in (source, target))
        parts.append(model(model.example(*alone), progress_of(model))[0].item())
    assert whole.item() == pytest.approx(sum(parts), rel=1e-5)


def test_progress_share() -> None:
    def share(epoch: float, epochs: float) -> float:
        return Progress(*torch.tensor([epoch, epochs], dtype=torch.float64)).share.item()

    assert share(3.0, 12.0) == 0.25
    assert share(13.0, 12.0) == 1.0
    assert share(13.0, math.inf) == 0.0


def test_example_of_a_batch() -> None:
    source, inputs = torch.tensor([[8, 2]]), torch.tensor([[4, 4, PAD]])
    wanted = torch.tensor([[9, IGNORED, IGNORED]])
    example = Example.of(source, inputs, wanted, torch.tensor([[9, 8, PAD]]))
    assert example.mask.tolist() == [[True, True, False]]
    assert (example.length.tolist(), int(example.n_words)) == ([2], 1)


def test_initial_weights_come_from_the_random_seed() -> None:
    def drawn(seed: int) -> System:
        torch.manual_seed(seed)
        architecture = micro().architecture | {"vocab_size": 500, "dim": 64}
        torch.manual_seed(seed)
        return systems.build("cmlm", architecture, find("cmlm").Options())

    one, again, other = (dict(drawn(seed).named_parameters()) for seed in (1, 1, 2))
    assert all(one[name].equal(again[name]) for name in one)
    assert not one["length.output.weight"].equal(other["length.output.weight"])
    for name, weight in one.items():
        if weight.dim() == 2:
            assert weight.std().item() == pytest.approx(0.02, rel=0.1), name
        else:
            assert (weight == (1 if "norm.weight" in name else 0)).all(), name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cmlmm", "cmlm"), ("Transformer", "transformer"), ("gan", ""), ("../cmlm", "cmlm"), ("", "")],
)
def test_an_unknown_system_is_an_error_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(UserError) as error:
        find(name)
    hint = f"; did you mean {nearest}?" if nearest else ""
    assert f"there is no system {name!r}{hint}; there are {', '.join(built_in())};" in str(
        error.value
    )
    assert "must be importable from here" in str(error.value)


def test_a_module_that_is_no_system_says_what_it_lacks(current_folder: Path) -> None:
    (current_folder / "half_a_system.py").write_text("PAPER = Options = None\n")
    with pytest.raises(UserError, match=r"half_a_system.py is no system: it lacks Decoding, Model"):
        find("half_a_system")


def test_a_module_that_cannot_be_imported_shows_its_own_error(current_folder: Path) -> None:
    (current_folder / "needs_more.py").write_text("import a_module_that_is_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_installed"):
        find("needs_more")


def test_only_trusted_modules_are_imported(current_folder: Path) -> None:
    (current_folder / "marks.py").write_text("from pathlib import Path\nPath('marker').touch()\n")
    (current_folder / "package").mkdir()
    (current_folder / "package/__init__.py").write_text((current_folder / "marks.py").read_text())
    (current_folder / "package/system.py").touch()
    for trusted in ((), ["cmlm", "mark", "marks.py", "package"]):
        for name in ("marks", "package.system"):
            with pytest.raises(UserError, match=rf"{name}' is not part of oaxe.*--system {name}, "):
                find(name, trusted)
    assert not (current_folder / "marker").exists()
    assert find("cmlm", ()) is find("cmlm")  # those of the package need no trust
    for name in ("marks", "package.system"):
        with pytest.raises(UserError, match="is no system"):
            find(name, [name])
        (current_folder / "marker").unlink()


def test_section_of_a_module() -> None:
    assert systems.section("cmlm") == "cmlm"
    assert systems.section("my_package.my_module") == "my_module"
