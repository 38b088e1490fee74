"""Viewing: draws graphs, schedules and searches as SVG, DOT and HTML; `view` is the entry point.

Graph -> drawing (boxes) -> repeats -> blocks (a tree, and edges at each level) -> layers (a layout a level)
      -> scene (everything placed) -> svg
      -> page (the same in JavaScript, as blocks open and close)
"""
