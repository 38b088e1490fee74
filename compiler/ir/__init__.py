"""The intermediate representation: graphs, the op table, shapes, proofs, and the reference evaluator.

    types.py      dtypes                       dims.py       the algebra of shapes
    proofs.py     what is known of dims        extrema.py    minima, maxima, substitution
    op.py         what a row of the table is   ops/          the rows, by family: `OPS`
    graph.py      graphs, nodes, values        operators.py  what one writes on a value
    transform.py  rebuild, bind, extract       verify.py     every invariant
    printer.py    graph -> text                parser.py     text -> graph (text.py: tokens, dims)
    evaluate.py   the oracle (NumPy)           report.py     what it says on debug=True
    dummy.py      seeded weights               random_arrays.py seeded arrays

An importer builds: `graph.input`, `graph.parameter(name, shape, dtype, data)` (a mapped array, or what loads
it), operators and methods on values, `graph.apply(op, *values, **attrs)` for all else, `with graph.origin(node)`
around each source node, `graph.output(name, value)`; then `verify(graph)`.

A rewrite rebuilds: `rebuild(graph, visit)`, where visit(new, node, operands) sees each live node with its
operands in the new graph, and returns what stands for its results, or None to keep it.

A new op is a row in `ops/`; a new elementwise op is one call of `pointwise(...)`.

Nothing here imports torch, triton or onnx.
"""
