"""Write `docs/examples.md` from the scripts of `examples/`: `python docs/make_examples.py`; `--check` compares."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from make_parameters import publish

PAGE = Path(__file__).with_name("examples.md")
SCRIPTS = Path(__file__).parents[1] / "examples"
WISHES = {
    "custom_environment": "Learn in an environment of one's own",
    "custom_network": "Bring a network of one's own",
    "learning_rates": "Let learning rates evolve, and watch who descends from whom",
    "resume": "Kill a run and go on",
    "team": "Train a team",
    "offline_data_frame": "Learn from a data frame",
    "language_reward": "Train a language model by a reward of one's own",
    "openai_agent": "Train an agent that speaks OpenAI's API",
    "sweep": "Try settings side by side",
    "curves": "Compare learning curves",
    "numpy_alone": "Deploy with NumPy alone",
    "onnx_program": "Deploy as ONNX",
    "film": "See the elite at play",
    "custom_loop": "Write the loop oneself",
}
"""What each script is for, in the order of the page."""


def render() -> str:
    """Return the page."""
    parts = [
        "# Examples",
        "<!-- Made by docs/make_examples.py: do not edit. -->",
        "Short scripts, each for one wish, each run by the tests. They lie in `examples/`; a copy "
        "in any folder runs, and writes there: `python film.py`.",
        "| You want to | Script |\n| --- | --- |\n"
        + "\n".join(f"| {wish} | [{name}.py](#{_anchor(wish)}) |" for name, wish in WISHES.items()),
    ]
    for name, wish in WISHES.items():
        code = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
        told = ast.get_docstring(ast.parse(code)) or ""
        rest = code.partition('"""')[2].partition('"""')[2].strip("\n")
        parts += [f"## {wish}", f"{told}\n\n[examples/{name}.py](../examples/{name}.py)", f"```python\n{rest}\n```"]
    return "\n\n".join(parts) + "\n"


def _anchor(heading: str) -> str:
    return "".join(letter for letter in heading.lower() if letter.isalnum() or letter == " ").replace(" ", "-")


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    return publish({PAGE: render()}, "Write docs/examples.md from examples/.", arguments, "make_examples")


if __name__ == "__main__":
    sys.exit(main())
