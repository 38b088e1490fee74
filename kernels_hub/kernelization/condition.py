"""Conditions of mapping files: `where = { in_features = ">=256", act_fn = "torch.nn:SiLU" }`.

A condition is a path from a module instance, and what must be found there. All of a table must
hold. They are compiled once, when the file is loaded; a check costs about a microsecond.

    path        `a.b` an attribute of an attribute; `kernel_size.0` an item; `act.keywords.approximate`
                a key; `weight.numel` and the like are called. `dtype` alone is the dtype of the
                module's first parameter or buffer.
    expected    true, 3, 1e-5       that value
                ">=256", ">0, <64"  a number in that range
                "None"              None
                "torch.nn:Linear"   an instance of exactly that class, or that very function
                "zeros", "float32"  that string, or dtype
                [x, y]              one of several
                { one_of = "name" } one of several that the file lists under that name
                { fulfils = "name" } a module whose class fulfils that contract, or one of a list of them
                { not = x }         anything but
                { equals = [1, 1] } equal to, with lists standing for tuples as well
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kernels_hub.kernelization.loaded_object import MISSING, OBJECT_NAME, find_loaded

Test = Callable[[Any], bool]

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
OPERATIONS = frozenset(("not", "equals", "one_of", "fulfils"))
"""Keys that make a table an expectation, rather than conditions on a deeper path."""

_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*", re.ASCII)
_CALLED = frozenset(("numel", "dim", "element_size", "is_contiguous"))
"""Methods of a tensor that stand for what they return."""


class ConditionError(ValueError):
    """A condition that is not well formed; `key` says which, as a path below `where`."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Conditions:
    """Compiled conditions: called with a module, None where all hold, else the reason.

    >>> Conditions({"in_features": ">=256"})(torch.nn.Linear(8, 8))
    "its in_features is 8, this applies to >=256"
    """

    __slots__ = ("_checks", "source")

    def __init__(
        self,
        where: Mapping[str, object],
        alternatives: Mapping[str, object] | None = None,
        contracts: Mapping[str, Test] | None = None,
    ) -> None:
        """Compile conditions; raises ConditionError.

        where: path -> expected, as TOML gives it.
        alternatives: the lists that `one_of` names.
        contracts: what `fulfils` names: whether a module's class fulfils one.
        """
        self.source = dict(where)
        named = _Named(alternatives or {}, contracts or {})
        self._checks = tuple(
            (path, _getter(path), _test(path, expected, named)) for path, expected in where.items()
        )

    def __call__(self, module: Any) -> str | None:
        """None where all conditions hold for a module, else the first that does not, in words."""
        for path, get, test in self._checks:
            try:
                value = get(module)
            except (AttributeError, LookupError, TypeError):
                return f"it has no {path}, this applies to {_in_words(self.source[path])}"
            if not test(value):
                return f"its {path} is {_describe(value)}, this applies to {_in_words(self.source[path])}"
        return None

    def __repr__(self) -> str:
        return f"Conditions({self.source!r})"


def _getter(path: str) -> Callable[[Any], Any]:
    if not _PATH.fullmatch(path):
        raise ConditionError(path, f"expected a path such as 'weight.dtype' or 'kernel_size.0', got {path!r}")
    if path == "dtype":
        return _dtype
    steps = path.split(".")
    if not any(step.isdigit() or step in _CALLED or step == "keywords" for step in steps):
        return operator.attrgetter(path)

    def walk(value: Any) -> Any:
        for step in steps:
            if step.isdigit():
                value = value[int(step)]
            elif isinstance(value, dict):
                value = value[step]
            else:
                value = getattr(value, step)
                if step in _CALLED and callable(value):
                    value = value()
        return value

    return walk


def _dtype(module: Any) -> Any:
    tensor = _first_tensor(module)
    if tensor is None:
        raise AttributeError("dtype")
    return tensor.dtype


def _first_tensor(module: Any) -> Any:
    # By hand: module.parameters() walks through four generators to get here.
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            return tensor
    for child in module._modules.values():
        if child is not None and (tensor := _first_tensor(child)) is not None:
            return tensor
    return None


class _Named(NamedTuple):
    """What expectations refer to by name."""

    alternatives: Mapping[str, object]
    contracts: Mapping[str, Test]


def _test(key: str, expected: object, named: _Named) -> Test:
    if isinstance(expected, bool):
        return lambda value: value is expected
    if isinstance(expected, int | float):
        return lambda value: _is_number(value) and value == expected
    if isinstance(expected, str):
        return _test_of_string(key, expected)
    if isinstance(expected, list):
        return _test_of_list(key, expected, named)
    if isinstance(expected, dict) and len(expected) == 1:
        ((operation, operand),) = expected.items()
        if operation == "not":
            unwanted = _test(f"{key}.not", operand, named)
            return lambda value: not unwanted(value)
        if operation == "equals":
            return lambda value: _plain(value) == operand
        if operation == "one_of":
            alternatives = named.alternatives
            if not isinstance(operand, str) or operand not in alternatives:
                known = ", ".join(alternatives) or "none"
                raise ConditionError(
                    key, f"expected the name of a list in [alternatives] ({known}), got {operand!r}"
                )
            return _test(key, alternatives[operand], named)
        if operation == "fulfils":
            return _test_of_contracts(key, operand, named.contracts)
    raise ConditionError(
        key,
        "expected a value, a comparison, a list of them, { not = … }, { equals = … }, { one_of = … } or "
        f"{{ fulfils = … }}, got {expected!r}",
    )


def _test_of_contracts(key: str, expected: object, contracts: Mapping[str, Test]) -> Test:
    names = [expected] if isinstance(expected, str) else expected
    if not isinstance(names, list) or not names or not all(name in contracts for name in names):
        raise ConditionError(key, f"expected the name of a contract, or a list of them, got {expected!r}")
    tests = [contracts[name] for name in names]
    return lambda value: any(test(value) for test in tests)


def _test_of_list(key: str, expected: list[Any], named: _Named) -> Test:
    if not expected:
        raise ConditionError(key, "expected at least one alternative, got an empty list")
    if all(isinstance(item, str) and _is_object_name(item) for item in expected):
        return _is_one_of(expected)
    tests = [_test(f"{key}[{index}]", item, named) for index, item in enumerate(expected)]
    return lambda value: any(test(value) for test in tests)


def _test_of_string(key: str, expected: str) -> Test:
    if expected == "None":
        return lambda value: value is None
    if expected[:1] in "<>=!" and expected:
        parts = [_COMPARISON.fullmatch(part.strip()) for part in expected.split(",")]
        if not all(parts):
            raise ConditionError(key, f"expected a comparison such as '>=64' or '>0, <64', got {expected!r}")
        bounds = [(_COMPARISONS[part[1]], float(part[2])) for part in parts if part]
        return lambda value: _is_number(value) and all(compare(value, bound) for compare, bound in bounds)
    if _is_object_name(expected):
        return _is_one_of([expected])

    def is_text(value: object) -> bool:
        if isinstance(value, str):
            return value == expected
        return type(value).__name__ == "dtype" and str(value) == f"torch.{expected}"

    return is_text


def _is_object_name(text: str) -> bool:
    return ("." in text or ":" in text) and OBJECT_NAME.fullmatch(text) is not None


def _is_one_of(names: list[str]) -> Test:
    """Exact type for names of classes, identity for other objects."""
    classes: set[type] = set()  # those found so far: what is imported later is found later
    others: list[Any] = []
    missing = list(names)
    looked_among = 0  # modules imported when `find` last ran: with no more of them it finds no more

    def find() -> None:
        nonlocal looked_among
        looked_among = len(sys.modules)
        for name in tuple(missing):
            if (loaded := find_loaded(name)) is not MISSING:
                missing.remove(name)
                if isinstance(loaded, type):
                    classes.add(loaded)
                else:
                    others.append(loaded)

    def test(value: object) -> bool:
        if type(value) in classes:
            return True
        if missing and looked_among != len(sys.modules):
            find()
            if type(value) in classes:
                return True
        return any(value is member for member in others)

    return test


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: object) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _in_words(expected: object) -> str:
    if isinstance(expected, list):
        return " or ".join(_in_words(item) for item in expected)
    if isinstance(expected, dict) and "not" in expected:
        return f"anything but {_in_words(expected['not'])}"
    if isinstance(expected, dict) and "one_of" in expected:
        return f"one of {expected['one_of']}"
    if isinstance(expected, dict) and "fulfils" in expected:
        names = expected["fulfils"]
        return f"a module of contract {names if isinstance(names, str) else ' or '.join(names)}"
    if isinstance(expected, dict):
        return repr(expected.get("equals"))
    return str(expected).lower() if isinstance(expected, bool) else str(expected)


def _describe(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float | str | tuple | list | dict):
        return repr(value)
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if callable(value) and hasattr(value, "__qualname__"):
        return f"the function {value.__qualname__}"
    return f"{type(value).__module__}:{type(value).__qualname__}"
