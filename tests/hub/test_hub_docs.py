"""docs/hub.md works in its printed order, on a Hub that serves the folder that the page makes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiler import test_docs
from tests.compiler.export.test_ten_minutes import _point_at
from tests.compiler.test_docs import DOCS, run_page
from tests.running_hub import start_hub

PAGE = (DOCS / "hub.md").read_text(encoding="utf-8")
SERVED = "In a second terminal, `kernels-hub serve"

pytestmark = pytest.mark.slow


def run_any(command: str) -> str:
    program, *arguments = shlex.split(command)
    if program == "kernels-hub":
        return run_command(command)
    assert program == "python"
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


run_command = test_docs.run_command


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # huggingface_hub's own
def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(test_docs, "run_command", run_any)
    before, mark, after = PAGE.partition(SERVED)
    assert mark and run_page("hub.md", before) == 3
    head, toml, tail = after.partition("```toml\n")
    written, fence, rest = tail.partition("```\n")
    assert toml and fence and written.startswith("# pyproject.toml\n")
    with start_hub(tmp_path / "hub") as hub:
        _point_at(hub.endpoint, tmp_path / "cache", monkeypatch)
        monkeypatch.setenv("HF_TOKEN", hub.token("ada"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        assert run_page("hub.md", "\n" * before.count("\n") + head) == 7
        (tmp_path / "pyproject.toml").write_text(written, encoding="utf-8")
        assert run_page("hub.md", "\n" * (before + head + written).count("\n") + rest) == 9
