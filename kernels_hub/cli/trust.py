"""`kernels-hub trust`: which repositories' code may run here, rule by rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

if TYPE_CHECKING:
    from kernels_hub.trust.policy import Rule

trust = typer.Typer(no_args_is_help=True, help="Which repositories' code may run here.")

Pattern = Annotated[str, typer.Argument(help="A repository, or a pattern: org/name, org/*, *.")]
OnHub = Annotated[str | None, typer.Option("--endpoint", help="Of this Hub only. Default: of every one.")]


@trust.command()
def add(
    signer: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="ed25519:…, a file with that line, the name of a key of yours, or kernels-community.",
        ),
    ],
    pattern: Annotated[str, typer.Option("--for", help="The repositories: org/name, org/*, *.")],
    endpoint: OnHub = None,
) -> None:
    """Trust a key for repositories; from then on they need a signature by one of their keys."""
    from kernels_hub.trust.policy_edit import add_rule, parse_signer

    _done(*add_rule("signature", pattern, endpoint=endpoint, signers=[parse_signer(signer)]))


@trust.command()
def allow(pattern: Pattern, endpoint: OnHub = None) -> None:
    """Let the code of repositories run."""
    from kernels_hub.trust.policy_edit import add_rule

    _done(*add_rule("allow", pattern, endpoint=endpoint))


@trust.command()
def publisher(pattern: Pattern, endpoint: OnHub = None) -> None:
    """Let the Hub's flag for trusted publishers decide; for use with `trust set publisher off`."""
    from kernels_hub.trust.policy_edit import add_rule

    _done(*add_rule("publisher", pattern, endpoint=endpoint))


@trust.command()
def deny(pattern: Pattern, endpoint: OnHub = None) -> None:
    """Never let the code of repositories run, whatever else allows it."""
    from kernels_hub.trust.policy_edit import add_rule

    _done(*add_rule("deny", pattern, endpoint=endpoint))


@trust.command()
def remove(
    what: Annotated[
        str, typer.Argument(help="A rule's number in `trust list`, a pattern as it stands there, or a key.")
    ],
) -> None:
    """Remove a rule, a pattern from every rule, or a key from every rule."""
    from kernels_hub.trust.policy import load_policy
    from kernels_hub.trust.policy_edit import parse_signer, remove_pattern, remove_rule, remove_signer

    if what.isascii() and what.isdigit():
        removed, verb = [remove_rule(int(what))], "removed"
    elif any(what in rule.repositories for rule in load_policy().rules):
        removed, verb = remove_pattern(what), f"removed {what!r} from"
    else:
        removed, verb = remove_signer(parse_signer(what)), "removed the key from"
    for rule in removed:
        echo(f"{verb} rule {rule.number}: {rule}")


@trust.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="publisher, trust_remote_code or locked.")],
    value: Annotated[str, typer.Argument(help="on or off.")],
) -> None:
    """Switch a way in on or off: the Hub's publisher flag, trust_remote_code in a call, a pinned lock."""
    from kernels_hub.errors import TrustError
    from kernels_hub.trust.policy import policy_path
    from kernels_hub.trust.policy_edit import set_switch

    if value not in ("on", "off"):
        raise TrustError(f"expected on or off for {name!r}, got {value!r}")
    changed = set_switch(name, value == "on")
    echo(f"{name} is {value} in {policy_path()}" + ("" if changed else "; it was before"))


@trust.command("list")
def list_(as_json: AsJson = False) -> None:
    """The policy in force."""
    from kernels_hub.trust.policy import SWITCHES, load_policy

    policy = load_policy()
    if as_json:
        print_json(
            {
                "path": str(policy.path),
                "exists": policy.exists,
                **{name: getattr(policy, name) for name in SWITCHES},
                "rules": [_as_json(rule) for rule in policy.rules],
            }
        )
        return
    echo(f"{policy.path}{'' if policy.exists else ' (not there: this is the default)'}")
    print_columns((name, "on" if getattr(policy, name) else "off") for name in SWITCHES)
    for rule in policy.rules:
        echo(f"{rule.number:>3}  {rule}")
        for signer in rule.signers:
            echo(f"       {signer}")


@trust.command()
def check(
    repositories: Annotated[list[str], typer.Argument(metavar="REPO…", help="Repositories, org/name.")],
    endpoint: Annotated[
        str | None, typer.Option(help="The Hub that they are on. Default: HF_ENDPOINT, or huggingface.co.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Which rule decides about repositories; asks no Hub."""
    import os

    from kernels_hub.hub.connection import check_repository_name
    from kernels_hub.trust.decision import RemoteCode, preview

    for name in repositories:
        check_repository_name(name)
    hub = endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    verdicts = [(name, preview(RemoteCode(name, "kernel", "", hub))) for name in repositories]
    if as_json:
        print_json(
            [
                {
                    "repository": name,
                    "endpoint": hub,
                    "verdict": one.verdict,
                    "reason": one.reason,
                    "signers": [str(signer) for signer in one.signature_keys],
                }
                for name, one in verdicts
            ]
        )
        return
    for name, one in verdicts:
        needs = " or ".join(map(str, one.signature_keys))
        signature = f"; needs a signature by {needs}" if needs else ""
        echo(f"{name}: {_VERDICTS[one.verdict]} {one.reason}{signature}")


_VERDICTS = {
    "admitted": "admitted by",
    "refused": "refused:",
    "publisher": "asked of the Hub when it is loaded, by",
}


def _as_json(rule: Rule) -> dict[str, Any]:
    return {
        "number": rule.number,
        "action": rule.action,
        "repositories": list(rule.repositories),
        "endpoint": rule.endpoint,
        "signers": [str(signer) for signer in rule.signers],
    }


def _done(rule: Rule, changed: bool) -> None:
    from kernels_hub.trust.policy import policy_path

    echo(f"rule {rule.number} of {policy_path()}: {rule}" + ("" if changed else " (it was there)"))
    for signer in rule.signers:
        echo(f"  {signer}")
