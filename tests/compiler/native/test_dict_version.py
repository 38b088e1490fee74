"""Where a dict's version lies: found where Python counts them, and given up where one change would not be seen."""

from __future__ import annotations

import itertools
import sys

import pytest

from kernels_hub.compiler.native import dict_version

COUNTED = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 13)


def test_it_is_found_where_python_counts_them():
    assert dict_version.offset_of_version() == (24 if COUNTED else 0)


def test_a_python_that_has_none():
    if COUNTED:
        assert dict_version._counts()
    else:
        assert dict_version.offset_of_version() == 0


def test_what_never_changes_is_no_version(monkeypatch):
    monkeypatch.setattr(dict_version, "_version", lambda table: 7)
    assert not dict_version._counts()


def test_what_is_no_ones_own_is_no_version(monkeypatch):
    """Such as how many entries there are, which two dicts may share."""
    monkeypatch.setattr(dict_version, "_version", len)
    assert not dict_version._counts()


def test_what_changes_by_itself_is_no_version(monkeypatch):
    counter = itertools.count(1)
    monkeypatch.setattr(dict_version, "_version", lambda table: next(counter))
    assert not dict_version._counts()


@pytest.mark.skipif(not COUNTED, reason="needs a Python that counts versions of dicts: 3.11 or 3.12")
@pytest.mark.parametrize("missed", [*range(10), 100, 209, 210, 211])
def test_a_change_that_is_not_counted_is_found(missed, monkeypatch):
    """Whichever of those that are tried: of a dict's items, of an attribute time and again, of another, of one deleted."""
    original, last, changes = dict_version._version, {}, itertools.count()

    def version(table):
        found, before = original(table), last.get(id(table))
        if before not in {None, found} and next(changes) == missed:
            return before
        last[id(table)] = found
        return found

    monkeypatch.setattr(dict_version, "_version", version)
    assert not dict_version._counts()
    assert next(changes) > missed, "no such change is tried"
