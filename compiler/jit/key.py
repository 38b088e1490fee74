"""Cache key of a call's graph: a digest of what decides it, made in milliseconds, without tracing.

Of the module and all inside of it: classes, the code of their forwards and of all that is named from there (methods,
also by a string; functions, constants, by their bytecode and values), attributes, names, shapes and dtypes of weights,
which of them are one tensor. Of the arguments: structure, dtypes, sizes that are no dynamic dims, literals. And the
releases of all packages that take part. Equal digests mean equal graphs; weights' values do not count. Other processes
find the same digest.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from importlib import metadata
from typing import Any
from uuid import uuid4

import torch
from torch import nn
from torch.utils import _pytree as pytree

from kernels_hub.compiler.importers.known_code import KNOWN
from kernels_hub.compiler.importers.outer_data import names_in
from kernels_hub.compiler.jit.signature import is_image, takes_images
from kernels_hub.compiler.plan.compiler_stamp import compiler_stamp, digest
from kernels_hub.compiler.runtime.facts import code_text, fact, is_filled, kind_of, looked_into, places
from kernels_hub.kernelization.bind import COPIED, KernelForward
from kernels_hub.kernelization.outcome import RECORD_ATTRIBUTE

_FURNITURE = frozenset(vars(nn.Module()))


def call_keys(
    module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], dims: object
) -> tuple[str, str]:
    """The digest of a module, example arguments, and their dynamic dims (as `CompiledLayer.dims()`).

    And that of the module and the signature alone, of all sizes that the arguments might have: what it is refused for.
    """
    code, inside = _Code(), places(module)
    parts = [
        (path, one, code.of_class(type(one))) for path, one in module.named_modules(remove_duplicate=False)
    ]
    for path, one, _ in parts:
        code.of_attributes(one, path)
    code.finish()
    rows = [
        (path, kind_of(type(one)), _attributes(one, inside, code.named), bases) for path, one, bases in parts
    ]
    common = (
        rows, _weights(module), sorted(code.rows.items()), code.releases(),
        compiler_stamp(), torch.__version__, sys.version, str(torch.get_default_dtype()),
    )  # fmt: skip
    arguments = _arguments(module, args, kwargs, dims)
    loose = _arguments(module, args, kwargs, dims, loose=True) if dims is True else arguments
    of_common = digest(*common)
    return digest(of_common, arguments), digest(of_common, "any sizes", loose)


def _attributes(
    module: nn.Module, inside: Mapping[int, str], named: AbstractSet[str]
) -> list[tuple[str, Any]]:
    """What attributes hold. named: names in the code; of others, what cannot be looked into is left out."""
    rows: list[tuple[str, Any]] = []
    for name, value in _of_its_own(module):
        found, kind = looked_into(value, inside)
        is_unknown = kind is not None and name in named
        rows.append((name, f"known to this call alone: {uuid4()}" if is_unknown else found))
    return rows


def _of_its_own(module: nn.Module) -> list[tuple[str, Any]]:
    """The attributes that a module has beside those of every module, and what `kernelize` leaves on it."""
    furniture = _FURNITURE | {RECORD_ATTRIBUTE, *COPIED}
    return sorted(
        (
            (name, value)
            for name, value in vars(module).items()
            if name not in furniture and not isinstance(value, KernelForward)
        ),
        key=lambda row: row[0],
    )


def _weights(module: nn.Module) -> list[Any]:
    rows: list[Any] = []
    seen: dict[int, int] = {}
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            same = seen.setdefault(id(tensor), len(seen))
            rows.append(
                (
                    name,
                    type(tensor).__name__,
                    str(tensor.dtype),
                    tuple(tensor.shape),
                    str(tensor.device),
                    same,
                )
            )
    return rows


def _arguments(
    module: nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    dims: object,
    *,
    loose: bool = False,
) -> Any:
    images = takes_images(module)
    free: dict[str, list[Any]] = {}
    if isinstance(dims, Mapping):
        from kernels_hub.compiler.importers.torch_sizes import input_symbols

        free = input_symbols(module, args, kwargs, dims)
    from kernels_hub.compiler.importers.torch_trace import paths_of

    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    rows: list[Any] = []
    for path, leaf in zip(paths_of(module, args, kwargs), leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            names = free.get(path) or [None] * leaf.dim()
            sizes: list[Any] = [name or size for name, size in zip(names, leaf.shape, strict=True)]
            if loose:
                kept = is_image(leaf, images)
                sizes = [
                    size if size == 1 or (kept and axis) else "any" for axis, size in enumerate(leaf.shape)
                ]
            rows.append(
                (path, type(leaf).__name__, str(leaf.dtype), sizes, str(leaf.device), str(leaf.layout))
            )
        else:
            rows.append((path, fact(leaf)))
    return rows, str(spec), repr(dims)


class _Code:
    """The code that forwards come to, each function once: methods of all classes that are met count by their names."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self._packages: set[str] = set()
        self._seen: set[int] = set()
        self._named = {"forward", "__call__"}
        self._members: dict[str, list[tuple[str, Any]]] = {}
        """Name -> members of classes, with where they are, that nothing has named yet."""
        self._waiting: list[tuple[types.FunctionType, str]] = []

    def of_class(self, kind: type) -> str:
        """Note what is named of a class and of its bases, now and later; the names of those bases."""
        for base in kind.__mro__:
            if id(base) in self._seen or self._is_known(base.__module__):
                continue
            self._seen.add(id(base))
            for name, value in vars(base).items():
                where = f"{kind_of(base)}.{name}"
                if name in self._named:
                    self._of_member(where, value)
                else:
                    self._members.setdefault(name, []).append((where, value))
        return " ".join(kind_of(base) for base in kind.__mro__)

    def _of_member(self, where: str, value: object) -> None:
        for function in _functions(value):
            self._meet(function, where)
        if not callable(value) and not isinstance(value, (property, staticmethod, classmethod)):
            self.rows[where] = fact(value)

    def _name(self, names: Iterable[str]) -> None:
        """Note what is a member's name."""
        for name in names:
            self._named.add(name)
            for where, value in self._members.pop(name, ()):
                self._of_member(where, value)

    def of_attributes(self, module: nn.Module, path: str) -> None:
        """Note the code of functions that a module holds, and of its objects' classes."""
        for name, value in _of_its_own(module):
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self._of_value(value, f"{path}.{name}")
            elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, torch.Tensor, type)):
                self.of_class(type(value))

    @property
    def named(self) -> AbstractSet[str]:
        """The names that the code has, those in texts among them."""
        return self._named

    def finish(self) -> None:
        """Note the functions that were met, and all that they come to."""
        while self._waiting:
            self._of_function(*self._waiting.pop())

    def _meet(self, function: types.FunctionType, where: str) -> None:
        function = _unwrapped(function)
        if id(function) not in self._seen and not self._is_known(function.__module__ or ""):
            self._seen.add(id(function))
            self._waiting.append((function, where))

    def _of_function(self, function: types.FunctionType, where: str) -> None:
        """Note a function, and all that its names mean."""
        cells = [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
        self.rows[where] = (
            code_text(function.__code__),
            fact(function.__defaults__),
            fact(function.__kwdefaults__),
        )
        for index, value in enumerate(cells):
            self._of_value(value, f"{where}[{index}]")
        named = names_in(function.__code__)
        self._name((*named.attributes, *_strings(function.__code__)))
        for name in named.globals:
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            if isinstance(value, types.ModuleType):
                if not self._is_known(value.__name__):
                    for inner in named.attributes:
                        if (var := vars(value).get(inner)) is not None:
                            self._of_value(var, f"{value.__name__}.{inner}")
            else:
                self._of_value(value, f"{function.__module__}:{name}")

    def releases(self) -> list[tuple[str, str]]:
        """The packages that the code came from, and their releases."""
        found = []
        for name in sorted(self._packages):
            try:
                found.append((name, metadata.version(name)))
            except metadata.PackageNotFoundError:
                found.append((name, ""))
        return found

    def _of_value(self, value: object, where: str) -> None:
        if isinstance(value, type):
            self.rows[where] = kind_of(value)
            if id(value) not in self._seen:
                self.of_class(value)
        elif functions := list(_functions(value)):
            for function in functions:
                self._meet(function, where)
        elif not isinstance(value, types.ModuleType):
            self.rows[where] = fact(value)

    def _is_known(self, module: str) -> bool:
        package = module.partition(".")[0]
        if package in KNOWN:
            return True
        self._packages.add(package)
        return False


def _functions(value: object) -> Iterator[types.FunctionType]:
    """The functions that a value of a class or of a module's globals runs."""
    if isinstance(value, property):
        yield from (one for one in (value.fget,) if isinstance(one, types.FunctionType))
        return
    value = getattr(value, "__func__", value)
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, types.FunctionType):
        yield value


def _unwrapped(function: types.FunctionType) -> types.FunctionType:
    inner = getattr(function, "__wrapped__", None)
    return inner if isinstance(inner, types.FunctionType) else function


def _strings(code: types.CodeType) -> Iterator[str]:
    """What getattr may be given."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _strings(constant)
        else:
            several = constant if isinstance(constant, tuple) else (constant,)
            yield from (one for one in several if isinstance(one, str) and one.isidentifier())
