"""The class attributes of a layer that mean something to `kernelize`."""

LAYER_FLAGS = frozenset({"has_backward", "can_torch_compile"})
"""`has_backward`: gradients flow through its forward. `can_torch_compile`: so does torch.compile(fullgraph=True)."""
