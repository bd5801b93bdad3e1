"""Blocking code in processes of its own: that it hangs, dies or cannot travel is its episode's alone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("transformers")

import words
from evopipe import AgentTrainer
from evopipe.agents import BaseEnv, ChatAgent, MultiTurnWorkflow, SingleTurnEnvironment, TerminationReason
from evopipe.agents.blocking import Process, Processes, packed
from evopipe.agents.engine import Done, EpisodeJob, RolloutEngine
from evopipe.agents.model import Limits, Reply, Sampled, Tokens
from evopipe.agents.settings import Agents
from evopipe.parallel import available_cpus

DONE, ERROR, TIMEOUT = TerminationReason.ENV_DONE, TerminationReason.ERROR, TerminationReason.TIMEOUT


class Apart(BaseEnv):
    """Counts its steps, and does what its task says at the second."""

    blocking: ClassVar[Any] = "process"

    def __init__(self, task: dict[str, Any]) -> None:
        self.task, self.steps, self.pids = task, 0, [os.getpid()]

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return "0", {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.pids.append(os.getpid())
        does = self.task["does"] if self.steps == 2 else ""
        if does == "hang":
            while True:  # holds Python's lock: no thread could be given up like this
                pass
        if does == "raise":
            raise KeyError("broken")
        if does == "exit":
            raise SystemExit(3)
        if does == "die":
            os._exit(1)
        if does == "open":
            self.file = Path(os.devnull).open()  # noqa: SIM115 what holds it cannot travel
        return str(self.steps), 1.0, self.steps == 3, {"pids": self.pids}


def play(env: Any, kinds: list[str], processes: Processes, seconds: float = 60.0, **args: Any) -> list[Done]:
    make = partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=env, env_args=args)
    engine = RolloutEngine(
        make, Tokens(words.base()), Limits(64, 4), lambda wave: [Reply([8], [-1.0], [0.5]) for _ in wave],
        Agents(env_seconds=seconds, retries=0), grace=5.0, processes=processes,
    )  # fmt: skip
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"does": kind}, Sampled()) for i, kind in enumerate(kinds)])


def ended(found: list[Done]) -> list[Any]:
    return [
        (each.episode.termination_reason, (each.episode.info.get("error") or {}).get("error_message")) for each in found
    ]


@pytest.mark.thorough
def test_what_happens_in_a_process_is_its_episodes_alone() -> None:
    before, files = set(multiprocessing.active_children()), len(os.listdir("/proc/self/fd"))
    processes = Processes(2)
    found = play(Apart, ["", "raise", "exit", "die", "hang", "open", ""], processes, 5.0)
    assert [reason for reason, _ in ended(found)] == [DONE, ERROR, ERROR, ERROR, TIMEOUT, ERROR, DONE]
    told = [text for _, text in ended(found)]
    assert told[1:4] == ["'broken'", "SystemExit: 3", "the process that this ran in died"]
    assert found[1].episode.info["error"]["error_type"] == "KeyError"
    assert "cannot pickle" in told[5]
    for one in (found[0], found[-1]):
        (trajectory,) = one.episode.trajectories
        assert trajectory.reward == 3.0
        pids = trajectory.steps[-1].info["pids"]
        assert len(pids) == 4  # what it is travels with it, whichever process made it
        assert os.getpid() not in pids
    assert 1 <= len(set(multiprocessing.active_children()) - before) <= 2
    processes.close()
    assert set(multiprocessing.active_children()) <= before
    del found
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 1  # multiprocessing's own tracker


def right(task_info: dict[str, Any], action: str) -> float:
    return float(os.getpid() != task_info["pid"])


right.blocking = "process"  # type: ignore[attr-defined]


async def say(task: dict[str, Any], model: Any) -> str:
    return (await model.get_model_response([{"role": "user", "content": "0"}])).content


SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 2, "language.full": True,
    "trainer.total_training_steps": 1, "language.tiny.characters": "01", "agents.workers": 1,
}  # fmt: skip


@pytest.mark.thorough
def test_a_reward_function_says_that_it_runs_in_a_process_and_a_trainer_leaves_none() -> None:
    before, task = set(multiprocessing.active_children()), {"pid": os.getpid(), "question": "0"}
    ways: list[dict[str, Any]] = [{"agent_class": ChatAgent, "env_class": SingleTurnEnvironment}, {"flow": say}]
    for way in ways:
        trainer = AgentTrainer(**way, config=SMALL, train_dataset=[task], reward_fn=right)
        assert trainer.evaluate()["mean"] == 1.0
        assert set(multiprocessing.active_children()) <= before


class Busy(BaseEnv):
    """Computes for so long, on one CPU."""

    def __init__(self, task: dict[str, Any], seconds: float = 0.05) -> None:
        self.seconds, self.turn = seconds, 0

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return "0", {}

    def step(self, action: Any) -> Any:
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        self.turn += 1
        return "0", 1.0, self.turn == 2, {}


class BusyApart(Busy):
    blocking: ClassVar[Any] = "process"


@pytest.mark.slow
@pytest.mark.skipif(
    os.getloadavg()[0] > available_cpus() - 1.5, reason="no two CPUs are idle: there is nothing to gain"
)
def test_environments_that_compute_gain_by_processes() -> None:
    seconds: dict[Any, list[float]] = {Busy: [], BusyApart: []}
    processes = Processes(2)
    play(BusyApart, [""] * 4, processes)  # they have begun
    for env in (Busy, BusyApart) * 3:
        start = time.perf_counter()
        found = play(env, [""] * 16, processes)
        seconds[env].append(time.perf_counter() - start)
        assert [reason for reason, _ in ended(found)] == [DONE] * 16
    processes.close()
    assert min(seconds[BusyApart]) < 0.75 * min(seconds[Busy]), seconds


def test_a_lambda_is_told_that_it_cannot_travel() -> None:
    def score(task_info: dict[str, Any], action: str) -> float:
        return 1.0

    score.blocking = "process"  # type: ignore[attr-defined]
    (one,) = play(SingleTurnEnvironment, [""], Processes(1), reward_fn=score)
    ((reason, told),) = ended([one])
    assert reason is ERROR
    assert "what says blocking = 'process' travels to another one by pickle, and this cannot" in told


def test_a_word_for_how_code_blocks_that_nobody_knows_is_an_error() -> None:
    class Typo(Apart):
        blocking: ClassVar[Any] = "proces"

    (one,) = play(Typo, [""], Processes(1))
    assert ended([one]) == [(ERROR, "Typo.blocking is 'proces': say False, True (in a thread) or 'process'")]


@pytest.mark.thorough
def test_a_script_that_runs_whenever_it_is_imported_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "bare.py"
    script.write_text(
        "from evopipe.agents.blocking import Process, packed\nProcess().begin(packed(len, ((),)))\n", encoding="utf-8"
    )
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 1
    text = "a script must start its run below `if __name__ == '__main__':`"
    assert told.stderr.splitlines()[-1] == f"RuntimeError: the process that this ran in died before it began: {text}"


@pytest.mark.thorough
def test_an_interrupt_at_the_terminal_is_not_for_the_process_of_an_environment() -> None:
    process = Process()
    try:
        process.begin(packed(abs, (1,)))
        pid, error = process.ask(packed(os.getpid, ()))
        assert error is None
        os.kill(pid, signal.SIGINT)
        time.sleep(0.05)
        assert process.ask(packed(abs, (-3,))) == (3, None)
    finally:
        process.kill()
