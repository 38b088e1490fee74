"""The benchmark of the backend of torch.compile in its smallest form: one model, one set, a turn of each peer."""

from __future__ import annotations

import pytest

from benchmarks import torch_compile
from benchmarks.torch_compile import MODELS, PEERS, main, summary


@pytest.mark.exhaustive  # inductor takes most of its minute
def test_it_measures_every_peer(capsys, monkeypatch):
    kept = {}
    monkeypatch.setattr(torch_compile, "written_today", lambda *_: {})
    monkeypatch.setattr(torch_compile, "write", lambda kind, result, _: kept.setdefault(kind, result))
    main(
        ["--only", "mlp", "--sets", "1", "--rounds", "1", "--seconds", "0.01", "--processor-time", "--write"]
    )
    told = capsys.readouterr().out
    row = kept["torch-compile-processor-time"]["models"]["mlp"]
    assert set(row["ms"]) == set(PEERS)
    assert set(row["faster_than_inductor"]) == {"eager", "control", "kernels_hub"}
    assert set(row["cold_start_s"]) == {"inductor", "control", "kernels_hub"}
    assert row["graphs"] == 1
    assert not row["fell_back"]
    assert row["errors"]["kernels_hub"] < 1e-5
    assert "times as fast as inductor" in told


def row(speed, start, share=0.0, error=1e-6, own=0.0):
    return {
        "faster_than_inductor": {"kernels_hub": [speed, speed, speed]},
        "faster_than_eager": {"kernels_hub": [1.0, 1.0, 1.0]},
        "cold_start_of_inductor": {"kernels_hub": [start, start, start]},
        "errors": {"kernels_hub": error},
        "error_of_eager": own,
        "fell_back_share": share,
    }


def test_bars():
    good = summary({"a": row(0.5, 0.1), "b": row(2.5, 0.9, error=0.1, own=0.06)})
    assert all(one.get("met", True) for one in good.values())
    assert good["times as fast as inductor"]["is"] == 1.118
    assert good["cold start, over inductor's"]["is"] == 0.3
    bad = summary({"a": row(0.5, 0.6, share=0.3), "b": row(1.5, 0.6, error=float("nan"))})
    assert not any(one.get("met", False) for one in bad.values())
    assert bad["models with a larger error"]["is"] == ["b"]


def test_there_are_twenty_models():
    assert len(MODELS) == 20
    assert sum(name.endswith("_training") for name in MODELS) == 2
