"""A run of agents that is killed again and again ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import evopipe

SCRIPT = """
import random, sys, time
import evopipe
from evopipe.agents import ChatAgent, CopyGame

class Late(CopyGame):
    blocking = True  # in threads, which come to an end in any order
    steps = 0

    def get_reward_and_next_obs(self, task, action):
        time.sleep(random.random() / 200)
        Late.steps += 1
        if len(sys.argv) > 2 and Late.steps > int(sys.argv[2]):
            open(sys.argv[1] + ".hangs", "w").close()
            time.sleep(600)
        return super().get_reward_and_next_obs(task, action)

evopipe.AgentTrainer(
    agent_class=ChatAgent, env_class=Late, population=2, train_dataset=CopyGame.tasks(20),
    config={
        "trainer.default_local_dir": sys.argv[1], "runtime.checkpoint_seconds": 1e-3, "data.train_batch_size": 2,
        "actor_rollout_ref.rollout.n": 4, "data.max_response_length": 1, "language.tiny.characters": "0123456789",
        "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
        "trainer.total_training_steps": 60, "trainer.test_freq": 10, "train.eval_episodes": 8,
        "agents.record": "all", "evaluate.bootstrap": 100,
    },
).train()
"""


def written(folder: Path) -> dict[str, bytes]:
    """What a run leaves, but for its state and the time that it took."""
    files = [path for part in ("models", "reports", "episodes") for path in sorted((folder / part).rglob("*.*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != "timing.csv"}


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end_whichever_thread_comes_first(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path / name)], env=environment)

    began = time.perf_counter()
    assert start("whole").wait() == 0
    seconds, draw, done = time.perf_counter() - began, random.Random(1), 0
    while done < 4:
        run = start("cut")
        time.sleep(draw.uniform(0.3, 0.9) * seconds)
        run.send_signal(signal.SIGKILL)
        if run.wait() == 0:
            break
        done += 1
    assert done > 0
    assert start("cut").wait() == 0
    assert written(tmp_path / "cut") == written(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_plays_rounds_ahead_and_is_killed_twenty_times_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """Two rounds are under way when it is killed, by weights of two rounds before."""
    script, kills = tmp_path / "run.py", 20
    script.write_text(
        SCRIPT.replace(
            '"trainer.total_training_steps": 60', '"agents.staleness": 2, "trainer.total_training_steps": 70'
        )
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path / name)], env=environment)

    assert start("whole").wait() == 0
    done, draw = 0, random.Random(1)
    for i in range(kills):
        run, seen = start("cut"), tmp_path / "cut/episodes" / f"train-{3 * i + 2:06d}.jsonl"
        while run.poll() is None and not seen.exists():
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.1))
        run.send_signal(signal.SIGKILL)
        done += run.wait() == -signal.SIGKILL
    assert done == kills
    assert start("cut").wait() == 0
    assert written(tmp_path / "cut") == written(tmp_path / "whole")
    assert len(list((tmp_path / "cut/episodes").glob("train-*.jsonl"))) == 70


@pytest.mark.slow
def test_a_run_that_hangs_in_the_middle_of_a_round_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(script), *words], env=environment, stderr=subprocess.PIPE, text=True
        )

    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    assert "Traceback" not in start(whole).communicate()[1]
    run = start(cut, "500")
    while not Path(f"{cut}.hangs").exists():
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    _, told = run.communicate(timeout=60)  # a step would hang for ten minutes, and be given up after one
    assert "saved, the same command continues from there" in told
    assert "Traceback" not in start(cut).communicate()[1]
    assert written(tmp_path / "cut") == written(tmp_path / "whole")


OUTSIDE = """
import sys
from openai import AsyncOpenAI
import evopipe

shared = AsyncOpenAI(base_url="http://127.0.0.1/v1", api_key="-")

async def copies(task, connection):
    client = shared.with_options(base_url=connection.base_url, api_key=connection.api_key)
    chat, rewards = [], []
    for digit in task["digits"]:
        chat.append({"role": "user", "content": digit})
        found = await client.chat.completions.create(model=connection.model, messages=chat)
        chat.append(found.choices[0].message)
        rewards.append(float(found.choices[0].message.content == digit))
    return rewards

evopipe.AgentTrainer(
    flow=copies, endpoint=True, population=2, train_dataset=[{"digits": f"{n:02d}"} for n in range(20)],
    config={
        "trainer.default_local_dir": sys.argv[1], "runtime.checkpoint_seconds": 1e-3, "data.train_batch_size": 2,
        "actor_rollout_ref.rollout.n": 4, "data.max_response_length": 1, "language.tiny.characters": "0123456789",
        "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
        "trainer.total_training_steps": 20, "trainer.test_freq": 5, "train.eval_episodes": 8,
        "agents.record": "all", "agents.advantage": "turn", "evaluate.bootstrap": 100,
    },
).train()
"""


@pytest.mark.slow
def test_a_killed_run_whose_agents_ask_over_http_goes_on_to_the_same_end(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("openai")
    script = tmp_path / "run.py"
    script.write_text(OUTSIDE)
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(tmp_path / name)], env=environment)

    assert start("whole").wait() == 0
    done = 0
    for rounds in (2, 7, 13):  # killed in the round after this one, at whatever it does then
        run, seen = start("cut"), tmp_path / "cut/episodes" / f"train-{rounds:06d}.jsonl"
        while run.poll() is None and not seen.exists():
            time.sleep(0.01)
        time.sleep(random.Random(rounds).uniform(0.0, 0.3))
        run.send_signal(signal.SIGKILL)
        done += run.wait() != 0
    assert done > 0
    assert start("cut").wait() == 0
    assert written(tmp_path / "cut") == written(tmp_path / "whole")
