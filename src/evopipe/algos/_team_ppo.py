"""What IPPO and MAPPO have in common: everything but the inputs of critics. A function `seen` computes these inputs.

`seen` makes of a team's groups and observations `[P, K, B, O]` what every agent's critic reads, `[P, K, B, inputs]`. In
targets it is given a third argument, `next_alive` `[P, K, B]`, and leaves out those who are not there, see
`evopipe.types`. Arguments and results have the agents of one environment next to each other: `[P, E, …]` has
`E · K` rows, and `[P, B, …]` has `B · K`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from evopipe.algos import Answers, _hyper, _ppo
from evopipe.core import optim
from evopipe.core.groups import AgentGroups, agent_groups
from evopipe.core.member import moments, parameters, row
from evopipe.core.net import Net, Nets, memories, remember, unroll
from evopipe.core.structure import Widths
from evopipe.native import policy
from evopipe.ops.distributions import Distribution, distribution
from evopipe.ops.policy import proximal
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Chosen, Hyper, Learned, Sequences, Spaces, Tensor

Seen: TypeAlias = "Callable[..., Tensor]"
_OF_PADS = -1.4189385332046727  # log-deviation at which a Gaussian's entropy is 0: −½ log 2πe


class Config(AlgoConfig):
    """Hyper-parameters of PPO for teams of agents, which IPPO and MAPPO share.

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _ppo.BatchSize = 256
    learn_step: _ppo.LearnStep = 2048
    epochs: _ppo.Epochs = 8
    gamma: _hyper.Discount = 0.95
    gae_lambda: _ppo.Lambda = 0.95
    clip: _ppo.Clip = 0.2
    clip_value: _ppo.ClipValue = False
    vf_coef: _ppo.ValueWeight = 0.5
    ent_coef: _ppo.EntropyWeight = 0.01
    grad_clip: _ppo.GradientClip = 0.5
    target_kl: _ppo.TargetDistance = 0.0
    normalise_advantage: bool = hyper(True, doc="whether advantages are normalised over each group's minibatch")
    decay_steps: _ppo.DecaySteps = 0
    lr_end: _ppo.RateEnd = 0.0
    clip_end: _ppo.ClipEnd = 1.0
    std: _ppo.Deviation = 0.6
    squash: _ppo.Squash = False
    max_seq_len: _ppo.Longest = 16
    sequences: _ppo.Cut = "chunked"
    share: _hyper.Share = "group"
    groups: _hyper.Groups = _hyper.BY_NAME
    score: _hyper.Score = "sum"
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _ppo.RANGES


@dataclass(frozen=True)
class State:
    actor: Net = parameters("actor", trainable=True)
    critic: Net = parameters("critic", trainable=True)
    actor_adam: optim.Adam = moments("actor")
    critic_adam: optim.Adam = moments("critic")
    log_std: Tensor = row()  # [P, G · A] of continuous actions, group by group, else [P, 0]
    log_std_adam: Tensor = row()  # [P, G · A, 3], see ScalarAdam
    resting: Tensor = row()  # [P] float32, 1 until the next rollout
    updates: Tensor = row()  # [P] float32


def networks(cfg: Any, spaces: Spaces, reads: int) -> dict[str, Widths]:
    """Return the input and output width of every network, by name: an actor and a critic for each group of agents.

    The agents of a group share their networks. `reads` is the number of inputs of a critic.
    """
    of = agent_groups(cfg, spaces)
    copies = len(of.groups)
    return {"actor": Widths(of.observed, spaces.actions, copies=copies), "critic": Widths(reads, 1, copies=copies)}


def init(cfg: Any, nets: Nets) -> State:
    actor, critic = nets["actor"], nets["critic"]
    *adams, zeros = optim.start(actor, critic)
    numbers = len(agent_groups(cfg).groups) * cfg.spaces.actions if cfg.spaces.continuous else 0
    log_std = zeros[:, None].repeat(1, numbers) + torch.tensor(cfg.std).log()
    rows: tuple[Tensor, ...] = log_std, optim.ScalarAdam.start(log_std), zeros, zeros.clone()
    return State(actor, critic, *adams, *rows)


def _parts(
    cfg: Any, outputs: Tensor, log_std: Tensor, legal: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return what a distribution of actions is made of, each of a shape that expands to `[P, K, B, A]`: outputs, the
    logarithm of deviations, legal actions. Given are outputs and legal `[P, K, B, A]`, log_std `[P, G · A]`. What an
    agent does not have of continuous actions has entropy 0, and the same density whatever is done."""
    of = agent_groups(cfg)
    if not cfg.spaces.continuous:
        return outputs, None, of.legal(legal, outputs)
    own = of.of_group(log_std.unflatten(1, (len(of.groups), -1)))[:, :, None]  # [P, K, 1, A]
    return of.own(outputs), of.own(own, _OF_PADS), None


def _policy(cfg: Any, outputs: Tensor, log_std: Tensor, legal: Tensor | None) -> Distribution:
    """Return the distribution of actions `[P, K, B, …]`, see `_parts`."""
    return distribution(cfg.spaces, *_parts(cfg, outputs, log_std, legal), cfg.squash)


def _remembered(of: AgentGroups, net: Net, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Take one step: x `[P, K, B, inputs]`, memory `[P, B · K, M]` → `[P, K, B, outputs]` and the memory after it."""
    out, after = remember(net, of.seated(x), of.seated(of.apart(memory)))
    return of.back(out), of.side_by_side(of.back(after))


def step(
    seen: Seen, cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None
) -> Chosen:
    """Sample every agent's action, or take the most likely one if `draw` is None.

    Return actions, log-probabilities, values and recurrent states after the step.

    Args:
        seen: a function (groups, obs) that returns the critics' inputs `[P, K, N, inputs]`. It gets the team's
            `AgentGroups` and the observations `[P, K, N, O]`: N observations of each of K agents.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, observations of O numbers, for P members. E is N · K: the K agents in each of a member's N
            environments.
        legal: `[P, E, A]` bool, which of the A actions are legal; None if all are.
        memory: `[P, E, M]`, the recurrent state (M numbers) before the step.
        draw: the stream of random numbers; None for the most likely actions.
    """
    of = agent_groups(cfg)
    if (found := policy.act(cfg, state, obs, legal, memory, draw, of.places)) is not None:
        return found
    with torch.no_grad():
        of_actor, of_critic = memories(memory, state.actor, state.critic)
        x = of.apart(obs)
        outputs, of_actor = _remembered(of, state.actor, of.named(x), of_actor)
        values, of_critic = _remembered(of, state.critic, seen(of, x), of_critic)
        v, memory = of.side_by_side(values[..., 0]), torch.cat((of_actor, of_critic), dim=-1)
        chances = _policy(cfg, torch.nan_to_num(outputs), state.log_std, None if legal is None else of.apart(legal))
        action = chances.mode() if draw is None else chances.sample(draw)
        action = of.own(action) if cfg.spaces.continuous else action
        log_prob = torch.zeros_like(v) if draw is None else of.side_by_side(chances.log_prob(action))
        return Chosen(of.side_by_side(action), log_prob, v, memory)


def value(seen: Seen, cfg: Any, state: State, obs: Tensor, memory: Tensor, next_alive: Tensor | None = None) -> Tensor:
    """Return the state value V(s) of every agent's observation, `[P, B]`.

    There are P members. B is N · K, for N observations of each of K agents.

    Args:
        seen: a function (groups, obs, next_alive) that returns the critics' inputs `[P, K, N, inputs]`. It gets the
            team's `AgentGroups`, the observations `[P, K, N, O]`, and `next_alive` as `[P, K, N]` or None.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, B, O]`, the observations.
        memory: `[P, B, M]`, the recurrent state before each observation.
        next_alive: `[P, B]`, each agent's status after the step (see `evopipe.types`); it is needed for value targets.
            Critics then read zeros for absent agents. If it is None, the observations of absent agents must be zeros
            already.
    """
    of = agent_groups(cfg)
    if (found := policy.value(cfg, state, obs, memory, of.places, next_alive)) is not None:
        return found
    with torch.no_grad():
        _, of_critic = memories(memory, state.actor, state.critic)
        x = seen(of, of.apart(obs), None if next_alive is None else of.apart(next_alive))
        return of.side_by_side(_remembered(of, state.critic, x, of_critic)[0][..., 0])


def _chances(cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
    """Return the distribution of actions `[P, B, …]`: obs `[P, B, O]`, memory `[P, B, M]` before it."""
    of = agent_groups(cfg)
    with torch.no_grad():
        of_actor, _ = memories(memory, state.actor, state.critic)
        outputs, _ = _remembered(of, state.actor, of.named(of.apart(obs)), of_actor)
        may = None if legal is None else of.apart(legal)
        own, *rest = _parts(cfg, torch.nan_to_num(outputs), state.log_std, may)
        log_std, may = (x if x is None else of.side_by_side(x.expand_as(outputs)) for x in rest)
        return distribution(cfg.spaces, of.side_by_side(own), log_std, may, cfg.squash)


def answers(seen: Seen) -> Answers:
    def value_of(cfg: Any, state: State, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return value(seen, cfg, state, obs, memory)

    return Answers(value_of, chances=_chances)


def greedy(cfg: Any, state: State, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the most likely legal action of every agent, `[P, E, …]`.

    A recurrent policy starts from a zero state. There are P members. E is the number of agents in all of a member's
    environments together.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, the agents' observations, O numbers each.
        legal: `[P, E, A]` bool, which of the A actions are legal; None if all are.
    """
    of = agent_groups(cfg)
    if (found := policy.greedy(cfg, state, obs, legal, of.places)) is not None:
        return found
    with torch.no_grad():
        outputs = torch.nan_to_num(of.run(state.actor, of.named(of.apart(obs))))
        best = _policy(cfg, outputs, state.log_std, None if legal is None else of.apart(legal)).mode()
        return of.side_by_side(of.own(best) if cfg.spaces.continuous else best)


def evaluate(seen: Seen, cfg: Any, state: State, batch: Sequences, log_std: Tensor) -> tuple[Distribution, Tensor]:
    """Return the policy's action distribution and the values for every step of a minibatch, `[P, K, B · L]` each.

    The minibatch holds B sequences of L steps for each of K agents and P members.

    Args:
        seen: a function (groups, obs) that returns the critics' inputs `[P, K, N, inputs]`. It gets the team's
            `AgentGroups` and the observations `[P, K, N, O]`: N observations of each of K agents.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        batch: the minibatch.
        log_std: the log standard deviations of continuous actions.
    """
    of = agent_groups(cfg)
    of_actor, of_critic = memories(batch.memory, state.actor, state.critic)
    obs, begins = of.apart(batch.obs), of.seated(of.apart(batch.begins))

    def unrolled(net: Net, x: Tensor, memory: Tensor) -> Tensor:
        x = x.unflatten(2, obs.shape[2:4])  # [P, K, B, L, inputs]
        return of.back(unroll(net, of.seated(x), of.seated(of.apart(memory)), begins)).flatten(2, 3)

    outputs = unrolled(state.actor, of.named(obs.flatten(2, 3)), of_actor)
    values = unrolled(state.critic, seen(of, obs.flatten(2, 3)), of_critic)
    legal = None if batch.legal is None else of.apart(batch.legal).flatten(2, 3)
    return _policy(cfg, outputs, log_std, legal), values[..., 0]


def loss(seen: Seen, cfg: Any, state: State, hp: Hyper, batch: Sequences, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """Return each member's loss, and the distance of its policies from the old policies, `[P]` each.

    The old policies are those that collected the rollout. The loss is PPO's mean loss of each group of agents, summed
    over groups.

    Args:
        seen: a function (groups, obs) that returns the critics' inputs `[P, K, N, inputs]`. It gets the team's
            `AgentGroups` and the observations `[P, K, N, O]`: N observations of each of K agents.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: a minibatch of the rollout.
        log_std: the log standard deviations of continuous actions.
    """
    of = agent_groups(cfg)

    def steps(x: Tensor) -> Tensor:  # [P, K, B·L, …]
        return of.apart(x).flatten(2, 3)

    all_weight, advantage = steps(batch.weight), steps(batch.advantage)
    weight = all_weight / of.over_group(all_weight.sum(dim=2)).clamp(min=1e-12)[..., None]  # sums to 1 in every group
    if cfg.normalise_advantage:
        mean = of.over_group((weight * advantage).sum(dim=2))[..., None]
        deviation = of.over_group((weight * (advantage - mean).square()).sum(dim=2)).sqrt()[..., None]
        advantage = (advantage - mean) / (deviation + 1e-8)
    chances, value = evaluate(seen, cfg, state, batch, log_std)
    done, then = (steps(batch.action), steps(batch.log_prob)), (steps(batch.value), steps(batch.target))
    each, distance = proximal(chances, *done, advantage, value, *then, hp, cfg.clip_value)
    return (weight * each).sum(dim=(1, 2)), (all_weight * distance).sum(dim=(1, 2)).detach()


def learn(cfg: Any, state: State, hp: Hyper, lessons: policy.Lessons, healthy: Tensor) -> Learned | None:
    """Learn from all minibatches of a rollout, in place, by the C kernels.

    Return the losses `[P]`, and which of P members are still healthy (all their numbers are finite). If the kernels do
    not support the networks, return None; the caller then calls `update` for each minibatch.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        lessons: the rollout and its minibatches.
        healthy: `[P]` bool, the members that learn.
    """
    return policy.learn(cfg, state, hp, lessons, healthy, agent_groups(cfg).places)


def update(
    seen: Seen, cfg: Any, state: State, hp: Hyper, batch: Sequences, healthy: Tensor, draw: Stream, turn: int
) -> Learned:
    """Take one gradient step on a minibatch of a rollout, in place; return the losses, and which members are still
    healthy.

    A member whose policy is too far from the policy that collected the rollout makes no more updates until its next
    rollout, see `_ppo.descend`.

    Args:
        seen: a function (groups, obs) that returns the critics' inputs `[P, K, N, inputs]`. It gets the team's
            `AgentGroups` and the observations `[P, K, N, O]`: N observations of each of K agents.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: the minibatch.
        healthy: `[P]` bool, the members that learn.
        draw: has no effect.
        turn: 0 for the first minibatch of the rollout, else 1.
    """
    log_std = optim.leaf(state.log_std)
    pairs = (state.actor, state.actor_adam), (state.critic, state.critic_adam)
    found = loss(seen, cfg, state, hp, batch, log_std)
    return _ppo.descend(found, log_std, pairs, cfg, state, hp, batch, healthy, turn)
