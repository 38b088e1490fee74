"""Tells when a kernel may be called past the PyTorch dispatcher: when no mode, trace or profiler could notice.

An operator that is written in Python costs 4 microseconds a call, and the questions of a general path as much again: as
long as a small kernel runs. What a kernel is given directly is plain memory of a device, and nobody watches operators.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

try:
    _function_modes = torch._C._len_torch_function_stack
    _dispatch_modes = torch._C._len_torch_dispatch_stack
    _transform = torch._C._functorch.peek_interpreter_stack
    _trace = torch._C._get_tracing_state
    _has_profiler = torch._C._autograd._profiler_enabled
    _keys = torch._C._dispatch_keys
    _is_unknown = not isinstance(forward_ad._current_level, int)
except AttributeError:  # another release of PyTorch: nobody can be asked, and all operators are called
    _is_unknown = True


def is_observed(device: str = "cpu") -> bool:
    """Whether something must see operators in this thread: a compiler, a mode, a transform, a trace, a profiler."""
    return bool(
        _is_unknown
        or torch.compiler.is_compiling()
        or _function_modes()
        or _dispatch_modes()
        or _transform() is not None
        or _trace() is not None
        or _has_profiler()
        or forward_ad._current_level >= 0
        or torch.is_autocast_enabled(device)
    )


def is_transformed() -> bool:
    """Whether PyTorch's formulas have to run: in torch.func's transforms, forward-mode differentiation and TorchScript.

    Operators of torch.library drop tangents without a word, have no gradients under torch.func.grad, and are called
    once for each example under torch.vmap. A trace of torch.jit must hold with gradients and without, in processes that
    have no such operators, and for its exporter to ONNX.
    """
    if forward_ad._current_level >= 0:
        return True
    # The cheapest questions first: this is asked at every call.
    return (
        not _is_unknown
        and (_transform() is not None or _trace() is not None)
        and not torch.compiler.is_compiling()
    )


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor has strides: it is not nested, sparse, or laid out by oneDNN, for which PyTorch has kernels."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_for_any_size(tensor: Tensor) -> bool:
    """Whether a trace is to hold for other sizes than this tensor's, so that no size may decide what runs.

    An export whose sizes are open is refused where one was compared. Where Dynamo makes it, nobody can ask which are.
    """
    # Not is_exporting(): before PyTorch 2.13, Dynamo answers it with True under torch.compile, too.
    return getattr(torch.compiler, "_is_exporting_flag", False) and (
        torch.compiler.is_dynamo_compiling() or any(type(size) is not int for size in tensor.shape)
    )


@cache
def _plain_keys(device: str) -> frozenset[int]:
    with torch.inference_mode(False):  # this may be asked first within one
        ordinary = torch.empty(0, device=device)
    with torch.inference_mode():
        inference = torch.empty(0, device=device)
    return frozenset(_keys(tensor).raw_repr() for tensor in (ordinary, inference))


_PLAIN = frozenset() if _is_unknown else _plain_keys("cpu")


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is strided memory of the CPU and nothing else: no subclass, no view that negates."""
    kind = type(tensor)
    return not _is_unknown and (kind is Tensor or kind is Parameter) and _keys(tensor).raw_repr() in _PLAIN


def is_unwatched(dispatch_keys: Collection[str], first: Tensor, *others: Tensor | None) -> bool:
    """Whether an operator may be left out, and its kernel for these dispatch keys called.

    Nothing must see it, nor record it, and all tensors are plain memory of one device that the kernel is for.
    """
    # `is_observed` and `records_gradient` written out: between two calls a model evicts this code from the caches.
    if (
        _is_unknown
        or torch.compiler.is_compiling()
        or _function_modes()
        or _dispatch_modes()
        or _transform() is not None
        or _trace() is not None
        or _has_profiler()
        or forward_ad._current_level >= 0
    ):
        return False
    kind = type(first)
    if kind is not Tensor and kind is not Parameter:
        return False
    keys = _keys(first).raw_repr()
    device = "cpu" if keys in _PLAIN else first.device.type
    if device.upper() not in dispatch_keys or torch.is_autocast_enabled(device):
        return False
    plain = _plain_keys(device)
    if keys not in plain:
        return False
    is_recorded = torch.is_grad_enabled()
    if is_recorded and first.requires_grad:
        return False
    for tensor in others:
        if tensor is None:
            continue
        kind = type(tensor)
        if (kind is not Tensor and kind is not Parameter) or _keys(tensor).raw_repr() not in plain:
            return False
        if is_recorded and tensor.requires_grad:
            return False
    return True


def records_gradient(*tensors: Tensor | None) -> bool:
    """Whether an operation on these would be recorded for backward."""
    if torch.is_grad_enabled():
        for tensor in tensors:  # a loop: this runs at every call
            if tensor is not None and tensor.requires_grad:
                return True
    return False
