"""Plans of loops for the nests of a graph: the naive loops, saturated, and the cheapest few of what comes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from kernels_hub.compiler.codegen.loops import simplified
from kernels_hub.compiler.ir.graph import Graph
from kernels_hub.compiler.runtime.toolchain import machine_isas
from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.kernel import Kernel
from kernels_hub.compiler.schedule.loop_plan import plans_by_place
from kernels_hub.compiler.schedule.planned_nest import PlannedNest, places, planned_nest
from kernels_hub.compiler.schedule.schedule import schedule
from kernels_hub.compiler.search.nests.extract import PricedPlan, best_plans
from kernels_hub.compiler.search.nests.machine import Machine
from kernels_hub.compiler.search.nests.path import Step, path
from kernels_hub.compiler.search.nests.space import nest_space

LEAST_WORK, MOST_WORK = 1 << 12, 1 << 32
"""Elements that a nest reduces: of fewer, loops matter little; of more, a trial takes too long."""


@dataclass(frozen=True)
class NestChoice:
    """Choices that run one nest by a plan. nest: which. priced: the plan. terms: how large its space was."""

    choices: Mapping[str, str | int | bool]
    kernel: Kernel
    nest: PlannedNest
    priced: PricedPlan
    terms: int

    @property
    def steps(self) -> tuple[Step, ...]:
        """The rewrites that lead from naive loops to the plan."""
        return path(self.nest, self.priced.plan)

    def __str__(self) -> str:
        rules = [rule for step in self.steps for rule in step.rules]
        counted = ", ".join(f"{rules.count(rule)} {rule}" for rule in dict.fromkeys(rules))
        return f"loops of {self.kernel.name} by {counted}; of {self.terms} terms"


def nest_choices(
    graph: Graph, choices: Choices, count: int, machine: Machine | None = None
) -> Iterator[NestChoice]:
    """The cheapest `count` plans, by the model, for each nest that plans are for, products that become loops included.

    choices: what holds otherwise. machine: by default this one, with the threads that PyTorch has.

    Raises EngineError where the graph cannot be scheduled, MissingDependencyError where egglog is not installed.
    """
    machine = machine or Machine.of(machine_isas()[0].name, torch.get_num_threads())
    usual = schedule(graph, choices=choices)
    seen: set[str] = set()
    for products in (None, *usual.products):
        loops = choices.places("loops") ^ ({products} if products is not None else set())
        given = {**choices.given(), "loops": ",".join(map(str, sorted(loops)))}
        made = schedule(graph, choices=Choices.of(given)) if products is not None else usual
        kernels = {id(nest): kernel for kernel in made.kernels for nest in kernel.nests}
        for place, one in enumerate(places(made.kernels)):
            nest = planned_nest(simplified(one))
            if nest is None or not LEAST_WORK <= math.prod(nest.extents) <= MOST_WORK:
                continue
            known = f"{nest.extents} {nest.before} {nest.after} {nest.store}"
            if known in seen:
                continue
            seen.add(known)
            space = nest_space(nest, machine.lanes)
            others = {
                number: plan for number, plan in plans_by_place(choices.nests).items() if number != place
            }
            for priced in best_plans(space, count, machine):
                plans = {**(others if products is None else {}), place: priced.plan}
                text = ";".join(f"{number}:{plan}" for number, plan in sorted(plans.items()))
                yield NestChoice({**given, "nests": text}, kernels[id(one)], nest, priced, space.size)


def rewrites_taken(graph: Graph, choices: Choices) -> list[str]:
    """For each nest that runs by a plan, its name, and the rewrites that lead there from its naive loops."""
    lines = []
    for kernel in schedule(graph, choices=choices).kernels:
        for one in kernel.nests:
            nest = None if one.plan is None else planned_nest(simplified(one))
            if nest is not None and one.plan is not None:
                lines += [f"loops of {kernel.name}:", *(f"  {step}" for step in path(nest, one.plan))]
    return lines
