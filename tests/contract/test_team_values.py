"""Values that are known in advance, of teams whose agents come, go and are cut, through the whole loop.

The second of two agents is paid 1 a step, whatever is done; the first comes and goes. What the second is worth then
depends on its own step alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.algos import _central
from populations import advance, started

GAMMA = 0.9
WORTH = [2.71, 1.9, 1.0]  # of the host at each of three steps, after the last of which it dies
ENV = "teams_for_tests:Guest"
NAMES = ("maddpg", "matd3", "ippo", "mappo")
STAYS = {  # of each episode: when the guest is there, how it goes
    "dies": {"how": "dies"},
    "is cut": {"how": "is cut"},
    "leaves": {"how": "leaves"},
    "comes": {"since": 1, "until": 2, "how": "dies"},
    "comes last": {"since": 2, "until": 3, "how": "is cut"},
}
TRAIN = {**populations.LONG, "learning_delay": 60}


def learned(algo: str, kwargs: dict[str, Any], ticks: int, **changes: Any) -> Any:
    """A run of two members after so many ticks."""
    net = {"encoder": [32], "latent": 32}
    if populations.is_on_policy(algo.partition(":")[0]):
        config: dict[str, Any] = {
            "lr": 5e-3, "ent_coef": 0.1, "epochs": 8, "learn_step": 64, "batch_size": 32, "decay_steps": 4 * ticks,
            "lr_end": 0.03, "share": "none", "grad_clip": 10.0,
        }  # fmt: skip
    else:
        config = {"lr_actor": 1e-4, "lr_critic": 1e-2, "batch_size": 64, "learn_step": 4, "tau": 0.1, "grad_clip": 10.0,
                  "policy_delay": 1, "random_steps": 10**6, "target_noise": 0.0}  # fmt: skip
    its = populations.algos.get(algo.partition(":")[0]).Config.model_fields
    config = {
        name: value for name, value in {"gamma": GAMMA, "network": net, **config, **changes}.items() if name in its
    }
    p = populations.problem(ENV, algo, kwargs=kwargs, config=config, train=TRAIN)
    loop = started(p, 2)
    advance(loop, ticks)
    loop.close()
    return loop


def worth(loop: Any, obs: list[list[float]], there: list[list[float]], action: int | tuple[int, int] = 0) -> np.ndarray:
    """What the host is worth `[members, n]`, by each twin, in situations of which some agents are there, who do the
    same or each its own: obs and there `[n, 2]`."""
    p, found = loop.spec, []
    for cohort in loop.cohorts:
        members = len(cohort.slots)
        seen, alive = (torch.tensor(x).expand(members, -1, -1) for x in (obs, there))
        seen = (seen * alive)[..., None]
        if populations.is_on_policy(p.train.algo):
            memory = torch.zeros(members, seen[..., 0].numel() // members, cohort.memory)
            v = p.algo.value(p.algo_config, cohort.state, seen.flatten(1, 2), memory)
            found.append(v.unflatten(1, (-1, 2))[:, :, 1].detach())
            continue
        critic = cohort.state.critic if p.train.algo == "maddpg" else cohort.state.critics
        same = torch.as_tensor(action).expand(members, len(obs), 2)
        acts = alive[..., None] * _central.as_numbers(p.algo_config, same)
        q = _central.value(p.algo_config, critic, seen, acts).detach()
        found += [each[:, 1] for each in (q if q.ndim == 4 else [q])]
    return np.concatenate(found)


def situations(since: int = 0, until: int = 1, **_: Any) -> tuple[list[list[float]], list[list[float]]]:
    obs = [[2.0, 1.5 * (t - 1)] for t in range(3)]
    return obs, [[float(since <= t < until), 1.0] for t in range(3)]


def cases(*quick: tuple[str, str]) -> Any:
    """All algorithms in all cases; most are thorough."""
    every = [(algo, case) for algo in NAMES for case in STAYS]
    marks = {each: () if each in quick else pytest.mark.thorough for each in every}
    return pytest.mark.parametrize(("algo", "case"), [pytest.param(*each, marks=marks[each]) for each in every])


@cases(("mappo", "leaves"))
def test_who_stays_is_worth_what_it_will_be_paid(algo: str, case: str) -> None:
    """Whoever comes or goes beside it, however: the situations that a target stands on are those that are met."""
    ticks = 320 if populations.is_on_policy(algo) else 400
    found = worth(learned(algo, STAYS[case], ticks), *situations(**STAYS[case]))
    np.testing.assert_allclose(found, np.broadcast_to(WORTH, found.shape), atol=0.15)


@pytest.mark.parametrize(
    "algo", ["maddpg", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("matd3", "ippo", "mappo"))]
)
@pytest.mark.thorough
def test_a_team_that_is_cut_after_each_step_is_worth_what_it_would_be_paid(algo: str) -> None:
    """From one state, with agents of unlike numbers of actions: 2 = 1 / (1 − γ). Where the host is paid nothing for its
    first action, and has another one with probability p of a policy that stays, one of these is worth 1 + p. Taken for
    an end, or for a moment after which everyone takes its first action, a cut would make either 1."""
    off_policy = not populations.is_on_policy(algo)
    kwargs = {"how": "is cut", "last": "is cut", "steps": 1, "choices": (2, 3), "choosy": off_policy}
    loop = learned(algo, kwargs, 320, gamma=0.5, lr_actor=1e-9)
    found, expected = worth(loop, [[2.0, -1.5]], [[1.0, 1.0]], action=1), []
    for cohort in loop.cohorts if off_policy else ():
        seen, cfg = torch.tensor([[[2.0], [-1.5]]]).expand(len(cohort.slots), -1, -1), loop.spec.algo_config
        chances = loop.spec.algo.answers(cfg).chances(cfg, cohort.state, seen, None, seen[..., :0])
        expected += [(2 - chances.probabilities()[:, 1, :1])] * (2 if algo == "matd3" else 1)
    wanted = np.concatenate(expected) if expected else np.full(found.shape, 2.0)
    np.testing.assert_allclose(found, wanted, atol=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("legal", [1, 0])
@pytest.mark.parametrize("algo", NAMES)
def test_who_has_one_legal_action_is_worth_what_that_one_is_paid(algo: str, legal: int) -> None:
    """The host is paid for its second action alone, and may take one alone, which `legal` numbers. A policy or a target
    that overlooks masks would be paid for either now and then."""
    ticks = 320 if populations.is_on_policy(algo) else 400
    loop = learned(algo, {**STAYS["leaves"], "choosy": True, "legal": legal}, ticks)
    found = worth(loop, *situations(), action=(1 - legal, legal))
    np.testing.assert_allclose(found, np.broadcast_to(np.multiply(WORTH, legal), found.shape), atol=0.15)
