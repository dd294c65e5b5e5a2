"""Triton kernels, imported when a CUDA tensor first needs one: the model works without Triton."""

import oaxe.losses.kernels  # noqa: F401 (ImportError where there is no GPU)
