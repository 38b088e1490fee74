"""Detection of what variants are judged against, on torch builds that are imitated."""

from __future__ import annotations

import platform
from types import ModuleType, SimpleNamespace

import pytest
import torch

from kernels_hub.errors import DeviceError
from kernels_hub.repository import system as system_module
from kernels_hub.repository.backends import BACKENDS, backend_named
from kernels_hub.repository.system import System


def _torch(*, cuda=None, hip=None, xpu=None, mps=False, privateuse="privateuseone", tpu=False, neuron=False):
    """What detection looks at, of a torch built for other hardware."""
    module = SimpleNamespace(
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
        version=SimpleNamespace(cuda=cuda, hip=hip, xpu=xpu),
        _C=SimpleNamespace(_get_privateuse1_backend_name=lambda: privateuse),
    )
    if tpu:
        module.backends.tpu = object()
    if neuron:
        module.neuron = object()
    return module


BUILDS = {
    "cpu": (_torch(), ("cpu", None)),
    "cuda": (_torch(cuda="13.0"), ("cuda", (13, 0))),
    "cuda with a patch": (_torch(cuda="12.8.1"), ("cuda", (12, 8))),
    "rocm": (_torch(hip="6.3.42131-fa1d09cbd"), ("rocm", (6, 3))),
    "metal": (_torch(mps=True), ("metal", None)),
    "xpu": (_torch(xpu="20250200"), ("xpu", (2025, 2))),
    "neuron on a CUDA build": (_torch(cuda="12.8", neuron=True), ("neuron", None)),
    "tpu before all": (_torch(cuda="12.8", neuron=True, tpu=True), ("tpu", None)),
    "metal before xpu": (_torch(mps=True, xpu="20250200"), ("metal", None)),
    "npu without its toolkit": (_torch(privateuse="npu"), ("npu", None)),
}


@pytest.mark.parametrize("case", BUILDS)
def test_detection_order(case: str) -> None:
    build, expected = BUILDS[case]
    assert system_module._torch_backend(build) == expected


def test_npu_version(monkeypatch: pytest.MonkeyPatch) -> None:
    collect_env = ModuleType("torch_npu.utils.collect_env")
    collect_env.get_cann_version = lambda: "8.5.0"  # type: ignore[attr-defined]
    for name, module in {
        "torch_npu": ModuleType("torch_npu"),
        "torch_npu.utils": ModuleType("torch_npu.utils"),
        "torch_npu.utils.collect_env": collect_env,
    }.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)
    assert system_module._torch_backend(_torch(privateuse="npu")) == ("npu", (8, 5))


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable names the backend."""
    monkeypatch.delenv("KERNELS_HUB_BACKEND", raising=False)


@pytest.mark.usefixtures("undecided")
def test_this_machine() -> None:
    here = System.detect()
    assert here is System.detect()
    assert here.backend in BACKENDS
    assert here.torch_version == tuple(map(int, torch.__version__.split(".")[:2]))
    assert here.os == platform.system().lower()
    assert System.detect(here.backend) == here


@pytest.mark.usefixtures("undecided")
def test_agrees_with_hugging_face() -> None:
    """The same variant names are accepted here as by their resolver on this very machine."""
    from kernels.variants import parse_variant, resolve_variants

    from kernels_hub.repository.variants import rank

    here = System.detect()
    version = "".join(map(str, here.torch_version or ()))
    abi = "cxx11" if here.cxx11_abi else "cxx98"
    names = [
        "torch-universal",
        *(f"torch-{backend}" for backend in BACKENDS),
        *(
            f"torch{version}{tag}-{spelled}-{cpu}-{os}"
            for tag in ("", f"-{abi}")
            for spelled in ("cpu", "cu126", "cu130", "rocm70", "metal")
            for cpu in ("x86_64", "aarch64")
            for os in ("linux", "darwin", "windows")
        ),
    ]
    accepted, _ = resolve_variants([parse_variant(name) for name in names])
    assert {variant.variant_str for variant in accepted} == {
        str(d.variant) for d in rank(names, here).accepted
    }


@pytest.mark.usefixtures("undecided")
def test_absent_hardware_has_no_version() -> None:
    absent = next(name for name in ("cuda", "rocm") if name != System.detect().backend)
    assert System.detect(absent).backend == absent
    assert System.detect(absent).backend_version is None
    assert System.detect("cpu").backend == "cpu"


@pytest.mark.parametrize(
    ("alias", "name"), [("mps", "metal"), ("hip", "rocm"), ("cann", "npu"), ("cpu", "cpu")]
)
def test_aliases(alias: str, name: str) -> None:
    assert backend_named(alias).name == System.detect(alias).backend == name


def test_unknown_backend() -> None:
    with pytest.raises(DeviceError, match="unknown backend 'vulkan'; known: cpu, cuda") as caught:
        System.detect("vulkan")
    assert isinstance(caught.value, ValueError)


def test_every_device_type_is_a_backend() -> None:
    from kernels_hub.kernelization.device import DEVICE_TYPES

    assert {backend_named(kind).name for kind in DEVICE_TYPES} == set(BACKENDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.11.0a0+git123", (2, 11)),
        ("2.12.dev1", (2, 12)),
        ("26.1", (26, 1)),
        ("2", None),
        ("", None),
    ],
)
def test_major_minor(text: str, expected: tuple[int, int] | None) -> None:
    assert system_module._major_minor(text) == expected


def test_the_environment_may_name_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_BACKEND", "xpu")
    assert System.detect().backend == "xpu"
    assert System.detect("cpu").backend == "cpu"
    monkeypatch.setenv("KERNELS_HUB_BACKEND", "")
    assert System.detect() == System.detect(System.detect().backend)
    monkeypatch.setenv("KERNELS_HUB_BACKEND", "abacus")
    with pytest.raises(DeviceError, match="abacus"):
        System.detect()
