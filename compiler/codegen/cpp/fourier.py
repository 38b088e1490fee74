"""Fourier transforms: a call of the runtime, which hands out the frequencies, or samples, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.epilogue import print_epilogue
from kernels_hub.compiler.codegen.cpp.scalar import Cpp, storage_type
from kernels_hub.compiler.codegen.cpp.text import Parameters, pointer, print_nothing
from kernels_hub.compiler.codegen.loops import is_empty
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.ir.dims import Dim
from kernels_hub.compiler.schedule.index import Ranges
from kernels_hub.compiler.schedule.kernel import FourierTransform, Nest

_FORMS = {"full": "kFull", "half": "kHalf", "real": "kReal"}


def print_transform(name: str, nest: Nest, lines: Lines, names: Names, *, round_ops: bool) -> Parameters:
    """Write the function of a nest whose anchor is a Fourier transform."""
    anchor = nest.anchor
    assert isinstance(anchor, FourierTransform)
    parameters = Parameters.of(nest)
    if is_empty(nest.outer):
        print_nothing(name, parameters, lines, names)
        return parameters
    index = Cpp(Ranges(nest.outer)).index
    real, imaginary = anchor.real, anchor.imaginary
    kind = storage_type(anchor.dtype)

    def array(called: str, numbers: Sequence[Dim]) -> None:
        lines.add(f"const int64_t {called}[{len(numbers)}] = {{{', '.join(map(index, numbers))}}};")

    with lines.block(f"static void {name}({', '.join(parameters.declared(names))})"):
        array("dims", real.shape)
        array("real", real.strides)
        second = "nullptr, nullptr"
        if imaginary is not None:
            array("imaginary", imaginary.strides)
            second = f"{pointer(imaginary, names, index)}, imaginary"
        lines.add(
            f"const kh::Fourier shape{{kh::FourierForm::{_FORMS[anchor.form]}, {str(anchor.inverse).lower()}, "
            f"{anchor.samples}, {anchor.scale!r}, {len(real.shape)}, {anchor.axis}, dims}};"
        )
        lines.add(f"const kh::FourierInputs<{kind}> in{{{pointer(real, names, index)}, real, {second}}};")
        lines.add(
            f"kh::transform(shape, in, [=](int64_t, int64_t row, int64_t j, int64_t count, const {kind}* acc) {{"
        )
        counted = [("row", len(nest.outer) - 1)]
        print_epilogue(lines, names, nest, counted, round_ops=round_ops, tail="});", dtype=anchor.dtype)
    return parameters
