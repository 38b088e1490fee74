"""Export: a module, one of its layers, or an ONNX file becomes a layer repository.

emit_layer.py           the whole way: trace, compile, write, check
source.py               a module, one of its layers, or an ONNX file -> a graph, and how calls map to it
recorded_attributes.py  which attributes a forward reads: what another module must have equal
programs.py             the C++ and the Triton of a graph
table.py                schedule and program -> table.py of the exported layer
package.py              layers.py, model.py, kernel.toml
gpu_binaries.py, native_binaries.py  code compiled ahead of time, for GPUs and for CPUs
gradient.py             training: the forward that keeps what the backward needs, and the backward
check.py                the exported layer against the module and the reference evaluator, and timed
card.py                 README.md
provenance.py           provenance.json: what it was compiled from and by, and how it compared
"""
