"""Rewrites: rules as data, a matcher, one engine that applies them, and the passes in order.

    pattern.py    what a rule looks for          rule.py       what a rule is
    engine.py     rules to fixpoint              explain.py    the nearest miss of a rule that did not fire
    pipeline.py   the passes, in order           outline.py    a recognised part becomes a named call
    fold.py algebra.py clamp.py views.py affine.py                rules, by theme
    norms.py activations.py attention.py                          what is recognised

Nothing here imports torch, triton or onnx.
"""
