"""Marks of tests that need a CUDA device."""

import pytest
import torch

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
