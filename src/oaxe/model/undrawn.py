"""Models without random weights, which loaded ones would replace."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class without_drawing(TorchFunctionMode):  # noqa: N801
    """A context in which the random functions of ``torch.nn.init`` leave weights as they are.

    On the meta device, where there is nothing to draw, they would import 800 modules.

    Example:
        >>> import torch
        >>> with torch.device("meta"), without_drawing():
        ...     print(torch.nn.Linear(2, 3).weight.shape)
        torch.Size([3, 2])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
