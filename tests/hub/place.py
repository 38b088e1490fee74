"""Where a test of the Hub's client works: an organisation on a running Hub, and a cache of its own."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernels_hub import get_kernel
from kernels_hub.hub import client
from kernels_hub.hub.cache import RepositoryCache
from tests.hub.small_kernels import put, write_variant
from tests.running_hub import RunningHub


@dataclass
class Place:
    """A Hub, an organisation of one test's own there, and a fresh cache."""

    hub: RunningHub
    api: Any
    organisation: str
    cache: Path
    monkeypatch: pytest.MonkeyPatch
    scratch: Path

    def repo(self, name: str = "small") -> str:
        return f"{self.organisation}/{name}"

    def put(self, value: object, name: str = "small", variant: str = "torch-cpu", **options: Any) -> str:
        """One commit with one variant, or several, named with spaces between."""
        kept = {key: options.pop(key) for key in ("tag", "branch", "repo_type", "extra") if key in options}
        build = self.scratch / f"build-{time.monotonic_ns()}"
        for one in variant.split():
            write_variant(build / one, value, **options)
        return put(self.api, self.repo(name), build, **kept)

    def release(self, version: str, value: object, **options: Any) -> str:
        major = version.partition(".")[0]
        return self.put(value, tag=f"v{version}", branch=f"v{major}", **options)

    def get(self, name: str = "small", **wanted: Any) -> ModuleType:
        return get_kernel(self.repo(name), trust_remote_code=True, **wanted)

    def cache_of(self, name: str = "small") -> Path:
        """Where this library keeps what it knows of a kernel repository."""
        return RepositoryCache(self.cache, self.repo(name), "kernel").folder / ".kernels_hub"

    def at(self, endpoint: str) -> None:
        """Ask this Hub from now on: what HF_ENDPOINT does for a new process."""
        from huggingface_hub import constants

        self.monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        self.monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)

    def offline(self, value: bool = True) -> None:
        from huggingface_hub import constants

        self.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", value)
        client.forget()

    def requests(self, *kinds: str) -> list[str]:
        """What the Hub was asked about this organisation, as "GET /path", if it has one of these words."""
        found = [f"{r.method} {r.path}" for r in self.hub.requests() if self.organisation in r.path]
        return [line for line in found if not kinds or any(kind in line for kind in kinds)]

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HF_ENDPOINT": self.hub.endpoint,
            "HF_HUB_CACHE": str(self.cache),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
