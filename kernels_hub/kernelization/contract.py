"""Contracts: a class or a function is matched by what it computes, never by its name alone.

A contract is the source of a reference forward. A class fulfils it when
    1. its `forward` is a plain function: no decorator but those that the contract names or that stay around a
       kernel (`decoration.py`), no closure, source at hand, and that source is what really runs;
    2. its canonical form (`canonical.py`) equals the reference's or a variant's, which may have a default where the
       class requires an argument;
    3. the free names in it mean the same objects: `F` is `torch.nn.functional`, `rotate_half` fulfils
       a contract of its own;
    4. the attributes of `self` that it uses are data of the instance, methods that fulfil contracts
       of their own, or properties whose values the tag's conditions are about;
    5. the class is called as every `nn.Module` is: no `__call__` or `__getattr__` of its own but that by which
       transformers checkpoints gradients, which calls the module's.

Everything else is declined, with a reason that names the first thing that differs.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import functools
import inspect
import operator
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from kernels_hub.kernelization.canonical import (
    CanonicalForm,
    NoCanonicalForm,
    canonical_form_of_node,
    first_difference,
    parse_function,
)
from kernels_hub.kernelization.decoration import undecorated
from kernels_hub.kernelization.loaded_object import MISSING, find_loaded

USUAL_NAMES: Mapping[str, str] = {
    "torch": "torch",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
    "math": "math",
}
"""What these free names mean in every contract, unless it says otherwise."""

_KNOWN_CALL = "transformers.modeling_layers:GradientCheckpointingLayer"
"""Before transformers 5.24; see `decoration.KEPT` for what came after it."""

_CALL_PROTOCOL = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__")


@dataclass(frozen=True, eq=False)
class Contract:
    """A reference forward (or function).

    source: one function definition.
    names: what further free names of it must be bound to: an object's name ("torch.nn.functional"),
        or contracts one of which the bound function must fulfil.
    methods: the same for methods of the class that it calls through `self`.
    properties: attributes of `self` that may be properties.
    decorators: names of the decorators that the function is inside of, outermost first.
    variants: what other releases of the class's library write in it: each has texts of the source, and what is
        written in their places.
    """

    name: str
    source: str
    names: Mapping[str, str | tuple[Contract, ...]] = field(default_factory=dict)
    methods: Mapping[str, tuple[Contract, ...]] = field(default_factory=dict)
    properties: frozenset[str] = frozenset()
    decorators: tuple[str, ...] = ()
    variants: tuple[Mapping[str, str], ...] = ()

    @cached_property
    def spellings(self) -> tuple[Contract, ...]:
        """The contract, and one for each variant."""
        return self, *(
            replace(self, source=_written(self.source, variant), variants=()) for variant in self.variants
        )

    @cached_property
    def form(self) -> CanonicalForm:
        """The canonical form of the source, made when first asked for.

        Raises SyntaxError or NoCanonicalForm.
        """
        return canonical_form_of_node(parse_function(self.source))

    @cached_property
    def code_names(self) -> frozenset[str]:
        """The attributes and free names of the source: those of a function of another set make another form."""
        code = compile(textwrap.dedent(self.source), "<contract>", "exec", dont_inherit=True)
        return frozenset().union(*(_code_names(one) for one in code.co_consts if isinstance(one, CodeType)))

    def unexplained_names(self) -> list[str]:
        """Free names of the source that are neither built in, nor usual, nor explained in `names`."""
        known = self.names.keys() | USUAL_NAMES.keys() | vars(builtins).keys()
        return sorted(self.form.free - known)


def _written(source: str, variant: Mapping[str, str]) -> str:
    for text, other in variant.items():
        source = source.replace(text, other)
    return source


class Difference(NamedTuple):
    """Where a function leaves a contract."""

    nearness: float
    """Equal lines before it, plus the share of names in common (below 1); negative without a form.

    Of several contracts, the nearest explains best.
    """
    reason: str


def matches(function: object, reference: Contract | str) -> bool:
    """Whether a function fulfils a contract; a string is the source of a reference."""
    return difference(function, reference) is None


def difference(function: object, reference: Contract | str) -> str | None:
    """The first thing in which a function differs from a contract, None where it fulfils it."""
    contract = Contract("reference", reference) if isinstance(reference, str) else reference
    problem = function_difference(function, (contract,))
    return problem and problem.reason


def function_difference(function: object, contracts: Iterable[Contract]) -> Difference | None:
    """None where a function fulfils one of several contracts, else how it differs from the nearest."""
    return _nearest(contracts, lambda contract: _compare(function, contract))


def class_fulfils(cls: type, contracts: Sequence[Contract]) -> bool:
    """Whether `class_difference` is None. Contracts that other names rule out are not even parsed."""
    if _call_difference(cls) is not None:
        return False
    forward = inspect.getattr_static(cls, "forward", None)
    return not contracts or any(
        _may_fulfil(forward, contract)
        and _compare(forward, contract) is None
        and _self_difference(cls, contract) is None
        for given in contracts
        for contract in given.spellings
    )


def function_fulfils(function: object, contracts: Sequence[Contract]) -> bool:
    """Whether `function_difference` is None, in the same way."""
    return not contracts or any(
        _may_fulfil(function, contract) and _compare(function, contract) is None
        for given in contracts
        for contract in given.spellings
    )


def likeness(function: object, contract: Contract) -> float:
    """The share of names that a function's code and a contract's source have in common, from 0 to 1.

    What compares best with a function is among what is most like it, and this takes a hundredth of the time.
    """
    inside = undecorated(function, contract.decorators)
    if not isinstance(inside, FunctionType):
        return 0.0
    names = _code_names(inside.__code__)
    return len(names & contract.code_names) / (len(names | contract.code_names) or 1)


def _may_fulfil(function: object, contract: Contract) -> bool:
    """False where the names in a function's code are others than those of a contract's source."""
    inside = undecorated(function, contract.decorators)
    if not isinstance(inside, FunctionType):
        return True  # for a reason that a comparison tells
    names = _code_names(inside.__code__)
    return names == contract.code_names or any(_is_mangled(name) for name in names | contract.code_names)


def _code_names(code: CodeType) -> frozenset[str]:
    inner = (_code_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return frozenset(code.co_names).union(*inner)


def _is_mangled(name: str) -> bool:
    """Whether a name is spelled in another way in a class: `self.__x` is `self._Class__x` there."""
    return "__" in name and not name.endswith("__")


def class_difference(cls: type, contracts: Iterable[Contract]) -> Difference | None:
    """None where a module class fulfils one of several contracts, else what speaks against it."""
    if (reason := _call_difference(cls)) is not None:
        return Difference(-1, reason)
    forward = inspect.getattr_static(cls, "forward", None)

    def compare(contract: Contract) -> Difference | None:
        problem = _compare(forward, contract)
        if problem is not None:
            what = "differs from the known formula" if problem.nearness >= 0 else "cannot be compared"
            return Difference(problem.nearness, f"its forward {what}: {problem.reason}")
        reason = _self_difference(cls, contract)
        return None if reason is None else Difference(len(contract.form.lines), reason)

    return _nearest(contracts, compare)


def written_difference(cls: type) -> Difference | None:
    """None where a class has the forward that its module defines, as its source says; else what it has."""
    if (reason := _call_difference(cls)) is not None:
        return Difference(-1, reason)
    forward = inspect.getattr_static(cls, "forward", None)
    home = vars(sys.modules.get(cls.__module__, builtins))
    if not isinstance(forward, FunctionType) or forward.__globals__ is not home:
        return Difference(-1, "its forward is not the one that its module defines")
    try:
        node = parse_function(inspect.getsource(forward))
    except (OSError, SyntaxError, NoCanonicalForm):
        return Difference(-1, "the source of its forward is not available")
    is_own = forward.__code__.co_qualname == f"{cls.__qualname__}.forward" and _is_source_of(
        node, forward.__code__
    )
    return None if is_own else Difference(-1, "its forward is not the one that its module defines")


def _nearest(
    contracts: Iterable[Contract], compare: Callable[[Contract], Difference | None]
) -> Difference | None:
    nearest: Difference | None = None
    for contract in (spelling for given in contracts for spelling in given.spellings):
        problem = compare(contract)
        if problem is None:
            return None
        if nearest is None or problem.nearness > nearest.nearness:
            nearest = problem
    return nearest


def original_function(function: object) -> Any:
    """The function behind the module that HF `kernels` makes of a decorated function.

    Its decorator leaves an instance of a class `Func` in the function's place, whose forward calls
    the function through a closure. Anything else is returned as it is.
    """
    if isinstance(function, FunctionType):
        return function
    forward = inspect.getattr_static(type(function), "forward", None)
    if isinstance(forward, FunctionType) and forward.__module__.partition(".")[0] == "kernels":
        cells = dict(zip(forward.__code__.co_freevars, forward.__closure__ or (), strict=True))
        if isinstance(original := _content(cells.get("func")), FunctionType):
            return original
    return function


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except (AttributeError, ValueError):  # no such cell, or an empty one
        return None


def _compare(function: Any, contract: Contract) -> Difference | None:
    if isinstance(function, FunctionType) or contract.decorators:
        function = undecorated(function, contract.decorators)
        if isinstance(function, str):
            return Difference(-1, function)
    form = form_of_function(function)
    if isinstance(form, str):
        return Difference(-1, form)
    if not contract.form.serves(form):
        equal, reason = first_difference(contract.form, form)
        return Difference(equal + _names_in_common(form, contract.form), reason)
    difference = _names_difference(function, contract)
    return None if difference is None else Difference(len(form.lines), difference)


def _names_in_common(form: CanonicalForm, other: CanonicalForm) -> float:
    names, others = form.free | form.self_attributes, other.free | other.self_attributes
    return len(names & others) / (len(names | others) + 1)


def _names_difference(function: FunctionType, contract: Contract) -> str | None:
    for name in sorted(contract.form.free):
        bound = function.__globals__.get(name, MISSING)
        meaning = contract.names.get(name) or USUAL_NAMES.get(name)
        if meaning is None:
            if bound is not MISSING:
                return f"the builtin `{name}` is hidden by a global of its module"
        elif isinstance(meaning, str):
            if bound is MISSING or bound is not find_loaded(meaning):
                return f"the name `{name}` is not {meaning} in its module"
        elif (problem := function_difference(original_function(bound), meaning)) is not None:
            return f"the function `{name}` that it calls is another: {problem.reason}"
    return None


def _call_difference(cls: type) -> str | None:
    torch_nn = sys.modules.get("torch.nn")
    if torch_nn is None or not issubclass(cls, torch_nn.Module):
        return "it is not a torch.nn.Module"
    for name in _CALL_PROTOCOL:
        own = getattr(cls, name, None)
        if own is not getattr(torch_nn.Module, name, None) and not (
            name == "__call__" and _is_known_call(own)
        ):
            return f"it has a {name} of its own"
    return None


def _is_known_call(call: object) -> bool:
    owner = find_loaded(_KNOWN_CALL)
    return (
        isinstance(owner, type)
        and call is vars(owner).get("__call__")
        and getattr(call, "__module__", None) == owner.__module__
    )


def _self_difference(cls: type, contract: Contract) -> str | None:
    """Methods and properties of the class that a matching forward uses, and nobody vouches for."""
    for name in sorted(contract.form.self_attributes):
        attribute = inspect.getattr_static(cls, name, MISSING)
        references = contract.methods.get(name)
        if isinstance(attribute, staticmethod):
            attribute = attribute.__func__
        if references is not None:
            if attribute is MISSING:
                return f"its class has no method {name}"
            if (reference := function_difference(attribute, references)) is not None:
                return f"its method {name} is another: {reference.reason}"
        elif attribute is not MISSING and hasattr(type(attribute), "__get__"):
            if name in contract.properties and isinstance(attribute, property):
                continue
            return f"its class defines {name}, which the contract takes for an attribute of the instance"
    return None


_FORMS: weakref.WeakKeyDictionary[FunctionType, tuple[CodeType, CanonicalForm | str]] = (
    weakref.WeakKeyDictionary()
)


def form_of_function(function: object) -> CanonicalForm | str:
    """The canonical form of a live function, or the reason why it has none. Cached per function."""
    if not isinstance(function, FunctionType):
        return f"it is {_article(type(function).__name__)}, not a plain function"
    known = _FORMS.get(function)
    if known is None or known[0] is not function.__code__:
        known = _FORMS[function] = (function.__code__, _read_form(function))
    return known[1]


def _read_form(function: FunctionType) -> CanonicalForm | str:
    if hasattr(function, "__wrapped__"):
        return "it is decorated"
    if function.__code__.co_freevars:
        return f"it closes over {', '.join(function.__code__.co_freevars)}"
    try:
        node = parse_function(inspect.getsource(function))
        if not _is_source_of(node, function.__code__):
            return "its source file no longer holds what runs"
        return canonical_form_of_node(node)
    except OSError:
        return "its source is not available"
    except SyntaxError as error:
        return f"its source does not parse on its own: {error.msg}"
    except NoCanonicalForm as error:
        return str(error)


def _is_source_of(node: ast.FunctionDef | ast.AsyncFunctionDef, code: CodeType) -> bool:
    """Whether compiling a definition gives the code that a function runs.

    It does not where a file was edited after its import, or an import hook rewrote it.
    """
    bare = type(node)(**{**dict(ast.iter_fields(node)), "decorator_list": []})
    module = ast.Module([ast.copy_location(bare, node)], type_ignores=[])
    flags = code.co_flags & _FUTURE_FLAGS
    compiled = compile(module, "<contract>", "exec", flags=flags, dont_inherit=True)
    return any(_same_code(code, const) for const in compiled.co_consts if isinstance(const, CodeType))


def _same_code(one: CodeType, other: CodeType) -> bool:
    return one.co_varnames == other.co_varnames and list(_steps(one)) == list(_steps(other))


def _steps(code: CodeType) -> Iterator[tuple[str, str]]:
    """What a code object does, without what the compiler derives from the rest of the module.

    `torch.rsqrt(x)` compiles to an attribute or to a method call, depending on whether `torch` is
    imported at the top of the same file.
    """
    for step in dis.get_instructions(code):
        if step.opname in _CALL_FRAMING:
            continue
        if step.opcode in _JUMPS:
            yield step.opname, ""
        elif isinstance(step.argval, CodeType):
            yield step.opname, str(list(_steps(step.argval)))
        else:
            yield "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname, repr(step.argval)


_FUTURE_FLAGS = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
"""Flags of code by which `compile` is told the __future__ features; it refuses others, as Python 3.14 sets them."""
_CALL_FRAMING = frozenset(("PUSH_NULL", "EXTENDED_ARG", "CACHE", "NOP"))
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"
