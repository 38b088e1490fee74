"""Which parameters `make test` tries: every pair of values, or the first of a list; `make test-all` tries all of them.

    @every_pair(name=CASES, layout=LAYOUTS, dtype=DTYPES)
    def test_conv2d(name, layout, dtype): ...

Faults mostly come of one value or of two together, and a product of three lists grows faster than a suite may:
pairwise testing, as in Kuhn, Wallace and Gallo, IEEE TSE 30(6), 2004.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

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
    cases = []
    for places in itertools.product(*(range(len(values)) for values in lists)):
        values = [values[place] for values, place in zip(lists, places, strict=True)]
        marks = [pytest.mark.exhaustive] if sum(places) % shortest else []
        cases.append(pytest.param(*values, marks=marks, id="-".join(map(str, values))))
    return pytest.mark.parametrize(list(factors), cases)


def first(count: int, cases: Sequence[tuple[object, ...]]) -> list[ParameterSet]:
    """The rows of a table for `parametrize`, named by their first values; all after `count` are marked `exhaustive`.

    The rows that differ most from each other come first.
    """
    marks = [(), (pytest.mark.exhaustive,)]
    return [
        pytest.param(*case, marks=marks[place >= count], id=str(case[0])) for place, case in enumerate(cases)
    ]
