"""The default mapping's promise: a kernel runs on the CPU only where this processor is known to gain by it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import kernels_hub.mappings as mappings
from kernels_hub import Mode, explain, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import LEAST_GAIN, GainTable
from kernels_hub.calibration.kinds import KINDS, class_of, is_from_memory, rows_of, shapes, split_kind
from kernels_hub.kernelization import apply

GAINS = Path(mappings.__path__[0]) / "gains"
TABLES = sorted(GAINS.glob("*.json"))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An empty cache on a processor that nobody measured; the kinds that `kernelize` asks to have measured."""
    kinds: list[str] = []
    monkeypatch.setenv("KERNELS_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("KERNELS_HUB_CALIBRATION")
    _be(monkeypatch, database.Machine("unheard-of", 2, (("torch", "0"),)))
    monkeypatch.setattr(
        apply, "measure_beside", lambda unknown, _: kinds.extend(each.kind for each in unknown)
    )
    return kinds


def _be(monkeypatch: pytest.MonkeyPatch, machine: database.Machine) -> None:
    monkeypatch.setattr("kernels_hub.kernelization.gain_gate.this_machine", lambda: machine)


def _model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(1024, 4096),
        nn.GELU(),
        nn.Linear(4096, 1024),
        nn.RMSNorm(1024),
        nn.Conv2d(64, 64, 3, padding=1),
    ).eval()


@pytest.fixture(autouse=True)
def _default_mapping() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


def test_on_an_unknown_processor_the_originals_run_until_something_is_measured(asked: list[str]):
    model = kernelize(_model(), mode=Mode.INFERENCE)
    assert {row.reason for row in report(model).kept} == {
        "kept: its gain is unknown on this processor (unheard-of); tried at its first calls"
    }
    assert set(asked) == {"Linear", "LinearActivation", "GELU", "TorchRMSNorm", "Conv2d 3x3/1"}


def test_what_was_measured_takes_effect_at_the_next_kernelize(asked: list[str]):
    model = kernelize(_model(), mode=Mode.INFERENCE)
    machine = database.Machine("unheard-of", 2, (("torch", "0"),))
    table = GainTable()
    for kind, ratio in (("Linear", 1.5), ("GELU", 0.83)):
        for shape in shapes(kind, "float32"):
            for rows in rows_of(shape):
                table.put(shape, rows, ratio)
    database.add(machine, table)
    asked.clear()
    kernelize(model, mode=Mode.INFERENCE)
    rows = {row.path: row for row in report(model)}
    assert rows["0"].swapped and (rows["0"].gain, rows["0"].gain_source) == (1.5, "this machine")
    assert rows["1"].reason == "kept: 0.83 of PyTorch here (this machine)"
    assert set(asked) == {"LinearActivation", "TorchRMSNorm", "Conv2d 3x3/1"}
    told = str(explain(_model(), mode=Mode.INFERENCE))
    assert "1.50 (this machine)" in told and "kept: 0.83 of PyTorch here (this machine)" in told


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_shipped_table_decides_on_its_processor(
    path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
):
    processor, _, threads = path.stem.rpartition("-")
    machine = database.Machine(processor, int(threads), (("torch", "0"),))
    _be(monkeypatch, machine)
    table = database.shipped(machine)
    assert all(each == class_of(each) and rows in rows_of(each) for each, rows, _ in table.rows())
    most = 100  # PyTorch's maximum over windows of planes takes one element at a time
    assert all(0.05 < ratio < most for _, _, ratio in table.rows())
    cells = (each for each in table.cells if not is_from_memory(each))  # see test_gain_gate.py
    smallest = {each.kind: each for each in sorted(cells, key=lambda each: -each.depth * each.columns)}
    for kind, cell in smallest.items():
        layer, form = split_kind(kind)
        try:
            module = KINDS[layer].build(form, cell.depth, cell.columns).eval()
        except ImportError:  # of a release of transformers that is not here
            continue
        row = report(kernelize(module, mode=Mode.INFERENCE)).rows[0]
        assert row.gain_source == database.SHIPPED, kind
        assert row.swapped == any(ratio >= LEAST_GAIN for ratio in table.cells[cell].values()), kind
        assert row.swapped or "of PyTorch here (shipped table)" in str(row.reason)


def test_at_least_one_table_ships():
    assert TABLES


@pytest.mark.parametrize("layer", KINDS)
def test_every_kind_that_is_measured_asks_for_its_gain(layer: str):
    entries = tomllib.loads((GAINS.parent / "default.toml").read_text(encoding="utf-8"))["map"]
    own = [
        each
        for each in entries
        if each["device"] == "cpu" and layer in each.get("layers", [each.get("layer")])
    ]
    assert own and all(each.get("measured") is True for each in own)


@pytest.mark.parametrize("layer", KINDS)
def test_what_is_built_to_be_measured_gets_the_kernel_of_its_kind(
    layer: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    shape = min(shapes(layer, "float32"), key=lambda each: each.depth * each.columns)
    try:
        module = KINDS[layer].build(split_kind(shape.kind)[1], shape.depth, shape.columns).eval()
    except ImportError as error:
        pytest.skip(f"needs what this release of transformers lacks: {error}")
    row = explain(module, mode=Mode.INFERENCE).rows[0]
    assert (row.layer_name, row.swapped) == (layer, True), row.reason


def test_under_determinism_the_report_says_why_nothing_is_chosen(asked: list[str]):
    torch.use_deterministic_algorithms(True)
    try:
        model = kernelize(_model(), mode=Mode.INFERENCE)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all("chosen by time" in str(row.reason) for row in report(model).kept)
