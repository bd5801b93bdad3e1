"""Running normalisation of observations and rewards: the numbers, whose they are, and what must not move them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import evopipe
import populations
from device import DEVICE, Device
from evopipe import algos
from evopipe.algos import dqn, ppo
from evopipe.core import normalise, optim
from evopipe.core.cohort import COSTS
from evopipe.core.graphs import Paths
from evopipe.core.member import Member
from evopipe.core.normalise import EPSILON, Normaliser, Statistics
from evopipe.data.transitions import Transitions
from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.policies import policy
from evopipe.problems.env import begin
from evopipe.problems.specs import spaces_of
from evopipe.regimes import learners
from evopipe.rng import Purpose
from evopipe.run.act import choose, places_of, step, take_note
from evopipe.run.evaluate import evaluate
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.env import EnvConfig
from evopipe.schema.train import NormaliseConfig
from evopipe.storage.tensors import dump_tensors, load_tensors
from evopipe.types import Image, Spaces
from populations import LONG, UNLIKE, advance, close_generation, equal, equal_states, finish, same
from tiny import call, write_params

pytestmark = pytest.mark.numerical

BOTH = pytest.mark.parametrize("algo", ["dqn", "ppo"])
SEEN = ("normaliser.count", "normaliser.mean", "normaliser.square")


def normalising(algo: str, train: dict[str, Any] | None = None, **parts: Any) -> EnvSpec:
    """A small problem with everything normalised that the algorithm can have normalised."""
    block = {"observations": True, "rewards": populations.is_on_policy(algo), "clip": 5.0}
    return populations.problem(algo=algo, train={"normalise": block, **(train or {})}, **parts)


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Makes runs, and closes them."""
    made: list[Any] = []

    def make(p: EnvSpec, members: int | list[Member] = 3, processes: int = 1, warm: Any = None) -> Any:
        found = first_members(p, members)[0] if isinstance(members, int) else members
        made.append(begin(p, found, warm, learners=processes))
        return made[-1]

    yield make
    for each in made:
        each.close()


# ------------------------------------------------------------------------------------------------- numbers


def started(members: int, columns: int) -> Statistics:
    empty = torch.zeros(members, columns, dtype=torch.float64)
    return Statistics(torch.zeros(members, dtype=torch.float64), empty, empty.clone())


def chunks(seed: int, sizes: list[int], members: int, columns: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = np.random.default_rng(seed)
    scale, offset = 10.0 ** g.uniform(-3, 3, columns), g.normal(0, 1000, columns)
    values = [g.normal(size=(members, n, columns)) * scale + offset for n in sizes]
    return [
        (torch.from_numpy(x.astype(np.float32)), torch.from_numpy(g.random((members, x.shape[1])) < 0.8))
        for x in values
    ]


def test_statistics_are_those_of_everything_at_once() -> None:
    found, given = started(3, 4), chunks(0, [1, 7, 1, 64, 3, 500], 3, 4)
    for values, which in given:
        found.merge(values, which)
    for member in range(3):
        whole = np.concatenate([values[member][which[member]].double().numpy() for values, which in given])
        assert found.count[member] == len(whole)
        np.testing.assert_allclose(found.mean[member], whole.mean(axis=0), rtol=1e-9)
        variance = found.square[member] / found.count[member]
        np.testing.assert_allclose(variance, whole.var(axis=0), rtol=1e-6)
        np.testing.assert_allclose(found.scale()[member], (whole.var(axis=0) + EPSILON) ** -0.5, rtol=1e-6)


def test_of_members_that_act_while_others_wait_each_takes_note_of_its_own_rows() -> None:
    """Slots 3 and 1 of four, in cohorts of their own: what they see comes in the order of slots."""
    p = normalising("dqn")
    members = [p.equip(member) for member in first_members(p, 4)[0]]
    cohorts = [*p.form([members[3]]), *p.form([members[1]])]
    seen = np.repeat(np.array([[1.0], [3.0]], np.float32), p.env.num_envs, axis=0) * np.ones(4, np.float32)
    take_note(cohorts, seen, None, places_of(cohorts))
    everyone = p.form(members)
    take_note(everyone, np.repeat(np.arange(4.0, dtype=np.float32)[:, None], p.env.num_envs, axis=0) * np.ones(4))
    for cohort in (*cohorts, *everyone):
        held = cohort.normaliser.observations  # type: ignore[union-attr]
        assert held.count.tolist() == [p.env.num_envs] * len(cohort.slots)
        assert held.mean.tolist() == [[float(slot)] * 4 for slot in cohort.slots]


def test_a_dataset_is_seen_to_its_end() -> None:
    n = (1 << 16) + 9  # more than are entered at once
    seen = normalise.after(
        normalise.start(NormaliseConfig(observations=True), Spaces(1, 2)), torch.arange(n, dtype=torch.float32)[:, None]
    )
    assert seen["normaliser.count"] == n
    assert float(seen["normaliser.mean"]) == pytest.approx((n - 1) / 2)
    assert float(seen["normaliser.square"]) == pytest.approx(n * (n * n - 1) / 12)


def test_nothing_new_changes_no_bit() -> None:
    found = started(2, 3)
    found.merge(*chunks(1, [50], 2, 3)[0])
    before = [tensor.clone() for tensor in vars(found).values()]
    found.merge(torch.full((2, 4, 3), torch.nan), torch.zeros(2, 4, dtype=torch.bool))
    assert all(equal(a, b) for a, b in zip(before, vars(found).values(), strict=True))


@pytest.mark.parametrize(("envs", "columns"), [(1, 1), (3, 1), (16, 4), (33, 7), (64, 1), (300, 5)])
def test_a_member_s_statistics_do_not_depend_on_its_neighbours(envs: int, columns: int) -> None:
    crowd = started(5, columns)
    alone = [started(1, columns) for _ in range(5)]
    for values, given in chunks(2, [envs] * 4, 5, columns):
        crowd.merge(values, given)
        for member, one in enumerate(alone):
            one.merge(values[member : member + 1], given[member : member + 1])
    for member, one in enumerate(alone):
        for all_, own in zip(vars(crowd).values(), vars(one).values(), strict=True):
            assert equal(all_[member : member + 1], own)


def made(spaces: Spaces, clip: float = 5.0, members: int = 2) -> Normaliser:
    tensors = normalise.start(NormaliseConfig(observations=True, rewards=True, clip=clip), spaces)
    found = Normaliser.stack([tensors] * members, torch.device("cpu"))
    assert found is not None
    return found


def test_observations_are_shown_by_mean_and_deviation_and_clipped() -> None:
    found = made(Spaces(3, 2), clip=2.0)
    g = np.random.default_rng(3)
    past, now = (g.normal(40, 9, (2, n, 3)).astype(np.float32) for n in (100, 30))
    assert equal(found.normalised(torch.from_numpy(past / 100)), torch.from_numpy(past / 100)), "before it has seen any"
    found.update(torch.from_numpy(past), torch.ones(2, dtype=torch.bool))
    mean, deviation = past.mean(axis=1, keepdims=True), np.sqrt(past.var(axis=1, keepdims=True) + EPSILON)
    expected = np.clip((now - mean) / deviation, -2, 2)
    assert 0 < (np.abs(expected) == 2).mean() < 0.5
    np.testing.assert_allclose(found.normalised(torch.from_numpy(now)), expected, atol=1e-5)


def test_images_and_one_hot_columns_are_left_alone() -> None:
    spaces = Spaces(14, 2, images=(Image(2, 1, 2, 3),), one_hot=((9, 12),))
    found = made(spaces, clip=0.5)
    plain = [0, 1, 8, 12, 13]
    assert found.columns.tolist() == plain
    g = torch.Generator().manual_seed(4)
    obs = torch.rand(2, 50, 14, generator=g) * 100
    found.update(obs, torch.ones(2, dtype=torch.bool))
    shown = found.normalised(obs)
    rest = [i for i in range(14) if i not in plain]
    assert torch.equal(shown[..., rest], obs[..., rest])
    assert shown[..., plain].abs().max() <= 0.5
    assert found.observations is not None
    assert found.observations.mean.shape == (2, 5)


def test_every_column_by_its_own_numbers_and_every_member_by_its_own_limit() -> None:
    """Means 1, 20, 200 and deviations 1, 10, 100 of the columns 0, 2, 3; column 1 is one-hot."""
    spaces, clips = Spaces(4, 2, one_hot=((1, 2),)), (2.0, 3.5)
    configs = [NormaliseConfig(observations=True, rewards=True, clip=clip) for clip in clips]
    found = Normaliser.stack([normalise.start(cfg, spaces) for cfg in configs], torch.device("cpu"))
    assert found is not None
    found.update(torch.tensor([[0.0, 0, 10, 100], [2, 1, 30, 300]]).expand(2, -1, -1), torch.ones(2, dtype=torch.bool))
    shown = found.normalised(torch.tensor([4.0, 1, 60, 50]).expand(2, 1, -1))
    torch.testing.assert_close(shown[:, 0], torch.tensor([[2.0, 1, 2, -1.5], [3, 1, 3.5, -1.5]]))
    reward, none = torch.full((2, 1), 10.0), torch.zeros(2, 1, dtype=torch.float64)
    earned, _ = found.normalise_rewards(
        none, reward, torch.ones(2), torch.ones(2, 1, dtype=torch.bool)
    )  # no deviation yet
    assert earned.tolist() == [[2.0], [3.5]]


def test_one_hot_columns_are_known_by_the_environment_s_space() -> None:
    assert spaces_of(EnvConfig(id="Taxi-v4"), "dqn").one_hot == ((0, 500),)
    assert spaces_of(EnvConfig(id="CartPole-v1"), "dqn").one_hot == ()
    assert normalise.start(NormaliseConfig(observations=True), spaces_of(EnvConfig(id="Taxi-v4"), "dqn")) == {}


def test_rewards_are_divided_by_the_deviation_of_discounted_returns() -> None:
    found = made(Spaces(3, 2), clip=1.5)
    g = np.random.default_rng(5)
    gamma, ticks, envs = np.array([0.9, 0.99]), 40, 3
    rewards, given = g.normal(2, 5, (ticks, 2, envs)), g.random((ticks, 2, envs)) < 0.9
    over = g.random((ticks, 2, envs)) < 0.1
    so_far, returns = np.zeros((2, envs)), torch.zeros(2, envs, dtype=torch.float64)
    history: list[list[float]] = [[], []]
    for t in range(ticks):
        told = torch.from_numpy(np.where(given[t], rewards[t], np.nan))
        shown, returns = found.normalise_rewards(returns, told, torch.from_numpy(gamma), torch.from_numpy(given[t]))
        for p in range(2):
            for e in range(envs):
                if given[t, p, e]:
                    so_far[p, e] = gamma[p] * so_far[p, e] + rewards[t, p, e]
                    history[p].append(so_far[p, e])
            expected = np.clip(rewards[t, p] / np.sqrt(np.var(history[p]) + EPSILON), -1.5, 1.5)
            np.testing.assert_allclose(shown[p][given[t, p]], expected[given[t, p]], rtol=1e-6)
        returns = returns.masked_fill(torch.from_numpy(over[t]), 0.0)
        so_far[over[t]] = 0.0


# ------------------------------------------------------------------------------------------------- in a run


def on_tensors(p: EnvSpec) -> EnvSpec:
    """The same problem with environments that are tensors."""
    return replace(p, env=p.env.model_copy(update={"backend": "torch"}))


def shows(loop: Any) -> np.ndarray:
    """What three members' environments show, `[3, 4, O]`."""
    shown: np.ndarray = torch.as_tensor(loop.regime.world.pool.obs).clone().view(3, 4, -1).numpy()
    return shown


@pytest.mark.parametrize("case", ["dqn", "ppo", "ppo on tensors"])
def test_a_member_has_seen_what_it_acted_on(case: str, run: Callable[..., Any]) -> None:
    p = normalising(case[:3], LONG)
    loop = run(on_tensors(p) if "tensors" in case else p)
    seen = []
    for _ in range(50):
        seen.append(shows(loop))
        advance(loop, 1)
    for member in loop.members:
        whole = np.stack(seen)[:, member.slot].reshape(200, -1).astype(np.float64)
        assert member.tensors["normaliser.count"] == 200
        np.testing.assert_allclose(member.tensors["normaliser.mean"], whole.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(member.tensors["normaliser.square"] / 200, whole.var(axis=0), rtol=1e-6)


@pytest.mark.parametrize("backend", ["sync", "torch"])
@pytest.mark.thorough
def test_rewards_of_a_run_against_brute_force(backend: str, run: Callable[..., Any]) -> None:
    p = normalising("ppo", LONG, config={"evolve": {}}, kwargs={"max_episode_steps": 15}, mutation=populations.UNLIKE)
    loop = run(on_tensors(p) if backend == "torch" else p)
    assert len(loop.cohorts) > 1
    gamma, so_far, ends = p.algo_config.gamma, np.zeros((3, 4)), set()
    history: list[list[float]] = [[], [], []]
    for _ in range(70):
        place = [each.place(loop.clock.here) for each in loop.regime.playing]
        advance(loop, 1)
        for cohort, rollout, at in zip(loop.cohorts, populations.rollouts(loop), place, strict=True):
            for row, slot in enumerate(cohort.slots):
                so_far[slot] = gamma * so_far[slot] + 1.0  # CartPole gives 1 at every step
                history[slot].extend(so_far[slot])
                learned, terminated, cut, _ = rollout.after[row, at, :, p.observations :].numpy().T
                expected = min(5.0, 1.0 / np.sqrt(np.var(history[slot]) + EPSILON))
                np.testing.assert_allclose(learned, expected, rtol=1e-5)
                so_far[slot][cut > 0] = 0.0
                ends |= {*zip(terminated.tolist(), cut.tolist(), strict=True)}
    assert ends == {(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)}, "terminated, and cut by the time limit"
    assert min(member.tensors["normaliser.return_count"] for member in loop.members) == 280
    assert len(history[0]) > len(set(history[0])) > 4, "episodes ended on the way"


@pytest.mark.parametrize("backend", ["sync", "torch"])
def test_a_rollout_holds_what_the_policy_was_shown(backend: str, run: Callable[..., Any]) -> None:
    """And what came after it, by the statistics of the same moment."""
    p = normalising("ppo", LONG)
    loop = run(on_tensors(p) if backend == "torch" else p)
    seen, going_on = [], 0
    for tick in range(15):  # of a rollout of 16
        seen.append(shows(loop))
        advance(loop, 1)
        after = shows(loop)
        for cohort, rollout in zip(loop.cohorts, populations.rollouts(loop), strict=True):
            for row, slot in enumerate(cohort.slots):
                past = np.stack(seen)[:, slot].reshape(-1, 4).astype(np.float64)
                mean, deviation = past.mean(axis=0), np.sqrt(past.var(axis=0) + EPSILON)
                expected = np.clip((seen[-1][slot] - mean) / deviation, -5, 5)
                np.testing.assert_allclose(rollout.rows[row, tick, :, :4], expected, atol=1e-4)
                same_episode = rollout.after[row, tick, :, 6] == 0
                going_on += int(same_episode.sum())
                expected = np.clip((after[slot] - mean) / deviation, -5, 5)[same_episode]
                np.testing.assert_allclose(rollout.after[row, tick, :, :4][same_episode], expected, atol=1e-4)
    assert going_on > 100


def test_a_rollout_replays_to_the_same_log_probabilities_and_values(run: Callable[..., Any]) -> None:
    """Though the statistics have moved on since."""
    p = normalising("ppo", LONG)
    loop = run(p)
    advance(loop, 15)  # of 16
    for cohort, rollout in zip(loop.cohorts, populations.rollouts(loop), strict=True):
        ticks, envs = torch.arange(15).repeat_interleave(4), torch.arange(4).repeat(15)
        members = len(cohort.members)
        batch = rollout.sequences(
            ticks.expand(members, -1)[..., None], envs.expand(members, -1), torch.ones(members, 60, 1)
        )
        chances, value = ppo._evaluate(p.algo_config, cohort.state, batch, cohort.state.log_std)
        log_prob = chances.log_prob(batch.action.flatten(1, 2))
        torch.testing.assert_close(log_prob, batch.log_prob.flatten(1, 2), atol=1e-5, rtol=0)
        torch.testing.assert_close(value, batch.value.flatten(1, 2), atol=1e-5, rtol=0)


@BOTH
def test_evaluation_leaves_statistics_as_they_are(algo: str, run: Callable[..., Any]) -> None:
    loop = run(normalising(algo, LONG))
    advance(loop, 30)
    before = loop.members
    evaluate(loop.spec, loop.cohorts, loop.regime.evaluate.pool, loop.spec.seeds(Purpose.EVALUATE, 4), 50)
    assert all(same(a, b) for a, b in zip(before, loop.members, strict=True))


@BOTH
@pytest.mark.thorough
def test_a_clone_has_seen_what_its_parent_has(algo: str, run: Callable[..., Any]) -> None:
    loop = run(normalising(algo, mutation=UNLIKE | {"probabilities": {"none": 0.0, "architecture": 1.0}}), 4)
    while not loop.clock.generation_over:
        loop.advance()
    parents = loop.members
    assert len({float(m.tensors["normaliser.mean"][0]) for m in parents}) == 4
    close_generation(loop)
    births = loop.lineage[-1].to_json()["children"]
    assert any(birth["mutation"]["kind"] == "architecture" for birth in births)
    names = [name for name in parents[0].tensors if name.startswith("normaliser.")]
    assert len(names) == (8 if algo == "ppo" else 5)
    for child, birth in zip(loop.members, births, strict=True):
        for name in names:
            assert equal(child.tensors[name], parents[birth["parent_slot"]].tensors[name])
    advance(loop, 1)
    assert len({float(m.tensors["normaliser.mean"][0]) for m in loop.members}) == 4, "from then on each sees its own"


@BOTH
@pytest.mark.parametrize("ticks", [pytest.param(7, marks=pytest.mark.thorough), 61])
@pytest.mark.thorough
def test_a_run_that_is_restored_goes_on_bit_for_bit(algo: str, ticks: int, run: Callable[..., Any]) -> None:
    p = normalising(algo, mutation=UNLIKE)
    whole, stopped, resumed = run(p), run(p), run(p)
    advance(stopped, ticks)
    tensors, meta = stopped.state()
    resumed.restore(load_tensors(dump_tensors(tensors), "state"), json.loads(json.dumps(meta)))
    for loop in (whole, resumed):
        finish(loop)
    assert equal_states(whole.state(), resumed.state()) == []


@BOTH
@pytest.mark.thorough
def test_a_member_trains_alike_alone_and_among_others(algo: str, run: Callable[..., Any]) -> None:
    p = normalising(algo, LONG, mutation=UNLIKE)
    crowd, one = run(p, 5), run(p, [populations.alone(p, 3)])
    for loop in (crowd, one):
        advance(loop, 70)
    assert same(one.members[0], crowd.members[3])


@BOTH
@pytest.mark.thorough
def test_no_bit_depends_on_how_many_processes_learn(
    algo: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "LEAST_WORK", 0.0)
    p = normalising(algo, mutation=UNLIKE, cohorts="merged")
    loops = [run(p, 5, 1), run(p, 5, 3)]
    for loop in loops:
        advance(loop, 49)
    assert p.compiled or loops[1].regime.learners._helpers, "the work was divided"
    for loop in loops:
        advance(loop, 30)
    assert equal_states(loops[0].state(), loops[1].state()) == []


@BOTH
@pytest.mark.thorough
def test_recorded_work_reads_statistics_where_they_are(algo: str, run: Callable[..., Any]) -> None:
    p = normalising(algo, mutation=UNLIKE)
    recorded = replace(p, paths=Paths("buffers"))
    loops = [run(p), run(recorded)]
    for loop in loops:
        advance(loop, 70)
    assert equal_states(loops[0].state(), loops[1].state()) == []
    made, ticks = recorded.paths.recorded, loops[1].clock.here
    assert ticks > 10
    assert made < 40, "recorded once a generation, not once a tick"


@pytest.mark.parametrize("algo", [pytest.param("dqn", marks=pytest.mark.thorough), "ppo"])
@pytest.mark.thorough
def test_another_device_need_not_be_waited_for(
    algo: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("cpu", DEVICE.type):
        monkeypatch.setitem(COSTS, kind, COSTS["cuda"])
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: False)
    p = normalising(algo, {"evo_steps": 120, "max_steps": 240, "learning_delay": 20})
    off = replace(p, train=p.train.model_copy(update={"normalise": NormaliseConfig()}))
    waits, states = [], []
    for problem in (p, off):
        with Device() as device:
            there = run(replace(problem, device=DEVICE))
            advance(there, 10)
            device.waits.clear()
            advance(there, 10)
            waits.append(device.waits.copy())
            states.append(there.state())
    here = run(p)
    advance(here, 20)
    assert waits[0] == waits[1], "as often as without"
    assert equal_states(here.state(), states[0]) == []


# ------------------------------------------------------------------------------------------------- broken, frozen


@BOTH
def test_what_is_not_finite_never_enters(algo: str, run: Callable[..., Any]) -> None:
    p = normalising(algo, LONG, env="envs_for_tests:NanObs-v0")
    loop = run(p)
    advance(loop, 30)
    assert loop.clock.broken > 10
    for member in loop.members:
        assert all(member.tensors[name].isfinite().all() for name in SEEN)
        assert member.tensors["normaliser.count"] == 120
        assert member.healthy
        if algo == "ppo":
            steps = member.tensors["normaliser.return_count"]
            assert 0 < steps < 120, "a broken step's reward does not count"


def test_rows_that_are_not_finite_are_passed_over() -> None:
    found = made(Spaces(2, 2), members=1)
    obs = torch.tensor([[[1.0, 2.0], [torch.nan, 3.0], [3.0, torch.inf], [5.0, 4.0]]])
    found.update(obs, torch.ones(1, dtype=torch.bool))
    assert found.observations is not None
    assert found.observations.count.tolist() == [2.0]
    assert found.observations.mean.tolist() == [[3.0, 3.0]]
    assert found.observations.square.tolist() == [[8.0, 2.0]]


@BOTH
@pytest.mark.thorough
def test_a_frozen_member_s_statistics_are_frozen_too(algo: str, run: Callable[..., Any]) -> None:
    loop = run(normalising(algo, LONG))
    advance(loop, 30)
    cohort, row = populations.of_slot(loop.cohorts, 1)
    cohort.healthy[row] = False
    before = loop.members
    advance(loop, 10)
    for old, new in zip(before, loop.members, strict=True):
        moved = [name for name in (*SEEN, "normaliser.return_count") if name in old.tensors
                 and not equal(old.tensors[name], new.tensors[name])]  # fmt: skip
        assert bool(moved) == (new.slot != 1)


# ------------------------------------------------------------------------------------------------- off, refused


@BOTH
def test_off_there_is_nothing_of_it(algo: str, run: Callable[..., Any]) -> None:
    loop = run(populations.problem(algo=algo, train=LONG))
    advance(loop, 3)
    assert all(cohort.normaliser is None for cohort in loop.cohorts)
    assert not any("normaliser" in name or name == "returns" for name in loop.state()[0])


def test_rewards_are_normalised_on_policy_alone() -> None:
    block = {"observations": False, "rewards": True, "clip": 10.0}
    with pytest.raises(ParamsError, match=r"train\.normalise\.rewards: dqn learns from a memory.*set it to false"):
        parse_params({"train": {"algo": "dqn", "normalise": block}})
    assert parse_params({"train": {"algo": "ppo", "normalise": block}}).train.normalise.rewards
    with pytest.raises(ParamsError, match=r"train\.normalise\.clip"):
        parse_params({"train": {"algo": "ppo", "normalise": {**block, "clip": 0.0}}})


# ------------------------------------------------------------------------------------------------- datasets


def transitions(n: int, obs: np.ndarray, next_obs: np.ndarray) -> Transitions:
    g = np.random.default_rng(8)
    over = g.random(n) < 0.1
    over[-1] = True
    return Transitions(
        obs, g.integers(2, size=n), g.normal(size=n).astype(np.float32), over, np.zeros(n, bool), next_obs,
        np.concatenate(([0], np.cumsum(over)[:-1])),
    )  # fmt: skip


def dataset(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(9)
    scale, offset = np.array([1000.0, 1.0, 0.01, 50.0]), np.array([300.0, 0.0, 2.0, -80.0])
    obs, after = ((g.normal(size=(n, 4)) * scale + offset).astype(np.float32) for _ in range(2))
    return obs, after


def test_offline_learns_as_from_a_dataset_that_was_normalised_before(run: Callable[..., Any]) -> None:
    train = {"mode": "offline", **LONG}
    obs, after = dataset()
    p = normalising("cqn", train)
    assert p.train.normalise.observations
    loop = run(p, 3, warm=transitions(400, obs, after))
    mean, deviation = obs.astype(np.float64).mean(axis=0), obs.astype(np.float64).std(axis=0)
    bare = [np.clip((x - mean) / deviation, -5, 5).astype(np.float32) for x in (obs, after)]
    plain = run(populations.problem(algo="cqn", train=train), 3, warm=transitions(400, *bare))
    for each in (loop, plain):
        advance(each, 5)
    assert np.array_equal(loop.regime.replay.rows[0, :, :4].numpy(), obs), "the memory holds them raw"
    for ours, theirs in zip(loop.members, plain.members, strict=True):
        np.testing.assert_allclose(ours.tensors["normaliser.mean"], mean, rtol=1e-9)
        np.testing.assert_allclose(ours.tensors["normaliser.square"] / 400, deviation**2, rtol=1e-6)
        assert not torch.equal(ours.tensors["q"], first_members(p, 3)[0][ours.slot].tensors["q"])
        torch.testing.assert_close(ours.tensors["q"], theirs.tensors["q"], atol=1e-3, rtol=1e-3)


@pytest.mark.thorough
def test_offline_statistics_are_the_dataset_s_to_the_end(run: Callable[..., Any]) -> None:
    obs, after = dataset()
    loop = run(normalising("cqn", {"mode": "offline"}, mutation=UNLIKE), 3, warm=transitions(400, obs, after))
    finish(loop)
    assert loop.clock.generation == 3
    assert all(member.tensors["normaliser.count"] == 400 for member in (*loop.members, loop.champion.member))


def test_a_warm_start_counts_as_seen(run: Callable[..., Any]) -> None:
    obs, after = dataset()
    loop = run(normalising("dqn", LONG | {"replay": {"capacity": 2000}}), 3, warm=transitions(400, obs, after))
    assert all(member.tensors["normaliser.count"] == 400 for member in loop.members)
    advance(loop, 5)
    assert all(member.tensors["normaliser.count"] == 420 for member in loop.members)


# ------------------------------------------------------------------------------------------------- the exported policy


@BOTH
@pytest.mark.thorough
def test_an_exported_policy_acts_as_the_member_is_evaluated(algo: str, run: Callable[..., Any], tmp_path: Path) -> None:
    p = normalising(algo, LONG, env="scaled_envs:Scaled-v0")
    loop = run(p)
    advance(loop, 70)
    member = loop.members[1]
    about = {"observations": 4, "actions": 2, "action_start": 0, "config": p.algo_config.model_dump(mode="json")}
    policy.save(tmp_path / "elite", algo, member, about, program=True, card="# card\n")
    loaded = policy.load(tmp_path / "elite")
    obs = np.random.default_rng(1).normal([5000, 0, -300, 0], [200, 900, 50, 900], (1, 500, 4)).astype(np.float32)
    alone = p.form_alone(replace(member, slot=0))[0]
    legal = np.ones((1, 500, 2), bool)
    if algo == "dqn":
        evaluated = choose(p, alone, obs, legal, None)[0].numpy()
    else:
        seen, nothing = alone.normalised(torch.from_numpy(obs)), torch.zeros(1, 500, 0)
        fresh = torch.ones(1, 500, dtype=torch.bool)
        evaluated = step(p, alone, seen, torch.from_numpy(legal), fresh, nothing, None).action[0].numpy()
    actions = loaded.act(obs[0])
    assert np.array_equal(actions, evaluated)
    assert 0 < actions.mean() < 1
    answer = torch.export.load(tmp_path / "elite" / policy.PROGRAM).module()(torch.from_numpy(obs[0]))
    assert np.array_equal((answer[0] if algo == "dqn" else answer).numpy(), actions)
    blind = {name: tensor for name, tensor in member.tensors.items() if not name.startswith("normaliser.")}
    policy.save(tmp_path / "blind", algo, replace(member, tensors=blind), about, program=False, card="# card\n")
    assert not np.array_equal(policy.load(tmp_path / "blind").act(obs[0]), actions)
    if algo == "dqn":
        shown = alone.normalised(torch.from_numpy(obs))
        torch.testing.assert_close(
            torch.from_numpy(loaded.q_values(obs[0])), dqn.values(p.algo_config, alone.state, shown)[0]
        )


@BOTH
@pytest.mark.thorough
def test_an_elite_s_episodes_are_those_of_its_evaluation(algo: str, tmp_path: Path) -> None:
    """From the population to the folder that `evopipe.load` reads, in observations of thousands."""
    block = {"observations": True, "rewards": populations.is_on_policy(algo), "clip": 5.0}
    changes = {"train.algo": algo, "train.normalise": block, "env.id": "scaled_envs:Scaled-v0", "train.max_steps": 400}
    sizes = {"batch_size": 32, "learn_step": 2} if algo == "dqn" else populations.ON_POLICY
    config = algos.get(algo).Config(network={"encoder": (16,), "latent": 16}, **sizes)
    write_params(tmp_path, {**changes, f"algos.{algo}": config.model_dump(mode="json")})
    for stage in ("population", "train", "evaluate", "export"):
        answer = call(tmp_path, stage)
        assert answer.code == 0, answer.err
    elite = evopipe.load(tmp_path / "models/elite")
    assert elite.about["preprocessing"][0]["tensors"] == list(normalise.SHOWN)
    env = gymnasium.make("scaled_envs:Scaled-v0")
    with (tmp_path / "reports/episodes.csv").open() as file:
        episodes = [row for row in csv.DictReader(file) if row["member"] == "elite"]
    assert len(episodes) == 4
    for episode in episodes:
        obs, _ = env.reset(seed=int(episode["seed"]))
        total, over = 0.0, False
        while not over and total < 100:  # the step cap of an evaluation episode; each step gives 1
            obs, reward, terminated, truncated, _ = env.step(elite.act(obs))
            total, over = total + float(reward), terminated or truncated
        assert total == float(episode["return"])


def test_a_policy_s_files_say_what_happens_to_an_observation(run: Callable[..., Any]) -> None:
    loop = run(normalising("ppo", LONG), 2)
    advance(loop, 2)
    tensors = loop.members[0].tensors
    (said,) = normalise.describe(tensors)
    assert set(said["tensors"]) <= set(tensors)
    assert normalise.describe({"q": torch.zeros(3)}) == []


# ------------------------------------------------------------------------------------------------- learning


def learned(observations: bool, run: Callable[..., Any], seed: int) -> float:
    """The best score of DQN in CartPole with observations a thousand times as large and away from 0."""
    train = {
        "max_steps": 30_000, "evo_steps": 3000, "learning_delay": 500, "eval_episodes": 8, "eval_steps": None,
        "replay": {"capacity": 20_000}, "normalise": {"observations": observations},
    }  # fmt: skip
    config = {"network": {"encoder": [64], "latent": 64}, "lr": 1e-3, "batch_size": 64, "eps_steps": 3000}
    mutation = {"probabilities": {"none": 1.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.0}}
    p = populations.problem(
        "scaled_envs:Scaled-v0", seed=seed, train=train, config=config, num_envs=8, mutation=mutation
    )
    loop = run(p, 2)
    finish(loop)
    return float(loop.champion.score)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_badly_scaled_observations_are_learned_from(seed: int, run: Callable[..., Any]) -> None:
    assert learned(True, run, seed) >= 475


def test_an_agent_that_is_gone_is_no_part_of_what_members_have_seen() -> None:
    """Nor is a row that is not finite, nor a member that is ill."""
    spaces = Spaces(2, 2)
    fresh = normalise.start(NormaliseConfig(observations=True), spaces)
    normaliser = Normaliser.stack([fresh] * 2, torch.device("cpu"))
    assert normaliser is not None
    obs = torch.tensor([[1.0, 2.0], [3.0, 6.0], [50.0, 50.0], [torch.inf, 0.0]]).expand(2, 4, 2)
    there = torch.tensor([True, True, False, True]).expand(2, 4)
    normaliser.update(obs, torch.tensor([True, False]), there)
    assert normaliser.observations is not None
    assert normaliser.observations.count.tolist() == [2.0, 0.0]
    assert normaliser.observations.mean.tolist() == [[2.0, 4.0], [0.0, 0.0]]
    assert normaliser.observations.square.tolist() == [[2.0, 8.0], [0.0, 0.0]]
