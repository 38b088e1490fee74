"""Guards in front of kernels: the original serves where somebody changed it, or a mode of PyTorch sees its calls.

A kernel stands for the forward that its class had when it was bound, and for the functions that this forward calls by
name. Code that replaces one of them (`SomeNorm.forward = other`, `modeling_x.apply_rotary_pos_emb = other`) means the
modules that are there, too. And what `torch.overrides` and dispatch modes are to see, or change, are the calls that the
original makes: so it runs while one is on, and for arguments of subclasses of torch.Tensor.

That is asked at every call, in a tenth of a microsecond, by code that is written for the signature of the forward.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from kernels_hub.kernelization.validate import parameters_of

if TYPE_CHECKING:
    from torch import nn

Forward = Callable[..., Any]

_STARS: Mapping[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

_NO_MODE = "not _function_modes() and (_is_compiling() or not _dispatch_modes())"


def guarded_forward(kernel: Forward, cls: type[nn.Module], *, passes_on: bool = False) -> Forward:
    """`kernel` under the arguments of `cls.forward`, as long as nothing replaced or watches that forward.

    The same for the same kernel, class and forward. Without a guard where `cls` computes its forward at each look-up.

    passes_on: hand on whatever is given, for a kernel that is a copy of the forward, its decorators included.
    """
    original: Any = cls.forward
    if original is not cls.forward:
        return kernel if passes_on else renamed_forward(kernel, cls)
    return _guarded(kernel, cls, original, passes_on)  # type: ignore[arg-type]  # a class can be hashed


def renamed_forward(kernel: Forward, cls: type[nn.Module]) -> Forward:
    """`kernel` under the argument names of `cls.forward`, so that calls by keyword keep working."""
    return _renamed(kernel, cls, cls.forward)  # type: ignore[arg-type]  # a class can be hashed


@functools.lru_cache(maxsize=4096)
def _guarded(kernel: Forward, cls: type[nn.Module], original: Forward, passes_on: bool) -> Forward:
    parameters, arguments, first, namespace = _spelling(() if passes_on else parameters_of(cls))
    if passes_on:
        parameters = arguments = ["*args", "**kwargs"]
    is_static = isinstance(inspect.getattr_static(cls, "forward"), staticmethod)
    conditions = ["_type(self).forward is _original", *_unchanged_functions(original, namespace)]
    namespace |= {"_type": type, "_kernel": kernel, "_original": original, **_questions()}
    unchanged = " and ".join(conditions)
    quick = _NO_MODE
    if first is not None:
        quick += f" and _type({first}) is _Tensor"
    given = ", ".join(arguments)
    theirs = given if is_static else f"self, {given}"
    exec(  # noqa: S102 - the names come from a real signature, so they are identifiers
        f"def forward(self, {', '.join(parameters)}):\n"
        f"    if {unchanged}:\n"
        f"        if {quick} or _is_unseen({first}):\n"
        f"            return _kernel(self, {given})\n"
        f"    return _type(self).forward({theirs})\n",
        namespace,
    )
    guarded: Any = namespace["forward"]
    label(guarded, kernel)
    if passes_on:
        guarded.__signature__ = inspect.signature(original)
    return guarded  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4096)
def _renamed(kernel: Forward, cls: type[nn.Module], original: Forward) -> Forward:  # noqa: ARG001 - a key
    parameters, arguments, _, namespace = _spelling(parameters_of(cls))
    namespace["_kernel"] = kernel
    exec(  # noqa: S102 - the names come from a real signature, so they are identifiers
        f"def forward(self, {', '.join(parameters)}):\n    return _kernel(self, {', '.join(arguments)})\n",
        namespace,
    )
    renamed: Any = namespace["forward"]
    label(renamed, kernel)
    return renamed  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4096)
def guarded_function(kernel: Forward, original: Forward, place: tuple[FunctionType, str]) -> Forward:
    """A kernel where a forward calls `original`: what its name means by now, once that is something else.

    place: the function that calls it, and the name by which it does.
    """
    namespace: dict[str, object] = {"_kernel": kernel, "_original": original, "_meant": _reader(*place)}
    unchanged = " and ".join(["meant is _original", *_unchanged_functions(original, namespace)])
    exec(  # noqa: S102 - the names are those of globals in real code, which are identifiers
        "def function(*args, **kwargs):\n"
        "    meant = _meant()\n"
        f"    return (_kernel if {unchanged} else meant)(*args, **kwargs)\n",
        namespace,
    )
    function: Any = namespace["function"]
    label(function, original)
    return function  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=4096)
def guarded_attribute(kernel: Forward, original: Forward) -> Forward:
    """A kernel in the place of a function that a module holds, as long as nothing that the function calls was replaced,
    and no mode sees its calls.
    """
    target = original.func if isinstance(original, functools.partial) else original
    namespace: dict[str, object] = {"_type": type, "_kernel": kernel, "_original": original, **_questions()}
    conditions = [*_unchanged_functions(target, namespace), "True"]
    exec(  # noqa: S102 - the names are those of globals in real code, which are identifiers
        "def function(*args, **kwargs):\n"
        f"    if {' and '.join(conditions)}:\n"
        f"        if {_NO_MODE} and args and _type(args[0]) is _Tensor or _is_unseen(*args[:1]):\n"
        "            return _kernel(*args, **kwargs)\n"
        "    return _original(*args, **kwargs)\n",
        namespace,
    )
    function: Any = namespace["function"]
    label(function, kernel)
    return function  # type: ignore[no-any-return]


def label(function: Any, original: Forward) -> None:
    """Give `function` the names of `original`; without `__wrapped__`, which torch.compile would follow."""
    for name in ("__module__", "__qualname__", "__doc__"):
        if (value := getattr(original, name, None)) is not None:  # a functools.partial has none
            setattr(function, name, value)


def _spelling(
    given: Sequence[inspect.Parameter],
) -> tuple[list[str], list[str], str | None, dict[str, object]]:
    """Parameters and arguments of a forward in source text, the name of the first one, and what the defaults mean."""
    namespace: dict[str, object] = {}
    parameters: list[str] = []
    arguments: list[str] = []
    first: str | None = None
    for index, parameter in enumerate(given):
        default, stars = "", _STARS.get(parameter.kind, "")
        if index == 0 and not stars:
            first = parameter.name
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if not any(one.startswith("*") for one in parameters):
                parameters.append("*")
            arguments.append(f"{parameter.name}={parameter.name}")
        else:
            arguments.append(stars + parameter.name)
        if parameter.default is not inspect.Parameter.empty:
            namespace[f"_default_{index}"] = parameter.default
            default = f"=_default_{index}"
        parameters.append(stars + parameter.name + default)
    return parameters, arguments, first, namespace


def _unchanged_functions(forward: Forward, namespace: dict[str, object]) -> list[str]:
    """Conditions that the functions which a forward calls by global names, and those that they call, are still those.

    Of one module each: a kernel stands for what is written there.
    """
    conditions: dict[str, None] = {}
    pending: list[Any] = [inspect.unwrap(forward)]
    module = _module_of(pending[0])
    while pending and module is not None:
        for name in pending.pop().__code__.co_names:
            function = vars(module).get(name)
            if (
                not isinstance(function, FunctionType)
                or (condition := f"_module.{name} is _is_{name}") in conditions
            ):
                continue
            conditions[condition] = None
            namespace |= {"_module": module, f"_is_{name}": function}
            if _module_of(function) is module:
                pending.append(function)
    return list(conditions)


def _module_of(function: object) -> ModuleType | None:
    """The module whose globals a function sees; None where those are of no module."""
    if not isinstance(function, FunctionType):
        return None
    module = sys.modules.get(str(function.__globals__.get("__name__")))
    return module if module is not None and vars(module) is function.__globals__ else None


def _reader(function: FunctionType, name: str) -> Callable[[], object]:
    """Reads what a name means in a function: a variable of a function around it, or a global."""
    if name in function.__code__.co_freevars:
        cell: CellType = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        return lambda: cell.cell_contents
    module = _module_of(function)
    if module is not None:  # torch.compile follows attributes of modules
        return lambda: getattr(module, name)
    globals_ = function.__globals__
    return lambda: globals_[name]


@functools.cache
def _questions() -> dict[str, object]:
    import torch
    from torch.utils._device import DeviceContext

    def is_unseen(first: object = None) -> bool:
        """Whether nothing sees the original's calls, although a mode is on or an argument is no plain tensor."""
        if torch.compiler.is_compiling():
            return True
        if isinstance(first, torch.Tensor) and type(first) not in (torch.Tensor, torch.nn.Parameter):
            return False
        return not torch._C._len_torch_dispatch_stack() and all(
            type(torch._C._get_function_stack_at(index)) is DeviceContext
            for index in range(torch._C._len_torch_function_stack())
        )

    return {
        "_Tensor": torch.Tensor,
        "_function_modes": torch._C._len_torch_function_stack,
        "_dispatch_modes": torch._C._len_torch_dispatch_stack,
        "_is_compiling": torch.compiler.is_dynamo_compiling,
        "_is_unseen": is_unseen,
    }
