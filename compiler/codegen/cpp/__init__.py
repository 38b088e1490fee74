"""C++ source text from a schedule."""
