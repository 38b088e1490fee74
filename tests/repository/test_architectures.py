"""Which GPUs the declared architectures of a variant cover; checked against HF `kernels`' own rule."""

from __future__ import annotations

import pytest
from kernels.archs import _supports_cuda_capability

from kernels_hub.errors import NoVariantError
from kernels_hub.repository.architectures import check_architecture, supports_capability
from kernels_hub.repository.metadata import Metadata

ARCHS = ("7.5", "8.0", "8.9", "9.0", "9.0a", "10.0f", "12.0", "8.0+PTX", "sm_90", "9", "")
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (9, 1), (10, 0), (10, 3), (12, 0), (12, 1))


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_rule_is_the_peers(capability: tuple[int, int]) -> None:
    for first in ARCHS:
        for second in ARCHS:
            archs = [first, second]
            assert supports_capability(archs, capability) == _supports_cuda_capability(archs, capability), (
                archs
            )


def test_a_kernel_for_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    metadata = Metadata("scale", backend="cuda", archs=("9.0",))
    check_architecture(metadata, "torch-cuda")  # no GPU is here: nothing to compare with
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(NoVariantError, match=r"built for 9\.0, and the GPU here has compute capability 8\.0"):
        check_architecture(metadata, "torch-cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    check_architecture(metadata, "torch-cuda")
