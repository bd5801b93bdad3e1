"""Rollouts: what is entered comes out again, estimates cross no border, sequences replay what was played."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import populations
from evopipe.envs.rows import RowStep
from evopipe.memory.rollout import TERMINATED, Rollout, StepLayout
from evopipe.regimes.rollouts import _Plan, _windows, learn_from_rollout
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Chosen, Spaces
from populations import TICKS, advance, rollout_for, started

CPU = torch.device("cpu")

# ------------------------------------------------------------------------------------------------- entering, gathering


@pytest.mark.parametrize(
    "spaces",
    [
        Spaces(3, 4),
        Spaces(3, 2, True),
        Spaces(3, 5, kind="multidiscrete", choices=(2, 3)),
        Spaces(3, 4, kind="multibinary"),
    ],
    ids=lambda spaces: str(spaces.kind),
)
@pytest.mark.parametrize("masked", [False, True])
def test_what_is_entered_comes_out_again(spaces: Spaces, masked: bool) -> None:
    """Every part of a step, at its own member, tick and environment."""
    g = torch.Generator().manual_seed(0)
    members, ticks, envs, memory = 2, 5, 3, 6
    shape = (members, ticks, envs)
    rollout = Rollout(StepLayout(spaces, masked), members, ticks, envs, memory, CPU)
    obs, after = (torch.randn(*shape, 3, generator=g) for _ in range(2))
    if spaces.continuous:
        action: torch.Tensor = torch.randn(*shape, 2, generator=g)
    else:
        action = torch.randint(2, (*shape, *spaces.action_shape), generator=g)
    log_prob, value, reward = (torch.randn(*shape, generator=g) for _ in range(3))
    legal, begins = torch.rand(*shape, spaces.actions, generator=g) < 0.5, torch.rand(*shape, generator=g) < 0.3
    kept = torch.randn(members, ticks + 1, envs, memory, generator=g)
    no = torch.zeros(members, envs, dtype=torch.bool)
    for t in range(ticks):
        chosen = Chosen(action[:, t], log_prob[:, t], value[:, t], kept[:, t + 1])
        rollout.enter(t, obs[:, t], legal[:, t], begins[:, t], kept[:, t], chosen)
        rollout.finish(t, after[:, t], reward[:, t], no, no, no)
    next_obs, next_memory = rollout.following(ticks)
    assert torch.equal(next_obs, after.flatten(1, 2))
    assert torch.equal(next_memory, kept[:, 1:].flatten(1, 2))
    next_value = torch.randn(members, ticks * envs, generator=g)
    rollout.estimate(ticks, next_value, torch.full((members,), 0.9), torch.zeros(members))
    first, env = torch.tensor([[0, 3, 2], [1, 1, 3]]), torch.tensor([[2, 0, 1], [0, 2, 2]])
    tick = first[..., None] + torch.arange(2)
    batch = rollout.sequences(tick, env, torch.ones(members, 3, 2))
    at = (torch.arange(members)[:, None, None], tick, env[..., None])
    for found, expected in (
        (batch.obs, obs), (batch.action, action), (batch.log_prob, log_prob), (batch.value, value),
        (batch.begins, begins), (batch.target, reward + 0.9 * next_value.view(shape)),
        (batch.advantage, reward + 0.9 * next_value.view(shape) - value),
    ):  # fmt: skip
        torch.testing.assert_close(found, expected[at])
    assert torch.equal(batch.memory, kept[:, :-1][at[0][..., 0], first, env])
    assert (batch.legal is None) == (not masked)
    assert batch.legal is None or torch.equal(batch.legal, legal[at])
    torch.testing.assert_close(batch.weight, torch.full((members, 3, 2), 1 / 6))


def test_a_minibatch_weighs_valid_steps_equally_and_pads_nothing() -> None:
    p = populations.problem(algo="ppo")
    (cohort,) = p.form(first_members(p, 2)[0])
    rollout = rollout_for(p, cohort, broken=0.3)
    rollout.estimate(TICKS, torch.zeros(2, TICKS * 4), torch.zeros(2), torch.zeros(2))
    tick, env = torch.arange(TICKS)[None, :, None].repeat(2, 1, 1), torch.zeros(2, TICKS, dtype=torch.int64)
    given = torch.ones(2, TICKS, 1)
    given[1] = 0
    weight = rollout.sequences(tick, env, given).weight
    valid = rollout.after[0, :, 0, -1] > 0
    assert 0 < valid.sum() < TICKS
    torch.testing.assert_close(weight[0, :, 0], valid / valid.sum())
    assert (weight[1] == 0).all()


def test_state_and_restore_of_a_part_that_is_filled() -> None:
    p = populations.problem(algo="ppo", config={"network": {"encoder": [16], "encoder_kind": "lstm", "latent": 16}})
    (cohort,) = p.form(first_members(p, 2)[0])
    full, empty = rollout_for(p, cohort), rollout_for(p, cohort, seed=1)
    kept = [tensor.clone() for tensor in empty.tensors()]
    empty.restore(full.state(7))
    for new, old, source, n in zip(empty.tensors(), kept, full.tensors(), (7, 7, 8), strict=True):
        assert torch.equal(new[:, :n], source[:, :n])
        assert torch.equal(new[:, n:], old[:, n:])


# --------------------------------------------------------------------------------------------------------- stretches


def test_the_share_of_steps_that_terminated_leaves_out_cut_and_broken_ones() -> None:
    """Of four steps one is terminated, one truncated, one broken: of the three that count it is a third."""
    rollout, no = Rollout(StepLayout(Spaces(2, 2), False), 1, 4, 1, 0, CPU), torch.zeros(1, 1, dtype=torch.bool)
    nothing, zero = torch.zeros(1, 1, 0), torch.zeros(1, 1)
    for t in range(4):
        chosen = Chosen(torch.zeros(1, 1, dtype=torch.int64), zero, zero, nothing)
        rollout.enter(t, torch.zeros(1, 1, 2), ~torch.zeros(1, 1, 2, dtype=torch.bool), no, nothing, chosen)
        rollout.finish(t, torch.zeros(1, 1, 2), zero, *(no | (t == place) for place in range(3)))
    rollout.estimate(4, torch.zeros(1, 4), torch.ones(1), torch.ones(1))
    assert rollout.signals(4)[TERMINATED].tolist() == pytest.approx([1 / 3])


@pytest.mark.parametrize("ticks", [1, 2, 5, 16, 33])
@pytest.mark.parametrize("longest", [1, 2, 3, 5, 16, 50])
def test_stretches_cover_a_rollout(ticks: int, longest: int) -> None:
    for cut in ("chunked", "overlapping", "whole"):
        found = _windows(ticks, longest, cut)  # type: ignore[arg-type]
        times = np.zeros(ticks, int)
        for first, end in found:
            times[first:end] += 1
            assert 0 < end - first <= (ticks if cut == "whole" else longest)
        assert (times >= 1).all()
        assert times.max() <= (2 if cut == "overlapping" else 1)
        assert found[-1][1] == ticks
        if cut == "whole":
            assert found == [(0, ticks)]
    assert _windows(7, 3, "chunked") == [(0, 3), (3, 6), (6, 7)]
    assert _windows(9, 4, "overlapping") == [(0, 4), (2, 6), (4, 8), (6, 9)]


@pytest.mark.parametrize("batch", [1, 7, 20, 32, 40, 64, 65, 1000])
@pytest.mark.parametrize("ticks", [1, 5, 16, 18])
def test_minibatches_hold_at_most_what_was_asked_for(batch: int, ticks: int) -> None:
    p = populations.problem(algo="ppo")
    member = first_members(p, 1)[0][0]
    (cohort,) = p.form([replace(member, hyper={**member.hyper, "batch_size": batch})])
    plan = _Plan.of(p, cohort, rollout_for(p, cohort, ticks=ticks), ticks)
    place, given = plan.places
    sizes = given[0].sum(dim=1)
    assert int(sizes.sum()) == plan.count == ticks * 4
    assert 0 < int(sizes.min()) <= int(sizes.max()) <= batch
    assert len(place[given].unique()) == plan.count


# ------------------------------------------------------------------------------------------------ estimates, for real


class Scripted(gymnasium.Env[Any, Any]):
    """Episodes of drawn lengths and rewards that are terminated, truncated, both, or break."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        self.kind = int(self.np_random.integers(4))
        self.state = float(self.np_random.integers(100_000))
        return self.shown(), {}

    def shown(self) -> Any:
        return np.array([self.state, 1.0], np.float32)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.left -= 1
        self.state += 1.0
        end = self.left == 0
        reward = float(self.np_random.standard_normal())
        if end and self.kind == 3:
            return self.shown(), float("nan"), False, False, {}
        return self.shown(), reward, end and self.kind != 1, end and self.kind != 0, {}


if "Scripted-v0" not in gymnasium.registry:
    gymnasium.register("Scripted-v0", entry_point=Scripted)


def true_value(state: Any) -> Any:
    """A value that every state has of its own."""
    return np.sin(np.asarray(state, np.float64) * 0.7) * 3.0


def known(p: EnvSpec) -> EnvSpec:
    """The algorithm with known values in place of its critic's."""
    real = p.algo

    def value(cfg: Any, state: Any, obs: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(true_value(obs[..., 0].numpy())).float()

    def step(cfg: Any, state: Any, obs: torch.Tensor, *rest: Any) -> Chosen:
        took: Chosen = real.step(cfg, state, obs, *rest)  # type: ignore[attr-defined]
        return took._replace(value=value(cfg, state, obs, torch.empty(0)))

    names = [name for name in vars(real) if not name.startswith("__")]
    own = {**{name: getattr(real, name) for name in names}, "value": value, "step": step}
    return replace(p, algo=types.SimpleNamespace(**own))  # type: ignore[arg-type]


@pytest.fixture
def loops() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for loop in made:
        loop.close()


def played(loop: Any) -> list[tuple[np.ndarray, RowStep]]:
    """Advance a run by a rollout; return what every environment showed and gave at each tick."""
    log: list[tuple[np.ndarray, RowStep]] = []
    receive = loop.regime.world.pool.receive

    def watched() -> RowStep:
        before = loop.regime.world.pool.obs.copy()
        log.append((before, receive()))
        return log[-1][1]

    loop.regime.world.pool.receive = watched
    advance(loop, TICKS)
    loop.regime.world.pool.receive = receive
    return log


def summed(log: list[tuple[np.ndarray, RowStep]], row: int, gamma: float, lam: float) -> np.ndarray:
    """Â of one environment's steps: each summed up to the end of its episode, or of the log. A broken step is none."""
    out = np.zeros(len(log))
    for t in range(len(log)):
        for later, (seen, taken) in enumerate(log[t:]):
            if taken.broken[row]:
                break
            after = 0.0 if taken.terminated[row] else true_value(taken.obs[row, 0])
            out[t] += (gamma * lam) ** later * (taken.reward[row] + gamma * after - true_value(seen[row, 0]))
            if taken.terminated[row] or taken.truncated[row]:
                break
    return out


@pytest.mark.parametrize(
    ("algo", "env", "backend", "rollouts"),
    [
        ("ppo", "Scripted-v0", "sync", 8),
        pytest.param("ppo:continuous", "Pendulum-v1", "sync", 13, marks=pytest.mark.slow),
        ("ppo:continuous", "Pendulum-v1", "envpool", 13),
        pytest.param("ppo", "CartPole-v1", "envpool", 6, marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_estimates_of_a_run_are_those_of_each_episode_by_itself(
    algo: str, env: str, backend: str, rollouts: int, loops: list[Any]
) -> None:
    """Ends of every kind, broken steps, rollouts' borders; Gymnasium's environments never reset by themselves here,
    envpool's do, with a row between two episodes that is no step."""
    if backend == "envpool":
        pytest.importorskip("envpool")
    p = populations.problem(env, algo, config={"gamma": 0.8, "gae_lambda": 0.7}, train=populations.LONG)
    p = known(replace(p, env=p.env.model_copy(update={"backend": backend})))
    loop = started(p, 2)
    loops.append(loop)
    ends = np.zeros(3, int)
    for _ in range(rollouts):
        log = played(loop)
        ends += [
            sum(int(getattr(taken, name).sum()) for _, taken in log) for name in ("terminated", "truncated", "broken")
        ]
        for row in range(loop.regime.world.pool.rows):
            member, where = divmod(row, p.env.num_envs)
            advantage, target, valid = rollout_columns(loop, member)[:, where].unbind(dim=-1)
            expected, value = summed(log, row, 0.8, 0.7), true_value(np.array([seen[row, 0] for seen, _ in log]))
            good = ~np.array([taken.broken[row] for _, taken in log])
            np.testing.assert_array_equal(valid.numpy() > 0, good)
            np.testing.assert_allclose(advantage.numpy(), expected, atol=2e-5)
            np.testing.assert_allclose(target.numpy()[good], (expected + value)[good], atol=2e-5)
    assert (ends > 0).all() if env == "Scripted-v0" else ends.sum() > 0


def rollout_columns(loop: Any, member: int) -> torch.Tensor:
    """Advantage, target and validity of a member's last rollout `[T, E, 3]`."""
    rows = populations.memory_of(loop, member)
    return rows[..., -3:]


# -------------------------------------------------------------------------------------------------------- recurrence

CUTS = [("chunked", 1), ("chunked", 3), ("chunked", TICKS), ("overlapping", 3), ("overlapping", 8), ("whole", 5)]


@pytest.mark.thorough
@pytest.mark.parametrize(("cut", "longest"), CUTS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("algo", ["ppo", "ppo:continuous", "ppo:multidiscrete", "ppo:multibinary"])
def test_replaying_a_rollout_finds_what_was_found_when_it_was_played(
    algo: str, shared: bool, cut: str, longest: int
) -> None:
    """Log-probabilities and values to 1e-5, for members of unlike widths, with episodes that end inside and masks."""
    network = {"encoder": [16, 24], "latent": 16, "encoder_kind": "lstm"}
    config = {"network": network, "max_seq_len": longest, "sequences": cut, "share_encoder": shared,
              "squash": algo == "ppo:continuous"}  # fmt: skip
    p = populations.problem(algo=algo, cohorts="merged", mutation=populations.UNLIKE, config=config)
    members = [replace(m, hyper={**m.hyper, "batch_size": 32}) for m in first_members(p, 4)[0]]
    for cohort in p.form(members):
        rollout = rollout_for(p, cohort, masked=not p.spaces.continuous)
        plan = _Plan.of(p, cohort, rollout, TICKS)
        (tick, within), sequences = plan.ticks, torch.arange(plan.count)
        stretch, env = (x.repeat(len(cohort.members), 1) for x in (sequences // plan.envs, sequences % plan.envs))
        rollout.estimate(
            TICKS, torch.zeros(len(cohort.members), TICKS * 4), cohort.hyper["gamma"], cohort.hyper["gamma"]
        )
        batch = rollout.sequences(tick[stretch], env, within[stretch].float())
        with torch.no_grad():
            chances, value = p.algo._evaluate(p.algo_config, cohort.state, batch, cohort.state.log_std)  # type: ignore[attr-defined]
        found = chances.log_prob(batch.action.flatten(1, 2))
        real = within[stretch].flatten(1, 2)
        torch.testing.assert_close(found[real], batch.log_prob.flatten(1, 2)[real], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(value[real], batch.value.flatten(1, 2)[real], atol=1e-5, rtol=1e-5)
        assert (batch.weight.flatten(1, 2)[~real] == 0).all()
        assert (batch.begins[..., 1:] & within[stretch][..., 1:]).any() or longest == 1, "episodes end inside"


def test_pads_of_sequences_change_nothing() -> None:
    """Whatever stands in them: a rollout whose last stretch is short, with and without other numbers beyond its end."""
    config = {"network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}, "max_seq_len": 5}
    p = populations.problem(algo="ppo", config=config)
    (cohort,) = p.form(first_members(p, 2)[0])
    rollout = rollout_for(p, cohort)
    rollout.estimate(TICKS, torch.zeros(2, TICKS * 4), torch.zeros(2), torch.zeros(2))
    plan = _Plan.of(p, cohort, rollout, TICKS)
    assert plan.stretches[-1] == (15, 16)
    tick, within = plan.ticks
    last, env = torch.full((2, 4), 3), torch.arange(4).repeat(2, 1)
    weight = within[last].float()
    results = []
    for pads in (tick[last], torch.where(within[last], tick[last], 2)):
        batch = rollout.sequences(pads, env, weight)
        results.append(p.algo.loss(p.algo_config, cohort.state, cohort.hyper, batch, cohort.state.log_std))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_memory_goes_on_over_rollouts_and_ends_with_episodes(loops: list[Any]) -> None:
    """Played step by step beside the run by one member's own network."""
    from evopipe.core.net import remember

    network = {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}
    p = populations.problem(algo="ppo", config={"network": network, "lr": 1e-9}, train=populations.LONG)
    loop = started(p, 1)
    loops.append(loop)
    state = loop.cohorts[0].state
    size = state.actor.structure.memory
    memory, ended = torch.zeros(1, 4, size), 0
    for tick in range(3 * TICKS):
        begins = torch.from_numpy(loop.regime.world.pool.episode_length == 0)
        ended += int(begins.sum())
        memory = torch.where(begins[None, :, None], 0.0, memory)
        with torch.no_grad():
            _, memory = remember(state.actor, torch.from_numpy(loop.regime.world.pool.obs)[None], memory)
        advance(loop, 1)
        torch.testing.assert_close(loop.regime.playing[0].memory[..., :size], memory, atol=1e-5, rtol=1e-5)
        assert memory.abs().sum() > 0, tick
    assert ended > 4, "more than the first episodes"


def test_learning_from_a_rollout_changes_its_estimates_alone() -> None:
    p = populations.problem(algo="ppo")
    (cohort,) = p.form(first_members(p, 2)[0])
    rollout = rollout_for(p, cohort)
    kept = [tensor.clone() for tensor in rollout.tensors()]
    learn_from_rollout(p, cohort, rollout, TICKS, 3)
    rows, after, memory = rollout.tensors()
    assert torch.equal(rows[..., :-3], kept[0][..., :-3])
    assert not torch.equal(rows[..., -3:], kept[0][..., -3:])
    assert torch.equal(after, kept[1])
    assert torch.equal(memory, kept[2])


def test_a_minibatch_weighs_each_members_own_valid_steps() -> None:
    """A neighbour with more of them changes no weight."""
    rollout = Rollout(StepLayout(Spaces(2, 3), False), members=2, ticks=1, envs=4, memory=0, device=torch.device("cpu"))
    valid = rollout.layout.log_prob + 5
    rollout.rows[0, 0, :, valid] = torch.tensor([1.0, 1, 1, 1])
    rollout.rows[1, 0, :, valid] = torch.tensor([1.0, 0, 0, 0])
    env = torch.arange(4).expand(2, 4)
    batch = rollout.sequences(torch.zeros(2, 4, 1, dtype=torch.int64), env, torch.ones(2, 4, 1))
    assert batch.weight[..., 0].tolist() == [[0.25] * 4, [1.0, 0, 0, 0]]


def test_a_part_of_a_rollout_lies_in_the_same_memory() -> None:
    rollout = Rollout(StepLayout(Spaces(2, 3), False), members=3, ticks=2, envs=4, memory=5, device=torch.device("cpu"))
    part = rollout.part(1, 3)
    for tensor in part.tensors():
        tensor.fill_(7.0)
    assert all((whole[1:] == 7.0).all() and (whole[:1] == 0.0).all() for whole in rollout.tensors())


def test_every_sequence_of_a_rollout_is_in_one_minibatch_of_each_member() -> None:
    """Of members with unlike batch sizes, the one with fewer minibatches has nothing in the others' last ones."""
    p = populations.problem(algo="ppo", cohorts="merged")
    members = [
        replace(m, hyper={**m.hyper, "batch_size": size})
        for m, size in zip(first_members(p, 2)[0], (8, 32), strict=True)
    ]
    (cohort,) = p.form(members)
    plan = _Plan.of(p, cohort, rollout_for(p, cohort), TICKS)
    place, given = plan.places
    assert plan.batches == [8, 2], "64 steps"
    for member, (batches, size) in enumerate(zip(plan.batches, plan.sizes, strict=True)):
        assert sorted(place[member][given[member]].tolist()) == list(range(plan.count))
        assert given[member].sum(dim=-1).tolist() == [size] * batches + [0] * (given.shape[1] - batches)
