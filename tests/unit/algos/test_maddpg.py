"""MADDPG and MATD3: by brute force, agent by agent, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from crews import GROUPS, OBS, SPACES, TEAM, A, B, Crewed, K, P, Plain, masks, own, part, transitions
from evopipe import algos
from evopipe.algos import _central
from evopipe.core.cohort import dissolve
from evopipe.core.groups import agent_groups
from evopipe.core.member import Member, tensor_kinds
from evopipe.rng import Purpose, Stream
from evopipe.types import ACTS, CUT, Spaces, Team
from populations import same

pytestmark = pytest.mark.numerical
NAMES = ("maddpg", "matd3")
each_algorithm = pytest.mark.parametrize("name", NAMES)
each_kind = pytest.mark.parametrize("kind", list(SPACES))


@pytest.fixture
def double() -> Iterator[None]:
    """Whatever is made without a type is in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------------------ against plain agents


def joint(batch: Any, obs: torch.Tensor, acts: list[torch.Tensor]) -> torch.Tensor:
    """What critics read: everyone's own observation, then everyone's own actions."""
    seen = [obs[:, k, :o] for k, o in enumerate(TEAM.observations)]
    return torch.cat(seen + [act[:, :a] for act, a in zip(acts, TEAM.actions, strict=True)], dim=1)


def gumbel(draw: Stream) -> torch.Tensor:
    return -(-torch.log1p(-draw.uniform(B * K * A)[0])).log().view(K, B, A).transpose(0, 1)


def logits(out: torch.Tensor, legal: torch.Tensor | None, k: int) -> torch.Tensor:
    may = own(k, TEAM.actions) if legal is None else legal[:, k]
    return out.masked_fill(~may, -torch.inf).log_softmax(dim=1)


def plain_update(agent: Plain, name: str, batch: Any, draw: Stream, turn: int) -> torch.Tensor:
    """The papers' update of one member; return the critics' loss. A target of agent k is a value of those that act
    next, and where k was truncated itself of those that were truncated with it."""
    cfg, continuous, twins = agent.cfg, agent.cfg.spaces.continuous, 2 if name == "matd3" else 1
    critic = "critics" if twins == 2 else "critic"

    def there(k: int, j: int) -> torch.Tensor:
        cut = (batch.next_alive[:, j] == CUT) & (batch.next_alive[:, k] == CUT)
        return ((batch.next_alive[:, j] == ACTS) | cut).to(batch.obs)[:, None]

    with torch.no_grad():
        acts = []
        for k in range(K):
            out = agent.net("actor_target", k, batch.next_obs[:, k])
            if continuous:
                act = torch.tanh(out)
                if twins == 2:
                    noise = cfg.target_noise * draw.normal(B * K * A).view(K, B, A)[k]
                    act = (act + noise.clamp(-cfg.target_clip, cfg.target_clip)).clamp(-1, 1)
            else:
                act = torch.eye(A)[(logits(out, batch.next_legal, k) + gumbel(draw)[:, k]).argmax(dim=1)]
            acts.append(act)
        y = []
        for k in range(K):
            seen = torch.stack([batch.next_obs[:, j] * there(k, j) for j in range(K)], dim=1)
            x = joint(batch, seen, [acts[j] * there(k, j) for j in range(K)])
            q = torch.stack([agent.net(f"{critic}_target", k, x, i, twins)[:, 0] for i in range(twins)])
            y.append(batch.reward[:, k] + batch.discount[:, k] * q.amin(dim=0))
    taken = [batch.action[:, k] if continuous else torch.eye(A)[batch.action[:, k]] for k in range(K)]
    taken = [each * batch.alive[:, k, None] for k, each in enumerate(taken)]
    loss, obs = torch.zeros(()), batch.obs * batch.alive[..., None]
    for k, i in itertools.product(range(K), range(twins)):
        error = agent.net(critic, k, joint(batch, obs, taken), i, twins)[:, 0] - y[k]
        loss = loss + (batch.weight * batch.learns[:, k] * error**2).sum()
    agent.descend(loss, **{critic: agent.hyper["lr_critic"]})
    if turn == cfg.policy_delay - 1:
        climb = torch.zeros(())
        for k in range(K):
            out = agent.net("actor", k, batch.obs[:, k])
            if continuous:
                mine = torch.tanh(out)
            else:
                scores = logits(out, batch.legal, k) + gumbel(draw.part(1))[:, k]
                soft = (scores / cfg.temperature).softmax(dim=1)
                mine = torch.eye(A)[scores.argmax(dim=1)] + soft - soft.detach()
            x = joint(batch, obs, [mine if j == k else taken[j] for j in range(K)])
            penalty = cfg.output_penalty * out[:, : TEAM.actions[k]].square().mean(dim=1)
            each = penalty - agent.net(critic, k, x, 0, twins)[:, 0]
            climb = climb + (batch.weight * batch.learns[:, k] * each).sum()
        agent.descend(climb, actor=agent.hyper["lr_actor"])
        agent.follow(**{f"{critic}_target": critic, "actor_target": "actor"})
    return loss.detach()


@pytest.mark.parametrize(
    ("name", "kind", "share", "masked"),
    [
        *((name, kind, share, False) for name in NAMES for kind in SPACES for share in GROUPS),
        *((name, "discrete", "group", True) for name in NAMES),
    ],
)
@pytest.mark.thorough
def test_updates_are_those_of_plain_agents(name: str, kind: str, share: Any, masked: bool, double: None) -> None:
    """Weights and targets after updates in which agents are gone, die and bootstrap; each member by its own rates."""
    given = Crewed(name, SPACES[kind], share=share, policy_delay=2, temperature=0.7, output_penalty=0.1)
    cohort = given.cohort()
    agents = [Plain(given, m, GROUPS[share]) for m in given.members]
    for at, turn in enumerate((0, 1, 0, 1)):
        batch = transitions(SPACES[kind], at, masked)
        learned = given.update(cohort, batch, turn, at)
        assert learned.healthy.all()
        for i, (agent, member) in enumerate(zip(agents, dissolve([cohort]), strict=True)):
            draw = Stream(cohort.keys[i : i + 1], Purpose.UPDATE, torch.tensor([at]))
            loss = plain_update(agent, name, part(batch, i), draw, turn)
            torch.testing.assert_close(learned.losses[i], loss, rtol=1e-6, atol=1e-8)
            assert agent.differs(member.tensors) == [], (i, at)


# ----------------------------------------------------------------------------------------------------------- mechanisms


def critic_of(given: Crewed, state: Any) -> Any:
    return state.critics if "critics" in given.widths else state.critic


def q(given: Crewed, critic: Any, obs: torch.Tensor, acts: torch.Tensor) -> torch.Tensor:
    """Every agent's Q `[P, B, K]`, of twins `[2, P, B, K]`."""
    return _central.value(given.cfg, critic, obs, acts).transpose(-1, -2)


def numbers(given: Crewed, action: torch.Tensor) -> torch.Tensor:
    """Actions as critics read them, `[P, B, K, A]`."""
    return _central.as_numbers(given.cfg, action).clone()


def said(given: Crewed, state: Any, obs: torch.Tensor) -> torch.Tensor:
    """What actors say `[P, B, K, A]`."""
    return _central.output(given.cfg, state.actor, obs.transpose(1, 2)).transpose(1, 2).detach()


@each_algorithm
@each_kind
def test_a_critic_sees_what_others_see_and_do_and_an_actor_does_not(name: str, kind: str) -> None:
    given = Crewed(name, SPACES[kind])
    state, batch = given.cohort().state, transitions(SPACES[kind])
    critic = critic_of(given, state)
    obs, acts = batch.obs, numbers(given, batch.action)
    base = q(given, critic, obs, acts)
    for j in range(K):
        seen, done = obs.clone(), acts.clone()
        seen[:, :, j, 0] += 1.0
        done[:, :, j, 0] += 1.0
        for moved in (q(given, critic, seen, acts), q(given, critic, obs, done)):
            assert (moved != base).any(dim=-2).all(), "all critics, of whomever"
        out = given.algo.greedy(given.cfg, state, seen.flatten(1, 2), None).unflatten(1, (-1, K))
        was = given.algo.greedy(given.cfg, state, obs.flatten(1, 2), None).unflatten(1, (-1, K))
        others = [k for k in range(K) if k != j]
        assert torch.equal(out[:, :, others], was[:, :, others])


@each_algorithm
@each_kind
def test_nothing_depends_on_pads(name: str, kind: str) -> None:
    """Numbers of an observation or action that an agent does not have, in what is read by a critic or done."""
    given = Crewed(name, SPACES[kind], share="group")
    state, batch = given.cohort().state, transitions(SPACES[kind])
    critic = critic_of(given, state)
    obs, acts = batch.obs.clone(), numbers(given, batch.action)
    base = q(given, critic, obs, acts)
    for k in range(K):
        obs[:, :, k, TEAM.observations[k] :] = 9.0
        acts[:, :, k, TEAM.actions[k] :] = 9.0
    assert torch.equal(q(given, critic, obs, acts), base)
    seen, ones = batch.obs.flatten(1, 2), torch.ones(P, B * K, A, dtype=torch.bool)
    draw = Stream(given.cohort().keys, Purpose.ACT, torch.tensor([1]))
    may = torch.stack([own(k, TEAM.actions) for k in range(K)]).repeat(B, 1).expand(P, -1, -1)
    for found in (
        given.algo.greedy(given.cfg, state, seen, None),
        given.algo.act(given.cfg, state, seen, may if kind == "discrete" else ones, torch.full((P,), 0.5), draw),
    ):
        if kind == "discrete":
            assert may.gather(-1, found[..., None]).all()
        else:
            assert (found[~may] == 0.0).all()
            assert (found[may] != 0.0).all()


@each_algorithm
def test_a_larger_padding_gives_the_same_update(name: str, double: None) -> None:
    """Of a team in which nobody sees or does as much as `Spaces` has room for."""
    wide = Spaces(OBS, A, continuous=True, team=Team(("a_0", "b_0"), (2, 3), (2, 1)))
    given = Crewed(name, wide, target_noise=0.0) if name == "matd3" else Crewed(name, wide)
    tight = Crewed(name, replace(wide, observations=3, actions=2), **given.cfg.model_dump(exclude_unset=True))

    def cut(member: Member) -> dict[str, torch.Tensor]:
        """Its tensors without pads."""
        found = dict(member.tensors)
        for tensor, (_, network) in tensor_kinds(given.algo.State, given.widths).items():
            if network:
                parts = member.arch.named(given.widths[network], member.tensors[tensor])
                found[tensor] = torch.zeros(member.arch.size(tight.widths[network]))
                for part, there in member.arch.named(tight.widths[network], found[tensor]).items():
                    there.copy_(parts[part][tuple(map(slice, there.shape))])
        return found

    tight.members = [replace(m, tensors=cut(m)) for m in given.members]
    one, other = given.cohort(), tight.cohort()
    for at in range(2):
        batch = transitions(wide, at)
        narrow = replace(batch, obs=batch.obs[..., :3], next_obs=batch.next_obs[..., :3], action=batch.action[..., :2])
        given.update(one, batch, given.cfg.policy_delay - 1, at)
        tight.update(other, narrow, given.cfg.policy_delay - 1, at)
    for a, b in zip(dissolve([one]), dissolve([other]), strict=True):
        for tensor, without in cut(a).items():
            torch.testing.assert_close(b.tensors[tensor], without.to(b.tensors[tensor]), msg=tensor)


@each_algorithm
def test_the_target_by_hand(name: str, double: None) -> None:
    """y = r + discount Q⁻, of critics whose only numbers are their last biases; one that dies has its reward alone."""
    given = Crewed(name, SPACES["continuous"], share="none")
    state, batch = given.cohort().state, transitions(SPACES["continuous"])
    online, target = (getattr(state, n) for n in (("critic", "critic_target") if name == "maddpg" else
                                                  ("critics", "critics_target")))  # fmt: skip
    biases = torch.tensor([1.0, 2.0, 4.0] if name == "maddpg" else [1.0, 1.5, 2.5, 2.0, 4.0, 9.0])  # the least counts
    for net, values in ((online, 0.0 * biases), (target, biases)):
        net.values.zero_()
        net.views[-1].bias.detach()[..., 0] = values.repeat(P)[:, None]
    discount = torch.tensor([0.9, 0.0, 0.5]).expand(P, B, K)  # the second one dies
    reward = torch.tensor([1.0, -3.0, 0.5]).expand(P, B, K)
    alive = torch.tensor([1.0, 1.0, 0.0]).expand(P, B, K)  # the third one has died before
    batch = replace(batch, discount=discount, reward=reward, alive=alive, learns=alive)
    losses, errors = given.algo.loss(
        given.cfg, state, given.cohort().hyper, batch, Stream(given.cohort().keys, Purpose.UPDATE, torch.tensor([0]))
    )
    twins = 1 if name == "maddpg" else 2
    torch.testing.assert_close(losses, torch.full((P,), twins * ((1 + 0.9 * 1.0) ** 2 + 3.0**2)))
    torch.testing.assert_close(errors, torch.full((P, B), (1.9 + 3.0) / 2))


@each_algorithm
@each_kind
def test_who_is_gone_teaches_nothing(name: str, kind: str) -> None:
    """Whatever its reward, its action, and what stands in the place of what it saw and will see: neither its own
    networks, nor the others'."""
    given = Crewed(name, SPACES[kind], policy_delay=1)
    batch = transitions(SPACES[kind])
    gone = batch.alive == 0  # type: ignore[operator]
    assert gone.any()
    spoilt = replace(
        batch, reward=torch.where(gone, 99.0, batch.reward), discount=torch.where(gone, 0.3, batch.discount)
    )
    action = torch.zeros_like(batch.action)
    shaped = gone if kind == "discrete" else gone[..., None]
    after = (batch.next_alive == 0)[..., None]  # type: ignore[operator, index]
    spoilt = replace(
        spoilt, action=torch.where(shaped, action, batch.action), obs=torch.where(gone[..., None], 7.0, batch.obs),
        next_obs=torch.where(after, 7.0, batch.next_obs),
    )  # fmt: skip
    found = [given.updated(given.cohort(), each, 0, 0) for each in (batch, spoilt)]
    assert all(same(a, b) for a, b in zip(*found, strict=True))
    alone = replace(batch, learns=torch.ones_like(batch.reward) * torch.tensor([1.0, 0.0, 1.0]))
    cohort = given.cohort()
    before = dissolve([cohort])
    after = given.updated(cohort, alone, 0, 0)
    for old, new in zip(before, after, strict=True):
        for net in ("actor", "critic" if name == "maddpg" else "critics"):
            rows = [x.tensors[net].chunk(K) for x in (old, new)]
            assert [torch.equal(a, b) for a, b in zip(*rows, strict=True)] == [False, True, False], net


@each_algorithm
def test_agents_that_share_learn_from_each_other_and_others_do_not(name: str) -> None:
    """An update from one agent's steps alone moves its group's network, and only that."""
    moved = {"none": [True, False, False], "group": [True, False], "all": [True]}
    for share, groups in moved.items():
        given = Crewed(name, SPACES["continuous"], share=share, policy_delay=1)
        assert given.widths["actor"].copies == len(groups)
        batch = transitions(SPACES["continuous"])
        batch = replace(batch, learns=torch.ones_like(batch.reward) * torch.tensor([1.0, 0.0, 0.0]))
        before = given.members
        after = given.updated(given.cohort(), batch, 0, 0)
        for old, new in zip(before, after, strict=True):
            rows = [x.tensors["actor"].chunk(len(groups)) for x in (old, new)]
            assert [not torch.equal(a, b) for a, b in zip(*rows, strict=True)] == groups


def test_agents_that_share_are_told_apart() -> None:
    """Seeing the same, they may do unlike things: by the numbers behind what they see, and by nothing else."""
    twins = Spaces(2, 2, continuous=True, team=Team(("a_0", "a_1"), (2, 2), (2, 2)))
    given = Crewed("maddpg", twins, share="group")
    assert given.widths["actor"][:4] == (2 + 2, 2, "whole", 1)
    state, obs = given.cohort().state, torch.ones(P, 2, 2)
    first, second = given.algo.greedy(given.cfg, state, obs, None).unbind(dim=1)
    assert (first != second).any()
    state.actor.views[0].weight.detach()[:, 2:] = 0.0  # the rows that read who is who
    first, second = given.algo.greedy(given.cfg, state, obs, None).unbind(dim=1)
    assert torch.equal(first, second)


# -------------------------------------------------------------------------------------------------------------- acting


@each_algorithm
def test_discrete_actions_are_legal_draws_of_the_policy_while_training_and_its_best_ones_else(name: str) -> None:
    given = Crewed(name, SPACES["discrete"])
    state, g = given.cohort().state, torch.Generator().manual_seed(5)
    obs = transitions(SPACES["discrete"]).obs[:, :1].expand(-1, 4000, -1, -1)
    legal = masks(SPACES["discrete"], (P, 1), g).expand(-1, 4000, -1, -1)
    out = said(given, state, obs)
    chances = out.masked_fill(~legal, -torch.inf).softmax(dim=-1)[:, 0]
    seen, may = obs.flatten(1, 2), legal.flatten(1, 2)
    best = given.algo.greedy(given.cfg, state, seen, may).unflatten(1, (-1, K))
    assert torch.equal(best, chances.argmax(dim=-1)[:, None].expand_as(best))
    keys = given.cohort().keys
    for epsilon, expected in ((0.0, chances), (1.0, legal[:, 0] / legal[:, 0].sum(dim=-1, keepdim=True))):
        draw = Stream(keys, Purpose.ACT, torch.tensor([3]))
        drawn = given.algo.act(given.cfg, state, seen, may, torch.full((P,), epsilon), draw).unflatten(1, (-1, K))
        shares = torch.nn.functional.one_hot(drawn, A).float().mean(dim=1)
        assert float((shares - expected).abs().max()) < 4 * 0.5 / 4000**0.5
        assert (shares[~legal[:, 0]] == 0).all()


@each_algorithm
def test_continuous_actions_are_tanh_and_noise_while_training(name: str) -> None:
    given = Crewed(name, SPACES["continuous"], noise_sd=0.2)
    state, obs = given.cohort().state, transitions(SPACES["continuous"]).obs
    out = said(given, state, obs)
    may = torch.stack([own(k, TEAM.actions) for k in range(K)])
    expected = torch.where(may, torch.tanh(out.double()).float(), 0.0)
    assert torch.equal(given.algo.greedy(given.cfg, state, obs.flatten(1, 2), None), expected.flatten(1, 2))
    draw = Stream(given.cohort().keys, Purpose.ACT, torch.tensor([3]))
    legal = torch.ones(P, B * K, A, dtype=torch.bool)
    found = given.algo.act(given.cfg, state, obs.flatten(1, 2), legal, torch.zeros(P), draw).unflatten(1, (-1, K))
    noise = 0.2 * draw.normal(B * K * A).view(P, B, K, A)
    torch.testing.assert_close(found, torch.where(may, (expected + noise).clamp(-1, 1), 0.0))


@each_algorithm
@each_kind
def test_a_policy_answers_with_its_critics(name: str, kind: str) -> None:
    given = Crewed(name, SPACES[kind], share="group")
    state, batch = given.cohort().state, transitions(SPACES[kind])
    asked = given.algo.answers(given.cfg)  # type: ignore[misc]
    obs, action = batch.obs.flatten(1, 2), batch.action.flatten(1, 2)
    best = given.algo.greedy(given.cfg, state, obs, None)
    assert asked.value is not None
    assert asked.q_values is not None
    v = asked.value(given.cfg, state, obs, None, None)
    assert torch.equal(v, asked.q_values(given.cfg, state, obs, best))
    every = q(given, critic_of(given, state), batch.obs, numbers(given, best.unflatten(1, (-1, K)))).detach()
    if name == "matd3":
        assert (every[0] != every[1]).any()
        every = torch.minimum(*every)  # of twins the least
    torch.testing.assert_close(v, every.flatten(1))
    assert not torch.equal(v, asked.q_values(given.cfg, state, obs, action))
    if kind == "discrete":
        assert asked.chances is not None
        every = asked.q_values(given.cfg, state, obs, None)
        torch.testing.assert_close(every.gather(-1, best[..., None])[..., 0], v)
        assert asked.chances(given.cfg, state, obs, None, None).log_prob(best).shape == v.shape


@torch.no_grad()
def plain_signals(agent: Plain, name: str, batch: Any) -> dict[str, float]:
    """What one member's critics and actors tell of a minibatch, agent by agent."""
    continuous, twins = agent.cfg.spaces.continuous, 2 if name == "matd3" else 1
    critic = "critics" if twins == 2 else "critic"
    taken = [batch.action[:, k] if continuous else torch.eye(A)[batch.action[:, k]] for k in range(K)]
    taken = [each * batch.alive[:, k, None] for k, each in enumerate(taken)]
    obs, found, every = batch.obs * batch.alive[..., None], {}, []

    def least(net: str, k: int, acts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([agent.net(net, k, joint(batch, obs, acts), i, twins)[:, 0] for i in range(twins)]).amin(0)

    for k, who in enumerate(TEAM.agents):
        weight, out = batch.weight * batch.learns[:, k], agent.net("actor", k, batch.obs[:, k])
        scores = logits(out, batch.legal, k)
        best = torch.tanh(out) if continuous else torch.eye(A)[scores.argmax(dim=1)]
        q, q_minus = (least(net, k, taken) for net in (critic, f"{critic}_target"))
        own_best = least(critic, k, [best if j == k else taken[j] for j in range(K)])
        chance = scores.exp()
        every.append((weight, q, (q - q_minus).abs(), own_best, -(chance * scores.masked_fill(chance == 0, 0)).sum(1)))
        found[f"agents/{who}/q_values"] = float((weight * q).sum() / weight.sum())
        if not continuous:
            found[f"agents/{who}/entropy"] = float((weight * every[-1][-1]).sum() / weight.sum())
    weight, q, gap, own_best, entropy = (torch.cat(each) for each in zip(*every, strict=True))
    means = {"q_values": q, "target_gap": gap, "actor_loss": -own_best, "entropy": entropy}
    found |= {f"losses/{key}": float((weight * x).sum() / weight.sum()) for key, x in means.items()}
    found["losses/q_values_max"] = float(q[weight > 0].max())
    return {key: x for key, x in found.items() if not (continuous and key == "losses/entropy")}


@pytest.mark.parametrize(("kind", "masked"), [("continuous", False), ("discrete", False), ("discrete", True)])
@each_algorithm
def test_signals_are_those_of_plain_agents(name: str, kind: str, masked: bool, double: None) -> None:
    """Agents that are gone, or learn nothing, do not count, and critics read zeros of those who are gone."""
    given = Crewed(name, SPACES[kind], share="group")
    cohort, batch = given.cohort(), transitions(SPACES[kind], masked=masked)
    assert given.algo.signals is not None
    told = given.algo.signals(given.cfg, cohort.state, batch)
    for i, member in enumerate(cohort.members):
        expected = plain_signals(Plain(given, member, GROUPS["group"]), name, part(batch, i))
        assert {key: float(x[i]) for key, x in told.items()} == pytest.approx(expected, rel=1e-9)


# -------------------------------------------------------------------------------------------------------- independence


@each_algorithm
@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("share", ["none", "group"])
def test_no_bit_of_a_member_depends_on_its_neighbours(name: str, kind: str, share: str) -> None:
    given = Crewed(name, SPACES[kind], alike=True, share=share)
    together = given.cohort()
    batches = [transitions(SPACES[kind], at) for at in range(3)]
    for at, batch in enumerate(batches):
        given.update(together, batch, at % 2, at)
    whole = dissolve([together])
    for i in range(P):
        alone, cut = given.cohort(i), given.cohort().part(i, i + 1)
        for cohort in (alone, cut):
            for at, batch in enumerate(batches):
                given.update(cohort, part(batch, i, keep=True), at % 2, at)
            assert same(dissolve([cohort])[0], whole[i])


@each_algorithm
@each_kind
@pytest.mark.thorough
def test_a_number_that_is_none_freezes_its_member_alone(name: str, kind: str) -> None:
    """In any network, of any agent, at every turn, and in any agent's reward."""
    given = Crewed(name, SPACES[kind], policy_delay=2)
    batch = transitions(SPACES[kind])
    everyone = torch.ones_like(batch.reward)
    batch = replace(batch, alive=everyone, learns=everyone, next_alive=everyone, discount=0.9 * everyone)
    for turn in range(2):
        clean = given.updated(given.cohort(), batch, turn, 0)
        nets = [f.name for f in fields(given.algo.State) if f.metadata["kind"] == "parameters"]
        for net, k in itertools.product(nets, range(given.widths["actor"].copies)):
            cohort = given.cohort()
            values = getattr(cohort.state, net).values
            copies = getattr(cohort.state, net).structure.copies
            values.view(P, copies, -1)[1, k * copies // K, 3] = torch.nan
            after = given.updated(cohort, batch, turn, 0)
            assert [m.healthy for m in after] == [True, False, True], (net, k)
            assert all(same(after[i], clean[i]) for i in (0, 2)), (net, k)
        reward = batch.reward.clone()
        reward[1, batch.weight[1].argmax(), 2] = torch.nan
        after = given.updated(given.cohort(), replace(batch, reward=reward), turn, 0)
        assert [m.healthy for m in after] == [True, False, True]
        assert all(same(after[i], clean[i]) for i in (0, 2))


def test_the_first_of_twin_critics_is_on_the_same_memory() -> None:
    """What actors climb is the critic as it is now, not as it was when it was first asked."""
    given = Crewed("matd3", SPACES["continuous"])
    state, batch = given.cohort().state, transitions(SPACES["continuous"])
    acts = numbers(given, batch.action)
    for _ in range(2):
        both = q(given, state.critics, batch.obs, acts)
        first = q(given, state.critics.firsts, batch.obs, acts)
        assert torch.equal(both[0], first)
        state.critics.values.mul_(1.5)


def test_one_agent_alone_is_a_team_too() -> None:
    """So that widths, files and pages can be made where no environment is known."""
    found = algos.get("maddpg").networks(algos.get("maddpg").Config(), Spaces(4, 2))
    assert found["actor"][:4] == (4, 2, "whole", 1)
    assert found["critic"][:4] == (6, 1, "whole", 1)
    assert agent_groups(algos.get("maddpg").Config(), Spaces(4, 2)).agents == 1


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"red": ("red_0", "red_1"), "blue": ("blue_0",)}, None),
        ({"red": ("red_0", "red_2"), "blue": ("blue_0", "red_1")}, "there is no agent 'red_2'; the agents are "),
        ({"red": ("red_0", "red_1"), "blue": ()}, "the group 'blue' names no agent; the agents are "),
        ({"red": ("red_0", "red_1")}, "the agent 'blue_0' stands in no group; name each agent once"),
    ],
)
@pytest.mark.parametrize("share", GROUPS)
def test_groups_that_do_not_fit_the_team_are_refused(share: Any, groups: Any, sentence: str | None) -> None:
    """Whoever shares: scores are told by group, too."""
    found = algos.misfit("maddpg", algos.get("maddpg").Config(share=share, groups=groups), SPACES["discrete"])
    assert (found is None) == (sentence is None)
    if found is not None and sentence is not None:
        assert found[0] == "groups"
        assert found[1].startswith(sentence)


def test_an_algorithm_for_as_many_agents_as_there_are_not_is_refused() -> None:
    found = algos.unserved("maddpg", Spaces(4, 2), "CartPole-v1", "Discrete(2)")
    assert found is not None
    assert found.startswith("train.algo: maddpg serves teams of agents, CartPole-v1 has one agent; take ")
    assert "ppo" in found.split("take ")[1].split(", ")
    found = algos.unserved("dqn", SPACES["continuous"], "pistonball_v6", "Box")
    able = "take ippo, maddpg, mappo, matd3"
    assert found == f"train.algo: dqn serves one agent, pistonball_v6 has a team of agents; {able}"
    assert algos.unserved("maddpg", SPACES["discrete"], "simple_spread_v3", "Discrete(5)") is None
