"""Environments of agents in Ray's processes: the bits of this one, and a process that dies takes its episodes alone."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
if find_spec("ray") is None:
    pytest.skip("an extra of its own: pip install 'evopipe[ray]'", allow_module_level=True)

from evopipe import AgentTrainer
from evopipe.agents import BaseEnv, ChatAgent, CopyGame, on_ray
from evopipe.errors import UsageError
from evopipe.scale.on_ray import Cluster
from evopipe.schema.shards import ShardsConfig
from tiny import wait_for

pytestmark = pytest.mark.thorough
SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 1, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.characters": "0123456789", "language.tiny.hidden": 16, "language.tiny.layers": 1,
    "language.tiny.heads": 2, "language.full": True, "trainer.total_training_steps": 4, "trainer.test_freq": 2,
    "train.eval_episodes": 4, "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.advantage": "turn",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster for all."""
    made = Cluster(ShardsConfig(engine="ray", count=2))
    yield
    started = [each for each in gc.get_objects() if issubclass(type(each), subprocess.Popen)]
    made.close()
    for each in started:  # Ray does not wait for them, and warnings are errors
        each.wait(30)


def trained(**more: Any) -> AgentTrainer:
    tasks = CopyGame.tasks(8)
    return AgentTrainer(
        agent_class=ChatAgent, env_class=CopyGame, train_dataset=tasks, val_dataset=tasks[:4], config=SMALL, **more
    )


def test_a_training_with_environments_on_ray_gives_the_same_bits() -> None:
    here, there = trained().train(), trained(engine="ray").train()
    for name in ("score", "evaluation", "curve", "measures", "validated"):
        assert getattr(here, name) == getattr(there, name), name


def test_an_environment_on_ray_is_the_one_that_was_made() -> None:
    class Counts(BaseEnv):
        def __init__(self, task: dict[str, Any] | None = None, start: int = 0) -> None:
            self.count = start + (task or {}).get("more", 0)

        def reset(self) -> tuple[Any, dict[str, Any]]:
            return self.count, {"pid": os.getpid()}

        def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
            if action == "raise":
                raise KeyError("nothing")
            if action == "leave":
                os._exit(0)
            if action == "generator":
                raise GeneratorExit
            if action == "stop":
                raise StopIteration
            self.count += 1
            return self.count, 0.5, self.count == 7, {}

    kind = on_ray(Counts, processes=1)
    first, second = kind.from_dict({"start": 5, "more": 1}), kind.from_dict({"start": 1})
    seen, info = first.reset()
    assert (seen, info["pid"] != os.getpid()) == (6, True)
    assert first.step("go") == (7, 0.5, True, {})
    with pytest.raises(KeyError, match="nothing"):
        first.step("raise")
    for action, told in (
        ("leave", r"SystemExit: os\._exit\(0\)"),
        ("generator", "GeneratorExit"),
        ("stop", "StopIter"),
    ):
        with pytest.raises(RuntimeError, match=told):
            first.step(action)
    assert second.reset() == (1, info)  # in the same process, which lives

    two = on_ray(Counts, processes=2)
    assert len({two.from_dict({}).reset()[1]["pid"] for _ in range(4)}) == 2  # they take turns

    os.kill(info["pid"], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="the Ray process of this environment died"):
        second.step("go")

    def lives_again() -> bool:
        try:
            return bool(kind.from_dict({"start": 2}).reset()[0] == 2)
        except RuntimeError:
            return False

    assert wait_for(lives_again, 30)


def test_a_workflow_is_told_how_its_environments_come_there() -> None:
    with pytest.raises(UsageError, match=r"makes its environments of evopipe\.agents\.on_ray"):
        AgentTrainer(flow=lambda task, model: 0.0, train_dataset=[{"x": 1}], config=SMALL, engine="ray")
