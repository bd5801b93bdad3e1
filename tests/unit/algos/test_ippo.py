"""IPPO and MAPPO: by brute force, agent by agent, and by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import distributions as td

from crews import GROUPS, OBS, SPACES, TEAM, A, B, Crewed, K, P, Plain, masks, own, part, transitions
from evopipe.core.cohort import Cohort, dissolve
from evopipe.rng import Purpose, Stream
from evopipe.schema.network import NetworkConfig
from evopipe.types import Image, Sequences, Spaces, Team
from populations import same

pytestmark = pytest.mark.numerical
NAMES = ("ippo", "mappo")
CHOICES = Spaces(OBS, 5, kind="multidiscrete", choices=(2, 3), team=replace(TEAM, actions=(5, 5, 5)))
KINDS = {**SPACES, "multidiscrete": CHOICES}
each_algorithm = pytest.mark.parametrize("name", NAMES)
each_kind = pytest.mark.parametrize("kind", list(KINDS))


@pytest.fixture
def double() -> Iterator[None]:
    """Whatever is made without a type is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def steps(spaces: Spaces, at: int = 0, masked: bool = False, length: int = 1, memory: int = 0) -> Sequences:
    """Random steps of teams; some agents are gone, and count nothing."""
    assert spaces.team is not None
    g, shape = torch.Generator().manual_seed(10 + at), (P, B * K, length)
    several = [transitions(spaces, 10 * at + i, masked) for i in range(length)]

    def of(name: str) -> torch.Tensor:
        return torch.stack([getattr(batch, name).flatten(1, 2) for batch in several], dim=2)

    action = of("action")
    if spaces.kind == "multidiscrete":
        action = torch.stack([torch.randint(n, shape, generator=g) for n in spaces.choices], dim=-1)
    elif spaces.continuous:
        pads = ~torch.stack([own(k, spaces.team.actions, spaces.actions) for k in range(K)]).repeat(B, 1)
        action = action.masked_fill(pads[:, None], 0.0)
    weight = of("alive") * torch.rand(shape, generator=g)
    if at == 1:
        weight[2] = 0.0  # the last member has no minibatch
    return Sequences(
        obs=of("obs"), action=action, legal=of("legal") if masked else None,
        log_prob=-1.0 - torch.rand(shape, generator=g), value=torch.randn(shape, generator=g),
        advantage=3 * torch.randn(shape, generator=g), target=torch.randn(shape, generator=g),
        begins=torch.rand(shape, generator=g) < 0.3, memory=torch.zeros(P, B * K, memory),
        weight=weight / weight.sum(dim=(1, 2), keepdim=True).clamp(min=1e-9),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ against plain agents


def policy(agent: Plain, k: int, obs: torch.Tensor, legal: torch.Tensor | None) -> list[Any]:
    """What an agent may do, each number of its action by itself, as torch.distributions has it."""
    spaces, out = agent.cfg.spaces, agent.net("actor", k, obs)
    if spaces.continuous:
        g = next(i for i, group in enumerate(agent.groups) if k in group)
        std = agent.values["log_std"].view(len(agent.groups), -1)[g].exp()
        a = spaces.team.actions[k]
        return [td.Normal(out[:, j], std[j].expand(len(out))) for j in range(a)]
    if legal is not None:
        out = out.masked_fill(~legal, -1e300)
    if spaces.kind == "multidiscrete":
        return [td.Categorical(logits=part) for part in out.split(list(spaces.choices), dim=1)]
    return [td.Categorical(logits=out[:, : spaces.team.actions[k]])]


def plain_loss(agent: Plain, name: str, batch: Sequences) -> tuple[torch.Tensor, float]:
    """The paper's loss of one member, group by group, and its distance from the old policy."""
    cfg, hp = agent.cfg, agent.hyper
    x = {f.name: getattr(batch, f.name) for f in fields(batch)}
    x = {n: None if v is None else v[:, 0].unflatten(0, (B, K)) for n, v in x.items() if n != "memory"}
    seen = torch.cat([x["obs"][:, k, :o] for k, o in enumerate(TEAM.observations)], dim=1)
    loss, distance = torch.zeros(()), 0.0
    for group in agent.groups:
        mine: list[tuple[torch.Tensor, ...]] = []
        for k in group:
            chances = policy(agent, k, x["obs"][:, k], None if x["legal"] is None else x["legal"][:, k])
            action = x["action"][:, k] if x["action"].ndim == 3 else x["action"][:, k, None]
            log_prob = sum(one.log_prob(action[:, j]) for j, one in enumerate(chances))
            entropy = sum(one.entropy() for one in chances)
            value = agent.net("critic", k, x["obs"][:, k] if name == "ippo" else seen)[:, 0]
            known = (x[n][:, k] for n in ("weight", "log_prob", "advantage", "target", "value"))
            mine.append((log_prob, entropy, value, *known))
        log_prob, entropy, value, weight, old, advantage, target, before = map(torch.cat, zip(*mine, strict=True))
        if not weight.any():
            continue
        apart = log_prob - old - pad_density(agent, group, batch)
        distance += float((weight * (apart.exp() - 1 - apart)).detach().sum())
        weight = weight / weight.sum()
        if cfg.normalise_advantage:
            mean = (weight * advantage).sum()
            advantage = (advantage - mean) / ((weight * (advantage - mean) ** 2).sum().sqrt() + 1e-8)
        ratio = apart.exp()
        gain = torch.min(ratio * advantage, ratio.clamp(1 - hp["clip"], 1 + hp["clip"]) * advantage)
        error = (value - target) ** 2
        if cfg.clip_value:
            error = torch.max(error, (before + (value - before).clamp(-hp["clip"], hp["clip"]) - target) ** 2)
        loss = loss + (weight * (-gain + hp["vf_coef"] * error / 2 - hp["ent_coef"] * entropy)).sum()
    return loss, distance


def pad_density(agent: Plain, group: list[int], batch: Sequences) -> torch.Tensor:
    """What the program's log-densities have more, ½ for each number that an agent does not have; and so have old ones.
    Here old ones are given, not found: they are meant without."""
    spaces = agent.cfg.spaces
    missing = [spaces.actions - spaces.team.actions[k] if spaces.continuous else 0 for k in group]
    return torch.tensor(missing).repeat_interleave(B) * -0.5


CASES = [
    *itertools.product(NAMES, KINDS, GROUPS, [False]),
    *((name, "discrete", share, True) for name in NAMES for share in GROUPS),
]


@pytest.mark.parametrize(("name", "kind", "share", "masked"), CASES)
@pytest.mark.thorough
def test_updates_are_those_of_plain_agents(name: str, kind: str, share: Any, masked: bool, double: None) -> None:
    """Weights and deviations after minibatches in which agents are gone; each member by its own hyper-parameters."""
    config = {"normalise_advantage": kind != "discrete" or not masked, "clip_value": share == "all"}
    given = Crewed(name, KINDS[kind], share=share, **config)
    cohort = given.cohort()
    agents, resting = [Plain(given, m, GROUPS[share]) for m in given.members], [False] * P
    for at, turn in enumerate((0, 1, 1, 0)):
        batch = steps(KINDS[kind], at, masked)
        learned = given.update(cohort, batch, turn, at)
        assert learned.healthy.all()
        for i, (agent, member) in enumerate(zip(agents, dissolve([cohort]), strict=True)):
            loss, distance = plain_loss(agent, name, part(batch, i))
            torch.testing.assert_close(learned.losses[i], loss.detach(), rtol=1e-6, atol=1e-8)
            far = 0 < agent.hyper["target_kl"] < distance
            resting[i] = far or (resting[i] and turn > 0)
            if not resting[i] and batch.weight[i].any():
                rate = agent.hyper["lr"]
                rates = {"log_std": rate} if KINDS[kind].continuous else {}
                agent.descend(loss, together=True, actor=rate, critic=rate, **rates)
            assert agent.differs(member.tensors) == [], (i, at)


# ----------------------------------------------------------------------------------------------------------- mechanisms


@each_algorithm
def test_a_value_of_mappo_sees_what_others_see_and_one_of_ippo_and_the_actors_do_not(name: str) -> None:
    given = Crewed(name, SPACES["discrete"])
    state, obs, none = given.cohort().state, transitions(SPACES["discrete"]).obs, torch.zeros(P, B * K, 0)
    base = given.algo.step(given.cfg, state, obs.flatten(1, 2), None, none, None)
    out = given.algo.answers(given.cfg).chances(given.cfg, state, obs.flatten(1, 2), None, none)  # type: ignore[misc]
    for j in range(K):
        moved = obs.clone()
        moved[:, :, j, 0] += 1.0
        found = given.algo.step(given.cfg, state, moved.flatten(1, 2), None, none, None)
        assert torch.equal(found.value, given.algo.value(given.cfg, state, moved.flatten(1, 2), none))
        differs = (found.value != base.value).unflatten(1, (-1, K))
        assert differs[:, :, j].all()
        others = [k for k in range(K) if k != j]
        assert differs[:, :, others].any() == differs[:, :, others].all() == (name == "mappo")
        chances = given.algo.answers(given.cfg).chances(given.cfg, state, moved.flatten(1, 2), None, none)  # type: ignore[misc]
        unlike = (chances.log_probs != out.log_probs).any(dim=-1).unflatten(1, (-1, K))[:, :, others]
        assert not unlike.any()


@each_algorithm
@each_kind
def test_what_was_played_has_ratio_one_to_itself(name: str, kind: str) -> None:
    """The log-probability and the value that a step tells are those that learning finds: with a mask, too."""
    given = Crewed(name, KINDS[kind], share="group")
    state, batch = given.cohort().state, transitions(KINDS[kind], masked=kind == "discrete")
    legal = None if batch.legal is None else batch.legal.flatten(1, 2)
    draw = Stream(given.cohort().keys, Purpose.ACT, torch.tensor([3]))
    took = given.algo.step(given.cfg, state, batch.obs.flatten(1, 2), legal, torch.zeros(P, B * K, 0), draw)
    played = replace(
        steps(KINDS[kind]), obs=batch.obs.flatten(1, 2)[:, :, None], action=took.action[:, :, None],
        legal=None if legal is None else legal[:, :, None],
    )  # fmt: skip
    algo: Any = given.algo
    chances, values = algo._evaluate(given.cfg, state, played, state.log_std)
    done = took.action.unflatten(1, (-1, K)).transpose(1, 2)
    torch.testing.assert_close(chances.log_prob(done).transpose(1, 2).flatten(1), took.log_prob)
    torch.testing.assert_close(values.transpose(1, 2).flatten(1), took.value)
    assert took.action.shape == (P, B * K, *KINDS[kind].action_shape)
    if legal is not None:
        assert legal.gather(-1, took.action[..., None]).all()
    best = given.algo.greedy(given.cfg, state, batch.obs.flatten(1, 2), legal)
    still = given.algo.step(given.cfg, state, batch.obs.flatten(1, 2), legal, torch.zeros(P, B * K, 0), None)
    assert torch.equal(best, still.action)


@each_algorithm
def test_numbers_that_an_agent_does_not_have_are_zero_and_add_no_entropy(name: str) -> None:
    given = Crewed(name, SPACES["continuous"], share="none")
    state, obs = given.cohort().state, transitions(SPACES["continuous"]).obs.flatten(1, 2)
    draw = Stream(given.cohort().keys, Purpose.ACT, torch.tensor([3]))
    may = torch.stack([own(k, TEAM.actions) for k in range(K)]).repeat(B, 1).expand(P, -1, -1)
    for each in (draw, None):
        action = given.algo.step(given.cfg, state, obs, None, torch.zeros(P, B * K, 0), each).action
        assert (action[~may] == 0.0).all()
        assert (action[may] != 0.0).all()
    algo: Any = given.algo
    chances, _ = algo._evaluate(given.cfg, state, steps(SPACES["continuous"]), state.log_std)
    std = state.log_std.view(P, K, A)
    for k, a in enumerate(TEAM.actions):
        expected = (std[:, k, :a] + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=-1)
        torch.testing.assert_close(chances.entropy()[:, k], expected[:, None].expand(-1, B), atol=1e-6, rtol=1e-6)


@each_algorithm
def test_advantages_are_normalised_in_each_group_by_itself(name: str) -> None:
    """Whatever another group's are: a policy of equal chances learns the same."""
    for share, with_others in (("none", False), ("group", False), ("all", True)):
        given = Crewed(name, SPACES["discrete"], share=share)
        batch = steps(SPACES["discrete"])
        moved = replace(batch, advantage=batch.advantage.clone())
        moved.advantage.unflatten(1, (-1, K))[:, :, 1] *= 40.0
        found = [given.updated(given.cohort(), each, 0, 0) for each in (batch, moved)]
        for old, new in zip(*found, strict=True):
            groups = [x.tensors["actor"].chunk(len(GROUPS[share]))[0] for x in (old, new)]
            assert torch.allclose(*groups, rtol=0, atol=1e-7) != with_others or old.hyper["target_kl"] == 1e-9


@each_algorithm
def test_who_is_gone_teaches_nothing(name: str) -> None:
    given = Crewed(name, SPACES["continuous"], share="group")
    batch = steps(SPACES["continuous"])
    gone = batch.weight == 0
    assert gone.any()
    spoilt = replace(
        batch, advantage=batch.advantage.masked_fill(gone, 99.0), target=batch.target.masked_fill(gone, -99.0),
        action=batch.action.masked_fill(gone[..., None], 0.3), log_prob=batch.log_prob.masked_fill(gone, -5.0),
    )  # fmt: skip
    found = [given.updated(given.cohort(), each, 0, 0) for each in (batch, spoilt)]
    assert all(same(a, b) for a, b in zip(*found, strict=True))


@each_algorithm
@pytest.mark.parametrize("share", GROUPS)
def test_a_sequence_is_what_steps_with_a_memory_give(name: str, share: str) -> None:
    """An LSTM for policy and value: every agent remembers for itself, and forgets where its episode begins."""
    given, length = Crewed(name, SPACES["discrete"], kind="lstm", share=share), 4
    cohort = given.cohort()
    g = torch.Generator().manual_seed(2)
    batch = steps(SPACES["discrete"], length=length, memory=cohort.memory)
    batch = replace(batch, memory=torch.randn(batch.memory.shape, generator=g) * given_units(cohort))
    algo: Any = given.algo
    chances, values = algo._evaluate(given.cfg, cohort.state, batch, cohort.state.log_std)
    memory = batch.memory
    for t in range(length):
        memory = memory.masked_fill(batch.begins[:, :, t, None], 0.0)
        took = given.algo.step(given.cfg, cohort.state, batch.obs[:, :, t], None, memory, None)
        of_step = given.algo.answers(given.cfg).chances(given.cfg, cohort.state, batch.obs[:, :, t], None, memory)  # type: ignore[misc]
        mine = values.unflatten(2, (B, length))[..., t].transpose(1, 2).flatten(1)
        torch.testing.assert_close(mine, took.value)
        mine = chances.log_probs.unflatten(2, (B, length))[:, :, :, t].transpose(1, 2).flatten(1, 2)
        torch.testing.assert_close(mine, of_step.log_probs)
        memory = took.memory
    given.update(cohort, batch, 0, 0)
    assert cohort.healthy.all()


def given_units(cohort: Cohort) -> torch.Tensor:
    """1 on the numbers of a memory that a member has, 0 on pads: what they are after a step from random ones."""
    widths = [width for net in (cohort.state.actor, cohort.state.critic) for width in net.structure.memory_widths]
    units = torch.tensor([m.arch.encoder[0].width for m in cohort.members])[:, None]
    return torch.cat([(torch.arange(width) < units).float() for width in widths], dim=1)[:, None]


@each_algorithm
def test_agents_see_images_through_convolutions(name: str) -> None:
    """A value of MAPPO reads its own agent's image, and of the others what lies in none."""
    image = Image(1, 1, 6, 6)
    spaces = Spaces(38, 2, images=(image,), team=Team(("a_0", "a_1"), (38, 38), (2, 2)))
    from evopipe.core.arch import Arch

    arch = Arch.start(NetworkConfig(encoder=(8,), latent=8, conv=(NetworkConfig.Conv(channels=3, kernel=3, stride=2),)),
                      (image,))  # fmt: skip
    given = Crewed(name, spaces, arch=arch)
    assert given.widths["critic"].inputs == (38 + 2 if name == "ippo" else 38 + 2 * 2 + 2)
    state, obs = given.cohort().state, torch.rand(P, B * 2, 38, generator=torch.Generator().manual_seed(1))
    base = given.algo.value(given.cfg, state, obs, torch.zeros(P, B * 2, 0)).unflatten(1, (B, 2))
    for column, others in ((0, name == "mappo"), (5, False), (37, name == "mappo")):
        moved = obs.clone().unflatten(1, (B, 2))
        moved[:, :, 1, column] += 1.0
        found = given.algo.value(given.cfg, state, moved.flatten(1, 2), torch.zeros(P, B * 2, 0)).unflatten(1, (B, 2))
        assert (found != base)[:, :, 1].any()
        assert bool((found != base)[:, :, 0].any()) == others, column


# -------------------------------------------------------------------------------------------------------- independence


@each_algorithm
@pytest.mark.parametrize(("kind", "net"), [("discrete", "mlp"), ("continuous", "mlp"), ("discrete", "lstm")])
def test_no_bit_of_a_member_depends_on_its_neighbours(name: str, kind: str, net: str) -> None:
    given = Crewed(name, SPACES[kind], alike=True, share="group", kind=net)
    together = given.cohort()
    batches = [steps(SPACES[kind], at, length=3, memory=together.memory) for at in (0, 2, 3)]
    for at, batch in enumerate(batches):
        given.update(together, batch, min(at, 1), at)
    whole = dissolve([together])
    assert not any(same(a, b) for a, b in zip(whole, given.members, strict=True))
    for i in range(P):
        alone, cut = given.cohort(i), given.cohort().part(i, i + 1)
        for cohort in (alone, cut):
            for at, batch in enumerate(batches):
                given.update(cohort, part(batch, i, keep=True), min(at, 1), at)
            assert same(dissolve([cohort])[0], whole[i])


@each_algorithm
def test_a_number_that_is_none_freezes_its_member_alone(name: str) -> None:
    """In either network, of any agent, and in any agent's advantage."""
    given = Crewed(name, SPACES["discrete"], alike=True, share="none")
    batch = steps(SPACES["discrete"])
    clean = given.updated(given.cohort(), batch, 0, 0)
    for net, k in itertools.product(("actor", "critic"), range(K)):
        cohort = given.cohort()
        getattr(cohort.state, net).values.view(P, K, -1)[1, k, 3] = torch.nan
        after = given.updated(cohort, batch, 0, 0)
        assert [m.healthy for m in after] == [True, False, True], (net, k)
        assert all(same(after[i], clean[i]) for i in (0, 2)), (net, k)
    advantage = batch.advantage.clone()
    advantage[1, batch.weight[1, :, 0].argmax()] = torch.nan
    after = given.updated(given.cohort(), replace(batch, advantage=advantage), 0, 0)
    assert [m.healthy for m in after] == [True, False, True]
    assert all(same(after[i], clean[i]) for i in (0, 2))


def test_masks_of_agents_with_unlike_numbers_of_choices_hold_without_being_given() -> None:
    given = Crewed("ippo", SPACES["discrete"])
    state, obs = given.cohort().state, transitions(SPACES["discrete"]).obs.flatten(1, 2)
    draw = Stream(given.cohort().keys, Purpose.ACT, torch.tensor([3]))
    drawn = given.algo.step(given.cfg, state, obs, None, torch.zeros(P, B * K, 0), draw).action.unflatten(1, (-1, K))
    assert (drawn < torch.tensor(TEAM.actions)).all()
    g = torch.Generator().manual_seed(1)
    assert (masks(SPACES["discrete"], (50,), g).sum(dim=0) > 0).sum(dim=-1).tolist() == list(TEAM.actions)
