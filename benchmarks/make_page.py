"""Write `docs/benchmarks.md` and its plots from `benchmarks/results/`; with `--check` say whether the page is fresh."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

from harness import survival  # noqa: E402
from harness.page import page  # noqa: E402
from harness.plots import plots  # noqa: E402
from harness.rows import ROWS  # noqa: E402

from evopipe.storage.files import read_json, write_bytes, write_text  # noqa: E402

PAGE = HERE.parent / "docs" / "benchmarks.md"
IMAGES = HERE.parent / "docs" / "images"
# In the order of the page.
NAMES = (
    "end_to_end", "td3", "ddpg", "sac", "rainbow", "cqn", "ppo", "ppo_recurrent", "maddpg", "maddpg_learning", "matd3",
    "ippo", "grpo", "grpo_small", "dpo", "completions", "ppo_native", "priorities", "roofline", "parts", "curve_64",
    "curve_128", "efficiency_lander", "efficiency_cartpole", "checkpoint", "script_dqn", "script_ppo",
    "script_ppo_recurrent", "script_cqn", "script_ddpg", "script_maddpg", "cartpole", "lunarlander",
    "hpo_cartpole", "hpo_acrobot", "hpo_pendulum", "hpo_lander", *ROWS,
)  # fmt: skip


def read(folder: Path) -> Mapping[str, Any]:
    """Return the results that are there, by measurement."""
    files = {name: folder / f"{name}.json" for name in (*NAMES, *survival.NAMES, "curve_64_cuda", "ppo_native_cuda")}
    found = {name: read_json(file) for name, file in files.items() if file.exists()}
    return {name: result for name, result in found.items() if result["runs"]}


def main(arguments: list[str] | None = None) -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(arguments)
    results = read(args.results)
    text = page(results)
    if args.check:
        fresh = args.page.exists() and args.page.read_text(encoding="utf-8") == text
        print("fresh" if fresh else f"{args.page} is stale: run `python benchmarks/make_page.py`")
        return 0 if fresh else 1
    write_text(args.page, text)
    for name, data in plots(results).items():
        write_bytes(args.page.parent / "images" / name, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
