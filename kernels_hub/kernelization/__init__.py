"""Implements `kernelize`: tags, modes, devices, mappings, resolution, binding, verification and reports."""
