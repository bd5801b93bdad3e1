"""The command line's group `agent`, see `evopipe.cli`."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from evopipe.errors import EnvironmentFailed, UsageError

agent = typer.Typer(
    help="Train language models in agents, environments and workflows of one's own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_Trainer = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION|FILE.yaml",
        help="Returns an AgentTrainer; it is called with the overrides. Or a file that names the environment.",
    ),
]
_Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE|FILE.yaml]...", help="Of the configuration.")
]


def _made_trainer(name: str, overrides: list[str] | None, policy: Path | None = None) -> Any:
    """Return the trainer that a function makes of these overrides; its members begin as a `policy`, if there is one."""
    from evopipe.compat.rllm.trainer import AgentTrainer
    from evopipe.own import import_name

    start = [] if policy is None else [f"population.start={policy}"]
    if name.endswith((".yaml", ".yml")):
        return AgentTrainer(config=[name, *(overrides or []), *start])
    made = import_name(name, "agent")([*(overrides or []), *start])
    if not isinstance(made, AgentTrainer):
        raise UsageError(f"agent: {name} returned {type(made).__name__}, expected an AgentTrainer")
    return made


@agent.command("train")
def _train(context: typer.Context, trainer: _Trainer, overrides: _Overrides = None) -> None:
    """Train, and print the elite's validation."""
    found = _made_trainer(trainer, overrides).train(quiet=context.obj.quiet)
    typer.echo(json.dumps(found.evaluation, indent=2))


@agent.command("evaluate")
def _evaluate(trainer: _Trainer, overrides: _Overrides = None) -> None:
    """Validate the base, untrained, and print its scores."""
    typer.echo(json.dumps(_made_trainer(trainer, overrides).evaluate(), indent=2))


@agent.command("run")
def _run(
    context: typer.Context,
    trainer: _Trainer,
    overrides: _Overrides = None,
    tasks: Annotated[
        Path | None, typer.Option(help="Tasks: .json, .jsonl, .csv or .parquet. Without it those of validations.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Who plays: models/elite or models/trained of a run. Without it the base.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The episodes, one JSON object a line.")] = Path("episodes.jsonl"),
    page: Annotated[Path | None, typer.Option(help="Also a page on which one reads them.")] = None,
) -> None:
    """Play tasks, write the episodes, and say what they came to."""
    from evopipe.agents import records
    from evopipe.stages.tell import tell

    made = _made_trainer(trainer, overrides, policy)
    found = made.play(tasks)
    records.write(out, found)
    if page is not None:
        records.show(made.resolved.params.language.task, {"Episodes": out}, page)
    tell(f"{out}: {records.summary(found)}", context.obj.quiet)
    if all("error" in each["info"] for each in found):
        told = found[0]["info"]["error"]
        raise EnvironmentFailed(f"every episode failed; the first: {told['error_type']}: {told['error_message']}")


@agent.command("show")
def _show(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER|FILE]", help="Of a run, or a file of episodes, one JSON object a line.")
    ] = Path(),
    out: Annotated[
        Path | None, typer.Option(help="The page. Without it reports/episodes.html of the run, or beside the file.")
    ] = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Whether to open it in a browser.")] = True,
) -> None:
    """Write the page on which one reads the episodes of a run, token by token, and open it."""
    from evopipe.agents.shown import page_of
    from evopipe.stages.tell import tell

    page = page_of(folder, out)
    tell(f"{page}: written", context.obj.quiet)
    if browser:
        webbrowser.open(page.resolve().as_uri())


@agent.command("serve")
def _serve(
    context: typer.Context,
    trainer: _Trainer,
    overrides: _Overrides = None,
    policy: Annotated[
        Path | None, typer.Option(help="Who answers: models/elite or models/trained of a run. Without it the base.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Sessions that clients named, as episodes, one JSON object a line.")
    ] = None,
) -> None:
    """Serve OpenAI's API on loopback until Ctrl-C or SIGTERM; the exit code is then 130 or 143.

    The first line that it prints is JSON: `base_url`, `api_key` and `model`, as clients take them.
    """
    from dataclasses import asdict

    from evopipe.agents import records
    from evopipe.errors import Interrupted
    from evopipe.signals import StopSignal
    from evopipe.stages.tell import tell

    made = _made_trainer(trainer, overrides, policy)
    with StopSignal() as stop:
        found = made.serve(
            port,
            lambda connection: typer.echo(json.dumps(asdict(connection))),
            lambda: stop.signum is not None,
        )
    if out is not None:
        records.write(out, found)
        tell(f"{out}: {len(found)} session{'s' * (len(found) != 1)}", context.obj.quiet)
    if stop.signum is not None:
        raise Interrupted(stop.signum, "the endpoint is closed")


@agent.command("explain")
def _explain(trainer: _Trainer, overrides: _Overrides = None) -> None:
    """Print the configuration in effect, with where each value came from."""
    typer.echo(_made_trainer(trainer, overrides).explain())


@agent.command("datasets")
def _datasets() -> None:
    """List the datasets that this project has registered."""
    from evopipe.agents.data import DatasetRegistry

    for name in DatasetRegistry.get_dataset_names():
        typer.echo(f"{name}: {', '.join(DatasetRegistry.get_dataset_splits(name))}")
