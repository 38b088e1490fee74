"""From a graph to a plan that runs: engine selection, partition, memory between segments, calls, files, tuning."""
