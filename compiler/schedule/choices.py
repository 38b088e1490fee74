"""What a schedule and its C++ leave open: choices that change how fast a graph runs, and no more than rounding.

The defaults are the ones that serve most graphs; a search tries others (`search`), and what it finds is handed in as
`schedule(graph, choices=…)`, or as knobs of the engine. They travel with the schedule to the code generator.

Places in a graph are numbers, counted in the order of the schedule that the defaults make: `Schedule.joined` are the
values that joined the group of another and may begin one of their own ("apart"), `Schedule.shared` the values that are
made once because several use them and may be computed by each of these ("again"), `Schedule.products` the products and
convolutions that may be written out as loops ("loops"); those of "nests" are its nests with a reduction and without an
anchor. A number that is no place has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from kernels_hub.compiler.errors import EngineError
from kernels_hub.compiler.schedule.loop_plan import plans_by_place

GRAIN = 65536
"""Work (additions) that is worth a thread."""

Setting = str | int | bool


@dataclass(frozen=True)
class Choices:
    """See the module, and `CHOICES` for the values that are worth trying.

    apart: values that begin a fusion group of their own, as "3,7". again: shared values that their users compute, each
    for itself. loops: products and convolutions that are written out, and no kernels of the runtime on packed operands,
    so that what makes the operands is part of them. split: how many parts a long sum (or …) is cut into where there
    are few results, so that threads share it; 1 cuts none. layout: of what convolutions read and write, "channels
    last", "rows" (as the graph says), or "auto": rows where no convolution gains by the other
    (`schedule.layout.stands_alone`). grain: work, an addition being 1, that is worth a thread. tile: turns
    of the tiles that transpositions are cut into. nests: plans of loops (`loop_plan`) for nests that reduce, by place.
    """

    apart: str = ""
    again: str = ""
    loops: str = ""
    split: int = 1
    layout: str = "auto"
    grain: int = GRAIN
    tile: int = 16
    nests: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.nests, str):
            raise EngineError(f"the choice nests is a text, not {self.nests!r}")
        plans_by_place(self.nests)
        for name in PLACES:
            _places(name, getattr(self, name))
        for name, (*_, allowed) in _WORDS.items():
            if getattr(self, name) not in allowed:
                raise EngineError(
                    f"the choice {name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}"
                )
        for name, (least, most) in _RANGES.items():
            number = getattr(self, name)
            if type(number) is not int or not least <= number <= most:
                raise EngineError(f"the choice {name} is a number from {least} to {most}, not {number!r}")

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Choices:
        """From a mapping by name; what it does not name is as ever. Raises EngineError, with the names there are."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise EngineError(f"there is no choice {name!r}; there are {', '.join(known)}")
        return replace(cls(), **given)  # type: ignore[arg-type]

    def given(self) -> dict[str, Setting]:
        """Those that are not as ever."""
        plain = asdict(Choices())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}

    def places(self, name: str) -> frozenset[int]:
        """ "apart", "again" or "loops" as numbers."""
        return _places(name, getattr(self, name))


PLACES = ("apart", "again", "loops")
"""Choices that are places in a schedule."""

_WORDS: Mapping[str, tuple[tuple[str, ...]]] = {"layout": (("auto", "channels last", "rows"),)}
_RANGES: Mapping[str, tuple[int, int]] = {
    "split": (1, 4096), "grain": (256, 1 << 40), "tile": (4, 256),
}  # fmt: skip

CHOICES: Mapping[str, tuple[Setting, ...]] = {
    "split": (1, 8, 32),
    "layout": ("auto", "channels last", "rows"),
    "grain": (GRAIN, GRAIN // 8, GRAIN * 16),
    "tile": (16, 8, 32),
}
"""Values that are worth trying, the best guess first, of the choices that are no places."""


def _places(name: str, text: object) -> frozenset[int]:
    try:
        found = frozenset(int(one) for one in text.split(",") if one)  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        raise EngineError(f'the choice {name} is places, as "3,7", not {text!r}') from None
    if any(one < 0 for one in found):
        raise EngineError(f"the choice {name} counts places from 0, got {text!r}")
    return found
