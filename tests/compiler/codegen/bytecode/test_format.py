"""The format of bytecode: its number changes where words, or the records of the guards, come to mean something else.

Layers that were published hold words of a format, and records of their own module guard; an interpreter of another
format refuses both.
"""

from __future__ import annotations

import ctypes
import hashlib
import re

from kernels_hub.compiler.engines.bytecode_library import INTERPRETER, OPERATIONS, SOURCE
from kernels_hub.compiler.native import tensor_state, weight_guard
from kernels_hub.compiler.runtime import module_guard
from kernels_hub.compiler.runtime.bytecode import FORMAT, TRANSFORMS

MEANING = {1: "57ef4792d2efd793"}
"""Format -> a digest of what reads words and of the records. Where that is written otherwise and means what it meant,
note the new digest here; where it means something else, raise kFormat and FORMAT, and keep a layer of the new format:
`python -m tests.written_before.make bytecode`."""


def meaning() -> str:
    code = (INTERPRETER / SOURCE).read_text(encoding="utf-8")
    begin, end = code.index("inline constexpr Run kInstructions"), code.index("int64_t number_of(")
    records = sorted(
        (one.__name__, repr(one._fields_))
        for module in (module_guard, weight_guard, tensor_state)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, ctypes.Structure) and one.__module__ == module.__name__
    )
    assert {"_ModuleGuardStruct", "_GuardStruct"} <= {name for name, _ in records}
    texts = (code[begin:end], (INTERPRETER / OPERATIONS).read_text(encoding="utf-8"), *map(str, records))
    plain = re.sub(r"kernels_hub[\w.]*\.", "", "\n".join((*texts, *weight_guard._PYTHON)))
    return hashlib.sha256(re.sub(r"//[^\n]*|\s+", " ", plain).encode()).hexdigest()[:16]


def test_the_number_stands_for_what_words_mean():
    assert MEANING.get(FORMAT) == meaning()


def test_both_sides_have_the_same_number():
    header = (INTERPRETER / "bytecode.h").read_text(encoding="utf-8")
    assert f"kFormat = {FORMAT};" in header
    assert f"kTransforms = {TRANSFORMS};" in header
