"""Runs that end early: what is computed, by whom, and what stays as it was."""

from __future__ import annotations

import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from kernels_hub.compiler.importers import brief_run
from kernels_hub.compiler.importers.brief_run import briefly

X = torch.ones(3)


def prepared(log, name, steps=1, then=None):
    def prepare():
        def run():
            total = X + 0
            for _ in range(steps):
                try:
                    time.sleep(0.05)
                    total = total + 1
                except Exception:  # noqa: BLE001  (as modules do)
                    log.append("caught")
            log.append(name)
            return then(total) if then else total

        return run

    return prepare


def test_a_short_run_has_values(monkeypatch):
    monkeypatch.setattr(brief_run, "SECONDS", 60.0)  # on a busy machine, too
    log = []
    assert briefly(prepared(log, "copy"), prepared(log, "whole")()).tolist() == [2.0] * 3
    assert log == ["copy"]


def test_a_long_run_ends_and_another_computes_no_values(monkeypatch):
    log = []
    monkeypatch.setattr(brief_run, "SECONDS", 0.12)
    runs = iter([prepared(log, "first", 50)(), prepared(log, "second")()])
    result = briefly(lambda: next(runs), prepared(log, "whole")())
    assert log == ["second"]
    assert isinstance(result, FakeTensor) and result.shape == (3,)


def test_where_values_are_asked_for_it_is_run_whole(monkeypatch, capfd):
    log = []
    monkeypatch.setattr(brief_run, "SECONDS", 0.02)
    then = torch.Tensor.tolist
    assert briefly(prepared(log, "copy", 3, then), prepared(log, "whole", 3, then)()) == [4.0] * 3
    assert log == ["copy", "whole"]
    assert capfd.readouterr().err == ""


def test_what_cannot_be_copied_is_run_whole():
    log = []

    def prepare():
        raise TypeError("cannot pickle a lock")

    assert briefly(prepare, prepared(log, "whole")()).tolist() == [2.0] * 3
    assert log == ["whole"]


def test_what_the_run_raises_is_raised():
    def then(_):
        raise ValueError("of the module")

    log = []
    with pytest.raises(ValueError, match="of the module"):
        briefly(prepared(log, "copy", 1, then), prepared(log, "whole")())
    assert log == ["copy"]
