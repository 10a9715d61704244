"""A GPU that is not there: what is put on it is computed on the CPU, and noted."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from attnbook.core import runtime

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Pretended(TorchFunctionMode):
    """While it is entered this machine seems to have a GPU.

    Attributes:
        kinds: Types of the tensors that were put there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[torch.dtype] = set()
        self.patches = (
            mock.patch.object(runtime, "_available", lambda name: GPU if name is None else there(name) or CPU),
            mock.patch.object(torch.cuda, "get_device_name", return_value="pretended"),
        )

    def __enter__(self) -> "Pretended":
        for patch in self.patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for patch in self.patches:
            patch.stop()

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(map(there, (*args, *kwargs.values()))):
            return function(*args, **kwargs)
        here = {name: CPU if there(value) else value for name, value in kwargs.items()}
        found = function(*(CPU if there(one) else one for one in args), **here)
        if isinstance(found, torch.Tensor):
            self.kinds.add(found.dtype)
        return found


def there(value: Any) -> torch.device | None:
    """The GPU where a value stands for it."""
    return GPU if isinstance(value, torch.device | str) and str(value) == "cuda" else None
