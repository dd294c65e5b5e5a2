"""A system outside the package: it trains, resumes and is loaded, but only where it is named."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from oaxe.decoding.translator import Translator
from oaxe.model.transformer import SIZES
from oaxe.support.errors import UserError
from oaxe.training.run import load_translator, train
from oaxe.training.settings import Settings, load_settings
from tests.decoding.samples import check_same
from tests.runs import SMALL, final_tensors, metrics, same, settings_of, train_small
from tests.systems.conftest import forget_modules

EXAMPLE = Path(__file__).parents[2] / "examples/custom_system"
MARKER = Path("marker")  # in the current folder: the module was imported
SENTENCES = ["1 2 3", "4 5", "9 8 7 6"]


@pytest.fixture
def module(current_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder that leaves a marker when it is imported."""
    code = (EXAMPLE / "bag_of_words.py").read_text()
    mark = f"\n\n__import__('pathlib').Path({MARKER.name!r}).touch()\n"
    (current_folder / "my_system.py").write_text(code + mark)
    monkeypatch.setitem(SIZES, "tiny", SMALL)  # as for train_small
    return "my_system"


def forget(folder: Path) -> None:
    forget_modules(folder)
    MARKER.unlink(missing_ok=True)


def settings(data: Path, run: str = "run", **changes: Any) -> Settings:
    own = {"model__system": "my_system", "train__steps": 8, "validation__every": 4}
    return settings_of(data, Path.cwd() / run, **own | changes)


def test_trains_resumes_is_saved_and_loaded(module: str, data: Path, current_folder: Path) -> None:
    train_small(settings(data, "whole"))
    assert MARKER.exists()
    train_small(settings(data, "continued", train__steps=5))  # between two lines of the log
    forget(current_folder)
    _, printed = train_small(settings(data, "continued"))
    assert "resumed from" in printed
    assert same(final_tensors(Path("continued")), final_tensors(Path("whole")))
    whole, continued = (
        [record for record in metrics(Path(run)) if record["what"] == "train"]
        for run in ("whole", "continued")
    )
    assert continued == whole
    assert all(record["bag"] > 0 for record in whole)  # its own statistic
    forget(current_folder)
    ours = Translator.from_pretrained("whole", systems=[module])
    assert ours.system.name == module
    assert ours.system.options.weight == 0.5
    assert ours.decoding == {"length_candidates": 3}
    ours.save_pretrained("copy")
    again = Translator.from_pretrained("copy", systems=[module])
    check_same(again.translate_scored(SENTENCES), ours.translate_scored(SENTENCES))


def test_is_not_imported_unless_it_is_named(module: str, data: Path, current_folder: Path) -> None:
    """Not by a saved model, a run, its checkpoints or weights, nor by the start of another."""
    train_small(settings(data))
    shutil.copytree("run/model", "saved")
    best = next(Path("run/best").iterdir())
    newest = next(Path("run/checkpoints").iterdir())
    models = ["run", "saved", "saved/model.safetensors", str(best), str(newest)]
    forget(current_folder)
    for model in models:
        for systems in ((), ["cmlm"], ["other"]):
            with pytest.raises(
                UserError, match=r"'my_system' is not part of oaxe.*--system my_sys"
            ):
                load_translator(model, "cpu", systems)
    for start in ("run", "saved"):
        with pytest.raises(UserError, match="'my_system' is not part of oaxe"):
            train_small(settings_of(data, Path("cmlm"), train__init_from=start))
        assert not Path("cmlm").exists()
    with pytest.raises(UserError, match=r"cannot continue; choose another folder.*\n.*'my_system'"):
        train_small(settings_of(data, Path("run")))
    assert not MARKER.exists()
    expected = load_translator("run", "cpu", [module]).translate(SENTENCES)
    assert MARKER.exists()
    for model in models:
        forget(current_folder)
        found = load_translator(model, "cpu", [module]).translate(SENTENCES)
        assert len(found) == len(expected)
    assert load_translator("saved", "cpu", [module]).translate(SENTENCES) == expected


def test_starts_from_its_own_system_and_from_what_fits_of_another(
    module: str, data: Path, current_folder: Path
) -> None:
    train_small(settings(data, "first"))
    frozen = {"optim__lr": 0.0, "optim__warmup": 0, "train__steps": 1}
    train_small(settings(data, "second", train__init_from="first", **frozen))
    first, second = (
        Translator.from_pretrained(run, systems=[module]).system.state_dict()
        for run in ("first", "second")
    )
    assert same(first, second)
    train_small(settings_of(data, Path("other"), model__system="transformer", train__steps=1))
    _, printed = train_small(settings(data, "third", train__init_from="other", **frozen))
    assert "new: length.*; model.system: transformer there, my_system here" in printed
    other, third = (
        Translator.from_pretrained(run, systems=[module]).system.state_dict()
        for run in ("other", "third")
    )
    table = "transformer.source_positions.weight"
    moved = other.pop(table)  # by one: LENGTH stands in front of the source
    assert third[table][1:].equal(moved[:-1])
    assert all(third[name].equal(weights) for name, weights in other.items())


def test_another_system_starts_from_it_where_it_is_named(
    module: str, data: Path, current_folder: Path
) -> None:
    """Its model has the weights of a CMLM, by name and shape."""
    train_small(settings(data, "first", train__steps=1))
    forget(current_folder)
    frozen = {"optim__lr": 0.0, "optim__warmup": 0, "train__steps": 1}
    second = settings_of(data, Path("second"), train__init_from="first", **frozen)
    with pytest.raises(UserError, match=f"'{module}' is not part of oaxe"):
        train_small(second)
    assert not MARKER.exists()
    train(second, Console(quiet=True), systems=[module])
    first, own = (
        Translator.from_pretrained(run, systems=[module]).system.state_dict()
        for run in ("first", "second")
    )
    assert same(first, own)


def test_a_name_that_another_section_has_is_refused(data: Path, current_folder: Path) -> None:
    (current_folder / "my_package").mkdir()
    shutil.copy(EXAMPLE / "bag_of_words.py", "my_package/train.py")
    with pytest.raises(UserError, match="called train, which has another meaning; rename the mod"):
        settings(data, model__system="my_package.train")


def test_a_step_without_a_statistic_of_the_loss_is_refused(
    module: str, data: Path, current_folder: Path
) -> None:
    path = current_folder / "my_system.py"
    path.write_text(path.read_text().replace('"loss": (words', '"words": (words'))
    with pytest.raises(UserError, match='the system my_system reports no statistic "loss"'):
        train_small(settings(data))


def test_its_options_are_checked_as_strictly(module: str, data: Path) -> None:
    with pytest.raises(UserError) as error:
        settings(data, my_system__wight=1.0, decoding__length_candidates=0)
    assert "my_system.wight is not an option; did you mean my_system.weight?" in str(error.value)
    assert "decoding.length_candidates must be at least 1, got 0" in str(error.value)


def test_the_example_is_a_configuration(
    current_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    found = load_settings(Path("config.yaml"))
    assert found.model.system == "bag_of_words"
    assert (
        found.options.weight
        == yaml.safe_load(Path("config.yaml").read_text())["bag_of_words"]["weight"]
    )
    forget_modules(EXAMPLE)


def test_the_last_line_names_the_module(module: str, data: Path) -> None:
    _, printed = train_small(settings(data))
    assert printed.rstrip().endswith(f"--system {module}")


@pytest.mark.parametrize("name", ["", ".hidden", "not a module"])
def test_rejects_names_that_are_no_modules(name: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no system"):
        settings_of(data, tmp_path / "run", model__system=name)
