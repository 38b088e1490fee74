"""The order in which processes take the files of the suite."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from tests.conftest import longest_first


def item(path: str, slow: bool) -> SimpleNamespace:
    return SimpleNamespace(path=Path(path), get_closest_marker=lambda name: slow if name == "slow" else None)


def test_files_with_many_slow_tests_come_first_and_stay_whole():
    items = [
        item("a", False), item("b", True), item("b", False), item("c", False), item("d", True), item("d", True),
    ]  # fmt: skip
    longest_first(items)
    assert "".join(str(one.path) for one in items) == "ddbbac"
