"""Targets and advantages of teams that come and go, against the papers' equations in double precision: by torch, which
computes in it too, and by the CPU's own kernels.

What an environment gave is read as PettingZoo's dictionaries have it. A target of agent k is a value of the situation
after the step: of all that act next and, where k itself was truncated (or left without an end), of those that were
truncated with it. All others are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from crews import Plain
from evopipe.core.cohort import dissolve, form
from evopipe.memory.replay import RowLayout
from evopipe.native import build
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import EnvSpec
from populations import advance, started

pytestmark = pytest.mark.numerical
IDS = ("red_0", "blue_0", "red_1")
SEES, K, WIDE = (3, 2, 3), 3, 3
TICKS = 60
GROUPS = [[0], [1], [2]]
CLOSE = {False: {"rtol": 0.0, "atol": 1e-6}, True: {"rtol": 1e-6, "atol": 2e-6}}  # of single numbers, by the kernels


@pytest.fixture(params=[False, True], ids=["torch", "kernels"])
def native(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the kernels compute: in single precision, torch in double."""
    build.use(build.load() if request.param else None)
    yield request.param
    build.use(None)
    torch.set_default_dtype(torch.float32)


def played(
    algo: str, kind: str, native: bool, masks: bool = False, **train: Any
) -> tuple[Any, list[dict[str, Any]], Any]:
    """A run of one member in one environment, what that gave at each step, and the member in double precision."""
    on_policy = populations.is_on_policy(algo)
    config: dict[str, Any] = {"share": "none", "gamma": 0.9, "learn_step": 1000 if on_policy else 8}
    if algo == "matd3":
        config["target_noise"] = 0.0
    p = populations.problem(
        "teams_for_tests:Comings", algo, config=config, num_envs=1, train={**populations.LONG, "learning_delay": 10**6,
        **train}, kwargs={"kind": kind, "masks": masks},
    )  # fmt: skip
    loop = started(p, 1)
    advance(loop, TICKS)
    log = list(loop.regime.world.pool.env(0).parallel.log)
    (member,), g = dissolve(loop.cohorts), torch.Generator().manual_seed(1)
    moved = {n: (x + 0.2 * torch.randn(x.shape, generator=g)).double() for n, x in member.tensors.items()}
    torch.set_default_dtype(torch.float32 if native else torch.float64)
    return loop, log, replace(member, tensors=moved)


def plain(loop: Any, member: Any) -> Plain:
    given = SimpleNamespace(cfg=loop.spec.algo_config, algo=loop.spec.algo, widths=loop.spec.widths)
    return Plain(given, member, GROUPS)  # type: ignore[arg-type]


def cohort_of(loop: Any, member: Any) -> Any:
    member = replace(member, tensors={n: x.to(torch.get_default_dtype()) for n, x in member.tensors.items()})
    (cohort,) = form([member], loop.spec.algo.State, loop.spec.widths, torch.device("cpu"), EnvSpec.pace)
    return cohort


def there(step: dict[str, Any], k: str) -> list[str]:
    """Who stands in agent k's target."""
    cut = [a for a in step["before"] if a not in step["after"] and not step["terminated"][a]]
    return [*step["after"], *(cut if k in cut else [])]


def joint(obs: dict[str, Any], who: list[str]) -> list[torch.Tensor]:
    """Everyone's own observation, zeros of those who are not there."""
    return [torch.tensor(obs[a]).double() if a in who else torch.zeros(n) for a, n in zip(IDS, SEES, strict=True)]


def padded(obs: Any) -> torch.Tensor:
    return torch.nn.functional.pad(torch.tensor(obs).double(), (0, WIDE - len(obs)))


def errors_of(agent: Plain, name: str, log: list[dict[str, Any]], drawn: Any) -> list[float]:
    """The mean size of the targets of those who acted, of every step: `drawn(at, k, logits)` are discrete actions."""
    continuous, actions = agent.cfg.spaces.continuous, agent.cfg.spaces.team.actions
    net, twins = ("critics_target", 2) if name == "matd3" else ("critic_target", 1)
    found = []
    for at, step in enumerate(log):
        sizes = []
        for k in step["before"]:
            seen = joint(step["next_obs"], who := there(step, k))
            for j, a in enumerate(IDS):
                if a not in who:
                    seen.append(torch.zeros(actions[j]))
                    continue
                out = agent.net("actor_target", j, padded(step["next_obs"][a])[None])[0, : actions[j]]
                mask = step["next_infos"][a].get("action_mask")
                out = out if mask is None else out.masked_fill(torch.tensor(mask) == 0, -torch.inf)
                seen.append(torch.tanh(out) if continuous else drawn(at, j, out))
            x, place = torch.cat(seen)[None].double(), IDS.index(k)
            q = min(float(agent.net(net, place, x, i, twins)[0, 0].detach()) for i in range(twins))
            sizes.append(abs(step["rewards"][k] + 0.9 * q * (not step["terminated"][k])))
        found.append(sum(sizes) / len(sizes))
    return found


@pytest.mark.parametrize(
    ("name", "kind", "masks"),
    [("maddpg", "continuous", False), ("matd3", "continuous", False), ("maddpg", "discrete", True),
     ("matd3", "discrete", False)],
)  # fmt: skip
def test_targets_of_centralised_critics(name: str, kind: str, masks: bool, native: bool) -> None:
    """By the errors of critics that say 0."""
    loop, log, member = played(name, kind, native, masks)
    cohort, critic = cohort_of(loop, member), "critic" if name == "maddpg" else "critics"
    getattr(cohort.state, critic).values.zero_()
    layout: RowLayout = loop.regime.replay.layout
    rows = loop.regime.replay.rows[:1, :TICKS].to(torch.get_default_dtype())
    batch = layout.unpack(rows, torch.full((1, TICKS), 1.0 / TICKS), torch.tensor([0.9]))
    draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([5]))
    given = loop.spec.algo_config, cohort.state, cohort.hyper, batch
    if native:
        errors = loop.spec.algo.update(*given, cohort.healthy, draw, 0).errors
        assert not getattr(cohort.state, critic).grad.any(), "torch computed it"
    else:
        _, errors = loop.spec.algo.loss(*given, draw)
    wide = loop.spec.actions
    gumbel = -(-torch.log1p(-draw.uniform(K * TICKS * wide)[0])).log().view(K, TICKS, wide)

    def drawn(at: int, j: int, out: torch.Tensor) -> torch.Tensor:
        return torch.eye(len(out))[int((out.log_softmax(dim=0) + gumbel[j, at, : len(out)]).argmax())]

    expected = errors_of(plain(loop, member), name, log, drawn)
    np.testing.assert_allclose(errors[0].numpy(), expected, **CLOSE[native])
    loop.close()


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_advantages_of_teams(name: str, native: bool) -> None:
    """Generalised advantage estimates of each agent's life: they stop where it ends, at its own last observation where
    that was cut. Forced out of a step, or away, an agent has none."""
    loop, log, member = played(name, "discrete", native)
    cfg, state = loop.spec.algo_config, cohort_of(loop, member).state
    rollout = loop.regime.playing[0].rollout
    rollout.rows, rollout.after, rollout.memory = (x.to(torch.get_default_dtype()) for x in rollout.tensors())
    at, lam = rollout.layout.log_prob, cfg.gae_lambda
    obs = rollout.rows[:, :TICKS, :, :WIDE].flatten(1, 2)
    rollout.rows[:, :TICKS, :, at + 1] = loop.spec.algo.value(cfg, state, obs, obs[..., :0]).view(1, TICKS, K)
    next_value = loop.spec.algo.value(cfg, state, *rollout.following(TICKS))
    rollout.estimate(TICKS, next_value, torch.tensor([0.9]), torch.tensor([lam]))
    agent = plain(loop, member)

    def worth(seen: dict[str, Any], who: list[str], k: str) -> float:
        x = (padded(seen[k]) if name == "ippo" else torch.cat(joint(seen, who))).double()
        return float(agent.net("critic", IDS.index(k), x[None])[0, 0].detach())

    found = rollout.rows[0, :TICKS, :, at + 3]
    valid = rollout.rows[0, :TICKS, :, at + 5]
    later = dict.fromkeys(IDS, 0.0)
    for t in reversed(range(TICKS)):
        step = log[t]
        for k in IDS:
            assert bool(valid[t, IDS.index(k)]) == (k in step["before"])
            if k not in step["before"]:
                continue
            then = 0.0 if step["terminated"][k] else worth(step["next_obs"], there(step, k), k)
            delta = step["rewards"][k] + 0.9 * then - worth(step["obs"], step["before"], k)
            goes_on = k in step["after"] and t + 1 < TICKS
            later[k] = delta + 0.9 * lam * (later[k] if goes_on else 0.0)
            np.testing.assert_allclose(float(found[t, IDS.index(k)]), later[k], **CLOSE[native])
    loop.close()
