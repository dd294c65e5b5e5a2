"""Where to compute, and how precisely."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from oaxe.support.errors import UserError


def usable_device(device: str | None) -> str:
    """The given device, or else a GPU if there is one; UserError if it cannot be used."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {device} cannot be used here ({str(error).splitlines()[0]}); give cpu, or "
            "cuda where torch finds a GPU, or leave it out"
        ) from None
    # cuDNN's attention plans anew, for half a second, at every new batch shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


@contextmanager
def half_precision(device: str, enabled: bool = True) -> Iterator[None]:
    """Compute in bfloat16: by autocast, but for a CPU.

    On a CPU tensors stay float32, and matrix products round their inputs where the processor
    multiplies faster in bfloat16: converting all tensors takes longer than it saves. This holds for
    the whole process. Attention is then computed by plain products, because the products of
    torch's fused attention are too small.
    """
    if not enabled or device != "cpu":
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            yield
        return
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        products.fp32_precision = before
