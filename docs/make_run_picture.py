"""Draw the live view of a run from its log, as an SVG: `python docs/make_run_picture.py LOG.jsonl docs/images/run.svg`.

The log is the `.jsonl` file in the run's state folder. `--at 0.6` stops where 60 % of the events have been seen.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console

from evopipe.track.console import RunView
from evopipe.track.events import read_events


def main() -> None:
    """Read the arguments, replay, write."""
    parser = argparse.ArgumentParser(description="Draw the live view of a run from its log.")
    parser.add_argument("log", type=Path, help="the run's .jsonl log")
    parser.add_argument("picture", type=Path, help="the .svg file to write")
    parser.add_argument("--width", type=int, default=110, help="terminal columns")
    parser.add_argument("--at", type=float, default=1.0, help="share of the events to replay")
    arguments = parser.parse_args()
    events = [event for _, event in read_events(arguments.log)]
    view = RunView()
    for event in events[: max(1, round(arguments.at * len(events)))]:
        view.apply(event)
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    arguments.picture.write_text(draw(view, arguments.width), encoding="utf-8")


def draw(view: RunView, width: int) -> str:
    """Return the view as an SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(view.frame(width))
    svg = console.export_svg(title="evopipe train", unique_id="evopipe")
    # Rich names a font on a server; the reader's own monospace font serves as well, and a picture stays a picture.
    svg = re.sub(r"@font-face\s*{.*?}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "Menlo, Consolas, 'DejaVu Sans Mono', monospace")


if __name__ == "__main__":
    main()
