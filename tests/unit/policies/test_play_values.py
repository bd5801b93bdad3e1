"""Which frames, seeds, members and agents policies at play show, against environments that plain code steps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

import populations
from evopipe import formats
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.policies import policy
from evopipe.policies.film import FilmFrames, animate, gif
from evopipe.policies.play import Score, environment_of, play, watch
from evopipe.policies.policy import Policy, TeamPolicy
from evopipe.report.page import _Movie
from evopipe.run.spec import EnvSpec, first_members
from populations import TEAM
from tiny import call


def elite(folder: Path, env: str = "Pendulum-v1", algo: str = "ddpg", member: int = 0, **more: Any) -> Policy:
    """An untrained policy, saved and loaded."""
    p = populations.problem(env, algo)
    made = first_members(p, member + 1)[0][member]
    policy.save(folder, algo, made, described(p), program=False, card="card\n", **more)
    found = policy.load(folder)
    assert isinstance(found, Policy)
    return found


def described(p: EnvSpec) -> dict[str, Any]:
    with opened(p.env) as env:
        _, spaces = read_spaces(env)
    about = {"algo": p.train.algo, "config": p.algo_config.model_dump(mode="json"), **spaces}
    return {**about, "env": {"id": p.env.id, "kwargs": p.env.kwargs}}


def alone(actor: Policy, env: str, seed: int, cap: int) -> tuple[list[Any], list[float]]:
    """Frames and rewards of an episode, by Gymnasium alone."""
    made = gymnasium.make(env, render_mode="rgb_array")
    obs, _ = made.reset(seed=seed)
    frames, rewards = [made.render()], []
    for _ in range(cap):
        obs, reward, terminated, truncated, _ = made.step(actor.act(obs))
        frames.append(made.render())
        rewards.append(float(reward))
        if terminated or truncated:
            break
    made.close()
    return frames, rewards


@pytest.mark.parametrize("seed", [0, 11])
def test_an_episode_is_drawn_from_its_first_state_to_its_last(seed: int, tmp_path: Path) -> None:
    actor = elite(tmp_path / "elite")
    frames, rewards = alone(actor, "Pendulum-v1", seed, 6)
    shown = play(actor, seed, max_steps=6)
    assert len(shown.frames) == len(frames) == 7
    assert all(np.array_equal(one, two) for one, two in zip(shown.frames, frames, strict=True))
    assert shown.rewards == pytest.approx(rewards)
    assert (shown.total, shown.fps, shown.terminated) == (pytest.approx(sum(rewards)), 30, False)


def test_films_take_every_episodes_frames_in_order(tmp_path: Path) -> None:
    actor, told = elite(tmp_path / "elite"), list[Score]()
    kept = [FilmFrames(10_000), FilmFrames(10_000)]
    cfg = environment_of(actor)
    scores = watch(actor, cfg, [each.begin for each in kept], 3, seed=4, max_steps=5, tell=told.append)
    expected = [alone(actor, "Pendulum-v1", seed, 5) for seed in (4, 5, 6)]
    assert scores == told
    assert [(score.seed, score.steps) for score in scores] == [(4, 5), (5, 5), (6, 5)]
    assert [score.total for score in scores] == pytest.approx([sum(rewards) for _, rewards in expected])
    for each in kept:
        assert each.shown == 18
        for image, frame in zip(each.images, [frame for frames, _ in expected for frame in frames], strict=True):
            assert np.array_equal(np.asarray(image), frame)


@pytest.mark.thorough
def test_the_command_tells_each_return_and_their_mean(tmp_path: Path) -> None:
    actor = elite(tmp_path / "elite")
    totals = [sum(alone(actor, "Pendulum-v1", seed, 8)[1]) for seed in (2, 3, 4)]
    answer = call(tmp_path, "play", "elite", "--episodes", "3", "--seed", "2", "--max-steps", "8", "--gif", "a.gif")
    *lines, last, _ = answer.out.splitlines()
    assert lines == [
        f"seed {seed}: return {formats.score(total)}, 8 steps" for seed, total in zip((2, 3, 4), totals, strict=True)
    ]
    assert last == f"Pendulum-v1: mean return {formats.score(np.mean(totals))} of 3 episodes"


# --- films ------------------------------------------------------------------------------------------------------------


def filmed(count: int, fps: int, most: float = float("inf")) -> tuple[FilmFrames, list[int]]:
    """Frames of which the first pixel is their number, and the numbers of those that were kept."""
    kept = FilmFrames(8, most)
    with kept.begin(fps) as show:
        for number in range(count):
            show(np.full((2, 2, 3), number, np.uint8))
    return kept, [int(np.asarray(image)[0, 0, 0]) for image in kept.images]


@pytest.mark.parametrize(
    ("count", "fps", "most", "every"),
    [(7, 30, 99, 1), (7, 50, 99, 2), (20, 61, 99, 3), (20, 10, 99, 1), (40, 30, 10, 4), (11, 30, 10, 2),
     (10, 30, 10, 1)],
)  # fmt: skip
def test_frames_are_left_out_evenly_from_the_first_on(count: int, fps: int, most: int, every: int) -> None:
    kept, numbers = filmed(count, fps, most)
    assert numbers == list(range(0, count, every))
    assert (kept.shown, kept.fps, kept.every) == (count, fps, every)
    assert kept.gap == pytest.approx(1000 * every / fps)


@pytest.mark.parametrize(("width", "shown"), [(399, (399, 30)), (400, (400, 30)), (1000, (400, 12)), (5000, (400, 2))])
def test_a_gif_is_400_pixels_wide_at_most_and_keeps_its_shape(
    width: int, shown: tuple[int, int], tmp_path: Path
) -> None:
    """With at most 128 colours."""
    frame = np.random.default_rng(0).integers(256, size=(30, width, 3), dtype=np.uint8)
    with gif(tmp_path / "a.gif", 10) as show:
        show(frame)
    with Image.open(tmp_path / "a.gif") as found:
        assert found.size == shown
        colours = len({*map(tuple, np.asarray(found.convert("RGB")).reshape(-1, 3).tolist())})
    assert colours <= 128
    assert colours > 64 or width > 400, "nor many fewer, where pixels are as they were"


def test_times_of_an_animation_add_up_and_its_last_image_rests() -> None:
    images = [Image.fromarray(np.full((4, 4, 3), 40 * k, np.uint8)) for k in range(5)]
    for kind, unit in (("GIF", 10), ("WEBP", 1)):
        found = Image.open(io.BytesIO(animate(images, kind, 33.4, unit, rest=500)))
        times = []
        for number in range(5):
            found.seek(number)
            found.load()
            times.append(found.info["duration"])
        assert sum(times) == pytest.approx(5 * 33.4 + 500, abs=unit)
        assert all(abs(time - 33.4) <= unit for time in times[:-1])
        assert times[-1] == pytest.approx(533.4, abs=unit)


def test_the_still_is_the_middle_and_the_speed_what_it_is_shown_at() -> None:
    kept, numbers = filmed(101, 20)
    movie = _Movie.of(kept, Score(3, 1.5, 100))
    assert numbers == list(range(101))
    still = np.asarray(Image.open(io.BytesIO(movie.still)).convert("RGB"))
    assert abs(int(still[0, 0, 0]) - 50) <= 2
    assert (movie.seconds, movie.speed) == (pytest.approx(5.05), pytest.approx(1.0))
    halved = _Movie.of(filmed(121, 60)[0], Score(3, 1.5, 120))  # of which every second one is kept
    assert (halved.seconds, halved.speed) == (pytest.approx(61 / 30), pytest.approx(1.0, abs=0.01))
    slow, _ = filmed(21, 5)  # 200 ms a frame are shown for 100
    movie = _Movie.of(slow, Score(3, 1.5, 20))
    assert (movie.seconds, movie.speed) == (pytest.approx(2.1), pytest.approx(2.0))


# --- policies ---------------------------------------------------------------------------------------------------------


def test_every_member_is_loaded_as_itself(tmp_path: Path) -> None:
    """Their actions are those that each one's own weights give; what was saved twice is the same."""
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actors = [elite(tmp_path / str(member), member=member) for member in range(3)]
    again = elite(tmp_path / "again", member=1)
    assert np.array_equal(actors[1].act(obs), again.act(obs))
    assert len({actor.act(obs).tobytes() for actor in actors}) == 3


def test_exploration_has_its_share_and_its_seed(tmp_path: Path) -> None:
    actor = elite(tmp_path / "elite", "CartPole-v1", "dqn")
    obs = np.random.default_rng(0).normal(size=(4000, 4)).astype(np.float32)
    greedy = actor.act(obs)
    assert np.array_equal(greedy, actor.act(obs, seed=5))
    for epsilon in (0.1, 0.5, 1.0):
        explored = actor.act(obs, epsilon=epsilon, seed=3)
        share = float((explored != greedy).mean())
        assert abs(share - epsilon / 2) < 4 * np.sqrt(epsilon / 2 * (1 - epsilon / 2) / len(obs))
        assert np.array_equal(explored, actor.act(obs, epsilon=epsilon, seed=3))
        assert not np.array_equal(explored, actor.act(obs, epsilon=epsilon, seed=4))


def test_values_are_of_the_actions_that_are_asked_about(tmp_path: Path) -> None:
    actor = elite(tmp_path / "elite", "CartPole-v1", "dqn")
    obs, g = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.random.default_rng(1)
    q, action = actor.q_values(obs), g.integers(2, size=30)
    assert np.array_equal(actor.act(obs), q.argmax(axis=1))
    assert np.array_equal(actor.value(obs), q.max(axis=1))
    assert np.array_equal(actor.q_values(obs, action), q[np.arange(30), action])
    only = np.tile([True, False], (30, 1))
    assert np.array_equal(actor.value(obs, mask=only), q[:, 0])
    assert (actor.act(obs, mask=only) == 0).all()


def team(folder: Path, score: str = "sum") -> TeamPolicy:
    p = populations.problem(TEAM, "mappo", config={"score": score})
    policy.save(folder, "mappo", first_members(p, 1)[0][0], described(p), False, "card\n", critic=True)
    found = policy.load(folder)
    assert isinstance(found, TeamPolicy)
    return found


def test_a_teams_answers_are_by_agent_whatever_the_order(tmp_path: Path) -> None:
    actor, g = team(tmp_path / "team"), np.random.default_rng(0)
    obs = {agent: g.normal(size=(6, space.size)).astype(np.float32)
           for agent, space in zip(actor.agents, actor.team.observations, strict=True)}  # fmt: skip
    turned = {agent: obs[agent] for agent in reversed(actor.agents)}
    for ask in (actor.act, actor.value, actor.probabilities):
        one, two = ask(obs), ask(turned)
        assert [*one] == [*actor.agents]
        assert [*two] == [*reversed(actor.agents)]
        assert all(np.array_equal(one[agent], two[agent]) for agent in actor.agents)
    chances = actor.probabilities(obs)
    for agent, space in zip(actor.agents, actor.team.actions, strict=True):
        assert chances[agent].shape == (6, space.size)
        assert chances[agent].sum(axis=1) == pytest.approx(np.ones(6), abs=1e-5)
        assert np.array_equal(actor.act(obs)[agent], chances[agent].argmax(axis=1))
    single = {agent: rows[4] for agent, rows in obs.items()}
    assert actor.act(single) == {agent: actor.act(obs)[agent][4] for agent in actor.agents}


def test_a_teams_score_is_the_sum_or_the_mean_over_all_its_agents(tmp_path: Path) -> None:
    assert team(tmp_path / "sum").score([1.0, 2.0, 6.0]) == 9.0
    assert team(tmp_path / "mean", "mean").score([1.0, 2.0, 6.0]) == 3.0
    assert team(tmp_path / "gone", "mean").score([6.0]) == 2.0, "who is gone earned nothing"
