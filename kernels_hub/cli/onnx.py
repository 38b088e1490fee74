"""`kernels-hub onnx check FILE`: what in a model the compiler cannot import, all of it at once.

`kernels-hub onnx profile FILE`: see `onnx_profile`.

`kernels-hub onnx explain-rule FILE RULE`: where a rewrite rule fires in a model, or the nearest that it came.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.onnx_bindings import Dims, Shapes, Values, bindings, require_file
from kernels_hub.cli.onnx_profile import profile
from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.compiler.ir.graph import Graph, Value
    from kernels_hub.compiler.rewrite.rule import Rule

onnx = typer.Typer(no_args_is_help=True, help="ONNX models and the compiler.")
onnx.command()(profile)


@onnx.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The model; its weights need not be there.")],
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    as_json: AsJson = False,
) -> None:
    """List every node that cannot be imported, with the reason; exit 1 if there is one."""
    from kernels_hub.compiler.errors import OnnxImportError, Unsupported
    from kernels_hub.compiler.importers.onnx import import_onnx

    require_file(file)
    found: tuple[Unsupported, ...] = ()
    remedy = ""
    try:
        import_onnx(file, **bindings(dim, shape, value), random_weights=0)
    except OnnxImportError as error:
        found, remedy = error.unsupported, error.remedy
    if as_json:
        print_json(
            {
                "file": str(file),
                "importable": not found,
                "remedy": remedy or None,
                "unsupported": [
                    {
                        "node": unsupported.node,
                        "path": list(unsupported.path),
                        "op": unsupported.op,
                        "domain": unsupported.domain,
                        "opset": unsupported.opset,
                        "inputs": list(unsupported.inputs),
                        "reason": unsupported.reason,
                    }
                    for unsupported in found
                ],
            }
        )
    elif found:
        from kernels_hub.compiler.shortening import shortened

        rows = [("NODE", "OP", "OPSET", "INPUTS", "REASON")]
        rows += [
            (
                " > ".join((*unsupported.path, unsupported.node)),
                f"{unsupported.domain}::{unsupported.op}" if unsupported.domain else unsupported.op,
                "" if unsupported.opset is None else str(unsupported.opset),
                shortened(", ".join(unsupported.inputs)),
                shortened(unsupported.reason),
            )
            for unsupported in found
        ]
        print_columns(rows)
        if remedy:
            echo(remedy)
    else:
        echo(f"{file}: every node can be imported")
    if found:
        raise typer.Exit(1)


@onnx.command("explain-rule")
def explain_rule(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The model; its weights need not be there.", show_default=False),
    ] = None,
    rule: Annotated[
        str | None, typer.Argument(metavar="RULE", help="A rewrite rule by name.", show_default=False)
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Match the model as imported, instead of while the passes run.")
    ] = False,
    list_rules: Annotated[bool, typer.Option("--list", help="List the rules, without a model.")] = False,
    dim: Dims = None,
    shape: Shapes = None,
    value: Values = None,
    as_json: AsJson = False,
) -> None:
    """Tell where a rewrite rule fires in a model, or the nearest it came and what refused it.

    Without RULE: every rule in order, and how often each fires.
    """
    if file is None or list_rules:
        if rule is not None or raw or (file is not None and not list_rules):
            raise typer.BadParameter("--list takes neither RULE nor --raw", param_hint="--list")
        _print_rules(None, as_json)
        return
    require_file(file)
    found = _rule(rule) if rule is not None else None

    from kernels_hub.compiler.importers.onnx import import_onnx

    graph = import_onnx(file, **bindings(dim, shape, value), random_weights=0)
    if found is None:
        _print_rules(graph, as_json)
    else:
        _print_explanation(file, graph, *found, raw=raw, as_json=as_json)


def _rule(name: str) -> tuple[Rule, str]:
    from kernels_hub.compiler.rewrite.explain import rule_passes

    rules = rule_passes()
    if name not in rules:
        near = difflib.get_close_matches(name, rules, n=3, cutoff=0.5)
        hint = f"near it: {', '.join(near)}; " if near else ""
        raise typer.BadParameter(
            f"there is no rule {name!r}; {hint}--list shows all {len(rules)}", param_hint="RULE"
        )
    return rules[name]


def _print_rules(graph: Graph | None, as_json: bool) -> None:
    """The table of rules; of a graph, how often each fires."""
    from kernels_hub.compiler.rewrite.explain import rule_passes
    from kernels_hub.compiler.rewrite.pipeline import rewrite

    fired = None if graph is None else rewrite(graph).total
    rules: list[dict[str, Any]] = [
        {"rule": name, "pass": step, "exact": rule.exact, "doc": rule.doc}
        | ({} if fired is None else {"fired": fired[name]})
        for name, (rule, step) in rule_passes().items()
    ]
    if as_json:
        print_json({"rules": rules})
        return
    header = ("RULE", "PASS", "NUMBERS", *(() if fired is None else ("FIRED",)), "WHAT IT DOES")
    print_columns(
        [
            header,
            *(
                (
                    rule["rule"],
                    rule["pass"],
                    "exact" if rule["exact"] else "rounded",
                    *([str(rule["fired"])] if "fired" in rule else []),
                    rule["doc"],
                )
                for rule in rules
            ),
        ]
    )


def _print_explanation(file: Path, graph: Graph, rule: Rule, step: str, *, raw: bool, as_json: bool) -> None:
    from kernels_hub.compiler.rewrite import explain

    found = explain.explain_rule(graph, rule) if raw else explain.explain_firing(graph, rule)
    places = [_place(value) for value in found.matches]
    miss: dict[str, Any] | None = None
    if not found.matches:
        where = _place(found.root) if found.root is not None else {}
        miss = {**where, "matched": found.matched, "reason": found.reason}
    if as_json:
        about = {"file": str(file), "rule": rule.name, "pass": step, "exact": rule.exact, "doc": rule.doc}
        print_json({**about, "raw": raw, "matches": places, "nearest": miss})
        return
    echo(f"{rule.name} (pass {step}, {'exact' if rule.exact else 'rounded'}): {rule.doc}".rstrip(": "))
    if miss is None:
        verb = "matches" if raw else "fires"
        echo(f"{verb} at {len(places)} {'place' if len(places) == 1 else 'places'}:")
        print_columns([("FROM", "OP", "TYPE"), *((one["origin"], one["op"], one["type"]) for one in places)])
    elif "op" not in miss:
        echo(f"no match: {miss['reason']}")
    else:
        origin = f" from {miss['origin']}" if miss["origin"] else ""
        echo(f"no match; nearest is the {miss['op']}{origin}, {miss['type']}")
        echo(f"{miss['matched']} nodes of the pattern matched, then: {miss['reason']}")


def _place(value: Value) -> dict[str, Any]:
    return {"op": value.op_name, "type": str(value.type), "origin": value.node.origin}
