from pathlib import Path

import pytest

from oaxe.text.subwords import Subwords, train_subwords
from tests.decoding.samples import SENTENCES


@pytest.fixture(scope="session")
def subwords(tmp_path_factory: pytest.TempPathFactory) -> Subwords:
    path: Path = tmp_path_factory.mktemp("subwords") / "subwords.model"
    return train_subwords([s for s in SENTENCES if s.strip()], path, 60)
