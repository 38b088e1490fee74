"""A schedule as one C++ translation unit.

    int kh_run(void* const* buffers, const int64_t* sizes)                  all kernels of a call, in order
    int kh_prepare(void* const* buffers, const int64_t* sizes)              what runs once, on weights and constants
    int64_t kh_packed_bytes(int64_t which)                                  how long a packed operand is
    int kh_pack(int64_t which, void* const* buffers, const int64_t* sizes)  pack one operand, where prepare did not
    int kh_step(int64_t step, void* const* buffers, const int64_t* sizes)   one kernel of a call, to time it
    void kh_configure(int use_pool, int flush_denormals)                    native/parallel.h; neither, unless told

`buffers` are the pointers of `CppCode.buffers`, then of `CppCode.packed`, in that order; `sizes` are the symbols of
`CppCode.sizes`. Operands whose address is null when kh_prepare is called are left to kh_pack. The result is 0, or the
number of a message in `CppCode.messages` (1 is the first).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels_hub.compiler.codegen.c_text import Lines
from kernels_hub.compiler.codegen.cpp.anchors import header_of, print_anchor, runtime_of
from kernels_hub.compiler.codegen.cpp.fused_functions import with_fused_functions
from kernels_hub.compiler.codegen.cpp.nest import print_nest, print_rows, share_rows
from kernels_hub.compiler.codegen.cpp.packed import Packed, PackedOperands
from kernels_hub.compiler.codegen.cpp.regions import Part, print_branch, print_repeat
from kernels_hub.compiler.codegen.cpp.scalar import storage_type
from kernels_hub.compiler.codegen.cpp.text import Parameters
from kernels_hub.compiler.codegen.lines import origins
from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import size_name
from kernels_hub.compiler.ir.dims import dim_symbols
from kernels_hub.compiler.schedule.index import is_variable
from kernels_hub.compiler.schedule.kernel import Buffer, Kernel, Schedule
from kernels_hub.compiler.schedule.regions import Branch, Repeat
from kernels_hub.escaping import CommentText, Identifier


@dataclass(frozen=True)
class CppCode:
    """A translation unit and what its functions are called with.

    reads: buffers that a call reads as they are, not packed. runtime: source files that go with it.
    """

    source: str
    buffers: tuple[Buffer, ...]
    packed: tuple[Packed, ...]
    sizes: tuple[str, ...]
    messages: tuple[str, ...]
    steps: tuple[str, ...]
    reads: frozenset[Buffer]
    runtime: tuple[str, ...]


def generate(schedule: Schedule, *, round_ops: bool = False, headers: Sequence[str] = ()) -> CppCode:
    """The C++ of a schedule. Raises EngineError for a dtype or an op that C++ kernels cannot express.

    round_ops: float16 and bfloat16 values are rounded after every op, as the oracle does it, and not only where
    they are stored. headers: of the runtime, included as well.
    """
    return _Unit(schedule, round_ops=round_ops, headers=headers).program()


@dataclass(frozen=True)
class _FunctionCall:
    """A call of a kernel's function."""

    name: str
    parameters: Parameters
    origin: CommentText

    def text(self, names: Names) -> str:
        """As a statement."""
        return f"{self.name}({', '.join(self.parameters.passed(names))});"


def _pattern(text: str) -> str:
    """A text with its names by number, and without comments: equal for functions that do the same."""
    numbers: dict[str, str] = {}
    text = re.sub(r"  // .*", "", text)
    return re.sub(_NAMES, lambda one: numbers.setdefault(one[0], f"@{len(numbers)}"), text)


_NAMES = re.compile(r"\b(?:(?:in|w|c|out|t|p)_\w+|packed\d+|i\d+_\w+|k\d+_\w+|kernel_\w+)\b")


class _Unit:
    """One translation unit while it is written."""

    def __init__(self, schedule: Schedule, *, round_ops: bool, headers: Sequence[str]) -> None:
        self.schedule, self.round_ops, self.headers = schedule, round_ops, headers
        self.names = Names(schedule.buffers, schedule.choices)
        self.packed = PackedOperands()
        self.taken: set[str] = set()
        self.used: dict[str, None] = {}
        self.functions: dict[str, str] = {}

    def program(self) -> CppCode:
        kernels = Lines()
        prepared = [self._kernel(one, kernels, PackedOperands(closed=True)) for one in self.schedule.prepare]
        called = [self._kernel(kernel, kernels, self.packed) for kernel in self.schedule.kernels]
        symbols = dim_symbols(
            dim for buffer in self.schedule.buffers for dim in (*buffer.shape, *buffer.strides)
        )
        names = {symbol.name for symbol in symbols if not is_variable(symbol)} | set(self.used)
        sizes = tuple(sorted(names))
        host = Lines()
        self._host(host, prepared, called, sizes)
        nests = [nest for one in (*self.schedule.prepare, *self.schedule.kernels) for nest in one.nests]
        runtime = tuple(sorted({file for nest in nests for file in runtime_of(nest)}))
        included = sorted({header for nest in nests if (header := header_of(nest)) is not None})
        head = [
            f"// {CommentText(self.schedule.name)}: generated from a schedule of {len(called)} kernels.",
            *(f'#include "{one}"' for one in ("scalar.h", *self.headers, *included)),
            "",
            "",
        ]
        return CppCode(
            "\n".join(head) + kernels.text() + host.text(),
            self.schedule.buffers,
            tuple(self.packed),
            sizes,
            tuple(self.names.messages),
            tuple(kernel.name for kernel in self.schedule.kernels),
            frozenset(buffer for call in called for buffer in call.parameters.reads),
            runtime,
        )

    def _kernel(self, kernel: Kernel, lines: Lines, packed: PackedOperands) -> _FunctionCall:
        """Write the functions of a kernel, unless there are some with the same text but for names."""
        wanted = Identifier(kernel.name)
        if not re.match(r"k\d+_", wanted):  # no word of C++, no function of its libraries
            wanted = Identifier(f"kernel_{wanted}")
        name = wanted
        while name in self.taken:
            name = Identifier(f"{wanted[:50]}_{len(self.taken)}")
        self.taken.add(name)
        mine = Lines()
        if isinstance(kernel, Repeat):
            parameters = self._repeat(name, kernel, lines, mine, packed)
        elif isinstance(kernel, Branch):
            parameters = self._branch(name, kernel, lines, mine, packed)
        else:
            parameters = self._functions(name, kernel, mine, packed)
        self.used.update(parameters.sizes)
        origin = origins(kernel.origins)
        known = self.functions.setdefault(_pattern(mine.text()), name)
        if known == name:
            if origin:
                lines.comment(origin)
            lines.lines += [*mine.lines, ""]
        return _FunctionCall(known, parameters, origin)

    def _functions(self, name: str, kernel: Kernel, lines: Lines, packed: PackedOperands) -> Parameters:
        nests = kernel.nests if self.round_ops else tuple(map(with_fused_functions, kernel.nests))
        if share_rows(nests):
            return print_rows(name, nests, lines, self.names, round_ops=self.round_ops)
        parts: list[tuple[str, Parameters]] = []
        for number, nest in enumerate(nests):
            part = name if len(nests) == 1 else f"{name}_{number}"
            if number:
                lines.add()
            if nest.anchor is None:
                parameters = print_nest(part, nest, lines, self.names, round_ops=self.round_ops)
            else:
                parameters = print_anchor(part, nest, lines, self.names, packed, round_ops=self.round_ops)
            parts.append((part, parameters))
        together = Parameters()
        for _, parameters in parts:
            together.merge(parameters)
        if len(parts) > 1:
            lines.add()
            with lines.block(f"static void {name}({', '.join(together.declared(self.names))})"):
                for part, parameters in parts:
                    lines.add(f"{part}({', '.join(parameters.passed(self.names))});")
        return together

    def _repeat(
        self, name: str, repeat: Repeat, before: Lines, lines: Lines, packed: PackedOperands
    ) -> Parameters:
        """The function of a loop, and before it those of the kernels of its body."""
        for window in repeat.windows():
            self.names.add(window)
        return print_repeat(name, repeat, self._part(repeat.turn, before, packed), lines, self.names)

    def _branch(
        self, name: str, branch: Branch, before: Lines, lines: Lines, packed: PackedOperands
    ) -> Parameters:
        """The function of two branches, and before it those of their kernels."""
        then, otherwise = (self._part(one, before, packed) for one in (branch.then, branch.otherwise))
        return print_branch(name, branch, then, otherwise, lines, self.names)

    def _part(self, kernels: Sequence[Kernel], lines: Lines, packed: PackedOperands) -> Part:
        """Write the functions of kernels that another calls."""
        calls = [self._kernel(kernel, lines, packed) for kernel in kernels]
        together = Parameters()
        for call in calls:
            together.merge(call.parameters)
        return Part([(call.text(self.names), call.origin) for call in calls], together)

    def _host(
        self,
        lines: Lines,
        prepared: Sequence[_FunctionCall],
        called: Sequence[_FunctionCall],
        sizes: tuple[str, ...],
    ) -> None:
        order = {buffer: index for index, buffer in enumerate(self.schedule.buffers)}
        self._pack(lines, order, sizes)
        with lines.block('extern "C" int kh_prepare(void* const* buffers, const int64_t* sizes)'):
            self._arguments(lines, prepared, order, sizes)
            for call in prepared:
                lines.add(call.text(self.names), call.origin)
            if count := len(tuple(self.packed)):
                with lines.block(f"for (int64_t which = 0; which < {count}; ++which)"):
                    lines.add(
                        f"if (buffers[{len(order)} + which] != nullptr) kh_pack(which, buffers, sizes);"
                    )
            lines.add("return failure;")
        lines.add()
        with lines.block('extern "C" int64_t kh_packed_bytes(int64_t which)'):
            with lines.block("switch (which)"):
                for position, one in enumerate(self.packed):
                    lines.add(f"case {position}: return 4 * ({one.size});")
            lines.add("return 0;")
        lines.add()
        with lines.block('extern "C" void kh_configure(int use_pool, int flush_denormals)'):
            lines.add("kh::use_pool = use_pool != 0;")
            lines.add("kh::flush_denormals = flush_denormals != 0;")
        lines.add()
        with lines.block('extern "C" int kh_run(void* const* buffers, const int64_t* sizes)'):
            lines.add("const kh::CallState state;")
            self._arguments(lines, called, order, sizes)
            for call in called:
                lines.add(call.text(self.names), call.origin)
            lines.add("return failure;")
        lines.add()
        with lines.block('extern "C" int kh_step(int64_t step, void* const* buffers, const int64_t* sizes)'):
            lines.add("const kh::CallState state;")
            self._arguments(lines, called, order, sizes)
            with lines.block("switch (step)"):
                for position, call in enumerate(called):
                    lines.add(f"case {position}: {call.text(self.names)} break;")
            lines.add("return failure;")

    def _pack(self, lines: Lines, order: dict[Buffer, int], sizes: tuple[str, ...]) -> None:
        """The function that packs an operand."""
        with lines.block('extern "C" int kh_pack(int64_t which, void* const* buffers, const int64_t* sizes)'):
            self._arguments(lines, (), order, sizes, [one.source for one in self.packed])
            if tuple(self.packed):
                lines.add(f"float* const packed = static_cast<float*>(buffers[{len(order)} + which]);")
                with lines.block("switch (which)"):
                    for index, one in enumerate(self.packed):
                        with lines.block(f"case {index}:"):
                            lines.add(one.fill.replace("$to", "packed"))
                            lines.add("break;")
            lines.add("return failure;")
        lines.add()

    def _arguments(
        self,
        lines: Lines,
        calls: Iterable[_FunctionCall],
        order: dict[Buffer, int],
        sizes: tuple[str, ...],
        more: Iterable[Buffer] = (),
    ) -> None:
        """Sizes and typed pointers that some functions are given."""
        together = Parameters()
        for call in calls:
            together.merge(call.parameters)
        for buffer in more:
            together.reads[buffer] = None
        for index, size in enumerate(sizes):
            if size in together.sizes:
                lines.add(f"const int64_t {size_name(size)} = sizes[{index}];")
        for buffer in sorted({**together.reads, **together.writes}, key=order.__getitem__):
            constant = "" if buffer in together.writes else "const "
            kind = f"{constant}{storage_type(buffer.dtype)}*"
            shape = ", ".join(map(str, buffer.shape))
            lines.add(
                f"const auto {self.names.buffers[buffer]} = static_cast<{kind}>(buffers[{order[buffer]}]);",
                CommentText(f"{buffer.dtype}[{shape}]"),
            )
        for index, operand in enumerate(self.packed):
            if operand.name in together.packed:
                address = f"static_cast<const float*>(buffers[{len(order) + index}])"
                lines.add(f"const auto {operand.name} = {address};")
        lines.add("int failure = 0;")
