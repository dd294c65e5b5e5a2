import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch

from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton: kernels run on the CPU then

from hypothesis import settings

torch.set_num_threads(1)  # the models of these tests are small, and their cores often shared
settings.register_profile("oaxe", deadline=None, max_examples=60, derandomize=True)
settings.register_profile(  # tests/campaign.py
    "campaign",
    settings.get_profile("oaxe"),
    max_examples=60 * int(os.environ.get("OAXE_ROUNDS", "1")),
    derandomize=False,  # others every time
    database=None,
    print_blob=True,
)
settings.load_profile("oaxe")


@pytest.fixture(autouse=True)
def _same_numbers_every_run() -> None:
    torch.manual_seed(1)
    if torch.cuda.is_available():  # costs that were not finite, in a test before this one
        from oaxe.losses.assignment import forget_costs

        forget_costs()


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of digit strings, for tests that only read it."""
    from tests.runs import make_data  # slow to import

    return make_data(tmp_path_factory.mktemp("digits"))
