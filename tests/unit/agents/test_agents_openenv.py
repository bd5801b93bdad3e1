"""OpenEnv's servers: sessions over a WebSocket, and servers that die, are silent or answer with rubbish."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
pytest.importorskip("websockets", reason="an extra of its own: pip install 'evopipe[openenv]'")

import evopipe
from evopipe.agents import adapters
from openenv_server import FAULTS, Sessions, serving

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
    "language.tiny.characters": "0123456789", "trainer.total_training_steps": 1, "train.eval_episodes": 4,
    "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.retries": 0,
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[tuple[str, Sessions]]:
    with serving() as found:
        yield found


def made(address: str, **task: Any) -> Any:
    found = adapters.find(address)
    assert found is not None
    return found.env_class.from_dict({**found.env_args, "seconds": 2.0, **task})


def test_a_session_is_reset_stepped_and_closed(server: tuple[str, Sessions]) -> None:
    address, sessions = server
    env = made(address, seed=8)
    assert env.reset() == ("8", {})
    assert [env.step(text) for text in ("8", '{"message": "9"}', "5")] == [
        ("9", 1.0, False, {}),
        ("0", 1.0, False, {}),
        ("1", 0.0, True, {}),
    ]
    env.close()
    until = time.monotonic() + 5
    while sessions.closed < sessions.open and time.monotonic() < until:
        time.sleep(0.01)
    assert (sessions.open, sessions.closed) == (1, 1)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dies", "closed the session"),
        ("garbage", r"answered .*html.*, which is no message of OpenEnv's"),
        ("silent", "did not answer within 0.5 seconds"),
        ("error", "boom.*mend the task or the server"),
        ("wrong_type", "answered with the type 'state', expected 'observation'"),
        ("list", "which is no message of OpenEnv's"),
        ("no_data", "which is no message of OpenEnv's"),
        ("binary", "which is no message of OpenEnv's"),
        ("endless", "closed the session"),
    ],
)
def test_whatever_a_server_does_is_one_sentence_in_time(server: tuple[str, Sessions], fault: str, says: str) -> None:
    env = made(server[0], seed=1, fault=fault, seconds=0.5)
    env.reset()
    began = time.monotonic()
    with pytest.raises((ConnectionError, TimeoutError, ValueError, RuntimeError), match=says) as raised:
        env.step("1")
    assert time.monotonic() - began < 5
    assert "\n" not in str(raised.value)
    env.close()
    assert {fault} <= {*FAULTS}


def test_the_field_of_an_action_and_of_an_observation_can_be_said(server: tuple[str, Sessions]) -> None:
    env = made(server[0], seed=1, field="guess")
    env.reset()
    with pytest.raises(RuntimeError, match=r"set the field that a text becomes \(field\)"):
        env.step("1")
    env.close()
    env = made(server[0], seed=1, show="board")
    with pytest.raises(ValueError, match="an observation has no 'board', it has prompt, metadata"):
        env.reset()
    env.close()


def test_nobody_there_is_one_sentence() -> None:
    env = made("openenv:http://127.0.0.1:9", seed=1)
    with pytest.raises(ConnectionError, match=r"ws://127.0.0.1:9/ws does not answer as an OpenEnv server"):
        env.reset()
    env.close()


def test_one_episode_is_lost_for_each_fault_and_nothing_hangs(server: tuple[str, Sessions]) -> None:
    address, sessions = server
    tasks = [{"seed": i, **({"fault": FAULTS[i // 2]} if i % 2 else {})} for i in range(2 * len(FAULTS))]
    before = threading.active_count()
    run = evopipe.AgentTrainer(
        env_class=address, env_args={"seconds": 1.0}, config=SMALL, train_dataset=tasks[::2], val_dataset=tasks
    )
    began = time.monotonic()
    episodes = run.play()
    assert time.monotonic() - began < 30
    failed = [each["termination_reason"] in ("error", "timeout") for each in episodes]
    assert failed == [bool(i % 2) for i in range(len(tasks))]
    assert all(len(each["trajectories"][0]["steps"]) == 3 for each in episodes[::2])
    until = time.monotonic() + 5
    while sessions.closed < sessions.open - 1 and time.monotonic() < until:
        time.sleep(0.01)
    sessions.stopped.set()
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.thorough
def test_equal_runs_over_a_server_are_equal(server: tuple[str, Sessions]) -> None:
    def trained() -> Any:
        run = evopipe.AgentTrainer(env_class=server[0], config=SMALL)
        assert run.train_dataset is not None
        return run.train().measures

    first = trained()
    assert first == trained()
    assert first[-1]["failed"] == 0.0
