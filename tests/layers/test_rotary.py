"""The CPU variant of `layers/rotary`, against transformers' functions in float64."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pytest
import torch

from kernels_hub.repository.bundled import bundled_folder, source_variant
from kernels_hub.repository.load import import_kernel
from tests.layers.checked_operators import opcheck
from tests.layers.rotary_cases import (
    DTYPES,
    OLMO,
    ORIGINALS,
    ORIGINALS_OF_NARROWER_ANGLES,
    SHAPES,
    check_backward,
    check_forward,
    make,
)
from tests.warm_process import run_script


@pytest.fixture(scope="module")
def package() -> ModuleType:
    return import_kernel(source_variant(bundled_folder() / "rotary", "cpu"))


LAYOUTS = ("heads first", "positions first", "strided")


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward(
    package: ModuleType, name: str, dtype: torch.dtype, shape: tuple[int, ...], layout: str
) -> None:
    check_forward(getattr(package, name), ORIGINALS[name], make(shape, dtype, layout))


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward(package: ModuleType, name: str, dtype: torch.dtype, layout: str) -> None:
    check_backward(getattr(package, name), ORIGINALS[name], make((2, 3, 1, 5, 6), dtype, layout))


@pytest.mark.parametrize("learned_angles", [False, True])
def test_gradcheck_and_second_order(package: ModuleType, learned_angles: bool) -> None:
    """Of the half-split form: the interleaved one computes in float32 whatever it gets, as its original."""
    q, k, cos, sin = (x.double() for x in make((1, 2, 1, 3, 4), torch.float32, "heads first"))
    inputs = [
        q.requires_grad_(),
        k.requires_grad_(),
        cos.requires_grad_(learned_angles),
        sin.requires_grad_(learned_angles),
    ]
    assert torch.autograd.gradcheck(package.apply_rotary_pos_emb, inputs)
    assert torch.autograd.gradgradcheck(package.apply_rotary_pos_emb, inputs)


@pytest.mark.parametrize("name", ORIGINALS)
def test_only_one_input_requires_a_gradient(package: ModuleType, name: str) -> None:
    q, k, cos, sin = make((1, 2, 1, 3, 4), torch.float32, "heads first")
    k.requires_grad_()
    out_q, out_k = getattr(package, name)(q, k, cos, sin)
    out_k.sum().backward()
    expected = k.detach().clone().requires_grad_()
    ORIGINALS[name](q, expected, cos, sin)[1].sum().backward()
    torch.testing.assert_close(k.grad, expected.grad)


def test_forward_mode(package: ModuleType) -> None:
    q, k, cos, sin = make((1, 2, 2, 4, 8), torch.float32, "heads first")
    tangent = torch.randn_like(q)
    for name, original in ORIGINALS.items():
        tangents = []
        for function in (getattr(package, name), original):
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(q, tangent)
                tangents.append(torch.autograd.forward_ad.unpack_dual(function(dual, k, cos, sin)[0]).tangent)
        torch.testing.assert_close(*tangents)


def test_dtypes_are_promoted_as_in_the_original(package: ModuleType) -> None:
    q, k, cos, sin = make((1, 2, 2, 4, 8), torch.bfloat16, "heads first")
    for name, original in ORIGINALS.items():
        found = getattr(package, name)(q, k, cos.float(), sin.float())
        expected = original(q, k, cos.float(), sin.float())
        assert [x.dtype for x in found] == [x.dtype for x in expected]
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_rounds_where_the_original_rounds(package: ModuleType, name: str, dtype: torch.dtype) -> None:
    q, k, cos, sin = make((2, 8, 4, 20, 64), dtype, "positions first")
    for scale in (1.0, 1e-6):  # the second in float16's subnormal range
        found, expected = (
            getattr(package, name)(scale * q, k, cos, sin),
            ORIGINALS[name](scale * q, k, cos, sin),
        )
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours == theirs).double().mean() > (0.99 if name.endswith("interleaved") else 0.9999)


@pytest.mark.parametrize("name", ORIGINALS)
def test_layout_and_unsqueeze_dim(package: ModuleType, name: str) -> None:
    q, k, cos, sin = make((2, 3, 1, 5, 6), torch.float32, "positions first")
    found, expected = getattr(package, name)(q, k, cos, sin), ORIGINALS[name](q, k, cos, sin)
    if not name.endswith("interleaved"):
        for ours, theirs in zip(found, expected, strict=True):
            assert [s for s, n in zip(ours.stride(), ours.shape, strict=True) if n > 1] == [
                s for s, n in zip(theirs.stride(), theirs.shape, strict=True) if n > 1
            ]
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    check_forward(getattr(package, name), ORIGINALS[name], [q, k, cos, sin], unsqueeze_dim=2)


@pytest.mark.parametrize("name", ORIGINALS)
def test_special_values(package: ModuleType, name: str) -> None:
    q, k, cos, sin = make((1, 1, 1, 2, 8), torch.float32, "heads first")
    q[0, 0, 0, 0], q[0, 0, 1, 3] = float("nan"), float("inf")
    found, expected = getattr(package, name)(q, k, cos, sin), ORIGINALS[name](q, k, cos, sin)
    torch.testing.assert_close(found[0], expected[0], equal_nan=True)


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_every_narrow_value(package: ModuleType, name: str, dtype: torch.dtype) -> None:
    """All 65536 patterns, NaNs with every payload included."""
    q = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).reshape(1, 8, 128, 64)
    for angle in (0.0, 0.7):  # exact, and rounded
        cos, sin = (
            torch.full((1, 128, 64), f(torch.tensor(angle)), dtype=dtype) for f in (torch.cos, torch.sin)
        )
        found, expected = getattr(package, name)(q, q, cos, sin), ORIGINALS[name](q, q, cos, sin)
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", ORIGINALS)
def test_compiles_whole(package: ModuleType, name: str) -> None:
    q, k, cos, sin = make((1, 2, 2, 4, 8), torch.float32, "positions first")
    torch._dynamo.reset()
    compiled = torch.compile(getattr(package, name), fullgraph=True, backend="aot_eager")
    check_forward(compiled, ORIGINALS[name], [q, k, cos, sin])
    check_backward(compiled, ORIGINALS[name], [q, k, cos, sin])


def test_operator_is_well_formed(package: ModuleType) -> None:
    q, k, cos, sin = make((1, 2, 2, 4, 8), torch.float32, "positions first")
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    operators = sys.modules[f"{package.__name__}.rotation"]
    opcheck(operators._ROTATE, (q, k, cos, sin, False, False))
    opcheck(operators._ROTATE_WITH_GRAD, (q.requires_grad_(), k, cos, sin, True, False))


def test_without_a_compiler_the_reference_serves(package: ModuleType) -> None:
    code = (
        "import torch\n"
        "from kernels_hub.repository.bundled import bundled_folder, source_variant\n"
        "from kernels_hub.repository.load import import_kernel\n"
        "from tests.layers.rotary_cases import ORIGINALS, check_backward, check_forward, make\n"
        "package = import_kernel(source_variant(bundled_folder() / 'rotary', 'cpu'))\n"
        "for name, original in ORIGINALS.items():\n"
        "    tensors = make((2, 3, 1, 5, 6), torch.float32, 'strided')\n"
        "    check_forward(getattr(package, name), original, tensors)\n"
        "    check_backward(getattr(package, name), original, tensors)\n"
    )
    environment = {
        **os.environ,
        "KERNELS_HUB_CXX": "none",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p) + os.pathsep + os.getcwd(),
    }
    done = run_script(code, env=environment)
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler" in done.stderr


# -- angles narrower than q, and wider types -------------------------------------------------------------


@pytest.fixture(params=[0, 1 << 40], ids=["kernel", "small"])
def small_part(request: pytest.FixtureRequest, package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of heads run on the kernel whatever their size, or on PyTorch."""
    rotation = sys.modules[package.apply_rotary_pos_emb.__module__]
    monkeypatch.setattr(rotation.kernels, "SMALL_PART", request.param)


@pytest.mark.usefixtures("small_part")
@pytest.mark.parametrize("model", ORIGINALS_OF_NARROWER_ANGLES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["heads first", "positions first", "strided"])
def test_narrower_angles(package: ModuleType, model: str, dtype: torch.dtype, layout: str) -> None:
    name, original = ORIGINALS_OF_NARROWER_ANGLES[model]
    for shape in ((1, 8, 8, 128, 64), (2, 3, 1, 5, 8), (1, 4, 2, 1, 128)):
        q, k, cos, sin = make(shape, dtype, layout)
        half = shape[-1] // 2
        tensors = [q, k, cos[..., :half], sin[..., :half]]
        check_forward(getattr(package, name), original, tensors)
        found, expected = getattr(package, name)(*tensors), original(*tensors)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("small_part")
@pytest.mark.parametrize("model", ORIGINALS_OF_NARROWER_ANGLES)
def test_gradients_of_narrower_angles(package: ModuleType, model: str) -> None:
    name, original = ORIGINALS_OF_NARROWER_ANGLES[model]
    q, k, cos, sin = make((2, 3, 1, 5, 8), torch.float32, "heads first")
    check_backward(getattr(package, name), original, [q, k, cos[..., :4], sin[..., :4]])


def test_one_angle_for_a_row_is_broadcast(package: ModuleType) -> None:
    q, k, cos, sin = make((2, 3, 1, 5, 8), torch.float32, "heads first")
    tensors = [q, k, cos[..., :1], sin[..., :1]]
    found = package.apply_rotary_pos_emb(*tensors)
    for ours, theirs in zip(found, ORIGINALS["apply_rotary_pos_emb"](*tensors), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_halves_of_another_width_are_refused(package: ModuleType) -> None:
    with pytest.raises(ValueError, match="expected cosines half as wide as q, got 6 and 6"):
        package.apply_rotary_pos_emb_of_halves(*make((2, 3, 1, 5, 6), torch.float32, "heads first"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wide", [False, True])
def test_cast_back(package: ModuleType, dtype: torch.dtype, wide: bool) -> None:
    q, k, cos, sin = make((2, 3, 1, 5, 8), dtype, "positions first")
    if wide:
        cos, sin = cos.float(), sin.float()
    check_forward(package.apply_rotary_pos_emb_cast_back, OLMO, [q, k, cos, sin])
    found, expected = package.apply_rotary_pos_emb_cast_back(q, k, cos, sin), OLMO(q, k, cos, sin)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
