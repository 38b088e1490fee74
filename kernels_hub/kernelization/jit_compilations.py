"""Compilations of layers: found on this machine or made in a forked process, loaded, packed for, and timed.

Runs on the thread of `background`. One `Compilations` serves all modules of a class: what is compiled once is known by
its key from then on.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kernels_hub.cxx_compiler import one_at_a_time
from kernels_hub.files import cache_folder
from kernels_hub.hub.references import LocalLayerRepository
from kernels_hub.kernelization.background import BACKGROUND, Job
from kernels_hub.kernelization.bind import (
    COPIED,
    Forward,
    KernelForward,
    bind_class_forward,
    load_layer,
    object_name,
    weights_protocol,
)
from kernels_hub.kernelization.compiled_layer import (
    Arguments,
    CompiledLayer,
    CompileRequest,
    Keywords,
    LayerCompiler,
    Refusal,
    layer_compiler,
    one_line,
)
from kernels_hub.kernelization.forked import DeadlineError, ForkedError, run_forked
from kernels_hub.kernelization.jit_settings import is_timed, seconds_per_signature
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE
from kernels_hub.kernelization.trial import Timing, time_in_turn

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

AS_BYTECODE = "bytecode"
"""Variant of a compiled layer that is interpreted, as there is no C++ compiler."""
_ENOUGH = 2
"""Modules of a class that fail for one reason before the others are believed to fail for it, too."""
_QUIET_S = 0.5
"""How long a trial waits for a moment without a call of the module."""


@dataclass(frozen=True)
class Sized:
    """The signature of a call that has a program for its very sizes, or for some of them."""

    training: bool
    of_call: Hashable
    fixed: tuple[int, ...] | None = None
    """The sizes that a trace fixes, where the others are free."""
    values: tuple[tuple[int, ...], ...] = ()
    """Of small arguments of whole numbers that a program is of: what they hold."""


@dataclass(frozen=True)
class Compiled:
    """What came of a call's key. Without `forward`, `refusal` says why."""

    forward: Forward | None
    revision: str | None = None
    variant: str | None = None
    refusal: Refusal | None = None
    timing: Timing | None = None
    sized: Sized | None = None
    """The call's signature, where it is for calls of these sizes alone."""


@dataclass(eq=False)
class Request:
    """A call signature of a module that is being compiled: copies of the call's arguments, and what came of it."""

    module: weakref.ref[nn.Module]
    signature: Hashable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inference: bool
    background: bool
    is_running: Callable[[], bool]
    """Whether a call of the module is under way."""
    others: Callable[[], list[Forward]]
    """The compiled layers that the module's other calls run on."""
    strict: Callable[[], bool]
    """Whether copies of the module's weights are to be compared at every call."""
    again: bool = False
    """Whether a time that does not count is to be taken again."""
    form: Hashable = None
    """See `LayerCompiler.form`."""
    job: Job | None = None
    compiled: Compiled | None = None


class Watcher(Protocol):
    """Who is told of calls that a compiled layer does not take, and is not kept alive."""

    def shapes_misfit(self, module: nn.Module) -> None:
        """A call of a module had shapes that its compiled layer does not take."""


class Compilations:
    """What is known of the calls of a class's modules."""

    def __init__(self, layer: CompiledLayer, backend: str, cls: type[nn.Module], watcher: Watcher) -> None:
        self.layer, self.backend, self.cls, self._watcher = layer, backend, cls, watcher
        self.fixed = CompiledLayer(layer.layer_name, dynamic=False)
        """The same for calls of fixed sizes."""
        self._known: dict[str, Compiled] = {}
        """By key."""
        self._failures: dict[Hashable, list[str]] = {}
        """By signature."""
        self._said: set[str] = set()

    def forget_failures(self) -> None:
        """Try again what could not be compiled, or gained nothing."""
        self._known = {
            key: replace(one, timing=None) for key, one in self._known.items() if one.forward is not None
        }
        self._failures, self._said = {}, set()

    def say(self, reason: str) -> None:
        """Log why an original forward is kept, once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            logger.warning("%s", one_line(f"{object_name(self.cls)} keeps its original forward: {reason}"))

    @functools.cached_property
    def compiler(self) -> LayerCompiler | None:
        """Who compiles for this type of device; None where nobody does."""
        try:
            return layer_compiler(self.backend)
        except Exception as error:  # noqa: BLE001 - whatever its import raises
            logger.warning("%s", one_line(f"{self.layer}: its compiler cannot be imported: {error}"))
            return None

    @functools.cached_property
    def form_of(self) -> Callable[[CompiledLayer, Arguments, Keywords], Hashable | None] | None:
        """`LayerCompiler.form`; None of a compiler that does not have it."""
        found: Callable[[CompiledLayer, Arguments, Keywords], Hashable | None] | None
        found = getattr(self.compiler, "form", None)
        return found

    def compiled(self, module: nn.Module, request: Request) -> Compiled:
        """What a request comes to. Never raises: whatever a compiler raises is a reason."""
        try:
            return self._compiled(module, request)
        except Exception as error:  # noqa: BLE001 - any of them is a reason to keep the original
            return self._failed(request, None, Refusal.of(error))

    def _compiled(self, module: nn.Module, request: Request) -> Compiled:
        compiler = self.compiler
        if compiler is None:
            return self._failed(request, None, Refusal(f"no layer compiler is installed for {self.backend}"))
        if isinstance(request.signature, Sized):
            layer = self.fixed if request.signature.fixed is None else self.layer
            return self._compiled_as(layer, compiler, module, request)
        found = self._compiled_as(self.layer, compiler, module, request)
        if found.refusal is None or not found.refusal.of_sizes:
            return found
        found = self._compiled_as(self.fixed, compiler, module, request)
        if found.forward is None and found.timing is None:
            return found
        of_call = compiler.signature(self.fixed, module, request.args, request.kwargs)
        return replace(found, sized=Sized(module.training, of_call))

    def _compiled_as(
        self, layer: CompiledLayer, compiler: LayerCompiler, module: nn.Module, request: Request
    ) -> Compiled:
        key = compiler.key(layer, module, request.args, request.kwargs)
        known = self._known.get(key)
        failures = self._failures.get(request.signature, [])
        if known is None and len(failures) >= _ENOUGH and len(set(failures)) == 1:
            return self._failed(request, key, Refusal(failures[0]))
        if known is None:
            known = self._made(layer, compiler, key, module, request)
        if known.forward is None:
            return known
        if (refusal := self._prepared(known.forward, module, request)) is not None:
            return self._failed(request, None, refusal)
        if getattr(program_of(known.forward), "engine", None) == "bytecode":
            known = self._known[key] = replace(known, variant=AS_BYTECODE)
        if is_timed() and (known.timing is None or (request.again and known.timing.disturbed)):
            known = self._known[key] = self._tried(known, module, request)
        if known.timing is not None and not known.timing.gains:
            self._release(known, module, request)
            return self._kept(known.timing)
        return known

    def _release(self, known: Compiled, module: nn.Module, request: Request) -> None:
        """Drop what was packed for a layer that is not used."""
        if known.forward is None or known.forward in request.others():
            return
        if (weights := weights_protocol(known.forward)) is not None:
            weights.release(module)

    def _made(
        self, layer: CompiledLayer, compiler: LayerCompiler, key: str, module: nn.Module, request: Request
    ) -> Compiled:
        found = compiler.find(key)
        seconds = seconds_per_signature()
        if found is None or (
            isinstance(found, Refusal) and found.seconds is not None and found.seconds < seconds
        ):
            found = self._compile(layer, compiler, key, module, request)
        if isinstance(found, Refusal):
            is_first = not isinstance(request.signature, Sized)
            if (
                found.of_sizes and layer.dynamic is True and is_first
            ):  # asked for again, with those of the call
                known = self._known[key] = Compiled(None, refusal=found)
                return known
            return self._failed(request, key, found)
        loaded = load_layer(LocalLayerRepository(found, layer_name=self.layer.layer_name), self.backend)
        forward = bind_class_forward(loaded, self.cls, False, str(self.layer), guards=False)
        if (watchers := getattr(program_of(forward), "watchers", None)) is not None:
            watchers.add(self._watcher)
        assert loaded.resolved is not None
        logger.info("%s: %s has a compiled layer, %s", self.layer, object_name(self.cls), found)
        compiled = self._known[key] = Compiled(forward, found.name[:12], loaded.resolved.files.variant)
        return compiled

    def _compile(
        self, layer: CompiledLayer, compiler: LayerCompiler, key: str, module: nn.Module, request: Request
    ) -> Path | Refusal:
        """Compile in a forked process, of the module as it is now."""
        seconds, started = seconds_per_signature(), time.perf_counter()

        def work() -> tuple[str, str, str, bool]:
            try:
                now = compiler.key(layer, module, request.args, request.kwargs)
                twin = _without_kernels(module)
                asked = CompileRequest(layer, twin, request.args, request.kwargs)
                folder = compiler.repository(asked, now)
                return "made", str(folder), "", False
            except BaseException as error:  # noqa: BLE001 - the process ends with it
                refusal = Refusal.of(error)
                return "refused", refusal.reason, refusal.details, refusal.of_sizes

        try:
            with _turn() if request.background else contextlib.nullcontext():
                what, text, details, of_sizes = run_forked(
                    work, seconds=seconds, background=request.background, child=BACKGROUND.child
                )
        except DeadlineError as error:
            refusal = Refusal(
                f"over budget: it takes more than {seconds:g} s to compile (KERNELS_HUB_JIT_SECONDS)",
                error.log,
                seconds,
            )
            if error.worked:  # else the machine was the reason, which another process need not find so
                compiler.refuse(key, refusal)
            return refusal
        except ForkedError as error:
            return Refusal(f"the compiler failed: {error}", error.log)
        except OSError as error:
            return Refusal(f"no process to compile in can be started: {error}")
        logger.info(
            "%s: %s in %.1f s",
            self.layer,
            "compiled" if what == "made" else what,
            time.perf_counter() - started,
        )
        return Path(text) if what == "made" else Refusal(text, details, of_sizes=of_sizes)

    def _prepared(self, forward: Forward, module: nn.Module, request: Request) -> Refusal | None:
        """Pack the module's weights for a compiled layer; why it does not take the module."""
        weights = weights_protocol(forward)
        if weights is None:
            return None
        _lay_beside(forward, request.others())
        weights.prepare(module)
        if request.strict():
            weights.strict(module, True)
        reason = _refusal(forward, module)
        if reason is not None and module.training:
            reason = f"{reason}; decided anew once it is no longer in training"
        return None if reason is None else Refusal(one_line(reason), reason)

    def _tried(self, known: Compiled, module: nn.Module, request: Request) -> Compiled:
        """What was compiled, with its time and the original's."""
        assert known.forward is not None
        original = functools.partial(self.cls.forward, module)
        compiled = functools.partial(known.forward, module)
        for _ in range(2):
            quiet = request.background and _wait_until(lambda: not request.is_running(), _QUIET_S)
            with _no_gradient(inference=request.inference):
                timing = time_in_turn(original, compiled, lambda: copies(request.args, request.kwargs))
            if (timing.gains and not timing.disturbed) or quiet or not request.background:
                break
        logger.info(
            "%s: %s takes %.3g ms, compiled %.3g ms",
            self.layer, object_name(self.cls), timing.original * 1e3, timing.compiled * 1e3,
        )  # fmt: skip
        return replace(known, timing=timing)

    def _kept(self, timing: Timing) -> Compiled:
        reason = f"kept: compiled, it has {timing.ratio:.2f} of PyTorch's speed here"
        if timing.disturbed:
            reason += ", timed beside other work: it is timed again"
        self.say(reason)
        return Compiled(None, refusal=Refusal(reason), timing=timing)

    def _failed(self, request: Request, key: str | None, refusal: Refusal) -> Compiled:
        prefix = "it cannot be compiled: "
        reason = refusal.reason.removeprefix(prefix)
        compiled = Compiled(
            None, refusal=Refusal(one_line(prefix + reason), refusal.details or refusal.reason)
        )
        if key is not None:
            self._known[key] = compiled
        self._failures.setdefault(request.signature, []).append(reason)
        if not BACKGROUND.ends:
            self.say(prefix + reason)
        return compiled


def _lay_beside(forward: Forward, others: list[Forward]) -> None:
    """Let the programs of a module's signatures hold packed weights that are equal once."""
    programs = dict.fromkeys(one for one in map(program_of, (forward, *others)) if hasattr(one, "beside"))
    for program in programs:
        program.beside = tuple(
            dict.fromkeys((*program.beside, *(other for other in programs if other is not program)))
        )


_FEW_CORES = 4
"""Below so many, half of them is one: what else is built beside a model waits for a compilation, and is waited for."""


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """The turn of one compilation among all that works beside models on a machine of few cores."""
    with contextlib.ExitStack() as held:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if cores < _FEW_CORES:
            with contextlib.suppress(OSError):  # no folder to write to: nothing else is built either
                held.enter_context(one_at_a_time(cache_folder("native"), lambda: BACKGROUND.ends))
        yield


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _no_gradient(*, inference: bool) -> AbstractContextManager[Any]:
    import torch

    return torch.inference_mode() if inference else torch.no_grad()


def copies(args: Arguments, kwargs: Keywords) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of a call's arguments, which the call does not change. Tensors are none of inference mode."""
    import torch
    from torch.utils import _pytree as pytree

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone()
        return leaf if leaf is None or isinstance(leaf, bool | int | float | str) else copy.deepcopy(leaf)

    with torch.inference_mode(False), torch.no_grad():
        found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(copied, (args, dict(kwargs)))
    return found


def _without_kernels(module: nn.Module) -> nn.Module:
    """A copy of a module that shares its parameters, with the forwards of its classes."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    for one in module.modules():
        if type(bound := one.__dict__.get("forward")) is KernelForward:
            memo[id(bound)] = _NO_KERNEL
    twin = copy.deepcopy(module, memo)
    for one in twin.modules():
        if one.__dict__.get("forward") is _NO_KERNEL:
            del one.__dict__["forward"]
        for name in (RECORD_ATTRIBUTE, *COPIED):
            one.__dict__.pop(name, None)
    return twin


_NO_KERNEL = object()


def program_of(forward: Forward) -> Any:
    """The object that runs a compiled layer's calls, and says what it fell back for; None where its kind has none."""
    package = sys.modules.get(getattr(forward, "__module__", "").partition(".")[0])
    return getattr(getattr(package, "program", None), "LAYER", None)


def _refusal(forward: Forward, module: nn.Module) -> str | None:
    """Why a compiled layer took none of a module's weights; None where it did, or where its kind does not say."""
    layer = program_of(forward)
    if layer is None or layer.known(module) is not None:
        return None
    return "; ".join(layer.fallbacks.values()) or "its program does not take this module"


def is_plain_call(args: Arguments, kwargs: Keywords) -> bool:
    """Whether tensors are what they seem: nothing is traced, transformed, or made of other tensors."""
    import torch
    from torch.utils import _pytree as pytree

    if torch._C._get_tracing_state() is not None:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        return False
    if torch._C._len_torch_function_stack() and torch.get_default_device().type == "meta":
        return False
    return all(
        type(leaf) in (torch.Tensor, torch.nn.Parameter) and not leaf.is_meta
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    )
