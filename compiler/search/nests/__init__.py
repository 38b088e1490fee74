"""Loop nests in an e-graph: the naive loops of a reduction, all nests that rewrites make of them, and the cheapest."""
