"""`kernels-hub key new|list|export`: the keys that sign what one publishes."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels_hub.cli.output import AsJson, echo, print_columns, print_json

key = typer.Typer(no_args_is_help=True, help="Keys that sign what you publish.")


@key.command()
def new(
    name: Annotated[str, typer.Argument(help="What to call it here; the public key's comment.")],
    passphrase: Annotated[
        bool,
        typer.Option(
            "--passphrase", help="Encrypt it; asks, or takes KERNELS_HUB_KEY_PASSPHRASE where that is set."
        ),
    ] = False,
) -> None:
    """Make a key pair; prints the public key."""
    import os

    from kernels_hub.trust.keys import KEY_PASSPHRASE, new_key

    secret = None
    if passphrase:
        secret = os.environ.get(KEY_PASSPHRASE)
        if secret is None:
            secret = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    made = new_key(name, secret)
    echo(made.public)
    echo(f"kept in {made.path}; publish its public key, and keep that file to yourself", err=True)


@key.command("list")
def list_(as_json: AsJson = False) -> None:
    """The keys in the keys folder."""
    from kernels_hub.trust.keys import keys_folder, list_keys

    keys = list_keys()
    if as_json:
        print_json(
            [
                {
                    "name": stored.name,
                    "public": None if stored.public is None else str(stored.public),
                    "encrypted": stored.encrypted,
                    "path": str(stored.path),
                }
                for stored in keys
            ]
        )
    elif keys:
        print_columns(
            (
                stored.name,
                "?" if stored.public is None else stored.public.id,
                "encrypted" if stored.encrypted else "",
            )
            for stored in keys
        )
    else:
        echo(f"no keys in {keys_folder()}; make one with: kernels-hub key new NAME")


@key.command()
def export(
    name: Annotated[str, typer.Argument(help="A key's name, or the path of its file.")],
) -> None:
    """Print a public key, one line, for those who are to trust it."""
    from kernels_hub.trust.keys import public_key

    echo(public_key(name))
