"""The `hf` command, unmodified, through HF_ENDPOINT, with hf_xet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_hub import RunningHub


@pytest.mark.parametrize("kind", ["model", "kernel"])
def test_hf(server: RunningHub, tmp_path: Path, kind: str):
    env = {
        **os.environ,
        "HF_ENDPOINT": server.endpoint,
        "HF_TOKEN": server.token("ada"),
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    command = [sys.executable, "-c", "from huggingface_hub.cli.hf import main; main()"]

    def hf(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    repo, kind_option = f"acme/hf-{kind}", ("--repo-type", kind)
    (tmp_path / "up" / "sub").mkdir(parents=True)
    large = os.urandom(200_000)
    (tmp_path / "up" / "sub" / "large.bin").write_bytes(large)
    (tmp_path / "up" / "README.md").write_text("# x\n")
    hf("repos", "create", repo, "--type", kind)
    hf("upload", repo, str(tmp_path / "up"), ".", *kind_option)
    hf("download", repo, *kind_option, "--local-dir", str(tmp_path / "down"))
    assert (tmp_path / "down" / "sub" / "large.bin").read_bytes() == large
