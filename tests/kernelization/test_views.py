"""Results of compiled models that are views: of another result, of an argument, of a weight, of memory that is none."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernels_hub import report
from tests.combinations import all_but, first
from tests.kernelization.test_changes_around_calls import Model, both, differs, images, is_compiled, of

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]


def leaves_of(result: Any, *others: Tensor) -> list[Tensor]:
    return [*pytree.tree_leaves(result), *others]


def sharing(tensors: list[Tensor], *, with_bases: bool = True) -> list[Any]:
    """Of each tensor: the first that has its memory, where it begins there, its strides, and what it is a view of."""
    begins = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    bases = [
        next((n for n, one in enumerate(tensors) if with_bases and one is tensor._base), None)
        for tensor in tensors
    ]
    very = [next(n for n, one in enumerate(tensors) if one is tensor) for tensor in tensors]
    return [
        (begins.index(begin), tensor.storage_offset(), tensor.stride(), tensor.shape, base, same)
        for begin, tensor, base, same in zip(begins, tensors, bases, very, strict=True)
    ]


def written(tensor: Tensor) -> bool:
    """Write into a tensor, where PyTorch takes that: elements of it may lie in one place."""
    try:
        tensor.mul_(2).add_(1)
    except RuntimeError:
        return False
    return True


def check(
    reference: Any,
    model: Any,
    make: Callable[[], tuple[Tensor, ...]],
    layout: bool = True,
    bases: bool = True,
) -> None:
    """What both return shares memory alike, and shows alike what is written into each of the results."""
    args, copies = make(), make()
    expected, found = leaves_of(reference(*args)), leaves_of(model(*copies))
    results = len(expected)
    expected += [*args, *reference.parameters()]
    found += [*copies, *model.parameters()]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if layout:
        assert sharing(found, with_bases=bases) == sharing(expected, with_bases=bases)
    for ours, theirs in zip(found[:results], expected[:results], strict=True):
        assert written(ours) == written(theirs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# Each gives views of a tensor of (batch, length, 8).
CHAINS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "select": lambda y, x: y[:, 0],
    "last": lambda y, x: y[:, -1, :],
    "slice": lambda y, x: y[1:, ::2, 2:6],
    "half": lambda y, x: y[: x.shape[0] // 2],
    "transpose": lambda y, x: y.transpose(1, 2),
    "permute": lambda y, x: y.permute(2, 0, 1)[1:],
    "heads": lambda y, x: y.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2),
    "flattened": lambda y, x: y.view(-1, 8),
    "rows": lambda y, x: y.reshape(x.shape[0] * x.shape[1], 8).t(),
    "unsqueeze": lambda y, x: y.unsqueeze(1).squeeze(1),
    "expand": lambda y, x: y.unsqueeze(0).expand(3, *x.shape),
    "split": lambda y, x: y.split(4, -1),
    "chunk": lambda y, x: y.chunk(2, -1)[1],
    "unbind": lambda y, x: y.unbind(-1)[5],
    "narrow": lambda y, x: y.narrow(0, 1, x.shape[0] - 1),
    "movedim": lambda y, x: y.movedim(0, 1).swapaxes(0, 2),
    "detach": lambda y, x: y.detach(),
    "view_as": lambda y, x: y.view_as(x).mT,
    "diagonal": lambda y, x: y.unflatten(-1, (2, 4)).diagonal(0, 2, 3),
    "unfold": lambda y, x: y.unfold(2, 4, 2),
    "unflatten": lambda y, x: y.unflatten(-1, (2, -1)),
}


def every(self: Any, x: Tensor) -> Any:
    y = torch.tanh(self.layer(x))
    return {name: chain(y, x) for name, chain in CHAINS.items()} | {"whole": y}


def of_argument(self: Any, x: Tensor) -> Any:
    return torch.tanh(x), {name: chain(x, x) for name, chain in CHAINS.items()}


def parts_alone(self: Any, x: Tensor) -> Any:
    """Views of memory that is no result, some of it twice."""
    y = torch.tanh(self.layer(x))
    front = y[:, :1]
    return front, y[:, 1:], {"again": front, "column": front[..., 0]}


def laid_out(self: Any, x: Tensor) -> Any:
    """Memory in the order that eager gives it: not contiguous."""
    y = torch.tanh(x.transpose(1, 2)) * 2
    return y, y.transpose(1, 2).flatten(1), y[:, 1]


def weights(self: Any, x: Tensor) -> Any:
    return self.layer.weight, self.layer.weight.t(), self.other.weight[1:], torch.tanh(self.layer(x))


def in_place(self: Any, x: Tensor) -> Any:
    """Writes that the program has to be decomposed for; what is written is seen in the whole."""
    y = torch.tanh(self.layer(x))
    y[:, 0].add_(1)
    return y, y[:, 0], y.flatten(0, 1)


FORWARDS = {one.__name__: one for one in (every, of_argument, parts_alone, laid_out, weights, in_place)}


@pytest.mark.parametrize("name", all_but(FORWARDS, "weights"))
def test_views_share_memory_as_in_eager(name: str) -> None:
    reference, model = both(of(FORWARDS[name]))
    for batch, length in ((4, 6), (5, 7), (2, 4)):
        # What a program gives is contiguous: of it, eager's order of memory is a view.
        bases = name != "laid_out"
        check(reference, model, lambda: (images(batch, length, 8),), bases=bases)  # noqa: B023 (called at once)
    assert is_compiled(model), report(model).rows[0]


def test_an_argument_with_other_strides_gives_other_views() -> None:
    reference, model = both(of(lambda self, x: (x.transpose(0, 1)[1:], x[:, ::2], torch.tanh(x))))
    check(reference, model, lambda: (images(4, 6, 8),))
    check(reference, model, lambda: (images(6, 4, 16).transpose(0, 1)[:, :, ::2],), layout=False)
    assert is_compiled(model)


def test_a_weight_that_is_replaced_is_the_result() -> None:
    reference, model = both(of(weights))
    check(reference, model, lambda: (images(4, 8),))
    for one in (reference, model):
        one.other.weight = nn.Parameter(torch.full((8, 8), 3.0))
    check(reference, model, lambda: (images(4, 8),))
    for one in (reference, model):
        one.other.weight = nn.Parameter(torch.full((4, 8), 3.0))
    check(reference, model, lambda: (images(4, 8),))
    assert is_compiled(model)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: (torch.tanh(x), torch.einsum("ij->ji", x)),
        lambda self, x: (self.value, torch.tanh(x)),
    ],
    ids=["einsum", "constant"],
)
def test_what_no_view_operation_tells_runs_in_eager(forward: Any) -> None:
    reference, model = both(of(forward, lambda: torch.ones(3)))
    for _ in range(2):
        x, y = images(4, 8), images(4, 8)
        expected, found = reference(x), model(y)
        assert written(expected[0]) and written(found[0]) and written(x) and written(y)
        torch.testing.assert_close(leaves_of(found, y), leaves_of(expected, x))
    assert not is_compiled(model) and "memory" in (report(model).rows[0].reason or "")


def _chain(choose: random.Random, tensor: Tensor, smaller: Tensor) -> list[tuple[str, tuple[Any, ...]]]:
    """Random view operations that a tensor takes, and a smaller one."""
    steps: list[tuple[str, tuple[Any, ...]]] = []
    while len(steps) < 5:
        axis = choose.randrange(max(tensor.dim(), 1))
        proposed: list[tuple[str, tuple[Any, ...]]] = [
            ("unsqueeze", (axis,)),
            ("transpose", (axis, choose.randrange(max(tensor.dim(), 1)))),
            ("select", (axis, choose.choice((0, -1)))),
            ("narrow", (axis, 1, 1)),
            ("flatten", (0, 1)),
            ("movedim", (axis, 0)),
            ("unfold", (axis, 2, 1)),
            ("view", (-1,)),
            ("detach", ()),
        ]
        step = choose.choice(proposed)
        try:
            made, other = (getattr(one, step[0])(*step[1]) for one in (tensor, smaller))
        except (RuntimeError, IndexError):
            continue
        if made.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() and made.numel():
            tensor, smaller = made, other
            steps.append(step)
    return steps


@pytest.mark.parametrize("seed", first(1, [(seed,) for seed in range(12)]))
def test_random_chains_of_views(seed: int) -> None:
    choose = random.Random(seed)
    chains = [_chain(choose, torch.empty(4, 6, 8), torch.empty(3, 5, 8)) for _ in range(8)]

    def forward(self: Any, x: Tensor) -> Any:
        y = torch.tanh(self.layer(x))
        results = [y] if seed % 2 else []
        for number, steps in enumerate(chains):
            one = x if number % 4 == 3 else y
            for name, arguments in steps:
                one = getattr(one, name)(*arguments)
            results.append(one)
        return results

    reference, model = both(of(forward))
    for shape in ((4, 6, 8), (3, 5, 8)):
        check(reference, model, lambda: (images(*shape),))  # noqa: B023 (called at once)
    assert is_compiled(model), report(model).rows[0]


@torch.enable_grad()
def test_gradients_flow_through_views_and_end_where_eager_ends_them(tmp_path: Any) -> None:
    from kernels_hub import get_local_kernel
    from kernels_hub.compiler.export.emit_layer import emit_layer

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            y = torch.tanh(self.layer(x))
            with torch.no_grad():
                apart = y.detach()[:, 1]
            return y, y[:, 0], y.detach()[0], apart

    torch.manual_seed(0)
    module = Views()
    emitted = emit_layer(
        module,
        args=[torch.randn(4, 6, 8)],
        layer_name="Views",
        out=tmp_path / "views",
        triton=False,
        benchmark=False,
    )
    assert "View(Tensor(0)" in (emitted.path / "cpu" / "table.py").read_text()
    forward = get_local_kernel(emitted.path, backend="cpu").layers.Views.forward
    gradients = []
    for run in (module.__call__, lambda x: forward(module, x)):
        x = images(4, 6, 8).requires_grad_()
        results = run(x)
        assert [one.requires_grad for one in results] == [True, True, False, False]
        assert [one.grad_fn is not None for one in results] == [True, True, False, False]
        sum((one * number).sum() for number, one in enumerate(results[:2], 1)).backward()
        gradients.append([x.grad, module.layer.weight.grad])
        module.zero_grad()
    assert emitted.gradients is not None and emitted.gradients.cases, emitted.gradients
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.exhaustive
def test_dinov2_is_compiled_whole() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=8,
    )
    reference, model = both(lambda: transformers.Dinov2Model(config).eval())
    for batch in (2, 3):
        check(reference, model, lambda: (images(batch, 3, 16, 16),))  # noqa: B023 (called at once)
    assert is_compiled(model), report(model).rows[0]


def test_the_check_sees_memory_that_is_not_shared() -> None:
    reference, other = Model().eval(), Model().eval()
    other.load_state_dict(reference.state_dict())
    x = images(4, 8)
    y = torch.tanh(x)
    assert sharing([y, y[:2]]) != sharing([y, y[:2].clone()])
    assert differs([y], [y + 1])
    with pytest.raises(AssertionError):
        check(
            type("Of", (Model,), {"forward": lambda self, x: (y := torch.tanh(x), y[:2])})().eval(),
            type("Of", (Model,), {"forward": lambda self, x: (y := torch.tanh(x), y[:2].clone())})().eval(),
            lambda: (images(4, 8),),
            layout=False,
        )
