"""The compiler as a backend of torch.compile: `torch.compile(model, backend="kernels_hub")`.

options     what `mode` and `options` ask for
backend     Dynamo's graph -> AOTAutograd -> graphs of ATen ops
compiled    one such graph: imported, compiled, called with the weights that the model has now
fallback    a graph that cannot be: inductor, or eager
statistics  what became of each graph
"""
