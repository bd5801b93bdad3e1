"""A run of language models that is killed again and again ends as if nothing had happened."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

import words
from evopipe import layout
from evopipe.schema.write import dump_yaml
from players import small_params as small_games
from tiny import call, checkpoints, digests, starter

OUTS = tuple(out.as_posix() for out in layout.TEXT_OUTS["train"])
MODULES = (
    "evopipe.problems.text", "evopipe.scale.divide", "transformers.models.llama",
    "transformers.models.llama.modeling_llama",
    "transformers.models.auto.modeling_auto", "tokenizers",
)  # fmt: skip


def prepared(folder: Path, algo: str, steps: int) -> Path:
    data = small_games(algo) if algo in ("bc_language", "ilql") else words.small_params()
    data["train"] |= {"algo": algo, "max_steps": steps, "evo_steps": 10}
    data["runtime"]["checkpoint_seconds"] = 1e-3
    (folder / "params.yaml").write_text(dump_yaml(data))
    for stage in ("fetch", "buffer", "population"):
        assert call(folder, "--quiet", stage).code == 0
    return folder


@pytest.mark.parametrize(
    ("algo", "kills"),
    [
        pytest.param("grpo", 3, marks=pytest.mark.thorough),
        pytest.param("grpo", 20, marks=pytest.mark.slow),
        pytest.param("dpo", 5, marks=pytest.mark.slow),
        pytest.param("bc_language", 10, marks=pytest.mark.slow),
        pytest.param("ilql", 10, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_to_the_same_end(algo: str, kills: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    prepared(folder, algo, steps=60)
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    with starter(*MODULES) as start:
        began = time.perf_counter()
        run = start.start(whole, "train")
        assert run.wait() == 0, run.log
        seconds = time.perf_counter() - began
        expected, draw, done = digests(whole, OUTS), random.Random(kills), 0
        while done < kills:
            run = start.start(folder, "train")
            time.sleep(draw.uniform(0.0, 0.8 * seconds))
            run.send(signal.SIGKILL)
            if run.wait() == 0:  # it was over before
                assert digests(folder, OUTS) == expected
                for out in OUTS:
                    shutil.rmtree(folder / out) if (folder / out).is_dir() else (folder / out).unlink()
            else:
                done += 1
        run = start.start(folder, "train")
        assert run.wait() == 0, run.log
    assert digests(folder, OUTS) == expected
    assert not checkpoints(folder)
