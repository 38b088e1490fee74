"""How many kernels whole models become, and how many bytes these move: pinned, beside what cannot be done with less.

The bound of bytes is the weights, the inputs and the outputs, once each: what a single kernel would move. To accept
another report, read the difference, then

    ACCEPT_GOLDEN=1 python -m pytest tests/compiler/schedule/test_models.py
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.rewrite.pipeline import rewrite
from kernels_hub.compiler.schedule.cost import kernel_cost, schedule_cost
from kernels_hub.compiler.schedule.kernel import Role, Schedule
from kernels_hub.compiler.schedule.memory import number, place
from kernels_hub.compiler.schedule.schedule import schedule
from tests.compiler.rewrite import models

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's exporter

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("bert", "llama", "resnet50", "unet_block")
AT_LEAST = (Role.INPUT, Role.PARAMETER, Role.CONSTANT, Role.PREPARED, Role.OUTPUT)


@pytest.fixture(scope="module", params=NAMES)
def planned(request) -> tuple[str, Schedule]:
    torch.manual_seed(0)
    model = models.randomised(getattr(models, request.param)())
    graph = rewrite(import_torch(model.module, model.args)).graph
    return request.param, schedule(graph)


def report(name: str, planned: Schedule) -> str:
    """What the golden file holds."""
    total, arena = schedule_cost(planned, {}), place(planned, {})
    used = {buffer for kernel in planned.kernels for buffer in (*kernel.reads(), *kernel.writes())}
    least = sum(number(buffer.bytes, {}) for buffer in used if buffer.role in AT_LEAST)
    lines = [
        f"{name}: {len(planned.kernels)} kernels a call, {len(planned.prepare)} once for the weights",
        f"{total.bytes:,} bytes moved; weights, inputs and outputs alone are {least:,}",
        f"{total.flops:,} FLOPs",
        f"{arena.size:,} bytes of scratch; {arena.bound:,} live at once",
        "",
    ]
    kinds: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    for kernel in planned.kernels:
        kind = kernel.name.partition("_")[2]
        kinds[kind] += 1
        costs[kind] += kernel_cost(kernel, {}).bytes
    lines += [f"{count:>4} {kind:<40} {costs[kind]:>14,} bytes" for kind, count in sorted(kinds.items())]
    return "\n".join(lines) + "\n"


def test_kernels_and_bytes(planned):
    name, made = planned
    path, text = GOLDEN / f"{name}.txt", report(name, made)
    if os.environ.get("ACCEPT_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_scratch_is_within_five_percent_of_what_lives_at_once(planned):
    _, made = planned
    arena = place(made, {})
    assert arena.size <= 1.05 * arena.bound


def test_no_kernel_only_moves_elements(planned):
    """Views cost nothing: heads are split and joined, channels turned, by strides."""
    name, made = planned
    copies = [
        one.name
        for one in made.kernels
        if one.name.partition("_")[2] in {"reshape", "permute", "slice", "broadcast"}
    ]
    most = {"resnet50": 1, "unet_block": 3}.get(
        name, 0
    )  # inputs laid channels last, and back around a transformer
    assert len(copies) <= most, copies
