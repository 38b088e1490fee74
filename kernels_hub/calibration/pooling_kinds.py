"""The kinds of pooling that are measured, by window and stride: "3x3/2". A row is an element of the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kernels_hub.calibration.kind import ELEMENTS, Kind

if TYPE_CHECKING:
    from torch import Tensor, nn

_CHANNELS, _LEAST_PIXELS = 64, 16


class Windows(Protocol):
    """What is read of a module; a maximum has a dilation, too."""

    kernel_size: int | tuple[int, int]
    stride: int | tuple[int, int]


@dataclass(frozen=True)
class Pooling:
    """What a kind consists of, for a class of torch.nn. forms: those that `kernels-hub calibrate` measures."""

    name: str
    forms: tuple[str, ...]

    @property
    def sizes(self) -> list[tuple[str, int, int]]:
        """(form, depth, columns), of which an activation has one each."""
        return [(form, 1, 1) for form in self.forms]

    @staticmethod
    def read(module: Windows) -> tuple[str, int, int, int]:
        """The form of a module, its depth and columns, elements a row."""
        kernel, stride = _text(module.kernel_size), _text(module.stride)
        is_dilated = _text(getattr(module, "dilation", 1)) != "1x1"
        down, _, right = stride.partition("x")
        return f"{kernel}/{down if down == right else stride}{' dilated' if is_dilated else ''}", 1, 1, 1

    def build(self, form: str, _: int, __: int) -> nn.Module:
        """A module of a form, padded where windows overlap, as models have it."""
        from torch import nn

        kernel, stride = self._window(form)
        return getattr(nn, self.name)(kernel, stride, _padding(kernel, stride))  # type: ignore[no-any-return]

    @staticmethod
    def example(_: str, __: int, ___: int, rows: int) -> list[tuple[tuple[Tensor, ...], dict[str, object]]]:
        """An image of so many elements, a power of four, in 64 channels or fewer."""
        import torch

        channels, side = _image(rows)
        return [((torch.randn(1, channels, side, side),), {})]

    def work(self, form: str, _: int, __: int, rows: int) -> float:
        """Comparisons or additions of a call."""
        kernel, stride = self._window(form)
        if kernel > _image(rows)[1] + 2 * _padding(kernel, stride):
            return float("inf")  # the image is smaller than the window
        return rows * kernel**2 / stride**2

    def _window(self, form: str) -> tuple[int, int]:
        kernel, _, stride = form.partition("/")
        rows, _, columns = kernel.partition("x")
        if rows != columns or not stride.isdigit():
            raise ImportError(f"no {self.name} of the form {form!r} is measured")
        return int(rows), int(stride)


def _padding(kernel: int, stride: int) -> int:
    return kernel // 2 if stride < kernel else 0


def _image(elements: int) -> tuple[int, int]:
    """Channels and pixels a side."""
    channels = min(_CHANNELS, elements // _LEAST_PIXELS)
    return channels, round((elements / channels) ** 0.5)


def _kind(pooling: Pooling) -> Kind:
    return Kind(pooling.read, pooling.build, pooling.example, ELEMENTS, pooling.sizes, pooling.work)


POOLINGS: Mapping[str, Kind] = {
    "MaxPool2d": _kind(Pooling("MaxPool2d", ("3x3/2", "2x2/2", "3x3/1", "5x5/1"))),
    "AvgPool2d": _kind(Pooling("AvgPool2d", ("2x2/2", "3x3/1", "3x3/2"))),
}


def _text(pair: int | tuple[int, int]) -> str:
    rows, columns = (pair, pair) if isinstance(pair, int) else (pair[0], pair[-1])
    return f"{rows}x{columns}"
