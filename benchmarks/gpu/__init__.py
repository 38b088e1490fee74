"""A GPU owner's first hour: what this library does on a GPU, in slices of at most eight minutes.

    python -m benchmarks.gpu --list                  what there is, what it proves, how long it takes
    python -m benchmarks.gpu                         everything that is not known yet
    python -m benchmarks.gpu --slices 1 3            these
    python -m benchmarks.gpu --once all --jobs 8     right numbers, no times; compilers' caches are warm then
    python -m benchmarks.gpu --rehearse              the same without a GPU: tiny shapes, under the interpreter

Results go to `build/gpu/<device>.jsonl` (or --out) as they come, and a page is drawn from them at the end. What is
there is not run again, so a run that was cut off goes on where it was. Cases run in a process of their own, which is
started anew when a case crashes it or takes too long: the case is recorded as failed, and the next one runs.
"""
