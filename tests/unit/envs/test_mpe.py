"""Teams as tensors: mpe2's environments step for step, rows that do not know each other, a pool's contract."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from device import DEVICE, Device
from evopipe.envs.make import opened
from evopipe.envs.mpe import OFFERED
from evopipe.envs.pool import EnvPool
from evopipe.envs.team import TeamSpace
from evopipe.envs.tensors import TensorPool, TensorRows, TensorStep
from evopipe.errors import ParamsError
from evopipe.schema.env import EnvConfig

CPU = torch.device("cpu")
SPREAD, TALK, TAG, ADVERSARY = (
    "simple_spread_v3",
    "simple_speaker_listener_v4",
    "simple_tag_v3",
    "simple_adversary_v3",
)
NAMES = (SPREAD, TALK, TAG, ADVERSARY)
# Every argument that changes what happens, and more neighbours than there are.
GAMES: list[tuple[str, dict[str, Any]]] = [
    (SPREAD, {}),
    (SPREAD, {"N": 1, "local_ratio": 1}),
    (SPREAD, {"N": 5, "local_ratio": 0.3, "max_cycles": 9, "num_agent_neighbors": 2, "num_landmark_neighbors": 7}),
    (SPREAD, {"curriculum": True, "dynamic_rescaling": False, "benchmark_data": True}),
    (SPREAD, {"N": 2, "terminate_on_success": True, "num_agent_neighbors": 1}),
    (TALK, {}),
    (TAG, {}),
    (TAG, {"num_good": 3, "num_adversaries": 2, "num_obstacles": 0, "max_cycles": 40, "curriculum": True}),
    (TAG, {"num_good": 2, "num_agent_neighbors": 3, "num_landmark_neighbors": 1, "terminate_on_success": True}),
    (TAG, {"num_good": 2, "num_adversaries": 1, "num_agent_neighbors": 6, "num_landmark_neighbors": 3}),
    (ADVERSARY, {}),
    (ADVERSARY, {"N": 4, "num_agent_neighbors": 2, "num_landmark_neighbors": 5}),
    (ADVERSARY, {"N": 1}),
]
BOTH = [(name, {**kwargs, "continuous_actions": continuous}) for name, kwargs in GAMES for continuous in (False, True)]
PLAIN = [(name, {"continuous_actions": continuous}) for name in NAMES for continuous in (False, True)]


def config(name: str, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": name, "kwargs": kwargs, "backend": "torch"})


def begun(cfg: EnvConfig, rows: int, device: torch.device = CPU) -> TensorPool:
    batched = TensorPool(cfg, rows, device)
    batched.reset(torch.arange(rows), torch.arange(rows))
    return batched


def theirs(name: str, **kwargs: Any) -> Any:
    return importlib.import_module(f"mpe2.{name}").parallel_env(**kwargs)


def random_actions(batched: TensorPool | EnvPool, rows: int, rng: np.random.Generator) -> np.ndarray:
    """In an algorithm's terms, some of them beyond the bounds."""
    team = batched.spaces.team
    if batched.spaces.continuous:
        return rng.uniform(-1.2, 1.2, (rows, len(team.agents), batched.spaces.actions)).astype(np.float32)
    return np.stack([rng.integers(n, size=rows) for n in team.actions], axis=1)


def physics(env: Any) -> np.ndarray:
    """mpe2's state as the columns of `mpe`: positions, velocities, landmarks, what was said, the goal."""
    world = env.unwrapped.world
    movers = [agent for agent in world.agents if agent.movable]
    planes = [np.array([body.state.p_pos for body in movers]), np.array([body.state.p_vel for body in movers])]
    planes.append(np.array([body.state.p_pos for body in world.landmarks]).reshape(-1, 2))
    state = [plane.T.ravel() for plane in planes]
    if hasattr(world.agents[0], "goal_b"):
        state += [world.agents[0].state.c, [world.landmarks.index(world.agents[0].goal_b)]]
    elif hasattr(world.agents[0], "goal_a"):
        state += [[world.landmarks.index(world.agents[0].goal_a)]]
    return np.concatenate(state, dtype=np.float64)


class Twins:
    """mpe2's environments, and the same as tensors, begun in the states that mpe2 drew.

    The physics are float64 on both sides and taken in the same order. What is left to differ are `exp` and `log1p` of
    two libraries, by units in the last place (1e-16), which contacts as stiff as these amplify some thousand times in
    a long touch: 1e-9 is far above that and far below any error of a formula.
    """

    def __init__(self, name: str, kwargs: dict[str, Any], rows: int) -> None:
        self.envs = [theirs(name, **kwargs) for _ in range(rows)]
        self.batched = TensorPool(config(name, **kwargs), rows, CPU)
        self.team = self.batched.spaces.team
        self.rng, self.episodes = np.random.default_rng(7), 0
        for row in range(rows):
            self.begin(row)

    def begin(self, row: int) -> None:
        obs, _ = self.envs[row].reset(seed=self.episodes)
        self.batched.reset([row], [self.episodes])
        self.batched.physics[row] = torch.from_numpy(physics(self.envs[row]))
        np.testing.assert_array_equal(self.batched.obs[row].numpy(), self.padded(obs))
        self.episodes += 1

    def padded(self, obs: dict[str, np.ndarray]) -> np.ndarray:
        row = np.zeros((len(self.team.agents), self.batched.spaces.observations), np.float32)
        for i, (agent, n) in enumerate(zip(self.team.agents, self.team.observations, strict=True)):
            assert obs[agent].shape == (n,)
            row[i, :n] = obs[agent]
        return row

    def own(self, actions: np.ndarray) -> dict[str, Any]:
        if not self.batched.spaces.continuous:
            return {agent: int(a) for agent, a in zip(self.team.agents, actions, strict=True)}
        share = np.clip((np.clip(actions.astype(np.float64), -1, 1) + 1) / 2, 0, 1).astype(np.float32)
        return {
            agent: share[i, :n] for i, (agent, n) in enumerate(zip(self.team.agents, self.team.actions, strict=True))
        }

    def play(self, steps: int) -> tuple[int, int]:
        """Step both, compare all there is, and count the ends: terminated, truncated."""
        ends = [0, 0]
        for _ in range(steps):
            actions = random_actions(self.batched, len(self.envs), self.rng)
            step = self.batched.step(torch.from_numpy(actions))
            for row, env in enumerate(self.envs):
                obs, *rest, _ = env.step(self.own(actions[row]))
                reward, terminated, truncated = ([part[agent] for agent in self.team.agents] for part in rest)
                np.testing.assert_allclose(self.batched.physics[row].numpy(), physics(env), rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(step.obs[row].numpy(), self.padded(obs), rtol=1e-6, atol=1e-7)
                np.testing.assert_allclose(step.reward[row].numpy(), reward, rtol=1e-6, atol=1e-7)
                assert (step.terminated[row].tolist(), step.truncated[row].tolist()) == (terminated, truncated)
                if any(terminated) or any(truncated):
                    assert not env.agents
                    ends = [ends[0] + terminated[0], ends[1] + truncated[0]]
                    self.begin(row)
        return ends[0], ends[1]


# --- The same game ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "kwargs"), BOTH)
def test_it_is_mpe2s_environment_step_for_step(name: str, kwargs: dict[str, Any]) -> None:
    twins = Twins(name, kwargs, 2)
    terminated, truncated = twins.play(kwargs.get("max_cycles", 25) + 2)
    assert truncated == 2 or (kwargs.get("terminate_on_success") and terminated)


@pytest.mark.parametrize("number", range(len(GAMES)))
@pytest.mark.thorough
def test_one_step_from_anywhere_is_mpe2s(number: int) -> None:
    """Discs inside each other, speeds above the limit, and places far outside, which play seldom meets."""
    name, kwargs = GAMES[number]
    twins = Twins(name, kwargs, 1)
    env, batched, rng = twins.envs[0], twins.batched, twins.rng
    world, won = env.unwrapped.world, 0
    for extent in np.repeat((0.05, 0.2, 0.7, 1.1, 4.0), 5):
        env.reset(seed=int(rng.integers(1000)))
        for body in world.entities:
            body.state.p_pos = rng.uniform(-extent, extent, 2)
            if body.movable:
                body.state.p_vel = rng.uniform(-2.0, 2.0, 2) * min(1.0, extent)
        batched.physics[0], batched.length[0] = torch.from_numpy(physics(env)), 0
        np.testing.assert_array_equal(batched.obs[0].numpy(), twins.padded(_observed(env)))
        actions = random_actions(batched, 1, rng)
        step = batched.step(torch.from_numpy(actions))
        obs, reward, terminated, _, _ = env.step(twins.own(actions[0]))
        np.testing.assert_allclose(batched.physics[0].numpy(), physics(env), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(step.obs[0].numpy(), twins.padded(obs), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(step.reward[0].numpy(), [*reward.values()], rtol=1e-6, atol=1e-7)
        assert step.terminated[0].tolist() == [*terminated.values()]
        won += all(terminated.values())
    assert (0 < won < 25) == bool(kwargs.get("terminate_on_success"))


def _observed(env: Any) -> dict[str, np.ndarray]:
    return {agent: env.aec_env.observe(agent) for agent in env.possible_agents}


@pytest.mark.parametrize(("name", "kwargs"), BOTH)
@pytest.mark.thorough
def test_it_says_of_itself_what_mpe2_says(name: str, kwargs: dict[str, Any]) -> None:
    cfg = config(name, **kwargs)
    with opened(cfg) as env:
        expected = TeamSpace.of(env)
    batched = TensorPool(cfg, 1, CPU)
    assert batched.team.to_json() == expected.to_json()
    assert batched.spaces == expected.spaces
    assert batched.actions.to_json() == expected.action.to_json()
    assert batched.masked == expected.masked == (name == TALK and not kwargs["continuous_actions"])


def test_an_episode_that_is_won_in_its_last_step_is_cut() -> None:
    """As in mpe2, which looks at the time first; before that a win is an end."""
    kwargs = {"N": 1, "terminate_on_success": True, "max_cycles": 2}
    batched = begun(config(SPREAD, **kwargs), 2)
    batched.physics.zero_()  # the agents stand on their landmarks
    batched.physics[1, 0] = 0.2  # but for one, which comes there in the second step
    batched.physics[1, 2] = -1.0
    idle = torch.zeros((2, 1), dtype=torch.int64)
    first, second = batched.step(idle), batched.step(idle)
    assert (first.terminated.tolist(), first.truncated.tolist()) == ([[True], [False]], [[False], [False]])
    assert (second.terminated.tolist(), second.truncated.tolist()) == ([[False], [False]], [[True], [True]])


def test_discs_in_the_same_point_do_not_become_nan() -> None:
    batched = begun(config(SPREAD), 1)
    batched.physics.zero_()
    step = batched.step(torch.tensor([[1, 0, 0]]))
    assert step.obs.isfinite().all()
    np.testing.assert_allclose(batched.physics[0, 6:9].numpy(), [-0.5, 0.0, 0.0])  # 0.1 s under a force of 5


def returns(name: str, rows: int, still: bool = False, **kwargs: Any) -> float:
    """The mean return of an episode, summed over agents, of random actions or of none."""
    batched, rng = begun(config(name, **kwargs), rows), np.random.default_rng(0)
    total = 0.0
    for _ in range(25):
        step = batched.step(torch.from_numpy(random_actions(batched, rows, rng) * (not still)))
        total += step.reward.double().sum().item() / rows
    assert step.truncated.all()
    return total


@pytest.mark.parametrize(
    ("name", "still", "continuous", "expected"),
    [
        (TALK, False, True, -73.4),
        (TALK, False, False, -82.5),
        (TALK, True, False, -200 / 3),  # the mean square of a distance is 4 / 3
        (SPREAD, False, True, -77.7),
        (SPREAD, False, False, -80.6),
    ],
)
def test_teams_without_a_plan_earn_what_they_earn_in_mpe2(
    name: str, still: bool, continuous: bool, expected: float
) -> None:
    """Measured there, with standard errors of 0.9 to 1.8; those of ours are 0.4 to 1.3."""
    assert returns(name, 3000, still, continuous_actions=continuous) == pytest.approx(expected, abs=5.0)


# --- Episodes by seed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_initial_states_are_drawn_as_mpe2_draws_them(name: str) -> None:
    """Uniform between its bounds (Kolmogorov and Smirnov; 1 in 10⁴ by chance, but seeds are fixed), and unrelated."""
    n = 10_000
    state = begun(config(name), n).physics.numpy()
    env = theirs(name)
    seen = np.array([physics(env) for seed in range(300) if env.reset(seed=seed)])
    moving = [i for i in range(state.shape[1]) if seen[:, i].any() and not (seen[:, i] % 1 == 0).all()]
    high = [0.9 if name == TAG and i >= 16 else 1.0 for i in moving]  # obstacles
    share = (np.sort(state[:, moving], axis=0) / high + 1) / 2
    assert np.abs(share - (np.arange(n)[:, None] + 0.5) / n).max() < 2.23 / np.sqrt(n)
    assert (np.abs(seen[:, moving]).max(0) <= high).all()
    assert (np.abs(seen[:, moving]).max(0) > np.array(high) - 0.05).all()
    apart = np.corrcoef(state[:, moving], rowvar=False) - np.eye(len(moving))
    assert np.abs(apart).max() < 4 / np.sqrt(n)
    rest = sorted(set(range(state.shape[1])) - set(moving))
    goals = {TALK: 3, ADVERSARY: 2}.get(name, 0)
    if goals:
        assert np.abs(np.bincount(state[:, rest.pop()].astype(int)) / n - 1 / goals).max() < 0.02
        assert sorted({*seen[:, -1]}) == sorted({*state[:, -1]}) == [*range(goals)]
    assert not state[:, rest].any()
    assert not seen[:, rest].any()


@pytest.mark.parametrize(("name", "kwargs"), PLAIN)
def test_a_row_is_the_same_to_the_bit_wherever_it_stands_and_whatever_stands_beside_it(
    name: str, kwargs: dict[str, Any]
) -> None:
    rows, rng, cfg = 37, np.random.default_rng(3), config(name, **kwargs)
    whole = begun(cfg, rows)
    whole.physics.mul_(0.4)  # closer together, so that many touch
    first = whole.physics.clone()
    actions = [torch.from_numpy(random_actions(whole, rows, rng)) for _ in range(25)]
    seen = [whole.step(action) for action in actions]
    for places in ([5], [36, 0], list(range(9)), rng.permutation(rows).tolist(), [7] * 3):
        index = torch.tensor(places)
        some = TensorPool(cfg, len(places), CPU)
        some.physics.copy_(first[index])
        for action, step in zip(actions, seen, strict=True):
            for part, expected in zip(some.step(action[index]), step, strict=True):
                assert torch.equal(part, expected[index])


@pytest.mark.parametrize("name", NAMES)
def test_some_rows_step_while_others_stand_still(name: str) -> None:
    cfg, rng = config(name), np.random.default_rng(5)
    batched, all_ = begun(cfg, 6), begun(cfg, 6)
    actions, index = torch.from_numpy(random_actions(batched, 6, rng)), torch.tensor([4, 1])
    before = batched.physics.clone()
    step, expected = batched.step(actions[index], index), all_.step(actions)
    for part, wanted in zip(step, expected, strict=True):
        assert torch.equal(part, wanted[index])
        assert part.is_contiguous()
    assert torch.equal(batched.physics[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    assert batched.length.tolist() == [0, 1, 0, 0, 1, 0]
    state, again = batched.state(), TensorPool(cfg, 6, CPU)
    assert not again.restore(state).any()
    for part, wanted in zip(again.step(actions), batched.step(actions), strict=True):
        assert torch.equal(part, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_by_mask_touches_no_other_row_and_no_other_memory(name: str) -> None:
    batched, rng = begun(config(name), 4), np.random.default_rng(5)
    held, kept = batched.physics, []
    for _ in range(3):
        step = batched.step(torch.from_numpy(random_actions(batched, 4, rng)))
        kept.append((step, [part.clone() for part in step]))
    before = batched.physics.clone()
    batched.reset_where(torch.tensor([True, False, False, True]), torch.tensor([3, 41, 42, 0]))
    assert batched.length.tolist() == [0, 3, 3, 0]
    assert torch.equal(batched.physics[1:3], before[1:3])
    assert batched.physics is held
    assert torch.equal(batched.physics[[3, 0]], begun(config(name), 4).physics[[0, 3]])
    assert all(torch.equal(part, copy) for step, copies in kept for part, copy in zip(step, copies, strict=True))


@pytest.mark.parametrize(("name", "kwargs"), [game for game in (*PLAIN, *GAMES) if game[1]])
@pytest.mark.thorough
def test_on_a_device_nothing_waits_and_a_graph_can_hold_it(name: str, kwargs: dict[str, Any]) -> None:
    local, rng = begun(config(name, **kwargs), 5), np.random.default_rng(1)
    seeds, mask = torch.arange(50, 55), torch.tensor([True, False, False, True, False])
    actions = torch.from_numpy(random_actions(local, 5, rng))
    expected = [*local.step(actions)]
    local.reset_where(mask, seeds)
    expected += [local.obs, local.physics, local.length]
    with Device() as device:
        remote = begun(config(name, **kwargs), 5, DEVICE)
        sent = actions.to(DEVICE), seeds.to(DEVICE), mask.to(DEVICE)
        held = remote.physics, remote.length
        device.waits.clear()
        with device.recording():
            given = [*remote.step(sent[0])]
            remote.reset_where(sent[2], sent[1])
            given.append(remote.obs)
        assert not device.waits
        assert device.kept(given) == 0
        for here, there in zip(expected, [*given, *held], strict=True):
            assert torch.equal(there.cpu(), here)


# --- As rows ----------------------------------------------------------------------------------------------------------


def test_rows_give_what_the_tensors_give_and_say_who_is_alive() -> None:
    cfg, rng, index = config(TALK, max_cycles=2), np.random.default_rng(2), np.arange(3)
    batched, rows = begun(cfg, 3), TensorRows(TensorPool(cfg, 3, CPU))
    speaker, listener = [True] * 3 + [False] * 2, [True] * 5
    np.testing.assert_array_equal(rows.reset(index, index).obs, batched.obs)
    for last in (False, True):
        actions = random_actions(batched, 3, rng)
        step, expected = rows.receive(index, actions), batched.step(torch.from_numpy(actions))
        for part in TensorStep._fields:
            np.testing.assert_array_equal(getattr(step, part), getattr(expected, part))
        assert not step.broken.any()
        assert step.over.tolist() == [last] * 3
        assert step.alive.tolist() == [[not last] * 2] * 3
        assert step.mask.tolist() == [[speaker, listener]] * 3


def played(pool: EnvPool, steps: int, seed: int) -> list[list[bytes]]:
    """Random actions; ended rows begin anew. All there is to see."""
    rng, seen = np.random.default_rng(seed), []
    for tick in range(steps):
        step = pool.step(random_actions(pool, pool.rows, rng))
        over = np.flatnonzero(step.over)
        pool.reset(over, 100 * tick + over)
        shown = [*step.parts, pool.obs, pool.mask, pool.alive, pool.episode_return, *pool.state().values()]
        seen.append([part.tobytes() for part in shown])
    return seen


@pytest.mark.parametrize(("name", "kwargs"), PLAIN)
def test_a_pool_of_them_begins_anew_and_is_restored_bit_for_bit(name: str, kwargs: dict[str, Any]) -> None:
    cfg = config(name, max_cycles=4, **kwargs)
    pool, batched, again = EnvPool(cfg, 3), begun(cfg, 3), EnvPool(cfg, 3)
    pool.reset(np.arange(3), np.arange(3))
    np.testing.assert_array_equal(pool.obs, batched.obs)
    assert pool.alive.all()
    assert pool.masked == batched.masked
    np.testing.assert_array_equal(pool.mask[1], batched.team.free)
    played(pool, 6, 0)
    assert not again.restore({name: part.copy() for name, part in pool.state().items()}).any()
    assert played(again, 6, 1) == played(pool, 6, 1)


def test_an_action_that_is_no_number_counts_as_the_middle_and_harms_no_neighbour() -> None:
    cfg = config(TAG, continuous_actions=True)
    batched, twin = begun(cfg, 2), begun(cfg, 2)
    actions = torch.full((2, 4, 5), 0.5)
    broken = actions.clone()
    broken[1, 2], actions[1, 2] = float("nan"), 0.0
    for part, expected in zip(batched.step(broken), twin.step(actions), strict=True):
        assert torch.equal(part, expected)


@pytest.mark.parametrize("name", NAMES)
def test_both_spellings_of_an_id_are_the_same_environment(name: str) -> None:
    short, long = begun(config(name), 2), begun(config(f"mpe2.{name}:parallel_env"), 2)
    assert torch.equal(short.obs, long.obs)
    assert short.spaces == long.spaces
    assert len(OFFERED) == 2 * len(NAMES)


@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        (config("simple_spread_v2"), "env.backend: torch has no 'simple_spread_v2', did you mean 'simple_spread_v3'?"),
        (
            config(SPREAD, N=0),
            "env.kwargs: torch's 'simple_spread_v3' does not take N: must be at least 1, got 0; change it, or set "
            "env.backend to sync",
        ),
        (config(SPREAD, local_ratio=1.5), "env.kwargs: torch's 'simple_spread_v3' does not take local_ratio: "),
        (config(SPREAD, wind=1), "env.kwargs: torch's 'simple_spread_v3' does not take wind: unknown key"),
        (config(TALK, N=2), "env.kwargs: torch's 'simple_speaker_listener_v4' does not take N: unknown key"),
        (config(TAG, num_good=0), "env.kwargs: torch's 'simple_tag_v3' does not take num_good: must be at least 1"),
        (config(TAG, num_agent_neighbors=0), "env.kwargs: torch's 'simple_tag_v3' does not take num_agent_neighbors: "),
        (config(ADVERSARY, max_cycles=0), "env.kwargs: torch's 'simple_adversary_v3' does not take max_cycles: "),
        (
            config(ADVERSARY, render_mode="human"),
            "env.kwargs: 'render_mode' is set by evopipe and cannot be given; remove it",
        ),
    ],
)
def test_what_is_not_offered_is_refused(cfg: EnvConfig, text: str) -> None:
    with pytest.raises(ParamsError) as failed:
        TensorPool(cfg, 2, CPU)
    assert str(failed.value).startswith(text)
