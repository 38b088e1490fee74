"""Importers: ONNX files and PyTorch modules become graphs of the IR.

Nothing here is imported by the IR, the rewrites or the engines; `onnx` and `torch` are imported when an
importer runs.
"""
