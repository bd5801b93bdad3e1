"""The command line's group `env`, see `evopipe.cli`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from evopipe.cli_shared import Arguments, json_option
from evopipe.errors import EnvironmentFailed

env = typer.Typer(help="Try environments.", no_args_is_help=True, rich_markup_mode=None)


@env.command("check")
def _check(
    context: typer.Context,
    env_id: Annotated[
        str, typer.Argument(metavar="ID", help="Gymnasium's or PettingZoo's id, module:EnvId or module:function.")
    ],
    kwargs: Arguments = None,
    wrappers: Annotated[
        Any,
        typer.Option(
            metavar="JSON",
            parser=json_option(list, "list", '["FlattenObservation"]'),
            help="A list, as env.wrappers in params.yaml.",
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="FILE", help="A C file, as env.source: compared with Gymnasium's of this id.")
    ] = None,
    gamma: Annotated[float, typer.Option(metavar="G", min=0, max=1, help="The discount of training to come.")] = 0.99,
) -> None:
    """Try an environment: spaces, resets, steps, dtypes, determinism; then what random play shows: scales, rewards."""
    from evopipe.envs.check import check, described
    from evopipe.envs.outlook import outlook

    errors = []
    for finding in check(env_id, kwargs or {}, wrappers or (), source):
        if finding.startswith("error: "):
            errors.append(f"{env_id}: {finding.removeprefix('error: ')}")
        else:
            typer.echo(f"{env_id}: {finding}", err=True)
    if errors:
        raise EnvironmentFailed("\n".join(errors))
    figures, *warned = outlook(described(env_id, kwargs or {}, wrappers or (), source), gamma)
    for finding in (figures, *warned) if warned else ():  # an environment that is right is told so in one word
        typer.echo(f"{env_id}: {finding}", err=True)
    context.obj.tell(f"{env_id}: ok")


@env.command("bench")
def _bench(
    context: typer.Context,
    env_id: Annotated[str, typer.Argument(metavar="ID", help="As for evopipe env check.")],
    kwargs: Arguments = None,
    source: Annotated[str | None, typer.Option(metavar="FILE", help="A C file, as env.source.")] = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, max=65536, help="Environments at a time: members times env.num_envs.")
    ] = 64,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.01, max=60, help="Of each measurement.")] = 1.0,
) -> None:
    """Measure the steps a second of an environment here, by backend and by number of worker processes."""
    from evopipe.envs.check import described
    from evopipe.envs.speed import chosen, speeds
    from evopipe.formats import columns

    found = list(speeds(described(env_id, kwargs or {}, (), source), rows, seconds))
    lines = [("env.backend", "env_workers", "steps a second", "of the first")]
    for way in found:
        workers = "" if way.workers is None else str(way.workers)
        lines.append((way.backend, workers, f"{way.rate:,.0f}", f"{way.rate / found[0].rate:.2f}"))
    for line in columns(lines):
        typer.echo(line)
    best = max(found, key=lambda way: way.rate)
    how = "" if best.workers is None else f" with runtime.env_workers: {best.workers}"
    auto = chosen(rows) if any(way.workers for way in found) else 0
    context.obj.tell(f"fastest here: env.backend: {best.backend}{how}; env_workers: auto begins with {auto} under sync")
