"""Search candidates: a graph with schedule choices, and its measured result.

A `SearchCandidate` is a graph as text, weights apart, and the choices that were made for its loops; it goes to other
processes and into files as it is. An `Evaluator` builds one, compares it with the oracle, and only then times it:
a `Measured` is what it says. Candidates that compute other numbers are never timed, and can never be chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from kernels_hub.compiler.errors import CompilerError
from kernels_hub.parsing import convert

Choice = str | int | bool
Status = Literal["fastest", "slower", "wrong", "failed", "pruned"]
STATUSES: tuple[Status, ...] = ("fastest", "slower", "wrong", "failed", "pruned")


class SearchError(CompilerError, ValueError):
    """What was asked of a search makes no sense, or what was stored of one cannot be read."""


@dataclass(frozen=True)
class SearchCandidate:
    """graph: as `print_graph(graph, data=True)` writes it: the whole of it but for the arrays of its parameters.

    choices: of loops, by name; those that are not named are as ever. origin: how it came about, in words.
    predicted: seconds, by the cost model; 0.0 where it was not asked.
    """

    graph: str
    choices: Mapping[str, Choice] = field(default_factory=dict)
    origin: str = "as it is"
    predicted: float = 0.0

    def __post_init__(self) -> None:
        for name, choice in self.choices.items():
            if not isinstance(name, str) or not isinstance(choice, (str, int)):
                raise SearchError(f"a choice is a name with a str, int or bool, not {name!r} with {choice!r}")

    def __hash__(self) -> int:
        return hash((self.graph, self.digest, self.origin, self.predicted))

    @property
    def digest(self) -> str:
        """32 hex digits of graph and choices: equal for candidates that run the same."""
        chosen = json.dumps(dict(sorted(self.choices.items())))
        return hashlib.sha256(f"{chosen}\n{self.graph}".encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "choices": dict(sorted(self.choices.items()))}

    @classmethod
    def from_dict(cls, row: Mapping[str, object]) -> SearchCandidate:
        """What `to_dict` gave. Raises SearchError."""
        return _record(row, cls, "this is no candidate")


@dataclass(frozen=True)
class Measured:
    """What became of a candidate.

    digest: the candidate's. seconds: of a call, None where none was timed. reason: why it has that status, in words.
    facts: of the build, where they are known: "registers", "spills" and "shared" (bytes) for GPU kernels, the largest
    of all kernels; "kernels", how many a call runs.
    """

    digest: str
    status: Status
    seconds: float | None = None
    reason: str = ""
    facts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise SearchError(f"a status is one of {', '.join(STATUSES)}, not {self.status!r}")

    def __hash__(self) -> int:
        return hash((self.digest, self.status, self.seconds, self.reason))

    @property
    def ran(self) -> bool:
        """Whether it gave the oracle's numbers and was timed."""
        return self.status in {"fastest", "slower"} and self.seconds is not None

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {**asdict(self), "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, row: Mapping[str, object]) -> Measured:
        """What `to_dict` gave. Raises SearchError."""
        return _record(row, cls, "this is no measurement")


R = TypeVar("R", SearchCandidate, Measured)


def _record(row: Mapping[str, object], kind: type[R], what: str) -> R:
    """A record of which no field is left to its default."""
    if missing := [one.name for one in fields(kind) if one.name not in row]:
        raise SearchError(f"{what}: it lacks {', '.join(missing)}")
    return convert(row, kind, where=what, error=SearchError)


@runtime_checkable
class Evaluator(Protocol):
    """Builds a candidate, checks it against the oracle, times it. Picklable; the same in every process.

    It never raises for what is wrong with a candidate: that is "wrong", "failed" or "pruned", with the reason.
    """

    def __call__(self, candidate: SearchCandidate, *, build_only: bool = False) -> Measured:
        """Of one candidate. The status is "slower" where it ran: who knows the others says which is "fastest".

        build_only: it is built and checked, so that building is done when it is timed; seconds are None.
        """

    def measure_many(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        """Of several, timed in rounds that alternate between them, so that what disturbs one disturbs all."""

    def measure_again(self, candidates: Sequence[SearchCandidate]) -> list[Measured]:
        """Of two, the original and a candidate: whether what it gains repeats. "fastest" where it does.

        Seconds of the candidate are those of the original over the least gain that was seen.
        """
