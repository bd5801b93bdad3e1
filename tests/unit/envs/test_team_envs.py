"""Teams: a row holds K agents. The same as PettingZoo's environment stepped by hand, in process and in workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpe2.simple_speaker_listener_v4
import mpe2.simple_spread_v3
import mpe2.simple_tag_v3
import numpy as np
import pytest

import teams_for_tests
from evopipe.envs.check import check
from evopipe.envs.make import is_team, make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.envs.workers import Workers
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.new import project
from evopipe.params.load import Params, parse_params
from evopipe.problems import check as checked_params
from evopipe.schema.env import EnvConfig
from evopipe.stages import fetch
from evopipe.types import ACTS, GONE
from tiny import params


def config(env_id: str, wrappers: list[Any] | None = None, **kwargs: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": env_id, "kwargs": kwargs, "wrappers": wrappers or []})


def team(name: str, **kwargs: Any) -> EnvConfig:
    return config(f"teams_for_tests:{name}", **kwargs)


def started(cfg: EnvConfig, rows: int = 1, workers: Workers | None = None) -> EnvPool:
    pool = EnvPool(cfg, rows, workers=workers)
    pool.reset(np.arange(rows), np.arange(rows) + 5)
    return pool


def drawn(pool: EnvPool, rng: np.random.Generator) -> np.ndarray:
    """Legal actions of all rows."""
    return np.array([[pool.actions.sample(mask, rng) for mask in row] for row in pool.mask])


TICKET = float(np.random.default_rng(5).random(dtype=np.float32))  # of the first row of `started`


def test_a_situation_is_single_only_where_every_agent_shows_one() -> None:
    """A batch of one row is a batch, whoever of the team brings it; others may be absent."""
    space = TeamSpace.of(make_env(team("Relay")))
    one = {agent: np.full(seen.size, 1.0 + k, np.float32)
           for k, (agent, seen) in enumerate(zip(space.ids, space.observations, strict=True))}  # fmt: skip
    batch = {agent: row[None] for agent, row in one.items()}
    first, *others = space.ids
    assert space.situation(one).single
    assert not space.situation(batch).single
    for some in (others, others[:1]):
        for a, b in ((one, batch), (batch, one)):
            found = space.situation({first: a[first], **{agent: b[agent] for agent in some}})
            assert not found.single
            assert found.alive.tolist() == [[agent == first or agent in some for agent in space.ids]]
            assert found.obs[0, 0, : space.observations[0].size].tolist() == one[first].tolist()
    assert space.situation({others[0]: one[others[0]]}).single


# --- As the environment stepped by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "source", "kwargs"),
    [
        ("simple_spread_v3", mpe2.simple_spread_v3.parallel_env, {"N": 2}),
        ("mpe2.simple_spread_v3:parallel_env", mpe2.simple_spread_v3.parallel_env, {}),
        ("mpe2.simple_spread_v3:env", mpe2.simple_spread_v3.parallel_env, {"continuous_actions": True}),
        ("simple_speaker_listener_v4", mpe2.simple_speaker_listener_v4.parallel_env, {}),
        ("simple_speaker_listener_v4", mpe2.simple_speaker_listener_v4.parallel_env, {"continuous_actions": True}),
        ("mpe2.simple_tag_v3:parallel_env", mpe2.simple_tag_v3.parallel_env, {"continuous_actions": True}),
    ],
)
def test_a_row_is_the_environment_stepped_by_hand(env_id: str, source: Any, kwargs: dict[str, Any]) -> None:
    cfg, hand, rng = config(env_id, max_cycles=5, **kwargs), source(max_cycles=5, **kwargs), np.random.default_rng(0)
    pool = started(cfg, 2)
    observed, _ = hand.reset(seed=6)  # row 1
    agents, total = hand.possible_agents, np.zeros(len(hand.possible_agents))
    for t in range(5):
        for k, agent in enumerate(agents):
            size = len(observed[agent])
            assert np.array_equal(pool.obs[1, k, :size], observed[agent])
            assert not pool.obs[1, k, size:].any()
            assert pool.alive[1, k]
        actions = drawn(pool, rng)
        own = {}
        for k, agent in enumerate(agents):
            space = hand.action_space(agent)
            if pool.spaces.continuous:
                share = (actions[1, k, : space.shape[0]].astype(np.float64) + 1.0) / 2.0
                own[agent] = share.astype(np.float32)
            else:
                own[agent] = int(actions[1, k])
        step = pool.step(actions)
        observed, rewards, terminated, truncated, _ = hand.step(own)
        total += [rewards[agent] for agent in agents]
        assert step.reward[1].tolist() == [np.float32(rewards[agent]) for agent in agents]
        assert not any(terminated.values())
        assert not step.terminated.any()
        assert (step.truncated == (t == 4)).all()
        assert all(truncated[agent] == (t == 4) for agent in agents)
        assert all(
            np.array_equal(step.obs[1, k, : len(observed[agent])], observed[agent]) for k, agent in enumerate(agents)
        )
    assert step.over.tolist() == [True, True]
    np.testing.assert_allclose(pool.episode_return[1], total, rtol=1e-5)
    assert not pool.obs.any(), "nobody is left"


@pytest.mark.parametrize("env_id", ["simple_spread_v3", "mpe2.simple_spread_v3:env"])
def test_wrappers_that_only_check_are_taken_off(env_id: str) -> None:
    team = make_env(config(env_id)).unwrapped
    assert isinstance(team, TeamEnv)
    assert team.parallel.aec_env is team.parallel.aec_env.unwrapped


def test_a_team_says_who_its_agents_are() -> None:
    spaces = EnvPool(config("simple_speaker_listener_v4"), 1).spaces
    assert (spaces.observations, spaces.actions, spaces.kind, spaces.choices) == (11, 5, "discrete", (5,))
    assert spaces.team is not None
    assert spaces.team.agents == ("speaker_0", "listener_0")
    assert (spaces.team.observations, spaces.team.actions) == ((3, 11), (3, 5))


def test_a_choice_that_an_agent_has_not_is_never_legal() -> None:
    pool = EnvPool(config("simple_speaker_listener_v4"), 1)
    assert pool.masked
    for _ in range(2):
        pool.reset([0], [1])
        assert pool.mask[0].tolist() == [[True, True, True, False, False], [True] * 5]
        step = pool.step(np.array([[2, 4]]))
        assert step.mask[0].tolist() == pool.mask[0].tolist()
    assert not EnvPool(config("simple_spread_v3"), 1).masked


def test_unlike_agents_are_padded_and_act_in_their_own_spaces() -> None:
    pool = started(team("Bees"))
    env = pool.env(0)
    assert isinstance(env, TeamEnv)
    step = pool.step(np.array([[2, 3]]))
    assert env.parallel.given == {"ant_0": 2, "bee_0": 4}, "the second counts from 1"
    assert step.obs[0].tolist() == [[TICKET, 1.0, 2.0], [TICKET, 1.0, 0.0]]
    assert step.reward[0].tolist() == [12.0, 15.0]
    pool = started(team("Bees", kind="continuous"))
    pool.step(np.array([[[1.0, 9.0], [-1.0, 0.0]]]))
    given = pool.env(0).parallel.given  # type: ignore[attr-defined]
    assert {agent: action.tolist() for agent, action in given.items()} == {"ant_0": [1.0], "bee_0": [-2.0, -0.5]}


@pytest.mark.parametrize(
    ("kind", "action", "own"),
    [
        ("discrete", [1, 2], [1, 2]),
        ("continuous", [[0.0, 1.0], [-1.0, 0.5]], [[1.0, 4.0], [-2.0, 2.5]]),
        ("multidiscrete", [[1, 2], [0, 1]], [[1, 2], [0, 1]]),
        ("multibinary", [[1, 0], [0, 1]], [[1, 0], [0, 1]]),
    ],
)
def test_every_kind_of_action_reaches_its_agent(kind: str, action: Any, own: Any) -> None:
    pool = started(team("Crew", kind=kind), 2)
    step = pool.step(np.array([action, action]))
    for row in (0, 1):
        given = pool.env(row).parallel.given  # type: ignore[attr-defined]
        assert [np.asarray(given[agent]).tolist() for agent in ("ant_0", "ant_1")] == own
        assert step.reward[row].tolist() == [10.0 + np.sum(own[0]), 11.0 + np.sum(own[1])]
    space = TeamSpace.of(pool.env(0))  # type: ignore[arg-type]
    assert [np.asarray(x).tolist() for x in space.own(np.array(action)).values()] == own


def test_images_of_a_team_are_scaled_and_channels_first() -> None:
    pool = started(team("Pixels"))
    assert [tuple(image) for image in pool.spaces.images] == [(0, 3, 4, 5)]
    assert pool.obs.shape == (1, 2, 60)
    assert np.allclose(pool.obs, int(TICKET * 255) / 255)


# --- Agents that come and go ------------------------------------------------------------------------------------------


def played(pool: EnvPool, steps: int) -> list[RowStep]:
    """So many steps of the first row, with the action 1 for everyone."""
    return [pool.step(np.ones((1, 2), np.int64)) for _ in range(steps)]


def test_a_death_ends_one_agent_and_not_the_row() -> None:
    pool = started(team("Dies"))
    steps = played(pool, 4)
    assert [step.terminated[0].tolist() for step in steps] == [[False, False], [True, False], *[[False, False]] * 2]
    assert [step.truncated[0].tolist() for step in steps] == [*[[False, False]] * 3, [False, True]]
    assert [step.alive[0].tolist() for step in steps if step.alive is not None] == [
        [True, True], [False, True], [False, True], [False, False]
    ]  # fmt: skip
    assert [step.over[0] for step in steps] == [False, False, False, True]
    assert [step.reward[0].tolist() for step in steps] == [[11.0, 12.0], [21.0, 22.0], [0.0, 32.0], [0.0, 42.0]]
    assert pool.episode_return[0].tolist() == [32.0, 108.0], "the last reward counts, later ones do not"
    assert np.allclose(steps[1].obs[0, 0], [TICKET, 2.0, 1.0]), "its last observation is shown"
    assert not steps[2].obs[0, 0].any(), "later ones are not"
    assert not pool.env(0).parallel.agents  # type: ignore[attr-defined]


def test_the_pool_shows_nothing_of_who_is_gone() -> None:
    pool = started(team("MasksDies"))
    played(pool, 2)
    assert pool.alive[0].tolist() == [False, True]
    assert not pool.obs[0, 0].any()
    assert pool.mask[0].tolist() == [[True, False, False], [True, True, True]]
    played(pool, 1)
    assert set(pool.env(0).parallel.given) == {"ant_1"}, "it does not act"  # type: ignore[attr-defined]


def test_who_was_terminated_need_not_be_shown() -> None:
    steps = played(started(team("DiesUnseen")), 2)
    assert steps[1].terminated[0].tolist() == [True, False]
    assert not steps[1].obs[0, 0].any()


def test_one_agents_episode_is_cut_alone() -> None:
    steps = played(started(team("IsCut")), 3)
    assert [step.truncated[0].tolist() for step in steps] == [[False, False], [True, False], [False, False]]
    assert not any(step.terminated.any() or step.over.any() for step in steps)


def test_who_leaves_without_an_end_is_cut() -> None:
    steps = played(started(team("Leaves")), 3)
    assert [step.truncated[0].tolist() for step in steps] == [[False, False], [True, False], [False, False]]
    assert steps[1].obs[0, 0, 1] == 2.0, "its last observation is what its value is taken from"


def test_who_is_dead_and_still_in_the_list_stays_dead() -> None:
    pool = started(team("Stays"))
    steps = played(pool, 3)
    assert [step.terminated[0].tolist() for step in steps] == [[False, False], [True, False], [False, False]]
    assert [step.reward[0, 0] for step in steps] == [11.0, 21.0, 0.0]
    assert set(pool.env(0).parallel.given) == {"ant_1"}  # type: ignore[attr-defined]


def test_who_was_cut_and_is_still_in_the_list_does_not_act_again() -> None:
    """Nor is it paid, nor seen, nor cut another time."""
    pool = started(team("StaysCut"))
    steps = played(pool, 3)
    assert [step.truncated[0].tolist() for step in steps] == [[False, False], [True, False], [False, False]]
    assert [step.alive[0].tolist() for step in steps] == [[True, True], [False, True], [False, True]]  # type: ignore[index]
    assert steps[2].reward[0, 0] == 0.0
    assert not steps[2].obs[0, 0].any()
    assert not pool.alive[0, 0]


def test_a_step_says_where_it_leaves_each_agent() -> None:
    """0 gone, 1 acts next, 2 cut: at this step alone."""
    found = {
        name: [step.next_alive[0].tolist() for step in played(started(team(name)), 4)]
        for name in ("Dies", "IsCut", "Leaves", "Late", "Returns")
    }
    assert found == {
        "Dies": [[1, 1], [0, 1], [0, 1], [0, 2]],
        "IsCut": [[1, 1], [2, 1], [0, 1], [0, 2]],
        "Leaves": [[1, 1], [2, 1], [0, 1], [0, 2]],
        "Late": [[0, 1], [1, 1], [1, 1], [2, 2]],
        "Returns": [[1, 1], [2, 1], [1, 1], [2, 2]],
    }


def test_what_the_dead_give_breaks_nothing() -> None:
    steps = played(started(team("DeadNan")), 4)
    assert not any(step.broken.any() for step in steps)
    assert all(np.isfinite(step.obs).all() and np.isfinite(step.reward).all() for step in steps)


def test_an_agent_may_come_late() -> None:
    pool = started(team("Late"))
    assert pool.alive[0].tolist() == [False, True]
    assert not pool.obs[0, 0].any()
    steps = played(pool, 3)
    assert [step.alive[0].tolist() for step in steps if step.alive is not None] == [
        [False, True], [True, True], [True, True]
    ]  # fmt: skip
    assert [step.reward[0].tolist() for step in steps] == [[0.0, 12.0], [0.0, 22.0], [31.0, 32.0]]
    assert np.allclose(steps[1].obs[0, 0], [TICKET, 2.0, 0.0]), "what it sees first"
    assert not any(step.truncated.any() or step.terminated.any() for step in steps)


def test_agents_may_go_and_return_in_any_order() -> None:
    pool = started(team("Returns"))
    steps = played(pool, 4)
    assert [step.alive[0].tolist() for step in steps if step.alive is not None] == [
        [True, True], [False, True], [True, True], [False, False]
    ]  # fmt: skip
    assert [step.truncated[0].tolist() for step in steps] == [
        *[[False, False]],
        [True, False],
        [False, False],
        [True] * 2,
    ]


def test_ids_may_be_whole_numbers() -> None:
    pool = started(team("Numbers"))
    assert pool.spaces.team is not None
    assert pool.spaces.team.agents == ("7", "3"), "in the order of possible_agents"
    step = pool.step(np.array([[2, 0]]))
    assert pool.env(0).parallel.given == {7: 2, 3: 0}  # type: ignore[attr-defined]
    assert step.reward[0].tolist() == [12.0, 11.0]


# --- Masks, and actions that the environment sets ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Masks", "MasksOne", "Sees"])
def test_masks_come_by_info_or_by_observation(name: str) -> None:
    pool = started(team(name))
    assert pool.masked
    assert (pool.obs_size, pool.obs[0, 1].tolist()) == (3, [TICKET, 0.0, 0.0])
    assert pool.mask[0].tolist() == [[True, True, True]] * 2
    for first in (False, True):
        step = pool.step(np.ones((1, 2), np.int64))
        assert pool.mask[0].tolist() == step.mask[0].tolist() == [[first, True, True], [True, True, True]]


FIRSTS = {
    "discrete": [True, False, False],
    "multidiscrete": [True, False, True, False, False],
    "threefold": [True, False, False, True, False, True, False, False, False],
}


@pytest.mark.parametrize("kind", list(FIRSTS))
@pytest.mark.parametrize("blank", [False, True])
def test_who_is_cut_has_its_last_mask_and_who_is_gone_the_first_choice_of_each(
    kind: str, blank: bool, workers: Workers
) -> None:
    """By what is legal after a truncation targets take next actions; nobody takes one. A last mask that leaves nothing
    means nothing, and breaks no row."""
    for given in (None, workers):
        pool = started(team("MasksCut", kind=kind, blank=blank), workers=given)
        free = [True] * len(FIRSTS[kind])
        last = free if blank else [False, *free[1:]]
        for t in (1, 2, 3, 4):
            step = pool.step(np.ones((1, 2, *pool.spaces.action_shape), np.int64))
            assert not step.broken.any()
            of_first = [False, *free[1:]] if t == 1 else last if t == 2 else FIRSTS[kind]
            assert step.mask[0].tolist() == [of_first, last if t == 4 else [False, *free[1:]]]
            shows = [of_first if t == 1 else FIRSTS[kind], FIRSTS[kind] if t == 4 else [False, *free[1:]]]
            assert pool.mask[0].tolist() == shows
        pool.close()


def test_who_dies_and_is_cut_at_once_is_gone() -> None:
    pool = started(team("MasksBoth"))
    for _ in range(2):
        step = pool.step(np.ones((1, 2), np.int64))
    assert (step.terminated[0].tolist(), step.truncated[0].tolist()) == ([True, False], [True, False])
    assert step.next_alive[0].tolist() == [GONE, ACTS]
    assert step.mask[0].tolist() == [FIRSTS["discrete"], [False, True, True]]


def test_masks_that_one_episode_gives_another_need_not() -> None:
    pool = started(team("MasksOnce"))
    assert pool.mask[0].tolist() == [[False, True, True]] * 2
    pool.reset([0], [6])
    for _ in range(2):
        assert pool.mask.all()
        pool.step(np.zeros((1, 2), np.int64))


@pytest.mark.parametrize("backend", ["sync", "torch"])
def test_unlike_agents_of_a_team_that_is_cut_keep_all_their_choices(backend: str) -> None:
    """Where no mask is ever given, too."""
    cfg = EnvConfig.model_validate({
        "id": "simple_speaker_listener_v4", "backend": backend, "kwargs": {"max_cycles": 2, "continuous_actions": False}
    })  # fmt: skip
    pool = started(cfg)
    for t in range(2):
        step = pool.step(np.zeros((1, 2), np.int64))
        assert step.truncated.all() == (t == 1)
        assert step.mask[0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert pool.mask[0].tolist() == [[True] + [False] * 4] * 2


@pytest.mark.parametrize("kind", ["discrete", "multidiscrete"])
def test_an_action_that_the_environment_sets_is_the_only_legal_one(kind: str) -> None:
    pool, rng = started(team("Sets", kind=kind)), np.random.default_rng(0)
    assert pool.masked
    assert pool.mask.all()
    legal = {"discrete": [False, False, True], "multidiscrete": [False, True, False, False, True]}[kind]
    for t in (1, 2, 3):
        pool.step(drawn(pool, rng))
        assert pool.mask[0, 0].all()
        assert pool.mask[0, 1].tolist() == (legal if t % 2 else [True] * len(legal))
        assert not pool.is_forced.any()


@pytest.mark.parametrize(("kind", "forced"), [("continuous", [1.0, 0.0]), ("multibinary", [1, 0])])
def test_a_vector_that_the_environment_sets_is_taken_whatever_is_given(kind: str, forced: list[float]) -> None:
    for even in (False, True):
        pool, action = started(team("Sets", kind=kind, even=even)), np.zeros((1, 2, 2))
        for t in (0, 1, 2, 3):
            sets = (t % 2 == 0) == even
            assert pool.is_forced[0].tolist() == [False, sets]
            assert pool.taken(action)[0].tolist() == ([[0, 0], forced] if sets else [[0, 0], [0, 0]])
            pool.step(action)
        assert pool.state()["actions"][2 + (not even), 1].tolist() == forced, "as taken"


# --- PettingZoo's other kind: one agent at a time --------------------------------------------------------------------


def test_agents_that_take_turns_wait_with_one_action() -> None:
    pool = started(team("Turns"))
    assert pool.masked
    assert pool.mask[0].tolist() == [[True, True, True], [True, False, False]]
    rewards = []
    for t in range(4):
        step = pool.step(np.array([[2, 0] if t % 2 == 0 else [0, 1]]))
        rewards.append(step.reward[0].tolist())
        assert not step.broken.any()
        if t < 3:
            waits, acts = [True, False, False], [True, True, True]
            assert pool.mask[0].tolist() == ([waits, acts] if t % 2 == 0 else [acts, waits])
    assert rewards == [[2.0, -2.0], [-1.0, 1.0], [2.0, -2.0], [-1.0, 1.0]]
    assert step.terminated[0].tolist() == [True, True]
    assert step.over[0]


@pytest.mark.parametrize("env_id", ["tictactoe_v3", "rps_v2", "classic/rps-v2", "teams_for_tests:tests/Crew-v0"])
def test_what_pettingzoo_knows_by_name_runs(env_id: str) -> None:
    pool, rng = started(config(env_id)), np.random.default_rng(1)
    for _ in range(200):
        step = pool.step(drawn(pool, rng))
        assert not step.broken.any()
        if step.over[0]:
            break
    assert step.over[0]
    assert pool.episode_return.sum() == 0.0 or "Crew" in env_id


# --- In worker processes, and again -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as workers:
        yield workers


def shown(pool: EnvPool) -> list[bytes]:
    arrays = [pool.obs, pool.mask, pool.alive, pool.forced, pool.is_forced, pool.episode_return, pool.episode_length]
    return [*(array.tobytes() for array in (*arrays, *pool.state().values())), bytes([pool.masked])]


def rolled(pool: EnvPool, ticks: int, foretell: bool = False) -> list[list[bytes]]:
    """Random legal actions in all rows, every third time in some; ended rows begin anew. All there is to see."""
    rng, episodes = np.random.default_rng(5), np.zeros(pool.rows, np.int64)

    def seeds(rows: np.ndarray, ahead: int) -> np.ndarray:
        return rows[:, None] * 7919 + episodes[rows][:, None] + np.arange(ahead)

    def begin(rows: np.ndarray) -> None:
        now = seeds(rows, 1)[:, 0]
        episodes[rows] += 1
        pool.reset(rows, now)

    pool.upcoming = seeds if foretell else None
    begin(np.arange(pool.rows))
    seen, kept = [shown(pool)], []
    for tick in range(ticks):
        rows = np.sort(rng.permutation(pool.rows)[:2]) if tick % 3 == 2 else np.arange(pool.rows)
        step = pool.step(drawn(pool, rng)[rows], rows)
        kept.append((step, [part.tobytes() for part in step.parts]))
        seen.append([*kept[-1][1], *shown(pool)])
        begin(rows[step.over])
        seen.append(shown(pool))
    assert all([part.tobytes() for part in step.parts] == before for step, before in kept), "steps are not overwritten"
    return seen


ALL = [
    (config("simple_spread_v3", max_cycles=4), False),
    (config("simple_speaker_listener_v4", max_cycles=4, continuous_actions=True), True),
    *((team(name), i % 2 == 0) for i, name in enumerate(["Dies", "Late", "Returns", "Numbers", "Bees", "NanReward"])),
    *((team(name), i % 2 == 1) for i, name in enumerate(["MasksDies", "MasksOne", "Sees", "MaskedOut", "Turns"])),
    *((team("Sets", kind=kind), kind == "continuous") for kind in ("discrete", "continuous", "multibinary")),
    *((team("Sets", kind=kind, even=True), kind == "continuous") for kind in ("discrete", "continuous")),
    (team("Crew", kind="multidiscrete"), False),
]
NAMES = [f"{cfg.id.rpartition(':')[2]}-{foretell}" for cfg, foretell in ALL]


@pytest.mark.thorough
@pytest.mark.parametrize(("cfg", "foretell"), ALL, ids=NAMES)
def test_worker_processes_change_no_bit(workers: Workers, cfg: EnvConfig, foretell: bool) -> None:
    here, there = EnvPool(cfg, 3), EnvPool(cfg, 3, workers=workers)
    assert rolled(here, 9, foretell) == rolled(there, 9, foretell)
    assert there.worker_count == 2
    there.close()
    here.close()


@pytest.mark.parametrize("cfg", [cfg for cfg, _ in ALL], ids=NAMES)
def test_a_pool_is_rebuilt_in_the_middle_of_its_episodes(cfg: EnvConfig) -> None:
    pool, again = EnvPool(cfg, 3), EnvPool(cfg, 3)
    rolled(pool, 7)
    before = shown(pool)
    assert not again.restore(pool.state()).any()
    assert shown(again) == before
    rng = np.random.default_rng(9)
    actions = drawn(pool, rng)
    steps = [each.step(actions) for each in (pool, again)]
    assert [part.tobytes() for part in steps[0].parts] == [part.tobytes() for part in steps[1].parts]


def test_a_pool_that_no_row_of_was_begun_is_rebuilt() -> None:
    pool, again = EnvPool(team("Bees"), 2), EnvPool(team("Bees"), 2)
    pool.reset([1], [3])
    again.restore(pool.state())
    assert shown(again) == shown(pool)


def test_episodes_that_differ_are_found() -> None:
    pool, again = EnvPool(team("Draws"), 1), EnvPool(team("Draws"), 1)
    pool.reset([0], [3])
    assert again.restore(pool.state()).tolist() == [True]


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "found"),
    [
        ("simple_spread_v3", True),
        ("mpe2.simple_spread_v3:parallel_env", True),
        ("mpe2.simple_spread_v3:env", True),
        ("teams_for_tests:Crew", True),
        ("butterfly/cooperative_pong-v6", True),
        ("classic/chess-v6", True),
        ("teams_for_tests:tests/Crew-v0", True),
        ("phys2d/CartPole-v1", False),
        ("classic/cheese-v6", False),
        ("CartPole-v1", False),
        ("envs_for_tests:Chain-v0", False),
        ("envs_for_tests:Chain", False),
        ("simple_spread_v99", False),
    ],
)
def test_an_id_says_whether_it_is_a_team(env_id: str, found: bool) -> None:
    assert is_team(config(env_id)) is found


@pytest.mark.thorough
def test_single_agents_load_nothing_of_pettingzoo() -> None:
    program = (
        "import sys; from evopipe.envs.pool import EnvPool; from evopipe.schema.env import EnvConfig\n"
        "pool = EnvPool(EnvConfig(id='CartPole-v1'), 2); pool.reset([0, 1], [0, 1]); pool.step([0, 1])\n"
        "print([name for name in sys.modules if name.startswith(('pettingzoo', 'mpe2', 'pygame', 'scipy'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        (config("simple_spred_v3"), "env.id: unknown environment 'simple_spred_v3', did you mean 'simple_spread_v3'?"),
        (config("sisl/pursuit-v4"), "env.id: unknown environment 'sisl/pursuit-v4', did you mean 'sisl/pursuit-v5'?"),
        (
            config("mpe2.simple_spread_v3:paralel_env"),
            "env.id: unknown environment 'mpe2.simple_spread_v3:paralel_env', did you mean "
            "'mpe2.simple_spread_v3:parallel_env'?",
        ),
        (
            config("simple_spread_v3", agents=3),
            "env.kwargs: 'simple_spread_v3' does not take {'agents': 3}: raw_env.__init__() got an unexpected keyword "
            "argument 'agents'",
        ),
        (
            team("alone"),
            "env.id: 'teams_for_tests:alone' gave no environment of PettingZoo but TimeLimit; "
            "gymnasium.register it, and use 'module:EnvId'",
        ),
        (
            team("nothing"),
            "env.id: 'teams_for_tests:nothing' gave no environment of PettingZoo but int; 'module:function' must name "
            "what makes one",
        ),
        (team("incomplete"), "env.id: 'teams_for_tests:incomplete' needs the package 'bees'; install it"),
        (team("Nameless"), "env.id: the environment has no possible_agents, which must name all its agents"),
        (team("Twins"), "env.id: two of the environment's possible_agents [1, '1'] have one name"),
        (team("Spaceless"), "env.id: observation_space('ant_0') is no space but None"),
        (
            config("teams_for_tests:Crew", ["FlattenObservation"]),
            "env.wrappers.0: FlattenObservation wraps environments of Gymnasium, and 'teams_for_tests:Crew' is one of "
            "PettingZoo; name a wrapper of such ones as 'module:Wrapper'",
        ),
        (
            config("teams_for_tests:Crew", ["teams_for_tests:Crew"]),
            "env.wrappers.0: teams_for_tests:Crew cannot be put around 'teams_for_tests:Crew': KeyError: ",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else f"{value.id}-{len(value.wrappers)}",
)
def test_what_cannot_be_made_is_said_in_a_sentence(cfg: EnvConfig, sentence: str) -> None:
    with pytest.raises(ParamsError) as raised:
        make_env(cfg)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("cfg", "sentence"),
    [
        (
            team("Mixed"),
            "env.id: the agents' actions are of unlike kinds (discrete of 'ant_0', continuous of 'ant_1'), which is "
            "not served: wrap the environment so that all are of one kind",
        ),
        (
            team("Several"),
            "env.id: the agents' multidiscrete actions are unlike ([2, 3] choices of 'ant_0', [2, 4] of 'ant_1'), "
            "which is not served: only Discrete and Box actions may be unlike",
        ),
        (
            team("Views"),
            "env.id: the agents 'ant_0' and 'ant_1' see images that are unlike, or one sees none, which is not served: "
            "only vectors may be unlike",
        ),
        (
            team("Words"),
            "env.id: agent 'ant_1': observation space Text(1, 4, charset=",
        ),
        (
            EnvConfig.model_validate({"id": "teams_for_tests:Crew", "backend": "envpool"}),
            "env.backend: envpool has no teams, and 'teams_for_tests:Crew' is one; set it to sync",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.id,
)
def test_what_is_not_served_is_said_in_a_sentence(cfg: EnvConfig, sentence: str) -> None:
    with pytest.raises(ParamsError) as raised:
        EnvPool(cfg, 1)
    assert str(raised.value).startswith(sentence)


def test_a_wrapper_goes_around_a_team() -> None:
    wrapper = {"name": "teams_for_tests:Doubled", "kwargs": {"times": 3.0}}
    pool = started(config("teams_for_tests:Crew", [wrapper, "teams_for_tests:Doubled"]))
    assert pool.step(np.zeros((1, 2), np.int64)).reward[0].tolist() == [60.0, 66.0]


# --- What goes wrong while it plays -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "place"), [("NanReward", 1), ("NanObs", 1), ("MaskedOut", 1)])
def test_one_agents_fault_breaks_its_row_and_no_other(name: str, place: int) -> None:
    pool = started(team(name), 2)
    first = pool.step(np.ones((2, 2), np.int64))
    assert not first.broken.any()
    step = pool.step(np.ones((1, 2), np.int64), [1])
    assert (step.broken.tolist(), step.over.tolist()) == ([True], [True])
    assert pool.step(np.ones((1, 2), np.int64), [0]).reward[0, 0] == 21.0
    pool.reset([1], [3])
    assert np.isfinite(pool.obs[1]).all()


FAULTS = [
    (team("Forgets", what=0), "step() returned no observation of agent 'ant_1', which is alive"),
    (team("Forgets", what=1), "step() returned no reward of agent 'ant_1', which is alive"),
    (team("Forgets", what=2), "step() returned no termination of agent 'ant_1', which is alive"),
    (team("Forgets", what=3), "step() returned no truncation of agent 'ant_1', which is alive"),
    (team("ForgetsMask"), "returned no action_mask of agent 'ant_1', earlier it did: give it at every reset and step"),
    (team("LateMask"), "step() returned action_mask of agent 'ant_0', reset() did not: give it in both"),
    (team("LateSet"), "step() returned env_defined_actions of agent 'ant_0', reset() did not: give it in both"),
    (team("Gives", wrong="shape"), "returned of agent 'ant_1' an observation of shape (4,), its space says (3,)"),
    (team("Gives", wrong="reward"), "step() returned reward of agent 'ant_1' = 'much' (str), which is not a number"),
    (team("Gives", wrong="end"), "step() returned terminated of agent 'ant_1' = 1 (int), which is not a bool"),
    (team("Gives", wrong="mask"), "returned an action_mask int8[4] of agent 'ant_1', expected bool[3]"),
    (
        team("Gives", wrong="set"),
        "returned env_defined_actions = 5 (int) of agent 'ant_1', which is none of its actions",
    ),
    (
        team("Gives", wrong="info"),
        "step() returned an info of agent 'ant_1' that is no mapping but 'none' (str)",
    ),
    (team("Lists"), "step() returned observations that are no dictionary by agent but [array("),
    (team("Four"), "step() returned a tuple of 4, expected observations, rewards, terminations, truncations"),
    (team("Stranger"), "step() left agent 'fly_0' in agents, which is none of possible_agents"),
    (team("Raises"), "step() raised RuntimeError: the motor broke"),
]


@pytest.mark.parametrize(("cfg", "sentence"), FAULTS, ids=lambda x: "" if isinstance(x, str) else x.id[16:])
def test_a_wrong_step_is_said_in_one_sentence(cfg: EnvConfig, sentence: str) -> None:
    pool = started(cfg)
    with pytest.raises(EnvironmentFailed) as raised:
        played(pool, 3)
    at = 1 if cfg.id[16:] in ("Lists", "Four") else 2
    before = f"training environment {cfg.id!r} (row 0, episode seed 5, step {at}): "
    assert str(raised.value).startswith(before + sentence)
    assert "\n" not in str(raised.value)


@pytest.mark.thorough
def test_a_team_that_hangs_is_ended() -> None:
    cfg = team("Hangs").model_copy(update={"step_seconds": 1.0})
    with pytest.raises(EnvironmentFailed, match=r"step 1\): step\(\) did not return within 1 seconds"):
        played(started(cfg), 1)


@pytest.mark.parametrize(
    ("cfg", "resets", "sentence"),
    [
        (team("Forgets", when=0), 1, "reset() returned no observation of agent 'ant_1', which is alive"),
        (team("NanObs", when=0), 1, "reset() returned an observation of agent 'ant_1' that is not finite"),
        (
            team("MaskedOut", when=0),
            1,
            "reset() returned an action_mask of agent 'ant_1' in which no action is legal",
        ),
        (team("Empty"), 1, "reset() left no agent alive: its agents are empty"),
        (
            team("Grows"),
            2,
            "reset() changed its possible_agents from ['ant_0', 'ant_1'] to ['ant_0', 'ant_1', 'ant_2']: they must "
            "stay the same; who acts is said by agents",
        ),
    ],
    ids=lambda value: value.id if isinstance(value, EnvConfig) else "",
)
def test_a_wrong_reset_is_said_in_one_sentence(cfg: EnvConfig, resets: int, sentence: str) -> None:
    pool = EnvPool(cfg, 1)
    with pytest.raises(EnvironmentFailed) as raised:
        for _ in range(resets):
            pool.reset([0], [5])
            played(pool, 1)
    assert str(raised.value) == f"training environment {cfg.id!r} (row 0, episode seed 5, step 1): {sentence}"


def test_a_fault_in_a_worker_process_is_the_same_sentence(workers: Workers) -> None:
    pool = started(team("Gives", wrong="shape"), 2, workers)
    with pytest.raises(EnvironmentFailed, match=r"returned of agent 'ant_1' an observation of shape \(4,\)"):
        for _ in range(2):
            pool.step(np.ones((2, 2), np.int64))


# --- Spaces as data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Crew", "Bees", "Sees", "Pixels", "Numbers"])
def test_a_teams_spaces_go_to_json_and_back(name: str) -> None:
    env = make_env(team(name))
    assert isinstance(env, TeamEnv)
    space = TeamSpace.of(env)
    again = TeamSpace.from_json(json.loads(json.dumps(space.to_json())))
    assert again.spaces == space.spaces
    assert (again.ids, again.observations, again.masks) == (space.ids, space.observations, space.masks)
    observed, _ = env.reset(seed=5)
    assert again.obs(observed, [True, True]).tobytes() == space.obs(observed, [True, True]).tobytes()
    assert again.own(np.array([1, 2])) == space.own(np.array([1, 2]))


def test_a_teams_row_needs_every_living_agent() -> None:
    space = TeamSpace.of(make_env(team("Bees")))  # type: ignore[arg-type]
    row = space.obs({"bee_0": np.array([1.0, 2.0], np.float32)}, [False, True])
    assert row.tolist() == [[0.0, 0.0, 0.0], [1.0, 2.0, 0.0]]
    with pytest.raises(ValueError, match=r"^no observation of agent 'ant_0', which is alive$"):
        space.obs({}, [True, True])
    with pytest.raises(ValueError, match=r"^of agent 'ant_0' an observation of shape \(2,\), its space says \(3,\)$"):
        space.obs({"ant_0": np.zeros(2)}, [True, False])


@pytest.mark.parametrize("wrong", [{}, {"team": []}, {"team": [{"id": "a"}]}])
def test_spaces_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        TeamSpace.from_json(wrong)


def test_the_fixture_pays_what_it_says() -> None:
    crew = teams_for_tests.Crew()
    crew.reset(seed=5)
    assert crew.step({"ant_0": 1, "ant_1": 2})[1] == {"ant_0": 11.0, "ant_1": 13.0}


# --- `evopipe env check` ----------------------------------------------------------------------------------------------


def checked(name: str, **kwargs: Any) -> list[str]:
    return check(f"teams_for_tests:{name}", kwargs)


@pytest.mark.parametrize("env_id", ["simple_speaker_listener_v4", "tictactoe_v3"])
@pytest.mark.thorough
def test_pettingzoos_teams_have_no_findings(env_id: str) -> None:
    assert check(env_id, {}) == []


@pytest.mark.parametrize("name", ["Dies", "Late", "Numbers", "Bees", "Masks", "MasksDies", "Sees", "Sets", "Pixels"])
def test_good_teams_have_no_findings(name: str) -> None:
    assert checked(name) == []


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        (
            "Mixed",
            [
                "error: the agents' actions are of unlike kinds (discrete of 'ant_0', continuous of 'ant_1'), which is "
                "not served: wrap the environment so that all are of one kind"
            ],
        ),
        ("NanReward", ["error: step 2 gave agent 'ant_1' the reward nan"]),
        ("NanObs", ["error: step 2 gave agent 'ant_1' an observation that is not finite"]),
        ("MaskedOut", ["error: action_mask left agent 'ant_1' no legal action in a running episode"]),
        (
            "Forgets",
            [
                "warning: PettingZoo's test says: Live agent was not given observation",
                "warning: PettingZoo's test stopped: 'ant_1'",
                "error: checked environment 'teams_for_tests:Forgets' (row 0, episode seed 20011, step 2): step() "
                "returned no observation of agent 'ant_1', which is alive",
            ],
        ),
        (
            "Absent",
            [
                "warning: PettingZoo's test says: No agents present but not all possible_agents are terminated or "
                "truncated",
                "warning: agent 'ant_0' never acted within 16 random steps",
            ],
        ),
        ("Leaves", ["warning: PettingZoo's test stopped: ['ant_1'] != {"]),
        (
            "Draws",
            [
                "warning: two environments with one seed and the same actions differ at step 1: a killed run will not "
                "continue bit for bit"
            ],
        ),
        (
            "OwnLimit",
            [
                "warning: each of 4 random episodes was terminated at step 4; if this is a time limit, return "
                "truncations instead of terminations"
            ],
        ),
        (
            "Endless",
            [
                *(
                    f"warning: element 1 of an observation of agent 'ant_{i}' was 101, outside its declared bounds "
                    "[-100, 100]"
                    for i in (0, 1)
                ),
                "warning: no episode ended within 500 random steps; let the environment truncate all agents after some "
                "number of steps, which PettingZoo's call max_cycles",
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_team_is_found(name: str, sentences: list[str]) -> None:
    found = checked(name)
    assert len(found) == len(sentences)
    assert all(each.startswith(sentence) for each, sentence in zip(found, sentences, strict=True))


# --- Where a team cannot stand ----------------------------------------------------------------------------------------


def test_no_dataset_is_made_of_a_team(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"^env\.id: simple_spread_v3 is a team, whose steps no dataset holds; train"):
        fetch.run(Params.model_validate(params({"env.id": "simple_spread_v3"})), quiet=True, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_team_learns_from_a_dataset() -> None:
    env = {"id": "simple_spread_v3"}
    with pytest.raises(
        ParamsError, match=r"train\.mode: maddpg is for teams, and datasets are of one agent: set it to online"
    ):
        parse_params({"env": env, "train": {"algo": "maddpg", "mode": "offline"}})
    with pytest.raises(ParamsError, match=r"^train\.warm_start: datasets are of one agent, .*; set it to 0$"):
        checked_params(parse_params({"env": env, "train": {"algo": "maddpg", "warm_start": 5}}))
    default = parse_params({"env": env, "train": {"algo": "maddpg"}})
    assert default.train.warm_start == 0
    checked_params(default)


def test_a_new_project_begins_with_one_agent() -> None:
    with pytest.raises(ParamsError, match=r"^new: simple_spread_v3 is a team of agents, and a new project begins with"):
        project._check_env("simple_spread_v3")


def test_who_acts_first_after_a_broken_step_joins_as_in_any_episode() -> None:
    """The episode before ended in the middle, with all of them alive."""
    pool = EnvPool(team("NanReward"), 2)
    pool.reset([0, 1], [0, 1])
    assert pool.begins.all()
    steps = [pool.step(np.zeros((2, 2), np.int64)) for _ in range(2)]
    assert steps[-1].broken.all()
    assert not pool.begins.any()
    pool.reset([0], [2])
    assert pool.begins.tolist() == [[True, True], [False, False]]


def test_a_reset_that_leaves_nothing_to_do_names_the_environment_that_was_reset() -> None:
    """By its own seed, though it is the first of those that are reset."""
    pool = EnvPool(team("MaskedOut", when=0), 3)
    with pytest.raises(EnvironmentFailed, match=r"row 2, episode seed 77\b.*in which no action is legal"):
        pool.reset(np.array([2]), np.array([77]))
