"""What the sessions of the suite do once: order its files, keep what was collected, compile the C++ runtime."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernels_hub.compiler.runtime import toolchain
from tests.conftest import longest_first
from tests.runtime_objects import PRODUCTS, share_runtime_objects


def item(path: str, slow: bool) -> SimpleNamespace:
    return SimpleNamespace(path=Path(path), get_closest_marker=lambda name: slow if name == "slow" else None)


def test_files_with_many_slow_tests_come_first_and_stay_whole():
    items = [
        item("a", False), item("b", True), item("b", False), item("c", False), item("d", True), item("d", True),
    ]  # fmt: skip
    longest_first(items)
    assert "".join(str(one.path) for one in items) == "ddbbac"


def test_no_collection_of_garbage_looks_at_what_was_imported_for_the_tests():
    assert not any(one is pytest for one in gc.get_objects())  # which leaves out what is frozen


@pytest.mark.skipif(toolchain.find_compiler() is None, reason="needs a C++ compiler")
def test_a_cache_of_a_tests_own_has_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(share_runtime_objects(tmp_path / "cache")))
    monkeypatch.setattr(toolchain, "_compile", lambda *given: pytest.fail(f"{given[0]} is compiled again"))
    folder, compiler = toolchain.cache_folder("compiled"), toolchain.find_compiler()
    for source in PRODUCTS:
        found = toolchain._runtime_object(source, folder, compiler, toolchain.machine_isas()[0])
        assert found.is_relative_to(tmp_path) and toolchain.is_whole(found)
