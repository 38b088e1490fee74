"""copy_budget: what copies of weights may take, on which modules it is spent, and what the report says."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from kernels_hub import (
    CopyBudgetError,
    Mode,
    NoKernelError,
    kernelize,
    load_kernel_mapping,
    report,
    use_kernel_mapping,
)
from kernels_hub.calibration import database
from kernels_hub.calibration.gain_table import GainTable, Shape
from kernels_hub.calibration.kinds import rows_of
from tests.layers.of_amd import be_of_amd

MIB = 1 << 20
GAINS = {256: 1.2, 512: 2.0, 1024: 1.5}
"""By the columns of a Linear of depth 1024."""


@pytest.fixture(autouse=True)
def _known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path, table = tmp_path / "known.json", GainTable()
    for columns, gain in GAINS.items():
        shape = Shape("Linear", "float32", 1024, columns)
        for rows in rows_of(shape):
            table.put(shape, rows, gain)
    database.write(path, database.this_machine(), table)
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", str(path))
    be_of_amd(monkeypatch, False)
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


def _model() -> nn.Module:
    return nn.ModuleList(nn.Linear(1024, columns) for columns in GAINS).eval()


def _swapped(model: nn.Module) -> set[int]:
    rows = {row.path: row for row in report(model).swapped}
    return {module.out_features for path, module in model.named_modules() if path in rows}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (None, {256, 512, 1024}),
        (0, set()),
        (2 * MIB, {512}),
        (3 * MIB, {512, 256}),
        (6 * MIB, {512, 1024}),
        (0.29, {512}),  # of 7 MiB and the biases
        (1.0, {256, 512, 1024}),
    ],
)
def test_a_budget_is_spent_where_it_gains_most(budget: float | None, expected: set[int]):
    model = _model()
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    kernelize(model, mode=Mode.INFERENCE, copy_budget=budget)
    assert _swapped(model) == expected
    told = report(model)
    assert told.parameters_nbytes == parameters
    if budget is not None:
        assert told.packed_nbytes <= (budget if isinstance(budget, int) else budget * parameters)
        assert all("copy_budget" in str(row.reason) for row in told.kept)
    if told.packed_nbytes:
        assert f"beside {parameters / MIB:.1f} MiB of parameters" in str(told)


def test_a_larger_budget_takes_effect_at_the_next_kernelize_and_a_smaller_one_gives_memory_back():
    model = kernelize(_model(), mode=Mode.INFERENCE, copy_budget=0)
    assert report(model).packed_nbytes == 0
    kernelize(model, mode=Mode.INFERENCE)
    everything = report(model).packed_nbytes
    kernelize(model, mode=Mode.INFERENCE, copy_budget=2 * MIB)
    assert 0 < report(model).packed_nbytes <= 2 * MIB < everything


def test_the_numbers_stay_the_same():
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 512)).eval()
    x = torch.randn(64, 1024)
    with torch.inference_mode():
        expected = model(x)
        kernelize(model, mode=Mode.INFERENCE, copy_budget=0.4)
        assert len(report(model).swapped) == 1
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_where_a_block_does_not_fit_its_children_may(monkeypatch: pytest.MonkeyPatch):
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_attention_heads=4)
    block = kernelize(LlamaMLP(config), mode=Mode.INFERENCE, copy_budget=MIB)
    rows = {row.path: row for row in report(block)}
    assert "copy_budget" in str(rows[""].reason)
    assert [rows[name].swapped for name in ("gate_proj", "up_proj", "down_proj")] == [True, True, False]
    assert report(block).packed_nbytes <= MIB


def test_what_fits_is_not_given_up_for_children_of_what_does_not(tmp_path: Path):
    """Whose gain may be higher, for the few rows at which it was the highest."""
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    from transformers.models.llama.modeling_llama import LlamaMLP

    table = GainTable()
    for kind, depth, columns, gain in (("GatedMLP", 256, 512, 1.5), ("Linear", 256, 512, 3.0)):
        shape = Shape(kind, "float32", depth, columns)
        for rows in rows_of(shape):
            table.put(shape, rows, gain)
    database.write(tmp_path / "known.json", database.this_machine(), table)
    config = transformers.LlamaConfig(hidden_size=256, intermediate_size=512, num_attention_heads=4)
    blocks = nn.ModuleList((LlamaMLP(config), LlamaMLP(config))).eval()
    kernelize(blocks, mode=Mode.INFERENCE, copy_budget=2 * MIB)  # of a block 1.5, of one of its products 0.5
    assert [row.path for row in report(blocks).swapped] == ["0", "1.gate_proj"]


def test_convolutions_stay_within_what_they_say(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    convolution = nn.Conv2d(64, 64, 3, padding=1).eval()
    x = torch.randn(1, 64, 28, 28)
    with torch.inference_mode():
        for share, packs in ((1.0, False), (1.8, True)):
            kernelize(convolution, mode=Mode.INFERENCE, copy_budget=share)
            convolution(x)
            assert bool(report(convolution).swapped) == packs
            assert report(convolution).packed_nbytes <= share * convolution.weight.nbytes


def test_what_keeps_no_copy_needs_no_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KERNELS_HUB_CALIBRATION", "ignore")
    model = nn.Sequential(
        nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Flatten(2), nn.Conv1d(64, 32, 3)
    ).eval()
    kernelize(model, mode=Mode.INFERENCE, copy_budget=0)
    for shape in ((1, 64, 28, 28), (1, 64, 2, 2)):
        image = torch.randn(shape)
        for one in (image, image.contiguous(memory_format=torch.channels_last)):
            with torch.inference_mode():
                model(one)
    assert [row.swapped for row in report(model) if "Conv" in row.class_name] == [True, True]
    assert report(model).packed_nbytes == 0


@pytest.mark.parametrize("budget", [-1, -0.5, float("nan"), float("inf"), "1 GiB", True])
def test_what_is_no_budget_is_refused_and_nothing_changes(budget: float):
    model = _model()
    with pytest.raises(CopyBudgetError, match="copy_budget"):
        kernelize(model, mode=Mode.INFERENCE, copy_budget=budget)
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_without_fallback_a_budget_that_is_too_small_is_an_error():
    with pytest.raises(NoKernelError, match="copy_budget"):
        kernelize(_model(), mode=Mode.INFERENCE, copy_budget=MIB, use_fallback=False)


def test_what_does_not_fit_runs_without_copies_where_that_gains(monkeypatch: pytest.MonkeyPatch):
    be_of_amd(monkeypatch, True)
    model = kernelize(_model(), mode=Mode.INFERENCE, copy_budget=2 * MIB)
    rows = {row.path: row for row in report(model)}
    assert [rows[str(index)].swapped for index in range(3)] == [
        False,
        True,
        True,
    ]  # 1.2 is too little to do without
    assert "without copies" in str(rows["2"].reason) and rows["1"].reason is None
    x = torch.randn(64, 1024)
    assert isinstance(model, nn.ModuleList)
    for made in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.inference_mode():
            for layer in made:
                expected = nn.functional.linear(x, layer.weight, layer.bias)
                torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
        assert report(made).packed_nbytes <= 2 * MIB
    kernelize(model, mode=Mode.INFERENCE)
    assert report(model).packed_nbytes > 6 * MIB


def test_without_copies_only_the_uncopied_are_without(monkeypatch: pytest.MonkeyPatch):
    be_of_amd(monkeypatch, True)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 512)).eval()
    kernelize(model, mode=Mode.INFERENCE, copy_budget=0)
    assert len(report(model).swapped) == 2 and report(model).packed_nbytes == 0
    with torch.inference_mode():
        model(torch.randn(64, 1024))
    assert report(model).packed_nbytes == 0
    assert "without copies" in str(report(model))
