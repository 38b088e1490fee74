"""Judges whether a program computes a graph: inputs made for the graph, and a bound for each element."""

from kernels_hub.compiler.judging.bounds import Bounded, TrapError, bounded
from kernels_hub.compiler.judging.inputs import InputSet, JudgingInputs, judging_inputs
from kernels_hub.compiler.judging.judge import Case, Judge, Verdict, compare

__all__ = [
    "Bounded",
    "Case",
    "InputSet",
    "Judge",
    "JudgingInputs",
    "TrapError",
    "Verdict",
    "bounded",
    "compare",
    "judging_inputs",
]
