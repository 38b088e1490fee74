"""Two rounds of `benchmarks/server_storm.py`, and that it finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.server_storm import Acknowledged, race, storm, verify
from tests.combinations import all_but
from tests.running_hub import start_hub


@pytest.mark.parametrize("workers", all_but([1, 2], 1))
def test_nothing_acknowledged_is_lost(tmp_path: Path, workers: int):
    found = storm(tmp_path / "hub", 1, workers=workers, seed=workers)
    assert found["problems"] == []
    assert found["commits acknowledged"] > 0


@pytest.mark.each_database
def test_one_writer_wins(tmp_path: Path):
    found = race(tmp_path / "hub", workers=2)
    assert found["problems"] == []
    assert found["statuses"] == [200] + [412] * 7


@pytest.mark.git_folder
def test_losses_are_found(tmp_path: Path):
    done = Acknowledged()
    found = storm(tmp_path / "hub", 1, workers=1, seed=5)
    assert found["problems"] == []
    done.files["writer/shared", "never-committed"] = b"x"
    done.commits.append(("writer/shared", "0" * 40))
    done.tags.append(("writer/shared", "v1", "0" * 40))
    done.repositories.append("writer/gone")
    with start_hub(tmp_path / "hub") as hub:
        assert len(verify(hub, done)) == 4
        with hub.administer() as opened:
            shared = opened.repositories.find("kernel", "writer", "shared")
            assert shared is not None
            packs = [*(opened.layout.repository(shared.id) / "git").rglob("*.pack")]
        assert packs
        for pack in packs:
            pack.chmod(0o644)
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
        problems = verify(hub, Acknowledged())
    assert any("git fsck of writer/shared" in problem for problem in problems)
    assert any("the Hub's own check" in problem for problem in problems)
