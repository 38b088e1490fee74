"""Complex numbers and Fourier transforms of PyTorch, against PyTorch: on the oracle, and compiled without any complex op."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels_hub.compiler import compile, evaluate, load_executable
from kernels_hub.compiler.autodiff import differentiate
from kernels_hub.compiler.errors import ImportFailure, PlanError
from kernels_hub.compiler.importers.aten_ops.call import HANDLERS
from kernels_hub.compiler.importers.aten_ops.complex import MIXING, PARTWISE
from kernels_hub.compiler.importers.torch_export import import_torch
from kernels_hub.compiler.runtime.toolchain import find_compiler
from tests.combinations import every_value
from tests.compiler.autodiff.gradcheck import gradients
from tests.compiler.importers.torch_programs import Function, check_function

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.export's own

WINDOW = torch.hann_window(16)


def reals(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def complexes(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    part = torch.float32 if dtype is torch.complex64 else torch.float64
    return torch.view_as_complex(reals(*shape, 2, dtype=part))


TRANSFORMS = {
    "rfft": (lambda x: torch.fft.rfft(x), reals(3, 10)),
    "rfft of an odd length, by the root": (lambda x: torch.fft.rfft(x, norm="ortho"), reals(3, 11)),
    "rfft, padded, along another axis": (lambda x: torch.fft.rfft(x, n=16, dim=0), reals(11, 3)),
    "rfft, cut": (lambda x: torch.fft.rfft(x, n=6), reals(3, 10)),
    "irfft": (lambda x: torch.fft.irfft(x, n=10), complexes(3, 6)),
    "irfft of an odd length": (lambda x: torch.fft.irfft(x, n=9), complexes(3, 5)),
    "fft": (lambda x: torch.fft.fft(x), complexes(3, 12)),
    "fft of real samples": (lambda x: torch.fft.fft(x), reals(3, 12)),
    "ifft, scaled forward": (lambda x: torch.fft.ifft(x, norm="forward"), complexes(3, 12)),
    "fft of one sample": (lambda x: torch.fft.fft(x), complexes(3, 1)),
    "fft in double precision": (lambda x: torch.fft.fft(x), complexes(3, 12, dtype=torch.complex128)),
    "fft2": (lambda x: torch.fft.fft2(x), complexes(2, 4, 6)),
    "fftn": (lambda x: torch.fft.fftn(x), reals(2, 3, 4)),
    "rfft2 and back": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 0.5, s=(4, 6)), reals(2, 4, 6)),
    "hfft": (lambda x: torch.fft.hfft(x), complexes(2, 7)),
    "ihfft": (lambda x: torch.fft.ihfft(x), reals(2, 8)),
    "shifted": (lambda x: torch.fft.ifftshift(torch.fft.fftshift(torch.fft.fft(x))), reals(3, 8)),
    "many samples": (lambda x: torch.fft.fft(x), complexes(2, 1200)),
    "rfft and irfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), reals(2, 1200)),
    "irfft of many samples, an odd number": (lambda x: torch.fft.irfft(x, n=1125), complexes(2, 563)),
    "a prime length": (lambda x: torch.fft.rfft(x), reals(1, 521)),
    "a large prime factor": (lambda x: torch.fft.rfft(x), reals(1, 2 * 4099)),
    "a mean of both axes": (
        lambda x: torch.fft.ifft2(torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2)),
        reals(2, 9, 8),
    ),
    "stft": (lambda x: torch.stft(x, 16, window=WINDOW, return_complex=True), reals(2, 64)),
    "stft, two-sided": (
        lambda x: torch.stft(x, 16, 5, normalized=True, onesided=False, return_complex=True, window=WINDOW),
        reals(2, 64),
    ),
    "stft and istft": (
        lambda x: torch.istft(
            torch.stft(x, 16, window=WINDOW, return_complex=True), 16, window=WINDOW, length=64
        ),
        reals(2, 64),
    ),
    "a convolution": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x, n=32) * torch.fft.rfft(x[..., :5], n=32), n=32)[..., :20],
        reals(2, 20),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform(name: str):
    function, x = TRANSFORMS[name]
    check_function(function, x)


ARITHMETIC = {
    "add": lambda x, y: x + y,
    "add a real tensor": lambda x, y: x + y.real,
    "add a real number": lambda x, y: x + 2,
    "add a complex number": lambda x, y: x + (1 - 2j),
    "subtract": lambda x, y: torch.sub(x, y, alpha=3),
    "subtract from": lambda x, y: 1j - x,
    "multiply": lambda x, y: x * y,
    "multiply by a real tensor": lambda x, y: x.imag * y,
    "divide": lambda x, y: x / y,
    "divide by a real tensor": lambda x, y: x / y.real,
    "divide a real one": lambda x, y: x.real / y,
    "reciprocal": lambda x, y: x.reciprocal(),
    "power": lambda x, y: x**3,
    "square": lambda x, y: x.square(),
    "negative": lambda x, y: -x,
    "exp": lambda x, y: x.exp(),
    "log": lambda x, y: x.log(),
    "abs": lambda x, y: x.abs(),
    "angle": lambda x, y: x.angle(),
    "angle of a real tensor": lambda x, y: x.real.angle(),
    "sgn": lambda x, y: x.sgn(),
    "conj": lambda x, y: x.conj() * y.conj(),
    "parts": lambda x, y: (x.real * 2, x.imag * 3),
    "equal": lambda x, y: (x == y, x != y, x == x),
    "product": lambda x, y: x @ y,
    "product with a real matrix": lambda x, y: (x @ y.real.to(x.dtype), x.conj().T @ y),
    "products of a batch": lambda x, y: torch.bmm(x[None], y[None]),
    "cast": lambda x, y: (x.to(torch.complex128), y.real.to(x.dtype), x.to(torch.float32)),
    "polar": lambda x, y: torch.polar(x.abs(), y.angle()),
    "complex": lambda x, y: torch.complex(x.real, y.imag),
    "where": lambda x, y: torch.where(x.abs() > 1, x, y),
    "concatenate with a real tensor": lambda x, y: torch.cat([x, y.real.to(x.dtype)], 1),
    "views": lambda x, y: (x.T, x[1:], x.reshape(-1), x.flip(0), x[:, None].expand(3, 2, 3), x.unbind(0)),
    "sums": lambda x, y: (x.sum(), x.mean(0), x.cumsum(1)),
    "zeros": lambda x, y: torch.zeros(3, 3, dtype=x.dtype) + x.real,
    "full": lambda x, y: torch.full((3,), 1 + 2j, dtype=x.dtype) * x,
    "padding": lambda x, y: torch.nn.functional.pad(x, (1, 2)),
    "index": lambda x, y: (
        x[torch.tensor([2, 0])],
        torch.gather(x, 1, torch.tensor([[0, 2], [1, 1], [2, 0]])),
    ),
    "view_as_real": lambda x, y: torch.view_as_real(x * y).flatten(1),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str):
    check_function(ARITHMETIC[name], complexes(3, 3), complexes(3, 3) * 2 - 1)


def test_sizes_that_are_symbols():
    dims = {"args": ({0: torch.export.Dim("batch", min=2)},)}
    others = [((reals(5, 10),), {})]
    check_function(lambda x: torch.fft.rfft(x).abs(), reals(3, 10), dynamic_shapes=dims, others=others)


def test_not_finite_samples_stay_in_their_row():
    x = reals(4, 12)
    x[1, 3], x[2, 5] = torch.nan, torch.inf
    for function in (torch.fft.rfft, torch.fft.fft):
        expected = function(x)
        graph = import_torch(Function(lambda x, function=function: function(x).abs()), (x,))
        found = evaluate(graph, [x.numpy()])["output"]
        assert np.isfinite(found[[0, 3]]).all()
        assert np.isnan(found[1]).all()
        assert not np.isfinite(found[2]).any()
        assert not expected[1:3].isfinite().any()


def test_weights_may_be_complex():
    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.turn = torch.nn.Parameter(complexes(70, 70))

        def forward(self, x):
            return torch.view_as_real(torch.view_as_complex(x) * self.turn)

    module, x = Turned(), reals(70, 70, 2)
    graph = import_torch(module, (x,))
    assert str(graph.parameters["turn"].type) == "complex64[70, 70]"
    found = evaluate(graph, [x.numpy()])["output"]
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["stft", "a convolution", "rfft and irfft", "rotary"])
def test_no_engine_needs_complex_numbers(name: str):
    """`cpp`, which has none, takes what has real inputs and results."""
    angles = torch.polar(torch.ones(8, 4), torch.arange(32.0).reshape(8, 4))
    functions = {
        "rotary": (
            lambda x: torch.view_as_real(
                torch.view_as_complex(x.reshape(2, 8, 4, 2)) * torch.polar(angles.real, angles.imag)
            ),
            reals(2, 8, 8),
        ),
        "stft": (lambda x: TRANSFORMS["stft"][0](x).abs(), TRANSFORMS["stft"][1]),
    }
    function, x = functions.get(name) or TRANSFORMS[name]
    run = compile((Function(function), (x,)), "cpu", engines=("cpp",))
    torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=2e-5)


CALLED = {
    "as it is": lambda x: x,
    "conjugated": lambda x: x.conj(),
    "negated": lambda x: torch._neg_view(x),
    "conjugated and negated": lambda x: torch._neg_view(x.conj()),
    "transposed": lambda x: x.T.contiguous().T,
    "backwards": lambda x: x.flip(0)[::2].repeat(2, 1)[: len(x)],
    "of every other": lambda x: torch.stack([x, x + 1], -1)[..., 1],
    "a parameter": lambda x: torch.nn.Parameter(x),
}


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
@every_value(
    name=["transform", "product", "parts", "views", "real", "constant", "joined"],
    dtype=[torch.complex64, torch.complex128],
)
def test_complex_arguments_and_results_in_cpp(name: str, dtype: torch.dtype):
    """Whatever memory an argument has, however often it comes, also after others of the same shape."""
    functions = {
        "transform": lambda x, y: torch.fft.fft(x),
        "product": lambda x, y: x @ y,
        "parts": lambda x, y: (x.real, y.imag, x * y),
        "views": lambda x, y: (x, x.conj(), y.T, x[1:].reshape(-1)),
        "real": lambda x, y: (x.abs() * 2, torch.fft.ifft(y).real),
        "constant": lambda x, y: x * torch.tensor([1j, 2, 3 - 1j, 0], dtype=x.dtype),
        "joined": lambda x, y: torch.stack([x, y, x + y], -1).flatten(1),
    }
    function, allowed = functions[name], 1e-5 if dtype is torch.complex64 else 1e-12
    given = complexes(4, 4, dtype=dtype), complexes(4, 4, dtype=dtype) * 2j - 1
    run = compile((Function(function), given), "cpu", engines=("cpp",))
    for change in (*CALLED.values(), *CALLED.values()):
        args = tuple(map(change, given))
        found, expected = run(*args), function(*args)
        for one, other in zip(
            *([one] if torch.is_tensor(one) else one for one in (found, expected)), strict=True
        ):
            torch.testing.assert_close(one, other.resolve_conj().detach(), rtol=allowed, atol=allowed)
    for _ in range(3):
        found = run(*(x.numpy() for x in given))
        first = found if isinstance(found, np.ndarray) else found[0]
        expected = function(*given)
        np.testing.assert_allclose(
            first, expected if torch.is_tensor(expected) else expected[0], rtol=allowed, atol=allowed
        )


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_complex_numbers_that_are_not_finite_or_none_in_cpp():
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([complex(inf, 1), complex(1, -inf), complex(nan, 0), complex(0, nan), 0j, -0.0 + 1j])
    function = lambda x: (x.abs(), torch.view_as_real(x), x + 1, x.real.isnan())  # noqa: E731
    for one in (x, x[:0]):
        run = compile((Function(function), (one,)), "cpu", engines=("cpp",))
        for found, expected in zip(run(one), function(one), strict=True):
            torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")
def test_complex_sizes_that_are_symbols_in_cpp(tmp_path: Path):
    dims = {"args": ({0: torch.export.Dim("batch", min=2)},)}
    run = compile(
        (Function(lambda x: torch.fft.fft(x) * x), (complexes(3, 10),)), "cpu", engines=("cpp",), dims=dims
    )
    run.save(tmp_path / "run.khplan")
    for called in (run, load_executable(tmp_path / "run.khplan", "cpu")):
        for rows in (3, 7):
            x = complexes(rows, 10)
            torch.testing.assert_close(called(x), torch.fft.fft(x) * x, rtol=1e-5, atol=1e-5)
            out = torch.empty(10, rows, dtype=x.dtype).T
            called.execute((x,), outputs=(out,))
            torch.testing.assert_close(out, torch.fft.fft(x) * x, rtol=1e-5, atol=1e-5)
            for lazy in (out.conj(), torch._neg_view(out)):
                with pytest.raises(PlanError, match="conjugated or negated"):
                    called.execute((x,), outputs=(lazy,))


def test_extreme_magnitudes():
    """No square overflows, none is lost, and infinities and NaN are where they are in PyTorch."""
    values = torch.tensor([3e30 + 4e30j, 3e-30 - 4e-30j, 0j, complex("inf+1j"), complex("nan+1j"), -0.0 + 2j])
    check_function(lambda x: (x.abs(), x.sgn()[:3]), values.to(torch.complex64))
    check_function(lambda x, y: x / y, values[:2].to(torch.complex64), values[:2].to(torch.complex64) * 2)


def test_the_gradient_of_a_magnitude_is_0_at_0():
    """As PyTorch's; elsewhere it is the direction, whichever part is larger, 0, or tiny."""
    rows = [[0, 0], [3, 4], [-4, 3], [2, 0], [0, -2], [1, 1], [1e-200, -1e-200], [1e200, 3e200]]
    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    graph = import_torch(Function(lambda x: torch.view_as_complex(x).abs()), (x.detach(),))
    torch.view_as_complex(x).abs().backward(torch.arange(1.0, 9, dtype=torch.float64))
    cotangents = {"output": np.arange(1.0, 9)}
    (found,) = gradients(differentiate(graph), {"args_0": x.detach().numpy()}, cotangents).values()
    np.testing.assert_allclose(found, x.grad, rtol=1e-14)


@pytest.mark.parametrize(
    ("function", "x", "reason"),
    [
        (lambda x: x**0.5, complexes(3), "to the power of 0.5"),
        (lambda x: x.tanh(), complexes(3), "tanh.default"),
        (lambda x: x.prod(), complexes(3), "prod.default"),
    ],
)
def test_what_is_refused(function, x, reason: str):
    with pytest.raises(ImportFailure, match=reason):
        import_torch(Function(function), (x,))


def test_a_length_that_is_a_symbol_is_refused():
    dims = {"args": ({1: torch.export.Dim("n", min=4, max=64)},)}
    with pytest.raises(ImportFailure, match=r"the length of a Fourier transform is \w+, no number"):
        import_torch(Function(torch.fft.fft), (reals(3, 10),), dynamic_shapes=dims)


def test_the_tables_name_overloads_of_aten():
    for name in (*PARTWISE, *MIXING, *(one for one in HANDLERS if "fft" in one)):
        packet, overload = name.split(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload), name
