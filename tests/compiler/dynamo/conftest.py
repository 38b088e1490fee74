"""Each test begins with a Dynamo that has compiled nothing, and with no statistics."""

from __future__ import annotations

import pytest
import torch

from kernels_hub.compiler.dynamo.statistics import statistics


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    statistics.clear()
    yield
    torch._dynamo.reset()
