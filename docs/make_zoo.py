"""Write `docs/zoo.md`, and a page with pictures for each family, from the zoo's rows and results:
`python docs/make_zoo.py`; `--check` compares.

A page names the digest of the results that its pictures show, so that it is stale where they are.
"""

from __future__ import annotations

import hashlib
import sys
from itertools import starmap
from pathlib import Path

from make_parameters import publish

from evopipe import zoo
from evopipe.formats import duration, interval, number, score
from evopipe.zoo.row import SHARE, Over, ZooRow, sources
from evopipe.zoo.shown import answer, draw

PAGE = Path(__file__).parent / "zoo.md"
FOLDER = Path(__file__).parent / "zoo"
HOME = Path(__file__).parents[1]
HEAD = ("row", "seeds", "IQM", "95 % interval", "steps", "elite's", "CPU", "published", f"{SHARE:g} of it")
INTRODUCTION = """\
# The zoo

<!-- Made by docs/make_zoo.py from zoo/: do not edit. -->

Pipelines that were trained with several seeds each, on committed code: what they score, what that cost, and what others
published for the same algorithm and environment. Every row can be rebuilt.

```bash
evopipe zoo list                           # the tables below
evopipe zoo show ppo-cartpole              # each seed, with hashes; --picture curve.svg, --gif film.gif
evopipe zoo verify ppo-cartpole            # its best seed anew, compared with the recorded hash
evopipe zoo train ppo-cartpole --seeds 1-5 # what is missing of a row; without a row, of all: `make zoo`
```

```python
import evopipe

policy = evopipe.zoo.load("ppo-cartpole")  # the elite of the best seed
```

A row is a folder of `pipelines/`, whose `params.yaml` are its parameters, an entry of `zoo/rows.yaml`, and
`zoo/ROW.json` with its results; `zoo/ROW.safetensors` is the elite of its best seed, tensors and description in one.
They belong to the repository: an installed package holds none of them, and says so. With `--folder` the commands take
another clone than that around the working folder.

Each seed is recorded as soon as it has ended, so that training can be stopped, killed and continued, here or on another
machine: a seed that is recorded with the parameters that the pipeline has now is not trained again, and one that was
stopped goes on from its checkpoint where code and folder are the same. Other parameters make all seeds of a row
missing.

## What the numbers are

- **IQM** is the interquartile mean over seeds of the elite's mean over held-out episodes, which no training used; its
  interval is that of the stratified bootstrap ([Agarwal et al., 2021](https://arxiv.org/abs/2108.13264)), by the
  formulas of their library `rliable`. Over few seeds an interval is narrow rather than wide.
- **steps** are those of the whole population, of one seed: training's, and those of every evaluation that chose the
  elite.
- **elite's** are the steps in which the elite itself was trained, as published numbers count them: a member's where
  members train side by side, the last trial's where one follows another; the mean over seeds.
- **CPU** is what all stages of a seed cost, of one core. Of a run that was ended by SIGKILL, what it had done since it
  last started is not counted.
- **published** are the score, its deviation and its steps, as far as the source says: {sources}.
- **{share:g} of it**: whether the interval's lower end is at least {share:g} of the largest score published; of a
  negative score, whether it lies at most {rest:g} of its size below. A row that needed more steps for it than was
  published, by the elite's, says so and does not count.

`evopipe zoo verify` trains anew in an empty folder. Equal hashes of the elite's tensors settle it. Where the recorded
code or machine are others, other bits are to be expected: then intervals must meet, or means agree to a tenth, and it
says so, and what differs. It exits 65 where a like machine gives other bits by the same code, or scores do not agree.

To the hub: `evopipe push models/elite USER/NAME` and `evopipe pull USER/NAME FOLDER`, see
[the pipeline](pipeline.md#to-the-hub).
"""

FAMILY = """\
# The zoo: {title}

<!-- Made by docs/make_zoo.py from zoo/: do not edit. -->

The rows of one family; [the zoo](../zoo.md) says what the numbers are. A curve is the mean over seeds of the elite's
fitness, which chooses it, with a 95 % bootstrap interval; it spans what all seeds have. The table has held-out scores.
"""


def render() -> str:
    """Return the page."""
    rows, named = [(row, row.over()) for row in zoo.rows(HOME).values()], sources(HOME)
    links = ", ".join(f"[{name}]({address})" for name, address in named.items())
    parts = [INTRODUCTION.format(sources=links, share=SHARE, rest=round(1 - SHARE, 2))]
    for family, trained in families().items():
        curves = f"[The learning curves]({FOLDER.name}/{_slug(family)}.md)."
        parts.append(f"## {_title(family)}\n\n{_table([HEAD, *starmap(_line, trained)])}\n\n{curves}\n")
    short = [row for row, over in rows if over and (row.entry.reached(over) is False or row.entry.tried)]
    if short:
        said = "\n".join(
            f"- `{row.name}`: {row.entry.tried or 'nothing was tried yet beside its pipeline.'}" for row in short
        )
        parts.append(f"## What falls short, and what was tried\n\n{said}\n")
    left = [f"`{row.name}`" for row, over in rows if over is None]
    if left:
        parts.append(f"## Not trained yet\n\n{', '.join(left)}.\n")
    return "\n".join(parts)


def families() -> dict[str, list[tuple[ZooRow, Over]]]:
    """Return the trained rows of each family, with what they came to over seeds."""
    found: dict[str, list[tuple[ZooRow, Over]]] = {}
    for row in zoo.rows(HOME).values():
        if (over := row.over()) is not None:
            found.setdefault(row.entry.family, []).append((row, over))
    return found


def render_family(family: str, rows: list[tuple[ZooRow, Over]]) -> str:
    """Return the page of a family."""
    parts = [FAMILY.format(title=_title(family))]
    for row, over in rows:
        digest = hashlib.sha256(row.file.read_bytes()).hexdigest()[:16]
        table = _table([HEAD[1:], _line(row, over)[1:]])
        parts.append(
            f"## {row.name}\n\n<!-- of the results {digest} -->\n\n{table}\n\n"
            f"![The elite's fitness over steps and over seconds]({row.name}.svg)\n\n"
            f"Parameters: [pipelines/{row.name}](../../pipelines/{row.name}); its film: "
            f"`evopipe zoo show {row.name} --gif film.gif`; rebuild it: `evopipe zoo verify {row.name}`.\n"
        )
    return "\n".join(parts)


def _title(family: str) -> str:
    return f"{family[0].upper()}{family[1:]}"


def _slug(family: str) -> str:
    return family.lower().replace(" ", "-")


def _line(row: ZooRow, over: Over) -> tuple[str, ...]:
    name = f"[{row.name}](../pipelines/{row.name})"
    published = "; ".join(
        f"{each.by} {score(each.score)}"
        + ("" if each.deviation is None else f" ± {number(each.deviation)}")
        + ("" if each.steps is None else f" ({each.steps:,})")
        for each in row.entry.published
    )
    found = answer(row, over)
    return (
        name, str(over.seeds), score(over.iqm), interval(over.interval), f"{over.steps:,.0f}",
        f"{over.agent_steps:,.0f}", duration(over.cpu_seconds), published,
        found if found in ("", "yes") else f"**{found}**",
    )  # fmt: skip


def _table(lines: list[tuple[str, ...]]) -> str:
    """Return a table of Markdown; the first line is its head."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rest))


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages, and draw the pictures of those that were stale."""
    pages = {PAGE: render()}
    pictures: dict[Path, list[ZooRow]] = {}
    for family, rows in families().items():
        page = FOLDER / f"{_slug(family)}.md"
        pages[page] = render_family(family, rows)
        if not page.is_file() or page.read_text(encoding="utf-8") != pages[page]:
            pictures[page] = [row for row, _ in rows]
    code = publish(pages, "Write the pages of the zoo from its results.", arguments, "make_zoo")
    if "--check" not in (arguments if arguments is not None else sys.argv):
        for row in (row for stale in pictures.values() for row in stale):
            draw(row, FOLDER / f"{row.name}.svg")
    return code


if __name__ == "__main__":
    sys.exit(main())
