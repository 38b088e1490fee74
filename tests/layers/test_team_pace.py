"""Short regions of few_rows' C++ leave out a team that is late: `layers/native/team_pace.h`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from kernels_hub.cxx_compiler import FLAGS
from kernels_hub.repository.bundled import bundled_folder

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

MS = 1_000_000
SOURCE = """
#include "team_pace.h"
static TeamPace pace;
extern "C" {
bool is_alone(int64_t now) { return pace.is_alone(now); }
void ended(int64_t now, int64_t took, int64_t waited) { pace.ended(now, took, waited); }
void reset() { pace = TeamPace(); }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("team_pace")
    (folder / "pace.cpp").write_text(SOURCE)
    include = bundled_folder() / "native"
    command = ["g++", *FLAGS, "-shared", "-I", str(include), "pace.cpp", "-o", "pace.so"]
    subprocess.run(command, check=True, cwd=folder)
    found = ctypes.CDLL(str(Path(folder, "pace.so")))
    found.is_alone.argtypes, found.is_alone.restype = (ctypes.c_int64,), ctypes.c_bool
    found.ended.argtypes, found.ended.restype = 3 * (ctypes.c_int64,), None
    return found


@pytest.fixture
def pace(library: ctypes.CDLL) -> ctypes.CDLL:
    library.reset()
    return library


def alone_after(pace: ctypes.CDLL, now: int) -> int:
    """The nanoseconds after `now` in which the caller is alone."""
    low, high = 0, 1 << 40
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if pace.is_alone(now + middle) else (low, middle)
    return low


def test_a_team_that_is_there_is_always_used(pace: ctypes.CDLL):
    for now in range(0, 1000 * MS, MS):
        assert not pace.is_alone(now)
        pace.ended(now, 80_000, 100_000 if now % (10 * MS) == 0 else 2_000)


def test_after_a_late_region_the_caller_is_alone_for_a_while(pace: ctypes.CDLL):
    pace.ended(50 * MS, 3 * MS + 40_000, 3 * MS)
    assert alone_after(pace, 50 * MS) == 12 * MS
    assert pace.is_alone(55 * MS) and not pace.is_alone(62 * MS)


@pytest.mark.parametrize("waited", [MS, 3 * MS, 20 * MS, 400 * MS])
def test_a_team_that_stays_late_costs_little(pace: ctypes.CDLL, waited: int):
    """Every trial late: the waits come to be a thirtieth of the time, but for very long ones that are tried after 2 s."""
    now, pauses = 0, []
    for _ in range(12):
        now += waited
        pace.ended(now, waited, waited)
        pauses.append(alone_after(pace, now))
        now += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[-1] == min(32 * waited, 2000 * MS)


def test_a_team_that_is_back_in_time_is_trusted_again(pace: ctypes.CDLL):
    now = 0
    for _ in range(12):
        pace.ended(now, 3 * MS, 3 * MS)
        now += alone_after(pace, now)
    for _ in range(96):  # a millisecond each
        pace.ended(now, MS, 1000)
        assert not pace.is_alone(now)
    pace.ended(now, 3 * MS, 3 * MS)
    assert alone_after(pace, now) == 12 * MS
