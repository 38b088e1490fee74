"""Tags by rule: classes and functions of other libraries, named by a pattern and proven by contracts.

A rule's entries come from the `[[tag]]` tables of mapping files. The pattern says which classes are
meant, the contracts (`contract.py`) say which of those really compute the formula; the rest are
left alone, with the reason. Nothing is written on a class: a rule holds where its mapping does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kernels_hub.kernelization.contract import (
    Contract,
    Difference,
    class_difference,
    class_fulfils,
    function_difference,
    function_fulfils,
    likeness,
    original_function,
    written_difference,
)
from kernels_hub.kernelization.loaded_object import find_loaded
from kernels_hub.kernelization.mapping_records import Predicate, RuleDecision

if TYPE_CHECKING:
    from torch import nn

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, eq=False)
class TagEntry:
    """One `[[tag]]` table.

    classes, functions: patterns "module:qualname", plain or with wildcards. A plain one may also
        name an object by another module that exports it: "torch.nn:Linear".
    contracts: one must be fulfilled; with none at all, the pattern alone decides.
    written: the class must have the forward that its module defines, whatever that is.
    levels: of an entry without patterns, which tags by place: 1 is the model that `kernelize` is given, 2 also the
        modules inside of it that have modules inside of them, and so on. A kernel by another entry goes before.
    """

    layer_name: str
    classes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    contracts: tuple[Contract, ...] = ()
    positional: bool = False
    where: Predicate | None = None
    levels: int = 0
    written: bool = False

    def decide(self, difference: Difference | None) -> RuleDecision:
        """The decision on what fits a pattern: tagged, or left alone for a difference."""
        if difference is not None:
            return RuleDecision(self.layer_name, reason=difference.reason)
        return RuleDecision(self.layer_name, positional=self.positional, where=self.where)


class PatternIndex:
    """Which entries have a pattern that fits: two look-ups for most classes, however many patterns."""

    def __init__(self, entries: Iterable[tuple[TagEntry, tuple[str, ...]]]) -> None:
        self._order: dict[TagEntry, int] = {}
        self._plain: dict[str, list[tuple[str, TagEntry]]] = {}  # by qualname
        self._globs: dict[str, list[tuple[str, TagEntry]]] = {}  # by what stands before the first wildcard
        for entry, patterns in entries:
            self._order[entry] = len(self._order)
            for pattern in patterns:
                head = pattern[: next((i for i, c in enumerate(pattern) if c in _WILDCARDS), len(pattern))]
                if head == pattern:
                    self._plain.setdefault(pattern.partition(":")[2], []).append((pattern, entry))
                else:
                    self._globs.setdefault(head, []).append((pattern, entry))

    def fitting(self, thing: Any) -> list[TagEntry]:
        """The entries for a class or function, in their order."""
        name = f"{thing.__module__}:{thing.__qualname__}"
        found = {
            entry
            for pattern, entry in self._plain.get(thing.__qualname__, ())
            if pattern == name or find_loaded(pattern) is thing
        }
        for head, globs in self._globs.items():
            if name.startswith(head):
                found.update(entry for pattern, entry in globs if fnmatchcase(name, pattern))
        return sorted(found, key=self._order.__getitem__)


@dataclass(frozen=True, eq=False)
class TagRules:
    """The entries of a mapping file and of those that it includes: a `TagRule`.

    Several entries may fit one class (`*RMSNorm`: plain, zero-centred, gated). The first whose
    contract is fulfilled tags it; if there is none, the decision is to leave it alone, with the
    reason of the entry that came nearest.
    """

    entries: tuple[TagEntry, ...]

    @cached_property
    def by_place(self) -> TagEntry | None:
        """The entry that tags models whatever their class, None without one."""
        return next((entry for entry in self.entries if entry.levels), None)

    @cached_property
    def _classes(self) -> PatternIndex:
        return PatternIndex((entry, entry.classes) for entry in self.entries)

    @cached_property
    def _functions(self) -> PatternIndex:
        return PatternIndex((entry, entry.functions) for entry in self.entries)

    def decide_class(self, cls: type) -> RuleDecision | None:
        """The decision on a class, None where no entry's pattern fits it; subclasses do not count."""
        forward = inspect.getattr_static(cls, "forward", None)
        return _first_fulfilled(
            self._classes.fitting(cls),
            forward,
            lambda contracts: class_fulfils(cls, contracts),
            lambda contracts: class_difference(cls, contracts),
            lambda: written_difference(cls),
        )

    def decide_function(self, function: Callable[..., Any]) -> RuleDecision | None:
        """The decision on a function, or on the module that HF `kernels` put in its place."""
        original = original_function(function)
        if not isinstance(original, FunctionType):
            return None
        fitting = self._functions.fitting(original)
        if fitting and original is not function and "forward" in vars(function):
            return RuleDecision(
                fitting[0].layer_name, reason="HF kernels has already given it another forward"
            )
        return _first_fulfilled(
            fitting,
            original,
            lambda contracts: function_fulfils(original, contracts),
            lambda contracts: _in_words(function_difference(original, contracts)),
        )


def on_levels(model: nn.Module, levels: int) -> set[int]:
    """The modules that `TagEntry.levels` means, by identity. What has no forward, such as a ModuleList, is no level."""
    from torch import nn

    found: set[int] = set()
    waiting = [(model, 1)] if levels else []
    while waiting:
        module, level = waiting.pop()
        forward = getattr(type(module), "forward", None)
        if isinstance(forward, FunctionType) and forward is not nn.Module.forward:
            if id(module) in found or (level > 1 and not module._modules):
                continue
            found.add(id(module))
            level += 1
        if level <= levels:
            waiting += [(child, level) for child in module._modules.values() if child is not None]
    return found


def _in_words(difference: Difference | None) -> Difference | None:
    if difference is None:
        return None
    return Difference(difference.nearness, f"it is not the known function of that name: {difference.reason}")


Contracts = Sequence[Contract]


def _first_fulfilled(
    entries: list[TagEntry],
    function: object,
    fulfil: Callable[[Contracts], bool],
    difference: Callable[[Contracts], Difference | None],
    written: Callable[[], Difference | None] = lambda: None,
) -> RuleDecision | None:
    """The decision of the first entry whose contract a function fulfils, else that of the nearest.

    To tell how a function differs takes much longer than to see that it does: that is asked when all entries have
    declined, of the contracts that are most like it.
    """
    for entry in entries:
        if entry.written and (found := written()) is not None:
            return entry.decide(found)
        if fulfil(entry.contracts):
            return entry.decide(None)
    contracts = [(entry, one) for entry in entries for given in entry.contracts for one in given.spellings]
    contracts.sort(key=lambda each: -likeness(function, each[1]))
    nearest: tuple[TagEntry, Difference] | None = None
    for entry, contract in contracts[:_COMPARED]:
        found = difference((contract,))
        if found is not None and (nearest is None or found.nearness > nearest[1].nearness):
            nearest = entry, found
    if nearest is None and entries:  # without contracts, for another reason
        found = difference(())
        return entries[0].decide(found) if found is not None else None
    return nearest[0].decide(nearest[1]) if nearest else None


_COMPARED = 4
