"""Off-policy algorithms whose loss reads the legal actions of a state, where the environment masks some."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe import algos
from evopipe.algos import sac
from evopipe.core.net import forward
from evopipe.ops.distributions import masked_log_softmax
from evopipe.problems.env import begin
from evopipe.regimes.off_policy import OffPolicy
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Batch
from populations import LONG, advance, draw_at, equal_states

PAIRS = "envs_for_tests:Pairs-v0"


@pytest.fixture
def opened() -> Iterator[list[OffPolicy]]:
    """Runs to be closed."""
    made: list[OffPolicy] = []
    yield made
    for each in made:
        each.close()


def pairs(algo: str, steps: int = 1, length: int = 3, sharing: str = "own", **config: Any) -> EnvSpec:
    replay = {"capacity": 300, "sharing": sharing, "n_step": steps, "prioritised": steps > 1}
    return populations.problem(PAIRS, algo, config=config, train={**LONG, "replay": replay}, kwargs={"length": length})


def started(p: EnvSpec, opened: list[OffPolicy], members: int = 3) -> OffPolicy:
    opened.append(begin(p, first_members(p, members)[0]))
    return opened[-1]


def masks(obs: torch.Tensor) -> torch.Tensor:
    """What is legal, by the environment's own rule: one-hot cells `[…, 4]` → `[…, 10]`."""
    cell = obs.argmax(dim=-1, keepdim=True)
    action = torch.arange(10)
    return (action == cell) | ((action == cell + 5) & (cell > 0))


def held(loop: OffPolicy) -> Batch:
    """All transitions of the first memory."""
    rows = loop.regime.replay.rows[:1, : int(loop.regime.replay.size[0])]
    return loop.regime.replay.layout.unpack(rows, torch.full(rows.shape[:2], 1.0 / rows.shape[1]), torch.tensor([0.9]))


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["sac", "cqn", "iql", "dqn", "rainbow"])
@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_transition_holds_the_masks_of_both_its_ends(
    algo: str, steps: int, sharing: str, opened: list[OffPolicy]
) -> None:
    loop = started(pairs(algo, steps, sharing=sharing), opened)
    advance(loop, 40)
    batch = held(loop)
    assert batch.obs.shape[1] > 100
    assert batch.next_legal is not None
    assert torch.equal(batch.next_legal, masks(batch.next_obs))
    assert masks(batch.obs).gather(2, batch.action[..., None]).all()
    if getattr(algos.get(algo), "MASKED_LOSS", False):
        assert batch.legal is not None
        assert torch.equal(batch.legal, masks(batch.obs))
    else:
        assert batch.legal is None
    assert (batch.legal is None) == (algo in ("dqn", "rainbow"))


@pytest.mark.thorough
def test_discrete_sac_keeps_its_temperature_and_its_mass_on_legal_actions(opened: list[OffPolicy]) -> None:
    """Peer fault: untried actions, which seem to be worth more, took the policy's mass, and α climbed without end.

    Where two actions differ by 2, a chance p of the better has α = 2 / log(p / (1 − p)), and an entropy of 0.6 log 2.
    """
    p = pairs("sac", length=1, learn_step=1, lr_alpha=1e-2, lr_actor=3e-3, lr_critic=3e-3, random_steps=500)
    loop = started(p, opened, members=2)
    advance(loop, 600)
    for cohort in loop.cohorts:
        assert cohort.healthy.all()
        ones = torch.ones(len(cohort.slots), 1)
        batch = loop.regime.replay.layout.unpack(loop.regime.replay.rows[list(cohort.slots)], ones, ones[:, 0])
        _, entropy = sac._actor_loss(p.algo_config, cohort.state, batch, draw_at(cohort))
        assert (entropy <= masks(batch.obs).sum(dim=-1).log() + 1e-6).all(), "no mass on illegal actions"
        cells = torch.eye(4).expand(len(cohort.slots), 4, 4)
        with torch.no_grad():
            log_pi = masked_log_softmax(forward(cohort.state.actor, cells), masks(cells))
        for better in log_pi.exp().diagonal(dim1=1, dim2=2):
            assert better.tolist() == pytest.approx([1.0, 0.8539, 0.8539, 0.8539], abs=0.01)
        limit = 2 / math.log(0.8539 / 0.1461)
        assert cohort.state.log_alpha.exp().tolist() == pytest.approx([limit] * len(cohort.slots), rel=0.02)


@pytest.mark.product
@pytest.mark.parametrize("algo", ["sac", pytest.param("cqn", marks=pytest.mark.slow), "iql"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.thorough
def test_a_restored_run_with_masks_continues_bit_for_bit(algo: str, steps: int, opened: list[OffPolicy]) -> None:
    """In the middle of episodes and windows."""
    p = pairs(algo, steps)
    whole = started(p, opened)
    advance(whole, 31)
    if whole.regime.nstep is not None:
        assert ((whole.regime.nstep._next - whole.regime.nstep._first) > 0).any(), "some window is half full"
    tensors, meta = whole.state()
    tensors, meta = {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))
    resumed = started(p, opened)
    advance(resumed, 5)  # whatever it held before is gone
    assert resumed.restore(tensors, meta) == 0
    for loop in (whole, resumed):
        advance(loop, 40)
    assert equal_states(whole.state(), resumed.state()) == []
    assert torch.equal(held(resumed).legal, masks(held(resumed).obs))  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", ["sac", "cqn", "iql"])
def test_without_masks_nothing_is_stored_for_them(algo: str, opened: list[OffPolicy]) -> None:
    loop = started(populations.problem("CartPole-v1", algo, train={**LONG, "replay": {"n_step": 3}}), opened)
    assert loop.regime.replay.layout.size == 2 * 4 + 1 + 3 + 2
    assert loop.regime.nstep is not None
    assert "legal_at" not in loop.regime.nstep.state()
    assert np.prod(loop.regime.nstep._legal_at.shape) == 0
