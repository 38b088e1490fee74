"""Chains: operations of floats one after the other as one instruction, whose values stay in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels_hub.compiler.codegen.bytecode.instruction import COMPUTE, Instruction, Op, Register, RegisterKind
from kernels_hub.compiler.codegen.bytecode.operations import operations

_BINARY = {"add": (0, 0), "mul": (1, 1), "sub": (2, 3), "div": (4, 5), "maximum": (6, 7), "minimum": (8, 9)}
"""Op -> its links, the chain being the first operand or the second; as in interpreter/bytecode_chain.h."""
_UNARY = {"neg": 10, "abs": 11, "exp": 12, "tanh": 13, "erf": 14, "sigmoid": 15, "sqrt": 16, "rsqrt": 17}
_MOST = 16
_WITHOUT_OPERANDS = frozenset({Op.VIEW, Op.LOAD, Op.REPEAT, Op.POSITION, Op.INSIDE})


def chained(
    instructions: Sequence[Instruction], registers: Sequence[Register], is_needed: Callable[[int], bool]
) -> list[Instruction]:
    """A list with what follows each other joined. is_needed: whether other lists, or who runs them, read a register.

    What reads memory alone comes first, so that nothing stands between.
    """
    first = [one for one in instructions if _needs_nothing(one)]
    rest = [one for one in instructions if not _needs_nothing(one)]
    reads: dict[int, int] = {}
    for one in rest:
        for number in (one.a, one.b, one.c, *(place.offset for place in one.places)):
            reads[number] = reads.get(number, 0) + 1
    found: list[Instruction] = []
    for one in rest:
        link = _link(one, registers)
        before = found[-1] if found else None
        if (
            link is not None
            and before is not None
            and (before.op == Op.CHAIN or _link(before, registers) is not None)
            and before.to in (one.a, one.b)
            and one.a != one.b
            and reads[before.to] == 1
            and not is_needed(before.to)
            and before.to != one.to
            and len(before.links) < _MOST
            and _shape(registers[before.to]) == _shape(registers[one.to])
        ):
            found[-1] = _joined(before, one, registers)
        else:
            found.append(one)
    return [*first, *found]


def _needs_nothing(one: Instruction) -> bool:
    """Whether an instruction reads no register."""
    return one.op in _WITHOUT_OPERANDS and all(place.offset < 0 for place in one.places)


def _shape(one: Register) -> tuple[bool, bool]:
    return one.rows, one.columns


def _link(one: Instruction, registers: Sequence[Register]) -> str | None:
    """The op of an instruction that can be part of a chain."""
    if one.op < COMPUTE or registers[one.to].kind is not RegisterKind.FLOAT or not registers[one.to].columns:
        return None
    operation = operations()[one.op - COMPUTE]
    known = operation.name in _BINARY or operation.name in _UNARY
    return operation.name if operation.kind == "float" and known else None


def _joined(before: Instruction, one: Instruction, registers: Sequence[Register]) -> Instruction:
    if before.op != Op.CHAIN:
        before = _alone(before, registers)
    name = operations()[one.op - COMPUTE].name
    if name in _UNARY:
        link = (_UNARY[name], -1)
    else:
        is_first = one.a == before.to
        link = (_BINARY[name][0 if is_first else 1], one.b if is_first else one.a)
    return replace(before, to=one.to, links=(*before.links, link))


def _alone(one: Instruction, registers: Sequence[Register]) -> Instruction:
    """An instruction as a chain of one link, whose operand is as wide as its result."""
    name = operations()[one.op - COMPUTE].name
    if name in _UNARY:
        return Instruction(Op.CHAIN, to=one.to, a=one.a, links=((_UNARY[name], -1),))
    wide = registers[one.a].columns
    a, b = (one.a, one.b) if wide else (one.b, one.a)
    return Instruction(Op.CHAIN, to=one.to, a=a, links=((_BINARY[name][0 if wide else 1], b),))
