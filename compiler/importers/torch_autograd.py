"""Records what a forward says to autograd while torch.export traces it; export itself drops most of that.

    x.detach(), x.data, torch.no_grad()     the gradient is zero there
    a torch.autograd.Function, a hook       its gradient is unknown here, and refused where it is asked for

Ops are noted in the "custom" entry of their nodes' meta, which decomposing a program keeps. A note is "" for a gradient
of zero, or the reason why there is none. Modes of autograd are only followed, never entered: a program has no regions.

Written for torch 2.11 to 2.15: the classes of `torch.autograd.grad_mode` call `torch._C._set_grad_enabled`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

import torch
from torch import nn
from torch.fx import traceback
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils.hooks import RemovableHandle

from kernels_hub.compiler.errors import ImportFailure
from kernels_hub.compiler.importers import known_values
from kernels_hub.compiler.importers.known_code import is_of_model
from kernels_hub.compiler.importers.padded_encoders import encoded
from kernels_hub.compiler.importers.recurrent_calls import instead
from kernels_hub.compiler.importers.tensor_facts import ANY
from kernels_hub.compiler.importers.torch_direct import ITSELF, NOTE
from kernels_hub.compiler.importers.user_lines import NOWHERE, frame_text

_OPERAND = "kernels_hub gradient of operand"
"""Of what the node reads."""

_MODES = torch.autograd.grad_mode
_DETACH = frozenset({torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.detach_})
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_REQUIRES = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_REFUSED = {
    torch.Tensor.register_hook: "a hook is registered on it",
    torch.Tensor.register_post_accumulate_grad_hook: "a hook is registered on it",
    torch.Tensor.requires_grad_: "requires_grad_() is called on it",
    torch.Tensor.requires_grad.__set__: "its requires_grad is set",  # type: ignore[attr-defined]
}


class _Modes:
    """The mode of autograd that the forward believes in, and the note of ops that come now."""

    def __init__(self) -> None:
        self.enabled = True
        self._before: dict[int, tuple[Any, list[bool]]] = {}
        """By the id of a context manager: itself, and the modes that it will restore."""
        self._reason: str | None = None
        self._open: AbstractContextManager[Any] | None = None

    def switched(self, enabled: bool, frame: Any) -> None:
        """`torch._C._set_grad_enabled` was called from a frame."""
        owner, step = frame.f_locals.get("self"), frame.f_code.co_name
        outer = frame.f_back
        if step == "__init__" and isinstance(outer.f_locals.get("self"), _MODES.no_grad):
            owner, step = outer.f_locals["self"], outer.f_code.co_name
        if not isinstance(owner, (_MODES.no_grad, _MODES.enable_grad, _MODES.set_grad_enabled)):
            self.enabled = enabled
        elif step in {"__exit__", "__call__"}:
            self.left(owner)
            return
        else:
            self.entered(
                owner, enabled, again=step == "__enter__" and isinstance(owner, _MODES.set_grad_enabled)
            )
        self._refresh()

    def entered(self, owner: object, enabled: bool, *, again: bool = False) -> None:
        """A context manager was entered. again: it was made by a call that had entered it."""
        if not again:
            self._before.setdefault(id(owner), (owner, []))[1].append(self.enabled)
        self.enabled = enabled
        self._refresh()

    def left(self, owner: object) -> None:
        """A context manager was left."""
        _, modes = self._before.get(id(owner), (owner, []))
        self.enabled = modes.pop() if modes else True
        self._refresh()

    @contextmanager
    def function(self, reason: str) -> Iterator[None]:
        """In the forward of a torch.autograd.Function."""
        before = self._reason
        if self.enabled and before is None:
            self._reason = reason
            self._refresh()
        try:
            yield
        finally:
            self._reason = before
            self._refresh()

    def close(self) -> None:
        """End the note of ops that come now."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def _refresh(self) -> None:
        self.close()
        note = self._reason if self._reason is not None else None if self.enabled else ""
        if note is not None:
            self._open = traceback.annotate({NOTE: note})
            self._open.__enter__()


class Watcher(Protocol):
    """What watches one forward: see `asked_tensors`."""

    def note(self, func: object, frame: FrameType) -> None:
        """One of `tensor_facts.ANY` was called from a frame."""

    def kept_attributes(self) -> AbstractContextManager[None]:
        """Open while the forward runs."""


class _Listener(TorchFunctionMode):
    """Follows what a forward asks of autograd."""

    def __init__(self, modes: _Modes, watcher: Watcher) -> None:
        super().__init__()
        self._modes, self._note = modes, watcher.note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if not torch.compiler.is_dynamo_compiling():  # as regions of control flow are
            traceback.set_stack_trace([frame_text(sys._getframe(1))])
        if func in ANY:
            self._note(func, _asking())
        if func is torch._C._set_grad_enabled:
            self._modes.switched(bool(args[0]), _asking())
            return None
        if func in _DETACH or func == _DATA:
            if not self._modes.enabled or self._modes._reason is not None:
                return args[0].detach() if func == _DATA else func(*args, **kwargs)
            with traceback.annotate({NOTE: ""}):
                return args[0].detach() if func == _DATA else func(*args, **kwargs)
        if func is torch.Tensor.contiguous and args[0].is_contiguous(*args[1:], **kwargs):
            return _contiguous(*args, **kwargs)
        if func is torch.Tensor.retain_grad:
            return None
        if func == _REQUIRES:
            if self._modes.enabled and is_of_model(_asking()):
                _note_operand(
                    args[0], "the module asks whether it requires a gradient, and may do otherwise then"
                )
            return func(*args, **kwargs)
        reason = _REFUSED.get(func)
        if reason is None:
            whole = instead(func, args, kwargs)
            return func(*args, **kwargs) if whole is None else whole()
        if self._modes.enabled:
            _note_operand(args[0], reason)
        if func is torch.Tensor.requires_grad_:
            return args[0]
        return RemovableHandle(OrderedDict()) if "hook" in reason else None


def _asking() -> FrameType:
    """The frame that called the function which a mode's caller handles, beyond that of `known_values`."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == known_values.__name__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    """`tensor.contiguous()` of one that is: PyTorch returns the tensor itself, and no op would be traced."""
    with traceback.annotate(
        {ITSELF: ""}
    ):  # without it the op would be that of all that the tensor is used for
        alias = torch.ops.aten.alias.default(tensor)
    of_format = {} if memory_format is torch.contiguous_format else {"memory_format": memory_format}
    made: torch.Tensor = torch.ops.aten.contiguous.default(alias, **of_format)
    return made


def _note_operand(tensor: object, reason: str) -> None:
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
        with traceback.annotate({_OPERAND: reason}):
            torch.ops.aten.alias.default(tensor)


@contextmanager
def listening(module: nn.Module, watcher: Watcher) -> Iterator[None]:
    """While it is open, what the module's forward says to autograd in this thread is noted in programs traced of it."""
    modes = _Modes()
    with _patched(modes), traceback.preserve_node_meta(), _forward_noted(module, watcher, modes):
        traceback.set_stack_trace([NOWHERE])
        yield


@contextmanager
def _forward_noted(module: nn.Module, watcher: Watcher, modes: _Modes) -> Iterator[None]:
    replaced = vars(module).get("forward")
    original = module.forward

    @functools.wraps(original)
    def forward(*args: object, **kwargs: object) -> Any:
        before = [(one, items_of(one)) for one in _containers((args, [*kwargs.values()]))]
        try:
            with watcher.kept_attributes(), _Listener(modes, watcher), known_values.within_forward():
                found = original(*args, **kwargs)
        finally:
            modes.close()
            traceback.set_stack_trace([NOWHERE])
        for one, items in before:
            now = items_of(one)
            if len(now) != len(items) or any(a is not b for a, b in zip(now, items, strict=True)):
                raise ImportFailure(
                    f"the forward changes a {type(one).__name__} among its arguments, and a program leaves them as "
                    "they are; return what it puts there"
                )
        return found

    forward.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    object.__setattr__(module, "forward", forward)
    try:
        yield
    finally:
        if replaced is None:
            object.__delattr__(module, "forward")
        else:
            object.__setattr__(module, "forward", replaced)


def _containers(tree: object) -> Iterator[list[object] | dict[object, object]]:
    """The lists and dicts in arguments."""
    if not isinstance(tree, (list, dict, tuple)) or type(tree) not in (list, dict, tuple):
        return
    if not isinstance(tree, tuple):
        yield tree
    for one in items_of(tree):
        yield from _containers(one)


def items_of(container: Iterable[object]) -> list[object]:
    """What a list, set or dict holds; of a dict, its keys and then its values."""
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


# -- what no mode of torch functions sees

_LOCK = threading.Lock()
_TRACING: dict[int, _Modes] = {}
"""Thread -> the modes of the forward that it traces."""
_UNDO: list[Callable[[], None]] = []


@contextmanager
def _patched(modes: _Modes) -> Iterator[None]:
    """Functions of autograd and inference_mode tell of themselves, and masks are not read, in this thread; for others
    they are as they were.
    """
    thread = threading.get_ident()
    with _LOCK:
        if not _TRACING:
            _UNDO.extend(_patch())
        before = _TRACING.get(thread)
        _TRACING[thread] = modes
    try:
        yield
    finally:
        with _LOCK:
            if before is None:
                del _TRACING[thread]
            else:
                _TRACING[thread] = before
            if not _TRACING:
                while _UNDO:
                    _UNDO.pop()()


def _patch() -> list[Callable[[], None]]:
    function, inference = torch.autograd.Function, torch.inference_mode
    enter, leave = inference.__enter__, inference.__exit__

    def entered(self: Any) -> Any:
        modes = _TRACING.get(threading.get_ident())
        if modes is None:
            return enter(self)
        modes.entered(self, not self.mode and modes.enabled)
        return None

    def left(self: Any, *error: object) -> Any:
        modes = _TRACING.get(threading.get_ident())
        if modes is None or id(self) not in modes._before:
            return leave(self, *error)
        modes.left(self)
        return None

    inference.__enter__, inference.__exit__ = entered, left  # type: ignore[method-assign]
    own = vars(function).get("apply")
    function.apply = classmethod(functools.partial(_applied, own))

    def undo_inference() -> None:
        inference.__enter__, inference.__exit__ = enter, leave  # type: ignore[method-assign]

    def undo_function() -> None:
        if own is None:
            del function.apply
        else:
            function.apply = own

    detect = transformer._detect_is_causal_mask

    def detected(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        """Whether nn.Transformer may take a mask for causal, a hint: it looks at what it holds, which no trace has."""
        return is_causal is True if threading.get_ident() in _TRACING else detect(mask, is_causal, size)

    transformer._detect_is_causal_mask = detected

    encode = nn.TransformerEncoder.forward

    @functools.wraps(encode)
    def encoding(
        self: nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        given = src, mask, src_key_padding_mask, is_causal
        return encoded(encode, self, *given) if threading.get_ident() in _TRACING else encode(self, *given)

    nn.TransformerEncoder.forward = encoding  # type: ignore[method-assign]

    def undo_transformers() -> None:
        transformer._detect_is_causal_mask = detect
        nn.TransformerEncoder.forward = encode  # type: ignore[method-assign]

    return [undo_inference, undo_function, undo_transformers]


def _applied(own: Any, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.Function.apply`."""
    original = super(torch.autograd.Function, cls).apply if own is None else own.__get__(None, cls)
    modes = _TRACING.get(threading.get_ident())
    if modes is None:
        return original(*args, **kwargs)
    if cls is checkpoint.CheckpointFunction:  # the gradient of what it runs
        run, _, *rest = args
        return run(*rest)
    name = f"{cls.__module__}.{cls.__qualname__}"
    with modes.function(f"{name} is a torch.autograd.Function, whose backward is its own"):
        found = original(*args, **kwargs)
        # It may return what it was given, of which nothing is noted.
        return pytree.tree_map_only(torch.Tensor, torch.ops.aten.alias.default, found)


# -- programs


def note_of(node: Any) -> str | None:
    """The note of an op: "" for a gradient of zero, the reason why it is unknown, or None."""
    found: str | None = (node.meta.get("custom") or {}).get(NOTE)
    return found


def complete(program: Any) -> dict[str, str]:
    """Put the notes of a traced program where they belong; placeholder -> reason, of inputs and parameters.

    What is written in place behind autograd's back (through a detached tensor, in a no_grad region) gets a reason:
    its numbers change, and its gradient does not.
    """
    noted: dict[str, str] = {}
    for node in program.graph.nodes:
        reason = (node.meta.get("custom") or {}).get(_OPERAND)
        if reason is None:
            continue
        of = node.args[0]
        if of.op == "placeholder":
            noted.setdefault(of.name, reason)
        elif note_of(of) != "":
            _note(of, reason)
    _note_writes(program.graph)
    return noted


def _note(node: Any, reason: str) -> None:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), NOTE: reason}


def _note_writes(graph: Any) -> None:
    order = {node: index for index, node in enumerate(graph.nodes)}
    roots: dict[Any, Any] = {}
    families: dict[Any, list[Any]] = {}
    writes: list[tuple[Any, Any]] = []
    for node in graph.nodes:
        shared, written = _memory(node)
        root = node if shared is None else roots.get(shared, shared)
        roots[node] = root
        families.setdefault(root, []).append(node)
        if node.target is torch.ops.aten.detach_.default:
            continue  # it writes no number
        writes += [(node, one) for one in written]
    for node, target in writes:
        root = roots.get(target, target)
        if note_of(root) is not None:
            continue
        hidden = [
            one for one in families[root] if one is not node and note_of(one) is not None and one is not root
        ]
        later = any(order[user] > order[node] for one in hidden for user in one.users if user is not node)
        if note_of(node) is not None or target in hidden or later:
            _note(node, "it is written in place through a tensor that autograd does not follow")


def _memory(node: Any) -> tuple[Any, list[Any]]:
    """The operand whose memory an op's result is in, and the operands that it writes."""
    if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        return node.args[0], []
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return None, []
    returned = {
        name for one in schema.returns if one.alias_info is not None for name in one.alias_info.before_set
    }
    shared, written = None, []
    for index, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is None:
            continue
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        if not isinstance(value, torch.fx.Node):
            continue
        if info.is_write:
            written.append(value)
        if shared is None and set(info.before_set) & returned:
            shared = value
    return shared, written


ASKED_TO_CHECKPOINT = "is_grad_enabled"
_CHECKPOINTING = frozenset({"transformers.modeling_layers", "transformers.utils.generic"})


def is_checkpointing(function: FunctionType) -> bool:
    """Whether a function is of those of transformers around forwards that ask `ASKED_TO_CHECKPOINT` for one thing.

    They ask where a layer's `gradient_checkpointing` is on and it is in training: to compute it again in the backward
    pass.
    """
    return function.__globals__.get("__name__") in _CHECKPOINTING


def hooked(module: nn.Module) -> str:
    """The reason why gradients of a module are unknown: of a module in it. "" where there is none."""
    for path, one in module.named_modules():
        if one._backward_hooks or one._backward_pre_hooks:
            return f"{path or type(module).__name__} has backward hooks, which may change gradients"
        forward = getattr(type(one), "forward", None)
        if type(one).__module__.startswith("torch.") or not isinstance(forward, FunctionType):
            continue
        idle = is_checkpointing(forward) and not getattr(one, "gradient_checkpointing", False)
        if not idle and ASKED_TO_CHECKPOINT in _names(forward.__code__):
            return f"{path or type(module).__name__} asks torch.is_grad_enabled(), and may do otherwise in training"
    return ""


def _names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return {*code.co_names, *(name for loop in inner for name in _names(loop))}
