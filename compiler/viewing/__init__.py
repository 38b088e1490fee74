"""Graphs as pictures: what to draw, where, and in which format. See `kernels_hub.compiler.view` for the way in.

Graph -> drawing (boxes) -> repeats -> blocks (a tree, and edges at each level) -> layers (a layout a level)
      -> scene (everything placed) -> svg
      -> page (the same in JavaScript, as blocks open and close)
"""
