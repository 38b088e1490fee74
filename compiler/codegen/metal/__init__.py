"""Metal Shading Language for GPUs of Apple."""
