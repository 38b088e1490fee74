"""Compare every chosen kernel with the forward that it would replace, on the inputs it really gets.

The model runs once on the example inputs. Each layer about to be swapped runs twice: its original
forward, whose result the model goes on with, and then the kernel on copies of the same inputs with
the same random state. Nothing is swapped yet, and buffers are put back afterwards.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import VerificationError
from kernels_hub.layer.bind import KernelForward
from kernels_hub.layer.fallback import KernelizeFallback
from kernels_hub.layer.mode import Mode
from kernels_hub.layer.outcome import Record
from kernels_hub.layer.resolve import overlay_forward

if TYPE_CHECKING:
    import torch
    from torch import nn

    from kernels_hub.layer.kernelize import Step

logger = logging.getLogger("kernels_hub")

RELATIVE_ERROR = {"float64": 1e-10, "float32": 2e-5, "float16": 8e-3, "bfloat16": 4e-2}
"""dtype of a result -> largest ‖kernel - original‖ / ‖original‖ that still counts as rounding.

About 2^8 units in the last place for float32 and 8 for the short ones: two right implementations
that add in another order, or round once where the other rounds twice, stay well below.
"""
ELEMENT_ERROR = {"float64": 4e-10, "float32": 8e-5, "float16": 3e-2, "bfloat16": 1.6e-1}
"""dtype of a result -> largest |kernel - original| of an element in units of its own magnitude plus that of its row.

A row is what lies along the last dim, its magnitude the root of its mean square: sums that made an element are not
known here, but are of the size of their neighbours. Four times the error of a whole, since the worst element is asked.
"""


def verify_steps(
    model: nn.Module, steps: list[Step], inputs: Any, mode: Mode, fallback: KernelizeFallback
) -> list[Step]:
    """The steps, with those whose kernel disagrees turned into "keep the original" and its reason.

    inputs: a tensor, a tuple or list of arguments, or a dict of keyword arguments of the model.

    Raises VerificationError at the first disagreement when `fallback` is NONE.
    """
    import torch

    problems: dict[int, str] = {}
    reached: set[int] = set()
    with (
        _checking(steps, problems, reached),
        _buffers_kept(model),
        torch.set_grad_enabled(Mode.TRAINING in mode),
    ):
        _call(model, inputs)
    if problems and fallback is KernelizeFallback.NONE:
        paths = {id(module): path for path, module in model.named_modules()}
        key, problem = next(iter(problems.items()))
        raise VerificationError(
            f"the kernel for {paths.get(key) or 'the model'} disagrees with the original forward: {problem}; "
            "use_fallback=True keeps the original there"
        )
    unreached = sum(step.forward is not None and id(step.module) not in reached for step in steps)
    if unreached:
        logger.info("verify: the example inputs reach %d of the swapped layers not at all", unreached)
    return [_kept(step, problems[id(step.module)]) if id(step.module) in problems else step for step in steps]


def difference(kernel: Any, original: Any) -> str | None:
    """How two results differ by more than rounding, as text; None when they agree."""
    import torch
    from torch.utils import _pytree as pytree

    ours, our_form = pytree.tree_flatten(kernel)
    theirs, their_form = pytree.tree_flatten(original)
    if our_form != their_form:
        return f"it returns {our_form} where {their_form} is expected"
    for our, their in zip(ours, theirs, strict=True):
        if not isinstance(their, torch.Tensor):
            if not isinstance(our, torch.Tensor) and our != their:
                return f"it returns {our!r} where {their!r} is expected"
            continue
        if not isinstance(our, torch.Tensor) or our.shape != their.shape or our.dtype != their.dtype:
            return f"it returns {_describe(our)} where {_describe(their)} is expected"
        if problem := _tensor_difference(our, their):
            return problem
    return None


def _tensor_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    import torch

    bound = RELATIVE_ERROR.get(str(theirs.dtype).removeprefix("torch."))
    if bound is None:
        return None if torch.equal(ours, theirs) else f"its {_describe(theirs)} is not equal"
    a, b = ours.detach().double(), theirs.detach().double()
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite) or not torch.equal(
        a[~finite].nan_to_num(nan=0.0), b[~finite].nan_to_num(nan=0.0)
    ):
        return "NaN or infinity where the original has none, or the reverse"
    error = (a[finite] - b[finite]).norm().item()
    scale = b[finite].norm().item()
    relative = error / scale if scale else error
    if relative > bound:
        return f"relative error {relative:.2g} for {theirs.dtype} (allowed {bound:.2g})"
    return _element_difference(a, b, finite, str(theirs.dtype).removeprefix("torch."))


def _element_difference(a: torch.Tensor, b: torch.Tensor, finite: torch.Tensor, dtype: str) -> str | None:
    """The element that is off most, against its bound: one wrong row among a thousand is lost in a norm."""
    if not b.numel():
        return None
    known = b.masked_fill(~finite, 0.0)
    row = known.square().mean(-1, keepdim=True).sqrt() if b.ndim else known.abs()
    bound = ELEMENT_ERROR[dtype] * (known.abs() + row)
    over = (a.masked_fill(~finite, 0.0) - known).abs() - bound
    place = int(over.argmax())
    if over.flatten()[place] <= 0:
        return None
    at: list[int] = []
    rest = place
    for size in reversed(b.shape):
        rest, index = divmod(rest, size)
        at.insert(0, index)
    return (
        f"element {at} is {a.flatten()[place]:.6g}, expected {b.flatten()[place]:.6g} "
        f"with an error of {bound.flatten()[place]:.2g} at most"
    )


def _describe(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return repr(value)


def _call(model: nn.Module, inputs: Any) -> None:
    if isinstance(inputs, Mapping):
        model(**inputs)
    elif isinstance(inputs, tuple | list):
        model(*inputs)
    else:
        model(inputs)


@contextmanager
def _checking(steps: list[Step], problems: dict[int, str], reached: set[int]) -> Iterator[None]:
    """Every layer with a kernel runs both, for the length of the block."""
    missing = object()
    saved = [
        (step.module, step.module.__dict__.get("forward", missing))
        for step in steps
        if step.forward is not None
    ]
    try:
        for step in steps:
            if step.forward is not None:
                step.module.__dict__["forward"] = KernelForward(
                    _unbound(_both(step, problems, reached), type(step.module)), step.module
                )
        yield
    finally:
        for module, forward in saved:
            if forward is missing:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


def _unbound(run: Callable[..., Any], cls: type[nn.Module]) -> Callable[..., Any]:
    """Called with the module first: what is compiled meanwhile takes this for the kernel that it stands for."""

    def forward(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    forward.__signature__ = inspect.signature(cls.forward)  # type: ignore[attr-defined]
    return forward


def _both(step: Step, problems: dict[int, str], reached: set[int]) -> Callable[..., Any]:
    module, cls = step.module, type(step.module)
    if not step.functions:
        assert step.forward is not None
        original, kernel = partial(cls.forward, module), partial(step.forward, module)
        return _comparing(module, original, kernel, problems, reached)
    # The forward is the class's own: compare the functions inside it, not the forward as a whole,
    # which may change a cache that it is given.
    plans = tuple(
        replace(plan, kernel=_comparing(module, plan.original, plan.kernel, problems, reached))
        if plan.kernel
        else plan
        for plan in step.functions
    )
    forward = overlay_forward(cls, plans)
    assert forward is not None
    return partial(forward, module)


def _comparing(
    module: nn.Module,
    original: Callable[..., Any],
    kernel: Callable[..., Any],
    problems: dict[int, str],
    reached: set[int],
) -> Callable[..., Any]:
    import torch

    def run(*args: Any, **kwargs: Any) -> Any:
        reached.add(id(module))
        copies = _copied((args, kwargs))
        before = torch.random.get_rng_state()
        result = original(*args, **kwargs)
        after = torch.random.get_rng_state()
        torch.random.set_rng_state(before)
        try:
            problem = difference(kernel(*copies[0], **copies[1]), result)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is its verdict
            problem = f"it raised {type(error).__name__}: {error}"
        finally:
            torch.random.set_rng_state(after)
        if problem:
            problems.setdefault(id(module), problem)
        return result

    return run


def _copied(values: Any) -> Any:
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), values)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Buffers (running statistics) come out as they went in."""
    import torch

    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


def _kept(step: Step, problem: str) -> Step:
    reason = f"verify: {problem}"
    own = step.record.own
    if own is not None and own.swapped:
        own = replace(own, swapped=False, reason=reason)
    functions = tuple(
        (name, replace(outcome, swapped=False, reason=reason) if outcome.swapped else outcome)
        for name, outcome in step.record.functions
    )
    kept = copy.copy(step)
    kept.record, kept.forward, kept.functions = Record(own, functions, step.record.attributes), None, ()
    return kept
