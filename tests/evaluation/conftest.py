"""Models of random weights and a test set."""

from pathlib import Path

import pytest
import torch

from oaxe.text.subwords import Subwords, train_subwords
from tests.evaluation.samples import SOURCES, translator, write


@pytest.fixture(scope="package")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    path = tmp_path_factory.mktemp("subwords") / "subwords.model"
    return train_subwords([line for line in SOURCES if line], path, 60)


@pytest.fixture(scope="package")
def folder(subwords: Subwords, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of each system, source.txt and reference.txt."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models")
    for system in ("cmlm", "transformer", "ctc", "language_model"):
        translator(subwords, system).save_pretrained(folder / system)
    write(folder / "source.txt", SOURCES)
    write(folder / "reference.txt", [line or "rain" for line in SOURCES[::-1]])
    return folder
