"""Take the picture of a report: `python docs/make_report_picture.py reports/report.html docs/images/report.png`.

It needs Chromium, see `tests/browser.py`. `--width`, `--height` and `--dark` say what to show, `--top` where to begin.
"""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import NAMES, find, opened


def main() -> None:
    """Read the arguments, open the page, write the picture."""
    parser = argparse.ArgumentParser(description="Take the picture of a report.")
    parser.add_argument("page", type=Path, help="the report's .html file")
    parser.add_argument("picture", type=Path, help="the .png file to write")
    parser.add_argument("--width", type=int, default=1200, help="of the window, in pixels")
    parser.add_argument("--height", type=int, default=1222, help="of the picture, in pixels")
    parser.add_argument("--top", type=int, default=0, help="where on the page the picture begins, in pixels")
    parser.add_argument("--dark", action="store_true", help="as it looks by night")
    arguments = parser.parse_args()
    program = find()
    if program is None:
        parser.error(f"no browser is here: put one of {', '.join(NAMES)} on PATH")
    with opened(program) as browser:
        browser.open(arguments.page, arguments.width, dark=arguments.dark, still=True)
        whole = Image.open(io.BytesIO(browser.picture(whole=True)))
    shown = whole.crop((0, arguments.top, whole.width, min(whole.height, arguments.top + arguments.height)))
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    shown.convert("RGB").save(arguments.picture, optimize=True)


if __name__ == "__main__":
    main()
