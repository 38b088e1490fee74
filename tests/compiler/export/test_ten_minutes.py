"""docs/ten_minutes.md does what it says, with a Hub that serves the folder that the page makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_hub.compiler.runtime.toolchain import find_compiler
from kernels_hub.hub import client
from tests.compiler.test_docs import DOCS, run_page
from tests.running_hub import start_hub

NAME = "ten_minutes.md"
SERVED = "In a second terminal, `kernels-hub serve"


def _point_at(endpoint: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HF_ENDPOINT and HF_HUB_CACHE do, also where huggingface_hub has read them already."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    client.forget()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # huggingface_hub's own
@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before, mark, after = (DOCS / NAME).read_text(encoding="utf-8").partition(SERVED)
    assert mark
    assert run_page(NAME, before) == 6
    with start_hub(tmp_path / "hub") as hub:
        _point_at(hub.endpoint, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", hub.token("ada"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        assert run_page(NAME, "\n" * before.count("\n") + after) == 5
