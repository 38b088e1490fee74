"""The kinds of pooling that are measured."""

from __future__ import annotations

import pytest
from torch import nn

from kernels_hub.calibration.gain_table import Shape
from kernels_hub.calibration.kinds import KINDS, class_of, read_shape, rows_of


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.MaxPool2d(3, 2, 1), "MaxPool2d 3x3/2"),
        (nn.MaxPool2d((3, 3), (2, 2), ceil_mode=True), "MaxPool2d 3x3/2"),
        (nn.MaxPool2d([2, 2]), "MaxPool2d 2x2/2"),
        (nn.MaxPool2d([2]), "MaxPool2d 2x2/2"),
        (nn.MaxPool2d(5, 1, (2, 2), dilation=(1, 1)), "MaxPool2d 5x5/1"),
        (nn.MaxPool2d((3, 2), 2), "MaxPool2d 3x2/2"),
        (nn.MaxPool2d(3, (2, 1)), "MaxPool2d 3x3/2x1"),
        (nn.MaxPool2d(3, 1, dilation=2), "MaxPool2d 3x3/1 dilated"),
        (nn.AvgPool2d(2), "AvgPool2d 2x2/2"),
        (nn.AvgPool2d(3, 1, 1, count_include_pad=False), "AvgPool2d 3x3/1"),
        (nn.AvgPool2d(7, 1), "AvgPool2d 7x7/1"),
    ],
    ids=str,
)
def test_forms(module: nn.Module, kind: str) -> None:
    layer = kind.partition(" ")[0]
    expected = Shape(kind, "float32", 1, 1)
    assert read_shape(layer, module) == (expected, 1)
    assert class_of(expected) == expected
    rows, _, columns = kind.partition(" ")[2].partition("/")[0].partition("x")
    is_measured = rows == columns and "dilated" not in kind and "/2x1" not in kind
    assert bool(rows_of(expected)) == is_measured, "what cannot be built from a form stays unknown"


@pytest.mark.parametrize("wrong", [2.5, (), None])
def test_what_pytorch_will_refuse_has_no_form(wrong: object) -> None:
    assert read_shape("AvgPool2d", nn.AvgPool2d(wrong, 1)) is None


@pytest.mark.parametrize("layer", ["MaxPool2d", "AvgPool2d"])
def test_examples_have_as_many_elements_as_they_are_measured_for(layer: str) -> None:
    for form, depth, columns in KINDS[layer].sizes:
        module = KINDS[layer].build(form, depth, columns)
        rows = rows_of(Shape(f"{layer} {form}", "float32", depth, columns))
        assert rows[0] == 256 and rows[-1] == 4**11
        for count in rows[:5]:
            for (image,), named in KINDS[layer].example(form, depth, columns, count):
                assert image.numel() == count and not named
                assert module(image).numel() > 0


def test_a_form_that_is_not_square_is_not_built() -> None:
    with pytest.raises(ImportError, match="no AvgPool2d of the form '7x1/1' is measured"):
        KINDS["AvgPool2d"].build("7x1/1", 1, 1)


def test_images_are_no_smaller_than_windows() -> None:
    shape = Shape("AvgPool2d 7x7/7", "float32", 1, 1)
    assert rows_of(shape)[0] == 1 << 12  # 8 x 8 pixels in 64 channels


def test_overlapping_windows_are_padded_as_in_models() -> None:
    padding = {form: KINDS["MaxPool2d"].build(form, 1, 1).padding for form, _, _ in KINDS["MaxPool2d"].sizes}
    assert padding == {"3x3/2": 1, "2x2/2": 0, "3x3/1": 1, "5x5/1": 2}
