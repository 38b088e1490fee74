"""Identifiers of buffers in generated code, and the codes of error messages."""

from __future__ import annotations

from collections.abc import Iterable

from kernels_hub.compiler.schedule.choices import Choices
from kernels_hub.compiler.schedule.kernel import Buffer, Role
from kernels_hub.escaping import Identifier

_PREFIX = {
    Role.INPUT: "in", Role.PARAMETER: "w", Role.CONSTANT: "c", Role.OUTPUT: "out", Role.SCRATCH: "t",
    Role.PREPARED: "p",
}  # fmt: skip


class Names:
    """Identifiers of buffers and sizes, and codes of the messages that calls fail with; what was chosen for loops."""

    def __init__(self, buffers: Iterable[Buffer], choices: Choices | None = None) -> None:
        self.choices = choices or Choices()
        self.buffers: dict[Buffer, Identifier] = {}
        self.messages: dict[str, int] = {}
        taken: set[str] = set()
        for buffer in buffers:
            name = wanted = Identifier(f"{_PREFIX[buffer.role]}_{buffer.name}")
            count = 1
            while name in taken:
                count += 1
                name = Identifier(f"{wanted[:40]}_{count}")
            taken.add(name)
            self.buffers[buffer] = name

    def add(self, buffer: Buffer) -> None:
        """Name one more buffer; its own name is told from all others."""
        self.buffers[buffer] = Identifier(f"{_PREFIX[buffer.role]}_{buffer.name}")

    def code(self, message: str) -> int:
        """The number that stands for a message: 1 and up."""
        return self.messages.setdefault(message, len(self.messages) + 1)
