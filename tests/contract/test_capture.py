"""Every algorithm fits a CUDA graph, and every device: shown without a GPU, on a second device in software."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from device import DEVICE, CaptureError, Device, Recorder, Remote
from evopipe import algos
from evopipe.core import groups, optim
from evopipe.core.cohort import COSTS, Cohort
from evopipe.core.graphs import Capture, Paths, Runner
from evopipe.memory.replay import Replay, RowLayout
from evopipe.problems.env import begin
from evopipe.regimes.learn import learn
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.run import act as acting
from evopipe.run.act import choose
from evopipe.run.evaluate import evaluate
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Learned
from populations import LONG, UNLIKE, advance, close_generation, equal_states, finish, is_on_policy, started

each_algorithm = pytest.mark.parametrize("algo", populations.cases(teams=True))
on_policy = pytest.mark.parametrize("algo", populations.cases(on_policy=True, teams=True))
off_policy = pytest.mark.parametrize("algo", populations.cases(on_policy=False, teams=True))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The second device, grouped like a GPU, with the optimiser that a GPU gets on both."""
    monkeypatch.setitem(COSTS, DEVICE.type, COSTS["cuda"])
    monkeypatch.setitem(COSTS, "cpu", COSTS["cuda"])
    monkeypatch.setattr(optim, "_fused_is_sound", lambda: False)
    optim._take_layout_warning()
    with Device() as made:
        yield made
    groups._agent_groups.cache_clear()  # it holds numbers on that device


def small(algo: str, norm: bool = False, kind: str = "mlp", **train: Any) -> EnvSpec:
    config = {"network": {"encoder": [16], "latent": 16, "layer_norm": norm, "encoder_kind": kind}}
    return populations.problem(algo=algo, mutation=UNLIKE, cohorts="merged", config=config, train={**LONG, **train})


def filled(p: EnvSpec, masked: bool = False, memories: int = 4) -> Replay:
    """A replay on the problem's device with random transitions in it."""
    g, n = np.random.default_rng(0), 200
    replay = Replay(RowLayout.of(p.spaces, masked, legal=True), memories, 300, p.device)
    shape: tuple[int, ...] = (memories * n, *((p.spaces.agents,) if p.spaces.team else ()))
    obs, after = (g.standard_normal((*shape, p.observations)).astype(np.float32) for _ in range(2))
    ended, alive = g.random(shape) < 0.2, g.random(shape) < 0.8
    action = g.uniform(-1, 1, (*shape, p.actions)) if p.spaces.continuous else g.integers(p.actions, size=shape)
    rows = replay.layout.pack(
        obs, action, g.standard_normal(shape), ended, after, alive=alive if p.spaces.team else None
    )
    replay.add(rows.reshape(memories, n, -1), np.ones((memories, n), bool))
    return replay


def recorded(p: EnvSpec, device: Device) -> list[Cohort]:
    """Cohorts of unlike members on the second device, whose work runs as a graph would."""
    formed = replace(p, device=DEVICE).form(first_members(p, 4)[0])
    return [replace(cohort, runner=Recorder(device)) for cohort in formed]


def try_graph(p: EnvSpec, device: Device) -> None:
    """Act and learn as a graph would."""
    there = replace(p, device=DEVICE)
    for masked in (False, True):
        replay = filled(there, masked)
        for cohort in recorded(p, device):
            obs = np.zeros((len(cohort.members), 3 * p.spaces.agents, p.observations), np.float32)
            legal = np.ones((*obs.shape[:2], p.actions), bool)
            for explore in ((0.5, 7), None):
                assert choose(p, cohort, obs, legal, explore).shape[:2] == obs.shape[:2]
            before = cohort.tensors()
            losses = learn(there, cohort, replay, 5, 3)
            assert losses.shape == (len(cohort.members),)
            assert all(x is y for x, y in zip(before, cohort.tensors(), strict=True)), "state stays in place"


# ---------------------------------------------------------------------------------------------- the registry


@pytest.mark.product
@off_policy
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.thorough
def test_act_and_update_fit_a_graph(algo: str, norm: bool, device: Device) -> None:
    """No value is read on the host, nothing comes from it, no shape depends on data, nothing outlives the recording."""
    try_graph(small(algo, norm), device)


@on_policy
@pytest.mark.parametrize(
    ("norm", "kind"), [(True, "lstm"), *(pytest.param(norm, "mlp", marks=pytest.mark.slow) for norm in (False, True))]
)
@pytest.mark.thorough
def test_step_and_epochs_fit_a_graph(algo: str, norm: bool, kind: str, device: Device) -> None:
    """A whole rollout's epochs are one graph."""
    p = small(algo, norm, kind=kind)
    there = replace(p, device=DEVICE)
    for masked in (False, not p.spaces.continuous):
        for cohort in recorded(p, device):
            rollout = populations.rollout_for(there, cohort, masked=masked)
            before = cohort.tensors()
            losses = learn_from_rollout(there, cohort, rollout, populations.TICKS, 5)
            assert losses.shape == (len(cohort.members),)
            assert all(x is y for x, y in zip(before, cohort.tensors(), strict=True)), "state stays in place"
            obs = torch.zeros(len(cohort.members), 3 * p.spaces.agents, p.observations)
            legal, begins = torch.ones(*obs.shape[:2], p.actions).bool(), torch.zeros(obs.shape[:2]).bool()
            memory = torch.zeros(*obs.shape[:2], cohort.memory).to(DEVICE)
            took = acting.step(there, cohort, obs, legal, begins, memory, None)
            assert took.value.shape == obs.shape[:2]


@on_policy
@pytest.mark.thorough
def test_learning_from_a_rollout_never_waits(algo: str, device: Device) -> None:
    p = replace(small(algo), device=DEVICE)
    for cohort in p.form(first_members(p, 4)[0]):
        rollout = populations.rollout_for(p, cohort)
        learn_from_rollout(p, cohort, rollout, populations.TICKS, 5)  # the first time makes views
        device.waits.clear()
        learn_from_rollout(p, cohort, rollout, populations.TICKS, 6)
        assert not device.waits


def moved(p: EnvSpec) -> set[str]:
    """What of the members' states an update replaced by other tensors instead of writing to it."""
    names: set[str] = set()
    there = replace(p, device=DEVICE)
    for cohort in there.form(first_members(p, 4)[0]):
        before = parts(cohort.state)
        if is_on_policy(p.train.algo):
            learn_from_rollout(there, cohort, populations.rollout_for(there, cohort), populations.TICKS, 5)
        else:
            learn(there, cohort, filled(there), 5, p.period)
        after = parts(cohort.state)
        assert before.keys() == after.keys()
        names |= {name for name, tensor in after.items() if before[name] is not tensor}
    return names


def parts(state: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state by name."""
    found: dict[str, torch.Tensor] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if field.metadata["kind"] == "row":
            found[field.name] = value
        else:
            names = [name for name in ("values", "mean", "square", "steps") if hasattr(value, name)]
            found |= {f"{field.name}.{name}": getattr(value, name) for name in names}
    return found


@each_algorithm
@pytest.mark.thorough
def test_networks_and_moments_are_updated_where_they_are(algo: str, device: Device) -> None:
    """Nothing copies what an update left elsewhere: graphs, and the other processes that learn, would not see it."""
    assert moved(small(algo)) == set()


@pytest.mark.product
@pytest.mark.parametrize("algo", populations.cases(["dqn", "ppo"]))
@pytest.mark.parametrize("capture", [pytest.param("none", marks=pytest.mark.slow), "buffers"])
@pytest.mark.thorough
def test_a_run_on_another_device_is_the_run_on_the_host(algo: str, capture: Capture, device: Device) -> None:
    """Act, store, learn, evaluate, evolve, save and restore, to the bit; the host waits for actions, once a tick."""
    run_here_and_there(small(algo, learning_delay=20, evo_steps=96, max_steps=192), capture, device)


@pytest.mark.thorough
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_that_normalises_on_another_device_is_the_run_on_the_host(algo: str, device: Device) -> None:
    train = {"learning_delay": 20, "evo_steps": 120, "max_steps": 240}
    p = small(algo, **train, normalise={"observations": True, "rewards": is_on_policy(algo)})
    run_here_and_there(p, "none", device)


def run_here_and_there(p: EnvSpec, capture: Capture, device: Device) -> None:
    far = replace(p, device=DEVICE, paths=Paths(capture))
    there, here = begin(far, first_members(p, 3)[0]), started(p, 3)
    for loop in (there, here):
        advance(loop, 12)
    assert all(isinstance(t, Remote) for c in there.cohorts for t in (*c.tensors(), c.keys, *c.hyper.values()))
    device.waits.clear()
    advance(there, 10)
    assert device.waits == {"a copy from or to the host": 10 * len(there.cohorts)}
    advance(here, 10)
    tensors, meta = there.state()
    assert not any(isinstance(t, Remote) for t in tensors.values()), "a checkpoint is on the host"
    assert equal_states((tensors, meta), here.state()) == []
    again = begin(far, first_members(p, 3)[0])
    assert again.restore(tensors, meta) == 0
    for loop in (again, here):
        finish(loop)
    assert equal_states(again.state(), here.state()) == []
    assert here.clock.generation == 2
    for loop in (there, here, again):
        loop.close()


@off_policy
@pytest.mark.thorough
def test_learning_never_waits(algo: str, device: Device) -> None:
    """Neither recorded nor eager: the host goes on to the environments while the device learns."""
    p = replace(small(algo), device=DEVICE)
    replay, cohorts = filled(p), p.form(first_members(p, 4)[0])
    for _ in range(2):  # the first time makes views
        device.waits.clear()
        for cohort in cohorts:
            learn(p, cohort, replay, 5, 2)
    assert not device.waits


# ------------------------------------------------------------------------------------------ bad algorithms


def bad(p: EnvSpec, name: str, change: Callable[..., Any]) -> EnvSpec:
    """The problem with an algorithm of which one function is wrapped."""
    names = {key: getattr(p.algo, key) for key in algos.REQUIRED | algos.REGIMES["off_policy"] | algos.OPTIONAL}
    original = names[name]
    return replace(p, algo=types.SimpleNamespace(**{**names, name: lambda *a: change(original, *a)}))  # type: ignore[arg-type]


KEPT: list[Any] = []


def reads_a_value(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    losses, healthy, _ = update(cfg, state, hp, batch, healthy, *rest)
    return Learned(losses * losses.max().item(), healthy)


def decides_on_a_value(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    return update(cfg, state, hp, batch, healthy, *rest) if healthy.all() else Learned(batch.reward[:, 0], healthy)


def picks_by_a_mask(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    return update(
        cfg, state, hp, replace(batch, reward=batch.reward - batch.reward[batch.reward > 0].mean()), healthy, *rest
    )


def counts(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    return update(
        cfg, state, hp, replace(batch, reward=batch.reward + len((batch.discount == 0).nonzero())), healthy, *rest
    )


def goes_to_the_host(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    reward = batch.reward.cpu().clamp(-1, 1).to(batch.reward.device)
    return update(cfg, state, hp, replace(batch, reward=reward), healthy, *rest)


def brings_a_number(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    scale = torch.tensor(0.5)
    return update(cfg, state, hp, replace(batch, reward=batch.reward * scale), healthy, *rest)


def makes_a_tensor_on_the_host(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    return update(cfg, state, hp, replace(batch, reward=batch.reward + torch.zeros(batch.reward.shape)), healthy, *rest)


def draws(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    return update(cfg, state, hp, replace(batch, reward=batch.reward + torch.rand_like(batch.reward)), healthy, *rest)


def keeps(update: Any, cfg: Any, state: Any, hp: Any, batch: Any, healthy: Any, *rest: Any) -> Any:
    KEPT.append(batch.reward * 2)
    return update(cfg, state, hp, batch, healthy, *rest)


def moves_its_weights(update: Any, cfg: Any, state: Any, *rest: Any) -> Any:
    learned = update(cfg, state, *rest)
    object.__setattr__(state, "target", state.q.copy())
    return learned


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (reads_a_value, "a value is read on the host"),
        (decides_on_a_value, "a value is read on the host"),
        (picks_by_a_mask, "the shape depends on the data"),
        (counts, "the shape of the result depends on the data"),
        (goes_to_the_host, "a copy from or to the host"),
        (brings_a_number, "a number from the host"),
        (makes_a_tensor_on_the_host, "tensors of two devices"),
        (draws, "a random number generator"),
        (keeps, "outlive it"),
        (moves_its_weights, "outlive it"),
    ],
)
@pytest.mark.thorough
def test_a_bad_update_is_found(change: Callable[..., Any], sentence: str, device: Device) -> None:
    try:
        with pytest.raises(RuntimeError, match=sentence) as raised:
            try_graph(bad(small("dqn"), "update", change), device)
        assert isinstance(raised.value, CaptureError) or sentence == "tensors of two devices"
    finally:
        KEPT.clear()
        gc.collect()


@pytest.mark.thorough
def test_a_bad_act_is_found(device: Device) -> None:
    def act(original: Any, cfg: Any, state: Any, obs: Any, legal: Any, epsilon: Any, draw: Any) -> Any:
        return original(cfg, state, obs, legal, epsilon if epsilon[0] > 0.1 else 0 * epsilon, draw)

    with pytest.raises(CaptureError, match="a value is read on the host"):
        try_graph(bad(small("dqn"), "act", act), device)


@pytest.mark.thorough
def test_an_update_that_moves_its_weights_is_found(device: Device) -> None:
    assert moved(bad(small("dqn"), "update", moves_its_weights)) == {"target.values"}


# ------------------------------------------------------------------- fixed buffers, forced on where the host computes


@each_algorithm
@pytest.mark.thorough
def test_a_run_on_fixed_buffers_is_the_eager_run(algo: str) -> None:
    """To the bit, over generations, and from any checkpoint of either to the end."""
    config = {} if is_on_policy(algo) else {"learn_step": 3}
    p = populations.problem(algo=algo, mutation=UNLIKE, config=config, train={"max_steps": 400})
    eager, paths = started(p, 4), Paths("buffers")
    fixed = started(replace(p, paths=paths), 4)
    for _ in range(4):
        for loop in (eager, fixed):
            advance(loop, 23)
        assert equal_states(eager.state(), fixed.state()) == []
        resumed = started(replace(p, paths=Paths("buffers")), 4)
        assert resumed.restore(*eager.state()) == 0
    for loop in (eager, fixed, resumed):
        finish(loop)
    assert equal_states(eager.state(), fixed.state()) == []
    assert equal_states(eager.state(), resumed.state()) == []
    assert paths.recorded > 8
    assert not paths.given_up
    for loop in (eager, fixed, resumed):
        loop.close()


@each_algorithm
@pytest.mark.thorough
def test_evaluation_on_fixed_buffers_is_the_eager_one(algo: str) -> None:
    p = populations.problem(algo=algo, mutation=UNLIKE)
    loop = started(p, 3)
    advance(loop, 40)
    seeds = np.arange(6)
    eager = evaluate(p, loop.cohorts, loop.regime.evaluate.pool, seeds, 40)
    fixed = [replace(c, runner=Runner(Paths("buffers"))) for c in loop.cohorts]
    again = evaluate(p, fixed, loop.regime.evaluate.pool, seeds, 40)
    assert (again.returns == eager.returns).all()
    loop.close()


@each_algorithm
@pytest.mark.thorough
def test_a_nan_on_fixed_buffers_stays_with_its_member(algo: str) -> None:
    p = populations.problem(algo=algo, mutation=UNLIKE, train=LONG, cohorts="merged")
    clean, ill = (started(replace(p, paths=Paths("buffers")), 4) for _ in range(2))
    for loop in (clean, ill):
        advance(loop, 30)
    cohort, row = populations.of_slot(ill.cohorts, 1)
    getattr(cohort.state, p.algo.POLICY).values[row] = torch.nan
    for loop in (clean, ill):
        advance(loop, 20)
    cohort, row = populations.of_slot(ill.cohorts, 1)
    assert not cohort.healthy[row]
    assert [populations.same(a, b) for a, b in zip(clean.members, ill.members, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    close_generation(ill)
    assert all(m.healthy for m in ill.members)
    for loop in (clean, ill):
        loop.close()
