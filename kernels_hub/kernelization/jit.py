"""The forward of a module whose layer is compiled just in time: the original until what was compiled takes its place.

    a call of a new signature -> a request: copies of its arguments
    in the background         -> its key -> known on this machine, or compiled in a forked process -> loaded
                              -> timed against the original on the arguments of that call
    a later call              -> adopts it, unless a `generate` is under way

Everything is decided by the signature of a call: which arguments there are, their dtypes, which sizes are 1, what a
cache holds. A call that cannot be compiled, or is slower compiled, says nothing of others. What was timed beside other
work is timed again, on the arguments of a later call, until a time counts.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
import time
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import KernelImportError, LayerContractError
from kernels_hub.kernelization.background import BACKGROUND, Job, wait_for
from kernels_hub.kernelization.bind import Forward, KernelForward, object_name, weights_protocol
from kernels_hub.kernelization.compiled_layer import Arguments, CompiledLayer, Keywords, Refusal, one_line
from kernels_hub.kernelization.decoration import kept_around
from kernels_hub.kernelization.fixed_sizes import FixedSizes, fixed_sizes, valued_arguments
from kernels_hub.kernelization.generation import is_within_generation, others_generate
from kernels_hub.kernelization.jit_compilations import (
    Compilations,
    Compiled,
    Request,
    Sized,
    copies,
    is_plain_call,
)
from kernels_hub.kernelization.jit_settings import JitMode, is_timed, jit_mode, signatures_per_module
from kernels_hub.kernelization.module_calls import Doubt, ModuleCalls
from kernels_hub.kernelization.native_builds import wait_for_native_builds
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE, SwapDecision, record_of
from kernels_hub.kernelization.settle import settle
from kernels_hub.kernelization.validate import has_no_forward

if TYPE_CHECKING:
    from types import CodeType

    from torch import nn

AT_FIRST_CALL = "compiled at its first call"
"""Variant of an outcome that is still to come."""

_PENDING = "being compiled; the original runs meanwhile"
_FIRST_RETRIAL_S, _LAST_RETRIAL_S = 10.0, 3600.0
"""What was timed on a disturbed machine is timed again after so long, then after twice as long each time."""


_now = time.monotonic


class _Locks:
    """Locks that a forked process has anew."""

    def __init__(self) -> None:
        self.requests = threading.Lock()


_LOCKS = _Locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.__init__)  # type: ignore[misc]


class _Calls(threading.local):
    """Calls under way on a thread."""

    waits = False
    """Whether one of them is of a module that is being compiled: what it calls is not compiled for itself as well."""


_CALLS = _Calls()


class JitForward:
    """A forward for the modules of one class: called with the module first, as a class's own is."""

    def __init__(self, layer: CompiledLayer, backend: str, cls: type[nn.Module]) -> None:
        from torch.compiler import is_compiling

        self.layer, self.backend, self.cls = layer, backend, cls
        self.kernel_weights = _CompiledWeights(self)
        """See `weights_protocol`."""
        self._compilations = Compilations(layer, backend, cls, self)
        self._modules: weakref.WeakKeyDictionary[nn.Module, ModuleCalls] = weakref.WeakKeyDictionary()
        self.strict_weights: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules whose copies of weights are compared at every call."""
        self.__signature__ = inspect.signature(cls.forward)
        self._is_compiling = is_compiling
        self._forward: Any = cls.forward
        self._defaults = _defaults_of(cls.forward)
        self._called = kept_around(cls.forward, self.forward)
        """`forward`, inside of decorators of the class's that stay around a kernel."""

    @property
    def __code__(self) -> CodeType:
        """The code of the class's forward, which torch.export names in what it says; AttributeError without one."""
        forward: Any = inspect.unwrap(self.cls.forward)
        code: CodeType = forward.__code__
        return code

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The result of a call: of the compiled layer where there is one for its signature."""
        # Refused calls do not pass through what stays around a kernel: the original has it around itself.
        state = None if self._is_compiling() else self._modules.get(module) or self._state(module)
        if state is None or state.is_like_the_last(args, kwargs):
            forward: Any = self.cls.forward
            return forward(module, *args, **kwargs)
        return self._called(module, *args, **kwargs)

    def forward(self, module: nn.Module, *args: object, **kwargs: object) -> object:
        """The result of a call under the arguments' present names."""
        forward: Any = self.cls.forward
        if forward is not self._forward or self._has_other_defaults(forward):
            return forward(module, *args, **kwargs)  # compiled layers have the defaults of the one before
        state = self._modules.get(module) or self._state(module)
        if state.is_spent or (
            state.refused and state.is_refused(self._form(module, args, kwargs), args, kwargs)
        ):
            return forward(module, *args, **kwargs)
        signature = self._signature(module, args, kwargs)
        if state.of_sizes and signature in state.of_sizes:
            signature = self._sized(module, state.of_sizes[signature], signature, args, kwargs)
        if state.of_values and signature in state.of_values:
            signature = state.of_values[signature].signed(module, signature, args, kwargs)
        compiled = state.chosen.get(signature)
        if signature is None or (compiled is not None and not (state.requests or state.doubts)):
            chosen = None if compiled is None else compiled.forward
            found = (chosen or forward)(module, *args, **kwargs)
            if state.misfits:
                self._tell_sizes_apart(module, state, signature, args, kwargs)
            return found
        compiled = self._look(module, state, signature, args, kwargs)
        chosen = None if compiled is None else compiled.forward
        outer = _CALLS.waits
        _CALLS.waits = outer or (compiled is None and signature in state.requests)
        state.running += 1
        try:
            found = (chosen or forward)(module, *args, **kwargs)
        finally:
            state.running -= 1
            _CALLS.waits = outer
        if state.misfits:
            self._tell_sizes_apart(module, state, signature, args, kwargs)
        return found

    def begin(self, module: nn.Module, *, strict: bool, waits: bool = False) -> None:
        """Decide anew from the module's next call on.

        strict: raise there, where it cannot be compiled. waits: calls wait for what they need.
        """
        self.kernel_weights.release(module)
        self._compilations.forget_failures()
        self._modules[module] = ModuleCalls(strict=strict, waits=waits or strict)

    def waits_no_more(self, module: nn.Module) -> None:
        """Calls go on while they are compiled from now on."""
        state = self._state(module)
        state.waits = state.strict

    def jobs(self, module: nn.Module) -> list[Job]:
        """What goes on for a module."""
        state = self._modules.get(module)
        requests = list(state.requests.values()) if state is not None else []
        return [request.job for request in requests if request.job is not None]

    def adopt(self, module: nn.Module) -> None:
        """Have what is ready take effect."""
        state = self._modules.get(module)
        for request in list(state.requests.values()) if state is not None else ():
            if request.compiled is not None:
                self._adopt(module, self._state(module), request)

    def drop_requests(self, module: nn.Module) -> None:
        """Let nothing that is being compiled for a module take effect."""
        if (state := self._modules.get(module)) is not None:
            state.requests, state.doubts = {}, {}

    def decided(self, module: nn.Module, own: SwapDecision) -> SwapDecision | None:
        """The outcome of a module that was called; None where nothing was decided."""
        state = self._modules.get(module)
        return None if state is None or not state.chosen else self._outcome(state, own)

    def forwards(self, module: nn.Module) -> list[Forward]:
        """The compiled layers that a module's calls run on."""
        state = self._modules.get(module)
        found = [*state.chosen.values()] if state is not None else []
        return list(dict.fromkeys(one.forward for one in found if one.forward is not None))

    def _state(self, module: nn.Module) -> ModuleCalls:
        return self._modules.setdefault(module, ModuleCalls())

    def _signature(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> Hashable | None:
        compiler = self._compilations.compiler
        if compiler is None:
            return (module.training,)
        found = compiler.signature(self.layer, module, args, kwargs)
        return None if found is None else (module.training, found)

    def _form(self, module: nn.Module, args: Arguments, kwargs: Keywords) -> Hashable | None:
        form_of = self._compilations.form_of
        form = None if form_of is None else form_of(self.layer, args, kwargs)
        return None if form is None else (module.training, form)

    def _has_other_defaults(self, forward: Forward) -> bool:
        positional, named = self._defaults
        return (
            getattr(forward, "__defaults__", None) is not positional
            or getattr(forward, "__kwdefaults__", None) is not named
        )

    def shapes_misfit(self, module: nn.Module) -> None:
        """See `jit_compilations.Watcher`."""
        if (state := self._modules.get(module)) is not None:
            state.misfits = True

    def _tell_sizes_apart(
        self, module: nn.Module, state: ModuleCalls, signature: Hashable, args: Arguments, kwargs: Keywords
    ) -> None:
        """After a call that its layer did not take: have others of its sizes compiled where a trace fixed them, or of
        other values, where it is of some.
        """
        state.misfits = False
        compiled = state.chosen.get(signature)
        if compiled is None or compiled.forward is None:
            return
        valued = valued_arguments(compiled.forward, self.cls.forward)
        if valued is not None and not (isinstance(signature, Sized) and signature.values):
            state.of_values[signature] = valued
            state.chosen[valued.signed(module, signature)] = compiled
        elif isinstance(signature, Sized) or self.layer.dynamic is not True:
            return
        else:
            fixed = fixed_sizes(compiled.forward, self.cls.forward, args, kwargs)
            if fixed is None:
                return
            state.chosen[Sized(module.training, signature, fixed.sizes)] = compiled
            state.of_sizes[signature] = fixed
        state.chosen.pop(signature, None)
        state.doubts.pop(signature, None)

    def _sized(
        self,
        module: nn.Module,
        fixed: FixedSizes | None,
        signature: Hashable,
        args: Arguments,
        kwargs: Keywords,
    ) -> Sized | None:
        compiler = self._compilations.compiler
        if fixed is not None:
            sizes = fixed.of(args, kwargs)
            return None if sizes is None else Sized(module.training, signature, sizes)
        assert compiler is not None, "it has compiled calls of the module"
        found = compiler.signature(self._compilations.fixed, module, args, kwargs)
        return None if found is None else Sized(module.training, found)

    # -- in a call ---------------------------------------------------------------------------------

    def _look(
        self, module: nn.Module, state: ModuleCalls, signature: Hashable, args: Arguments, kwargs: Keywords
    ) -> Compiled | None:
        """What a call runs on: what is ready is adopted, and what is new is asked for."""
        if BACKGROUND.is_own_thread():  # a trial of a module around this one
            return state.chosen.get(signature)
        waits = state.waits or jit_mode() is JitMode.WAIT
        if not waits or state.doubts:
            self._adopt_what_is_ready(module, state)
        compiled = state.chosen.get(signature)
        if compiled is not None:
            self._doubt(module, state, signature, args, kwargs)
            return compiled
        request = state.requests.get(signature)
        if request is not None and _is_left_behind(request):
            request = None
        if request is None and not _CALLS.waits:
            request = self._request(module, state, signature, args, kwargs, waits)
        if request is None or request.job is None or not waits:
            return None
        wait_for([request.job])
        if request.compiled is None:
            return None
        return self._adopt(module, state, request)

    def _adopt_what_is_ready(self, module: nn.Module, state: ModuleCalls) -> None:
        if not state.requests:
            return
        within = is_within_generation(state)
        ready = [request for request in [*state.requests.values()] if request.compiled is not None]
        if ready and not within and not others_generate():
            for request in ready:
                self._adopt(module, state, request)

    def _doubt(
        self, module: nn.Module, state: ModuleCalls, signature: Hashable, args: Arguments, kwargs: Keywords
    ) -> None:
        """Have a choice that was made on a disturbed machine timed again, in the background, once that is due."""
        doubt = state.doubts.get(signature)
        if doubt is None or _now() < doubt.due or _CALLS.waits:
            return
        request = state.requests.get(signature)
        if request is not None and not _is_left_behind(request):
            return
        doubt.due = _now() + doubt.pause
        if is_timed() and jit_mode() is not JitMode.OFF:
            self._request(module, state, signature, args, kwargs, waits=False, again=True)

    def _request(
        self,
        module: nn.Module,
        state: ModuleCalls,
        signature: Hashable,
        args: Arguments,
        kwargs: Keywords,
        waits: bool,
        again: bool = False,
    ) -> Request | None:
        import torch

        if jit_mode() is JitMode.OFF:
            self._leave(module, state, "KERNELS_HUB_JIT is off")
            return None
        if (state.is_full and not again) or not is_plain_call(args, kwargs):
            return None
        form = self._form(module, args, kwargs)
        if not waits and torch.are_deterministic_algorithms_enabled():
            self._leave(
                module,
                state,
                "under torch.use_deterministic_algorithms nothing is replaced while it runs: "
                "kernelize with wait=True",
            )
            return None
        if not again and len(state.chosen) + len(state.requests) >= (most := signatures_per_module()):
            self._refuse(
                module,
                state,
                signature,
                form,
                f"over budget: {most} call signatures are compiled (KERNELS_HUB_JIT_SIGNATURES)",
            )
            state.spend()
            return None
        try:
            copied = copies(args, kwargs)
        except Exception as error:  # noqa: BLE001 - objects of any kind are among arguments
            if again:
                return None
            self._refuse(module, state, signature, form, f"its arguments cannot be copied: {error}")
            return None
        reference = weakref.ref(module)
        request = Request(
            reference,
            signature,
            *copied,
            inference=torch.is_inference_mode_enabled(),
            background=not waits,
            is_running=lambda: bool(state.running),
            others=lambda: [] if (one := reference()) is None else self.forwards(one),
            strict=lambda: reference() in self.strict_weights,
            again=again,
            form=form,
        )
        if not waits:
            is_within_generation(state)
        with _LOCKS.requests:
            other = state.requests.get(signature)
            if other is not None and (
                other.compiled is not None or not (other.job is None or other.job.is_done)
            ):
                return other
            job = Job(f"compiling {self.cls.__name__}", lambda _: self._work(request), urgent=waits)
            request.job = job
            if not waits and not again:
                self._tell(module, reason=_PENDING)
            BACKGROUND.submit(job)  # first: a thread that sees the request may wait for its job
            state.requests[signature] = request
        return request

    def _refuse(
        self, module: nn.Module, state: ModuleCalls, signature: Hashable, form: Hashable, reason: str
    ) -> None:
        """Keep the original for a signature without asking a compiler."""
        refused = Compiled(None, refusal=Refusal(one_line(reason)))
        if len(state.chosen) < 2 * signatures_per_module() + 64:
            state.chosen[signature] = refused
        else:
            state.is_full = not state.strict
        state.note(form, refused)
        self._compilations.say(reason)
        if state.strict:
            raise KernelImportError(f"{object_name(self.cls)}: {self.layer} cannot be compiled: {reason}")
        record = record_of(module)
        if record is not None and record.own is not None:
            settle(module, self, self._outcome(state, record.own), release=False)

    def _leave(self, module: nn.Module, state: ModuleCalls, reason: str) -> None:
        """Keep the original for now."""
        self._compilations.say(reason)
        if state.strict:
            raise KernelImportError(f"{object_name(self.cls)}: {self.layer} cannot be compiled: {reason}")
        self._tell(module, reason=reason)

    def _adopt(self, module: nn.Module, state: ModuleCalls, request: Request) -> Compiled:
        compiled = request.compiled
        assert compiled is not None
        first = not self.forwards(module)
        signature = request.signature
        if compiled.sized is not None:
            state.of_sizes[signature] = None
            signature = compiled.sized
        with _LOCKS.requests:
            before = state.chosen.get(signature)
            state.chosen[signature] = compiled
            if state.requests.get(request.signature) is request:
                del state.requests[request.signature]
        state.note(request.form, compiled)
        self._note_doubt(state, compiled, signature)
        if before is not None:
            self._release_unused(module, before.forward)
        record = record_of(module)
        if record is not None and record.own is not None:
            release = first and compiled.forward is not None
            settle(module, self, self._outcome(state, record.own), release=release)
        if state.strict and compiled.refusal is not None and compiled.timing is None:
            raise KernelImportError(
                f"{object_name(self.cls)}: {self.layer} cannot be compiled: {compiled.refusal.reason}"
            )
        return compiled

    def _note_doubt(self, state: ModuleCalls, compiled: Compiled, signature: Hashable) -> None:
        """Note when what was adopted is to be timed again, if ever."""
        before = state.doubts.pop(signature, None)
        if compiled.timing is not None and compiled.timing.disturbed:
            pause = _FIRST_RETRIAL_S if before is None else min(2 * before.pause, _LAST_RETRIAL_S)
            state.doubts[signature] = Doubt(_now() + pause, pause)

    def _tell(self, module: nn.Module, *, reason: str) -> None:
        record = record_of(module)
        if record is None or record.own is None or record.own.reason == reason:
            return
        if record.own.variant == AT_FIRST_CALL:
            module.__dict__[RECORD_ATTRIBUTE] = replace(record, own=replace(record.own, reason=reason))

    def _outcome(self, state: ModuleCalls, own: SwapDecision) -> SwapDecision:
        """Of all signatures together: swapped where one is compiled; the first reason where none is."""
        found = [*state.chosen.values()]
        best = next((one for one in found if one.forward is not None), found[-1])
        refusals = [one.refusal for one in found if one.refusal is not None]
        timed = replace(
            own,
            details="\n".join(dict.fromkeys(refusal.details or refusal.reason for refusal in refusals))
            or None,
            original_ms=None if best.timing is None else best.timing.original * 1e3,
            compiled_ms=None if best.timing is None else best.timing.compiled * 1e3,
        )
        if best.forward is None:
            reason = None if best.refusal is None else best.refusal.reason
            return replace(timed, swapped=False, revision=None, variant=None, reason=reason)
        return replace(timed, swapped=True, revision=best.revision, variant=best.variant, reason=None)

    def _work(self, request: Request) -> None:
        """What a request comes to. Never raises: whatever a compiler raises is a reason."""
        module = request.module()
        if module is None:
            return
        try:
            request.compiled = self._compilations.compiled(module, request)
        finally:
            request.args, request.kwargs = (), {}
            with _LOCKS.requests:  # its job may end before it is entered
                is_wanted = self._state(module).requests.get(request.signature) is request
            if not is_wanted:  # nobody waits for it any more
                self._release_unused(module, None if request.compiled is None else request.compiled.forward)

    def _release_unused(self, module: nn.Module, forward: Forward | None) -> None:
        """Drop what was packed for a compiled layer that none of a module's calls run on."""
        if forward is None or forward in self.forwards(module):
            return
        if (weights := weights_protocol(forward)) is not None:
            weights.release(module)


class _CompiledWeights:
    """The weights protocol over all compiled layers that a module's calls run on."""

    def __init__(self, of: JitForward) -> None:
        self._of = of

    def prepare(self, module: nn.Module) -> None:
        """Nothing: a layer packs a module's weights when it is compiled."""

    def packed_nbytes(self, module: nn.Module) -> int:
        """Bytes held for a module beyond its own weights."""
        return sum(one.packed_nbytes(module) for one in self._each(module))

    def free_originals(self, module: nn.Module) -> None:
        """Nothing: calls of other signatures need them."""

    def restore_originals(self, module: nn.Module) -> None:
        """Nothing: none was freed."""

    def refresh(self, module: nn.Module) -> None:
        """Compare all copies with the weights, and make those again that are of others."""
        for one in self._each(module):
            one.refresh(module)

    def strict(self, module: nn.Module, on: bool) -> None:
        """Compare all copies with the weights at every call, or no more, also of layers yet to be compiled."""
        (self._of.strict_weights.add if on else self._of.strict_weights.discard)(module)
        for one in self._each(module):
            one.strict(module, on)

    def release(self, module: nn.Module) -> None:
        """Drop the copies."""
        for one in self._each(module):
            one.release(module)
        self._of.drop_requests(module)

    def _each(self, module: nn.Module) -> list[Any]:
        found = [weights_protocol(forward) for forward in self._of.forwards(module)]
        return [one for one in found if one is not None]


def _defaults_of(function: Forward) -> tuple[object, object]:
    return getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)


def _is_left_behind(request: Request) -> bool:
    """Whether a fork left it with nobody to work on it."""
    return request.compiled is None and request.job is not None and request.job.is_done


@dataclass(frozen=True)
class PendingLayer:
    """Stands for the layer where a `LoadedLayer` has one."""

    layer: CompiledLayer
    backend: str
    has_backward: bool = False
    can_torch_compile: bool = False

    def forward_for(self, cls: type[nn.Module]) -> JitForward:
        """The forward of a class's modules; the same for the same class."""
        return _forward_of(self.layer, self.backend, cls)  # type: ignore[arg-type]  # a class can be hashed


def wait_until_compiled(model: nn.Module, timeout: float | None = None) -> bool:
    """Wait until all that is being compiled for a model's calls is ready, and have it take effect.

    The C++ of bundled layers that is being built counts, too.

    timeout: seconds to wait at most; None: until it is ready. A line on stderr shows the progress, where that is a
        terminal. Compilation begins with the first call of each kind: call the model first.

    Returns whether all is ready. What cannot be compiled, or gains nothing, is ready as well: see `report(model)`.

    >>> model = kernelize(nn.Sequential(nn.SiLU()), mode=Mode.INFERENCE, device="cpu")
    >>> result = model(torch.ones(2, 4))
    >>> wait_until_compiled(model)
    True
    """
    pending: list[tuple[JitForward, nn.Module]] = [
        (bound.func, module)
        for module in model.modules()
        if type(bound := module.__dict__.get("forward")) is KernelForward
        and isinstance(bound.func, JitForward)
    ]
    jobs = [job for forward, module in pending for job in forward.jobs(module)]
    started = time.monotonic()
    ready = wait_for(jobs, timeout)
    left = None if timeout is None else max(0.0, timeout - (time.monotonic() - started))
    ready = wait_for_native_builds(left) and ready
    for forward, module in pending:
        forward.adopt(module)
    return ready


@functools.lru_cache(maxsize=1024)
def _forward_of(layer: CompiledLayer, backend: str, cls: type[nn.Module]) -> JitForward:
    if has_no_forward(cls):
        raise LayerContractError(f"{object_name(cls)} has no forward that {layer} could be compiled of")
    return JitForward(layer, backend, cls)
