"""torch.library.opcheck, without what it warns of itself."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch


def opcheck(operator: Any, arguments: Sequence[Any]) -> None:
    """Check an operator's schema, fake function, gradient and tracing. Raises OpCheckError.

    From PyTorch 2.14 on it reads `.grad` of tensors that it made itself, and warns of that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf", UserWarning)
        torch.library.opcheck(operator, tuple(arguments))
