"""Random numbers under torch.compile(backend="kernels_hub"): drawn by PyTorch, as without a compiler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels_hub.compiler.dynamo.backend import kernels_hub
from kernels_hub.compiler.dynamo.statistics import statistics
from tests.warm_process import run_script

Compute = Callable[[Tensor], object]
OPTIONS = {"engines": ("library", "reference"), "fallback": "error"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    statistics.clear()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., object], **others: object) -> Callable[..., object]:
    return torch.compile(function, backend=kernels_hub, options={**OPTIONS, **others})


def seeded(function: Callable[..., object], *args: object) -> object:
    torch.manual_seed(3)
    return function(*args)


DRAWS: dict[str, Compute] = {
    "of a shape": lambda x: (
        torch.rand(3),
        torch.randn(x.shape[0], 2),
        torch.randint(0, 9, (4,)),
        torch.randperm(5),
    ),
    "like": lambda x: (torch.rand_like(x), x + torch.randn_like(x), torch.randint_like(x, 7)),
    "in place": lambda x: (
        torch.empty(4).uniform_(2, 3),
        torch.empty(x.shape[1]).normal_(),
        x.clone().exponential_(),
    ),
    "bernoulli": lambda x: (torch.bernoulli(x, 0.3), torch.empty_like(x).bernoulli_(0.7)),
    "of a view": lambda x: torch.rand_like(x.t()) * x.t(),
    "of another dtype": lambda x: torch.randn(4, dtype=torch.float64) + F.dropout(x.to(torch.bfloat16), 0.5),
    "one after the other": lambda x: F.dropout(F.dropout(x + torch.rand(1), 0.4) * torch.rand_like(x), 0.1),
    "dropouts": lambda x: (
        [F.dropout(x, share) for share in (0.0, 0.25, 1.0)] + [F.dropout(x, 0.5, training=False)]
    ),
    "of channels": lambda x: (F.dropout1d(x[None], 0.5), F.alpha_dropout(x, 0.3, training=True)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_what_it_gives_without_a_compiler(name: str) -> None:
    compute = DRAWS[name]
    run = compiled(compute)
    for rows in (5, 6, 9):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(seeded(run, x), seeded(compute, x))
    assert {record.backend for record in statistics.graphs} == {"kernels_hub"}


@torch.no_grad()
def test_each_run_draws_anew() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000)
    one, other = run(x), run(x)
    assert not torch.equal(one, other)
    assert set(one.unique().tolist()) == {0.0, 2.0}


def test_training_with_dropout_has_the_gradients_of_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8), nn.Dropout(0.5))
    eager = copy.deepcopy(model)
    run = compiled(model)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 8)
        for one, step in ((model, run), (eager, eager)):
            one.zero_grad()
            seeded(step, x).square().mean().backward()
        for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
    assert {(record.kind, record.backend) for record in statistics.graphs} == {
        ("forward", "kernels_hub"),
        ("backward", "kernels_hub"),
    }


@torch.no_grad()
def test_numbers_whose_law_is_computed_fall_back() -> None:
    def compute(x: Tensor) -> Tensor:
        return torch.multinomial(x.softmax(0), 3)

    run = compiled(compute, fallback="eager")
    x = torch.randn(7)
    assert torch.equal(seeded(run, x), seeded(compute, x))
    assert [record.backend for record in statistics.graphs] == ["eager"]


ON_INDUCTOR = """
import torch
from kernels_hub.compiler.dynamo.statistics import statistics
run = torch.compile(
    lambda x: torch.nextafter(x, -x) + torch.randn_like(x), backend="kernels_hub", options={"fallback": "inductor"}
)
x, found = torch.ones(1000), []
with torch.no_grad():
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(run(x))
print([record.backend for record in statistics.graphs], *(torch.equal(found[0], one) for one in found))
"""


def test_a_graph_that_falls_back_to_inductor_draws() -> None:
    """In a process of its own: inductor keeps what its modules were when they were first imported."""
    printed = run_script(ON_INDUCTOR).stdout
    assert printed.splitlines()[-1] == "['inductor'] True True False"
