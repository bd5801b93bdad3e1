"""The report's page: everything in one file, nothing fetched, no script."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evopipe.errors import DataError
from evopipe.report import draw, figures, words
from evopipe.report.movie import Movie, film
from evopipe.report.read import ELITE, Run, read

MEASURED = ("<!-- measured -->", "<!-- /measured -->")
_STYLE = Path(__file__).with_name("page.css")
_SHAPES = {
    "o": '<circle cx="7" cy="7" r="4.5"/>',
    "s": '<rect x="2.5" y="2.5" width="9" height="9"/>',
    "D": '<path d="M7 1.5 12.5 7 7 12.5 1.5 7z"/>',
    "^": '<path d="M7 2 12.5 12h-11z"/>',
    "v": '<path d="M7 12 1.5 2h11z"/>',
    "x": '<path d="M3 3l8 8M11 3l-8 8" stroke-width="2"/>',
}


def page(folder: str | Path, params: Mapping[str, Any]) -> str:
    """Return the report of a finished run as one HTML file's text.

    Args:
        folder: the folder that the pipeline ran in: it has `reports/` and `models/elite/`.
        params: the parameters to show, in the layout of `params.yaml`; those that are none of the run's are left out.

    Returns:
        Text that is the same for the same files and parameters, and loads nothing from elsewhere.

    Raises:
        MissingInputError: a file of the run is not there.
        DataError: a file of the run is damaged, or the run is another one than the parameters describe.
    """
    run = read(Path(folder))
    _check_fit(run, params, Path(folder) / ELITE)
    movie = film(Path(folder) / ELITE, run.elite, params.get("evaluate", {}).get("steps"))
    return compose(run, params, movie)


def _check_fit(run: Run, params: Mapping[str, Any], elite: Path) -> None:
    wanted = {"algo": params.get("train", {}).get("algo"), "env": params.get("env", {}).get("id")}
    found = {"algo": run.policy["algo"], "env": run.policy["env"]["id"]}
    for name, value in wanted.items():
        if value is not None and value != found[name]:
            raise DataError(
                f"{elite}: written for {name} {found[name]!r}, params.yaml says {value!r}; run `evopipe export` or "
                "`dvc repro export` again"
            )


def compose(run: Run, params: Mapping[str, Any], movie: Movie | str) -> str:
    """Return the page of a run that was read, with the film of its elite or the sentence in its place."""
    with draw.style():
        sections = [
            ("fitness", "Fitness", "Fitness", _fitness(run)),
            ("lineage", "Lineage", "Lineage", _lineage(run)),
            ("mutations", "Mutations", "Which mutations paid", _mutations(run)),
            ("trajectories", "Hyper-parameters", "Hyper-parameters and architecture", _trajectories(run)),
            ("evaluation", "Evaluation", "Held-out evaluation", _evaluation(run)),
            ("throughput", "Throughput", "Throughput", _throughput(run)),
            ("provenance", "Parameters", "Parameters and provenance", _provenance(run, params)),
        ]
    name, env = str(run.policy["algo"]).upper(), run.policy["env"]["id"]
    links = "".join(f'<li><a href="#{place}">{_text(short)}</a></li>' for place, short, _, _ in sections)
    body = "\n".join(
        f'<section id="{place}" aria-labelledby="{place}-title">\n<h2 id="{place}-title">{_text(heading)}</h2>\n'
        f"{content}\n</section>"
        for place, _, heading, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{_text(name)} on {_text(env)} · evopipe</title>
<style>
{_STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<div class="hero">
<div>
<p class="brand">evopipe report</p>
<h1>{_text(name)} on <span class="env">{_text(env)}</span></h1>
{_headline(run)}
</div>
{_movie(movie)}
</div>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
<footer><p>Written by evopipe {_text(run.policy["provenance"]["evopipe"])} from the files of the run. \
This page loads nothing from elsewhere.</p></footer>
</body>
</html>
"""


def without_measured(text: str) -> str:
    """Return a page without the part that holds a measurement, for comparisons: the rest is the same for equal runs."""
    start, end = map(re.escape, MEASURED)
    return re.sub(f"{start}.*?{end}", "".join(MEASURED), text, flags=re.DOTALL)


# --- the head ---------------------------------------------------------------------------------------------------------


def _headline(run: Run) -> str:
    elite, summary = run.elite, run.summary
    generations, steps = int(summary["generations"]), summary["steps"]
    low, high = (words.figure(end) for end in elite.interval)
    target = summary.get("target")
    facts = [
        ("first", words.figure(elite.mean), f"mean return of the elite, 95 % interval {low} to {high}, "
         f"{_count(len(elite.returns), 'held-out episode')}"),
        ("fact", words.thousands(steps["training"]), f"training steps of {_count(run.slots, 'member')}"),
        ("fact", str(generations), f"generation{'s' if generations != 1 else ''}"),
        ("fact", words.thousands(steps["evaluation"]), "evaluation steps"),
        ("fact", "none" if target is None else words.amount(target), "target score"),
    ]  # fmt: skip
    rows = "".join(
        f'<div class="{kind}"><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>' for kind, value, name in facts
    )
    return f'<p class="lead">{_text(_story(run))}</p>\n<dl class="facts">{rows}</dl>'


def _story(run: Run) -> str:
    """Say in two sentences what happened."""
    line, born = run.descent, int(run.summary["elite"]["generation"])
    changes = [node for node in line if node.kind != "none" and not node.survived]
    after = f"after {_count(len(changes), 'mutation')}" if changes else "without a mutation"
    came = f"The elite came up in generation {born}, {after} along its line."
    diverged = sum(not math.isfinite(node.fitness) for node in run.nodes.values())
    lost = f" {_count(diverged, 'time')} a member diverged and was replaced." if diverged else ""
    return f"Training ended {words.ending(run)}. {came}{lost}"


def _movie(movie: Movie | str) -> str:
    if isinstance(movie, str):
        return f'<p class="movie">{_text(movie)}</p>'
    pace = "" if math.isnan(movie.speed) or movie.speed < 1.15 else f", shown at {movie.speed:.1f} times its speed"
    which = f"The first {movie.steps} steps of a" if movie.cut else "One"
    total = f"return {words.figure(movie.total)}{'' if movie.cut else f' in {movie.steps} steps'}"
    what = f"{which} held-out episode of the elite (seed {movie.seed}): {total}"
    moving, still = (f"data:image/webp;base64,{base64.b64encode(b).decode()}" for b in (movie.animation, movie.still))
    return (
        '<figure class="movie"><picture>'
        f'<source media="(prefers-reduced-motion: reduce)" srcset="{still}">'
        f'<img src="{moving}" width="{movie.width}" height="{movie.height}" alt="Animation of the elite at play. '
        f'{_text(what)}.">'
        f"</picture><figcaption>{_text(what)}{_text(pace)}.</figcaption></figure>"
    )


# --- sections ---------------------------------------------------------------------------------------------------------


def _fitness(run: Run) -> str:
    key = [
        (_stroke("member", 1.4), "a member, joined to its parent"),
        (_stroke("elite", 3), "the elite and its ancestors"),
        (_stroke("elite", 1.6, "5 4"), "best score so far"),
    ]
    if run.summary.get("target") is not None:
        key.append((_stroke("ink", 1.2, "1 4"), "target"))
    if any(not math.isfinite(node.fitness) for node in run.nodes.values()):
        key.append((_shape("x", "member"), "diverged"))
    confirmed = run.summary["elite"].get("confirmed")
    caption = "Mean return of the evaluation episodes at the end of each generation. " + (
        "The best score was confirmed by a second, longer evaluation, so it may lie below a lucky dot."
        if confirmed
        else "The best score was not confirmed by a second evaluation, so luck may be part of it."
    )
    return _lead(_rise(run)) + _key(key) + _pair(lambda width: figures.fitness(run, width), caption)


def _rise(run: Run) -> str:
    """Say how the population's mean went."""
    means = []
    for generation in (run.generations[0], run.generations[-1]) if run.generations else ():
        scores = [n.fitness for n in run.nodes.values() if n.key[0] == generation.number and math.isfinite(n.fitness)]
        means.append(sum(scores) / len(scores) if scores else math.nan)
    if len(run.generations) < 2 or not all(map(math.isfinite, means)):
        return ""
    low, high = (words.figure(mean) for mean in means)
    return f"The population's mean went from {low} in the first generation to {high} in the last."


def _lineage(run: Run) -> str:
    kinds = [kind for kind in figures.HUES[1:] if any(n.kind == kind for n in run.nodes.values())]
    key = [(_shape(figures.MARKERS[kind], kind), words.kind(kind)) for kind in kinds]
    key.append((_shape("o", "none"), "no mutation, or survived"))
    key.append((_shape("o", "none", filled=False), "hollow: did not beat its parent"))
    if any(not math.isfinite(node.fitness) for node in run.nodes.values()):
        key.append((_shape("x", "none"), "diverged"))
    key.append((_stroke("elite", 3), "the elite and its ancestors"))
    caption = (
        "Every mark is a member at the end of a generation, in its slot; a line leads to it from its parent. "
        "Point at a mark to read what changed, its fitness, and what it gained over its parent."
    )
    line = [node for node in run.descent if not node.survived]
    changed = sum(node.kind != "none" for node in line)
    lead = (
        f"The elite's line begins in slot {line[0].key[1]} of generation {line[0].key[0]}: "
        f"{_count(len(line), 'member')}, {changed or 'none'} of them made by a mutation."
        if line
        else ""
    )
    if len(run.generations) > figures.CROWDED:  # a phone scrolls anyway
        figure = _figure(figures.lineage(run, figures.WIDE), caption, scroll=True)
    else:
        figure = _pair(lambda width: figures.lineage(run, width), caption, scroll=True)
    return _lead(lead) + _key(key) + figure + _ancestry(run)


def _ancestry(run: Run) -> str:
    """List the elite's line in words: the same as the tree shows, for those who do not see it."""
    steps = [node for node in run.descent if not node.survived]
    rows = [
        (
            str(node.key[0]),
            f"member {node.id}",
            words.made(node) if node.parent else "first generation",
            words.figure(node.fitness),
            words.signed(node.gain) if math.isfinite(node.gain) else "–",
            node.network,
        )
        for node in steps
    ]
    heads = ("first seen", "who", "made by", "fitness", "over its parent", "network")
    return _table("The elite's line of descent", heads, rows, numbers=(3, 4), folded=len(rows) > 8)


def _mutations(run: Run) -> str:
    rows = figures.payoffs(run)
    if not rows:
        return "<p>The run was over before any member had a child.</p>"
    caption = (
        "A dot is a child: its fitness minus its parent's, one generation earlier. The bar spans the middle half, the "
        "line is the median. Every child also trained for one more generation; “no mutation” shows what that alone "
        "brings. Values far out stand at the edge."
    )
    figure = _pair(lambda width: figures.mutations(rows, width), caption)
    cells = [
        (
            words.kind(row.kind),
            str(row.children),
            words.share(row.improved),
            words.signed(row.median) if row.gains else "–",
            words.signed(row.gains[-1]) if row.gains else "–",
            words.signed(row.gains[0]) if row.gains else "–",
            str(row.diverged),
        )
        for row in rows
    ]
    heads = ("mutation", "children", "improved", "median gain", "best", "worst", "diverged")
    table = _table("Gain over the parent by mutation", heads, cells, numbers=range(1, 7), folded=True)
    return _lead(_winner(rows)) + figure + table


def _winner(rows: Sequence[figures.Payoff]) -> str:
    """Say which kind improved on its parents most often."""
    fair = [row for row in rows if row.kind != "none" and row.children >= 5]
    if not fair:
        return "Too few children of each kind to tell them apart."
    best = max(fair, key=lambda row: (row.improved, row.median))
    plain = next((row for row in rows if row.kind == "none"), None)
    beside = f" Children without a mutation did so in {words.share(plain.improved)} of cases." if plain else ""
    return (
        f"Of the mutations, {words.doing(best.kind)} beat the parent most often: {words.share(best.improved)} of "
        f"{best.children} children.{beside}"
    )


def _trajectories(run: Run) -> str:
    varying, constant = figures.traits(run)
    plots = "".join(
        f"<figure><figcaption><b>{_text(_named(name))}</b> {_text(_course(run, column))}</figcaption>"
        f"{figures.trajectory(run, _named(name), column, number)}</figure>"
        for number, (name, column) in enumerate(varying.items())
    )
    lead = (
        "<p>What differed between members or changed over time. The larger a dot, the more members have that value; "
        "the bold line is the elite with its ancestors.</p>"
        if plots
        else "<p>No hyper-parameter and no part of the architecture varied.</p>"
    )
    rest = {_named(name): value for name, value in constant.items()}
    same = f"<h3>The same for all members, at all times</h3>{_pairs(rest)}" if rest else ""
    return f'{lead}<div class="grid">{plots}</div>{same}' if plots else lead + same


def _named(name: str) -> str:
    return name.replace("_", " ")


def _course(run: Run, column: Mapping[Any, float | str]) -> str:
    """Say where the elite's line began and ended."""
    line = [column[node.key] for node in run.descent if node.key in column]
    if not line:
        return ""
    first, last = (value if isinstance(value, str) else words.amount(value) for value in (line[0], line[-1]))
    return f"elite {last}" if first == last else f"elite {first} → {last}"


def _evaluation(run: Run) -> str:
    caption = (
        f"{len(run.elite.returns)} episodes each, on seeds that no training run uses. A thin mark is an episode, "
        "the dot the mean, the bar its bootstrap 95 % interval. Slots hold the last population; the elite is the best "
        "of the whole run. Episodes far below the rest stand at the edge."
    )
    low, high = (words.figure(end) for end in run.elite.interval)
    lead = f"The elite's mean is {words.figure(run.elite.mean)}, 95 % interval {low} to {high}."
    rows = [
        (
            "elite" if member is run.elite else _named(member.name).replace("member", "slot"),
            words.figure(member.mean),
            f"{words.figure(member.interval[0])} to {words.figure(member.interval[1])}",
            words.figure(min(member.returns, default=math.nan)),
            words.figure(max(member.returns, default=math.nan)),
            words.figure(sum(member.lengths) / len(member.lengths)) if member.lengths else "–",
        )
        for member in (run.elite, *run.members)
    ]
    heads = ("who", "mean", "95 % interval", "worst", "best", "mean length")
    table = _table("Held-out returns", heads, rows, numbers=range(1, 6), folded=True)
    return _lead(lead) + _pair(lambda width: figures.evaluation(run, width), caption) + table


def _throughput(run: Run) -> str:
    begin, end = MEASURED
    rows = [row for row in run.timing if row.seconds > 0]
    if not rows:
        return f"{begin}\n<p>Nothing was measured.</p>\n{end}"
    seconds, steps = sum(row.seconds for row in rows), sum(row.env_steps for row in rows)
    judged = sum(row.eval_steps for row in rows)
    lead = (
        f"{words.duration(seconds)} of training and evaluation: {words.thousands(steps / seconds)} training and "
        f"{words.thousands(judged / seconds)} evaluation steps a second."
    )
    missing = figures.breaks(run)
    if missing:
        lead += f" {len(missing)} generation{'s were' if len(missing) > 1 else ' was'} not measured and left out."
    key = _key([(_patch("train"), "training"), (_patch("evaluate"), "evaluation")])
    caption = (
        "Environment steps of the whole population per second; a block is a generation. This part of the page is a "
        "measurement: it differs between equal runs, everything else does not."
    )
    plot = _pair(lambda width: figures.throughput(run, width), caption)
    return f"{begin}\n<p>{_text(lead)}</p>{key}{plot}\n{end}"


def _provenance(run: Run, params: Mapping[str, Any]) -> str:
    origin = dict(run.policy["provenance"])
    prints = origin.pop("fingerprint", {})
    shown = {"provenance": {**origin}, "machine and versions": {**prints}}
    shown["provenance"].setdefault("git_revision", None)
    algo = str(run.policy["algo"])
    kept = {name: value for name, value in params.items() if name not in ("algos", "seed")}
    blocks: dict[str, Any] = {
        "general": {"seed": params.get("seed")},
        **kept,
        f"algos.{algo}": params.get("algos", {}).get(algo, {}),
    }
    origins, settings = ("".join(_block(*entry) for entry in group.items() if entry[1]) for group in (shown, blocks))
    return (
        "<p>All parameters that this run depends on, and what it ran on. The same parameters, code and machine give "
        f'the same files.</p><div class="blocks">{origins}</div><div class="blocks">{settings}</div>'
    )


def _block(name: str, values: Any) -> str:
    pairs = list(_flat(values))
    rows = "".join(f'<div class="pair"><dt>{_breakable(key)}</dt><dd>{_text(value)}</dd></div>' for key, value in pairs)
    size = "block long" if len(pairs) > 16 else "block"
    return f'<div class="{size}"><h3>{_text(name)}</h3><dl>{rows}</dl></div>'


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<div class="pair"><dt>{_text(key)}</dt><dd>{_text(value)}</dd></div>' for key, value in _flat(values)
    )
    return f'<dl class="blocks">{rows}</dl>'


def _breakable(key: str) -> str:
    """Let a long dotted name break where a person would break it."""
    return _text(key).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Return the leaves of nested mappings, by dotted name."""
    if isinstance(value, Mapping) and value:
        for key, entry in value.items():
            yield from _flat(entry, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        yield name, ", ".join(_plain(entry) for entry in value) or "none"
    else:
        yield name, _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == {}:
        return "none"
    return words.amount(value) if isinstance(value, float) else str(value)


# --- pieces -----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    """Escape text, and leave control characters out."""
    return html.escape("".join(char if char.isprintable() else " " for char in str(value)), quote=True)


def _pair(make: Callable[[int], str], caption: str, scroll: bool = False) -> str:
    """Return a figure that was drawn twice: for a desk and for a phone. Each is shown where it fits."""
    wide, narrow = make(figures.WIDE), make(figures.NARROW)
    return _figure(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>', caption, scroll)


def _figure(drawn: str, caption: str, scroll: bool) -> str:
    if scroll:
        drawn = f'<div class="scroll" tabindex="0" role="group" aria-label="Scrolls sideways">{drawn}</div>'
    return f"<figure>{drawn}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(
    caption: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int] | range = (),
    folded: bool = False,
) -> str:
    """Return a table: open, or behind its caption; `numbers` are columns of numbers."""
    kinds = [' class="number"' if column in numbers else "" for column in range(len(heads))]
    head = "".join(f'<th scope="col"{kind}>{_text(cell)}</th>' for kind, cell in zip(kinds, heads, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_text(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    title = "" if folded else f"<caption>{_text(caption)}</caption>"
    region = f'<div class="table" tabindex="0" role="region" aria-label="{_text(caption)}">'
    table = f"{region}<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    return f"<details><summary>{_text(caption)}, as a table</summary>{table}</details>" if folded else table


def _lead(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text else ""


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _key(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<li>{mark}{_text(name)}</li>" for mark, name in entries)
    return f'<ul class="key">{items}</ul>'


def _stroke(colour: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<svg width="26" height="14" aria-hidden="true"><path d="M1 7h24" fill="none" stroke-linecap="round" '
        f'style="stroke:var(--{colour})" stroke-width="{width}"{dashed}/></svg>'
    )


def _shape(marker: str, colour: str, filled: bool = True) -> str:
    fill = f"var(--{colour})" if filled else "none"
    return (
        f'<svg width="14" height="14" aria-hidden="true" stroke-width="1.5" '
        f'style="fill:{fill};stroke:var(--{colour})">{_SHAPES[marker]}</svg>'
    )


def _patch(colour: str) -> str:
    square = f'<rect width="14" height="14" rx="3" style="fill:var(--{colour})"/>'
    return f'<svg width="14" height="14" aria-hidden="true">{square}</svg>'
