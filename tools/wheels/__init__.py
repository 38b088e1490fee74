"""Builds the wheels: native code for each level of instruction sets, an SBOM, and the wheels themselves."""
