"""Subwords of another prepared folder must never be used to train."""

import shutil
from pathlib import Path

import pytest

from oaxe.support.errors import UserError
from oaxe.text.manifest import read_manifest
from tests.runs import make_data, settings_of, train_small


def test_training_refuses_subwords_of_another_folder(tmp_path: Path) -> None:
    one = make_data(tmp_path / "one", pairs=40)
    two = make_data(tmp_path / "two", pairs=40, digits="abcdefghij")
    assert read_manifest(one).vocab_size == read_manifest(two).vocab_size
    shutil.copy(two / "subwords.model", one / "subwords.model")
    run = tmp_path / "run"
    message = r"one/data/subwords\.model is damaged: .* instead of .*; run 'oaxe prepare' again"
    with pytest.raises(UserError, match=message):
        train_small(settings_of(one, run))
    assert not run.exists()  # nothing began


def test_resuming_refuses_subwords_of_another_folder(tmp_path: Path) -> None:
    one = make_data(tmp_path / "one", pairs=40)
    two = make_data(tmp_path / "two", pairs=40, digits="abcdefghij")
    train_small(settings_of(one, tmp_path / "run", train__steps=4))
    shutil.copy(two / "subwords.model", one / "subwords.model")
    with pytest.raises(UserError, match=r"subwords\.model is damaged"):
        train_small(settings_of(one, tmp_path / "run", train__steps=8))
    begun = settings_of(two, tmp_path / "other", train__init_from=str(tmp_path / "run"))
    with pytest.raises(UserError, match="was trained with other subwords than"):
        train_small(begun)
    assert not (tmp_path / "other").exists()
