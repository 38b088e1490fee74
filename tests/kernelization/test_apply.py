"""kernelize: swaps what it should, leaves alone the rest with a reason, all or nothing, and restores."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kernels_hub
from kernels_hub import (
    CUDAProperties,
    Device,
    DeviceError,
    HubError,
    KernelImportError,
    KernelizeFallback,
    LayerContractError,
    LayerNotFoundError,
    LayerRepository,
    LocalLayerRepository,
    MappingError,
    Mode,
    ModeError,
    NoKernelError,
    RepositoryNotFoundError,
    explain,
    kernelize,
    replace_kernel_forward_from_hub,
    report,
    restore,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
    use_kernelized_func,
)
from kernels_hub.kernelization.tag import Tag, find_tag
from tests.kernelization.conftest import DOUBLE, same_class

I, T, C = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE
X = torch.arange(4.0)
Make = Callable[..., Path]


def two_of(cls: type[nn.Module]) -> nn.Module:
    return nn.Sequential(cls(), nn.Sequential(cls()))


def reasons(model: nn.Module) -> dict[str, str | None]:
    return {row.path: row.reason for row in report(model) if row.layer_name}


def test_every_tagged_layer_is_swapped_and_restored(double: LocalLayerRepository) -> None:
    cls = same_class()
    model = two_of(cls)
    with use_kernel_mapping({"Double": {"cpu": double}}):
        assert kernelize(model, mode=I, device="cpu") is model
    assert torch.equal(model(X), 4 * X)
    assert [row.path for row in report(model).swapped] == ["0", "1.0"]
    assert restore(model) is model
    assert torch.equal(model(X), X)
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert not report(model).swapped


def test_the_class_and_other_instances_do_not_change(double: LocalLayerRepository) -> None:
    cls = same_class()
    before = dict(vars(cls))
    mine, other = two_of(cls), two_of(cls)
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(mine, mode=I, device="cpu")
    assert torch.equal(other(X), X)
    assert dict(vars(cls)) == before


def test_idempotent_and_rerunnable_under_another_mode(
    make_repository: Make, double: LocalLayerRepository
) -> None:
    triple = LocalLayerRepository(
        make_repository(
            "triple", "class Triple(nn.Module):\n    def forward(self, x):\n        return x * 3\n"
        ),
        layer_name="Triple",
    )
    model = two_of(same_class())
    with use_kernel_mapping({"Double": {"cpu": {I: double, T: triple}}}):
        for _ in range(2):
            kernelize(model, mode=I, device="cpu")
            assert torch.equal(model(X), 4 * X)
        kernelize(model, mode=T, device="cpu")
        assert torch.equal(model(X), 9 * X)
        kernelize(model, mode=I, device="cpu")
        assert torch.equal(model(X), 4 * X)
        kernelize(model, mode=T | C, device="cpu")
        assert torch.equal(model(X), X), "nothing serves training with compile: back to the original"


@pytest.mark.parametrize(
    ("asked", "registered", "factor"),
    [
        (I, {I: 2, T: 3}, 2),
        (I, {T: 3}, 3),
        (I | C, {I: 2, T | C: 3}, 3),
        (T, {I: 2, Mode.FALLBACK: 3}, 3),
        (T, {I: 2}, 1),
    ],
)
def test_mode_fallback_chain(
    make_repository: Make, asked: Mode, registered: dict[Mode, int], factor: int
) -> None:
    repositories = {
        mode: LocalLayerRepository(
            make_repository(
                f"times{value}",
                f"class Times(nn.Module):\n    can_torch_compile = True\n    def forward(self, x):\n        return x * {value}\n",
            ),
            layer_name="Times",
        )
        for mode, value in registered.items()
    }
    model = same_class()()
    with use_kernel_mapping({"Double": {"cpu": repositories}}):
        kernelize(model, mode=asked, device="cpu")
    assert torch.equal(model(X), factor * X)


def test_a_subclass_with_a_forward_of_its_own_is_left_alone(double: LocalLayerRepository) -> None:
    base = same_class()

    class Derived(base):  # type: ignore[misc, valid-type]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - 1

    class Inheriting(base):  # type: ignore[misc, valid-type]
        pass

    model = nn.ModuleList([base(), Derived(), Inheriting()])
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
    assert [torch.equal(m(X), y) for m, y in zip(model, (2 * X, X - 1, 2 * X), strict=True)] == [True] * 3
    assert "forward of its own" in (reasons(model)["1"] or "")


def test_a_forward_replaced_on_the_instance_is_left_alone(double: LocalLayerRepository) -> None:
    model = same_class()()
    model.forward = lambda x: x + 7
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
    assert torch.equal(model(X), X + 7)
    assert "already replaced" in (reasons(model)[""] or "")


def test_condition_is_asked_of_every_instance(double: LocalLayerRepository) -> None:
    class Sized(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    replace_kernel_forward_from_hub(Sized, "Double", condition=lambda module: module.size > 1)
    model = nn.ModuleList([Sized(1), Sized(2)])
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
    assert [row.swapped for row in report(model) if row.layer_name] == [False, True]
    assert "condition" in (reasons(model)["0"] or "")
    with use_kernel_mapping(
        {}, inherit_mapping=False
    ):  # no kernel is missed where the condition does not hold
        kernelize(model[0], mode=I, device="cpu", use_fallback=False)
        assert "condition" in (reasons(model[0])[""] or "")
        assert "forward" not in vars(model[0])
        with pytest.raises(NoKernelError, match="no kernel is mapped for 'Double'"):
            kernelize(model, mode=I, device="cpu", use_fallback=False)


def test_tags_without_a_condition_hold_for_every_instance() -> None:
    class Plain(nn.Module):
        pass

    replace_kernel_forward_from_hub(Plain, "Double")
    assert Plain().kernel_condition(Plain())
    assert find_tag(Plain) == Tag("Double", None, Plain)


def test_layers_with_unusual_parameters_are_left_alone(make_repository: Make) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.UninitializedParameter()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    replace_kernel_forward_from_hub(Weighted, "Double")
    model = nn.Sequential(Weighted())
    repository = LocalLayerRepository(make_repository("double", DOUBLE), layer_name="Double")
    with use_kernel_mapping({"Double": {"cpu": repository}}):
        kernelize(model, mode=I, device="cpu")
    assert "UninitializedParameter" in (reasons(model)["0"] or "")


# -- fallback ------------------------------------------------------------------------------------


def fallback_cases(double: LocalLayerRepository) -> dict[KernelizeFallback, dict[str, Any]]:
    return {
        KernelizeFallback.NO_LAYER: {"Other": {"cpu": double}},
        KernelizeFallback.NO_DEVICE: {"Double": {"cuda": double}},
        KernelizeFallback.NO_COMPATIBLE_MODE: {"Double": {"cpu": {T: double}}},
    }


@pytest.mark.parametrize(
    "case", [KernelizeFallback.NO_LAYER, KernelizeFallback.NO_DEVICE, KernelizeFallback.NO_COMPATIBLE_MODE]
)
def test_fallback_flags_case_by_case(double: LocalLayerRepository, case: KernelizeFallback) -> None:
    mapping = fallback_cases(double)[case]
    mode = I | C if case is KernelizeFallback.NO_COMPATIBLE_MODE else I
    model = same_class()()
    with use_kernel_mapping(mapping):
        for allowed in (True, case, KernelizeFallback.ALL):
            kernelize(model, mode=mode, device="cpu", use_fallback=allowed)
            assert reasons(model)[""]
        for forbidden in (False, KernelizeFallback.ALL ^ case):
            with pytest.raises(NoKernelError, match=str(case.name)):
                kernelize(model, mode=mode, device="cpu", use_fallback=forbidden)
    assert torch.equal(model(X), X)


def test_no_kernel_for_the_capability(double: LocalLayerRepository) -> None:
    model = same_class()()
    here = Device("cuda", CUDAProperties(75, 75))
    with use_kernel_mapping({"Double": {Device("cuda", CUDAProperties(90)): double}}):
        row = next(iter(explain(model, mode=I, device=here)))
        assert "cuda 7.5" in (row.reason or "") and "cuda[90..]" in (row.reason or "")
        with pytest.raises(NoKernelError, match="NO_COMPATIBLE_PROPERTIES"):
            kernelize(model, mode=I, device=here, use_fallback=False)


def test_untagged_layers_never_raise(double: LocalLayerRepository) -> None:
    model = nn.Sequential(nn.ReLU(), same_class()())
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu", use_fallback=False)
    assert torch.equal(model(X), 2 * X)


# -- bad input: one clear error, and the model as it was -----------------------------------------

CONTRACT: list[tuple[str, str]] = [
    (
        "class L(nn.Module):\n    def __init__(self):\n        super().__init__()\n    def forward(self, x): return x",
        "__init__",
    ),
    ("class L(nn.Module):\n    extra = 1\n    def forward(self, x): return x", "extra"),
    ("class L(nn.Module):\n    def helper(self): pass\n    def forward(self, x): return x", "helper"),
    ("class L(nn.Module):\n    def forward(self, x, y): return x", "takes 2 arguments where 1"),
    ("class L(nn.Module):\n    def forward(self, input): return input", "named 'input' where 'x'"),
    ("class L(nn.Module):\n    def forward(self, x=None): return x", "default None where none at all"),
    ("class L(nn.Module):\n    def forward(self, *x): return x", "variadic"),
    ("class L(nn.Module):\n    pass", "no forward"),
    ("class L:\n    def forward(self, x): return x", "torch.nn.Module class"),
]


@pytest.mark.parametrize(("source", "message"), CONTRACT)
@pytest.mark.parametrize("use_fallback", [True, False, KernelizeFallback.ALL])
def test_a_layer_that_breaks_the_contract(
    make_repository: Make, source: str, message: str, use_fallback: bool | KernelizeFallback
) -> None:
    model = two_of(same_class())
    with use_kernel_mapping(
        {"Double": {"cpu": LocalLayerRepository(make_repository("bad", source), layer_name="L")}}
    ):
        with pytest.raises(LayerContractError, match=message) as caught:
            kernelize(model, mode=I, device="cpu", use_fallback=use_fallback)
        assert isinstance(caught.value, TypeError)
        assert message in (
            next(row for row in explain(model, mode=I, device="cpu") if row.layer_name).reason or ""
        )
    assert torch.equal(model(X), X)
    assert not any("_kernels_hub" in module.__dict__ for module in model.modules())


def test_the_contract_is_checked_for_every_class(double: LocalLayerRepository) -> None:
    @use_kernel_forward_from_hub("Double")
    class Wider(nn.Module):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * scale

    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(same_class()(), mode=I, device="cpu")
        with pytest.raises(LayerContractError, match="takes 1 arguments where 2"):
            kernelize(nn.Sequential(same_class()(), Wider()), mode=I, device="cpu")


def test_the_module_may_have_any_name_in_a_forward(make_repository: Make) -> None:
    class Model(nn.Module):
        def forward(this, x: torch.Tensor) -> torch.Tensor:
            return x

    class Static(nn.Module):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x

    source = "class Double(nn.Module):\n    def forward(module, x):\n        return x * 2\n"
    layer = LocalLayerRepository(make_repository("named", source), layer_name="Double")
    with use_kernel_mapping({"Double": {"cpu": layer}}):
        for cls in (Model, Static, same_class()):
            model = use_kernel_forward_from_hub("Double")(cls)()
            assert torch.equal(kernelize(model, mode=I, device="cpu", use_fallback=False)(x=X), 2 * X)
            assert torch.equal(restore(model)(X), X)


def test_an_error_in_the_middle_of_a_model_changes_nothing(
    make_repository: Make, double: LocalLayerRepository
) -> None:
    broken = LocalLayerRepository(
        make_repository("broken", "raise RuntimeError('boom')"), layer_name="Broken"
    )
    model = nn.Sequential(same_class()(), same_class("B", "Broken")(), same_class()())
    with use_kernel_mapping({"Double": {"cpu": double}, "Broken": {"cpu": broken}}):
        with pytest.raises(KernelImportError, match="RuntimeError on import: boom") as caught:
            kernelize(model, mode=I, device="cpu")
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert not [name for name in sys.modules if name.startswith("broken_")]
        assert torch.equal(model(X), X)
        kernelize(model, mode=I, device="cpu", use_fallback=KernelizeFallback.ALL)
        assert torch.equal(model(X), 4 * X)
        assert "boom" in (reasons(model)["1"] or "")


def test_repositories_that_are_not_there(make_repository: Make, tmp_path: Path) -> None:
    model = same_class()()
    cases: list[tuple[Any, type[Exception]]] = [
        (LocalLayerRepository(tmp_path / "nowhere", layer_name="L"), RepositoryNotFoundError),
        (LocalLayerRepository(str(tmp_path), layer_name="L"), RepositoryNotFoundError),
        (LocalLayerRepository(make_repository("d", DOUBLE), layer_name="Missing"), LayerNotFoundError),
        (LayerRepository("org/name", layer_name="L", version=1), HubError),
    ]
    for source, error in cases:
        with use_kernel_mapping({"Double": {"cpu": source}}), pytest.raises(error) as caught:
            kernelize(model, mode=I, device="cpu")
        assert isinstance(caught.value, ConnectionError if error is HubError else FileNotFoundError)
        assert torch.equal(model(X), X)


def test_a_missing_layer_is_told_the_layers_that_there_are(make_repository: Make) -> None:
    repository = make_repository(
        "helpers", f"from dataclasses import dataclass\nfrom torch import Tensor\n{DOUBLE}"
    )
    source = LocalLayerRepository(repository, layer_name="Missing")
    with (
        use_kernel_mapping({"Double": {"cpu": source}}),
        pytest.raises(LayerNotFoundError, match=r"it has Double$"),
    ):
        kernelize(same_class()(), mode=I)


def test_flags_that_contradict_the_registered_mode(make_repository: Make) -> None:
    layer = "class L(nn.Module):\n    has_backward = False\n    def forward(self, x):\n        return x * 2\n"
    source = LocalLayerRepository(make_repository("flags", layer), layer_name="L")
    model = same_class()()
    for registered, asked in ((T, T), (I | C, I)):
        with (
            use_kernel_mapping({"Double": {"cpu": {registered: source}}}),
            pytest.raises(MappingError, match="registered"),
        ):
            kernelize(model, mode=asked, device="cpu")
    with use_kernel_mapping({"Double": {"cpu": source}}):
        kernelize(model, mode=T, device="cpu")
        assert "no backward" in (reasons(model)[""] or "")
        kernelize(model, mode=I | C, device="cpu")
        assert "torch.compile" in (reasons(model)[""] or "")
        kernelize(model, mode=I, device="cpu")
        assert torch.equal(model(X), 2 * X)


def test_bad_arguments(double: LocalLayerRepository) -> None:
    model = same_class()()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        with torch.device("meta"), pytest.raises(DeviceError, match=r"meta device.*device='cpu'"):
            kernelize(model, mode=I)
        with pytest.raises(DeviceError, match="gpu"):
            kernelize(model, mode=I, device="gpu")
        with pytest.raises(ModeError):
            kernelize(model, mode=C, device="cpu")
        with pytest.raises(TypeError, match="use_fallback"):
            kernelize(model, mode=I, device="cpu", use_fallback="yes")  # type: ignore[arg-type]
    assert torch.equal(model(X), X)


# -- functions -----------------------------------------------------------------------------------


@use_kernel_forward_from_hub("shift")
def shift(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x + by


@use_kernelized_func(shift)
class Shifting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shift(x, by=2.0)


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fn = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


SHIFT = "class shift(nn.Module):\n    can_torch_compile = True\n    def forward(self, x, by=1.0):\n        return x + 100 * by\n"


@pytest.fixture
def shifted(make_repository: Make) -> LocalLayerRepository:
    return LocalLayerRepository(make_repository("shift", SHIFT), layer_name="shift")


@pytest.mark.parametrize(("cls", "plain", "kernel"), [(Shifting, 2.0, 200.0), (Holding, 1.0, 100.0)])
def test_functions_are_replaced_for_one_model_only(
    shifted: LocalLayerRepository, cls: type[nn.Module], plain: float, kernel: float
) -> None:
    mine, other = nn.Sequential(cls()), nn.Sequential(cls())
    with use_kernel_mapping({"shift": {"cpu": shifted}}):
        kernelize(mine, mode=I, device="cpu")
    assert torch.equal(mine(X), X + kernel)
    assert torch.equal(other(X), X + plain), "another model keeps the function"
    assert torch.equal(shift(X), X + 1), "and so does the function itself"
    row = next(row for row in report(mine) if row.layer_name == "shift")
    assert row.swapped and row.path.startswith("0:")
    restore(mine)
    assert torch.equal(mine(X), X + plain)
    assert getattr(mine[0], "fn", shift) is shift


def test_a_function_kernel_may_be_a_plain_function(make_repository: Make) -> None:
    repository = make_repository(
        "plainshift", "", init="from . import layers\n\n\ndef shift(x, by=1.0):\n    return x - by\n"
    )
    model = nn.Sequential(Shifting())
    with use_kernel_mapping({"shift": {"cpu": LocalLayerRepository(repository, layer_name="shift")}}):
        kernelize(model, mode=I, device="cpu")
    assert torch.equal(model(X), X - 2)


def test_a_function_kernel_with_another_signature_is_refused(make_repository: Make) -> None:
    layer = "class shift(nn.Module):\n    def forward(self, x, by=2.0):\n        return x\n"
    source = LocalLayerRepository(make_repository("badshift", layer), layer_name="shift")
    with (
        use_kernel_mapping({"shift": {"cpu": source}}),
        pytest.raises(LayerContractError, match=r"default 2\.0"),
    ):
        kernelize(nn.Sequential(Shifting()), mode=I, device="cpu")


def test_tagging_needs_a_class_or_function() -> None:
    with pytest.raises(TypeError, match="tags nn.Module classes and functions"):
        use_kernel_forward_from_hub("L")(3)
    with pytest.raises(MappingError, match="is not decorated"):
        use_kernelized_func(lambda x: x)


# -- loading and environment ---------------------------------------------------------------------


def test_threads_load_a_kernel_once(make_repository: Make, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    source = (
        f"import time\nwith open({str(counter)!r}, 'a') as f:\n    f.write('x')\ntime.sleep(0.05)\n" + DOUBLE
    )
    repository = LocalLayerRepository(make_repository("slow", source), layer_name="Double")
    models = [same_class()() for _ in range(8)]

    def run(model: nn.Module) -> None:
        with use_kernel_mapping({"Double": {"cpu": repository}}):
            kernelize(model, mode=I, device="cpu")

    threads = [threading.Thread(target=run, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "x"
    assert all(torch.equal(model(X), 2 * X) for model in models)


def test_disable_kernel_mapping(double: LocalLayerRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    model = same_class()()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
        monkeypatch.setenv("DISABLE_KERNEL_MAPPING", "1")
        kernelize(model, mode=I, device="cpu")
    assert torch.equal(model(X), X)


def test_local_kernels_overrides_a_hub_repository(
    make_repository: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_repository("double", DOUBLE)
    monkeypatch.setenv("LOCAL_KERNELS", f"org/double={path}")
    model = same_class()()
    with use_kernel_mapping(
        {"Double": {"cpu": LayerRepository("org/double", layer_name="Double", version=">=1")}}
    ):
        kernelize(model, mode=I, device="cpu")
    assert torch.equal(model(X), 2 * X)
    assert "org/double" in (report(model).swapped[0].repository or "")


def test_one_log_line_a_layer_name(double: LocalLayerRepository, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kernels_hub")
    model = nn.Sequential(*(same_class()() for _ in range(5)))
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1 and lines[0].startswith("Double: ") and "in 5 modules" in lines[0]


def test_text_of_a_repository_does_no_io(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("I/O")

    references = [
        LayerRepository("org/a", layer_name="L", version=">=1,<2"),
        LayerRepository("org/a", layer_name="L", version=1),
        LayerRepository("org/a", layer_name="L", revision="abc"),
        LocalLayerRepository("/nowhere", layer_name="L"),
        kernels_hub.BundledLayerRepository("nothing", layer_name="L"),
        kernels_hub.LockedLayerRepository("org/a", layer_name="L"),
    ]
    for name in ("open", "stat", "listdir"):
        monkeypatch.setattr(f"os.{name}", refuse)
    texts = [str(reference) for reference in references]
    monkeypatch.undo()
    assert all("layer L" in text for text in texts)
    assert len(set(references)) == len(references) == len(set(texts))


def test_no_root_log_handler() -> None:
    code = "import logging, kernels_hub; kernels_hub.kernelize; print(logging.getLogger().handlers)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_classes_tagged_by_the_peer_are_recognised(double: LocalLayerRepository) -> None:
    kernels = pytest.importorskip("kernels", reason="needs the package kernels (extra: test)")

    @kernels.use_kernel_forward_from_hub("Double")
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = Same()
    with use_kernel_mapping({"Double": {"cpu": double}}):
        kernelize(model, mode=I, device="cpu")
    assert torch.equal(model(X), 2 * X)
    if torch.version.cuda or torch.version.hip:
        return  # the peer takes the variant that torch was built for, whatever the model's device
    with use_kernel_mapping(
        {"Double": {"cpu": kernels.LocalLayerRepository(double.repo_path, layer_name="Double")}}
    ):
        kernelize(restore(model), mode=I, device="cpu")
    assert torch.equal(model(X), 2 * X), "the peer's own repository objects work as mapping values"


@pytest.mark.filterwarnings("ignore:`torch.jit")  # a FutureWarning from PyTorch 2.14 on
def test_scripted_modules_are_left_alone(double: LocalLayerRepository) -> None:
    """Their classes have no forward, and no table of parameters."""
    scripted = torch.jit.trace(nn.Linear(4, 4), X)
    model = nn.Sequential(scripted, same_class()(), scripted)
    with use_kernel_mapping({"Double": {"cpu": double}}, inherit_mapping=False):
        kernelize(model, mode=I, device="cpu")
    assert [row.path for row in report(model).swapped] == ["1"]
    assert model(X).shape == X.shape
    restore(model)
