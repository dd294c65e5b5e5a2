import pytest
import torch
from hypothesis import settings

settings.register_profile("oaxe", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("oaxe")


@pytest.fixture(autouse=True)
def _same_numbers_every_run() -> None:
    torch.manual_seed(1)
