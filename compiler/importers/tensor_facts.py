"""What tensors tell code of themselves beside what they hold: the functions of PyTorch's that it is asked by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_TENSOR: Any = torch.Tensor
OF_LAYOUT = frozenset({
    _TENSOR.stride, _TENSOR.is_contiguous, _TENSOR.storage_offset,
    _TENSOR.requires_grad.__get__, _TENSOR.is_leaf.__get__, _TENSOR.grad_fn.__get__,
    _TENSOR.is_inference, _TENSOR.is_conj, _TENSOR.is_neg,
})  # fmt: skip
"""What tensors are asked for that they have beside what they hold."""
OF_ONE_CALL: Mapping[Any, str] = {
    _TENSOR._version.__get__: "_version", _TENSOR._is_view: "_is_view()", _TENSOR._base.__get__: "_base",
    _TENSOR.grad.__get__: "grad", _TENSOR.untyped_storage: "untyped_storage()", _TENSOR.storage: "storage()",
    _TENSOR.data_ptr: "data_ptr()",
}  # fmt: skip
"""What tensors are asked for that tells one call from another."""
ANY = OF_LAYOUT | OF_ONE_CALL.keys()
