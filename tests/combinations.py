"""Which parameters `make test` tries: every pair of values, every value, or the first of a list. `make test-all` tries
all of them.

    @every_pair(name=CASES, layout=LAYOUTS, dtype=DTYPES)
    def test_conv2d(name, layout, dtype): ...

Faults mostly come of one value or of two together, and a product of three lists grows faster than a suite may:
pairwise testing, as in Kuhn, Wallace and Gallo, IEEE TSE 30(6), 2004. What takes seconds a case, such as compiling a
kernel for a GPU, tries every value once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet


def every_pair(**factors: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize a test by at least three lists of values; what no pair needs is marked `exhaustive`.

    Of each combination the places of its values in their lists are added up. Those whose sum the length of the shortest
    list divides are kept: whatever the other values are, one in any list makes the sum fit.
    """
    lists = [list(values) for values in factors.values()]
    if len(lists) < 3:
        raise ValueError("two lists have no combination that no pair needs")
    shortest = min(map(len, lists))
    return _parametrized(list(factors), lists, lambda places: sum(places) % shortest == 0)


def every_value(**factors: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize a test by lists of values; all but as many combinations as the longest list has are `exhaustive`.

    The first of those kept has the first value of each list, the next the second ones; a list that ends begins again,
    one value further, so that lists of the same length, or of half of it, meet in other ways too.
    """
    lists = [list(values) for values in factors.values()]
    longest = max(map(len, lists))
    kept = {tuple((row + row // len(values)) % len(values) for values in lists) for row in range(longest)}
    return _parametrized(list(factors), lists, kept.__contains__)


def only_these(*kept: tuple[object, ...], **factors: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize a test by lists of values; all combinations but those that are named are `exhaustive`."""
    lists = [list(values) for values in factors.values()]
    places = {tuple(map(list.index, lists, row)) for row in kept}
    return _parametrized(list(factors), lists, places.__contains__)


def _parametrized(
    names: list[str], lists: list[list[object]], is_kept: Callable[[tuple[int, ...]], bool]
) -> pytest.MarkDecorator:
    cases = []
    for places in itertools.product(*(range(len(values)) for values in lists)):
        values = [values[place] for values, place in zip(lists, places, strict=True)]
        marks = [] if is_kept(places) else [pytest.mark.exhaustive]
        cases.append(pytest.param(*values, marks=marks, id="-".join(map(_name, values))))
    return pytest.mark.parametrize(names, cases)


def _name(value: object) -> str:
    """The same in every process: a function's text has its address."""
    return str(getattr(value, "__name__", value))


def first(count: int, cases: Sequence[tuple[object, ...]]) -> list[ParameterSet]:
    """The rows of a table for `parametrize`, named by their first values; all after `count` are marked `exhaustive`.

    The rows that differ most from each other come first.
    """
    marks = [(), (pytest.mark.exhaustive,)]
    return [
        pytest.param(*case, marks=marks[place >= count], id=_name(case[0]))
        for place, case in enumerate(cases)
    ]


def all_but(cases: Iterable[object], *exhaustive: object) -> list[ParameterSet]:
    """The names of a table's rows for `parametrize`; those of rows that repeat others are marked `exhaustive`."""
    names = list(cases)
    if unknown := [name for name in exhaustive if name not in names]:
        raise ValueError(f"no row is called {unknown[0]!r}")
    marks = [(), (pytest.mark.exhaustive,)]
    return [pytest.param(name, marks=marks[name in exhaustive], id=_name(name)) for name in names]
