"""The console: a live view on a terminal, plain lines elsewhere, only warnings in quiet mode.

Everything goes to stderr, so that stdout stays free for results.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import textwrap
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evopipe.formats import clean, duration, number, score
from evopipe.track.events import End, Event, Generation, MemberRow, Message, Progress, Start

_FRAME_SECONDS, _FRAME_SHARE = 0.25, 0.004  # between frames at least; of the training thread's time at most

_SPARKS = "▁▂▃▄▅▆▇█"
_GAP, _TREND, _HYPER = 2, 8, "hyper "
_MUTATIONS = {
    "architecture": ("network", "cyan"),
    "parameters": ("weights", "magenta"),
    "activation": ("activation", "yellow"),
    "rl_hp": ("hyper", "green"),
    "none": ("-", "dim"),
}
_SHORTENED = {"network": 14, "what changed": 18}  # columns of the table that may be cut, and how far
_WORDS = {"trend", "network", "act", "mutation", "what changed"}  # the other columns hold numbers


def console_sink(quiet: bool = False, stream: TextIO | None = None) -> _PlainSink | _LiveSink:
    """Return the sink that shows a run's events on a stream, by default stderr. A `quiet` sink shows only warnings.

    A terminal gets the live view (`NO_COLOR` is respected). A pipe, a file, a CI job (`CI` is set) and a terminal
    without cursor control or UTF-8 get lines: one at the start, one for each generation, the messages, and one at the
    end.
    """
    out = stream or sys.stderr  # None in a process without a stderr
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    dumb = os.environ.get("TERM", "") in ("", "dumb")
    if out is None or quiet or in_ci or dumb or not out.isatty() or not out.encoding.lower().startswith("utf"):
        return _PlainSink(out, quiet)
    return _LiveSink(out)


class _PlainSink:
    """Writes one line for each event that matters in a log, or warnings only, if `quiet`."""

    def __init__(self, stream: TextIO | None, quiet: bool = False) -> None:
        self._stream, self._quiet = stream, quiet
        self._stage = "run"
        self._start: Start | None = None
        self._latest: Progress | None = None

    def emit(self, event: Event) -> None:
        """Write one event; of `Progress` only the latest is kept, for the line of the next generation."""
        if isinstance(event, Progress):
            self._latest = event
        elif isinstance(event, Message) and event.level == "warning":
            self._write(f"warning: {event.text}")
        elif not self._quiet:
            if isinstance(event, Start):
                self._stage, self._start = event.stage, event
            self._write(f"{self._stage}: {self._sentence(event)}")

    def close(self) -> None:
        """The stream stays open."""

    def _write(self, text: str) -> None:
        if self._stream is not None:
            encoding = self._stream.encoding or "utf-8"
            print(clean(text).encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)

    def _sentence(self, event: Start | Generation | Message | End) -> str:
        if isinstance(event, Start):
            text = f"{event.env}, {event.algo}, {_members(event.members)}, {event.max_steps:,} steps each"
            if event.budget is not None:
                text += f", {event.budget:,} in all"
            if event.resumed_step is None:
                return text
            return (
                f"{text}, goes on at step {event.resumed_step if event.budget is None else event.resumed_env_steps:,}"
            )
        if isinstance(event, Generation):
            step = f"step {event.step:,}" + (f" of {self._latest.max_steps:,}" if self._latest else "")
            if self._start is not None and self._start.budget is not None:
                step = f"{event.env_steps + event.eval_steps:,} of {self._start.budget:,} steps"
            scores = f"best {score(event.best)}, mean {score(event.mean)}, elite {score(event.elite)}"
            text = f"generation {event.generation}, {step}, {scores} (id {event.elite_id})"
            return ", ".join([text, *_pace(self._latest)])
        return event.text if isinstance(event, Message) else _ending(event)


def _new(row: MemberRow, before: MemberRow | None, began: Collection[int]) -> bool:
    """Whether a member is a trial that took another's place in its slot."""
    if before is None or row.parent is not None:
        return False
    return row.slot in began if row.id == before.id else True


def _members(count: int) -> str:
    return f"{count} member{'' if count == 1 else 's'}"


def _pace(event: Progress | None, most: str = "at most") -> list[str]:
    """Say how fast a run is and how long it will take, if that is known, and `most` if a target may end it earlier."""
    if event is None:
        return []
    until = "" if event.target is None else f"{most} "
    left = [] if event.seconds_left is None else [f"{until}{duration(event.seconds_left)} left"]
    return [f"{event.steps_per_second:,.0f} steps/s", *left]


def _ending(event: End) -> str:
    steps = f"{event.env_steps:,} training and {event.eval_steps:,} evaluation steps"
    return f"finished: {event.reason}, {duration(event.seconds)}, {steps}"


# --- live view --------------------------------------------------------------------------------------------------------


class _LiveSink:
    """Keeps a `RunView` on a terminal, in the caller's thread, limited to a small share of its time.

    At the end the terminal shows the last view and a visible cursor, even if `close` is never called.
    """

    def __init__(self, stream: TextIO) -> None:
        self._view = RunView()
        self._due = -math.inf
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        own = stream is sys.stderr
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="visible",
            redirect_stderr=own,
            # Words that others print appear above the view; stdout only if it goes to the same terminal.
            redirect_stdout=own and sys.stdout is not None and sys.stdout.isatty(),
        )
        atexit.register(self.close)

    def emit(self, event: Event) -> None:
        """Take in one event, and draw if a frame is due."""
        self._view.apply(event)
        now, first = time.perf_counter(), not self._live.is_started
        if now < self._due:
            return
        self._live.update(self._view.frame(self._console.width, self._console.height - 1), refresh=not first)
        if first:
            self._live.start(refresh=True)
        # The first frame pays for set-up: its cost says nothing about the next.
        cost = 0.0 if first else time.perf_counter() - now
        self._due = now + max(_FRAME_SECONDS, cost / _FRAME_SHARE)

    def close(self) -> None:
        """Draw the last frame, all members in it, and give the terminal back."""
        atexit.unregister(self.close)
        if self._live.is_started:
            self._live.update(self._view.frame(self._console.width))
            self._live.stop()


class RunView:
    """The live view of a run on a terminal: it collects the run's events, and lays them out for a given size."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self._progress: Progress | None = None
        self._generation: Generation | None = None
        self._end: End | None = None
        self._bests: deque[float] = deque(maxlen=24)
        self._rows: dict[int, MemberRow] = {}  # by slot: its member when it last lived
        self._began: set[int] = set()  # slots whose member is a trial that took another's place
        self._lineage: dict[int | None, tuple[float, ...]] = {}  # id → fitness of its line of descent, latest last
        self._messages: deque[Message] = deque(maxlen=3)

    def apply(self, event: Event) -> None:
        match event:
            case Start():
                self._start = event
            case Progress():
                self._progress = event
            case Generation():
                self._generation, old, before = event, self._lineage, dict(self._rows)
                self._bests.append(event.best)
                self._rows |= {row.slot: row for row in event.members}
                self._began = {slot for slot, row in self._rows.items() if _new(row, before.get(slot), self._began)}
                self._lineage = {row.id: old.get(row.id, old.get(row.parent, ())) for row in self._rows.values()}
                for row in event.members:
                    self._lineage[row.id] = (*self._lineage[row.id], row.fitness)[-_TREND:]
            case Message():
                self._messages.append(event)
            case End():
                self._end = event

    def frame(self, width: int, height: int | None = None) -> RenderableType:
        """Return the view, laid out in `width` columns and `height` lines (None: as many lines as needed).

        Members that do not fit are summarised in one line. Below 40 columns, only slot (place in the population) and
        fitness are shown.
        """
        head, foot = self._head(), self._foot(width - 2)
        room = None if height is None else height - len(head) - len(foot)
        return Padding(Group(*head, *self._table(width - 2, room), *foot), (0, 1))

    def _head(self) -> list[RenderableType]:
        """What runs, how far it is, how good it is: one renderable a line."""
        if self._start is None:
            return []
        start, generation = self._start, self._generation
        latest = [event for event in (self._progress, generation) if event is not None]
        step = max([start.resumed_step or 0, *(event.step for event in latest)])
        share, so_far = step / max(1, start.max_steps), f"{step:,} of {start.max_steps:,} steps each"
        if start.budget is not None:
            spent = max([0, *(event.env_steps + event.eval_steps for event in latest)])
            share, so_far = spent / start.budget, f"{spent:,} of {start.budget:,} steps"
        count = max([0, *(event.generation for event in latest)])
        what = f" · {clean(start.algo)} · {_members(start.members)} · generation {count}"
        bar = Table.grid(expand=True)
        bar.add_column(ratio=1)
        share = min(1.0, share)
        bar.add_row(ProgressBar(1.0, share, complete_style="cyan", finished_style="cyan"), f"{int(100 * share):>4} %")
        state = _line(" · ".join([so_far, *_pace(self._progress, "≤")]))
        if self._end is not None:
            state = _line(_ending(self._end), "bold")
        elif self._progress is not None:
            state.append(f" · {clean(self._progress.phase)}", "dim")
        lines: list[RenderableType] = [Text(), _line(clean(start.env), "bold").append(what), bar, state]
        if generation is not None:
            scores = f" (id {generation.elite_id}) · best {score(generation.best)} · mean {score(generation.mean)}  "
            elite = _line("elite ").append(score(generation.elite), "bold green").append(scores)
            lines.append(elite.append(_spark(self._bests, self._bests), "cyan"))
        return [*lines, Text()]

    def _table(self, width: int, room: int | None) -> list[RenderableType]:
        """A row for each member, or for the best of them and a line on the rest."""
        if self._generation is None:
            waiting = self._start is not None and self._end is None
            return [_line("members appear here after their first evaluation", "dim")] if waiting else []
        elite = self._generation.elite_id
        ranked = sorted(self._rows.values(), key=lambda row: (row.id != elite, not row.healthy, -row.fitness))
        # The titles and the rest take a line each.
        fit = len(ranked) if room is None or len(ranked) < room else max(0, room - 2)
        if not fit:
            return []
        shown = sorted(ranked[:fit], key=lambda row: row.slot)
        lines: list[RenderableType] = [_columns([self._cells(row) for row in shown], width)]
        if rest := ranked[fit:]:
            scores = [row.fitness for row in rest if row.healthy and math.isfinite(row.fitness)]
            spread = f", fitness {score(min(scores))} to {score(max(scores))}" if scores else ""
            lines.append(_line(f"… and {len(rest)} more{spread}", "dim"))
        return lines

    def _cells(self, row: MemberRow) -> dict[str, Text]:
        """What a member's row may say, in order of display."""
        name, colour = _MUTATIONS.get(row.mutation, (clean(row.mutation), "dim"))
        change = _line(clean(row.change) or ("new trial" if row.slot in self._began else name), colour)
        if not row.healthy:
            change = _line("diverged, will be replaced", "red")
        elif self._generation is not None and row not in self._generation.members:
            change = _line("waits", "dim")
        everyone = [fitness for line in self._lineage.values() for fitness in line]
        elite = self._generation is not None and row.id == self._generation.elite_id
        return {
            "slot": _line(f"★ {row.slot}", "bold green") if elite else _line(str(row.slot)),
            "fitness": _line(score(row.fitness), "bold green" if elite else "bold"),
            "trend": _line(_spark(self._lineage[row.id], everyone), "cyan"),
            "id": _line(str(row.id)),
            "from": _line("-" if row.parent in (None, row.id) else f"←{row.parent}", "dim"),
            "loss": _line(number(row.loss), "dim"),
            "network": _line(clean(row.architecture)),
            "act": _line(clean(row.activation)),
            **{f"{_HYPER}{name}": _line(number(value)) for name, value in row.hyper.items()},
            "mutation": _line(name, colour),
            "what changed": change,
        }

    def _foot(self, width: int) -> list[RenderableType]:
        """The latest messages, at most two lines each."""
        lines: list[RenderableType] = []
        for message in self._messages:
            mark, style = ("!", "yellow") if message.level == "warning" else ("·", "dim")
            folded = textwrap.wrap(clean(message.text), max(20, width - 2), max_lines=2, placeholder=" …")
            lines += [_line(f"{' ' if index else mark} {part}", style) for index, part in enumerate(folded)]
        return [Text(), *lines] if lines else []


def _columns(cells: Sequence[Mapping[str, Text]], width: int) -> Table:
    """Lay out the columns that fit and say something: the most important ones are asked first."""
    hyper = list(dict.fromkeys(name for row in cells for name in row if name.startswith(_HYPER)))
    titles = {name: name for name in cells[0]}
    for name in hyper:  # its first word, if that stays unique: `batch_size` → `batch`
        words = [other.removeprefix(_HYPER).split("_")[0] for other in hyper]
        word = name.removeprefix(_HYPER).split("_")[0]
        titles[name] = word if words.count(word) == 1 else name.removeprefix(_HYPER)
    first = ["slot", "fitness", "what changed", "id", "network", "trend", *hyper[:1], "act"]
    left, widths = width + _GAP, dict[str, int]()
    for name in (*first, *hyper[1:], "from", "loss", "mutation"):
        natural = max(len(titles[name]), *(row[name].cell_len for row in cells))
        needed = min(natural, _SHORTENED.get(name, natural)) + _GAP
        empty = not any(row[name].plain.strip(" -") for row in cells)
        if name == "slot" or (needed <= left and (name == "fitness" or not empty)):
            widths[name] = needed - _GAP
            left -= needed
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    shown = [name for name in titles if name in widths]
    for name in shown:
        side: JustifyMethod = "left" if name in _WORDS else "right"
        table.add_column(titles[name], justify=side, no_wrap=name not in _SHORTENED, min_width=widths[name])
    for row in cells:
        table.add_row(*(row[name] for name in shown))
    return table


def _line(text: str, style: str = "") -> Text:
    """A text that is cut if there is too little room."""
    return Text(no_wrap=True, overflow="ellipsis").append(text, style)


def _spark(values: Iterable[float], among: Iterable[float]) -> str:
    """Draw values as a line of bars, as high as they are among others; a gap if one is not finite."""
    known = [value for value in among if math.isfinite(value)]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    top = (len(_SPARKS) - 1) / span if span else 0.0
    return "".join(_SPARKS[round((value - low) * top)] if math.isfinite(value) else " " for value in values)
