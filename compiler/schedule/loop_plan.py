"""How a nest with one reduction runs: its loops as a term, which a search finds and the C++ generator prints.

A nest is the naive loops over all its axes, outer ones first, around one statement; rewrites (`search.nests`) make
others of it that compute the same. Axes are numbers, in the order of the nest's loops; sizes are in elements.

    (Add s)                 one element is added to its result; s: bits of the operands that are read from a copy
    (End)                   what follows the reduction, for one result
    (Each a n s p)          for elements 0, s, 2s … < n of axis a: p, which covers s of them
    (Share a n s p)         the same, shared by threads
    (Peel a m p q)          p covers the first m elements of axis a, q the others
    (Stage o p)             the part of operand o that p reads is copied first, as p reads it
    (Then p q)              p, then q, which is of (End)
    (Hold h)                results are kept in registers: h
    (Turn a n s h)          for elements 0, s … < n of axis a, over which it is reduced: h
    (Tile u)                a block of results, written out: u
    (Unroll a n s u)        u for elements 0, s … < n of axis a, one after the other
    (Lanes a n u)           u for n elements of axis a at once, in a vector
    (Point s)               as (Add s)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels_hub.compiler.errors import EngineError

MOST_LENGTH = 4096
"""Characters of a plan."""

KINDS: Mapping[str, tuple[int, str]] = {
    "Add": (1, ""), "End": (0, ""), "Each": (3, "p"), "Share": (3, "p"), "Peel": (2, "pp"), "Stage": (1, "p"),
    "Then": (0, "pp"), "Hold": (0, "h"), "Turn": (3, "h"), "Tile": (0, "u"), "Unroll": (3, "u"), "Lanes": (2, "u"),
    "Point": (1, ""),
}  # fmt: skip
"""Constructor -> how many numbers it has, and of what sort its parts are: plans, what is held, or written out."""
SORTS: Mapping[str, str] = {"Turn": "h", "Tile": "h", "Unroll": "u", "Lanes": "u", "Point": "u"}
"""Constructor -> its own sort, where it is no plan."""


@dataclass(frozen=True)
class LoopPlan:
    """A term: see the module."""

    op: str
    numbers: tuple[int, ...] = ()
    parts: tuple[LoopPlan, ...] = ()

    def __str__(self) -> str:
        return f"({' '.join((self.op, *map(str, self.numbers), *map(str, self.parts)))})"

    def walk(self) -> Iterator[LoopPlan]:
        """This term and all inside it, from outside."""
        yield self
        for part in self.parts:
            yield from part.walk()


def parse_plan(text: str) -> LoopPlan:
    """The plan that a text is, as `str` of one gives. Raises EngineError for any other text."""
    words = re.findall(r"[()]|[^\s()]+", text)
    if len(text) > MOST_LENGTH or len(words) > MOST_LENGTH // 4:
        raise EngineError(f"a plan of loops has at most {MOST_LENGTH} characters, this one {len(text)}")
    stack: list[tuple[str, list[int], list[LoopPlan]]] = []
    found: list[LoopPlan] = []
    opened = False
    for word in words:
        if word == "(" and not opened:
            opened = True
        elif opened:
            stack.append((word, [], []))
            opened = False
        elif word == ")" and stack:
            op, numbers, parts = stack.pop()
            (stack[-1][2] if stack else found).append(_term(op, numbers, parts))
        elif stack and re.fullmatch(r"\d{1,9}", word):
            stack[-1][1].append(int(word))
        else:
            raise EngineError(f"not a plan of loops: {word!r} in {text[:80]!r}")
    if stack or opened or len(found) != 1:
        raise EngineError(f"not a plan of loops: {text[:80]!r}")
    return found[0]


def _term(op: str, numbers: list[int], parts: list[LoopPlan]) -> LoopPlan:
    if op not in KINDS:
        raise EngineError(f"a plan of loops is made of {', '.join(KINDS)}; there is no {op!r}")
    count, sorts = KINDS[op]
    if len(numbers) != count or [SORTS.get(part.op, "p") for part in parts] != list(sorts):
        raise EngineError(
            f"in a plan of loops, {op} has {count} numbers and {len(sorts)} parts of their own kind"
        )
    return LoopPlan(op, tuple(numbers), tuple(parts))


def plans_by_place(text: str) -> dict[int, LoopPlan]:
    """The plans of a schedule's nests by their places, from "0:(…);2:(…)". Raises EngineError."""
    found: dict[int, LoopPlan] = {}
    for one in filter(None, text.split(";")):
        place, _, plan = one.partition(":")
        if not place.isdecimal():
            raise EngineError(f'the choice nests is plans by place, as "0:(…);2:(…)", not {text[:80]!r}')
        found[int(place)] = parse_plan(plan)
    return found
