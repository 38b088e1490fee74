"""Tables of gains: classes of shape, what speaks for which shape, ranges of rows; and their files."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import LEAST_GAIN, Gain, GainTable, Shape, ranges
from kernels_hub.calibration.kinds import class_of, rows_of
from kernels_hub.errors import CalibrationError

MACHINE = database.Machine("amd-25-17-avx512bf16", 2, (("torch", "2.15.0"), ("kernels_hub", "0.1.0")))
GOOD, BAD = LEAST_GAIN + 0.5, LEAST_GAIN - 0.5

RANGES = {
    "everywhere": ({1: GOOD, 64: GOOD}, ((1, math.inf),)),
    "nowhere": ({1: BAD, 64: BAD}, ()),
    "many rows": ({1: BAD, 64: GOOD}, ((46, math.inf),)),
    "few rows": ({1: GOOD, 16: GOOD, 64: BAD}, ((1, 26),)),
    "in between": ({1: BAD, 16: GOOD, 64: BAD}, ((12, 26),)),
    "not in between": ({1: GOOD, 16: BAD, 64: GOOD}, ((1, 1), (39, math.inf))),
    "hardly a gain": ({4: LEAST_GAIN, 16: BAD}, ((3, 4),)),
    "hardly a loss": ({4: GOOD, 16: LEAST_GAIN - 0.01}, ((3, 15),)),
    "half a gain": ({4: LEAST_GAIN * 2, 16: LEAST_GAIN / 2}, ((3, 8),)),
    "nothing at all": ({4: GOOD, 16: 0.0}, ((3, 5),)),
    "just enough": ({1: LEAST_GAIN}, ((1, math.inf),)),
    "not from the first": ({16: GOOD}, ((12, math.inf),)),
}


@pytest.mark.parametrize("ratios, expected", RANGES.values(), ids=RANGES)
def test_ranges_of_rows(ratios: dict[int, float], expected: tuple[tuple[int, float], ...]):
    assert ranges(ratios) == expected


def test_beyond_what_was_measured_nothing_is_said():
    assert ranges({1: GOOD, 16: GOOD}, complete=False) == ((1, 22),)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 16, 64, 256]), st.floats(0.1, 10), min_size=1))
def test_a_class_of_rows_lies_in_a_range_exactly_where_it_gains(ratios: dict[int, float]):
    found = ranges(ratios)
    for rows, ratio in ratios.items():
        assert any(first <= rows <= last for first, last in found) == (ratio >= LEAST_GAIN)
    assert all(first <= last for first, last in found)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(found))


def test_a_shape_belongs_to_the_nearest_powers_of_two():
    assert Shape("Linear", "float32", 384, 1000).cell == Shape("Linear", "float32", 512, 1024)
    assert Shape("Linear", "float32", 1, 0).cell == Shape("Linear", "float32", 1, 1)


LARGER = {
    (1000, 50_000): (1024, 32768),
    (16384, 1000): (4096, 1024),
    (4096, 50_000): (4096, 4096),
    (64, 64): (64, 64),
    (32, 32): (32, 32),  # what is smaller is a class of its own
}


@pytest.mark.parametrize("sizes, expected", LARGER.items(), ids=str)
def test_what_is_larger_than_is_measured_is_as_the_largest(sizes: tuple[int, int], expected: tuple[int, int]):
    found = class_of(Shape("Linear", "bfloat16", *sizes))
    assert found == Shape("Linear", "bfloat16", *expected)


def test_a_class_that_was_not_measured_yet_is_not_judged_by_a_smaller_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
):
    small = Shape("Linear", "float32", 64, 64)
    own = GainTable()
    for rows in rows_of(small):
        own.put(small, rows, BAD)
    database.add(MACHINE, own)
    for table in ("shipped", "of_other_processors"):
        monkeypatch.setattr(database, table, lambda _: GainTable())
    known = database.known_gains(MACHINE)
    assert known.gain(small) is not None
    assert known.gain(Shape("Linear", "float32", 1024, 4096)) is None


def test_gains_in_words():
    assert str(Gain(1.5, "this machine", ((1, math.inf),))) == "1.50 (this machine)"
    assert str(Gain(1.5, "x", ((1, 22), (46, math.inf)))) == "1.50 (x), 1 to 22 rows, from 46 rows"


# -- files -------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "off")
    return tmp_path / "calibration"


def _table(rows: int = 1, ratio: float = 1.25) -> GainTable:
    table = GainTable()
    table.put(Shape("Conv2d 3x3/1", "float32", 64, 128), rows, ratio)
    return table


def test_a_table_comes_back_as_it_was_written(tmp_path: Path):
    table = _table()
    table.put(Shape("Linear", "bfloat16", 64, 64), 1024, 0.5)
    database.write(tmp_path / "x.json", MACHINE, table)
    assert database.read(tmp_path / "x.json", MACHINE).cells == table.cells


def test_what_is_added_joins_what_was_there(cache: Path):
    database.add(MACHINE, _table(1))
    database.add(MACHINE, _table(16))
    assert list(database.load(MACHINE).cells.values()) == [{1: 1.25, 16: 1.25}]
    assert [path.suffix for path in cache.iterdir() if path.suffix != ".lock"] == [".json"]


def test_processes_that_add_at_once_lose_nothing(cache: Path):
    threads = [threading.Thread(target=database.add, args=(MACHINE, _table(1 << i))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (ratios,) = database.load(MACHINE).cells.values()
    assert sorted(ratios) == [1 << i for i in range(8)]


DAMAGE = {
    "empty": b"",
    "cut off": b'{"format": 1, "machine": {',
    "not JSON": b"\xff\xfe",
    "a list": b"[]",
    "another format": b'{"format": 2, "machine": {}, "gains": {}}',
    "no ratio": b'{"format": 1, "machine": %s, "gains": {"Linear, float32": {"64 x 64": {"1": -1}}}}',
    "no number": b'{"format": 1, "machine": %s, "gains": {"Linear, float32": {"64 x 64": {"1": "a"}}}}',
    "no size": b'{"format": 1, "machine": %s, "gains": {"Linear, float32": {"64": {"1": 1}}}}',
    "not a table": b'{"format": 1, "machine": %s, "gains": 3}',
}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_told_once_and_measured_anew(
    data: bytes, cache: Path, caplog: pytest.LogCaptureFixture
):
    database.add(MACHINE, _table())
    path = cache / MACHINE.file_name
    document = json.loads(path.read_text())
    path.write_bytes(data.replace(b"%s", json.dumps(document["machine"]).encode()))
    database._loaded.cache_clear()
    assert database.load(MACHINE).cells == {}
    assert database.load(MACHINE).cells == {}
    (record,) = caplog.records
    assert "measured anew" in record.message and "\n" not in record.message and len(record.message) <= 200
    database.add(MACHINE, _table(64))
    assert list(database.load(MACHINE).cells.values()) == [{64: 1.25}]


def test_a_file_of_another_machine_does_not_count(cache: Path):
    database.add(MACHINE, _table())
    other = database.Machine("intel-6-85-avx512", 2, MACHINE.versions)
    (cache / MACHINE.file_name).rename(cache / other.file_name)
    with pytest.raises(CalibrationError, match="was measured on"):
        database.read(cache / other.file_name, other)
    assert database.load(other).cells == {}


def test_a_cache_that_cannot_be_written_loses_the_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path / "file"))
    assert database.add(MACHINE, _table()) is None
    assert "is not kept" in caplog.text


def test_this_machine_comes_before_the_shipped_table(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(database, "shipped", lambda _: _table(1, 3.0))
    shape = Shape("Conv2d 3x3/1", "float32", 64, 128)
    found = database.known_gains(MACHINE).gain(shape)
    assert found is not None and (found.ratio, found.source) == (3.0, database.SHIPPED)
    database.add(MACHINE, _table(1, 0.5))
    found = database.known_gains(MACHINE).gain(shape)
    assert found is not None and (found.ratio, found.source, found.rows) == (0.5, database.THIS_MACHINE, ())


def test_sources_fill_in_what_the_nearer_ones_do_not_know(cache: Path, monkeypatch: pytest.MonkeyPatch):
    shape = Shape("Linear", "float32", 64, 64)
    shipped, own = GainTable(), GainTable()
    for rows in rows_of(shape):
        shipped.put(shape, rows, GOOD)
    own.put(shape, 1, BAD)
    monkeypatch.setattr(database, "shipped", lambda _: shipped)
    database.add(MACHINE, own)
    found = database.known_gains(MACHINE).gain(shape)
    assert found is not None and found.complete
    assert (found.ratio, found.source, found.rows) == (GOOD, database.SHIPPED, ((2, math.inf),))


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of shipped tables: two processors with AVX-512, which differ, and one without."""
    folder = tmp_path / "gains"
    folder.mkdir()
    for processor, ratios in (
        ("amd-1-1-avx512bf16", {1: 2.0, 4: 1.2, 16: 3.0}),
        ("intel-1-1-amx", {1: 1.5, 4: 1.1}),
        ("intel-1-2-avx2", {1: 9.0, 4: 9.0, 16: 9.0}),
    ):
        table = GainTable()
        for rows, ratio in ratios.items():
            table.put(Shape("Linear", "float32", 64, 64), rows, ratio)
        database.write(folder / f"{processor}-2.json", database.Machine(processor, 2, ()), table)
    monkeypatch.setattr(database, "_shipped_folder", lambda: folder)
    database.of_other_processors.cache_clear()
    database.shipped.cache_clear()
    yield folder
    database.of_other_processors.cache_clear()
    database.shipped.cache_clear()


def test_a_processor_without_a_table_expects_a_little_less_than_the_least_of_the_others(
    cache: Path, tables: Path
):
    unmeasured = database.Machine("intel-7-7-avx512", 2, MACHINE.versions)
    known = database.known_gains(unmeasured)
    found = known.gain(Shape("Linear", "float32", 64, 64))
    assert found is not None and (found.ratio, found.source) == (1.35, database.OTHERS)
    assert found.rows[0][0] == 1 and found.rows[-1][1] < 4, "0.99 at 4 rows, nothing at 16"
    assert not found.complete, "it is measured beside all the same"
    for other in (("intel-7-7-avx2", 2), ("intel-7-7-avx2", 4), ("unheard-of", 2)):
        machine = database.Machine(*other, MACHINE.versions)
        assert not database.of_other_processors(machine).cells, "fewer than two tables"


def test_another_number_of_threads_expects_what_its_processor_gains_with_others(cache: Path, tables: Path):
    shape, more = Shape("Linear", "float32", 64, 64), GainTable()
    machine = database.Machine("amd-1-1-avx512bf16", 8, MACHINE.versions)
    assert database.of_other_processors(machine).cells[shape] == {1: 1.35, 4: 0.99}, (
        "of both with its vectors"
    )
    more.put(shape, 1, 1.8)
    database.write(tables / "amd-1-1-avx512bf16-1.json", database.Machine(machine.processor, 1, ()), more)
    database.of_other_processors.cache_clear()
    assert database.of_other_processors(machine).cells[shape] == {1: 1.62}
    found = database.known_gains(machine).gain(shape)
    assert found is not None and (found.ratio, found.source) == (1.62, database.OTHERS)
    assert not found.complete, "it is measured beside all the same"


def test_what_only_other_processors_have_is_expected_with_more_caution(cache: Path, tables: Path):
    """A kind that was measured on one processor, with two numbers of threads, on one that has a table without it."""
    shape, linear = Shape("MLP", "float32", 64, 64), Shape("Linear", "float32", 64, 64)
    for threads, ratios in ((1, {1: 4.0, 4: 1.5, 16: 3.0}), (2, {1: 3.0, 4: 2.0})):
        path = tables / f"amd-1-1-avx512bf16-{threads}.json"
        table = database.read(path, None) if path.is_file() else GainTable()
        for rows, ratio in ratios.items():
            table.put(shape, rows, ratio)
        database.write(path, database.Machine("amd-1-1-avx512bf16", threads, ()), table)
    for processor in ("intel-1-1-amx", "intel-7-7-avx512"):
        machine = database.Machine(processor, 2, MACHINE.versions)
        expected = database.of_other_processors(machine).cells
        assert expected[shape] == {1: pytest.approx(1.8)}, (
            "0.9 at 4 rows is unknown, as is one table's 16 rows"
        )
        assert (linear in expected) == (processor == "intel-7-7-avx512")
        found = database.known_gains(machine).gain(shape)
        assert found is not None and found.source == database.OTHERS
        assert found.rows[-1][1] < 4 and not found.complete, "it is measured beside all the same"
    own = database.known_gains(database.Machine("intel-1-1-amx", 2, MACHINE.versions)).gain(linear)
    assert own is not None and (own.ratio, own.source) == (1.5, database.SHIPPED)


def test_what_was_measured_here_comes_before_other_processors(cache: Path, tables: Path):
    unmeasured = database.Machine("intel-7-7-avx512", 2, MACHINE.versions)
    shape, own = Shape("Linear", "float32", 64, 64), GainTable()
    own.put(shape, 1, BAD)
    database.add(unmeasured, own)
    found = database.known_gains(unmeasured).gain(shape)
    assert found is not None and found.rows == ()
    measured = database.Machine("amd-1-1-avx512bf16", 2, MACHINE.versions)
    found = database.known_gains(measured).gain(shape)
    assert found is not None and (found.ratio, found.source) == (3.0, database.SHIPPED)


def test_a_pinned_file_counts_alone_and_also_under_determinism(cache: Path, monkeypatch: pytest.MonkeyPatch):
    database.add(MACHINE, _table(1, 0.5))
    pinned = cache.parent / "pinned.json"
    database.write(pinned, MACHINE, _table(1, 2.0))
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(pinned))
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        try:
            found = database.known_gains(MACHINE).gain(Shape("Conv2d 3x3/1", "float32", 64, 128))
        finally:
            torch.use_deterministic_algorithms(False)
        assert found is not None and (found.ratio, found.source) == (2.0, database.PINNED)
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(pinned) + ".missing.json")
    with pytest.raises(CalibrationError, match="CALIBRATION: .* cannot be read.*; write one with .*or unset"):
        database.known_gains(MACHINE)


def test_nothing_is_chosen_by_time_under_determinism(cache: Path):
    database.add(MACHINE, _table(1, 2.0))
    torch.use_deterministic_algorithms(True)
    try:
        assert database.known_gains(MACHINE).gain(Shape("Conv2d 3x3/1", "float32", 64, 128)) is None
    finally:
        torch.use_deterministic_algorithms(False)
