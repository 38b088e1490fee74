"""Profiles of plans: seconds, bytes and FLOPs of each step, against the rates of the device.

    profile = run.profile(x)
    print(profile)                                  a table
    profile.to_chrome_trace("trace.json")           for chrome://tracing and Perfetto

The share of the roofline is the least time that the step's bytes or FLOPs take at the machine's rates, over the time
that it took. The rates are those given, or measured once in a process (`rates`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from kernels_hub.compiler.engines.engine import Device, StepProfile
from kernels_hub.compiler.plan.rates import Rates, measured_rates, median_seconds
from kernels_hub.escaping import HtmlText
from kernels_hub.tables import html_table, terminal_width, text_table

SLOW = 0.5
"""The share of its roof below which a step is slow."""
_LONGEST_NAME = 40
_HEAD = ("step", "engine", "us", "MB", "MFLOP", "GB/s", "GFLOP/s", "roof")


class Profiled(Protocol):
    """What can be profiled: a Plan."""

    device: Device

    @property
    def name(self) -> str:
        """Of its graph."""

    @property
    def torch_device(self) -> torch.device:
        """Where it runs."""

    def run(self, inputs: Sequence[torch.Tensor], /) -> object:
        """A whole call."""

    def steps(self, inputs: Sequence[torch.Tensor], repeats: int, /) -> list[StepProfile]:
        """Each step, timed on its own."""


@dataclass(frozen=True, repr=False)
class Profile:
    """Steps in the order that they run in. seconds: a whole call, median, measured without looking at the steps."""

    graph: str
    device: str
    steps: tuple[StepProfile, ...]
    seconds: float
    rates: Rates

    def share(self, step: StepProfile) -> float | None:
        """Of the roofline, 0 to 1; None of a step that moves and computes nothing that is counted."""
        least = max(step.bytes / self.rates.bandwidth, step.flops / self.rates.flops)
        return least / step.seconds if least and step.seconds else None

    def is_slow(self, step: StepProfile) -> bool:
        """Whether a step takes at least 1% of the call, and reaches less than half of its roof."""
        share = self.share(step)
        return share is not None and share < SLOW and step.seconds >= 0.01 * self.total.seconds

    def __str__(self) -> str:
        table = text_table(_HEAD, self._cells(), terminal_width(), numbers=_HEAD[2:])
        return "\n".join((self._call(), table, self._roofline()))

    def __repr__(self) -> str:
        return f"<Profile of {self._call()}, {len(self.steps)} steps>"

    def _repr_html_(self) -> str:
        table = html_table(_HEAD, self._cells(), numbers=_HEAD[2:])
        return f"<p>{HtmlText(self._call())}</p>{table}<p>{HtmlText(self._roofline())}</p>"

    def _call(self) -> str:
        return f"{self.graph} on {self.device}, {self.seconds * 1e6:.1f} us a call"

    def _roofline(self) -> str:
        return f"roofline: {self.rates.bandwidth / 1e9:.1f} GB/s, {self.rates.flops / 1e9:.1f} GFLOP/s"

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for step in (*self.steps, self.total):
            share = self.share(step)
            seconds = step.seconds or float("inf")
            yield (
                step.name[:_LONGEST_NAME],
                step.engine,
                f"{step.seconds * 1e6:.1f}",
                f"{step.bytes / 1e6:.3f}",
                f"{step.flops / 1e6:.3f}",
                f"{step.bytes / seconds / 1e9:.1f}",
                f"{step.flops / seconds / 1e9:.1f}",
                "-" if share is None else f"{share:.0%}",
            )

    @property
    def total(self) -> StepProfile:
        """All steps together."""
        return StepProfile(
            "all steps",
            "",
            sum(step.seconds for step in self.steps),
            sum(step.bytes for step in self.steps),
            sum(step.flops for step in self.steps),
        )

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps, one after the other, in the trace event format; a row for each engine."""
        rows = {name: index for index, name in enumerate(dict.fromkeys(step.engine for step in self.steps))}
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}}
            for name, row in rows.items()
        ]
        start = 0.0
        for step in self.steps:
            args = {
                "bytes": step.bytes,
                "flops": step.flops,
                "share of roofline": self.share(step),
                "shapes": step.shapes,
            }
            events.append(
                {"ph": "X", "name": step.name, "cat": step.engine, "pid": 0, "tid": rows[step.engine],
                 "ts": start * 1e6, "dur": step.seconds * 1e6, "args": args}
            )  # fmt: skip
            start += step.seconds
        document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"graph": self.graph}}
        Path(path).write_text(json.dumps(document), encoding="utf-8")


def profile_plan(plan: Profiled, inputs: Sequence[Any], repeats: int, rates: Rates | None) -> Profile:
    """See `Plan.profile`."""
    device = plan.torch_device
    plan.run(inputs)
    seconds = median_seconds(lambda: plan.run(inputs), device, repeats)
    steps = tuple(plan.steps(inputs, repeats))
    return Profile(plan.name, str(plan.device), steps, seconds, rates or measured_rates(device))
