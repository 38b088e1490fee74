"""How much of each model of the zoo `compiled` compiles, and whether its numbers and tokens are eager's.

Run as `python -m benchmarks.zoo_breadth`, with --timm for families of timm. Each model has a process of its own; its
calls wait for the compiler, and what was compiled is used whatever it gains: speeds are `benchmarks.zoo`'s. The calls
are those of `benchmarks.zoo`, and beside them

    padded    a batch of 4 whose sequences have 0, 3, 6 and 9 tokens of padding
    generate  greedy for a batch of 1 and of 4, and with three beams; past the window, where attention has one

A form is compiled where at least 90% of the time of eager's forwards is within modules that were compiled for the very
calls that it makes. Inside of a `generate` that is the share of the model's own forwards: what picks the tokens is no
part of a model. An error is the largest difference of any output over its largest value; tokens must be equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from benchmarks.harness import arguments, in_a_process, table, write, written_today
from benchmarks.zoo_models import FORMS, NEW_TOKENS, PROMPT, TIMM, ZOO, build, inputs

COMPILED_SHARE = 0.9
_GENERATES = ("whisper", "llava", "encoder_decoder")
"""Models that `benchmarks.zoo` does not let generate, beside those that it does."""
_PADDING = 3
_BEAMS = 3
_WINDOW = 8
_TURNS = 3

Call = Callable[[Any], Any]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="*", metavar="MODEL", help="these models alone")
    parser.add_argument(
        "--timm", action="store_true", help="families of timm in the place of transformers' classes"
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="that a model may take")
    options = parser.parse_args()
    names = options.only or list(TIMM if options.timm else ZOO)
    kind = "zoo-breadth-timm" if options.timm else "zoo-breadth"
    from kernels_hub.calibration.processor import processor_name

    models: dict[str, Any] = written_today(kind, processor_name()).get("models", {}) if options.write else {}
    for name in (one for one in names if one not in models):
        models[name] = {
            "forms": {},
            **in_a_process(_breadth_here, (name, options.threads), options.seconds),
        }
        print(_line(name, models[name]), flush=True)
        if options.write:
            document = {"threads": options.threads, "summary": _summary(models), "models": models}
            write(kind, document, processor_name())
    print(
        table(
            ("model", "compiled", "least share", "error", "tokens"),
            [_cells(*each) for each in models.items()],
        )
    )
    print(json.dumps(_summary(models), indent=1))


def _breadth_here(name: str, threads: int) -> dict[str, Any]:
    import torch

    os.environ.update(KERNELS_HUB_JIT="wait", KERNELS_HUB_JIT_TRIAL="off", KERNELS_HUB_JIT_SECONDS="300")
    torch.set_num_threads(threads)
    return breadth(name)


def breadth(name: str) -> dict[str, Any]:
    """What of a model is compiled, by form; with the refusals in words."""
    import warnings

    import torch
    import transformers

    from kernels_hub import Mode, kernelize, load_kernel_mapping, report, use_kernel_mapping

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    model = build(name)
    calls = dict(_calls(name, model))
    with torch.inference_mode():
        expected = {form: tensors(call(model)) for form, call in calls.items()}
    with use_kernel_mapping(load_kernel_mapping("compiled"), inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    forms = {}
    for form, call in calls.items():
        started = time.perf_counter()
        with torch.inference_mode():
            first = difference(tensors(call(model)), expected[form])
            took = time.perf_counter() - started
            again = difference(tensors(call(model)), expected[form])
            shares = [_share(model, call) for _ in range(_TURNS)]
        error = max(first["error"], again["error"])
        equal = first["tokens"] and again["tokens"]
        share = round(statistics.median(shares), 3)
        forms[form] = {"share": share, "error": error, "tokens": equal, "first_call_s": round(took, 2)}
    rows = report(model).rows
    refusals = {
        row.path: row.reason for row in rows if row.reason and row.reason.startswith("it cannot be compiled")
    }
    details = {row.path: row.details for row in rows if row.details and row.swapped}
    return {
        "forms": forms,
        "refusals": {**refusals, **{path: str(text)[:600] for path, text in details.items()}},
    }


def _calls(name: str, model: Any) -> Iterator[tuple[str, Call]]:
    import torch

    for form in FORMS:
        yield form, _forward(inputs(name, form))
    given = inputs(name, "4x64")
    if "input_ids" in given:
        mask = torch.ones_like(given["input_ids"])
        for index, row in enumerate(mask):
            row[len(row) - _PADDING * index :] = 0
        yield "padded", _forward({**given, "attention_mask": mask})
    if name not in _GENERATES and (name in TIMM or not ZOO[name].generates):
        return
    yield "generate", _generate(name, PROMPT[0], 1)
    yield "generate 4", _generate(name, 4, 1)
    yield "beams", _generate(name, PROMPT[0], _BEAMS)
    if getattr(model.config, "sliding_window", None) and getattr(model.config, "layer_types", None):
        yield "past the window", _past_the_window(name)


def _forward(given: dict[str, Any]) -> Call:
    return lambda model: model(**given)


def _generate(name: str, batch: int, beams: int, tokens: int = NEW_TOKENS) -> Call:
    import torch

    given = {
        key: torch.cat([value] * batch) if isinstance(value, torch.Tensor) else value
        for key, value in inputs(name, "1x7").items()
        if key != "decoder_input_ids"
    }
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "num_beams": beams}
    return lambda model: model.generate(**given, **options)


def _past_the_window(name: str) -> Call:
    """A prompt of 7 tokens and as many new ones that a window of `_WINDOW` is left behind."""
    call = _generate(name, PROMPT[0], 1, 2 * _WINDOW)

    def windowed(model: Any) -> Any:
        own = model.config.sliding_window
        places = [one for one in model.modules() if isinstance(getattr(one, "sliding_window", None), int)]
        try:
            model.config.sliding_window = _WINDOW
            for one in places:
                one.sliding_window = _WINDOW
            return call(model)
        finally:
            model.config.sliding_window = own
            for one in places:
                one.sliding_window = own

    return windowed


def _share(model: Any, call: Call) -> float:
    """The part of the time of a call's forwards, run by eager, that is within modules whose calls were compiled."""
    from kernels_hub.kernelization.jit import JitForward

    inside = {"compiled": 0.0, "all": 0.0}
    depth = {"compiled": 0, "all": 0}

    def begin(which: str) -> None:
        if not depth[which]:
            inside[which] -= time.perf_counter()
        depth[which] += 1

    def end(which: str) -> None:
        depth[which] -= 1
        if not depth[which]:
            inside[which] += time.perf_counter()

    def eager(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._modules.get(module)
        signature = self._signature(module, args, kwargs)
        compiled = None if state is None else state.chosen.get(signature)
        own = self.cls.forward
        if compiled is None or compiled.forward is None:
            return own(module, *args, **kwargs)
        begin("compiled")
        try:
            return own(module, *args, **kwargs)
        finally:
            end("compiled")

    parts = dict.fromkeys((model, *_called_by_generate(model)))
    with mock.patch.object(JitForward, "__call__", eager), contextlib.ExitStack() as hooks:
        for part in parts:  # hooks, and no other forward: `generate` reads the signature of that
            began = part.register_forward_pre_hook(lambda *_: begin("all"), with_kwargs=False)
            ended = part.register_forward_hook(lambda *_: end("all"), always_call=True)
            hooks.callback(began.remove)
            hooks.callback(ended.remove)
        call(model)
    return inside["compiled"] / inside["all"]


def _called_by_generate(model: Any) -> list[Any]:
    """What `generate` calls beside the model: its encoder, where it has one."""
    encoder = (
        model.get_encoder() if hasattr(model, "get_encoder") and model.config.is_encoder_decoder else None
    )
    return [] if encoder is None else [encoder]


def tensors(result: Any) -> list[Any]:
    """Copies of those of an output, in their order."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result.clone()]
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    if isinstance(result, (list, tuple)):
        return [tensor for one in result for tensor in tensors(one)]
    return []


def difference(actual: list[Any], expected: list[Any]) -> dict[str, Any]:
    """The `largest_error` of floats, and whether everything else is equal."""
    import torch

    from kernels_hub.numerics import largest_error

    if [one.shape for one in actual] != [one.shape for one in expected]:
        return {"error": float("inf"), "tokens": False}
    worst, equal = 0.0, True
    for one, other in zip(actual, expected, strict=True):
        if other.is_floating_point():
            worst = max(worst, largest_error(one, other))
        else:
            equal = equal and torch.equal(one, other)
    return {"error": worst, "tokens": equal}


def _is_compiled(said: dict[str, Any]) -> bool:
    """Whether a model counts: every form compiled, and right."""
    return bool(said["forms"]) and all(
        form["share"] >= COMPILED_SHARE and form["tokens"] and form["error"] < 1e-3
        for form in said["forms"].values()
    )


def _summary(models: dict[str, Any]) -> dict[str, Any]:
    return {
        "models": len(models),
        "compiled": sum(map(_is_compiled, models.values())),
        "not compiled": sorted(name for name, said in models.items() if not _is_compiled(said)),
        "unequal tokens": sorted(
            f"{name} {form}"
            for name, said in models.items()
            for form, one in said["forms"].items()
            if not one["tokens"]
        ),
        "largest error": max(
            (one["error"] for said in models.values() for one in said["forms"].values()), default=0
        ),
    }


def _line(name: str, said: dict[str, Any]) -> str:
    forms = " ".join(
        f"{form}: {one['share']:.2f} ({one['error']:.0e}{'' if one['tokens'] else ', OTHER TOKENS'}, "
        f"{one['first_call_s']:.0f} s)"
        for form, one in said["forms"].items()
    )
    return f"{name}: {said.get('failed') or forms}" + "".join(
        f"\n    {path or '(model)'}: {' '.join(reason.split())[:300]}"
        for path, reason in said.get("refusals", {}).items()
    )


def _cells(name: str, said: dict[str, Any]) -> tuple[str, ...]:
    forms = list(said["forms"].values())
    if not forms:
        return (name, "no", "", "", str(said.get("failed", ""))[:60])
    return (
        name,
        "yes" if _is_compiled(said) else "no",
        f"{min(one['share'] for one in forms):.2f}",
        f"{max(one['error'] for one in forms):.0e}",
        "equal" if all(one["tokens"] for one in forms) else "not equal",
    )


if __name__ == "__main__":
    main()
