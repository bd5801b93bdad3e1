"""The report's page: one HTML file that holds everything, fetches nothing and has no script."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from evopipe.errors import DataError
from evopipe.layout import ELITE
from evopipe.report import draw, figures, words
from evopipe.report.movie import Movie
from evopipe.report.read import Run, read

_TEXT, _GAMES = (
    "What the elite writes stands below, beside what the base does.",
    "Games that the elite played stand below.",
)


def page(folder: str | Path, params: Mapping[str, Any]) -> str:
    """Return the report of the run in a folder as one HTML file's text: the same for the same files and parameters. The
    parameters to show are in the layout of `params.yaml`. `MissingInputError` or `DataError` if a file is not there, is
    damaged, or of another run than the parameters describe."""
    run, elite = read(Path(folder)), Path(folder) / ELITE
    wanted = {"algo": params.get("train", {}).get("algo"), "env": params.get("env", {}).get("id")}
    found = {"algo": run.policy["algo"], "env": run.policy["env"]["id"]}
    for name, value in wanted.items():
        if value not in (None, found[name]):
            raise DataError(
                f"{elite}: written for {name} {found[name]!r}, params.yaml says {value!r}; run `evopipe export` or "
                "`dvc repro export` again"
            )
    if run.told is not None:
        return compose(run, params, _GAMES if run.told.games else _TEXT)
    return compose(run, params, Movie.filmed(elite, run, params.get("evaluate", {}).get("steps")))


def compose(run: Run, params: Mapping[str, Any], movie: Movie | str) -> str:
    """Return the page of a run that was read, with the film of its elite or the sentence in its place."""
    html = words.template("page.html.j2", figures=figures, words=words, flat=_flat, breakable=_breakable,
                          inline=lambda webp: f"data:image/webp;base64,{base64.b64encode(webp).decode()}")  # fmt: skip
    provenance, algo = dict(run.policy["provenance"]), run.policy["algo"]
    machine = provenance.pop("fingerprint", {})
    provenance.setdefault("git_revision", None)
    with draw.style():
        return html.render(
            run=run,
            movie=movie,
            origins={"provenance": provenance, "machine and versions": machine},
            settings={
                "general": {"seed": params.get("seed")},
                **{name: value for name, value in params.items() if name not in ("algos", "seed")},
                f"algos.{algo}": params.get("algos", {}).get(algo, {}),
            },
        )


def without_measured(text: str) -> str:
    """Return a page without the part that holds a measurement, for comparisons: the rest is the same for equal runs."""
    start, end = "<!-- measured -->", "<!-- /measured -->"
    return re.sub(f"{start}.*?{end}", start + end, text, flags=re.DOTALL)


def _breakable(key: str) -> Markup:
    """Let a long dotted name break where a person would break it."""
    return escape(words.clean(key)).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return the leaves of nested mappings as text, by dotted name."""
    if isinstance(value, Mapping) and value:
        return [leaf for key, entry in value.items() for leaf in _flat(entry, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list | tuple):
        return [(name, ", ".join(map(words.value, value)) or "none")]
    return [(name, words.value(value))]
