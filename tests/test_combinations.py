"""The combinations of parameters that are tried at every change."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.combinations import all_but, every_pair, every_value, first, only_these


def cases(
    choose: Callable[..., pytest.MarkDecorator], *lists: Iterable[object]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(those of `make test`, all of them)."""
    (names, rows) = choose(**{f"p{place}": values for place, values in enumerate(lists)}).args
    assert names == [f"p{place}" for place in range(len(lists))]
    kept = [row.values for row in rows if not any(mark.name == "exhaustive" for mark in row.marks)]
    return kept, [row.values for row in rows]


@given(st.lists(st.integers(1, 6), min_size=3, max_size=4))
def test_every_pair_is_tried(lengths: list[int]):
    lists = [range(length) for length in lengths]
    kept, all_of_them = cases(every_pair, *lists)
    assert sorted(all_of_them) == sorted(itertools.product(*lists))
    for one, other in itertools.combinations(range(len(lists)), 2):
        assert {(row[one], row[other]) for row in kept} == set(itertools.product(lists[one], lists[other]))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_every_value_is_tried(lengths: list[int]):
    lists = [range(length) for length in lengths]
    kept, all_of_them = cases(every_value, *lists)
    assert sorted(all_of_them) == sorted(itertools.product(*lists))
    assert len(kept) == max(lengths)
    assert all({row[place] for row in kept} == set(values) for place, values in enumerate(lists))


def test_few_of_many_combinations_are_kept():
    kept, all_of_them = cases(every_pair, range(14), "abc", "xyz")
    assert (len(kept), len(all_of_them)) == (42, 126)


def test_all_but_those_that_are_named_are_kept():
    rows = all_but({"a": 1, "b": 2, "c": 3}, "b")
    assert [(row.values, row.id, bool(row.marks)) for row in rows] == [
        (("a",), "a", False), (("b",), "b", True), (("c",), "c", False),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no row is called 'd'"):
        all_but("abc", "d")


def test_only_those_that_are_named_are_kept():
    rows = only_these(("b", 1), ("a", 2), one="ab", other=[1, 2]).args[1]
    assert [row.values for row in rows if not row.marks] == [("a", 2), ("b", 1)] and len(rows) == 4
    with pytest.raises(ValueError, match="is not in list"):
        only_these(("c", 1), one="ab", other=[1, 2])


def test_two_lists_are_refused():
    with pytest.raises(ValueError, match="two lists"):
        every_pair(a=[1, 2], b=[3, 4])


def test_functions_are_called_by_their_names():
    def double() -> None: ...

    for rows in (every_value(of=[double], size=[1]).args[1], all_but([double]), first(1, [(double, 2)])):
        assert [row.id.partition("-")[0] for row in rows] == ["double"]
