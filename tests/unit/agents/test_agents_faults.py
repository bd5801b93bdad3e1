"""What users' code throws and where it blocks: each is a sentence of its episode's, and no run hangs or falls by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("transformers")

import evopipe
import words
from evopipe import AgentTrainer
from evopipe.agents import (
    BaseEnv,
    ChatAgent,
    Episode,
    MultiTurnWorkflow,
    Step,
    TerminationReason,
    ToolAgent,
    ToolEnvironment,
    Trajectory,
    Workflow,
)
from evopipe.agents.engine import Cancelled, Done, EpisodeJob, RolloutEngine, _Turns
from evopipe.agents.model import Limits, Reply, Sampled, Tokens
from evopipe.agents.settings import Agents
from evopipe.errors import EnvironmentFailed
from evopipe.watchdog import staying

DONE, ERROR, TIMEOUT = TerminationReason.ENV_DONE, TerminationReason.ERROR, TerminationReason.TIMEOUT
CHAT = [{"role": "user", "content": "0"}]


def play(make: Any, n: int = 2, agents: Agents | None = None, **more: Any) -> list[Done]:
    """Play so many episodes; every completion says "1"."""
    stopped, text = more.pop("stopped", lambda: False), more.pop("text", "1")
    base = words.base()
    ids = base.encode(text)
    engine = RolloutEngine(
        make, Tokens(base), Limits(64, 64), lambda wave: [Reply(ids, [-1.0] * len(ids), [0.5]) for _ in wave],
        agents or Agents(retries=0), grace=0.2, **more,
    )  # fmt: skip
    return engine.run([EpisodeJob(0, i, f"{i}:0", {"n": i}, Sampled()) for i in range(n)], stopped)


def reasons(done: list[Done]) -> list[Any]:
    return [each.episode.termination_reason for each in done]


def told(done: Done) -> str:
    return str(done.episode.info["error"]["error_message"])


class Own(BaseException):
    """No ordinary exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def leave() -> None:
    os._exit(0)


def throw(error: BaseException) -> None:
    raise error


THROWN: dict[str, tuple[Callable[[], Any], str]] = {
    "GeneratorExit": (lambda: throw(GeneratorExit()), "GeneratorExit"),
    "BaseException": (lambda: throw(Own("mine")), "Own: mine"),
    "StopIteration": (lambda: next(iter(())), "StopIteration"),
    "CancelledError": (lambda: throw(asyncio.CancelledError()), "CancelledError"),
    "SystemExit": (lambda: sys.exit(0), "SystemExit: 0"),
    "os._exit": (leave, "SystemExit: os._exit(0)"),
    "mute": (lambda: throw(Mute()), "its text cannot be read, for __str__ raised RuntimeError"),
}


class Throws(BaseEnv):
    """Throws what `what` says in one of its methods, of the first task."""

    what: ClassVar[str] = ""
    where: ClassVar[str] = ""
    closed: ClassVar[int] = 0

    def __init__(self, task: dict[str, Any]) -> None:
        self.first = task["n"] == 0
        self.at("init")

    def at(self, where: str) -> None:
        if self.first and where == self.where:
            THROWN[self.what][0]()

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.at("reset")
        return "0", {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        self.at("step")
        return "", 1.0, True, {}

    def close(self) -> None:
        type(self).closed += 1
        self.at("close")


class ThrowsHere(Throws):
    blocking: ClassVar[bool] = False


class ThrowsLater(Throws):
    """The same, of coroutines."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        self.at("step")
        return "", 1.0, True, {}


@pytest.mark.parametrize("kind", [Throws, ThrowsHere, ThrowsLater])
@pytest.mark.parametrize("where", ["init", "reset", "step", "close"])
@pytest.mark.parametrize("what", list(THROWN))
def test_whatever_an_environment_throws_is_a_sentence_of_its_episode(
    what: str, where: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "what", what)
    monkeypatch.setattr(kind, "where", where)
    monkeypatch.setattr(kind, "closed", 0)
    with staying():  # where it is not caught this test must not end the tests
        done = play(partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=kind))
    if where == "close":
        assert reasons(done) == [DONE, DONE]
        assert THROWN[what][1].split(":")[0] in done[0].episode.info["close"]
    else:
        assert reasons(done) == [ERROR, DONE]
        assert THROWN[what][1] in told(done[0])
    assert kind.closed == (1 if where == "init" else 2)


@pytest.mark.parametrize("where", ["make", "reset", "run", "task", "postprocess", "close"])
@pytest.mark.parametrize("what", [what for what in THROWN if what != "CancelledError"])
def test_whatever_a_workflow_throws_is_a_sentence_of_its_episode(what: str, where: str) -> None:
    class Broken(Workflow):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            Broken.count += 1
            self.first = Broken.count == 1
            self.at("make")

        count = 0

        def at(self, here: str) -> None:
            if self.first and here == where:
                THROWN[what][0]()

        def reset(self, task: Any = None, uid: Any = None) -> None:
            super().reset(task, uid)
            self.at("reset")

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            self.at("run")

            async def inner() -> None:
                self.at("task")

            await asyncio.gather(inner(), asyncio.sleep(0))
            return Episode(termination_reason=DONE)

        def postprocess_episode(self, *args: Any) -> Episode:
            self.at("postprocess")
            return super().postprocess_episode(*args)

        async def close(self) -> str | None:
            self.at("close")
            return None

    with staying():
        done = play(Broken)
    assert reasons(done) == [DONE if where == "close" else ERROR, DONE]
    found = done[0].episode.info["close"] if where == "close" else told(done[0])
    assert THROWN[what][1].split(":")[0] in found


def test_a_tool_that_leaves_the_process_fails_its_episode_alone() -> None:
    def tool(value: Any) -> Any:
        os._exit(0)

    make = partial(
        MultiTurnWorkflow, agent_cls=ToolAgent, env_cls=ToolEnvironment,
        env_args={"tools": {"1": tool}, "reward_fn": lambda task, answer: 1.0},
    )  # fmt: skip

    class Calls(ToolAgent):
        def act(self, response: str) -> dict[str, Any]:
            return {"tool": "1", "input": ""}

    make.keywords["agent_cls"] = Calls
    with staying():
        done = play(make, 1)
    assert (reasons(done), told(done[0])) == ([ERROR], "SystemExit: os._exit(0)")


def test_only_foreign_code_of_this_process_is_kept_from_leaving_it() -> None:
    script = "import os\nfrom evopipe.watchdog import staying\n"
    script += "with staying():\n    try: os._exit(3)\n    except SystemExit: pass\n"
    script += "with staying():\n    child = os.fork()\n    if not child: os._exit(5)\n"
    script += "    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\nos._exit(code + 2)\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=60)
    assert ran.returncode == 7


# --- rewards and episodes ---------------------------------------------------------------------------------------------

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 1, "trainer.test_freq": 1,
    "train.eval_episodes": 2, "train.confirm_episodes": 2, "evaluate.bootstrap": 100, "agents.retries": 0,
}  # fmt: skip


@pytest.mark.parametrize("reward", [1e308, -1e308, 3e38, 10**400, 2e16])
@pytest.mark.thorough
def test_rewards_that_no_sum_of_squares_holds_fail_their_episodes(reward: Any) -> None:
    async def flow(task: dict[str, Any], model: Any) -> Any:
        await model.get_model_response(CHAT)
        return reward if task["n"] == 0 else 1.0

    tasks = [{"n": 0}, {"n": 1}]
    with pytest.raises(EnvironmentFailed, match="which is beyond ±1e\\+16: scale rewards down") as failed:
        AgentTrainer(flow=flow, config={**SMALL, "agents.max_error_fraction": 0.4}, train_dataset=tasks).train()
    assert failed.value.exit_code == 71
    trained = AgentTrainer(flow=flow, config=SMALL, train_dataset=tasks).train()
    assert trained.measures[0]["failed"] == 0.5


@pytest.mark.parametrize("reward", [1e16, -1e16])
def test_the_largest_rewards_are_learned_from(reward: float) -> None:
    class Alternating(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            step = Step.from_model_output(await self.rollout_engine.get_model_response(CHAT), CHAT)
            value = reward if uid.endswith(("0", "2")) else 0.0
            return Episode(trajectories=[Trajectory(steps=[step], reward=value)])

    trained = AgentTrainer(workflow_class=Alternating, config=SMALL, train_dataset=[{"n": 0}]).train()
    (measures,) = trained.measures
    assert (measures["effective"], measures["failed"]) == (1.0, 0.0)
    assert measures["reward"] == pytest.approx(reward / 2)


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        ({"metrics": {"speed": "fast"}}, ERROR),
        ({"metrics": {"speed": float("nan")}}, ERROR),
        ({"metrics": {"speed": True}}, DONE),
        ({"termination_reason": "env_done"}, DONE),
        ({"termination_reason": "bored"}, ERROR),
        ({"is_correct": "yes"}, DONE),
        ({"trajectories": [Trajectory(name=None), Trajectory(name=7)]}, DONE),  # type: ignore[arg-type]
        ({"trajectories": None}, ERROR),
        ({"trajectories": ["one"]}, ERROR),
    ],
)
def test_an_episode_of_odd_parts_is_one_or_fails_alone(episode: dict[str, Any], reason: TerminationReason) -> None:
    class Odd(Workflow):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            return Episode(**{"termination_reason": DONE, **(episode if task["n"] == 0 else {})})

    done = play(Odd)
    assert reasons(done) == [reason, DONE]
    if reason is DONE:
        assert isinstance(done[0].episode.is_correct, bool)
        assert all(isinstance(each.name, str) for each in done[0].episode.trajectories)


# --- code that blocks -------------------------------------------------------------------------------------------------


class Blocks(Workflow):
    """Blocks the loop as its first task says; any other asks the model once, and then once more."""

    seconds: ClassVar[float] = 60.0

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        await self.rollout_engine.get_model_response(CHAT)
        if task["n"] == 0:
            self.block()
        await self.rollout_engine.get_model_response(CHAT)
        return Episode(termination_reason=DONE)

    def block(self) -> None:
        time.sleep(self.seconds)


class Spins(Blocks):
    def block(self) -> None:
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                sum(range(1000))


class BlocksInATask(Blocks):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        async def inner() -> None:
            if task["n"] == 0:
                self.block()

        await asyncio.gather(inner(), asyncio.sleep(0))
        return Episode(termination_reason=DONE)


class BlocksAtTheEnd(Blocks):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.task = task
        return Episode(termination_reason=DONE)

    def postprocess_episode(self, *args: Any) -> Episode:
        if self.task["n"] == 0:
            self.block()
        return super().postprocess_episode(*args)


@pytest.mark.parametrize("kind", [Blocks, Spins, BlocksInATask, BlocksAtTheEnd])
def test_a_workflow_that_blocks_its_coroutine_is_given_up_alone(kind: Any) -> None:
    words.base()
    began = time.monotonic()
    done = play(kind, 4, Agents(episode_seconds=0.4, retries=2))
    assert time.monotonic() - began < 20  # of the sixty that it would block, more than once if tried again
    assert reasons(done) == [TIMEOUT, DONE, DONE, DONE]  # their time did not run out meanwhile
    assert done[0].attempts == 1
    assert "did not return within" in told(done[0])
    assert "agents.episode_seconds" in told(done[0])
    assert "run_in_executor" in told(done[0])


def test_seconds_that_code_blocks_are_its_episodes_own_and_given_back_to_the_others() -> None:
    engine = RolloutEngine(Blocks, Tokens(words.base()), Limits(64, 4), lambda wave: [], Agents())
    engine.stopped = lambda: False
    own, other, brief = (_Turns(engine, seconds) for seconds in (30.0, 30.0, None))
    with own:
        time.sleep(1.05)
    with brief:
        time.sleep(0.001)  # as any code does
    left, others = own.left(), other.left()
    assert left is not None
    assert others is not None
    assert left < 30 - 1.05
    assert others - left == pytest.approx(engine.blocked, abs=0.01)
    assert engine.blocked > 1.05
    with own:
        assert engine.overdue is not None
        assert engine.overdue - time.monotonic() < 30 - 1.05  # of the episode's time, and not of the step's
    assert brief.left() is None
    engine.stopped = lambda: True
    with other:
        assert engine.overdue - time.monotonic() <= 2.0
    late = _Turns(engine, 30.0)
    assert engine.stopping is not None
    engine.stopping -= 60.0  # it was asked to stop long ago
    with late:
        assert engine.overdue - time.monotonic() <= 0.1


class Rests(BaseEnv):
    """Says that its steps take no time, and sleeps."""

    blocking: ClassVar[bool] = False

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return "0", {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if self.task["n"] == 0:
            time.sleep(60)
        return "", 1.0, True, {}


def test_an_environment_that_lies_about_its_time_is_given_up_alone() -> None:
    done = play(partial(MultiTurnWorkflow, agent_cls=ChatAgent, env_cls=Rests), 3, Agents(episode_seconds=0.4))
    assert reasons(done) == [TIMEOUT, DONE, DONE]


@pytest.mark.thorough
def test_where_all_block_each_has_no_more_than_a_moment_after_the_first() -> None:
    class All(Blocks):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            self.block()
            raise AssertionError

    words.base()
    began = time.monotonic()
    assert reasons(play(All, 6, Agents(episode_seconds=0.2))) == [TIMEOUT] * 6
    assert time.monotonic() - began < 20


@pytest.mark.thorough
def test_who_asks_to_stop_does_not_wait_for_code_that_blocks() -> None:
    words.base()
    began = time.monotonic()
    with pytest.raises(Cancelled):
        play(Blocks, 3, Agents(episode_seconds=0.5), stopped=lambda: time.monotonic() - began > 0.1)
    assert time.monotonic() - began < 20


@pytest.mark.thorough
def test_in_another_thread_code_that_blocks_ends_the_run_by_a_sentence() -> None:
    words.base()
    release, found = threading.Event(), []

    class Waits(Blocks):
        def block(self) -> None:
            release.wait(60)

    async def notebook() -> None:
        with pytest.raises(EnvironmentFailed, match="blocks its thread, and holds all episodes up") as failed:
            play(Waits, 2, Agents(episode_seconds=0.2))
        found.append(failed.value.exit_code)

    before = threading.active_count()
    asyncio.run(notebook())
    assert found == [71]
    release.set()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before  # a thread of an earlier test may have ended


SCRIPT = """
import json, sys, time
from evopipe import AgentTrainer

async def flow(task, model):
    await model.get_model_response([{"role": "user", "content": "0"}])
    if task["n"] == 1:
        print("blocks", flush=True)
        exec(sys.argv[3])
    return 1.0

config = json.loads(sys.argv[2]) | {"trainer.default_local_dir": sys.argv[1]}
AgentTrainer(flow=flow, config=config, train_dataset=[{"n": 1}], val_dataset=[{"n": 0}]).train()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGINT]])
@pytest.mark.parametrize("block", ["time.sleep(600)", "while True: pass"])
def test_a_process_whose_workflow_blocks_stops_within_ten_seconds(
    block: str, signals: list[signal.Signals], tmp_path: Path
) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(evopipe.__file__).parent.parent)}
    run = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "out"), json.dumps(SMALL), block], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "blocks\n"
        began = time.monotonic()
        for each in signals:
            run.send_signal(each)
            time.sleep(0.2)
        run.wait(timeout=60)
        assert time.monotonic() - began < 10
        _, said = run.communicate(timeout=60)  # what brings its record to trackers may hold the pipe for longer
    finally:
        run.kill()
        run.communicate()
    assert run.returncode != 0
    assert ("KeyboardInterrupt" if len(signals) == 2 else "saved, the same command continues from there") in said
