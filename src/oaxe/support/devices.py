"""Where to compute."""

import torch

from oaxe.support.errors import UserError


def usable_device(device: str | None) -> str:
    """The device that was asked for, else a GPU if there is one; UserError if it cannot be used."""
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
