"""Problems, members and runs for tests, made from the same schemas that `params.yaml` fills."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from crews import own, transitions
from evopipe import algos, rng
from evopipe.core.cohort import Cohort, dissolve
from evopipe.core.member import Member
from evopipe.envs.pool import EnvPool
from evopipe.envs.workers import Workers
from evopipe.memory.rollout import Rollout, StepLayout
from evopipe.mutations import NONE, Mutation, Traits, mutate
from evopipe.params.load import Params
from evopipe.params.search import SearchConfig
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec, spaces_of
from evopipe.regimes.learn import discount_rate
from evopipe.regimes.on_policy import OnPolicy
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.rng import Purpose, Stream
from evopipe.run import act as acting
from evopipe.run.callbacks import Callbacks
from evopipe.run.run import Run
from evopipe.run.session import Home, Session
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.callbacks import CallbacksConfig
from evopipe.schema.declare import evolvable
from evopipe.schema.env import EnvConfig
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.schema.train import TrainConfig
from evopipe.signals import StopSignal
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.track.events import Tracker
from evopipe.types import ACTS, CUT, GONE, Batch, Learned

CPU = torch.device("cpu")
ALIKE = {
    "bc", "bc:continuous", "crossq", "ddpg", "iql", "iql:continuous", "ppo:continuous", "ppo:mixed", "ppo:multibinary",
    "ppo:multidiscrete", "neural_ts", "qrdqn", "redq", "sac:continuous", "td3bc", "tqc",
}  # fmt: skip
THOROUGH = {  # much of theirs is in dqn, td3 and ppo
    "cqn", "crossq", "maddpg", "mappo", "neural_ucb", "qrdqn", "rainbow", "redq", "sac", "tqc",
}  # fmt: skip
ENVIRONMENTS = {  # a small one for each kind of actions
    "discrete": "CartPole-v1",
    "continuous": "Pendulum-v1",
    "multidiscrete": "action_envs:Locks-v0",
    "multibinary": "action_envs:Switches-v0",
    "mixed": "action_envs:Desk-v0",
}
TEAM = "teams_for_tests:Relay"  # unlike agents that come and go, with actions of every kind
UNLIKE = {
    "before_training": True,
    "architecture": {"min_nodes": 8, "max_nodes": 64, "min_latent": 8, "node_steps": (1, 8, 16), "latent_steps": (8,)},
    "activations": ("ReLU", "GELU", "Sigmoid"),
}
"""Members of unlike architectures, activations and hyper-parameters, widths that are no multiple of 16."""
LONG: dict[str, Any] = {"evo_steps": 100_000, "max_steps": 100_000}
TICKS = 16  # of a random rollout
ON_POLICY = {"batch_size": 32, "learn_step": 64, "epochs": 2}


def session(run: Run[Any], store: CheckpointStore, stop: StopSignal, tracker: Tracker | None = None) -> Session[Any]:
    """What trains a run that is there, with its checkpoints in a folder of their own."""
    home = Home(store.folder, store.folder, 1e9)
    callbacks = Callbacks(CallbacksConfig(), {}, store.folder, lambda member: None)
    return Session(run, store, stop, tracker or Tracker([]), Params(), home, described={}, callbacks=callbacks)


def cases(quick: Sequence[str] | None = None, on_policy: bool | None = None, teams: bool = False) -> list[Any]:
    """Every algorithm by name; one that serves several kinds of actions by `name:kind` for the others as well, and one
    of each regime with a shared encoder, by `name:kind:shared`. Those for teams, which are slow too, only on request.

    Those whose shape another one has too, or all but the `quick` ones, are slow: their turn comes with `--slow`.
    `on_policy` chooses those that are, or those that are not.
    """
    chosen = [name for name in algos.names() if on_policy in (None, is_on_policy(name))]
    crewed = {name for name in chosen if algos.get(name).TEAM}
    chosen = [name for name in chosen if teams or name not in crewed]
    names = [name if i == 0 else f"{name}:{kind}" for name in chosen for i, kind in enumerate(_kinds(name))]
    shared = [f"{name}:{_kinds(name)[0]}:shared" for name in ("td3", "ppo") if name in chosen]
    names += shared
    slow = {*ALIKE, *shared} if quick is None else {*names} - {*quick}
    slow |= {name for name in names if name.partition(":")[0] in crewed}
    marks = {name: pytest.mark.thorough for name in THOROUGH if quick is None} | dict.fromkeys(slow, pytest.mark.slow)
    return [pytest.param(name, id=name, marks=marks.get(name, ())) for name in names]


def is_on_policy(algo: str) -> bool:
    """Whether an algorithm, or a case of it, learns from what its members have just done."""
    return algos.on_policy(algos.get(algo.partition(":")[0]))


def _kinds(algo: str) -> list[str]:
    """The kinds of actions that an algorithm, or a case of it, is tested with; discrete ones first."""
    name, _, kind = algo.removesuffix(":shared").partition(":")
    return [kind] if kind else [kind for kind in ENVIRONMENTS if kind in algos.get(name).ACTIONS]


def env_for(algo: str) -> str:
    """A small environment with actions that an algorithm serves."""
    return TEAM if algos.get(algo.partition(":")[0]).TEAM else ENVIRONMENTS[_kinds(algo)[0]]


def rates(algo: str) -> list[str]:
    """The names of an algorithm's learning rates."""
    return [name for name in evolvable(algos.get(algo.partition(":")[0]).Config) if name.startswith("lr")]


def problem(
    env: str | None = None,
    algo: str = "dqn",
    seed: int = 3,
    cohorts: Literal["merged", "exact"] = "exact",
    train: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    mutation: Mapping[str, Any] | None = None,
    tournament: Mapping[str, Any] | None = None,
    num_envs: int = 4,
    kwargs: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
) -> EnvSpec:
    """A small problem: exact cohorts, a replay memory a member, nets of 16 units; any block can be changed."""
    name, own = algo.partition(":")[0], dict(kwargs or {})
    found = algos.get(name)
    if (found.TEAM or (env or "").startswith("envs_for_tests:")) and _kinds(algo)[0] != "discrete":
        own["kind"] = _kinds(algo)[0]
    env_config = EnvConfig.model_validate({"id": env or env_for(algo), "num_envs": num_envs, "kwargs": own})
    sizes = {"batch_size": 32, "learn_step": 2}
    if is_on_policy(name):
        sizes = {key: value for key, value in ON_POLICY.items() if key in found.Config.model_fields}
    block = {"network": {"encoder": [16], "latent": 16}, **sizes, **(config or {})}
    if algo.endswith(":shared"):
        block |= {"share_encoder": True, "network": {"head": [16], **block["network"]}}
    small = {
        "algo": name, "max_steps": 600, "evo_steps": 200, "learning_delay": 50, "warm_start": 0, "eval_episodes": 2,
        "eval_steps": 30, "target": None, "confirm_episodes": 4,
        "replay": {"capacity": 2000, "sharing": "own"}, **(train or {}),
    }  # fmt: skip
    return EnvSpec(
        seed=seed,
        env=env_config,
        train=TrainConfig.model_validate(small),
        tournament=TournamentConfig.model_validate(dict(tournament or {})),
        mutation=MutationConfig.model_validate(dict(mutation or {})),
        search=SearchConfig.model_validate(dict(search or {})),
        algo=found,
        algo_config=found.Config.model_validate(block),
        spaces=spaces_of(env_config, name),
        device=CPU,
        cohorts=cohorts,
    )


def started(p: EnvSpec, size: int | list[Member]) -> Any:
    """A run with its first population."""
    return begin(p, first_members(p, size)[0] if isinstance(size, int) else size)


def close_generation(run: Run) -> None:
    """Evaluate and evolve, undisturbed."""
    run.close_generation(lambda: False)


def finish(run: Run) -> None:
    """Advance a run to its end."""
    while not run.reason:
        go_on(run)


@contextlib.contextmanager
def begun(params: Params, workers: Workers | None = None, league: Path | None = None) -> Iterator[Run]:
    """A run by its parameters, from its first members on; it is closed at the end of the block."""
    spec = make_spec(params)
    members, births = first_members(spec, params.population.size)
    with contextlib.closing(begin(spec, members, None, births, workers, league=league)) as run:
        yield run


def go_on(run: Run) -> None:
    """Take a tick; where a generation is over close it, or let others live."""
    if not run.clock.generation_over:
        run.advance()
    elif run.waiting:
        run.turn()
    else:
        close_generation(run)


def advance(run: Run, ticks: int) -> None:
    """Take so many ticks, generations included."""
    for _ in range(ticks):
        while run.clock.generation_over and not run.reason:
            go_on(run)
        run.advance()


def same(a: Member, b: Member) -> bool:
    """Whether two members have equal tensors, to the bit, NaN included."""
    return set(a.tensors) == set(b.tensors) and all(equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal to the bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def equal_states(a: tuple[Any, Any], b: tuple[Any, Any]) -> list[str]:
    """Names of what differs between two run states."""
    tensors = [n for n in a[0].keys() | b[0].keys() if n not in a[0] or n not in b[0] or not equal(a[0][n], b[0][n])]
    return sorted(tensors) + [n for n in a[1].keys() | b[1].keys() if repr(a[1].get(n)) != repr(b[1].get(n))]


def make_unlike(run: Any) -> None:
    """Give every living member numbers of its own in all hyper-parameters that are no counts, and as bounds."""
    for cohort in run.cohorts:
        share = torch.tensor([1.0 - 0.17 * slot for slot in cohort.slots])
        whole = {name for member in cohort.members for name, value in member.hyper.items() if isinstance(value, int)}
        for name in cohort.hyper.keys() - whole:
            cohort.hyper[name].mul_(share)
        if cohort.normaliser is not None:  # an elite of another run brings its own
            cohort.normaliser.clip.copy_(share)


def memory_of(run: Any, slot: int, name: str = "rows") -> torch.Tensor:
    """What a slot's member learns from: its own replay memory, or a tensor of its rollout."""
    tensor: torch.Tensor
    if isinstance(run.regime, OnPolicy):
        i = next(i for i, cohort in enumerate(run.cohorts) if slot in cohort.slots)
        tensor = getattr(run.regime.playing[i].rollout, name)[run.cohorts[i].slots.index(slot)]
    else:
        tensor = run.regime.replay.rows[slot]
    return tensor


def rollouts(run: Any) -> list[Rollout]:
    """What each cohort did since it last learned."""
    return [each.rollout for each in run.regime.playing]


def shown(pool: EnvPool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What members act by, of every row of a pool: observation, legal actions, whether an episode begins."""
    return pool.obs, pool.mask, pool.episode_length == 0


def of_slot(cohorts: Sequence[Cohort], slot: int) -> tuple[Cohort, int]:
    """The cohort that a slot's member trains in, and its row there."""
    cohort = next(c for c in cohorts if slot in c.slots)
    return cohort, cohort.slots.index(slot)


def alone(p: EnvSpec, slot: int) -> Member:
    """The first member of a slot, moved to slot 0 with its own key: for a population of one."""
    key = int(rng.member_keys(p.seed, [slot])[0])
    member = first_members(p, slot + 1)[0][slot]
    assert member.key == key
    return replace(member, slot=0)


def unlike(algo: str, norm: bool = False, cohorts: Literal["merged", "exact"] = "exact", **train: Any) -> EnvSpec:
    """A problem whose members differ in all that may differ."""
    network = {"encoder": [16], "latent": 16, "layer_norm": norm}
    faster = {rate: {"min": 1e-4, "max": 1e-2} for rate in rates(algo)}
    config = {"network": network, "evolve": {"batch_size": {"min": 16, "max": 64}, **faster}}
    return problem(algo=algo, mutation=UNLIKE, cohorts=cohorts, config=config, train=train)


def batch_for(p: EnvSpec, cohort: Cohort, seed: int = 0) -> Batch:
    """Random transitions of the right shapes for a cohort."""
    if p.spaces.team:
        team = transitions(p.spaces, seed, members=len(cohort.members), rows=cohort.batch)
        return replace(team, weight=cohort.weight)
    g = torch.Generator().manual_seed(seed)
    shape = (len(cohort.members), cohort.batch)
    return Batch(
        obs=torch.randn(*shape, p.observations, generator=g),
        action=torch.rand(*shape, p.actions, generator=g) * 2 - 1
        if p.spaces.continuous
        else torch.randint(p.actions, shape, generator=g),
        reward=torch.randn(*shape, generator=g),
        discount=(torch.rand(*shape, generator=g) > 0.2).float(),
        next_obs=torch.randn(*shape, p.observations, generator=g),
        next_legal=None,
        weight=cohort.weight,
    )


def legal_for(p: EnvSpec, shape: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
    """Random masks `[*shape, A]` that leave a legal choice everywhere."""
    legal = torch.rand(*shape, p.actions, generator=g) < 0.6
    first = 0
    for choices in p.spaces.choices if p.spaces.kind in ("discrete", "multidiscrete", "mixed") else ():
        always = first + torch.randint(choices, (*shape, 1), generator=g)
        legal, first = legal.scatter(-1, always, True), first + choices
    if p.spaces.kind == "mixed":
        legal[..., first:] = True  # numbers are never ruled out
    return legal


def own_for(p: EnvSpec, shape: tuple[int, ...]) -> torch.Tensor:
    """Masks `[*shape, A]` of all that there is to choose; of agents `[P, …, E · K, A]` each one's own."""
    if p.spaces.team is None or p.spaces.kind != "discrete":
        return torch.ones(*shape, p.actions, dtype=torch.bool)
    each = torch.stack([own(k, p.spaces.team.actions) for k in range(p.spaces.agents)])
    return each.repeat(shape[-1] // p.spaces.agents, 1).expand(*shape, -1)


def rollout_for(
    p: EnvSpec, cohort: Cohort, seed: int = 0, ticks: int = TICKS, envs: int = 4, masked: bool = False,
    broken: float = 0.05,
) -> Rollout:  # fmt: skip
    """What a cohort did on random observations, with random rewards, ends and broken steps; who of a team is there next
    is random, too."""
    envs, masked = envs * p.spaces.agents, masked or (p.spaces.team is not None and p.spaces.kind == "discrete")
    g, members = torch.Generator().manual_seed(seed), len(cohort.members)
    shape, device = (members, ticks, envs), cohort.keys.device
    size = cohort.memory
    rollout = Rollout(StepLayout(p.spaces, masked), members, ticks, envs, size, device)
    obs, after = (torch.randn(*shape, p.observations, generator=g).to(device) for _ in range(2))
    reward = torch.randn(*shape, generator=g).to(device)
    terminated, truncated, bad = (torch.rand(*shape, generator=g) < share for share in (0.1, 0.1, broken))
    begins = torch.cat((torch.ones(members, 1, envs, dtype=torch.bool), (terminated | truncated | bad)[:, :-1]), dim=1)
    legal = own_for(p, shape) if p.spaces.team or not masked else legal_for(p, shape, g)
    terminated, truncated, bad, begins, legal = (x.to(device) for x in (terminated, truncated, bad, begins, legal))
    memory = torch.zeros(members, envs, size, device=device)
    left = torch.tensor([GONE, ACTS, ACTS, CUT], dtype=torch.float32)[torch.randint(4, shape, generator=g)].to(device)
    for t in range(ticks):
        took = acting.step(p, cohort, obs[:, t], legal[:, t], begins[:, t], memory, 1000 * seed + t)
        rollout.enter(t, obs[:, t], legal[:, t], begins[:, t], memory, took)
        memory = took.memory
        next_alive = [left[:, t]] if p.spaces.team else []
        rollout.finish(t, after[:, t], reward[:, t], terminated[:, t], truncated[:, t], bad[:, t], *next_alive)
    return rollout


def draw_at(cohort: Cohort, step: int = 0) -> Stream:
    """The draws of an update."""
    return Stream(cohort.keys, Purpose.UPDATE, torch.tensor([step], device=cohort.keys.device))


def updated(p: EnvSpec, cohort: Cohort, times: int = 5) -> list[Member]:
    """Members after some updates on random transitions, or after some random rollouts."""
    if algos.on_policy(p.algo):
        for i in range(times):
            learn_from_rollout(p, cohort, rollout_for(p, cohort, i), TICKS, i)
        return dissolve([cohort])
    for i in range(times):
        batch = batch_for(p, cohort, i)
        rate = discount_rate(cohort).view(-1, *[1] * (batch.discount.ndim - 1))
        batch = replace(batch, discount=batch.discount * rate)
        update(p, cohort, batch, i)
    return dissolve([cohort])


def update(p: EnvSpec, cohort: Cohort, batch: Batch, i: int) -> Learned:
    """The i-th of some updates, from 0: the cohort's tensors change in place."""
    draw = draw_at(cohort, i)
    learned = p.algo.update(p.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, i % p.period)
    cohort.healthy.copy_(learned.healthy)
    return learned


def plant_weight(run: Any, slot: int) -> None:
    """Spoil one weight of the network that acts."""
    cohort, row = of_slot(run.cohorts, slot)
    acts = getattr(cohort.state, run.spec.algo.POLICY)
    structure = getattr(acts.structure, "inner", acts.structure)  # of the first of a team's networks
    acts.values[row, structure.index[row * acts.structure.widths.copies][0]] = math.nan


def mutated(
    kind: str, cfg: MutationConfig, traits: Traits, member: Member, rng: np.random.Generator
) -> tuple[Member, Mutation] | None:
    """One mutation of a kind; None where none is possible."""
    weights = {each: float(each == kind) for each in cfg.probabilities.model_dump()}
    always = cfg.model_copy(update={"probabilities": MutationConfig.Probabilities(**weights)})
    child, mutation = mutate(always, traits, member, rng)
    return None if mutation is NONE else (child, mutation)
