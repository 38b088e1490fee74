"""The compiler: ONNX files and PyTorch modules in, layer repositories with fused kernels out."""
