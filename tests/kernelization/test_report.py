"""explain and report: a row a module, a table, JSON, HTML."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from kernels_hub import (
    CUDAProperties,
    Device,
    LocalLayerRepository,
    Mode,
    explain,
    kernelize,
    report,
    use_kernel_mapping,
)
from tests.kernelization.conftest import DOUBLE, same_class

Make = Callable[..., Path]


def model_of_blocks() -> nn.Module:
    cls = same_class()
    return nn.ModuleDict(
        {"blocks": nn.ModuleList([cls() for _ in range(3)]), "other": same_class("Other", "Unknown")()}
    )


def test_a_row_for_every_module(double: LocalLayerRepository) -> None:
    model = model_of_blocks()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        expected = explain(model, mode=Mode.INFERENCE, device="cpu")
        assert all("forward" not in module.__dict__ for module in model.modules()), "a dry run"
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    rows = report(model)
    assert [row.path for row in rows] == [path for path, _ in model.named_modules()]
    assert [row.to_dict() for row in rows] == [row.to_dict() for row in expected]
    swapped = rows.swapped[0]
    assert (swapped.layer_name, swapped.device, swapped.mode, swapped.variant) == (
        "Double",
        "cpu",
        Mode.FALLBACK,
        "torch-cpu",
    )
    assert swapped.repository == str(double.repo_path) and swapped.reason is None
    assert [row.path for row in rows.kept] == ["other"] and "no kernel is mapped for 'Unknown'" in (
        rows.kept[0].reason or ""
    )


def test_what_is_swapped_within_a_module_without_a_tag_is_told(double: LocalLayerRepository) -> None:
    model = model_of_blocks()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        foretold = explain(model, mode=Mode.INFERENCE, device="cpu")
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    for rows in (foretold, report(model)):
        reasons = {row.path: row.reason for row in rows}
        assert reasons[""] == "no tag: nothing maps this class; within it 3 are swapped"
        assert reasons["blocks"] == reasons[""]
    alone = nn.Sequential(nn.Sequential(model["blocks"][0]), nn.ReLU())
    assert [row.reason for row in report(alone)] == [
        "no tag: nothing maps this class; within it 1 is swapped",
        "no tag: nothing maps this class; within it 1 is swapped",
        None,
        "no tag: nothing maps this class",
    ]


def test_text_groups_the_blocks_and_keeps_every_reason(double: LocalLayerRepository) -> None:
    model = model_of_blocks()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    text = str(report(model))
    assert "blocks.*" in text and "  3  " in text and "no kernel is mapped for 'Unknown'" in text
    assert text.endswith("3 swapped, 1 kept with a reason, 2 without a tag")
    html = report(model)._repr_html_()
    assert html.startswith("<table>") and "blocks.*" in html


def test_json(double: LocalLayerRepository) -> None:
    model = model_of_blocks()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    data = json.loads(json.dumps(report(model).to_dict()))
    assert data["modules"] == 6 and data["swapped"] == 3 and data["rows"][2]["mode"] == "fallback"


def test_html_escapes(double: LocalLayerRepository) -> None:
    cls = same_class("<b>")
    model = nn.Sequential(cls())
    assert "<b>" not in explain(model, mode=Mode.INFERENCE, device="cpu")._repr_html_()


def test_explain_for_hardware_that_is_not_here_imports_nothing(make_repository: Make) -> None:
    bomb = make_repository("bomb", "raise RuntimeError('imported')", variant="torch-cuda")
    source = LocalLayerRepository(bomb, layer_name="L")
    model = nn.Sequential(same_class()())
    hopper = Device("cuda", CUDAProperties(90, 90))
    with use_kernel_mapping({"Double": {Device("cuda", CUDAProperties(80, 90)): source}}):
        rows = explain(model, mode=Mode.TRAINING, device=hopper)
    assert (
        rows.rows[1].swapped
        and rows.rows[1].variant == "torch-cuda"
        and rows.rows[1].device == "cuda[80..90]"
    )


def test_report_of_a_model_that_was_never_kernelized() -> None:
    rows = report(nn.Sequential(nn.ReLU()))
    assert len(rows) == 2 and not rows.swapped


def test_a_later_replacement_shows(make_repository: Make) -> None:
    model = nn.Sequential(same_class()())
    with use_kernel_mapping(
        {"Double": {"cpu": LocalLayerRepository(make_repository("double", DOUBLE), layer_name="Double")}}
    ):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    model[0].forward = lambda x: x
    row = report(model).rows[1]
    assert not row.swapped and "someone else" in (row.reason or "")
    assert torch.equal(model(torch.ones(1)), torch.ones(1))
