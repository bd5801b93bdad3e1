"""Learning from MinAtar's images, which environments in C show: frames in the memory, and runs that go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from evopipe.problems.env import begin
from evopipe.regimes import off_policy
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from populations import advance, close_generation, equal, equal_states, problem

pytest.importorskip("minatar", reason="an extra of its own: pip install 'evopipe[minatar]'")
pytestmark = pytest.mark.thorough


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def games(algo: str, **train: Any) -> EnvSpec:
    network = {"conv": [{"channels": 4, "kernel": 3, "stride": 2}], "encoder": [8], "latent": 8}
    small = {"evo_steps": 60, "max_steps": 240, "learning_delay": 20, "eval_steps": 5, **train}
    p = problem("MinAtar/Breakout-v1", algo, train=small, config={"network": network, "batch_size": 8})
    return replace(p, env=p.env.model_copy(update={"backend": "c"}))


def begun(p: EnvSpec) -> Run:
    return begin(p, first_members(p, 2)[0], None)


def trained(run: Run) -> None:
    """Go through a generation and into the next."""
    while not run.clock.generation_over:
        advance(run, 1)
    close_generation(run)
    advance(run, 9)


@pytest.mark.parametrize("replay", [{}, {"n_step": 3, "prioritised": True, "sharing": "shared"}])
def test_a_memory_of_frames_teaches_what_one_of_numbers_does(
    replay: dict[str, Any], runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = games("dqn", replay={"capacity": 50, "sharing": "own", **replay})
    runs.append(begun(p))
    monkeypatch.setattr(off_policy, "byte_images", lambda *_: [])
    runs.append(begun(p))
    assert [run.regime.replay.frames is None for run in runs] == [False, True]
    for run in runs:
        trained(run)
    a, b = ([tensor for member in run.members for tensor in member.tensors.values()] for run in runs)
    assert all(equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_goes_on_bit_for_bit(algo: str, runs: list[Run]) -> None:
    p = games(algo)
    runs += [begun(p), begun(p)]
    unbroken, resumed = runs
    advance(unbroken, 11)
    assert resumed.restore(*unbroken.state()) == 0
    for run in runs:
        trained(run)
    assert equal_states(unbroken.state(), resumed.state()) == []
