"""Parses the `mode` and `options` of torch.compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kernels_hub.compiler.engines.engine import Note
from kernels_hub.compiler.errors import CompilerError
from kernels_hub.compiler.plan.heuristics import Heuristic

MODES = {
    "default": "default",
    "reduce-overhead": "default",
    "max-autotune": "benchmark",
    "max-autotune-no-cudagraphs": "benchmark",
}
"""mode of torch.compile -> heuristic of `compile`."""

Fallback = Literal["inductor", "eager", "error"]


@dataclass(frozen=True)
class Options:
    """engines, exclude_notes, workspace_limit, heuristic, max_shapes, cache: as `compile` takes them.

    weights: "followed", those that the model has at each call; "frozen", those of the first one; "inputs", never packed
    or folded. fallback: who runs a graph that cannot be compiled; "error" raises. training: whether graphs of forwards
    that will be differentiated, and of their backwards, are compiled; else they fall back.
    """

    engines: tuple[str, ...] | None = None
    exclude_notes: tuple[Note, ...] = ()
    workspace_limit: int | None = None
    heuristic: Heuristic | str = "default"
    max_shapes: int = 8
    cache: str | None = None
    weights: Literal["followed", "frozen", "inputs"] = "followed"
    fallback: Fallback = "inductor"
    training: bool = True

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, object] | None) -> Options:
        """Raises CompilerError for a mode, an option, or a value that there is not."""
        if mode is not None and mode not in MODES:
            raise CompilerError(
                f'backend "kernels_hub" has no mode {mode!r}; it has {", ".join(map(repr, MODES))}'
            )
        given: dict[str, Any] = dict(options or {})
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in given if name not in names]:
            raise CompilerError(
                f'backend "kernels_hub" has no options {", ".join(unknown)}; it has {", ".join(names)}'
            )
        for name, allowed in (
            ("weights", ("followed", "frozen", "inputs")),
            ("fallback", ("inductor", "eager", "error")),
        ):
            if given.get(name, allowed[0]) not in allowed:
                raise CompilerError(
                    f"option {name!r} is one of {', '.join(map(repr, allowed))}, not {given[name]!r}"
                )
        if isinstance(given.get("engines"), str):
            given["engines"] = (given["engines"],)
        given.setdefault("heuristic", MODES[mode or "default"])
        return cls(**given)
