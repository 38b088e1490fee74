"""Devices: parsing, properties, and what a model lies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels_hub import CUDAProperties, Device, DeviceError, ROCMProperties
from kernels_hub.kernelization.device import DEVICE_TYPES, Target, as_device, as_target


@pytest.mark.parametrize("kind", DEVICE_TYPES)
def test_every_known_type(kind: str) -> None:
    assert Device(kind).type == kind


def test_metal_is_mps() -> None:
    assert Device("metal") == Device("mps")


@pytest.mark.parametrize("kind", ["gpu", "", "CPU", 3, None])
def test_unknown_types_raise_at_construction(kind: object) -> None:
    with pytest.raises(DeviceError):
        Device(kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("cpu", CUDAProperties(70, 80)),
        ("cuda", ROCMProperties(90, 94)),
        ("rocm", CUDAProperties(90, 90)),
        ("cuda", 90),
    ],
)
def test_properties_of_another_type_raise(kind: str, properties: object) -> None:
    with pytest.raises(DeviceError, match="properties of device"):
        Device(kind, properties)  # type: ignore[arg-type]


def test_an_empty_range_raises() -> None:
    with pytest.raises(DeviceError, match="above"):
        CUDAProperties(90, 80)
    with pytest.raises(DeviceError, match="integer"):
        CUDAProperties("9.0")  # type: ignore[arg-type]


def test_text() -> None:
    assert str(Device("cuda", CUDAProperties(75, 89))) == "cuda[75..89]"
    assert str(Device("cuda", CUDAProperties(90))) == "cuda[90..]"
    assert str(Target("cuda", 90)) == "cuda 9.0"


def test_indexed_and_torch_devices_are_accepted() -> None:
    model = nn.Linear(1, 1)
    assert as_target("cpu:0", model) == Target("cpu")
    assert as_target(torch.device("cpu"), model) == Target("cpu")
    assert as_target("cuda:0", model).type == "cuda"
    assert as_device("cuda:1") == Device("cuda")


@pytest.mark.parametrize("device", ["cuda:x", "gpu", 3, "cpu:"])
def test_bad_device_arguments(device: object) -> None:
    if device == "cpu:":
        assert as_target("cpu:", nn.Identity()) == Target("cpu")
        return
    with pytest.raises(DeviceError):
        as_target(device, nn.Identity())  # type: ignore[arg-type]


def test_inferred_from_parameters_or_buffers() -> None:
    assert as_target(None, nn.Linear(1, 1)) == Target("cpu")
    only_buffers = nn.BatchNorm1d(2, affine=False)
    assert not list(only_buffers.parameters())
    assert as_target(None, only_buffers) == Target("cpu")


def test_a_model_without_tensors_runs_where_torch_makes_them() -> None:
    assert as_target(None, nn.ReLU()) == Target("cpu")
    with torch.device("meta"), pytest.raises(DeviceError, match="meta"):
        as_target(None, nn.ReLU())


def test_offloaded_weights_are_computed_where_their_hooks_say() -> None:
    from accelerate import cpu_offload

    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    cpu_offload(model, torch.device("cpu"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert as_target(None, model) == Target("cpu")


def test_not_inferable() -> None:
    with pytest.raises(DeviceError, match=r"meta device.*device='cpu'"):
        as_target(None, nn.Linear(1, 1, device="meta"))
    mixed = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
    with pytest.raises(DeviceError, match="cpu, meta"):
        as_target(None, mixed)


def test_hardware_that_is_not_here() -> None:
    assert as_target(Device("cuda", CUDAProperties(90, 90)), nn.ReLU()) == Target("cuda", 90)
    with pytest.raises(DeviceError, match="one capability"):
        as_target(Device("cuda", CUDAProperties(80, 90)), nn.ReLU())
