from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from evopipe.formats import duration, number, score
from evopipe.mutations import NONE
from evopipe.track.console import RunView, _LiveSink, console_sink
from evopipe.track.events import (
    End,
    Event,
    Generation,
    JsonlSink,
    MemberRow,
    Message,
    Progress,
    Start,
    Tracker,
    read_events,
)
from lineages import record

START = Start("train", "LunarLander-v3", "dqn", 2, 200_000)
PROGRESS = Progress(1, 5_000, 200_000, 10_000, 0, "learning", 6940.4, 125.0)
END = End("target reached", 192.0, 832_000, 64_000)


def member(slot: int, *, fitness: float = 1.0, healthy: bool = True, **changes: object) -> MemberRow:
    fields: dict[str, object] = {
        "slot": slot,
        "id": slot + 10,
        "parent": None,
        "fitness": fitness if healthy else -math.inf,
        "mutation": "rl_hp",
        "change": "lr 3e-4 → 2.4e-4",
        "architecture": "128 · 128",
        "activation": "ReLU",
        "hyper": {"lr": 2.4e-4, "batch_size": 64.0},
        "healthy": healthy,
        "loss": 0.5 if healthy else math.nan,
    }
    return MemberRow(**{**fields, **changes})  # type: ignore[arg-type]


def generation(count: int = 2, number: int = 1) -> Generation:
    rows = tuple(member(slot, fitness=10.0 * slot) for slot in range(count))
    return Generation(number, 10_000 * number, 20_000, 3_000, 5.0, rows, 10.0 * (count - 1), 5.0, 214.31, 11)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return True


class Keeper:
    """A sink that keeps what it gets, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.events: list[Event] = []
        self.closed = 0
        self._fails = fails

    def emit(self, event: Event) -> None:
        if self._fails:
            raise OSError("the server is away")
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


# --- tracker ----------------------------------------------------------------------------------------------------------


def test_tracker_drops_a_failing_sink_after_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Keeper(), Keeper(fails=True)
    with Tracker([bad, good]) as tracker:
        tracker.emit(START)
        tracker.emit(END)
    assert good.events == [START, END]
    assert (good.closed, bad.closed) == (1, 1)
    assert capsys.readouterr().err == (
        "warning: Keeper is off for the rest of this run (OSError: the server is away)\n"
    )


def test_tracker_lets_a_keyboard_interrupt_through() -> None:
    class Impatient(Keeper):
        def emit(self, event: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tracker([Impatient()]).emit(START)


def test_tracker_survives_a_sink_that_cannot_close(capsys: pytest.CaptureFixture[str]) -> None:
    class Stuck(Keeper):
        def close(self) -> None:
            raise RuntimeError("no")

    last = Keeper()
    Tracker([Stuck(), last]).close()
    assert last.closed == 1
    assert capsys.readouterr().err == "warning: Stuck could not be closed (RuntimeError: no)\n"


def test_best_and_mean_are_of_the_members_that_have_a_score() -> None:
    lived = record(1, 10, [(0, 0, 5.0), (1, 1, None), (2, 2, 1.0)])
    event = Generation.of(lived, dict.fromkeys(range(3), NONE), ["lr"], 1.0, (30, 0))
    assert (event.best, event.mean) == (5.0, 3.0)


# --- files ------------------------------------------------------------------------------------------------------------


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    sink = JsonlSink(path)
    events: list[Event] = [START, PROGRESS, generation(), Message("warning", "ä\nb"), END]
    for event in events:
        sink.emit(event)
    sink.close()
    assert [event for _, event in read_events(path)] == events
    assert all(abs(clock - time.time()) < 60 for clock, _ in read_events(path))


def test_jsonl_is_strict_json_where_numbers_are_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sink = JsonlSink(path)
    sink.emit(Generation(1, 1, 1, 1, 1.0, (member(0, healthy=False),), -math.inf, math.nan, 1.0, 1))
    sink.close()
    line = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert (line["best"], line["mean"], line["members"][0]["fitness"]) == (None, None, None)
    ((_, event),) = read_events(path)
    assert isinstance(event, Generation)
    assert math.isnan(event.best)
    assert event.members[0].parent is None


def test_jsonl_thins_progress(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "log.jsonl", progress_seconds=3600)
    for _ in range(100):
        sink.emit(PROGRESS)
    sink.emit(END)
    sink.close()
    assert [type(event).__name__ for _, event in read_events(tmp_path / "log.jsonl")] == ["Progress", "End"]


def test_jsonl_begins_a_new_line_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "sta')
    sink = JsonlSink(path)
    sink.emit(END)
    sink.close()
    assert [event for _, event in read_events(path)] == [END]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_jsonl_bears_a_full_disk(capsys: pytest.CaptureFixture[str]) -> None:
    with Tracker([JsonlSink(Path("/dev/full"))]) as tracker:
        tracker.emit(START)
        tracker.emit(END)
    assert capsys.readouterr().err == ""


def test_jsonl_continues_when_there_is_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        free = 100_000

        def write(self, data: bytes) -> int:  # type: ignore[override]
            if self.free == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken, self.free = data[: self.free], self.free - len(data[: self.free])
            return super().write(taken)

    monkeypatch.setattr("evopipe.track.events.io.FileIO", Full)
    path = tmp_path / "log.jsonl"
    sink = JsonlSink(path)
    sink.emit(START)
    file = sink._file
    assert isinstance(file, Full)
    file.free = 10
    sink.emit(PROGRESS)  # Torn after 10 bytes.
    sink.emit(END)  # Does not fit at all.
    file.free = 100_000
    sink.emit(END)
    sink.close()
    assert [event for _, event in read_events(path)] == [START, END]


def test_lines_that_are_no_events_of_this_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sink = JsonlSink(path)
    sink.emit(END)
    sink.close()
    odd = ['{"event": "start", "time": 1, "colour": 3}', '{"event": "comet", "time": 1}', "[]", "", '{"event": "e']
    path.write_bytes("\n".join([*odd, path.read_text()]).encode() + b"\xff\n")
    assert [event for _, event in read_events(path)] == [END]


# --- plain lines ------------------------------------------------------------------------------------------------------


def test_plain_lines() -> None:
    out = io.StringIO()
    with Tracker([console_sink(stream=out)]) as tracker:
        for event in (START, PROGRESS, generation(), Message("warning", "look\x1b[2J"), Message("info", "fine"), END):
            tracker.emit(event)
    assert out.getvalue().splitlines() == [
        "train: LunarLander-v3, dqn, 2 members, 200,000 steps each",
        "train: generation 1, step 10,000 of 200,000, best 10.0, mean 5.0, elite 214.3 (id 11), 6,940 steps/s, "
        "2 min 05 s left",
        "warning: look [2J",
        "train: fine",
        "train: finished: target reached, 3 min 12 s, 832,000 training and 64,000 evaluation steps",
    ]


def test_the_time_left_is_the_most_it_can_be_where_a_target_may_end_the_run() -> None:
    out, event = io.StringIO(), replace(PROGRESS, target=200.0)
    sink = console_sink(stream=out)
    sink.emit(event)
    sink.emit(generation())
    assert out.getvalue().endswith(", 6,940 steps/s, at most 2 min 05 s left\n")
    assert text(view(START, event), 80)[3].endswith(" · 6,940 steps/s · ≤ 2 min 05 s left · learning")


def test_plain_start_of_a_resumed_run() -> None:
    out = io.StringIO()
    console_sink(stream=out).emit(Start("train", "CartPole-v1", "dqn", 1, 500, 120))
    assert out.getvalue() == "train: CartPole-v1, dqn, 1 member, 500 steps each, goes on at step 120\n"


def test_a_run_with_a_budget_says_how_much_of_it_is_spent() -> None:
    """Of members that come and go no step says how far the run is."""
    start = replace(START, budget=100_000, resumed_step=5_000, resumed_env_steps=12_000)
    out = io.StringIO()
    sink = console_sink(stream=out)
    for event in (start, generation()):
        sink.emit(event)
    assert out.getvalue().splitlines() == [
        "train: LunarLander-v3, dqn, 2 members, 200,000 steps each, 100,000 in all, goes on at step 12,000",
        "train: generation 1, 23,000 of 100,000 steps, best 10.0, mean 5.0, elite 214.3 (id 11)",
    ]
    lines = text(view(start, replace(PROGRESS, env_steps=30_000, eval_steps=10_000)), 80)
    assert lines[2].endswith(" 40 %")
    assert lines[3].startswith(" 40,000 of 100,000 steps · ")


def test_plain_lines_on_an_ascii_stream() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    console_sink(stream=out).emit(Message("info", "é → x"))
    assert raw.getvalue() == b"run: ? ? x\n"


def test_quiet_writes_warnings_only() -> None:
    out = io.StringIO()
    sink = console_sink(quiet=True, stream=out)
    for event in (START, PROGRESS, generation(), Message("info", "fine"), Message("warning", "look"), END):
        sink.emit(event)
    assert out.getvalue() == "warning: look\n"


def test_choice_of_sink(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    live = console_sink(stream=terminal)
    assert isinstance(live, _LiveSink)
    live.close()
    assert not isinstance(console_sink(quiet=True, stream=terminal), _LiveSink)
    assert not isinstance(console_sink(stream=io.StringIO()), _LiveSink)
    assert not isinstance(console_sink(stream=Terminal("ascii")), _LiveSink)
    for name, value in (("CI", "true"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not isinstance(console_sink(stream=terminal), _LiveSink)


@pytest.mark.parametrize(
    ("value", "text"),
    [(64.0, "64"), (0.99, "0.99"), (3.2e-4, "3.2e-4"), (1e-3, "1e-3"), (0.0064, "6.4e-3"), (math.nan, "-"), (0, "0")],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_score_and_duration() -> None:
    assert [score(value) for value in (214.31, -1234.56, 12345.6, -math.inf)] == ["214.3", "-1235", "12346", "-"]
    small = (0.9564, 0.95641, -0.03, 0.00123, -0.000456, 0.0)
    assert [score(value) for value in small] == ["0.9564", "0.9564", "-0.03", "1.23e-3", "-4.56e-4", "0.0"]
    for digits in ("1.2345", "9.9996"):
        for n in range(-9, 9):
            for value in (float(f"{digits}e{n}"), -float(f"{digits}e{n}")):
                assert abs(float(score(value)) - value) <= 5.01e-4 * abs(value), "four significant digits"
                assert len(score(value)) <= 9
    assert [score(value) for value in (9999.9, 1e4, 999_999.0, 999_999.7, 1e6, -1e6, 1.0, 98.35, 100.04)] == [
        "10000", "10000", "999999", "1e6", "1e6", "-1e6", "1.0", "98.35", "100.0",
    ]  # fmt: skip
    assert [duration(value) for value in (0.4, 59.4, 59.6, 60, 3599, 3600, 3660)] == [
        "0 s", "59 s", "1 min 00 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "1 h 01 min",
    ]  # fmt: skip
    assert [number(value) for value in (999_999.0, 1e6, 0.01, 0.0099)] == ["999999", "1e6", "0.01", "9.9e-3"]
    assert [duration(value) for value in (42, 185, 7620, math.inf)] == ["42 s", "3 min 05 s", "2 h 07 min", "-"]


# --- live view --------------------------------------------------------------------------------------------------------


def view(*events: Event) -> RunView:
    shown = RunView()
    for event in events:
        shown.apply(event)
    return shown


def text(shown: RunView, width: int, height: int | None = None) -> list[str]:
    """The lines of a frame, as a terminal of that width shows them."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(shown.frame(width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def words(line: str) -> str:
    return " ".join(line.split())


def test_members_that_wait_stay_on_the_screen_and_trials_are_called_so() -> None:
    both, first = generation(2), generation(2, 2)
    one = replace(first, members=(member(1, fitness=30.0, id=31, mutation="none", change=""),))
    lines = {words(line).split()[0]: words(line) for line in text(view(START, both, one), 100)[-2:]}
    assert lines["0"].startswith("0 0.0 "), "as it was scored last"
    assert lines["0"].endswith(" waits")
    assert lines["1"].startswith("1 30.0 ")
    assert lines["1"].endswith(" new trial")
    again = replace(one, generation=3, members=(replace(one.members[0], fitness=40.0), member(0, fitness=1.0)))
    last = text(view(START, both, one, again), 100)
    assert not any("waits" in line for line in last)
    assert any(words(line).startswith("1 40.0") and line.endswith("new trial") for line in last)


@pytest.mark.parametrize("width", [30, 44, 80, 100, 160])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_no_line_is_wider_than_the_terminal(width: int, count: int) -> None:
    shown = view(START, PROGRESS, *(generation(count, index) for index in range(1, 30)), Message("warning", "x " * 200))
    assert max(cell_len(line) for line in text(shown, width)) <= width


def test_head_and_table_at_80_columns() -> None:
    lines = text(view(START, PROGRESS, generation()), 80)
    assert lines[1] == " LunarLander-v3 · dqn · 2 members · generation 1"
    assert lines[2].endswith("   5 %")
    assert lines[3] == " 10,000 of 200,000 steps each · 6,940 steps/s · 2 min 05 s left · learning"
    assert lines[4].startswith(" elite 214.3 (id 11) · best 10.0 · mean 5.0")
    assert words(lines[6]) == "slot fitness trend id network act lr batch what changed"
    assert words(lines[7]) == "0 0.0 ▁ 10 128 · 128 ReLU 2.4e-4 64 lr 3e-4 → 2.4e-4"
    assert lines[8].split()[:5] == ["★", "1", "10.0", "█", "11"]


def test_columns_go_one_by_one_where_it_is_narrow() -> None:
    shown = view(START, generation())
    titles = {width: text(shown, width)[6] for width in (16, 44, 120)}
    assert words(titles[16]) == "slot fitness"
    assert words(titles[44]) == "slot fitness trend id what changed"
    assert words(titles[120]) == "slot fitness trend id loss network act lr batch mutation what changed"


def test_members_that_do_not_fit_are_summed_up() -> None:
    lines = text(view(START, PROGRESS, generation(40)), 80, 23)
    assert len(lines) == 23
    assert lines[-1] == " … and 25 more, fitness 0.0 to 250.0"
    assert any(line.startswith("  ★ 1 ") for line in lines)  # The elite stays, low as its fitness is here.
    assert len(text(view(START, generation(40)), 80, 4)) <= 6  # No room for members: the head stays.


def test_trend_follows_the_line_of_descent() -> None:
    def later(step: int, parent: int, fitness: float) -> Generation:
        row = member(0, id=10 + step, parent=parent, fitness=fitness)
        return Generation(step, step, step, 0, 1.0, (row,), fitness, fitness, fitness, row.id)

    lines = text(view(START, later(1, 5, 0.0), later(2, 11, 70.0), later(3, 12, 35.0)), 120)
    assert "▁█▅" in lines[-1]
    assert "←12" in lines[-1]


def test_unhealthy_members_say_so() -> None:
    rows = (member(0), member(1, healthy=False))
    event = Generation(1, 1, 1, 1, 1.0, rows, 1.0, 1.0, 1.0, 10)
    assert "diverged, will be replaced" in text(view(START, event), 120)[-1]


def test_messages_are_wrapped_and_the_latest_three_stay() -> None:
    lines = text(view(START, *(Message("info", f"note {index}") for index in range(5))), 80)
    assert lines[-3:] == [" · note 2", " · note 3", " · note 4"]
    lines = text(view(START, Message("warning", "word " * 100)), 80)
    assert lines[-2].startswith(" ! word")
    assert lines[-1].endswith("…")


def test_end_replaces_the_pace() -> None:
    lines = text(view(START, PROGRESS, generation(), END), 80)
    assert lines[3].startswith(" finished: target reached, 3 min 12 s, 832,000 training")


def test_live_view_leaves_a_clean_terminal(terminal: Terminal) -> None:
    with Tracker([console_sink(stream=terminal)]) as tracker:
        for event in (START, PROGRESS, generation(30), END):
            tracker.emit(event)
    out = terminal.getvalue()
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1
    assert out.rindex("\x1b[?25h") > out.rindex("finished")
    last = out[out.rindex("LunarLander-v3") :]
    assert "more, fitness" not in last  # The last frame shows all members, however small the terminal.
    assert "290.0" in last


def test_live_view_draws_at_most_four_times_a_second(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    sink, drawn = console_sink(stream=terminal), []
    for tick in range(61):  # 0.6 s
        clock, size = 100.0 + tick / 100, len(terminal.getvalue())
        sink.emit(START if tick == 0 else PROGRESS)
        if len(terminal.getvalue()) != size:
            drawn.append(tick)
    sink.close()
    assert drawn == [0, 25, 50]


def test_live_view_draws_seldom_where_a_frame_is_dear(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at this clock takes 0.01 s, so a frame takes that: 2.5 s between two make 0.4 %."""
    clock = iter(i / 100 for i in range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    sink, drawn = console_sink(stream=terminal), []
    for tick in range(1000):
        size = len(terminal.getvalue())
        sink.emit(START if tick == 0 else PROGRESS)
        if len(terminal.getvalue()) != size:
            drawn.append(tick)
    sink.close()
    assert len(drawn) > 3
    assert {later - sooner for sooner, later in pairwise(drawn[1:])} == {250}


def test_live_view_without_colour(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    sink = console_sink(stream=terminal)
    sink.emit(START)
    sink.emit(generation())
    sink.close()
    assert "\x1b[3" not in terminal.getvalue()
    assert "LunarLander-v3" in terminal.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_terminal_is_clean_after_an_exit_without_close() -> None:
    import pty

    program = (
        "from evopipe.track.events import Start\n"
        "from evopipe.track.console import console_sink\n"
        "sink = console_sink()\n"
        "sink.emit(Start('train', 'LunarLander-v3', 'dqn', 2, 100))\n"
        "raise KeyboardInterrupt\n"
    )
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "CI": "", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=env)
    os.close(theirs)
    out = b""
    try:
        while chunk := os.read(ours, 65536):
            out += chunk
    except OSError:  # EIO: the other side is closed.
        pass
    os.close(ours)
    process.wait(10)
    assert b"LunarLander-v3" in out
    assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")


def test_without_a_stderr_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Tracker([console_sink()]) as tracker:
        tracker.emit(Message("warning", "unheard"))


def test_a_tracker_that_is_closed_closes_its_sinks_once_and_sends_nothing_more() -> None:
    class Noted:
        def __init__(self) -> None:
            self.told: list[str] = []

        def emit(self, event: Any) -> None:
            self.told.append("emit")

        def close(self) -> None:
            self.told.append("close")

    sinks = Noted(), Noted()
    tracker = Tracker([*sinks])
    tracker.emit(Message("info", "before"))
    for _ in range(2):
        tracker.close()
        tracker.emit(Message("info", "after"))
    assert [sink.told for sink in sinks] == [["emit", "close"]] * 2
