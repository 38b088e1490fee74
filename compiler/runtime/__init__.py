"""Runs compiled programs: for `compile()` here, and inside exported layers, which carry these files byte for byte.

A call of a published layer differs from a call of `compile()` in what comes before the program runs, and in nothing
after it: a layer asks its module guard whether the module is still the one that it packed, and falls back to the
original forward where a call does not fit; a plan converts the caller's arrays, holds weights of its own, and raises.

Both
binding.py             what is fixed for a set of shapes: sizes, arena layout, outputs; the cache of it
intervals.py           where scratch buffers lie in an arena
arena.py               the arenas of a thread: memory that it keeps between calls
newest.py              a mapping that keeps its newest entries, for caches
native.py              a C++ program, loaded
bytecode.py            the same as bytecode, and the interpreter that runs it
native_program.py      a call of it: thread's arena, addresses, one native call
triton_program.py      a call of Triton kernels: arenas by stream, windows, launches
launcher.py            how a Triton kernel is started: tiles of the table of knobs, binaries, or Triton's JIT
tiles.py, triton_functions.py, triton_interpreter.py, triton_versions.py    what generated Triton calls
toolchain.py           C++ to a loaded library, built once a machine
module_guard.py        whether a module and its weights are what they were
surroundings.py        what a call finds beside them: modes, hooks, what a forward asked for

Layers alone
layer.py               a call: which program, or the original forward and why
native_layer.py, launched_layer.py    a layer of C++, of Triton
builder.py             which program a machine runs: C++ that came along or is built, or bytecode
by_dtype.py            several programs, by the dtype of the weights
gradient.py            a forward and a backward program in one autograd function
state.py               what was made of a module: its weights, packed
weights.py             what kernelize asks of kernels that pack weights
parts.py               the records of a layer's table.py
arguments.py, caches.py    Python arguments to tensors and back
modules.py             whether a module is what the program was made for
function_fields.py     where functions have their code and defaults, and cells what they hold
facts.py               what the values are that its forwards read, and what may change inside of them
arrays.py, indexed_paths.py, prebuilt.py, binaries.py, driver.py, knobs.py    files that came along

They import the standard library, torch, Triton, `files.py` and each other, by relative imports; a variant holds them at
the same places as this library (compiler/runtime, compiler/native, files.py), so that these hold in both.
"""
