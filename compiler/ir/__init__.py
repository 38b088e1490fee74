"""The compiler's intermediate representation: one op table, one graph, one oracle.

    types.py      dtypes                      dims.py      the algebra of shapes
    op.py         what a row of the table is  ops/         the rows, by family
    graph.py      graphs, nodes, values       operators.py what one writes on a value
    transform.py  rebuild, bind, extract      verify.py    every invariant
    printer.py    graph -> text               parser.py    text -> graph
    evaluate.py   the oracle (NumPy)          report.py    what it says on debug=True

Nothing here imports torch, triton or onnx.
"""
