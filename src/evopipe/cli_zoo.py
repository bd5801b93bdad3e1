"""The command line's group `zoo`, and what goes to the hub and comes from there, see `evopipe.cli`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from evopipe.errors import UsageError
from evopipe.stages.tell import warn

zoo = typer.Typer(
    help="Trained rows of the repository: scores with intervals over seeds, and elites that can be rebuilt.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_MOST = 1000
_Folder = Annotated[
    Path | None, typer.Option(metavar="DIR", help="A clone of evopipe's repository. None: here, or above.")
]
_Name = Annotated[str, typer.Argument(metavar="ROW", help="Such as ppo-cartpole, see `evopipe zoo list`.")]
_Jobs = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=1024, help="Seeds at the same time. None: as many as CPUs.")
]


def seeds_of(text: str) -> list[int]:
    """Return the seeds that a text such as `1-5` or `1,3,7-9` names, without duplicates.

    Raises:
        UsageError: the text has another form, or names too many seeds (a range may have at most 1000).
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first >= _MOST or len(found) >= _MOST:
            raise UsageError(f"zoo: --seeds {text!r:.60} names no seeds: write them as 1-5 or 1,3,4")
        found |= dict.fromkeys(range(first, last + 1))
    return [*found]


@zoo.command("list")
def _list(folder: _Folder = None) -> None:
    """List the rows: scores over seeds, what they cost, what was published."""
    from evopipe.zoo.shown import table

    for line in table(folder):
        typer.echo(line)


@zoo.command("show")
def _show(
    context: typer.Context,
    name: _Name,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw its curve: .svg or .png.")] = None,
    gif: Annotated[Path | None, typer.Option(metavar="FILE", help="Film its elite: an animated GIF.")] = None,
    folder: _Folder = None,
) -> None:
    """Show a row: each seed's score and cost, what was published, how to rebuild it."""
    from evopipe.zoo import shown
    from evopipe.zoo.row import find, sources

    row = find(name, folder)
    for line in shown.described(row, sources(folder)):
        typer.echo(line)
    for path, make in ((picture, shown.draw), (gif, shown.film)):
        if path is not None:
            make(row, path)
            context.obj.tell(f"written: {path}")


@zoo.command("train")
def _train(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ROW]...", help="None: all, the cheapest first.")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="Which seeds: 1-5, or 1,3.")] = "1-5",
    jobs: _Jobs = None,
    folder: _Folder = None,
) -> None:
    """Train what is missing and record it in zoo/. The same command continues what was stopped."""
    from evopipe.zoo.row import find, rows
    from evopipe.zoo.train import train

    chosen = [find(name, folder) for name in dict.fromkeys(names)] if names else [*rows(folder).values()]
    train(chosen, seeds_of(seeds), jobs, context.obj.tell, warn)


@zoo.command("verify")
def _verify(
    context: typer.Context,
    name: _Name,
    seeds: Annotated[str | None, typer.Option(metavar="SEEDS", help="1-5, or 1,3. None: the best one.")] = None,
    jobs: _Jobs = None,
    folder: _Folder = None,
) -> None:
    """Train seeds of a row anew, and compare with the recorded hashes, or on another machine with the interval."""
    from functools import partial

    from evopipe.zoo.row import find
    from evopipe.zoo.verify import verify

    tell = context.obj.tell
    verify(find(name, folder), None if seeds is None else seeds_of(seeds), jobs, tell, partial(tell, err=True), warn)


_Repo = Annotated[str, typer.Argument(metavar="USER/NAME", help="A repository of the Hugging Face hub.")]


def push(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An exported policy, such as models/elite.")],
    repo: _Repo,
    dry_run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the folder as it would be pushed; no network.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a repository that is new private.")] = False,
    film: Annotated[bool, typer.Option("--film/--no-film", help="Film the elite.")] = True,
) -> None:
    """Push an elite (the best member) to the Hugging Face hub, with its card, film, lineage and parameters."""
    from evopipe import hub

    hub.push(folder, repo, dry_run, private, film, context.obj.tell, warn)


def pull(
    context: typer.Context,
    repo: _Repo,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to: a folder that is not there yet.")],
    revision: Annotated[str | None, typer.Option(metavar="REV", help="A branch, a tag or a commit.")] = None,
) -> None:
    """Fetch an elite (the best member) from the Hugging Face hub. The folder is made only after every file was
    checked."""
    from evopipe import hub

    hub.pull(repo, folder, revision, context.obj.tell, warn)
