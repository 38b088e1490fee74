"""Chains of modules that run as one kernel: what they compute, and when the modules are called for themselves."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from kernels_hub import (
    BundledLayerRepository,
    LocalLayerRepository,
    Mode,
    Report,
    explain,
    kernelize,
    load_kernel_mapping,
    report,
    restore,
    use_kernel_mapping,
)
from kernels_hub.kernelization import rebind
from kernels_hub.kernelization.bind import KernelForward
from kernels_hub.kernelization.chain_functions import chain_function
from kernels_hub.kernelization.outcome import record_of
from tests.kernelization.conftest import RepositoryMaker

_CLOSE = {"rtol": 1e-5, "atol": 1e-5}


class Block(nn.Module):
    """Two convolutions as ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(16, 8, 1)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 128)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        x = self.act(x)
        x = self.drop(x)
        x = self.fc2(x)
        return x  # noqa: RET504 - as models have it


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        Block(),
        nn.Flatten(),
        nn.Linear(8 * 81, 64),
        Feed(),
    )
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
    return model.eval()


@pytest.fixture(autouse=True)
def default_mapping() -> Iterator[None]:
    with use_kernel_mapping(load_kernel_mapping("default"), inherit_mapping=False):
        yield


@pytest.fixture
def image() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 9, 9)


@contextmanager
def _fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The classes of the first modules of chains that ran as one meanwhile."""
    ran: list[str] = []
    with monkeypatch.context() as patch:
        for name, layer in (("convolution", "Conv2d"), ("linear", "Linear")):
            package = BundledLayerRepository(name, layer_name=layer).resolve("cpu").load()
            patch.setattr(package.followers, "forward", _counted(package.followers.forward, ran))
        yield ran


def _counted(forward: Callable[..., Tensor | None], ran: list[str]) -> Callable[..., Tensor | None]:
    def counted(head: nn.Module, input: Tensor, followers: list[nn.Module]) -> Tensor | None:
        result = forward(head, input, followers)
        if result is not None:
            ran.append(type(head).__name__)
        return result

    return counted


_ALL = ["Conv2d", "Conv2d", "Conv2d", "Linear"]


def _runs(model: nn.Module, image: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran as one in a call, whose result is the original's."""
    with torch.no_grad():
        want = restore(copy.deepcopy(model))(image)
        with _fused(monkeypatch) as ran:
            got = model(image)
    torch.testing.assert_close(got, want, **_CLOSE)
    return ran


def test_chains_run_as_one_and_compute_the_same(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    assert _runs(model, image, monkeypatch) == _ALL
    assert _runs(restore(model), image, monkeypatch) == []
    assert model[3].__dict__.get("forward") is None


def test_under_inference_mode_as_well(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    with torch.inference_mode():
        kernelize(model, mode=Mode.INFERENCE, wait=True)
    assert _runs(model, image, monkeypatch) == _ALL
    with torch.inference_mode(), _fused(monkeypatch) as ran:
        model(image)
    assert ran == _ALL


def test_the_report_names_the_chains(image: Tensor) -> None:
    model = _model()
    planned = _told(explain(model, mode=Mode.INFERENCE))
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    told = _told(report(model))
    assert told == planned
    assert told == {
        "0": ("1", "2"), "3.conv1": ("bn1", "relu"), "3.conv2": ("bn2",), "6.fc1": ("act", "drop")
    }  # fmt: skip
    assert "computes bn1, relu as well" in str(report(model))
    assert report(model).to_dict()["rows"][1]["followers"] == ("1", "2")
    model[3].forward = lambda x: x
    assert set(_told(report(model))) == {"0", "6.fc1"}


def _told(rows: Report) -> dict[str, tuple[str, ...]]:
    return {row.path: row.followers for row in rows if row.followers}


def test_training_and_gradients_are_the_modules(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    with _fused(monkeypatch) as ran:
        model(image).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert "Conv2d" not in ran
        model.train()
        with torch.no_grad():
            before = model[1].running_mean.clone()
            model(image)
        assert not torch.equal(before, model[1].running_mean)
        assert "Conv2d" not in ran
    trains = kernelize(_model(), mode=Mode.TRAINING)
    assert not any(record.chains for module in trains.modules() if (record := record_of(module)))


@pytest.mark.parametrize("which", ["conv1", "bn1", "relu"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "backward"])
def test_hooks_see_their_module(
    image: Tensor, monkeypatch: pytest.MonkeyPatch, which: str, kind: str
) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    seen: list[str] = []
    module = getattr(model[3], which)
    register = {
        "forward": module.register_forward_hook,
        "forward_pre": module.register_forward_pre_hook,
        "backward": module.register_full_backward_hook,
    }[kind]
    handle = register(lambda *_: seen.append(which))
    assert len(_runs(model, image, monkeypatch)) < 4
    if kind != "backward":
        assert seen
    handle.remove()
    assert _runs(model, image, monkeypatch) == _ALL


def test_global_hooks_see_every_module(image: Tensor) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    try:
        with torch.no_grad():
            model(image)
    finally:
        handle.remove()
    assert seen.count("BatchNorm2d") == 3 and seen.count("ReLU") == 2


class _Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_other_modules_in_their_place_are_called(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    model[3].bn1 = _Halved()
    model[6].act = nn.Tanh()
    model[2] = _Halved()
    assert _runs(model, image, monkeypatch) == ["Conv2d"]
    model[3].conv2 = nn.Conv2d(16, 8, 1).eval()
    assert _runs(model, image, monkeypatch) == []


def test_a_sequential_that_grows_is_run_as_it_is(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    assert isinstance(model, nn.Sequential)
    model.append(nn.Tanh())
    model.insert(1, nn.Identity())
    assert _runs(model, image, monkeypatch) == ["Conv2d", "Conv2d", "Linear"]
    del model[1]
    assert _runs(model, image, monkeypatch) == _ALL
    model[0] = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        model(image)


def test_a_forward_that_is_replaced_is_called(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    with monkeypatch.context() as patch:
        patch.setattr(Block, "forward", lambda self, x: x)
        assert _runs(model, image, monkeypatch) == ["Conv2d", "Linear"]
    with monkeypatch.context() as patch:
        patch.setattr(nn.ReLU, "forward", lambda self, x: x)
        with torch.no_grad():
            want = restore(copy.deepcopy(model))(image)
            torch.testing.assert_close(model(image), want, **_CLOSE)
    model[3].bn2.forward = lambda x: x
    assert _runs(model, image, monkeypatch) == ["Conv2d", "Conv2d", "Linear"]


def test_copies_and_pickles_run_chains(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    assert _runs(copy.deepcopy(model), image, monkeypatch) == _ALL
    again = pickle.loads(pickle.dumps(model))
    assert _runs(again, image, monkeypatch) == _ALL
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert _runs(torch.load(buffer, weights_only=False), image, monkeypatch) == _ALL
    shallow = copy.copy(model[3])
    shallow.bn1 = _Halved()
    with torch.no_grad(), _fused(monkeypatch) as ran:
        shallow(torch.randn(2, 8, 9, 9))
    assert ran == ["Conv2d"]


def test_kernelized_again_for_other_modes(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
    assert model[3].__dict__.get("forward") is None
    assert _runs(kernelize(model, mode=Mode.INFERENCE, wait=True), image, monkeypatch) == _ALL
    assert _runs(kernelize(model, mode=Mode.INFERENCE, wait=True), image, monkeypatch) == _ALL
    with use_kernel_mapping({}, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_verify_compares_modules_one_by_one(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, verify=image)
    assert _runs(model, image, monkeypatch) == []
    assert sum(row.swapped for row in report(model)) > 4


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_what_traces_sees_the_modules(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    with torch.no_grad():
        want = model(image)
        traced = torch.jit.trace(model, image)
        exported = torch.export.export(model, (image,))
        with _fused(monkeypatch) as ran:
            graph = torch.fx.symbolic_trace(model)
            torch.testing.assert_close(traced(image), want, **_CLOSE)
            torch.testing.assert_close(exported.module()(image), want, **_CLOSE)
            torch.testing.assert_close(
                torch.func.vmap(model, (0,))(image[:, None]).squeeze(1), want, **_CLOSE
            )
    assert "Conv2d" not in ran
    assert {"bn1", "relu"} <= {str(node.target).rpartition(".")[2] for node in graph.graph.nodes}


def test_double_and_subclasses_run_the_modules(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)

    class Own(Tensor):
        pass

    with torch.no_grad(), _fused(monkeypatch) as ran:
        assert type(model(image.as_subclass(Own))) is Own
    assert ran == []
    assert _runs(model.double(), image.double(), monkeypatch) == ["Linear"]  # which runs PyTorch's, then


def test_a_kernel_of_somebody_else_for_an_activation_runs(
    image: Tensor, monkeypatch: pytest.MonkeyPatch, make_repository: RepositoryMaker
) -> None:
    repository = make_repository(
        "theirs", "class SiLU(nn.Module):\n    def forward(self, input):\n        return input * 0 + 7\n"
    )
    theirs = {"SiLU": {"cpu": LocalLayerRepository(repository, layer_name="SiLU")}}
    with use_kernel_mapping(theirs):
        model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    with torch.no_grad(), _fused(monkeypatch) as ran:
        assert (model[:3](image) == 7).all()
        model(image)
    assert ran == ["Conv2d", "Conv2d", "Conv2d", "Linear"]  # the first without its activation
    assert _told(report(model))["0"] == ("1",)


def test_children_that_two_modules_share(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Block().eval(), Block().eval()
    second.conv1 = first.conv1
    model = nn.Sequential(nn.Conv2d(3, 8, 1), first, second).eval()
    second.bn1.running_mean.fill_(3.0)  # type: ignore[union-attr]
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    assert _runs(model, image, monkeypatch) == ["Conv2d"] * 4


def test_attributes_that_are_no_children_are_called(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Block):
        bn1 = property(lambda self: _Halved())  # type: ignore[assignment]

        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.conv1, self.conv2 = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
            self.relu, self.bn2 = nn.ReLU(), nn.BatchNorm2d(8)

    model = nn.Sequential(nn.Conv2d(3, 8, 1), Own()).eval()
    kernelize(model, mode=Mode.INFERENCE, wait=True)
    assert _runs(model, image, monkeypatch) == ["Conv2d"]


def test_a_module_that_answers_for_its_attributes_is_left_alone() -> None:
    class Own(Block):
        def __getattr__(self, name: str) -> object:
            return super().__getattr__("relu" if name == "bn1" else name)

    model = kernelize(Own().eval(), mode=Mode.INFERENCE, wait=True)
    assert "forward" not in model.__dict__


def test_a_release_that_computes_nothing_else_serves_after_unpickling(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = pickle.dumps(kernelize(_model(), mode=Mode.INFERENCE, wait=True))
    monkeypatch.setattr(rebind, "followers_in", lambda _: None)
    again = pickle.loads(pickled)
    with torch.no_grad():
        with _fused(monkeypatch) as ran:
            got = again(image)
        torch.testing.assert_close(got, restore(again)(image), **_CLOSE)
    assert ran == []


def test_chains_begin_when_native_code_is_there(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    (function,) = {id(of.func): of.func for of in (model[0].forward, model[3].conv1.forward)}.values()
    decided: list[bool] = []
    monkeypatch.setattr(function, "decided", decided, raising=False)
    assert _runs(model, image, monkeypatch) == ["Linear"]
    decided.append(True)
    assert _runs(model, image, monkeypatch) == _ALL
    decided[0] = False
    assert _runs(model, image, monkeypatch) == ["Linear"]


def test_a_sequential_that_iterates_otherwise_is_left_alone() -> None:
    class Backwards(nn.Sequential):
        def __iter__(self) -> Iterator[nn.Module]:
            return reversed(list(super().__iter__()))

    model = kernelize(Backwards(nn.Conv2d(3, 8, 1), nn.ReLU()).eval(), mode=Mode.INFERENCE, wait=True)
    assert "forward" not in model.__dict__


def test_weights_that_change_are_seen(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    _runs(model, image, monkeypatch)
    with torch.no_grad():
        model[1].running_mean.add_(2.0)
        model[3].bn1.weight.mul_(3.0)
        model[6].fc1.weight.mul_(0.5)
    model[3].bn2.eps = 0.5
    assert _runs(model, image, monkeypatch) == _ALL


def test_channels_last(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_model().to(memory_format=torch.channels_last), mode=Mode.INFERENCE, wait=True)
    assert "Conv2d" not in _runs(model, image.to(memory_format=torch.channels_last), monkeypatch)


def test_the_forward_of_a_class_stays_as_it_was() -> None:
    before = Block.forward, Block.forward.__code__  # type: ignore[attr-defined]
    model = kernelize(_model(), mode=Mode.INFERENCE, wait=True)
    assert (Block.forward, Block.forward.__code__) == before  # type: ignore[attr-defined]
    bound = model[3].__dict__["forward"]
    assert type(bound) is KernelForward and isinstance(bound.func, FunctionType)


class Functional(nn.Module):
    """Activations as functions, as torchvision's GoogLeNet and many others have them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 81, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.bn(x)
        x = F.relu(x, inplace=True)
        return F.gelu(self.fc(x.flatten(1)), approximate="tanh")


def _functional() -> Functional:
    torch.manual_seed(0)
    model = Functional().eval()
    model.bn.running_mean.normal_()  # type: ignore[union-attr]
    return model


def test_functions_are_computed_with_what_is_before_them(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    assert _runs(model, image, monkeypatch) == ["Conv2d", "Linear"]
    followers = {row.path: row.followers for row in report(model).rows if row.followers}
    assert followers == {"conv": ("bn", "F.relu(inplace=True)"), "fc": ("F.gelu(approximate='tanh')",)}
    again = pickle.loads(pickle.dumps(model))
    assert _runs(again, image, monkeypatch) == ["Conv2d", "Linear"]


def test_a_function_that_is_replaced_later_is_called(image: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    relu, seen = F.relu, []

    def watched(x: Tensor, inplace: bool = False) -> Tensor:
        seen.append(inplace)
        return relu(x, inplace) + 1

    with torch.no_grad():
        before = model(image)
        monkeypatch.setattr(F, "relu", watched)
        assert not model(image).equal(before)
        assert seen == [True]


def test_a_function_that_was_replaced_before_it_was_known_is_called(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a model is unpickled in a process that has its own `F.relu`."""
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    stored = pickle.dumps(model)
    with torch.no_grad(), monkeypatch.context() as patch:
        before = model(image)
        patch.setattr(F, "relu", lambda x, inplace=False: x)
        chain_function.cache_clear()
        assert not pickle.loads(stored)(image).equal(before)
    chain_function.cache_clear()


def test_a_name_of_the_models_module_that_is_given_another_function(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    other = SimpleNamespace(relu=lambda x, inplace: x, gelu=lambda x, approximate: x)
    with torch.no_grad():
        model(image)
        monkeypatch.setitem(globals(), "F", other)
        want = restore(copy.deepcopy(model))(image)
        torch.testing.assert_close(model(image), want, **_CLOSE)


def test_hooks_see_what_a_function_writes_into(image: Tensor) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    kept: list[Tensor] = []
    model.bn.register_forward_hook(lambda module, arguments, result: kept.append(result))
    with torch.no_grad():
        model(image)
    assert kept[0].min() == 0  # F.relu(x, inplace=True) changed it afterwards


def test_modes_see_the_functions(image: Tensor) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    seen: list[object] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: object = None,
        ) -> object:
            seen.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[dict-item]

    with torch.no_grad(), Watch():
        model(image)
    assert F.relu in seen
    assert F.gelu in seen


def test_a_compiler_sees_the_functions(image: Tensor) -> None:
    model = kernelize(_functional(), mode=Mode.INFERENCE, wait=True)
    seen: list[object] = []

    def backend(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        want = model(image)
        got = torch.compile(model, backend=backend)(image)
    torch.testing.assert_close(got, want, **_CLOSE)
    assert F.relu in seen
    assert F.gelu in seen
