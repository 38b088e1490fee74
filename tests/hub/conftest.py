"""One running Hub for all tests that talk to one; each uses an organisation of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels_hub.hub import client
from tests.hub.place import Place
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


@pytest.fixture
def place(hub: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    from huggingface_hub import HfApi, constants

    organisation = f"org{time.monotonic_ns()}"
    token = hub.token("maker")
    hub.organisation(organisation, "maker")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    api = HfApi(hub.endpoint, token=token)
    client.forget()
    place = Place(hub, api, organisation, tmp_path / "cache", monkeypatch, tmp_path / "scratch")
    place.at(hub.endpoint)
    yield place
    client.forget()
