"""Runs in environments that are tensors: nothing of a step goes through NumPy, and a user's own serve too."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evopipe
import populations
import tiny
from evopipe import rng
from evopipe.envs import backends
from evopipe.envs.make import make_env
from evopipe.envs.pool import EnvPool
from evopipe.envs.tensors import TensorPool
from evopipe.errors import EnvironmentFailed, ParamsError
from evopipe.problems.env import begin
from evopipe.problems.specs import spaces_of
from evopipe.regimes.off_policy import OffPolicy
from evopipe.rng import Purpose
from evopipe.run.evaluate import evaluate
from evopipe.run.evaluate_tensors import evaluate_tensors
from evopipe.run.spec import EnvSpec, first_members
from evopipe.run.world import TensorWorld
from evopipe.schema.env import EnvConfig

CPU = torch.device("cpu")


def problem(algo: str, env: str = "CartPole-v1", **changes: Any) -> EnvSpec:
    """A problem in an environment as tensors, or in C where `c/` stands before its name."""
    own, _, name = env.rpartition("/")
    p = populations.problem(algo=algo, env=name, train={"replay": {"capacity": 500, "sharing": "own", **changes}})
    cfg = p.env.model_copy(update={"backend": own or "torch"})
    return replace(p, env=cfg, spaces=spaces_of(cfg, algo))


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(p: EnvSpec, members: int = 3) -> Any:
        made.append(begin(p, first_members(p, members)[0]))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def through_numpy(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a tensor became an array, left its device, or was made of an array. Random numbers do not count, which
    NumPy draws where the device is the CPU, and torch elsewhere."""
    counted: Counter[str] = Counter()

    def watch(owner: Any, name: str) -> None:
        kept = getattr(owner, name)

        def counting(*args: Any, **options: Any) -> Any:
            counted[name] += sys._getframe(1).f_code.co_filename != rng.__file__
            return kept(*args, **options)

        monkeypatch.setattr(owner, name, counting)

    for name in ("numpy", "cpu", "__array__"):
        watch(torch.Tensor, name)
    watch(torch, "from_numpy")
    return counted


@pytest.mark.parametrize(
    ("algo", "env", "more"),
    [
        ("dqn", "CartPole-v1", {}),
        ("dqn", "CartPole-v1", {"prioritised": True}),
        ("sac", "Pendulum-v1", {}),
        ("ppo", "CartPole-v1", {}),
        ("dqn", "c/CartPole-v1", {}),
        ("sac", "c/Pendulum-v1", {}),
        ("ppo", "c/FrozenLake-v1", {}),
        pytest.param("maddpg", "simple_speaker_listener_v4", {}, marks=pytest.mark.thorough),
    ],
)
def test_no_step_goes_through_numpy(
    algo: str, env: str, more: dict[str, Any], run: Callable[..., Any], through_numpy: Counter[str]
) -> None:
    made = run(problem(algo, env, **more))
    populations.advance(made, 20)  # members learn by now
    through_numpy.clear()
    for _ in range(20):
        made.advance()
    assert not any(through_numpy.values()), through_numpy


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_an_evaluation_leaves_the_device_once(algo: str, run: Callable[..., Any], through_numpy: Counter[str]) -> None:
    made = run(problem(algo))
    seeds, counts = np.arange(6), []
    for cap in (5, 50):
        through_numpy.clear()
        play = evaluate_tensors(made.spec, made.cohorts, TensorPool(made.spec.env, 6, CPU), seeds, cap, lambda: False)
        assert play.steps > 6
        counts.append(dict(through_numpy))
    assert counts[0] == counts[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algo", "env", "cap"),
    [
        ("dqn", "CartPole-v1", None),
        ("dqn", "CartPole-v1", 15),
        ("sac", "MountainCarContinuous-v0", 40),
        pytest.param("ppo", "Acrobot-v1", 70, marks=pytest.mark.thorough),
        pytest.param("mappo", "simple_speaker_listener_v4", None, marks=pytest.mark.thorough),
        ("dqn", "tensor_envs:Line", None),
        ("dqn", "tensor_envs:Breaking", None),
        ("sac", "tensor_envs:Push", 30),
        ("dqn", "c/CartPole-v1", 15),
        ("sac", "c/MountainCarContinuous-v0", 40),
        ("ppo", "c/FrozenLake-v1", None),
    ],
)
@pytest.mark.parametrize("rows", [2, pytest.param(5, marks=pytest.mark.thorough)])
def test_an_evaluation_is_that_of_the_pool_to_the_bit(
    algo: str, env: str, cap: int | None, rows: int, run: Callable[..., Any]
) -> None:
    """Members in an order of their own, rows that play several episodes after one another, a last one that is short."""
    p = problem(algo, env)
    made = run(p, 3)
    populations.advance(made, 60)
    seeds, idle = p.seeds(Purpose.EVALUATE, 5), lambda: False
    make = backends.as_tensors(p.env)
    assert make is not None
    found = evaluate_tensors(p, made.cohorts, make(p.env, 3 * rows + 1, CPU), seeds, cap, idle)
    with_arrays = evaluate(p, made.cohorts, EnvPool(p.env, 3 * rows + 1), seeds, cap, idle)
    np.testing.assert_array_equal(found.returns, with_arrays.returns)
    np.testing.assert_array_equal(found.lengths, with_arrays.lengths)
    assert (found.steps, found.cut, [*found.more]) == (with_arrays.steps, with_arrays.cut, [*with_arrays.more])
    for name, values in found.more.items():
        np.testing.assert_array_equal(values, with_arrays.more[name])
    assert np.isnan(found.returns).any() == (env.endswith("Breaking"))


@pytest.mark.thorough
@pytest.mark.parametrize("more", [{}, {"prioritised": True, "sharing": "shared"}, {"sharing": 1, "capacity": 7}])
def test_off_policy_memories_are_those_of_the_host_to_the_bit(
    more: dict[str, Any], run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    p = problem("dqn", **more)
    tensors = run(p)
    assert isinstance(tensors.regime.world, TensorWorld)
    monkeypatch.setattr("evopipe.regimes.off_policy.backends.as_tensors", lambda cfg: None)
    host = run(p)
    assert not isinstance(host.regime.world, TensorWorld)
    for made in (tensors, host):
        populations.advance(made, 120)
    ours, theirs = tensors.regime.replay.state(), host.regime.replay.state()
    assert ours.keys() == theirs.keys()
    assert all(populations.equal(ours[name], theirs[name]) for name in ours)
    for cohort, other in zip(tensors.cohorts, host.cohorts, strict=True):
        assert all(map(populations.equal, cohort.tensors(), other.tensors()))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algo", "env"),
    [("dqn", "CartPole-v1"), ("dqn", "c/CartPole-v1"), ("sac", "c/Pendulum-v1"), ("ppo", "c/FrozenLake-v1")],
)
def test_a_run_goes_on_to_the_bit(algo: str, env: str, run: Callable[..., Any]) -> None:
    p = problem(algo, env)
    whole = run(p)
    populations.advance(whole, 70)
    tensors, meta = whole.state()
    tensors = {n: t.clone() for n, t in tensors.items()}
    resumed = run(p)
    assert resumed.restore(tensors, meta) == 0
    for each in (whole, resumed):
        populations.finish(each)
    assert populations.equal_states(whole.state(), resumed.state()) == []


# ------------------------------------------------------------------------------------------------ a user's own


def config(name: str, **changes: Any) -> EnvConfig:
    return EnvConfig.model_validate({"id": f"tensor_envs:{name}", "backend": "torch", **changes})


def test_one_row_ends_with_the_limit_that_its_class_names() -> None:
    """In the same step as the pool's rows do."""
    pool, env = TensorPool(config("Line"), 1, CPU), make_env(config("Line"))
    pool.reset([0], [6])
    env.reset(seed=6)
    left = torch.zeros(1, dtype=torch.int64)
    ends = [(bool(step.terminated), bool(step.truncated)) for step in (pool.step(left) for _ in range(20))]
    assert [env.step(0)[2:4] for _ in range(20)] == ends == [(False, False)] * 19 + [(False, True)]


@pytest.mark.parametrize("name", ["Line", "Push"])
def test_one_row_is_the_pools_to_the_bit(name: str) -> None:
    """The environment of Gymnasium that stands for a class plays what its rows play."""
    cfg = config(name, kwargs={"goal": 0.3})
    pool, env = TensorPool(cfg, 3, CPU), make_env(cfg)
    pool.reset([0, 1, 2], [5, 6, 7])
    obs, _ = env.reset(seed=6)
    draw = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_array_equal(pool.obs[1].numpy(), obs)
        one = draw.integers(2, size=3) if name == "Line" else draw.uniform(-1, 1, (3, 1)).astype(np.float32)
        step = pool.step(torch.from_numpy(one))
        obs, reward, terminated, truncated, _ = env.step(pool.actions.own(one)[1])
        assert (reward, terminated) == (float(step.reward[1]), bool(step.terminated[1]))
        assert truncated == bool(step.truncated[1]) or pool.limit is not None
        if terminated or truncated:
            break


@pytest.mark.parametrize(("algo", "name"), [("dqn", "Line"), ("ppo", "Line"), ("sac", "Push")])
@pytest.mark.thorough
def test_a_users_own_tensors_train_through_the_front_door(algo: str, name: str, tmp_path: Path) -> None:
    data = tiny.params({"env.id": f"tensor_envs:{name}", "env.backend": "torch", "train.algo": algo})
    rollout = {"batch_size": 32, "learn_step": 128} if algo == "ppo" else {"batch_size": 32, "learn_step": 4}
    result = evopipe.train({**data, "algos": {algo: rollout}}, tmp_path)
    action = result.policy.act(np.zeros(2, np.float32))
    assert make_env(config(name)).action_space.contains(action)
    assert (tmp_path / "reports/report.html").exists()


@pytest.mark.thorough
def test_what_breaks_in_a_users_own_is_left_out_and_too_much_of_it_refused(run: Callable[..., Any]) -> None:
    for algo in ("dqn", "ppo"):
        made = run(problem(algo, "tensor_envs:Breaking"))
        populations.advance(made, 100)
        assert made.clock.broken > 0
        assert all(cohort.healthy.all() for cohort in made.cohorts)
        if isinstance(made.regime, OffPolicy):
            assert made.regime.replay.state()["rows"].isfinite().all()
        with pytest.raises(EnvironmentFailed, match="'tensor_envs:Broken' returned non-finite observations"):
            populations.advance(run(problem(algo, "tensor_envs:Broken")), 100)


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        (config("Lime"), "env.id: unknown environment 'tensor_envs:Lime', did you mean 'tensor_envs:Line'?"),
        (config("Line", kwargs={"gaol": 1}), "env.kwargs: 'tensor_envs:Line' does not take {'gaol': 1}"),
        (config("Square"), "a tensor environment's observations are a Box of one axis"),
        (config("Blind"), "env.id: 'tensor_envs:Blind' lacks draws, which a tensor environment must have"),
    ],
)
def test_what_is_no_tensor_environment_is_refused(cfg: EnvConfig, said: str) -> None:
    with pytest.raises(ParamsError) as raised:
        TensorPool(cfg, 2, CPU)
    assert said in str(raised.value)


@pytest.mark.parametrize("env", ["CartPole-v1", "c/CartPole-v1"])
def test_memories_that_hold_unequally_many_rows_are_filled_each_from_its_own_place(
    env: str, run: Callable[..., Any]
) -> None:
    """A new trial's memory begins anew while the others' go on."""
    made = run(problem("dqn", env))
    populations.advance(made, 5)
    made.regime.renew([1])
    obs, replay = made.regime.world.observed()[0], made.regime.replay
    populations.advance(made, 1)
    assert replay.size.tolist() == [24, 4, 24]
    assert (replay.rows[1, :4, :4] == obs[1]).all()
    assert (replay.rows[2, 20:24, :4] == obs[2]).all()


@pytest.mark.parametrize(("algo", "backend"), [("dqn", ""), ("ppo", "c/")])
def test_a_trial_in_a_slot_begins_with_nothing_of_the_one_before(
    algo: str, backend: str, run: Callable[..., Any]
) -> None:
    """Its episodes are new ones, and so are their returns, by which it is scored; its neighbours go on."""
    p = problem(algo, f"{backend}CartPole-v1")
    loop = run(replace(p, search=p.search.model_copy(update={"fitness": "training"})))
    populations.advance(loop, 5)
    world, envs = loop.regime.world, loop.clock.envs
    running, length, begun = (x.clone() for x in (world._running, world.pool.length, world._begun))
    assert (running > 0).all()
    loop.regime.renew([1])
    own = torch.arange(3 * envs) // envs == 1
    for now, before in ((world._running, running), (world.pool.length, length)):
        assert torch.equal(now, before.masked_fill(own, 0))
    assert torch.equal(world._begun, begun + own)


@pytest.mark.parametrize(("algo", "backend"), [("dqn", ""), ("ppo", ""), ("ppo", "c/")])
def test_returns_of_running_episodes_are_kept_by_a_checkpoint(algo: str, backend: str, run: Callable[..., Any]) -> None:
    p = problem(algo, f"{backend}CartPole-v1")
    p = replace(p, search=p.search.model_copy(update={"fitness": "training"}))
    whole, again = run(p), run(p)
    populations.advance(whole, 5)
    tensors, meta = whole.state()
    again.restore({name: tensor.clone() for name, tensor in tensors.items()}, meta)
    assert (whole.regime.world._running > 0).all()
    assert torch.equal(again.regime.world._running, whole.regime.world._running)
