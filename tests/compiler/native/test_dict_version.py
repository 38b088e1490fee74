"""Where a dict's version lies: found where something counts changes, and given up where one change would not be seen."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import sys
import textwrap

import pytest

from kernels_hub.compiler.native import dict_version
from kernels_hub.compiler.runtime.toolchain import build, load

IN_DICTS = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 13)
BY_WATCHER = sys.implementation.name == "cpython" and sys.version_info >= (3, 13)
needs_watcher = pytest.mark.skipif(not BY_WATCHER, reason="needs a Python without versions of dicts: 3.13")
DIES = 5


@pytest.fixture(scope="module")
def library():
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return load(build('#include "dict_version.h"\n', "dict_version"))


@pytest.fixture(scope="module")
def place(library):
    return dict_version.place_of_versions(library)


def version(place, table):
    return ctypes.c_uint64.from_address(place(table)).value


def test_it_is_found(place):
    table = {"a": 1}
    assert place is not None
    before = version(place, table)
    table["a"] = 2
    assert before != version(place, table) != 0
    if IN_DICTS:
        assert place(table) == id(table) + 24


def test_attributes_are_seen_or_have_no_version(place):
    """CPython 3.13.0 tells no watcher of those that an object holds itself (python/cpython#125608)."""
    holder = dict_version._Holder()
    if place(vars(holder)) == 0:
        assert sys.version_info[:3] == (3, 13, 0)
        return
    before = version(place, vars(holder))
    holder.name = 1
    assert version(place, vars(holder)) != before


def test_what_never_changes_is_no_version(monkeypatch):
    monkeypatch.setattr(dict_version, "_version", lambda place, table: 7)
    assert not dict_version._counts_items(dict_version._in_dict)


def test_what_is_no_ones_own_is_no_version(monkeypatch):
    """Such as how many entries there are, which two dicts may share."""
    monkeypatch.setattr(dict_version, "_version", lambda place, table: len(table))
    assert not dict_version._counts_items(dict_version._in_dict)


def test_what_changes_by_itself_is_no_version(monkeypatch):
    counter = itertools.count(1)
    monkeypatch.setattr(dict_version, "_version", lambda place, table: next(counter))
    assert not dict_version._counts_items(dict_version._in_dict)


@pytest.mark.parametrize("missed", [*range(11), 100, 210, 211, 212])
def test_a_change_that_is_not_counted_is_found(missed, place, monkeypatch):
    """Whichever of those that are tried: of a dict's items, of an attribute time and again, of another, of one deleted."""
    original, last, changes = dict_version._version, {}, itertools.count()

    def with_one_missed(place, table):
        found, before = original(place, table), last.get(id(table))
        if before not in {None, found} and next(changes) == missed:
            return before
        last[id(table)] = found
        return found

    assert dict_version._counts_items(place)
    monkeypatch.setattr(dict_version, "_version", with_one_missed)
    assert not dict_version._counts_items(place)
    assert next(changes) > missed, "no such change is tried"


def test_dicts_of_objects_have_no_version_where_their_attributes_are_not_seen(place, monkeypatch):
    monkeypatch.setattr(dict_version, "_counts_attributes", lambda place: False)
    relied_on = dict_version._relied_on(place)
    if IN_DICTS:  # whose dicts do not say that an object holds their values as later ones do
        assert relied_on is None or relied_on({"a": 1}) != 0
        return
    assert relied_on(vars(dict_version._Holder())) == 0
    assert relied_on({"a": 1}) != 0


def test_versions_are_counted_until_a_dict_dies(library):
    """As Python calls it; by addresses that are of no dict, of which none is looked at."""
    library.kh_dict_version_at.restype = ctypes.POINTER(ctypes.c_uint64)
    library.kh_dict_version_at.argtypes = (ctypes.c_void_p,)
    changed = library.kh_dict_changed
    changed.argtypes = (ctypes.c_int, *[ctypes.c_void_p] * 3)
    addresses = [16 * one for one in range(1, 20_000)]  # some to each bucket
    places = [library.kh_dict_version_at(one) for one in addresses]
    versions = [one[0] for one in places]
    assert len(set(versions)) == len(versions) and 0 not in versions
    assert ctypes.addressof(library.kh_dict_version_at(48).contents) == ctypes.addressof(places[2].contents)
    changed(0, 48, None, None)
    assert places[2][0] > max(versions)
    assert [one[0] for one in places[3:]] == versions[3:]
    for address in addresses:
        changed(DIES, address, None, None)
    assert not any(one[0] for one in places)
    anew = library.kh_dict_version_at(48)
    changed(0, 48, None, None)
    assert (anew[0] > 0, places[2][0]) == (True, 0)
    changed(DIES, 48, None, None)
    changed(DIES, 48, None, None)


def in_another_process(library, code: str) -> str:
    setup = f"""
        import ctypes, gc, sys
        from kernels_hub.compiler.native import dict_version
        def library():
            return ctypes.CDLL({library._name!r})
        """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(setup) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@needs_watcher
def test_no_watcher_left(library):
    code = """
        callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)(lambda *_: 0)
        add, taken = ctypes.pythonapi.PyDict_AddWatcher, 0
        try:
            while add(callback) >= 0:
                taken += 1
        except RuntimeError:
            print(taken > 0, dict_version.place_of_versions(library()))
        """
    assert in_another_process(library, code) == "True None"


@needs_watcher
def test_all_copies_share_a_watcher_until_python_ends(library):
    code = """
        import importlib.util
        spec = importlib.util.spec_from_file_location("shipped", dict_version.__file__)
        shipped = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shipped)
        place = dict_version.place_of_versions(library())
        assert shipped.place_of_versions(None) is place
        kept = [{"a": one} for one in range(1000)]
        places = list(map(place, kept))
        globals_of_main = place(globals())
        del kept[:500]
        print(sum(ctypes.c_uint64.from_address(one).value == 0 for one in places))
        """
    assert in_another_process(library, code) == "500"
