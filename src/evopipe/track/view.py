"""The live view of a run on a terminal.

`RunView` holds what events told and lays it out as lines of text; `LiveSink` keeps those lines on the terminal. The
layout is done by hand, in fixed columns: it costs a fifth of a general table, and it is paid in the training thread.
"""

from __future__ import annotations

import atexit
import io
import math
import sys
import textwrap
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, TextIO, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from evopipe.track.base import End, Event, Generation, MemberRow, Message, Progress, Start
from evopipe.track.words import clean, duration, ending, members, number, score

# At most four frames a second, and at most this share of the wall-clock time spent on them.
_FRAME_SECONDS = 0.25
_FRAME_SHARE = 0.004

_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans("▁▂▃▄▅▆▇█━─★·←→…\u00d7", "__..--==#-*.<>~x")
_GAP = 2
_TREND = 8
_MESSAGES = 3

_LABELS = {"architecture": "network", "parameters": "weights", "activation": "activation", "rl_hp": "hyper"}
_COLOURS = {"architecture": "cyan", "parameters": "magenta", "activation": "yellow", "rl_hp": "green"}

Cell = tuple[str, str]  # (text, style)


class RunView:
    """What is known of a run, and how it looks at a given size."""

    def __init__(self) -> None:
        self._start: Start | None = None
        self._progress: Progress | None = None
        self._generation: Generation | None = None
        self._end: End | None = None
        self._bests: list[float] = []
        self._lineage: dict[int, tuple[float, ...]] = {}  # id → fitness of its line of descent, latest last
        self._messages: deque[Message] = deque(maxlen=_MESSAGES)

    def apply(self, event: Event) -> None:
        """Take in one event."""
        match event:
            case Progress():
                self._progress = event
            case Generation():
                self._take_generation(event)
            case Message():
                self._messages.append(event)
            case Start():
                self._start = event
            case End():
                self._end = event

    def lines(self, width: int, height: int | None = None) -> list[Text]:
        """Lay the view out.

        Args:
            width: columns; below about 40 only slot and fitness of the members are left.
            height: lines that are free; None: as many as it takes. Members that do not fit are summed up in one line.
        """
        head = self._head(width)
        foot = self._foot(width)
        room = None if height is None else height - len(head) - len(foot)
        return [*head, *self._table(width, room), *foot]

    def _take_generation(self, event: Generation) -> None:
        self._generation = event
        self._bests.append(event.best)
        old = self._lineage
        self._lineage = {
            row.id: (*old.get(row.id, old.get(-1 if row.parent is None else row.parent, ())), row.fitness)[-_TREND:]
            for row in event.members
        }

    # --- head: what runs, how far it is, how good it is

    def _head(self, width: int) -> list[Text]:
        if self._start is None:
            return []
        start, inner = self._start, width - 2
        what = [(clean(start.env), "bold"), (f" · {clean(start.algo)} · {members(start.members)}", "")]
        generation = 0 if self._progress is None else self._progress.generation
        if self._generation is not None:
            generation = max(generation, self._generation.generation)
        lines = [
            Text(),
            _between(what, [(f"generation {generation}", "")], inner),
            _line(self._bar(inner)),
            _between(*self._pace(), inner),
        ]
        if self._generation is not None:
            lines.append(_between(*self._scores(self._generation, inner), inner))
        return [*lines, Text()]

    def _bar(self, width: int) -> list[Cell]:
        done = self._done()
        label = f"{math.floor(100 * done):>4} %"
        filled = round(done * (width - len(label)))
        return [("━" * filled, "cyan"), ("─" * (width - len(label) - filled), "dim"), (label, "")]

    def _done(self) -> float:
        step, total = self._steps()
        return min(1.0, step / total) if total > 0 else 0.0

    def _steps(self) -> tuple[int, int]:
        """Return (step, last step) of each member."""
        assert self._start is not None
        known = [self._start.resumed_step or 0]
        known += [event.step for event in (self._progress, self._generation) if event is not None]
        return max(known), self._start.max_steps

    def _pace(self) -> tuple[list[Cell], list[Cell]]:
        if self._end is not None:
            return [(ending(self._end), "bold")], []
        step, total = self._steps()
        left = [(f"{step:,} of {total:,} steps each", "")]
        if self._progress is None:
            return left, []
        left.append((f" · {self._progress.steps_per_second:,.0f} steps/s", ""))
        if self._progress.seconds_left is not None:
            left.append((f" · {duration(self._progress.seconds_left)} left", ""))
        return left, [(clean(self._progress.phase), "dim")]

    def _scores(self, event: Generation, width: int) -> tuple[list[Cell], list[Cell]]:
        left = [
            ("elite ", ""),
            (score(event.elite), "bold green"),
            (f" (id {event.elite_id}) · best {score(event.best)} · mean {score(event.mean)}", ""),
        ]
        room = width - sum(cell_len(text) for text, _ in left) - _GAP
        curve = _thin(self._bests, max(0, min(24, room)))
        name = "best by generation "
        right = [(name, "dim")] if len(name) + len(curve) <= room else []
        return left, [*right, (_spark(curve, *_range(curve)), "cyan")]

    # --- table: one row a member

    def _table(self, width: int, room: int | None) -> list[Text]:
        if self._generation is None:
            waiting = "members appear here after their first evaluation"
            return [_line([(waiting, "dim")])] if self._start is not None and self._end is None else []
        rows = list(self._generation.members)
        shown = rows if room is None else self._fitting(rows, room - 1)
        if not shown:
            return []
        columns = _fit(self._columns(shown), width - 2)
        lines = [_line(_row([(column.title, "dim") for column in columns], columns))]
        lines += [_line(_row([column.cells[index] for column in columns], columns)) for index in range(len(shown))]
        if len(shown) < len(rows):
            slots = {row.slot for row in shown}
            lines.append(_line([(_rest([row for row in rows if row.slot not in slots]), "dim")]))
        return lines

    def _fitting(self, rows: list[MemberRow], room: int) -> list[MemberRow]:
        """Choose the best members where not all fit, one line kept for the sum of the rest; in order of slots."""
        if len(rows) <= room:
            return rows
        ranked = sorted(rows, key=lambda row: (not self._is_elite(row), -row.fitness if row.healthy else math.inf))
        return sorted(ranked[: max(0, room - 1)], key=lambda row: row.slot)

    def _is_elite(self, row: MemberRow) -> bool:
        return self._generation is not None and row.id == self._generation.elite_id

    def _columns(self, rows: Sequence[MemberRow]) -> list[_Column]:
        """All columns in order of display; `rank` says which stay where there is little room."""
        low, high = _range(value for line in self._lineage.values() for value in line)
        trends = [_spark(self._lineage.get(row.id, ()), low, high).ljust(_TREND) for row in rows]
        names = list(dict.fromkeys(name for row in rows for name in row.hyper))
        short = _short(names)
        return [
            _Column("slot", [self._slot(row) for row in rows], rank=0, right=True),
            _Column("fitness", [self._fitness(row) for row in rows], rank=1, right=True),
            _Column("trend", [(trend, "cyan") for trend in trends], rank=5),
            _Column("id", [(str(row.id), "") for row in rows], rank=3, right=True),
            _Column("from", [_parent(row) for row in rows], rank=50, right=True),
            _Column("loss", [(number(row.loss), "dim") for row in rows], rank=51, right=True),
            _Column("network", [(clean(row.architecture), "") for row in rows], rank=4, least=14),
            _Column("act", [(clean(row.activation), "") for row in rows], rank=7),
            *(
                _Column(
                    short[name], [_hyper(row, name) for row in rows], rank=6 if index == 0 else 7 + index, right=True
                )
                for index, name in enumerate(names)
            ),
            _Column("mutation", [_mutation(row) for row in rows], rank=52),
            _Column("what changed", [_change(row) for row in rows], rank=2, least=18),
        ]

    def _slot(self, row: MemberRow) -> Cell:
        return (f"★ {row.slot}", "bold green") if self._is_elite(row) else (str(row.slot), "")

    def _fitness(self, row: MemberRow) -> Cell:
        if not row.healthy:
            return "-", "red"
        return score(row.fitness), "bold green" if self._is_elite(row) else "bold"

    # --- foot: messages

    def _foot(self, width: int) -> list[Text]:
        lines: list[Text] = []
        for message in self._messages:
            mark, style = ("! ", "yellow") if message.level == "warning" else ("· ", "dim")
            wrapped = textwrap.wrap(clean(message.text), max(20, width - 4), max_lines=2, placeholder=" …")
            for index, part in enumerate(wrapped):
                lines.append(_line([(mark if index == 0 else "  ", style), (part, style)]))
        return [Text(), *lines] if lines else []


@dataclass
class _Column:
    """A column of the member table.

    Attributes:
        rank: how dispensable it is; the highest go first.
        least: the width it may be shortened to; 0: never shortened.
    """

    title: str
    cells: list[Cell]
    rank: int
    least: int = 0
    right: bool = False

    def __post_init__(self) -> None:
        self.natural = max(cell_len(text) for text in (self.title, *(text for text, _ in self.cells)))
        self.width = min(self.natural, self.least) if self.least else self.natural
        self.is_empty = not any(text.strip(" -") for text, _ in self.cells)


def _fit(columns: Iterable[_Column], width: int) -> list[_Column]:
    """Keep the most important columns that fit, then give what is left to those that were shortened."""
    columns = [column for column in columns if column.rank <= 1 or not column.is_empty]
    kept: list[_Column] = []
    left = width + _GAP
    for column in sorted(columns, key=lambda column: column.rank):
        if column.width + _GAP <= left or not kept:
            kept.append(column)
            left -= column.width + _GAP
    for column in kept:
        more = max(0, min(column.natural - column.width, left))
        column.width += more
        left -= more
    return [column for column in columns if any(column is other for other in kept)]


def _row(cells: Sequence[Cell], columns: Sequence[_Column]) -> list[Cell]:
    pieces: list[Cell] = []
    for (text, style), column in zip(cells, columns, strict=True):
        pieces.append((_sized(text, column.width, column.right), style))
        pieces.append((" " * _GAP, ""))
    return pieces


def _sized(text: str, width: int, right: bool) -> str:
    """Pad or shorten a text to so many terminal cells."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    pad = " " * (width - length)
    return pad + text if right else text + pad


def _line(pieces: Iterable[Cell]) -> Text:
    text = Text(" ", no_wrap=True, overflow="crop")
    for piece, style in pieces:
        text.append(piece, style or None)
    text.rstrip()
    return text


def _between(left: list[Cell], right: list[Cell], width: int) -> Text:
    """Put pieces at both ends of a line; what does not fit on the right is left out, on the left is shortened."""
    used = sum(cell_len(text) for text, _ in left)
    wanted = sum(cell_len(text) for text, _ in right)
    if wanted and used + _GAP + wanted <= width:
        return _line([*left, (" " * (width - used - wanted), ""), *right])
    line = _line(left)
    line.truncate(width + 1, overflow="ellipsis")
    return line


def _parent(row: MemberRow) -> Cell:
    return ("-" if row.parent in (None, row.id) else f"←{row.parent}"), "dim"


def _hyper(row: MemberRow, name: str) -> Cell:
    return (number(row.hyper[name]) if name in row.hyper else "-"), ""


def _mutation(row: MemberRow) -> Cell:
    if row.mutation == "none":
        return "-", "dim"
    return _LABELS.get(row.mutation, clean(row.mutation)), _COLOURS.get(row.mutation, "")


def _change(row: MemberRow) -> Cell:
    if not row.healthy:
        return "diverged, will be replaced", "red"
    if row.change:
        return clean(row.change), _COLOURS.get(row.mutation, "")
    return _mutation(row)


def _rest(rows: Sequence[MemberRow]) -> str:
    scores = [row.fitness for row in rows if row.healthy and math.isfinite(row.fitness)]
    spread = f", fitness {score(min(scores))} to {score(max(scores))}" if scores else ""
    return f"… and {len(rows)} more{spread}"


def _short(names: Sequence[str]) -> dict[str, str]:
    """Shorten hyper-parameter names to their first word where that stays unique: `batch_size` → `batch`."""
    first = [name.split("_")[0] for name in names]
    return {name: word if first.count(word) == 1 else name for name, word in zip(names, first, strict=True)}


def _range(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else (0.0, 0.0)


def _spark(values: Iterable[float], low: float, high: float) -> str:
    """Draw values as a line of bars between `low` and `high`; a gap where one is not finite."""
    top = len(_SPARKS) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] if math.isfinite(value) else " " for value in values)


def _thin(values: Sequence[float], count: int) -> list[float]:
    """Pick at most so many values, evenly spread, the latest always among them."""
    if len(values) <= count:
        return list(values)
    return [values[math.ceil((index + 1) * len(values) / count) - 1] for index in range(count)]


# --- the view on a terminal -------------------------------------------------------------------------------------------


class LiveSink:
    """Keeps a `RunView` on a terminal, in the caller's thread, and only as often as it can afford.

    The terminal is left with the last view and a visible cursor, also where nobody calls `close`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._view = RunView()
        self._due = -math.inf
        self._console = Console(
            file=cast(IO[str], _Calm(stream)), force_terminal=True, highlight=False, markup=False, emoji=False
        )
        self._ascii = not (stream.encoding or "").lower().startswith("utf")
        own = stream is sys.stderr
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            vertical_overflow="visible",
            redirect_stderr=own,
            # Words that others print appear above the view; stdout only where it goes to the same terminal.
            redirect_stdout=own and sys.stdout is not None and sys.stdout.isatty(),
        )
        atexit.register(self.close)

    def emit(self, event: Event) -> None:
        """Take in one event, and draw where a frame is due."""
        self._view.apply(event)
        now = time.perf_counter()
        if now >= self._due:
            warm = self._live.is_started  # The first frame pays for set-up: its cost says nothing about the next.
            self._draw()
            cost = time.perf_counter() - now if warm else 0.0
            self._due = now + max(_FRAME_SECONDS, cost / _FRAME_SHARE)

    def close(self) -> None:
        """Draw the last frame, all members in it, and give the terminal back."""
        atexit.unregister(self.close)
        if self._live.is_started:
            try:
                self._live.update(Group(*self._lines(None)))
            finally:
                self._live.stop()

    def _draw(self) -> None:
        self._live.update(Group(*self._lines(self._console.height - 1)))
        if self._live.is_started:
            self._live.refresh()
        else:
            self._live.start(refresh=True)

    def _lines(self, height: int | None) -> list[Text]:
        lines = self._view.lines(self._console.width, height)
        if self._ascii:
            for line in lines:
                line.plain = line.plain.translate(_ASCII)
        return lines


class _Calm(io.TextIOBase):
    """Wraps each write in a synchronised update, so that a terminal never shows half a frame.

    Terminals that do not know the two sequences ignore them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def write(self, text: str) -> int:
        self._stream.write(f"\x1b[?2026h{text}\x1b[?2026l")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()
