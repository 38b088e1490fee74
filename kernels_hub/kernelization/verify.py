"""Compare every chosen kernel with the forward that it would replace, on the inputs it really gets.

The model runs once on the example inputs. Each layer about to be swapped runs twice: its original
forward, whose result the model goes on with, and then the kernel on copies of the same inputs with
the same random state. Nothing is swapped yet, and buffers are put back afterwards.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import VerificationError
from kernels_hub.kernelization.bind import KernelForward
from kernels_hub.kernelization.fallback import KernelizeFallback
from kernels_hub.kernelization.mode import Mode
from kernels_hub.kernelization.outcome import ModuleRecord
from kernels_hub.kernelization.resolve import overlay_forward
from kernels_hub.kernelization.steps import Step
from kernels_hub.numerics import norm_error, tolerance

if TYPE_CHECKING:
    import torch
    from torch import nn

logger = logging.getLogger(__name__)


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

    allowed = tolerance(theirs.dtype)
    if not allowed.kernel:
        return None if torch.equal(ours, theirs) else f"its {_describe(theirs)} is not equal"
    relative = norm_error(ours, theirs)
    if relative == math.inf:
        return "NaN or infinity where the original has none, or the reverse"
    if relative > allowed.kernel:
        return f"relative error {relative:.2g} for {theirs.dtype} (allowed {allowed.kernel:.2g})"
    return _element_difference(ours.detach().double(), theirs.detach().double(), allowed.element)


def _element_difference(a: torch.Tensor, b: torch.Tensor, allowed: float) -> str | None:
    """The element that is off most, against its bound: one wrong row among a thousand is lost in a norm."""
    if not b.numel():
        return None
    finite = b.isfinite()
    known = b.masked_fill(~finite, 0.0)
    row = known.square().mean(-1, keepdim=True).sqrt() if b.ndim else known.abs()
    bound = allowed * (known.abs() + row)
    over = (a.masked_fill(~finite, 0.0) - known).abs() - bound
    worst = int(over.argmax())
    if over.flatten()[worst] <= 0:
        return None
    at: list[int] = []
    rest = worst
    for size in reversed(b.shape):
        rest, index = divmod(rest, size)
        at.insert(0, index)
    return (
        f"element {at} is {a.flatten()[worst]:.6g}, expected {b.flatten()[worst]:.6g} "
        f"with an error of {bound.flatten()[worst]:.2g} at most"
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
    copied = copy.copy(step)
    copied.record, copied.forward, copied.functions = (
        ModuleRecord(own, functions, step.record.attributes),
        None,
        (),
    )
    return copied
