"""Serve a Hub on this machine, publish a signed kernel there, trust its key, pin it, use it offline.

Run with `python examples/a_hub_of_ones_own.py`. Everything is in one temporary folder: the Hub's root,
the author's keys, the user's trust policy and cache. The commands are what one would type.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

USER = """
import torch
from torch import nn
from kernels_hub import LockedLayerRepository, Mode, kernelize, report, use_kernel_forward_from_hub, use_kernel_mapping

@use_kernel_forward_from_hub("SquaredReLU")
class SquaredReLU(nn.Module):
    def forward(self, x):
        return torch.relu(x).square()

model = nn.Sequential(nn.Linear(64, 64), SquaredReLU()).eval()
x = torch.randn(8, 64)
with torch.inference_mode():
    before = model(x)
    with use_kernel_mapping({"SquaredReLU": {"cpu": LockedLayerRepository("acme/relu", layer_name="SquaredReLU")}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    torch.testing.assert_close(model(x), before)
print(report(model))
"""


@contextlib.contextmanager
def served(root: Path, environment: dict[str, str]) -> Iterator[str]:
    """A Hub over a folder; its address."""
    command = [
        sys.executable,
        "-m",
        "kernels_hub",
        "serve",
        "--root",
        str(root),
        "--port",
        "0",
        "--no-access-log",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            announced = next(line for line in server.stdout if "http://" in line)
            yield next(word for word in announced.split() if word.startswith("http://"))
        finally:
            server.terminate()


def main() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "HF_HOME": str(folder / "huggingface"),
            "HF_HUB_CACHE": str(folder / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

        def run(*command: str) -> str:
            print("$", *(("kernels-hub", *command[2:]) if command[0] == "-m" else ("python", *command)))
            done = subprocess.run(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            print(done.stdout, end="")
            return done.stdout.strip()

        def kernels_hub(*arguments: str) -> str:
            return run("-m", "kernels_hub", *arguments)

        # Who runs the Hub: accounts, then the server.
        kernels_hub("hub", "user", "add", "ada", "--root", "hub")
        kernels_hub("hub", "org", "add", "acme", "--admin", "ada", "--root", "hub")
        environment["HF_TOKEN"] = kernels_hub(
            "hub", "token", "new", "ada", "--role", "write", "--root", "hub"
        )
        with served(folder / "hub", environment) as endpoint:
            environment["HF_ENDPOINT"] = endpoint

            # Who writes a kernel: a repository, a key, a release.
            kernels_hub("init", "relu")
            kernels_hub("key", "new", "ada")
            kernels_hub("publish", "relu", "--repo", "acme/relu", "--version", "0.1.0", "--sign", "ada")

            # Who uses it: trust the key, pin the release and every file of it, fetch it.
            kernels_hub("trust", "add", "ada", "--for", "acme/*")
            (folder / "pyproject.toml").write_text(
                '[tool.kernels-hub.dependencies]\n"acme/relu" = "~=0.1.0"\n'
            )
            kernels_hub("lock")
            kernels_hub("download")

        # The Hub is gone. The model runs on the kernel all the same.
        environment["HF_HUB_OFFLINE"] = "1"
        (folder / "model.py").write_text(USER)
        return run("model.py")


if __name__ == "__main__":
    main()
