"""One running Hub for all tests that talk to one; each uses an organisation of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_hub import RunningHub, start_hub


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    with start_hub(tmp_path_factory.mktemp("hub") / "root") as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one test's own, for this process (huggingface_hub read the variable before) and others."""
    from huggingface_hub import constants

    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder
