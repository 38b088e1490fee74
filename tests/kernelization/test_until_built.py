"""Originals run until the native code of their kernels is built, and for good where nothing can build it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.warm_process import run_script

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SCRIPT = """
import os
import torch
from torch import nn
from kernels_hub import (
    BundledLayerRepository, Mode, kernelize, report, restore, use_kernel_forward_from_hub, use_kernel_mapping,
    wait_until_compiled,
)

@use_kernel_forward_from_hub("SiLU")
class Counted(nn.SiLU):
    calls = 0

    def forward(self, input):
        Counted.calls += 1
        return nn.functional.silu(input)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Counted()

    def forward(self, x):
        return self.layer(x)

    def generate(self, x, between):
        first = self(x)
        between()
        return first, self(x)

model, x = Model().eval(), torch.randn(40, 96)
expected = nn.functional.silu(x)

def originals(call):
    before = Counted.calls
    for found in call():
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    return Counted.calls - before

def let_it_build():
    os.makedirs(os.environ["KERNELS_HUB_CACHE"], exist_ok=True)
    open(os.environ["KERNELS_HUB_CACHE"] + "/go-on", "w").close()

def swapped(**options):
    mapping = {"SiLU": {"cpu": BundledLayerRepository("activation", layer_name="SiLU")}}
    with use_kernel_mapping(mapping, inherit_mapping=False):
        return kernelize(model, mode=Mode.INFERENCE, device="cpu", **options)

"""


def run(tmp_path: Path, then: str, compiler: str = "", **environment: str) -> list[str]:
    """What a new process prints, whose cache of native code is empty unless an earlier one filled it."""
    given = {
        **os.environ,
        "KERNELS_HUB_CACHE": str(tmp_path / "cache"),
        "KERNELS_HUB_JIT": "background",
        **environment,
    }
    if compiler:
        given["KERNELS_HUB_CXX"] = compiler
    done = run_script(SCRIPT + then, env=given, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def slow_compiler(tmp_path: Path) -> str:
    """A compiler that waits until `let_it_build` is called, or its process is gone, and takes no time to optimize."""
    path = tmp_path / "slow-g++"
    path.write_text(
        f"""#!/bin/sh
case "$*" in
    *--version*) ;;
    *) until [ -e "$KERNELS_HUB_CACHE/go-on" ] || ! kill -0 $PPID; do sleep 0.05; done ;;
esac
exec {shutil.which("g++")} "$@" -O1
"""
    )
    path.chmod(0o755)
    return str(path)


WHILE = """
import sys
swapped()
native = next(one for name, one in sys.modules.items() if name.endswith(".native") and hasattr(one, "is_built"))
assert not native._BUILDS, "nothing is built before it is called"
print(originals(lambda: [model(x)]))
swapped()  # again, which changes nothing
print(originals(lambda: [model(x)]))
let_it_build()
assert wait_until_compiled(model, timeout=800)
print(originals(lambda: [model(x)]), originals(lambda: [model(x)]))
restore(model)
print(originals(lambda: [model(x)]))
"""


def test_the_original_runs_until_the_kernel_is_built(tmp_path: Path) -> None:
    assert run(tmp_path, WHILE, slow_compiler(tmp_path)) == ["1", "1", "0", "0", "1"]
    assert run(tmp_path, WHILE, slow_compiler(tmp_path)) == ["0", "0", "0", "0", "1"], "built before"


def test_nothing_changes_within_a_generate(tmp_path: Path) -> None:
    then = """
swapped()

def waited():
    let_it_build()
    wait_until_compiled(model, timeout=800)

print(originals(lambda: model.generate(x, waited)), originals(lambda: model.generate(x, waited)))
"""
    assert run(tmp_path, then, slow_compiler(tmp_path)) == ["2", "0"]


def test_what_waits_or_has_no_originals_has_kernels_at_once(tmp_path: Path) -> None:
    for options in ("wait=True", "free_weights=True", "verify=x"):
        then = f"swapped({options})\nCounted.calls = 0\nprint(originals(lambda: [model(x)]))"
        (tmp_path / options / "cache").mkdir(parents=True)
        (tmp_path / options / "cache" / "go-on").touch()
        assert run(tmp_path / options, then, slow_compiler(tmp_path)) == ["0"], options


def test_a_kernel_that_can_be_built_by_nobody(tmp_path: Path) -> None:
    then = """
swapped()
print(originals(lambda: [model(x)]), originals(lambda: [model(x)]))
print("no native code" in str(report(model).rows[-1]))
"""
    assert run(tmp_path, then, "none") == ["1", "1", "True"]


@pytest.mark.exhaustive
def test_a_loss_that_holds_no_logits_holds_none_meanwhile(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    then = """
from transformers import LlamaConfig, LlamaForCausalLM
from kernels_hub import load_kernel_mapping
config = LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
model, tokens = LlamaForCausalLM(config).train(), torch.randint(0, 96, (1, 12))
expected = model(input_ids=tokens, labels=tokens)
with use_kernel_mapping(load_kernel_mapping("fused_loss"), inherit_mapping=False):
    kernelize(model, mode=Mode.TRAINING)
found = model(input_ids=tokens, labels=tokens)
torch.testing.assert_close(found.loss, expected.loss)
print(expected.logits is None, found.logits is None)
print(model(input_ids=tokens, labels=tokens, skip_logits=False).logits is None)
"""
    assert run(tmp_path, then, slow_compiler(tmp_path)) == ["False", "True", "False"]
    assert run(tmp_path, then, "none") == ["False", "True", "False"]
