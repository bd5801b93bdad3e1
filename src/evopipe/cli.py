"""The command line: one command per stage, and the utilities.

A command imports what it runs inside its function, so that `--help` answers at once and a light command loads only what
it needs.
"""

from __future__ import annotations

import gc
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from evopipe import layout
from evopipe.cli_agent import agent
from evopipe.cli_env import env
from evopipe.cli_params import params
from evopipe.cli_shared import Arguments, Options, loading_later, without_torch
from evopipe.cli_zoo import pull, push, zoo
from evopipe.errors import UsageError
from evopipe.imports import uncollected
from evopipe.stages.tell import warn
from evopipe.version import __version__

app = typer.Typer(
    name="evopipe",
    help="Train populations of reinforcement-learning agents that tune themselves while they learn.",
    epilog=f"`dvc repro` runs the stages in order: {', '.join(layout.OUTS)}.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _group(name: str, what: str) -> typer.Typer:
    group = typer.Typer(help=what, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


_gpu = _group("gpu", "Try this machine's GPU.")
app.add_typer(params, name="params")
_track = _group("track", "See and compare runs in MLflow, Weights & Biases, TensorBoard.")
app.add_typer(env, name="env")
app.add_typer(agent, name="agent")
app.add_typer(zoo, name="zoo")
app.command("push")(push)
app.command("pull")(pull)


def _print_version(wanted: bool) -> None:
    if wanted:
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


def _stage(stage: layout.Stage) -> Callable[..., None]:
    def run(context: typer.Context) -> None:
        with uncollected(), loading_later(*["torch"] * stage.light):
            from evopipe import stages
            from evopipe.signals import watch_ancestors
            from evopipe.track import tracking

            watch_ancestors()
            params, module = context.obj.load(), stages.module_of(stage)
            if stage.dataset:
                from evopipe.problems import part_of

                part_of(params, "data")
        gc.freeze()  # what was imported stays, and is not looked through again; `main` undoes it
        with context.obj.placing():
            if not stage.env.reads:  # the first of a pipeline
                from evopipe.problems import check

                check(params)
            module.run(params, quiet=context.obj.quiet, **context.obj.more)
        tracking.attach(params.tracking, [stage.name])

    def with_others(
        context: typer.Context,
        others: Annotated[
            list[str] | None,
            typer.Option("--with", metavar="WHAT", help="Another run to show beside, as for compare; repeat."),
        ] = None,
    ) -> None:
        if others:
            from evopipe.compare import compare
            from evopipe.compare.pictures import family

            context.obj.more["family"] = family(*compare([".", *others]))
        run(context)

    return with_others if layout.REPORT in layout.OUTS[stage.name] else run


for _each in layout.STAGES:
    app.command(_each.name, help=_each.described)(_stage(_each))


@app.command("play")
def _play(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An exported policy.")] = Path("models/elite"),
    episodes: Annotated[int, typer.Option(metavar="N", min=1, help="How many episodes.")] = 1,
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of the first; the next ones count up.")] = 0,
    max_steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Step cap of an episode.")] = None,
    gif: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an animated GIF; no window.")] = None,
    mp4: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an MP4 film; no window.")] = None,
    env: Annotated[str | None, typer.Option(metavar="ID", help="Another environment than the policy's own.")] = None,
    kwargs: Arguments = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the modules that the folder names.")] = False,
    opponent: Annotated[
        str | None, typer.Option(metavar="WHO", help="In a game: random, itself, an elite's folder, a league's file.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="What a language model is to complete.")] = None,
) -> None:
    """Watch a policy: in a window, as a file, or as the text of a game. A language model completes a prompt, or lines
    until an empty one; a player of games plays them."""
    from evopipe.formats import score
    from evopipe.policies import film
    from evopipe.policies import play as player
    from evopipe.policies.loading import load

    policy, tell = load(folder, trust=trust), context.obj.tell
    if not isinstance(policy, player.Actor):
        if prompt is None:
            policy.perform(episodes, seed, _asked, typer.echo, tell)
        else:
            typer.echo(policy.generate(prompt))
        return
    if prompt is not None:
        raise UsageError(f"play: {folder} is no language model: it takes no --prompt")
    films = {path: partial(write, path) for write, path in ((film.gif, gif), (film.mp4, mp4)) if path}
    cfg = player.environment_of(policy, env, kwargs, trust)
    if opponent is not None:
        cfg = player.against(folder, cfg, opponent)
    if not (films or player.has_display() or player.drawn_as_text(cfg)):
        raise UsageError(
            "play: there is no display here to open a window on; write a file instead: "
            f"evopipe play {shlex.quote(str(folder))} --gif play.gif, or --mp4 play.mp4"
        )
    for path in films:
        if path.is_dir():
            raise UsageError(f"play: {path} is a folder; give the name of a file")

    say = lambda played: tell(f"seed {played.seed}: return {score(played.total)}, {played.steps} steps")  # noqa: E731
    scores = player.watch(policy, cfg, list(films.values()), episodes, seed, max_steps, say, typer.echo)
    if scores:
        mean = sum(played.total for played in scores) / len(scores)
        tell(f"{cfg.id}: mean return {score(mean)} of {len(scores)} episode{'s' * (len(scores) > 1)}")
        for path in films:
            tell(f"written: {path}")


@app.command("onnx")
def _onnx(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An exported policy.")] = Path("models/elite"),
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where to write them.")] = Path(),
    trust: Annotated[bool, typer.Option("--trust", help="Run the modules that the folder names.")] = False,
) -> None:
    """Convert a policy to ONNX: policy.onnx, or a program for each agent of a team."""
    from evopipe.policies import onnx

    for path in onnx.write(folder, out, trust):
        context.obj.tell(f"written: {path}")


def _asked() -> str:
    """Return the line that someone types; an empty one where there is no more."""
    with suppress(typer.Abort):  # its input is at its end
        return str(typer.prompt("you", default="", show_default=False))
    return ""


@app.command("replay")
def _replay(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where params.yaml, models/ and reports/ of the run lie.")
    ] = Path(),
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many other seeds.")] = 3,
) -> None:
    """Train the elite's schedule of hyper-parameters from scratch with other seeds: reports/replay.json."""
    from evopipe import replay
    from evopipe.signals import watch_ancestors

    watch_ancestors()
    with replay.inside(folder):
        params = context.obj.load()
        with context.obj.placing():
            replay.run(params, seeds, context.obj.quiet)


@app.command("sweep")
def _sweep(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Runs lie in sweeps/NAME.")] = "sweep",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=V1,V2", help="Values of a grid; may stand again.")
    ] = None,
    samples: Annotated[
        list[str] | None,
        typer.Option(
            "--sample",
            metavar="KEY=DIST",
            help="uniform(a,b), loguniform(a,b), integers(a,b) or choice(a,b,c); may stand again.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", min=1, help="Draws of what --sample names.")] = None,
    sampler: Annotated[Literal["random", "sobol"], typer.Option(help="How --sample draws.")] = "random",
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1024, help="Runs at the same time. None: as many as CPUs.")
    ] = None,
    experiments: Annotated[
        bool, typer.Option("--experiments/--no-experiments", help="Make DVC experiments of them afterwards.")
    ] = True,
) -> None:
    """Run many settings side by side: a grid, or drawn values. The same command continues what was stopped."""
    from evopipe import sweep

    sweep.command(
        context.obj.params, name, sets or (), samples or (), trials, sampler, jobs, experiments, context.obj.tell, warn
    )


@app.command("doctor")
def _doctor(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where a run goes on, or its results lie.", show_default=False)
    ] = Path(),
) -> None:
    """Say what to change next in a run that goes on or has ended; for an environment, see evopipe env check."""
    from evopipe import doctor

    for line in doctor.told(*doctor.examine(folder)):
        typer.echo(line)


@app.command("compare")
def _compare(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WHAT]...", help="Folders, experiments, git revisions. None: here, HEAD, experiments."),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", "-A", help="Experiments of all commits, not only HEAD's.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it too: .svg or .png.")] = None,
    curves: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the elite's fitness over steps and over seconds.")
    ] = None,
    parallel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw a line for each run: its parameters that differ, and its score."),
    ] = None,
) -> None:
    """Compare configurations: the elite's mean, interval and IQM, over seeds where there are several."""
    from evopipe import compare as comparison
    from evopipe.compare import pictures

    rows, notes = comparison.compare(what or (), everywhere)
    for note in notes:
        warn(note)
    typer.echo(comparison.table(rows))
    wanted = ((picture, pictures.draw), (curves, pictures.draw_curves), (parallel, pictures.draw_parallel))
    for path, draw in wanted:
        if path:
            draw(rows, path)
            context.obj.tell(f"written: {path}")


@app.command("verify")
def _verify(
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
    from evopipe.verify.clones import verify as run_verify

    tell = context.obj.tell
    run_verify(pipeline, lock, jobs, tolerance, keep, tell, partial(tell, err=True), warn)


@app.command("new")
def _new(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet, or empty.")],
    env: Annotated[str | None, typer.Option(metavar="ID", help="A Gymnasium id in place of the example.")] = None,
    language: Annotated[
        bool, typer.Option("--language", help="For a language model, with a task of your own.")
    ] = False,
    agent: Annotated[bool, typer.Option("--agent", help="For a language model that plays in an agent.")] = False,
) -> None:
    """Make a project of your own in a new folder."""
    from evopipe.new.project import make

    if language and agent:
        raise UsageError("new: --language and --agent are two kinds of project: give one of them")
    context.obj.tell(make(folder, env, "language" if language else "agent" if agent else "environment"))
    context.obj.tell(f"next: cd {shlex.quote(str(folder))} && dvc repro")


@app.command("algos")
def _algos() -> None:
    """List the algorithms."""
    without_torch()
    from evopipe import algos as registry

    for name in registry.names(None):
        if (wrong := registry.refused(name)) is not None:
            warn(f"{name}: {wrong}")
            continue
        algo, outside = registry.get(name), registry.plugin(name)
        of = f" ({outside.package} {outside.version})" if outside else ""
        typer.echo(f"{name:8} {(algo.__doc__ or '').partition(chr(10))[0]} {algo.PAPER}{of}")


@_gpu.command("check")
def _gpu_check(
    context: typer.Context,
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="cpu tries the check itself.")] = "cuda",
    algo: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Not all algorithms; may stand again.")] = None,
    members: Annotated[int, typer.Option(metavar="N", min=1, max=4096, help="Members of the population.")] = 8,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Timings of each way, in turns.")] = 9,
) -> None:
    """Compare graphs with eager code and the GPU with the CPU, and time both ways."""
    from evopipe.verify import gpu

    gpu.check(algo or (), gpu.find_device(device), members, repeats, context.obj.tell, envs=16)


@_track.command("sync")
def _track_sync(context: typer.Context) -> None:
    """Bring to the trackers what they have not got: this machine's runs, DVC's experiments, restored runs."""
    without_torch()
    tracking = context.obj.load().tracking
    if not tracking.backends:
        raise UsageError(f"{context.obj.params}: tracking.backends is empty: name a tracker, such as [mlflow]")
    from evopipe.storage.keys import dvc_root
    from evopipe.track.outbox import sync

    for name, new in sync(dvc_root(), tracking, context.obj.tell, warn).items():
        context.obj.tell(f"{name}: {new}")


@_track.command("ui")
def _track_ui(
    context: typer.Context,
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65535, help="On this machine only.")] = 5000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Open the MLflow pages of this project."""
    from evopipe.storage.keys import dvc_root
    from evopipe.track.backends.mlflow import serve

    serve(dvc_root(), port, browser, context.obj.tell)
