"""Entry points are read once a process and group."""

from __future__ import annotations

import importlib.metadata

import pytest

from kernels_hub.entry_points import entry_points


def test_they_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = importlib.metadata.EntryPoint("name", "module:object", "group of a test")
    read: list[str] = []

    def reads(*, group: str) -> list[importlib.metadata.EntryPoint]:
        read.append(group)
        return [one] if group == one.group else []

    monkeypatch.setattr(importlib.metadata, "entry_points", reads)
    assert entry_points(one.group) == entry_points(one.group) == (one,)
    assert entry_points("another group of a test") == ()
    assert read == [one.group, "another group of a test"]


def test_those_that_are_installed() -> None:
    assert {"cpu"} <= {point.name for point in entry_points("kernels_hub.layer_compilers")}


def test_damaged_metadata_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*, group: str) -> None:
        raise ValueError(group)

    monkeypatch.setattr(importlib.metadata, "entry_points", damaged)
    for _ in range(2):
        with pytest.raises(ValueError, match="group of a test"):
            entry_points("group of a test")
