"""The command line: one command per stage, and the utilities.

Imports stand inside the commands, so that `--help` answers at once and a light command loads only what it needs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evopipe.errors import EnvironmentFailed, UsageError, did_you_mean
from evopipe.lazy import defer

if TYPE_CHECKING:
    from evopipe.config import Params
    from evopipe.play import Score

HEAVY = ("torch", "numpy", "gymnasium", "h5py", "safetensors", "minari")
FLAGS = frozenset({"--quiet", "-q", "--debug"})

app = typer.Typer(
    name="evopipe",
    help="Train populations of reinforcement-learning agents that tune themselves while they learn.",
    epilog="`dvc repro` runs the stages in order: fetch, buffer, population, train, evaluate, export, report.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
params_app = typer.Typer(help="Check and show params.yaml.", no_args_is_help=True, rich_markup_mode=None)
env_app = typer.Typer(help="Try environments.", no_args_is_help=True, rich_markup_mode=None)
track_app = typer.Typer(
    help="See and compare runs in MLflow, Weights & Biases, TensorBoard.", no_args_is_help=True, rich_markup_mode=None
)
gpu_app = typer.Typer(help="Try this machine's GPU.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(gpu_app, name="gpu")
app.add_typer(params_app, name="params")
app.add_typer(track_app, name="track")
app.add_typer(env_app, name="env")


@dataclass(frozen=True)
class Options:
    """The options that every command takes."""

    params: str
    quiet: bool


def globals_first(arguments: list[str]) -> list[str]:
    """Move the options that every command takes to the front, so that they may stand after the command too.

    Raises:
        UsageError: `--params` is the last word.
    """
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest.extend((word, *words))
        elif word in FLAGS or word.startswith("--params="):
            front.append(word)
        elif word == "--params":
            value = next(words, None)
            if value is None:
                raise UsageError("--params needs the name of a file: --params FILE")
            front.extend((word, value))
        else:
            rest.append(word)
    return front + rest


def _print_version(wanted: bool) -> None:
    if wanted:
        from evopipe import __version__

        typer.echo(f"evopipe {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    params: Annotated[str, typer.Option(metavar="FILE", help="The params file.")] = "params.yaml",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = Options(params, quiet)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _load(context: typer.Context) -> Params:
    from evopipe.config import load_params

    options: Options = context.obj
    return load_params(options.params)


def _run_stage(context: typer.Context, stage: str) -> None:
    from importlib import import_module

    from evopipe.runtime import watch_ancestors

    watch_ancestors()
    params = _load(context)
    import_module(f"evopipe.stages.{stage}").run(params, quiet=context.obj.quiet)
    from evopipe.stages import tracking

    tracking.attach(params, [stage])


@app.command()
def fetch(context: typer.Context) -> None:
    """Collect, download or convert the dataset: data/dataset."""
    _run_stage(context, "fetch")


@app.command()
def buffer(context: typer.Context) -> None:
    """Pack the dataset into transitions: data/transitions.h5."""
    _run_stage(context, "buffer")


@app.command()
def population(context: typer.Context) -> None:
    """Make the initial members: models/population."""
    _run_stage(context, "population")


@app.command()
def train(context: typer.Context) -> None:
    """Evolve the population: models/trained."""
    _run_stage(context, "train")


@app.command()
def evaluate(context: typer.Context) -> None:
    """Score every member on held-out seeds: reports/evaluation.json."""
    _run_stage(context, "evaluate")


@app.command()
def export(context: typer.Context) -> None:
    """Write the elite as files that run anywhere: models/elite."""
    _run_stage(context, "export")


@app.command()
def report(context: typer.Context) -> None:
    """Show what happened, as one page: reports/report.html."""
    _run_stage(context, "report")


@app.command()
def play(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An exported policy.")] = Path("models/elite"),
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="How many episodes.")] = 1,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of the first; the next ones count up.")] = 0,
    max_steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Step cap of an episode.")] = None,
    gif: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an animated GIF; no window.")] = None,
    mp4: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an MP4 film; no window.")] = None,
    env: Annotated[str | None, typer.Option(metavar="ID", help="Another environment than the policy's own.")] = None,
    kwargs: Annotated[str | None, typer.Option(metavar="JSON", help="Other arguments of the environment.")] = None,
) -> None:
    """Watch a policy: in a window, or as a file."""
    settings = None if kwargs is None else _json_mapping(kwargs)
    from evopipe import film
    from evopipe import play as player
    from evopipe.policy import load

    if not (gif or mp4 or player.has_display()):
        raise UsageError(
            "play: there is no display here to open a window on; write a file instead: "
            f"evopipe play {shlex.quote(str(folder))} --gif play.gif, or --mp4 play.mp4"
        )
    for path in filter(None, (gif, mp4)):
        if path.is_dir():
            raise UsageError(f"play: {path} is a folder; give the name of a file")
    policy = load(folder)
    cfg = player.environment_of(policy, env, settings)
    films = {path: partial(write, path) for write, path in ((film.gif, gif), (film.mp4, mp4)) if path}
    tell = None if context.obj.quiet else _tell_score
    scores = player.watch(policy, cfg, list(films.values()), episodes, seed, max_steps, tell)
    if scores and not context.obj.quiet:
        mean = sum(score.total for score in scores) / len(scores)
        typer.echo(f"{cfg.id}: mean return {mean:.1f} of {len(scores)} episode{'s' * (len(scores) > 1)}")
        for path in films:
            typer.echo(f"written: {path}")


def _tell_score(score: Score) -> None:
    typer.echo(f"seed {score.seed}: return {score.total:.1f}, {score.steps} steps")


@app.command()
def verify(
    context: typer.Context,
    pipeline: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder of dvc.yaml.")] = Path(),
    jobs: Annotated[int, typer.Option(metavar="N", min=1, max=2, help="Clones that run at the same time.")] = 1,
    lock: Annotated[bool, typer.Option("--lock", help="One clone, against the committed dvc.lock.")] = False,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", min=0.0, help="With --lock: how far the elite's score may be off.")
    ] = 0.1,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the clones there.")] = False,
) -> None:
    """Run HEAD anew in two clean clones and compare every out."""
    from evopipe.verify import run

    def warn(sentence: str) -> None:
        typer.echo(f"warning: {sentence}", err=True)

    def tell(sentence: str) -> None:
        if not context.obj.quiet:
            typer.echo(sentence, err=True)

    def show(table: str) -> None:
        if not context.obj.quiet:
            typer.echo(table)

    run.verify(pipeline, lock, jobs, tolerance, keep, show, tell, warn)


@app.command()
def new(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet, or empty.")],
    env: Annotated[str | None, typer.Option(metavar="ID", help="A Gymnasium id in place of the example.")] = None,
) -> None:
    """Make a project of your own in a new folder."""
    from evopipe.new.project import make

    made = make(folder, env)
    if context.obj.quiet:
        return
    typer.echo(f"{made.folder}: a project for {made.env_id}; {made.repository}")
    typer.echo(f"next: cd {shlex.quote(str(made.folder))} && dvc repro")


@params_app.command("check")
def params_check(context: typer.Context) -> None:
    """Say what is wrong with the params file, and where."""
    defer(*HEAVY)
    _load(context)
    if not context.obj.quiet:
        typer.echo(f"{context.obj.params}: ok")


@params_app.command("schema")
def params_schema() -> None:
    """Print the JSON schema of params.yaml."""
    defer(*HEAVY)
    from evopipe.config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@params_app.command("show")
def params_show(
    context: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="[KEY.PATH]", help="One value, such as train.max_steps.")] = None,
) -> None:
    """Print the parameters in effect, or one of them."""
    defer(*HEAVY)
    from evopipe.storage.yamlio import dump_yaml

    value: Any = _load(context).model_dump(mode="json")
    if key is not None:
        value = _value_at(value, key)
    typer.echo(value if isinstance(value, str) else dump_yaml(value).rstrip("\n"))


@params_app.command("block")
def params_block(algo: Annotated[str, typer.Argument(metavar="ALGO", help="An algorithm, see evopipe algos.")]) -> None:
    """Print an algorithm's block with its defaults, to go below `algos:`."""
    defer(*HEAVY)
    from evopipe import algos
    from evopipe.schema_yaml import block

    if algo not in algos.names():
        guess = did_you_mean(algo, algos.names())
        raise UsageError(f"params block: no algorithm {algo!r}{guess} (there are: {', '.join(algos.names())})")
    typer.echo(block(algo, algos.get(algo).Config(), depth=1), nl=False)


def _value_at(value: Any, path: str) -> Any:
    for depth, step in enumerate(steps := path.split(".")):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, Mapping) and step in value:
            value = value[step]
        else:
            where = f" in {'.'.join(steps[:depth])}" if depth else ""
            known = list(value) if isinstance(value, Mapping) else []
            there = f", known are: {', '.join(known)}" if known else ", it holds no keys"
            raise UsageError(f"params show: no key {step!r}{where}{did_you_mean(step, known) or there}")
    return value


@env_app.command("check")
def env_check(
    context: typer.Context,
    env_id: Annotated[str, typer.Argument(metavar="ID", help="Gymnasium id, or module:EnvId.")],
    kwargs: Annotated[str, typer.Option(metavar="JSON", help="Keyword arguments of the environment.")] = "{}",
) -> None:
    """Try an environment: spaces, resets, steps, dtypes, determinism."""
    arguments = _json_mapping(kwargs)
    from evopipe.envs.check import check

    findings = check(env_id, arguments)
    errors = [finding.removeprefix("error: ") for finding in findings if finding.startswith("error: ")]
    for finding in findings:
        if not finding.startswith("error: "):
            typer.echo(f"{env_id}: {finding}", err=True)
    if errors:
        raise EnvironmentFailed("\n".join(f"{env_id}: {error}" for error in errors))
    if not context.obj.quiet:
        typer.echo(f"{env_id}: ok")


def _json_mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--kwargs: not JSON ({error}): write it like '{{\"continuous\": false}}'") from None
    if not isinstance(value, dict):
        raise UsageError("--kwargs: must be a JSON object: write it like '{\"continuous\": false}'")
    return value


@gpu_app.command("check")
def gpu_check(
    context: typer.Context,
    device: Annotated[str, typer.Option(metavar="cuda|cpu", help="cpu tries the check itself.")] = "cuda",
    algo: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Not all algorithms; may stand again.")] = None,
    members: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Members of the population.")] = 8,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Timings of each way, in turns.")] = 9,
) -> None:
    """Compare graphs with eager code and the GPU with the CPU, and time both ways."""
    if device not in ("cuda", "cpu"):
        raise UsageError(f"gpu check: --device must be cuda or cpu, got {device!r}")
    from evopipe.verify import gpu

    def tell(finding: gpu.Finding) -> None:
        if not context.obj.quiet:
            verdict = {True: "ok", False: "BAD", None: ""}[finding.good]
            typer.echo(f"{finding.algo:8} {finding.what:44} {verdict:4} {finding.result}".rstrip())

    gpu.check(algo or (), gpu.find_device(device), gpu.Size(members=members), repeats, tell)


@track_app.command("sync")
def track_sync(context: typer.Context) -> None:
    """Bring to the trackers what they have not got: this machine's runs, DVC's experiments, restored runs."""
    defer("torch", "gymnasium", "h5py", "safetensors", "minari")
    tracking = _load(context).tracking
    if not tracking.backends:
        raise UsageError(f"{context.obj.params}: tracking.backends is empty: name a tracker, such as [mlflow]")
    from evopipe.runtime import dvc_root
    from evopipe.track.sync import sync

    def tell(sentence: str) -> None:
        if not context.obj.quiet:
            typer.echo(sentence)

    def warn(sentence: str) -> None:
        typer.echo(f"warning: {sentence}", err=True)

    for name, new in sync(dvc_root(), tracking, tell, warn).items():
        tell(f"{name}: {new}")


@track_app.command("ui")
def track_ui(
    context: typer.Context,
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="On this machine only.")] = 5000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Open the MLflow pages of this project."""
    from evopipe.runtime import dvc_root
    from evopipe.track.ui import serve

    def tell(sentence: str) -> None:
        if not context.obj.quiet:
            typer.echo(sentence)

    serve(dvc_root(), port, browser, tell)


@app.command("algos")
def algos_table() -> None:
    """List the algorithms."""
    defer(*HEAVY)
    rows = list(_algorithms())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _algorithms() -> Iterator[tuple[str, str, str]]:
    """Name, one line and paper of each algorithm."""
    from evopipe import algos

    for name in algos.names():
        algorithm = algos.get(name)
        yield name, (algorithm.__doc__ or "").partition("\n")[0], algorithm.PAPER
