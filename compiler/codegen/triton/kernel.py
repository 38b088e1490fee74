"""Builder of one Triton kernel, and of its launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernels_hub.compiler.codegen.names import Names
from kernels_hub.compiler.codegen.scalar import Indices, size_name
from kernels_hub.compiler.codegen.triton.options import Tile
from kernels_hub.compiler.codegen.triton.text import Arguments, Lines
from kernels_hub.compiler.ir.dims import Dim, product
from kernels_hub.compiler.schedule.index import Loop
from kernels_hub.compiler.schedule.kernel import Nest

MOST_INT32 = (1 << 31) - (1 << 20)


class Host(Indices):
    """Sizes as Python expressions, which round down as dims do."""

    def extremum(self, kind: str, args: Sequence[str]) -> str:
        """min or max of several."""
        return f"{kind}({', '.join(args)})"

    def quotient(self, kind: str, a: str, b: str, *, natural: bool) -> str:  # noqa: ARG002
        """floordiv or mod, rounded down."""
        return f"({a} {'//' if kind == 'floordiv' else '%'} {b})"


HOST = Host()


@dataclass(frozen=True)
class Launch:
    """A kernel, what it is given, and how many programs of it run: lines of Python, run where `condition` holds."""

    kernel: str
    arguments: Arguments
    condition: str
    before: tuple[str, ...]
    grid: tuple[str, ...]
    constants: Mapping[str, str]
    """Compile-time parameters, and `num_warps`, `num_stages`."""

    otherwise: Launch | None = None
    """What runs where the condition does not hold."""


@dataclass
class KernelText:
    """A kernel of a nest. more: dims in its text that are not the nest's."""

    name: str
    nest: Nest
    lines: Lines
    names: Names
    more: tuple[Dim, ...] = ()
    arguments: Arguments = field(init=False)
    index: str = field(init=False)
    """The dtype of positions."""

    def __post_init__(self) -> None:
        self.arguments = Arguments.of(self.nest, self.more)
        counts = self.counts()
        if all(isinstance(count, int) for count in counts):
            self.index = "tl.int32" if max(counts, default=0) <= MOST_INT32 else "tl.int64"
        else:
            self.index = "INDEX"

    def counts(self) -> list[Dim]:
        """Numbers that positions stay below."""
        return [
            product(loop.extent for loop in (*self.nest.outer, *self.nest.inner)),
            *(buffer.size for buffer in self.arguments.buffers),
            *self.more,
        ]

    @contextmanager
    def define(self, constants: Iterable[str]) -> Iterator[None]:
        """The function around its lines."""
        wanted = [*constants, *(["INDEX"] if self.index == "INDEX" else [])]
        parameters = [*self.arguments.names(self.names), *(f"{one}: tl.constexpr" for one in wanted)]
        self.lines.add("@triton.jit")
        with self.lines.block(f"def {self.name}({', '.join(parameters)})"):
            if self.index == "INDEX":
                for size in self.arguments.sizes:
                    self.lines.add(f"{size_name(size)} = tl.cast({size_name(size)}, INDEX)")
            yield
        self.lines.add()
        self.lines.add()

    def program(self, axis: int = 0) -> str:
        """The number of the program along an axis of the grid."""
        text = f"tl.program_id({axis})"
        return text if self.index == "tl.int32" else f"{text}.to({self.index})"

    def launch(
        self,
        condition: str,
        grid: Sequence[str],
        tile: Tile,
        otherwise: Launch | None = None,
    ) -> Launch:
        """The kernel with what it is launched with."""
        found = tile.constants()
        if self.index == "INDEX":
            shown = dict.fromkeys(HOST.index(count) for count in self.counts() if not isinstance(count, int))
            found = {"INDEX": "", **found}
            found["INDEX"] = f"kh.index_type({', '.join(shown)})"
        return Launch(self.name, self.arguments, condition, tile.before(), tuple(grid), found, otherwise)

    def unravel(self, position: str, loops: Sequence[Loop], index: Indices) -> None:
        """Variables of loops, last fastest, from a position among all their turns; none is named `position`."""
        rest = position
        for number in range(len(loops) - 1, 0, -1):
            one = loops[number]
            name, extent = one.name[1:], index.factor(one.extent)
            self.lines.add(f"{name} = {rest} % {extent}")
            if number > 1:
                self.lines.add(f"{name}_rest = {rest} // {extent}")
                rest = f"{name}_rest"
            else:
                self.lines.add(f"{loops[0].name[1:]} = {rest} // {extent}")
        if len(loops) == 1:
            self.lines.add(f"{loops[0].name[1:]} = {rest}")
