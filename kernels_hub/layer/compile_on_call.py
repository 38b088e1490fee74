"""The forward of a module whose layer is compiled at its first call.

    bound by kernelize -> first call: its key -> known, or compiled of a copy -> load -> bind in its place
                                              -> else the original forward, and the reason in the record

Where calls come in several forms (a cache of keys and values is empty, then full), each is compiled at its first call,
and all stay behind this forward.

One thread compiles; calls that come meanwhile run the original forward. Nothing of this model's, or of another's, is
changed by it but the forward and the record of the module that was called.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_hub.errors import KernelImportError, LayerContractError
from kernels_hub.layer.bind import (
    Forward,
    KernelForward,
    bind_class_forward,
    load_layer,
    object_name,
    weights_protocol,
)
from kernels_hub.layer.outcome import RECORD_ATTRIBUTE, Outcome, record_of
from kernels_hub.repository.compiled import CompiledLayer, HasForms, LayerCompiler, Wanted, layer_compiler
from kernels_hub.repository.refs import LocalLayerRepository

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger("kernels_hub")

AT_FIRST_CALL = "compiled at its first call"
"""Variant of an outcome that is still to come."""

_TOLD = 4
"""Lines of a message that a reason has at most."""

_ENOUGH = 2
"""Modules of a class that fail for one reason before the others are believed to fail for it, too."""

_MOST_FORMS = 8
"""Forms of calls of a module that are compiled; others run the original forward."""

_ONE = threading.Lock()
"""Held while something is compiled: torch.export is not for several threads."""


Form = tuple[int, ...]
"""See `HasForms.form`."""


@dataclass(frozen=True)
class _Known:
    """What came of a call's key. Without `forward`, `reason` says why."""

    forward: Forward | None
    revision: str | None = None
    variant: str | None = None
    reason: str | None = None
    only_in_training: bool = False
    """Whether the layer refused a module in training, and may take it after eval()."""


class CompileOnCall:
    """A forward for the modules of one class: called with the module first, as a class's own is."""

    def __init__(self, layer: CompiledLayer, backend: str, cls: type[nn.Module]) -> None:
        self.layer, self.backend, self.cls = layer, backend, cls
        self.kernel_weights = _Weights(self)
        """See `weights_protocol`."""
        self._known: dict[str, _Known] = {}
        self._failures: list[str] = []
        self._modules: weakref.WeakKeyDictionary[nn.Module, dict[Form, _Known]] = weakref.WeakKeyDictionary()
        self._strict: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.strict_weights: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules whose copies of weights are compared at every call."""
        self.__signature__ = inspect.signature(cls.forward)

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The result of a call: of the compiled layer where there is one, or can be one."""
        import torch

        if torch.compiler.is_compiling():
            return self.cls.forward(module, *args, **kwargs)
        form = self._forms.form(args, kwargs) if self._forms is not None else ()
        forms = self._modules.get(module, {})
        known = forms.get(form) if form is not None else None
        if known is not None and known.only_in_training and not module.training:
            known = None
        if known is None and form is not None and len(forms) < _MOST_FORMS and _is_plain_call(args, kwargs):
            known = self._decide(module, form, args, kwargs)
        forward = self.cls.forward if known is None or known.forward is None else known.forward
        return forward(module, *args, **kwargs)

    def begin(self, module: nn.Module, *, strict: bool) -> None:
        """Decide anew at the module's next call. strict: raise there, where it cannot be compiled."""
        self.kernel_weights.release(module)
        self._modules.pop(module, None)
        self._known = {key: one for key, one in self._known.items() if one.forward is not None}
        self._failures = []
        (self._strict.add if strict else self._strict.discard)(module)

    def decided(self, module: nn.Module, own: Outcome) -> tuple[Forward | None, Outcome] | None:
        """The forward of a module that was called, and its outcome; None where none was."""
        forms = self._modules.get(module)
        if not forms:
            return None
        known = next((one for one in forms.values() if one.forward is not None), [*forms.values()][-1])
        return self._bound_for(known), _outcome(known, own)

    def forwards(self, module: nn.Module) -> list[Forward]:
        """The compiled layers that a module's calls run on."""
        return [one.forward for one in self._modules.get(module, {}).values() if one.forward is not None]

    @functools.cached_property
    def _forms(self) -> HasForms | None:
        """Who tells the forms of this class's calls from each other; None where all are one."""
        try:
            compiler = layer_compiler(self.backend)
        except Exception:  # noqa: BLE001 - whoever compiles will tell it
            return None
        if isinstance(compiler, HasForms) and compiler.has_forms(self.layer, self.cls):
            return compiler
        return None

    def _decide(
        self, module: nn.Module, form: Form, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> _Known | None:
        if not _ONE.acquire(blocking=False):
            return None
        known = _in_a_thread(lambda: self._find(module, args, kwargs), _ONE)
        if known.reason is not None and module in self._strict:
            raise KernelImportError(
                f"{object_name(self.cls)}: {self.layer} cannot be compiled: {known.reason}"
            )
        others = self.forwards(module)
        self._modules.setdefault(module, {})[form] = known
        record = record_of(module)
        if record is not None and record.own is not None and (known.forward is not None or not others):
            from kernels_hub.layer.kernelize import settle

            settle(module, self, self._bound_for(known), _outcome(known, record.own))
        return known

    def _bound_for(self, known: _Known) -> Forward | None:
        """What a module is bound to then: this, where other calls may come to something else."""
        stays = known.only_in_training or (self._forms is not None and known.forward is not None)
        return self if stays else known.forward

    def _find(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Known:
        """What a call comes to. Never raises: whatever a compiler raises is a reason."""
        key = None
        try:
            compiler = layer_compiler(self.backend)
            if compiler is None:
                return self._failed(None, f"no layer compiler is installed for {self.backend}")
            key = compiler.key(self.layer, module, args, kwargs)
            found = self._known.get(key)
            if found is None and len(self._failures) >= _ENOUGH and len(set(self._failures)) == 1:
                return self._failed(key, self._failures[0])
            if found is None:
                found = self._known[key] = self._made(compiler, key, module, args, kwargs)
            return found if found.forward is None else self._prepared(found, module)
        except Exception as error:  # noqa: BLE001 - any of them is a reason to keep the original
            return self._failed(key, _short(str(error)) or type(error).__name__)

    def _made(
        self,
        compiler: LayerCompiler,
        key: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> _Known:
        folder = Path(compiler.repository(_wanted(self.layer, module, args, kwargs), key))
        loaded = load_layer(LocalLayerRepository(folder, layer_name=self.layer.layer_name), self.backend)
        forward = bind_class_forward(loaded, self.cls, False, str(self.layer))
        assert loaded.resolved is not None
        logger.info("%s: %s runs on %s", self.layer, object_name(self.cls), folder)
        return _Known(forward, folder.name[:12], loaded.resolved.files.variant)

    def _prepared(self, found: _Known, module: nn.Module) -> _Known:
        """The layer with the module's weights packed, or why it does not take the module."""
        assert found.forward is not None
        weights = weights_protocol(found.forward)
        if weights is None:
            return found
        self._lay_beside(found.forward, module)
        weights.prepare(module)
        if module in self.strict_weights:
            weights.strict(module, True)
        reason = _refusal(found.forward, module)
        if reason is not None and module.training:
            reason = f"{reason}; decided anew once it is no longer in training"
            logger.warning("%s runs its original forward: %s", object_name(self.cls), reason)
            return _Known(None, reason=reason, only_in_training=True)
        return found if reason is None else self._failed(None, reason)

    def _lay_beside(self, forward: Forward, module: nn.Module) -> None:
        """Let the programs of a module's forms hold packed weights that are equal once."""
        found = map(program_of, (forward, *self.forwards(module)))
        programs = dict.fromkeys(one for one in found if hasattr(one, "beside"))
        for one in programs:
            others = (other for other in programs if other is not one)
            one.beside = tuple(dict.fromkeys((*one.beside, *others)))

    def _failed(self, key: str | None, reason: str) -> _Known:
        known = _Known(None, reason=f"it cannot be compiled: {reason}")
        if key is not None:
            self._known[key] = known
        if reason not in self._failures:
            logger.warning("%s keeps its original forward: %s", object_name(self.cls), known.reason)
        self._failures.append(reason)
        return known


class _Weights:
    """The weights protocol over all compiled layers that a module's calls run on."""

    def __init__(self, of: CompileOnCall) -> None:
        self._of = of

    def prepare(self, module: nn.Module) -> None:
        """Nothing: a layer packs a module's weights when it is compiled."""

    def packed_nbytes(self, module: nn.Module) -> int:
        """Bytes held for a module beyond its own weights."""
        return sum(one.packed_nbytes(module) for one in self._each(module))

    def free_originals(self, module: nn.Module) -> None:
        """Nothing: calls of other forms need them."""

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

    def _each(self, module: nn.Module) -> list[Any]:
        found = [weights_protocol(one) for one in self._of.forwards(module)]
        return [one for one in found if one is not None]


@dataclass(frozen=True)
class PendingLayer:
    """Stands for the layer where a `LoadedLayer` has one."""

    layer: CompiledLayer
    backend: str
    has_backward: bool = False
    can_torch_compile: bool = False

    def forward_for(self, cls: type[nn.Module]) -> CompileOnCall:
        """The forward of a class's modules; the same for the same class."""
        return _forward_of(self.layer, self.backend, cls)  # type: ignore[arg-type]  # a class can be hashed


@functools.lru_cache(maxsize=1024)
def _forward_of(layer: CompiledLayer, backend: str, cls: type[nn.Module]) -> CompileOnCall:
    if cls.forward is _no_forward():
        raise LayerContractError(f"{object_name(cls)} has no forward that {layer} could be compiled of")
    return CompileOnCall(layer, backend, cls)


def _no_forward() -> Any:
    from torch import nn

    return nn.Module.forward


def _short(message: str) -> str:
    """A message in a line: of one that lists much, the first of it."""
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    more = [f"and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
    return " ".join(lines[:_TOLD] + more)


def _outcome(known: _Known, own: Outcome) -> Outcome:
    if known.only_in_training:
        return replace(own, reason=known.reason)
    if known.forward is None:
        return replace(own, swapped=False, revision=None, variant=None, reason=known.reason)
    return replace(own, swapped=True, revision=known.revision, variant=known.variant, reason=None)


def _wanted(
    layer: CompiledLayer, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Wanted:
    """A copy of the module that shares its parameters, without kernels, and copies of the arguments."""
    import torch
    from torch.utils import _pytree as pytree

    memo: dict[int, Any] = {id(one): one for one in module.parameters()}
    for one in module.modules():
        if type(bound := one.__dict__.get("forward")) is KernelForward:
            memo[id(bound)] = _NO_KERNEL
    twin = copy.deepcopy(module, memo)
    for one in twin.modules():
        if one.__dict__.get("forward") is _NO_KERNEL:
            del one.__dict__["forward"]
        one.__dict__.pop(RECORD_ATTRIBUTE, None)
    copied = pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), (args, dict(kwargs)))
    return Wanted(layer, twin, *copied)


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


def _is_plain_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors are what they seem: nothing is traced, transformed, or made of other tensors."""
    import torch
    from torch.utils import _pytree as pytree

    if torch._C._get_tracing_state() is not None:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
        return False
    return all(
        type(leaf) in (torch.Tensor, torch.nn.Parameter) and not leaf.is_meta
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, torch.Tensor)
    )


def _in_a_thread(work: Callable[[], _Known], held: threading.Lock) -> _Known:
    """Run in a thread of its own, which releases the lock: no inference mode or autocast is on there."""
    box: list[_Known] = []

    def run() -> None:
        try:
            box.append(work())
        finally:
            held.release()

    thread = threading.Thread(target=run, name="kernels_hub-compile", daemon=True)
    thread.start()
    thread.join()
    return box[0]
