"""What one part of a loop hands another, by hand: whose episode is played, what is stored of a step, which draws
decide, who is judged by what, and what a saved run still knows."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from envs_for_tests import Diary, Lottery, Seeds
from evopipe import rng
from evopipe.core.cohort import dissolve
from evopipe.core.structure import acting_networks
from evopipe.data.transitions import Transitions
from evopipe.envs.pool import EnvPool
from evopipe.envs.rows import RowStep
from evopipe.errors import DivergedError, EnvironmentFailed
from evopipe.mutations import NONE
from evopipe.problems.env import begin
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.rng import Purpose, Stream
from evopipe.run.drive import Saver, _Stopwatch, drive
from evopipe.run.run import Champion
from evopipe.run.spec import EnvSpec, first_members, go_on
from evopipe.run.world import TensorWorld, World
from evopipe.searchers.history import Best
from evopipe.signals import StopSignal
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.events import Generation, Message, Progress, Start, Tracker
from populations import LONG, advance, close_generation, equal_states, finish, plant_weight, same


def stored(loop: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A run's state as a file would hold it."""
    tensors, meta = loop.state()
    return {n: t.clone() for n, t in tensors.items()}, json.loads(json.dumps(meta))


def seed_of(key: int, env: int, number: int) -> int:
    """The seed of one episode of one environment of one member."""
    return int(rng.seeds(np.array([key]), Purpose.EPISODE, np.array([env]), np.array([number]))[0])


# ------------------------------------------------------------------------------------------------- what is stored


def pages(key: int, env: int, ticks: int) -> list[dict[str, Any]]:
    """What must be known of every step of one of a member's diaries, but for the actions."""
    found: list[dict[str, Any]] = []
    number = 0
    while len(found) < ticks:
        begun = float(Diary().reset(seed=seed_of(key, env, number))[0][0])
        end, number = Diary.ENDS[Diary.end_of(begun)], number + 1
        length = Diary.LENGTHS[Diary.end_of(begun)]
        for step in range(1, length + 1):
            last = step == length
            found.append({
                "before": [begun, step - 1], "after": [begun, step], "first": step == 1, "reward": 10 * step,
                "terminated": last and end == "terminates", "truncated": last and end == "is cut",
                "broken": last and end in ("loses its reward", "allows nothing"),
                "legal": [1, (step - 1) % 2], "next_legal": [0, 0] if last and end == "terminates" else [1, step % 2],
            })  # fmt: skip
    return found[:ticks]


TICKS = 30


@pytest.mark.parametrize("sharing", ["own", "shared"])
@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_the_memory_holds_each_usable_step_of_each_member_s_own_episodes(
    algo: str, sharing: str, run: Callable[..., Any]
) -> None:
    """Seeds, true last observations, ends, masks; nothing of a step after which nothing was legal."""
    train = {**LONG, "replay": {"capacity": 1000, "sharing": sharing}}
    loop = run(populations.problem("envs_for_tests:Diary-v0", algo, train=train, num_envs=3), 2)
    advance(loop, TICKS)
    books = [[pages(int(key), env, TICKS) for env in range(3)] for key in loop.regime.keys]
    ended = {name for member in books for env in member for name in ("terminated", "truncated") for x in env if x[name]}
    assert ended == {"terminated", "truncated"}
    broken = sum(x["broken"] for member in books for env in member for x in env)
    assert loop.clock.broken == loop.clock.broken_here == broken
    assert loop.clock.broken > 10
    groups = [[0], [1]] if sharing == "own" else [[0, 1]]
    for memory, slots in enumerate(groups):
        rows = iter(loop.regime.replay.rows[memory, : loop.regime.replay.size[memory]].tolist())
        last = dict.fromkeys(((slot, env) for slot in slots for env in range(3)), 0.0)
        for tick in range(TICKS):
            for slot, env in last:
                page = books[slot][env][tick]
                if page["first"]:
                    last[slot, env] = 0.0
                if page["broken"]:
                    continue
                row = next(rows)
                action = row[6]
                legal = page["legal"] if algo == "sac" else []  # its loss reads them
                expected = [
                    *page["before"], last[slot, env], *page["after"], action, action, page["reward"] + action,
                    page["terminated"], *page["next_legal"], *legal,
                ]  # fmt: skip
                assert row == expected, (slot, env, tick)
                assert page["legal"][int(action)]
                last[slot, env] = action
        assert next(rows, None) is None


def test_a_transition_over_several_steps_ends_where_its_episode_does(run: Callable[..., Any]) -> None:
    """After three steps, or with the end; before a broken step, after which nothing is known, it bootstraps."""
    replay = {"capacity": 1000, "sharing": "own", "n_step": 3}
    loop = run(populations.problem("envs_for_tests:Diary-v0", train={**LONG, "replay": replay}, num_envs=3), 2)
    advance(loop, TICKS)
    for slot, key in enumerate(loop.regime.keys):
        last = {}  # step at which each episode that is over was last usable, and whether it terminated there
        for env in range(3):
            book = pages(int(key), env, TICKS)
            for page, then in itertools.pairwise([*book, {"broken": False}]):
                if page["terminated"] or page["truncated"] or (then["broken"] and not page["broken"]):
                    last[page["after"][0]] = page["after"][1], page["terminated"]
        rows = loop.regime.replay.rows[slot, : loop.regime.replay.size[slot]].tolist()
        chosen = {(row[0], row[1]): row[6] for row in rows}
        assert len(chosen) == len(rows) > 20
        assert {*chosen} >= {(begun, step) for begun, (end, _) in last.items() for step in range(end)}
        for row in rows:
            begun, step = row[0], int(row[1])
            end, terminated = last.get(begun, (9, False))
            steps = min(3, end - step)
            actions = [chosen.get((begun, step + k)) for k in range(steps)]
            known = [10 * (step + 1 + k) + action for k, action in enumerate(actions) if action is not None]
            over = terminated and step + steps == end
            assert row[3:5] == [begun, step + steps]
            assert row[7 : 7 + len(known)] == known
            assert row[7 + steps : 10] == [0.0] * (3 - steps)
            assert row[10:] == [over, steps, *([0, 0] if over else [1, (step + steps) % 2])]


def test_a_rollout_holds_each_step_of_each_member_s_own_episodes(run: Callable[..., Any]) -> None:
    p = populations.problem(
        "envs_for_tests:Diary-v0", "ppo", train=LONG, num_envs=3, config={"learn_step": 300},
        mutation=populations.UNLIKE,
    )  # fmt: skip
    loop = run(p, 4)
    assert len(loop.cohorts) > 1
    advance(loop, TICKS)
    broken = 0
    for cohort, rollout in zip(loop.cohorts, populations.rollouts(loop), strict=True):
        at = rollout.layout.log_prob
        for i, slot in enumerate(cohort.slots):
            for env in range(3):
                last = 0.0
                for tick, page in enumerate(pages(int(loop.regime.keys[slot]), env, TICKS)):
                    row, after = rollout.rows[i, tick, env].tolist(), rollout.after[i, tick, env].tolist()
                    last = 0.0 if page["first"] else last
                    assert row[:3] == [*page["before"], last]
                    action = last = row[3]
                    assert [row[at + 2], *row[at + 6 :]] == [page["first"], *page["legal"]]
                    assert page["legal"][int(action)]
                    ends = page["terminated"], page["terminated"] or page["truncated"]
                    if page["broken"]:
                        assert after == [0.0] * 3 + [row[at + 1], 1.0, 1.0, 0.0]
                        broken += 1
                    else:
                        assert after == [*page["after"], action, page["reward"] + action, *map(float, ends), 1.0]
    assert loop.clock.broken == loop.clock.broken_here == broken > 10


@pytest.mark.parametrize("resumed", [False, True])
def test_tensors_begin_each_episode_from_its_own_seed(resumed: bool, run: Callable[..., Any]) -> None:
    """Of the member, the environment and the number, as any other backend; also after a restart."""
    p = populations.problem("CartPole-v1", "ppo", train=LONG, seed=5, num_envs=3, kwargs={"max_episode_steps": 12},
                            config={"learn_step": 300}, mutation=populations.UNLIKE)  # fmt: skip
    p = replace(p, env=p.env.model_copy(update={"backend": "torch"}))
    loop = run(p, 4)
    assert [slot for cohort in loop.cohorts for slot in cohort.slots] == [0, 3, 1, 2]
    advance(loop, 30)
    if resumed:
        other = run(p, 4)
        assert other.restore(*stored(loop)) == 0
        loop = other
    advance(loop, 30)
    pool = EnvPool(p.env, 1)
    for cohort, rollout in zip(loop.cohorts, populations.rollouts(loop), strict=True):
        begins = rollout.rows[..., rollout.layout.log_prob + 2] > 0
        for i, slot in enumerate(cohort.slots):
            for env in range(3):
                starts = rollout.rows[i, :60, env][begins[i, :60, env]][:, :4]
                assert len(starts) >= 5
                for number, start in enumerate(starts):
                    pool.reset([0], [seed_of(int(loop.regime.keys[slot]), env, number)])
                    assert start.tolist() == pool.obs[0].tolist(), (slot, env, number)
                # In between each step follows from the one before, under the action that was chosen for this row.
                after, row = rollout.after[i, :60, env], rollout.rows[i, :60, env]
                going_on = ~begins[i, 1:60, env]
                assert torch.equal(row[1:, :4][going_on], after[:-1, :4][going_on])
                pushed = after[:, 1] - row[:, 1]  # the cart's speed follows the push
                assert ((pushed > 0) == (row[:, 4] > 0)).all()
                ended = torch.zeros(60, dtype=torch.bool)
                ended[:-1] = ~going_on
                assert torch.equal(after[:-1, 6] > 0, ended[:-1]), "cut where it ended"
                assert torch.equal(after[:, 5] > 0, (after[:, 2].abs() > 0.20944) | (after[:, 0].abs() > 2.4))


@pytest.mark.thorough
def test_a_run_on_tensors_is_the_same_through_a_pool(run: Callable[..., Any]) -> None:
    """Into the second generation: what the device does by itself, and what the host does row by row."""
    p = populations.problem(
        "CartPole-v1", "ppo", seed=5, mutation=populations.UNLIKE, kwargs={"max_episode_steps": 12},
        config={"learn_step": 24}, train={"evo_steps": 64, "normalise": {"observations": True, "rewards": True}},
    )  # fmt: skip
    p = replace(p, env=p.env.model_copy(update={"backend": "torch"}))
    device, pooled = run(p, 4), run(p, 4)
    assert isinstance(device.regime.world, TensorWorld)
    pooled.regime.world = World(p, pooled.regime.keys, pooled.clock, EnvPool(p.env, 16))
    pooled.regime.world.adopt(pooled.cohorts)
    for loop in (device, pooled):
        advance(loop, 24)
    assert device.clock.generation == 1
    assert all(same(a, b) for a, b in zip(device.members, pooled.members, strict=True))
    assert device.curve == pooled.curve


# ------------------------------------------------------------------------------------------------- which draws decide


EPSILON = {"dqn": [1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], "td3:continuous": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]}
DUE = [(0, 0), (0, 0), (2, 0), (1, 0), (1, 1), (1, 0), (1, 1)]
"""Updates of a tick, and the turn of the first of them: one every three steps of a generation that is 20 long, four
steps a tick, none before step 8 is past."""


@pytest.mark.parametrize("algo", EPSILON)
def test_each_tick_acts_and_learns_by_draws_of_its_own(algo: str, run: Callable[..., Any]) -> None:
    """Exploration goes by a member's steps, draws by the run's ticks, updates by the generation's; a batch lies among
    the rows that were there before the tick."""
    name = algo.partition(":")[0]
    config = {"learn_step": 3, "batch_size": 8, "evolve": {}}
    config |= {"random_steps": 8} if name == "td3" else {"eps_start": 1.0, "eps_end": 0.0, "eps_steps": 8}
    p = populations.problem(
        "envs_for_tests:Endless-v0", algo, config=config,
        train={"max_steps": 10**4, "evo_steps": 20, "learning_delay": 8, "normalise": {"observations": True}},
        mutation={"probabilities": {"none": 1.0, "architecture": 0.0, "parameters": 0.0, "activation": 0.0,
                                    "rl_hp": 0.0}},
    )  # fmt: skip
    loop = run(p, 3)
    loop._form([replace(m, hyper={**m.hyper, "gamma": 0.9 + 0.03 * m.slot}) for m in loop.members])
    layout = loop.regime.replay.layout
    for tick, (epsilon, (due, turn)) in enumerate(zip(EPSILON[algo], DUE, strict=True)):
        if loop.clock.generation_over:
            assert tick == 5
            close_generation(loop)
        (cohort,) = p.form(loop.members)
        obs = torch.from_numpy(loop.regime.world.pool.obs.copy()).view(3, 4, 4)
        legal = torch.ones(3, 4, p.actions, dtype=torch.bool)
        cohort.normaliser.update(obs, cohort.healthy)
        rate, draws = torch.full((3,), epsilon), Stream(cohort.keys, Purpose.ACT, torch.tensor([tick]))
        actions = p.algo.act(p.algo_config, cohort.state, cohort.normalised(obs), legal, rate, draws)
        healthy = cohort.healthy
        for i in range(due):
            when = torch.tensor([tick * 8192 + i])
            index = (rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch)[:, 0] * 4 * tick).long()
            rows = torch.stack([loop.regime.replay.rows[slot, index[slot]] for slot in range(3)])
            batch = layout.unpack(rows, cohort.weight, cohort.hyper["gamma"])
            batch = replace(batch, obs=cohort.normalised(batch.obs), next_obs=cohort.normalised(batch.next_obs))
            draw = Stream(cohort.keys, Purpose.UPDATE, when)
            turned = (turn + i) % p.period
            _, healthy, _ = p.algo.update(p.algo_config, cohort.state, cohort.hyper, batch, healthy, draw, turned)
        before = [member.tensors["updates"].item() for member in loop.members]
        loop.advance()
        taken = loop.regime.replay.rows[:, 4 * tick : 4 * tick + 4, 8 : 8 + (p.actions if p.spaces.continuous else 1)]
        assert torch.equal(taken, actions.view(3, 4, -1).float()), tick
        assert [member.tensors["updates"].item() - n for member, n in zip(loop.members, before, strict=True)] == [
            due
        ] * 3
        for member, expected in zip(loop.members, dissolve([cohort]), strict=True):
            assert same(member, expected), tick


def test_each_tick_of_members_that_remember(run: Callable[..., Any]) -> None:
    """They act on what they remember of this episode alone, and learn from a rollout at its end."""
    p = populations.problem(
        "envs_for_tests:Diary-v0", "ppo", num_envs=3, mutation=populations.UNLIKE,
        config={"network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}, "learn_step": 6, "batch_size": 6,
                "max_seq_len": 3},
        train={"max_steps": 99, "evo_steps": 15, "eval_episodes": 20},
    )  # fmt: skip
    loop = run(p, 3)
    assert len(loop.cohorts) > 1
    memories = [each.memory.clone() for each in loop.regime.playing]
    # A generation of 5 ticks is two rollouts of 2, and one of what is left.
    for tick, (place, length) in enumerate([(0, 0), (1, 2), (0, 0), (1, 2), (0, 1), (0, 0), (1, 2)]):
        if tick == 5:
            close_generation(loop)
            memories = [each.memory.clone() for each in loop.regime.playing]
        obs, legal, begins = (torch.from_numpy(x.copy()) for x in populations.shown(loop.regime.world.pool))
        before = loop.members
        loop.regime.choose()
        fresh = [p.form([member])[0] for member in before]
        for i, cohort in enumerate(loop.cohorts):
            for row, slot in enumerate(cohort.slots):
                mine = slice(3 * slot, 3 * slot + 3)
                memory = memories[i][row].masked_fill(begins[mine, None], 0.0)
                draws = Stream(torch.from_numpy(loop.regime.keys[slot : slot + 1]), Purpose.ACT, torch.tensor([tick]))
                width = fresh[slot].memory
                took = p.algo.step(
                    p.algo_config, fresh[slot].state, obs[mine][None], legal[mine][None], memory[None, :, :width], draws
                )
                assert loop.regime.world.pending[mine].tolist() == took.action[0].tolist(), (tick, slot)
                torch.testing.assert_close(
                    loop.regime.playing[i].memory[row, :, :width], took.memory[0], rtol=1e-4, atol=1e-5
                )
        held, memories = memories, [each.memory.clone() for each in loop.regime.playing]
        rollouts = copy.deepcopy(populations.rollouts(loop))
        for rollout, old, new in zip(rollouts, held, memories, strict=True):
            assert torch.equal(rollout.memory[:, place], old)
            assert torch.equal(rollout.memory[:, place + 1], new)
        cohorts = [p.form([m for m in before if m.slot in c.slots])[0] for c in loop.cohorts]
        loop.advance()
        for cohort, rollout, now in zip(cohorts, rollouts, populations.rollouts(loop), strict=True):
            if length:
                rollout.after.copy_(now.after)
                learn_from_rollout(p, cohort, rollout, length, tick + 1)
            for member in dissolve([cohort]):
                assert same(member, loop.members[member.slot]), (tick, member.slot)


# ------------------------------------------------------------------------------------------------- who is judged


def tickets(p: EnvSpec, purpose: Purpose, n: int) -> np.ndarray:
    """What episodes on the run's seeds for a purpose pay without the bonus."""
    drawn = [Lottery().reset(seed=int(seed))[0][0] for seed in p.seeds(purpose, n)]
    return np.array(drawn, np.float32).astype(np.float64)


def lottery(seed: int = 3, kwargs: Mapping[str, Any] | None = None, mutation: Any = None, **train: Any) -> EnvSpec:
    """Generations of two ticks; 6 episodes select, 8 confirm."""
    short = {"evo_steps": 8, "max_steps": 80, "eval_episodes": 6, "confirm_episodes": 8, "learning_delay": 10**6}
    return populations.problem(
        "envs_for_tests:Lottery-v0", seed=seed, train={**short, **train}, kwargs=kwargs, mutation=mutation
    )


def ready(loop: Any) -> Any:
    """A run at the end of its generation."""
    while not loop.clock.generation_over:
        loop.advance()
    return loop


def lucky_seed() -> int:
    """A seed whose tickets of selection pay more than those of confirmation, by more than two standard errors."""
    for seed in range(1000):
        p = lottery(seed)
        chosen, again = tickets(p, Purpose.EVALUATE, 6), tickets(p, Purpose.CONFIRM, 8)
        if chosen.mean() > again.mean() + 2.5 * again.std(ddof=1) / math.sqrt(8):
            return seed
    raise AssertionError("none")


LUCKY = lucky_seed()


def test_a_generation_by_hand(run: Callable[..., Any]) -> None:
    """Members that act unlike: everybody's score, the best one's second score, the books, and what is told of it."""
    p = lottery(4, kwargs={"bonus": 1.0}, mutation=populations.UNLIKE)
    loop = run(p, 5)
    chosen, again = tickets(p, Purpose.EVALUATE, 6), tickets(p, Purpose.CONFIRM, 8)
    assert len(set(chosen) | set(again)) == 14
    counted, best_so_far = 0, None
    for generation in (1, 2, 3):
        ready(loop)
        members, births = loop.members, loop.births
        paid, confirmed = np.zeros((5, 6)), np.zeros((5, 8))
        for cohort in p.form(members):
            for found, drawn in ((paid, chosen), (confirmed, again)):
                obs = np.stack([drawn, 1 - drawn, drawn**2, np.ones_like(drawn)], axis=1).astype(np.float32)
                seen = torch.from_numpy(obs).expand(len(cohort.slots), -1, -1)
                legal = torch.ones(len(cohort.slots), len(drawn), 2, dtype=torch.bool)
                acted = p.algo.greedy(p.algo_config, cohort.state, seen, legal).numpy()
                found[cohort.slots] = (drawn + acted).astype(np.float32)
        means = paid.mean(axis=1)
        best = int(means.argmax())
        counted += 5 * 6
        if best_so_far is None or means[best] > best_so_far[1]:
            counted += 8
            if best_so_far is None or confirmed[best].mean() > best_so_far[1]:
                error = confirmed[best].std(ddof=1) / math.sqrt(8)
                best_so_far = (members[best].id, confirmed[best].mean(), error, generation)
        close_generation(loop)
        record = loop.lineage[-1]
        assert [m.fitness for m in record.members] == pytest.approx(means.tolist())
        assert [m.id for m in record.members] == [m.id for m in members]
        assert best != 4 != int(means.argmin()) or generation > 1
        crowned = loop.champion
        assert (crowned.member.id, crowned.generation) == (best_so_far[0], best_so_far[3])
        assert (crowned.score, crowned.error) == pytest.approx(best_so_far[1:3])
        assert crowned.confirmed
        assert (loop.clock.eval_steps, loop.clock.env_steps) == (counted, generation * 2 * 20)
        row = [generation, generation * 8, generation * 40, counted, means.max(), means.mean(), best_so_far[1]]
        assert loop.curve[-1] == pytest.approx(row)
        told = Generation.of(loop.lineage[-1], dict(enumerate(births)), ["lr"], 1.0, (0, 0), loop.losses)
        assert [m.mutation for m in told.members] == [birth.kind for birth in births]
        assert [told.best, told.mean, told.elite, told.elite_id] == pytest.approx([*row[4:], best_so_far[0]])
        assert [m.id for m in loop.members] == [members[best].id, *(5 * generation + slot for slot in range(1, 5))]


@pytest.mark.parametrize(
    ("held", "confirmed", "hopeless", "kept", "again"),
    [
        (None, False, False, False, True),
        ("better", True, False, True, False),
        ("between", True, False, True, True),
        ("worse", True, False, False, True),
        ("better", False, False, False, True),
        ("worse", True, True, True, False),
        ("worse", False, True, False, False),
        ("better", False, True, True, False),
        (None, False, True, False, False),
    ],
)
def test_who_is_the_champion_after_a_generation(
    held: str | None, confirmed: bool, hopeless: bool, kept: bool, again: bool, run: Callable[..., Any]
) -> None:
    """All members score alike, more in the selection than in the confirmation: better than both, between them, or worse
    than both is who was the champion so far. Only who clears the target is confirmed, and only that beats the like."""
    p = lottery(LUCKY, target=2.0 if hopeless else None)
    drawn = tickets(p, Purpose.EVALUATE, 6)
    first, second = drawn.mean(), tickets(p, Purpose.CONFIRM, 8).mean()
    loop = run(p, 3)
    if held is not None:
        score = {"better": first + 0.1, "between": (first + second) / 2, "worse": second - 0.1}[held]
        loop.champion = Champion(replace(loop.members[2], id=77), score, 0.0, confirmed, 0, np.full(2, score))
    before = loop.champion
    # In generations before, the last was best. They are not the first in their slots.
    loop._form([replace(m, id=m.id + 40, fitness=(float(m.slot),)) for m in loop.members])
    close_generation(ready(loop))
    assert loop.clock.eval_steps == 3 * 6 + 8 * again
    assert [m.fitness for m in loop.lineage[-1].members] == pytest.approx([first] * 3), "of this generation"
    if kept:
        assert loop.champion is before
        return
    assert (loop.champion.member.id, loop.champion.member.slot, loop.champion.confirmed) == (40, 0, again)
    assert loop.lineage[-1].champion == Best(40, loop.champion.score)
    assert loop.champion.score == pytest.approx(second if again else first)
    if not again:
        assert loop.champion.error == pytest.approx(drawn.std(ddof=1) / math.sqrt(6))
    assert loop.reason == ""


def test_the_target_is_cleared_by_so_many_standard_errors(run: Callable[..., Any]) -> None:
    """Exactly so many suffice, a hair less does not; what was not confirmed clears nothing."""
    p = lottery(LUCKY)
    drawn = tickets(p, Purpose.CONFIRM, 8)
    score, error = float(drawn.mean()), float(drawn.std(ddof=1) / np.sqrt(8))
    assert tickets(p, Purpose.EVALUATE, 6).mean() > score + 2 * error
    least = score - 2.0 * error
    reasons = []
    for target in (least, math.nextafter(least, 1), score, score + 1.5 * error):
        loop = run(lottery(LUCKY, target=target, target_sigmas=2.0), 2)
        close_generation(ready(loop))
        assert (loop.champion.score, loop.champion.error, loop.champion.confirmed) == (score, error, True)
        reasons.append(loop.reason)
    assert reasons == ["target", "", "", ""]
    loop = run(lottery(LUCKY, target=float(tickets(p, Purpose.EVALUATE, 6).mean()), target_sigmas=0.0), 2)
    close_generation(ready(loop))
    assert loop.champion.confirmed, "who just reaches it is asked again"
    loop.champion = replace(loop.champion, score=9.0, confirmed=False)
    assert not loop._reached()


def test_the_cap_of_evaluation_holds_for_the_confirmation_too(run: Callable[..., Any]) -> None:
    loop = run(lottery(kwargs={"steps": 9}, eval_steps=4), 2)
    close_generation(ready(loop))
    assert loop.clock.eval_steps == 4 * (2 * 6 + 8)
    assert loop.champion.score > 4 * tickets(loop.spec, Purpose.CONFIRM, 8).mean() - 1e-6


@pytest.mark.parametrize("many", [False, True])
def test_few_broken_episodes_are_left_out_and_many_condemn(many: bool, run: Callable[..., Any]) -> None:
    """Of 20, 2 or 3: a tenth, or more. Three such generations end the run, also where it was resumed in between."""
    drawn = np.sort(tickets(lottery(), Purpose.EVALUATE, 20))
    least = float(drawn[2 + many])
    p = lottery(kwargs={"least": least}, eval_episodes=20, target=2.0, max_steps=10**4)
    loop = run(p, 3)
    first = loop.members
    close_generation(ready(loop))
    record = loop.lineage[-1]
    if not many:
        assert [m.fitness for m in record.members] == pytest.approx([drawn[2:].mean()] * 3)
        assert loop.champion.score == pytest.approx(drawn[2:].mean())
        assert loop.champion.error == pytest.approx(drawn[2:].std(ddof=1) / math.sqrt(18))
        assert loop.diverged == 0
        return
    assert [(m["fitness"], m["healthy"]) for m in record.to_json()["members"]] == [(None, False)] * 3
    assert loop.champion is None
    assert record.restored
    assert [m.id for m in loop.members] == [m.id for m in first]
    assert all(same(a, b) and a.healthy for a, b in zip(loop.members, first, strict=True))
    assert loop.ages == [2, 2, 2], "they are as old as they have lived: their next draws are others"
    close_generation(ready(loop))
    assert (loop.diverged, loop.ages, loop.clock.env_steps) == (2, [4, 4, 4], 3 * 4 * 4)
    resumed = run(p, 3)
    resumed.restore(*stored(loop))
    for each in (loop, resumed):
        with pytest.raises(DivergedError, match="3 generations in a row"):
            close_generation(ready(each))


def test_a_healthy_generation_forgives_those_that_diverged_before(run: Callable[..., Any]) -> None:
    loop = run(lottery(), 2)
    loop.diverged = 2
    close_generation(ready(loop))
    assert loop.diverged == 0


COUNTED = ("clock", "diverged", "next_id", "reason", "births", "losses", "curve", "lineage")


def test_the_last_good_generation_is_the_last(run: Callable[..., Any]) -> None:
    """Also of a run that was resumed, where members have changed since."""
    p = populations.problem(seed=12, mutation=populations.UNLIKE, train={"learning_delay": 0, "evo_steps": 40})
    loop = run(p, 4)
    ready(loop)
    losses = {slot: float(x) for c in loop.cohorts for slot, x in zip(c.slots, c.losses, strict=True)}
    assert len(set(losses.values())) == 4
    assert [slot for c in loop.cohorts for slot in c.slots] == [0, 2, 3, 1], "in order by their places, not by slots"
    close_generation(loop)
    assert loop.losses == [losses[slot] for slot in range(4)]
    good, crowned = loop.members, loop.champion
    assert not same(crowned.member, good[crowned.member.slot]) or crowned.member.slot == 0
    advance(loop, 6)
    other = run(p, 4)
    other.restore(*stored(loop))
    assert equal_states(loop.state(), other.state()) == []
    for name in COUNTED:
        assert getattr(other, name) == getattr(loop, name)
    assert same(other.champion.member, crowned.member)
    assert replace(other.champion, member=crowned.member) == crowned
    for each in (loop, other):
        ready(each)
        assert not any(same(a, b) for a, b in zip(each.members, good, strict=True))
        for slot in range(4):
            plant_weight(each, slot)
        close_generation(each)
        assert all(same(a, b) for a, b in zip(each.members, good, strict=True))
        assert [m.id for m in each.members] == [m.id for m in good]


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
@pytest.mark.thorough
def test_a_saved_run_knows_who_is_frozen_and_who_failed(algo: str, run: Callable[..., Any]) -> None:
    """In the middle of a generation."""
    p = populations.problem(
        "envs_for_tests:Diary-v0", algo, mutation=populations.UNLIKE,
        train={"learning_delay": 0, "evo_steps": 96, "eval_episodes": 20}, config={"batch_size": 8, "learn_step": 32},
    )  # fmt: skip
    loop, other = run(p, 4), run(p, 4)
    advance(loop, 7)
    plant_weight(loop, 2)
    advance(loop, 10)
    assert [m.healthy for m in loop.members] == [True, True, False, True]
    assert 0 < loop.clock.broken_here == loop.clock.broken
    other.restore(*stored(loop))
    for name in COUNTED:
        assert repr(getattr(other, name)) == repr(getattr(loop, name))
    for cohort, again in zip(loop.cohorts, other.cohorts, strict=True):
        assert torch.equal(cohort.healthy, again.healthy)
    assert equal_states(loop.state(), other.state()) == []
    for each in (loop, other):
        ready(each)
    assert equal_states(loop.state(), other.state()) == []


def test_a_finished_run_knows_who_failed(run: Callable[..., Any]) -> None:
    p = lottery(max_steps=16)
    loop = run(p, 3)
    advance(loop, 3)
    plant_weight(ready(loop), 1)
    close_generation(loop)
    assert loop.reason == "max_steps"
    assert [m.healthy for m in loop.members] == [True, False, True]
    other = run(p, 3)
    other.restore(*stored(loop))
    good = tickets(p, Purpose.EVALUATE, 6).mean()
    assert loop.curve[-1][4:6] == pytest.approx([good, good])
    for each in (loop, other):
        assert each.reason == "max_steps"
        assert [m.healthy for m in each.members] == [True, False, True]
        assert [m.fitness[-1] for m in each.members] == pytest.approx([good, -math.inf, good])
        assert [m.fitness[0] for m in each.members] == pytest.approx([good] * 3)
        assert len(each.members[0].fitness) == 2


def test_steps_are_rounded_up_to_whole_ticks(run: Callable[..., Any]) -> None:
    """Of four environments: ten steps are three ticks, and 22 are six."""
    loop = run(lottery(evo_steps=10, max_steps=22), 2)
    finish(loop)
    assert [record.step for record in loop.lineage] == [0, 12, 24]
    assert (loop.reason, loop.clock.tick, loop.clock.env_steps) == ("max_steps", 6, 2 * 24)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_an_environment_that_hardly_ever_works_is_refused(algo: str, run: Callable[..., Any]) -> None:
    """More than a tenth of a generation's steps, and more than ten ticks' in any case."""
    always = {"when": 1}
    loop = run(populations.problem("envs_for_tests:NanReward-v0", algo, kwargs=always, train=LONG), 2)
    advance(loop, 10)
    with pytest.raises(EnvironmentFailed, match="in 88 of its last 88 steps"):
        loop.advance()
    seldom = run(populations.problem("envs_for_tests:Lottery-v0", algo, train={"evo_steps": 32, "max_steps": 10**4}), 2)
    for generation in range(3):
        while not seldom.clock.generation_over:
            seldom.clock.count(8)
            seldom.regime.world.refuse_broken()
        close_generation(seldom)
        assert (seldom.clock.broken_here, seldom.clock.broken) == (0, 64 * (generation + 1))
    seldom.clock.here, seldom.clock.broken_here = 200, 160
    seldom.regime.world.refuse_broken()
    seldom.clock.broken_here = 161
    with pytest.raises(EnvironmentFailed, match="in 161 of its last 1600 steps"):
        seldom.regime.world.refuse_broken()


def test_a_step_that_its_recorder_calls_broken_is_broken(run: Callable[..., Any]) -> None:
    """Though its numbers are finite: nothing is learned from it, and its environment begins anew."""
    loop = run(populations.problem("envs_for_tests:Endless-v0", "ppo", train=LONG))
    taken = loop.regime.world.pool.step(loop.regime.choose())
    loop.regime.record(replace(taken, broken=np.arange(8) == 5))
    assert loop.clock.broken == 1
    assert loop.regime.world.pool.episode_length.tolist() == [1, 1, 1, 1, 1, 0, 1, 1]
    assert loop.regime.playing[0].rollout.after[:, 0, :, -1].tolist() == [[1.0] * 4, [1.0, 0.0, 1.0, 1.0]]


@pytest.mark.parametrize("algo", [pytest.param("dqn", marks=pytest.mark.thorough), "ppo"])
def test_a_step_that_an_environment_refused_is_taken_once(algo: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """What was chosen, noted and learned before it failed is not chosen, noted and learned again."""
    trigger = tmp_path / "trigger"
    p = populations.problem(
        "breaking_envs:Breakable-v0", algo, kwargs={"trigger": str(trigger), "when": 15},
        train={**LONG, "learning_delay": 0, "normalise": {"observations": True}},
        config={"learn_step": 16, "batch_size": 8},
    )  # fmt: skip
    whole, failing = run(p), run(p)
    advance(whole, 24)
    trigger.touch()
    with pytest.raises(EnvironmentFailed, match="the motor broke"):
        advance(failing, 24)
    assert failing.clock.tick == 14
    trigger.unlink()
    resumed = run(p)
    assert resumed.restore(*stored(failing)) == 0
    assert resumed.regime.world.pending.tolist() == failing.regime.world.pending.tolist()
    advance(resumed, 10)
    assert equal_states(whole.state(), resumed.state()) == []


def test_windows_of_episodes_that_cannot_be_brought_back_are_forgotten(run: Callable[..., Any]) -> None:
    """One step of each is known, and a transition spans two: the next step completes none."""
    p = populations.problem("envs_for_tests:Random-v0", train={**LONG, "replay": {"capacity": 99, "n_step": 2}})
    whole, resumed = run(p), run(p)
    advance(whole, 1)
    assert whole.regime.world.pool.episode_length.tolist() == [1] * 8
    assert resumed.restore(*stored(whole)) == 8
    assert resumed.regime.world.pool.episode_length.tolist() == [0] * 8
    assert resumed.regime.world.begun.tolist() == [2] * 8
    for each in (whole, resumed):
        each.advance()
    assert whole.regime.replay.size.sum() >= 8
    assert resumed.regime.replay.size.sum() == 0


def test_a_new_trial_has_no_step_of_the_one_before(run: Callable[..., Any]) -> None:
    """Though a transition spans three, and the one before was in the middle of its episodes."""
    replay = {"capacity": 99, "sharing": "own", "n_step": 3}
    loop = run(populations.problem("envs_for_tests:Diary-v0", train={**LONG, "replay": replay}))
    advance(loop, 2)
    before = {float(begun) for begun in loop.regime.world.pool.obs[4:, 0]}
    loop.regime.renew([1])
    loop.regime.adopt(loop.cohorts)
    assert before.isdisjoint(loop.regime.world.pool.obs[4:, 0].tolist())
    advance(loop, 6)
    rows = loop.regime.replay.rows[1, : loop.regime.replay.size[1]].tolist()
    assert len(rows) > 5
    assert all(row[0] == row[3] and row[0] not in before for row in rows)


def test_a_new_trial_has_no_return_of_the_one_before(run: Callable[..., Any]) -> None:
    """By which rewards are normalised; others keep theirs."""
    train = {**LONG, "normalise": {"rewards": True}}
    loop = run(populations.problem("envs_for_tests:Diary-v0", "ppo", train=train))
    while not bool((loop.regime.returns != 0).all()):
        loop.advance()
    before = loop.regime.returns.clone()
    loop.regime.renew([1])
    assert torch.equal(loop.regime.returns[0], before[0])
    assert not loop.regime.returns[1].any()


def test_a_reward_of_a_broken_step_is_none(run: Callable[..., Any]) -> None:
    loop = run(populations.problem("envs_for_tests:Chain-v0", num_envs=2))
    world, no = loop.regime.world, np.zeros(2 * loop.clock.members, bool)

    def end(*rewards: float) -> tuple[bool, int]:
        reward = np.zeros(len(no), np.float32)
        reward[: len(rewards)] = rewards
        step = RowStep(world.pool.obs, reward, no, no, ~np.isfinite(reward), world.pool.mask)
        world.end(step)
        return loop.clock.rewarded, loop.clock.broken

    assert [end(np.nan, 0.0), end(np.inf, np.nan), end()] == [(False, 1), (False, 3), (False, 3)]
    assert [end(np.nan, -0.5), end(0.0, np.nan)] == [(True, 4), (True, 5)]


def test_transitions_to_begin_with_are_in_every_memory(run: Callable[..., Any]) -> None:
    """The last ones where there are too many; a cut one bootstraps."""
    p = populations.problem(
        "envs_for_tests:Chain-v0", train={**LONG, "warm_start": 5, "replay": {"capacity": 4, "sharing": "own"}}
    )
    obs = np.arange(20, dtype=np.float32).reshape(5, 4)
    ends = np.array([False, True, False, False, True]), np.array([False, False, False, True, False])
    warm = Transitions(obs, np.array([0, 1, 1, 0, 1]), np.arange(5, dtype=np.float32), *ends, obs + 100, np.arange(5))
    loop = begin(p, first_members(p, 2)[0], warm)
    assert loop.regime.warm == 4
    batch = loop.regime.replay.layout.unpack(loop.regime.replay.rows, torch.ones(2, 4), torch.tensor([0.5, 0.5]))
    for slot in range(2):
        order = batch.reward[slot].argsort()
        assert batch.reward[slot][order].tolist() == [1, 2, 3, 4]
        assert batch.obs[slot][order].tolist() == obs[1:].tolist()
        assert batch.next_obs[slot][order].tolist() == (obs[1:] + 100).tolist()
        assert batch.action[slot][order].tolist() == [1, 1, 0, 1]
        assert batch.discount[slot][order].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert loop.clock.rewarded
    loop.close()
    nothing = begin(p, first_members(p, 2)[0], replace(warm, reward=np.zeros(5, np.float32)))
    assert not nothing.clock.rewarded
    nothing.close()


@pytest.mark.parametrize("paid", [False, True])
def test_a_dataset_without_a_reward_is_none_after_any_number_of_updates(paid: bool) -> None:
    obs, ends = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([False, False, False, False, True])
    reward = np.array([0.0, 0.0, 0.0, float(paid), 0.0], np.float32)
    data = Transitions(obs, np.array([0, 1, 1, 0, 1]), reward, ends, np.zeros(5, bool), obs + 1, np.zeros(5, int))
    p = populations.problem("envs_for_tests:Chain-v0", "cqn", train={**LONG, "mode": "offline"})
    loop = begin(p, first_members(p, 2)[0], data)
    advance(loop, 3)
    assert (loop.clock.rewarded, loop.clock.tick, loop.clock.env_steps) == (paid, 3, 3 * 2 * loop.clock.envs)
    loop.close()


def test_first_members_are_drawn_each_by_itself() -> None:
    """Networks of equal shape too; every member is mutated in its own way."""
    p = populations.problem(algo="td3")
    members, births = first_members(p, 4)
    assert births == [NONE] * 4
    weights = [m.tensors[name] for m in members for name in ("critics.critic_1", "critics.critic_2")]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    p = populations.problem(algo="dqn", mutation={**populations.UNLIKE, "probabilities": {
        "none": 0.9, "architecture": 0.0, "parameters": 0.1, "activation": 0.0, "rl_hp": 0.0}})  # fmt: skip
    plain = first_members(populations.problem(algo="dqn"), 4)[0]
    moved, births = first_members(p, 4)
    assert [birth.kind for birth in births] == ["parameters"] * 4
    changed = [(a.tensors["q"] != b.tensors["q"]).nonzero()[:, 0].tolist() for a, b in zip(moved, plain, strict=True)]
    assert len({tuple(places) for places in changed}) == 4


def test_trained_members_take_the_places_of_fresh_ones() -> None:
    """Again from the first where they are fewer: a fresh one's slot, id and key, and nothing of what was scored."""
    p, q = populations.problem(seed=5), populations.problem(seed=6)
    trained = [replace(m, id=m.id + 50, parent=40, fitness=(1.0, 2.0)) for m in first_members(p, 2)[0]]
    fresh, _ = first_members(q, 3)
    heirs, births = go_on(q, trained, fresh)
    assert births == [NONE] * 3
    assert [(m.slot, m.id, m.key) for m in heirs] == [(m.slot, m.id, m.key) for m in fresh]
    assert [(m.parent, m.fitness) for m in heirs] == [(None, ())] * 3
    for heir, old in zip(heirs, [*trained, trained[0]], strict=True):
        assert same(heir, old)
        assert not any(heir.tensors[name].data_ptr() == tensor.data_ptr() for name, tensor in old.tensors.items())


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None:
        """Nothing to close."""


def test_what_a_run_tells_and_when_it_saves(run: Callable[..., Any]) -> None:
    """Of each generation: how its own members were made, and how many of its steps were broken."""
    least = float(np.sort(tickets(lottery(), Purpose.EVALUATE, 6))[1])  # breaks one episode of each evaluation
    p = lottery(kwargs={"least": least}, mutation=populations.UNLIKE, evo_steps=24, max_steps=48)
    members, births = first_members(p, 3)
    loop, heard, saved, counted = begin(p, members, births=births), Heard(), [], []

    def save() -> None:
        saved.append((loop.clock.tick, loop.clock.generation))
        counted.append(loop.clock.broken)

    drive(loop, Tracker([heard]), lambda: False, save)
    assert saved == [*((t, 0) for t in range(1, 7)), (6, 1), *((t, 1) for t in range(7, 13)), (12, 2)]
    made = [event.members for event in heard.events if isinstance(event, Generation)]
    children = [record.children for record in loop.lineage]
    assert [[m.mutation for m in generation] for generation in made] == [
        [child.mutation.kind for child in generation] for generation in children[:2]
    ]
    assert made[0] != made[1]
    warned = [event.text for event in heard.events if isinstance(event, Message)]
    broken = counted[5], counted[-1] - counted[6]
    assert min(broken) > 0
    assert warned == [f"{n} broken transitions of the environment were left out" for n in broken]
    assert [event.phase for event in heard.events if isinstance(event, Progress)].count("evaluating") == 2
    loop.close()


@pytest.mark.parametrize(("env", "lost"), [("Random", ["8"]), ("Chain", [])])
def test_a_run_that_goes_on_tells_what_it_goes_on_from(
    env: str, lost: list[str], tmp_path: Path, run: Callable[..., Any]
) -> None:
    """Of two checkpoints the newest is damaged; and there are environments that never return to where they were."""
    p = populations.problem(f"envs_for_tests:{env}-v0", train={"evo_steps": 40, "max_steps": 40, "eval_steps": 5})
    first, second, store, heard = run(p), run(p), CheckpointStore(tmp_path), Heard()
    for ticks in (1, 2):
        first.advance()
        store.save(ticks, *first.state())
    (tmp_path / "step-000000000002/meta.json").write_bytes(b"")
    with StopSignal() as stop:
        populations.session(second, CheckpointStore(tmp_path), stop, Tracker([heard])).train()
    warned = [event.text for event in heard.events if isinstance(event, Message)]
    assert warned[0].endswith("skipped, the checkpoint of step 1 is used instead")
    assert [text.split()[0] for text in warned if "did not return to where they were" in text] == lost
    assert [event.resumed_step for event in heard.events if isinstance(event, Start)] == [4], (
        "a tick of four environments"
    )


def test_evaluations_are_none_of_the_steps_that_a_run_goes_on_from(tmp_path: Path, run: Callable[..., Any]) -> None:
    p = populations.problem(train={"evo_steps": 40, "max_steps": 80, "eval_steps": 5})
    first, heard = run(p), Heard()
    while not first.clock.generation:
        populations.go_on(first)
    CheckpointStore(tmp_path).save(1, *first.state())
    with StopSignal() as stop:
        populations.session(run(p), CheckpointStore(tmp_path), stop, Tracker([heard])).train()
    (start,) = (event for event in heard.events if isinstance(event, Start))
    assert (start.resumed_step, start.resumed_env_steps) == (40, 40 * first.clock.members)
    assert first.clock.eval_steps > 0


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_run_that_has_seen_no_reward_says_so(share: float, run: Callable[..., Any]) -> None:
    """In its third generation, and at its end."""
    loop, heard = run(lottery(kwargs={"share": share}, max_steps=32)), Heard()
    drive(loop, Tracker([heard]), lambda: False, lambda: None)
    told = [event for event in heard.events if isinstance(event, Generation | Message)]
    where = [n for n, event in enumerate(told) if isinstance(event, Message)]
    assert where == ([] if share else [3, 5])
    if where:
        assert told[3].text.startswith("no member has seen a reward other than 0 in 24 steps, so there is nothing to ")


def test_a_reward_that_evaluation_alone_has_seen_is_one(run: Callable[..., Any]) -> None:
    loop, heard = run(lottery(max_steps=32)), Heard()
    drive(loop, Tracker([heard]), lambda: False, lambda: setattr(loop.clock, "rewarded", False))
    assert loop.clock.generation > 3
    assert not [event for event in heard.events if isinstance(event, Message)]


def test_who_is_told_the_time_left_is_told_the_target(run: Callable[..., Any]) -> None:
    for target in (None, 2.0):
        loop, heard = run(lottery(max_steps=16, target=target)), Heard()
        drive(loop, Tracker([heard]), lambda: False, lambda: None)
        told = [event for event in heard.events if isinstance(event, Progress)]
        assert {event.target for event in told} == {target}


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_episodes_are_begun_from_seeds_of_their_own(algo: str, run: Callable[..., Any], monkeypatch: Any) -> None:
    """Those of training are all unlike, and others each generation; those of evaluation are the same for all members
    and generations; those that confirm are others again, and none is in two sets."""
    train = {
        "evo_steps": 48, "max_steps": 144, "eval_episodes": 3, "confirm_episodes": 5, "learning_delay": 10**6,
        "eval_steps": None,
    }  # fmt: skip
    monkeypatch.setattr(Seeds, "begun", [])
    loop = run(populations.problem("envs_for_tests:Seeds-v0", algo, train=train), 3)
    chosen, again = (
        loop.spec.seeds(purpose, n).tolist() for purpose, n in ((Purpose.EVALUATE, 3), (Purpose.CONFIRM, 5))
    )
    trained: list[int] = []
    for generation in range(3):
        ready(loop)
        trained += Seeds.begun
        Seeds.begun.clear()
        close_generation(loop)
        played = Counter(Seeds.begun)
        assert {seed: played.pop(seed) for seed in chosen} == dict.fromkeys(chosen, 3)
        assert played == (Counter(again) if played or not generation else {})
        Seeds.begun.clear()
    assert len(trained) > 40
    assert len({*trained, *chosen, *again}) == len(trained) + 8


def test_the_mean_of_a_generation_is_that_of_its_healthy_members(run: Callable[..., Any]) -> None:
    loop = run(lottery(kwargs={"bonus": 1.0}, mutation=populations.UNLIKE), 4)
    ready(loop)
    plant_weight(loop, 2)
    close_generation(loop)
    scored = [member.fitness for member in loop.lineage[-1].members]
    assert scored[2] == -math.inf
    healthy = [scored[slot] for slot in (0, 1, 3)]
    assert loop.curve[-1][4:6] == pytest.approx([max(healthy), sum(healthy) / 3])
    told = Generation.of(loop.lineage[-1], dict(enumerate(loop.births)), ["lr"], 1.0, (0, 0), loop.losses)
    assert [told.best, told.mean] == pytest.approx([max(healthy), sum(healthy) / 3])


def test_how_fast_a_run_is_and_how_long_it_will_take_is_of_this_process(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of all members that were taken since it went on, a second; the rest as fast as these."""
    loop, now = run(lottery(max_steps=80), 3), 100.0
    advance(loop, 6)
    monkeypatch.setattr("evopipe.run.drive.time", SimpleNamespace(perf_counter=lambda: now))
    watch = _Stopwatch(loop)
    assert watch.progress("learning").seconds_left is None
    before = loop.clock.env_steps
    advance(loop, 5)
    now = 104.0
    told = watch.progress("learning")
    taken = loop.clock.env_steps - before
    assert taken % 12 == 0
    assert told.steps_per_second == pytest.approx(taken / 4.0)
    assert told.seconds_left == pytest.approx((80 - loop.clock.step) * 4.0 / (taken / 3))
    assert (told.step, told.max_steps, told.env_steps) == (loop.clock.step, 80, loop.clock.env_steps)


def test_saving_takes_a_hundredth_of_the_time_at_most(run: Callable[..., Any], tmp_path: Path) -> None:
    loop = run(lottery())
    saver = Saver(loop, CheckpointStore(tmp_path), 0.0)
    for cost, saves in ((1000.0, 0), (0.0, 1)):
        advance(loop, 1)
        before, saver.cost = {*tmp_path.iterdir()}, cost
        saver.save_if_due()
        assert len({*tmp_path.iterdir()} - before) == saves
    saver.seconds = 1000.0
    before = {*tmp_path.iterdir()}
    advance(loop, 1)
    saver.save_if_due()
    assert {*tmp_path.iterdir()} == before
    ready(loop)
    ticks, generation = loop.clock.ticks, loop.clock.generation
    saver.save()
    close_generation(loop)
    saver.save()  # it is another state, of the same tick
    assert [path.name for path in sorted(tmp_path.iterdir())][-2:] == [
        f"step-{ticks + generation + n:012d}" for n in (0, 1)
    ]


def test_a_mended_environment_begins_with_a_clean_slate(run: Callable[..., Any], tmp_path: Path) -> None:
    """What it broke before it was mended, which ended the run, does not end it again."""
    trigger, store = tmp_path / "trigger", CheckpointStore(tmp_path / "state")
    p = populations.problem(
        "breaking_envs:Breakable-v0", kwargs={"trigger": str(trigger), "how": "nan reward", "when": 1},
        train={"evo_steps": 160, "max_steps": 160, "learning_delay": 10**6, "eval_steps": 5},
    )  # fmt: skip
    trigger.touch()
    with StopSignal() as stop:
        with pytest.raises(EnvironmentFailed, match="in 88 of its last 88 steps"):
            populations.session(run(p), store, stop).train()
        trigger.unlink()
        mended = run(p)
        assert populations.session(mended, store, stop).train().generation == 1
    assert mended.clock.broken == 88


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_generation_is_scored_by_its_own_episodes(algo: str, run: Callable[..., Any]) -> None:
    p = populations.problem("CartPole-v1", algo, search={"fitness": "training"}, train={"evo_steps": 200})
    loop = run(p, 2)
    while not loop.clock.generation_over:
        loop.advance()
    assert np.isfinite(loop.regime.ended()).all()
    populations.close_generation(loop)
    assert np.isnan(loop.regime.ended()).all()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_whatever_network_acts_is_to_be_healthy(algo: str, run: Callable[..., Any]) -> None:
    """With a shared encoder two act."""
    loop = run(populations.problem("CartPole-v1", algo, config={"share_encoder": True}), 3)
    names = acting_networks(loop.spec.algo.POLICY, loop.spec.widths)
    assert len(names) == 2
    for slot, name in enumerate(names):
        cohort, row = populations.of_slot(loop.cohorts, slot)
        getattr(cohort.state, name).values[row].fill_(torch.nan)
    _, members = loop._evaluate(lambda: False)
    assert [member.healthy for member in members] == [False, False, True]
