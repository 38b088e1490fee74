"""Engines of others: where plugins lie, trials in a child process, and engines that run in one.

offered     engines out of what a module gives
sources     entry points and paths: what they are called, their content, how they are loaded
native      engines in C, behind the ABI of `kernels_hub_engine.h`
wire        messages between processes, with a deadline
child       the process that plugins are tried in
processes   children, from the host's side
trials      what became of a plugin or a graph in a child; verdicts that are kept
tried       an engine that runs in this process after a trial
isolated    an engine whose every call runs in a child
"""
