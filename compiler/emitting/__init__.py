"""The parts of `emit`: what is written into a layer repository, and what of it is copied.

source.py      a module, one of its layers, or an ONNX file -> a graph, and how calls map to it
recorded.py    which attributes a forward reads: what another module must have equal
table.py       schedule and program -> table.py of what is emitted
package.py     layers.py, model.py, kernel.toml
check.py       the emitted layer against the module and the oracle, and timed
card.py        README.md
runtime/       copied as it is: the Python that binds and runs the program, without kernels_hub
"""
