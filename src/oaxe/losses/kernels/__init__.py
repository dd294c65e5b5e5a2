"""Triton kernels, imported when a CUDA tensor first needs one: the library works without Triton.

Where they could not run, they cannot be imported either: loading Triton takes a while.
"""

import os

import torch

if not torch.cuda.device_count() and os.environ.get("TRITON_INTERPRET", "0") == "0":
    raise ImportError("there is no GPU, and TRITON_INTERPRET=1 is not set")
