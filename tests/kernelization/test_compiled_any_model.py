"""The shipped mapping `compiled` on models of any class: the whole, or from the outside in what of it can be compiled."""

from __future__ import annotations

import copy
import dataclasses
import shutil
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernels_hub import Mode, explain, kernelize, load_kernel_mapping, report, use_kernel_mapping
from kernels_hub.kernelization import jit_compilations

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.usefixtures("mapping_compiled"),
]

SCALE = 2.0


class Head(nn.Module):
    """What a user writes: a list of layers, a table of settings, a function that it was given, a global."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.settings = {"shift": 1.0}
        self.scaled = lambda x: x * scale

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.scaled(x) * SCALE + self.settings["shift"]  # type: ignore[no-any-return]


class Model(nn.Module):
    """Cannot be compiled whole: what it does depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU())
        self.heads = nn.ModuleList([Head(2.0), Head(3.0)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.heads[0](x) if x.sum() > 0 else self.heads[1](x)  # type: ignore[no-any-return]


def rows(model: nn.Module) -> dict[str, Any]:
    return {row.path: row for row in report(model).rows}


def check(model: nn.Module, reference: nn.Module, *inputs: Tensor) -> None:
    with torch.inference_mode():
        for each in inputs:
            torch.testing.assert_close(model(each), reference(each), rtol=1e-5, atol=1e-5)


@pytest.fixture
def head() -> tuple[Head, Head]:
    torch.manual_seed(0)
    reference, made = Head(2.0).eval(), Head(2.0).eval()
    made.load_state_dict(reference.state_dict())
    return kernelize(made, mode=Mode.INFERENCE), reference


def test_a_model_of_ones_own_is_compiled_whole(head):
    model, reference = head
    assert explain(Head(2.0), mode=Mode.INFERENCE, device="cpu").rows[0].layer_name == "CompiledModel"
    check(model, reference, torch.randn(4, 16), torch.randn(9, 16))
    assert rows(model)[""].swapped and str(rows(model)[""].repository) == "compiled:CompiledModel"


def test_weights_that_are_views_which_negate(head):
    model, reference = head
    x = torch.randn(4, 16)
    check(model, reference, x)
    for each in (model, reference):
        weight = torch._neg_view(reference.layers[1].weight.detach().clone())
        each.layers[0].weight = nn.Parameter(weight, requires_grad=False)
    assert model.layers[0].weight.is_neg()
    check(model, reference, x)
    for each in (model, reference):
        with torch.no_grad():
            each.layers[0].weight.mul_(2)
    check(model, reference, x)


def test_a_compiled_model_is_exported(head):
    model, reference = head
    x = torch.randn(4, 16)
    check(model, reference, x)
    check(torch.export.export(model, (x,)).module(), reference, x)


def test_sizes_that_the_original_does_not_take_are_not_asked_of_it():
    """An InstanceNorm raises for one place, which is what a strided convolution makes of the shortest input."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(4, 8, 3, stride=2, padding=1), nn.InstanceNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 1)
        ).eval()

    model = make()
    reference = make()
    reference.load_state_dict(model.state_dict())
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    lengths = [torch.randn(2, 4, 32), torch.randn(2, 4, 20), torch.randn(2, 4, 32)]
    check(model, reference, *lengths)
    assert rows(model)[""].swapped, rows(model)[""].reason
    with torch.inference_mode(), pytest.raises(ValueError, match="more than 1 spatial element"):
        model(torch.randn(2, 4, 2))


class Recurrence(nn.Module):
    """A loop over time, which a trace unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step] * scale, state)
        return state


def test_a_loop_over_time_has_a_program_for_each_length():
    model, reference = Recurrence().eval(), Recurrence().eval()
    reference.load_state_dict(model.state_dict())
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    check(model, reference, torch.randn(3, 2, 8), torch.randn(5, 2, 8))
    programs = model.__dict__["forward"].func.forwards
    assert len(programs(model)) == 1
    check(model, reference, *(torch.randn(batch, 3, 8) for batch in (3, 3, 5)))
    assert len(programs(model)) == 2
    running = [jit_compilations.program_of(one) for one in programs(model)]
    before = [dict(one.fallbacks) for one in running]
    assert len(before[0]) == 1 and not before[1]  # the first call of three steps, before it had a program
    for one in running:
        one.fallbacks.clear()
    check(model, reference, torch.randn(4, 2, 8), torch.randn(2, 3, 8))
    assert not any(one.fallbacks for one in running)
    with torch.inference_mode():
        torch.testing.assert_close(model(x=torch.ones(2, 3, 8)), reference(torch.ones(2, 3, 8)))
    assert not any(one.fallbacks for one in running)


class Windows(nn.Module):
    """Padded to whole windows; one alone takes another path, as the scan of Mamba2 does."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        pad = (4 - x.shape[1] % 4) % 4
        windows = nn.functional.pad(self.proj(x), (0, 0, 0, pad)).unflatten(1, (-1, 4))
        means = windows.softmax(2).mean(2)
        return means.flip(1).cumsum(1) if windows.shape[1] > 1 else means * 2


@pytest.mark.exhaustive
def test_padded_windows_have_a_program_for_one_and_one_for_several():
    model, reference = Windows().eval(), Windows().eval()
    reference.load_state_dict(model.state_dict())
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    check(model, reference, *(torch.randn(2 + length % 2, length, 8) for length in (9, 8, 5, 12, 17, 30)))
    programs = model.__dict__["forward"].func.forwards
    assert rows(model)[""].swapped and len(programs(model)) == 1, rows(model)[""].reason
    assert not jit_compilations.program_of(programs(model)[0]).fallbacks
    check(model, reference, *(torch.randn(2, length, 8) for length in (3, 3, 2, 4)))
    assert len(programs(model)) == 2
    running = [jit_compilations.program_of(one) for one in programs(model)]
    for one in running:
        one.fallbacks.clear()
    check(model, reference, *(torch.randn(3, length, 8) for length in (2, 3, 4, 5, 6, 19)))
    assert not any(one.fallbacks for one in running)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_run_the_original():
    model = nn.Sequential(nn.Linear(16, 16)).eval()
    nested = torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)])
    expected = model(nested)
    found = kernelize(model, mode=Mode.INFERENCE)(nested)
    for one, other in zip(found.unbind(), expected.unbind(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_a_call_depends_on_outside_of_weights_is_followed(head, monkeypatch):
    model, reference = head
    x = torch.randn(4, 16)
    check(model, reference, x)
    model.settings["shift"] = reference.settings["shift"] = 5.0
    check(model, reference, x)
    model.settings["shift"] = reference.settings["shift"] = 1.0
    check(model, reference, x)
    monkeypatch.setattr(f"{__name__}.SCALE", 7.0)
    check(model, reference, x)


def test_a_module_of_the_same_class_with_another_closure_has_a_program_of_its_own(head):
    model, reference = head
    other, x = Head(3.0).eval(), torch.randn(4, 16)
    other.load_state_dict(reference.state_dict())
    kernelize(other, mode=Mode.INFERENCE)
    reference_of_other = Head(3.0).eval()
    reference_of_other.load_state_dict(reference.state_dict())
    check(model, reference, x)
    check(other, reference_of_other, x)
    assert rows(other)[""].swapped


def test_where_the_whole_cannot_be_its_parts_are():
    torch.manual_seed(1)
    reference, model = Model().eval(), Model().eval()
    model.load_state_dict(reference.state_dict())
    kernelize(model, mode=Mode.INFERENCE)
    check(model, reference, torch.randn(4, 8), torch.randn(4, 8) - 9, torch.randn(5, 8) + 9)
    found = rows(model)
    assert not found[""].swapped and "cannot be compiled" in found[""].reason
    assert found["body"].swapped and (found["heads.0"].swapped or found["heads.1"].swapped)


class Several(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(8, 8), kind

    def forward(self, x: Tensor) -> Any:
        hidden = self.layer(x)
        return self.kind(out=hidden.relu(), hidden=hidden)


@dataclasses.dataclass
class Fields(OrderedDict[str, Tensor]):
    """As libraries define results: a node of torch's trees, registered without names for its children."""

    out: Tensor
    hidden: Tensor

    def __post_init__(self) -> None:
        self.update(out=self.out, hidden=self.hidden)


pytree.register_pytree_node(
    Fields, pytree._dict_flatten, lambda values, names: Fields(**pytree._dict_unflatten(values, names))
)


@pytest.mark.parametrize("kind", [OrderedDict, Fields])
def test_results_of_other_libraries_classes(kind):
    model = kernelize(Several(kind).eval(), mode=Mode.INFERENCE)
    x = torch.randn(3, 8)
    expected, result = Several.forward(model, x), model(x)
    assert type(result) is kind and list(result) == list(expected)
    for name, one in expected.items():
        torch.testing.assert_close(result[name], one)
    assert rows(model)[""].swapped, rows(model)[""].reason


class Patches(nn.Module):
    """Cuts an image into patches without a convolution, as ViTs do that are written with einops."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 4 * 4, 16)

    def forward(self, image: Tensor) -> Tensor:
        batch, channels, height, width = image.shape
        tiles = image.reshape(batch, channels, height // 4, 4, width // 4, 4).permute(0, 2, 4, 3, 5, 1)
        return self.embed(tiles.reshape(batch, (height // 4) * (width // 4), -1))  # type: ignore[no-any-return]


def test_images_are_cut_into_patches_without_a_convolution():
    torch.manual_seed(2)
    model = kernelize(Patches().eval(), mode=Mode.INFERENCE)
    for sizes in ((2, 3, 16, 8), (5, 3, 16, 8), (2, 3, 8, 8)):
        x = torch.randn(*sizes)
        torch.testing.assert_close(model(x), Patches.forward(model, x), rtol=1e-5, atol=1e-5)
    assert rows(model)[""].swapped and len(vars(model)["forward"].func.forwards(model)) == 2


class GraphNetwork(nn.Module):
    """Attention over the edges of a graph, and a mean and a maximum of each graph of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.score = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, edges: Tensor, graphs: Tensor, numbers: Tensor) -> Tensor:
        source, target = edges
        x = self.lift(x)
        score = self.score(torch.tanh(x[source] + x[target]))
        most = torch.full((x.shape[0], 1), -torch.inf).index_reduce_(0, target, score, "amax")
        share = (score - most[target]).exp()
        total = torch.zeros(x.shape[0], 1).index_add_(0, target, share)
        x = torch.zeros_like(x).index_add(0, target, x[source] * (share / total[target])) + x
        at = graphs.unsqueeze(1).expand_as(x)
        empty = torch.zeros(numbers.shape[0], 16)
        mean = empty.scatter_reduce(0, at, x, "mean", include_self=False)
        return torch.cat([mean, empty.scatter_reduce(0, at, x, "amax", include_self=False)], 1)


def batch_of_graphs(nodes: int, edges: int, graphs: int, seed: int) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(nodes, 8, generator=random),
        torch.randint(nodes, (2, edges), generator=random),
        torch.randint(graphs, (nodes,), generator=random).sort().values,
        torch.zeros(graphs),
    )


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_a_graph_network_is_compiled_whole():
    """Its indices lie within as many nodes as there are, in the sizes that a program is checked with, too."""
    torch.manual_seed(0)
    reference, model = GraphNetwork().eval(), GraphNetwork().eval()
    model.load_state_dict(reference.state_dict())
    kernelize(model, mode=Mode.INFERENCE)
    with torch.inference_mode():
        for seed, sizes in enumerate([(300, 2000, 5), (300, 2000, 5), (40, 31, 7)]):
            given = batch_of_graphs(*sizes, seed)
            torch.testing.assert_close(model(*given), reference(*given), rtol=1e-4, atol=1e-5)
        assert rows(model)[""].swapped, rows(model)[""].reason
        x, edges, graphs, numbers = batch_of_graphs(40, 31, 7, 3)
        edges[0, 3] = 40
        with pytest.raises(IndexError, match="out of"):
            model(x, edges, graphs, numbers)


class Policy(nn.Module):
    """Keeps its state between calls, in an attribute or in a buffer; `start` begins anew."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.seen, self.kept = nn.Linear(8, 8), nn.Linear(8, 8)
        if buffer:
            self.register_buffer("state", torch.zeros(2, 8))
        else:
            self.state = torch.zeros(2, 8)

    def forward(self, x: Tensor, start: bool = False) -> Tensor:
        before = torch.zeros(2, 8) if start else self.state
        self.state = torch.tanh(self.seen(x) + self.kept(before))
        return self.state * 2


@pytest.mark.parametrize("buffer", [False, True])
def test_a_state_that_a_model_keeps_goes_on_from_call_to_call(buffer: bool):
    """A program leaves the module as it was; a call that begins anew would leave the state of an earlier one."""
    torch.manual_seed(0)
    model = Policy(buffer=buffer).eval()
    reference = copy.deepcopy(model)
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    with torch.inference_mode():
        for call in range(8):
            x, start = torch.randn(2, 8), call % 4 == 0
            torch.testing.assert_close(model(x, start=start), reference(x, start=start))
            torch.testing.assert_close(model.state, reference.state)


class Chosen(nn.Module):
    """Its forward is one of its methods, chosen when it is made; its class has none."""

    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.forward = self.doubled if doubles else self.halved

    def doubled(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2

    def halved(self, x: Tensor) -> Tensor:
        return self.layer(x) / 2


class Chooser(nn.Module):
    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self.part = Chosen(doubles)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.part(x)) + 1


def test_parts_whose_forward_is_a_method_chosen_when_they_are_made():
    torch.manual_seed(0)
    references = [Chooser(doubles).eval() for doubles in (True, False)]
    x = torch.randn(4, 8)
    for reference in references:
        made = kernelize(copy.deepcopy(reference), mode=Mode.INFERENCE)
        check(made, reference, x)
        assert rows(made)[""].swapped
        reference.part.forward, made.part.forward = reference.part.doubled, made.part.doubled
        check(made, reference, x)
        reference.part.forward, made.part.forward = reference.part.halved, made.part.halved
        check(made, reference, x)


def test_a_forward_that_another_library_gave_a_part_runs():
    torch.manual_seed(0)
    reference = Chooser(True).eval()
    called = []

    def moves_weights(x: Tensor) -> Tensor:
        called.append(x)
        return reference.part.layer(x) * 3

    made = kernelize(copy.deepcopy(reference), mode=Mode.INFERENCE)
    reference.part.forward = made.part.forward = moves_weights
    x = torch.randn(4, 8)
    check(made, reference, x)
    assert len(called) >= 2


def test_classes_without_a_forward_keep_those_of_their_instances(tmp_path):
    path = tmp_path / "named.toml"
    path.write_text(
        f'schema = 1\n[[tag]]\nlayer = "Named"\nclasses = ["{__name__}:Cho*"]\n'
        '[[map]]\nlayer = "Named"\ndevice = "cpu"\nmodes = ["inference"]\nrepository = "compiled"\n'
    )
    torch.manual_seed(0)
    reference = nn.Sequential(Chosen(False)).eval()
    with use_kernel_mapping(load_kernel_mapping(path), inherit_mapping=False):
        made = kernelize(copy.deepcopy(reference), mode=Mode.INFERENCE)
    check(made, reference, torch.randn(4, 8))
    assert rows(made)["0"].reason == "Chosen has no forward, its instances have their own"
