"""The mappings that ship with kernels_hub, as data for `kernels_hub.load_kernel_mapping(name)`."""
