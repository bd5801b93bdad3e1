"""The command line's group `params`, see `evopipe.cli`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from evopipe.cli_shared import without_torch
from evopipe.errors import UsageError, suggestion

params = typer.Typer(help="Check and show params.yaml.", no_args_is_help=True, rich_markup_mode=None)
params.callback()(without_torch)


@params.command("check")
def _check(context: typer.Context) -> None:
    """Say what is wrong with the params file, and where; it makes the environment where that is not Gymnasium's own."""
    from evopipe.problems import check

    params = context.obj.load()
    with context.obj.placing():
        check(params)
    context.obj.tell(f"{context.obj.params}: ok")


@params.command("schema")
def _schema() -> None:
    """Print the JSON schema of params.yaml."""
    from evopipe.params.load import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@params.command("show")
def _show(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY.PATH]", help="One value, such as train.max_steps.")] = None,
) -> None:
    """Print the parameters in effect, or one of them."""
    from evopipe.schema.declare import value_at
    from evopipe.schema.write import dump_yaml

    params = context.obj.load()
    value = params.model_dump(mode="json") if key is None else value_at(params, key)
    typer.echo(value if isinstance(value, str) else dump_yaml(value).rstrip("\n"))


@params.command("fill")
def _fill(context: typer.Context) -> None:
    """Write the keys that the params file lacks into it, with their defaults; what stands there stays."""
    from evopipe.params.load import filled
    from evopipe.storage.files import write_text

    text, added = filled(context.obj.params)
    if added:
        write_text(Path(context.obj.params), text)
    context.obj.tell(f"{context.obj.params}: {', '.join(added)} added" if added else f"{context.obj.params}: complete")


@params.command("block")
def _block(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="An algorithm, see evopipe algos.")],
) -> None:
    """Print an algorithm's block with its defaults, to go below `algos:`."""
    from evopipe import algos as registry
    from evopipe.schema.write import block

    if algo not in (known := registry.names(None)):
        raise UsageError(f"params block: no algorithm {algo!r}{suggestion(algo, known)}")
    typer.echo(block(algo, registry.get(algo).Config()), nl=False)
