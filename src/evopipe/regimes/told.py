"""Training metrics of a minibatch, computed from the algorithm's values and policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from evopipe.ops import distributions
from evopipe.ops import signals as ops
from evopipe.ops.value import clipped_value_error, normalised, pick
from evopipe.rng import Stream
from evopipe.types import Batch, Hyper, Sequences

LEGAL, NOISE = "charts/legal", "charts/noise"
_Values: TypeAlias = Callable[[Any, Tensor], Tensor]


@torch.no_grad()
def of_batch(
    spec: Any, state: Any, hyper: Hyper, batch: Any, draw: Stream, offline: bool = False, values: Tensor | None = None
) -> dict[str, Tensor]:  # fmt: skip
    """Return training metrics of P members on a minibatch, by name, `[P]` each.

    The metrics come from the algorithm's values and policy, and from its own function `signals` if it has one. For a
    minibatch of text or games, they come from `signals` only.

    Args:
        spec: the run's configuration.
        state: the algorithm's state.
        hyper: the members' hyper-parameters by name, `[P]` each.
        batch: the minibatch.
        draw: the stream for draws of actions.
        offline: whether members learn from a dataset alone.
        values: `[P, B, A]`, the values of all actions in the minibatch's observations, if they were computed before.
    """
    algo, found = spec.algo, {}
    if isinstance(batch, Sequences):
        found = _of_sequences(spec, state, hyper, batch) | _legal(spec, batch.legal, batch.weight)
    elif isinstance(batch, Batch):
        weight, goes_on = of_each(batch), (batch.discount > 0).double()
        found = _legal(spec, batch.next_legal, weight * goes_on)
        if not spec.spaces.team:
            found |= _of_transitions(spec, state, batch, draw, offline, values)
        if spec.spaces.continuous and not offline:
            found |= _noise(spec, state, batch, weight, draw.part(1))
    if algo.signals is not None:
        found |= algo.signals(spec.algo_config, state, batch)
    return found


def of_each(batch: Batch) -> Tensor:
    """Return the weight of each transition in the loss and in metrics: `[P, B]` for B transitions of P members.

    For a team of K agents, the result is `[P, B, K]`: each agent has a weight of its own, which is 0 if the agent does
    not learn from the transition.
    """
    return batch.weight if batch.learns is None else batch.weight[..., None] * batch.learns


def _own_actions(spec: Any, rows: Tensor) -> Tensor:
    """Return how many actions, or numbers of one, whoever acts in rows `[P, …]` has, the agents of a team side by side
    in the last axis."""
    each = torch.tensor(spec.spaces.who.actions, device=rows.device)
    return each.repeat(rows.shape[-1] // len(each)).expand_as(rows).double()


def _legal(spec: Any, legal: Tensor | None, weight: Tensor) -> dict[str, Tensor]:
    """Return the mean share of actions that are legal, `[P, …, A]`, nothing where all always are."""
    if legal is None:
        return {}
    count = legal.double().sum(dim=-1).flatten(1)
    return {LEGAL: ops.mean(weight.flatten(1), count / _own_actions(spec, count))}


def _noise(spec: Any, state: Any, batch: Batch, weight: Tensor, draw: Stream) -> dict[str, Tensor]:
    """Return how far continuous actions that explore lie from the greedy ones: the root of the mean square, without
    uniform actions."""
    obs = batch.obs.flatten(1, -2)  # [P, B, O], of a team [P, B · K, O]
    legal = obs.new_ones(*obs.shape[:2], spec.spaces.actions, dtype=torch.bool)
    explored = spec.algo.act(spec.algo_config, state, obs, legal, obs.new_zeros(len(obs)), draw)
    apart = explored - spec.algo.greedy(spec.algo_config, state, obs, None)
    square = apart.double().square().sum(dim=-1)
    return {NOISE: ops.mean(weight.flatten(1), square / _own_actions(spec, square)).sqrt()}


def _of_sequences(spec: Any, state: Any, hyper: Hyper, batch: Sequences) -> dict[str, Tensor]:
    """Return signals of the policy and of values, as they are in the first step of each sequence."""
    cfg, answers = spec.algo_config, spec.algo.answers(spec.algo_config)
    weight, advantage = batch.weight[:, :, 0], batch.advantage
    if getattr(cfg, "normalise_advantage", False):
        share = batch.weight / batch.weight.sum(dim=(1, 2), keepdim=True)
        advantage = normalised(advantage.flatten(1), share.flatten(1)).view_as(advantage)
    legal = None if batch.legal is None else batch.legal[:, :, 0]
    memory = batch.memory.masked_fill(batch.begins[:, :, :1], 0.0)
    seen = cfg, state, batch.obs[:, :, 0], legal, memory
    chances, value = answers.chances(*seen), answers.value(*seen)
    ratio = chances.log_prob(batch.action[:, :, 0]) - batch.log_prob[:, :, 0]
    target, clip = batch.target[:, :, 0], hyper["clip"]
    error = (value - target).square()
    if getattr(cfg, "clip_value", False):
        error = clipped_value_error(value, batch.value[:, :, 0], target, clip[:, None])
    entropy = chances.entropy()
    found = ops.of_policy(weight, ratio, advantage[:, :, 0], clip, entropy, error)
    if team := spec.spaces.team:
        by_agent = (x.unflatten(1, (-1, len(team.agents))).transpose(1, 2) for x in (weight, entropy))  # [P, K, B]
        share, own = by_agent
        found |= ops.of_agents(team.agents, share, {"entropy": own})
    if cfg.spaces.numbers:
        found["losses/log_std"] = state.log_std.double().mean(dim=1)
    return found


def _of_transitions(
    spec: Any, state: Any, batch: Batch, draw: Stream, offline: bool, known: Tensor | None
) -> dict[str, Tensor]:  # fmt: skip
    algo, cfg, weight = spec.algo, spec.algo_config, batch.weight
    values = _values(algo, cfg, batch)
    if values is None:
        return {}
    q = values(state, batch.action) if known is None else pick(known, batch.action)
    targets = _as_targets(state)
    found = ops.of_values(weight, q, None if targets is None else values(targets, batch.action))
    acts = hasattr(state, "actor_target")
    if offline or acts:  # nobody else asks what the policy's own actions are worth
        own = values(state, algo.greedy(cfg, state, batch.obs, batch.legal))
        if offline:
            found["losses/data_gap"] = ops.mean(weight, own - q)
        if acts:
            found["losses/actor_loss"] = -ops.mean(weight, own)
    if hasattr(state, "log_alpha"):
        found |= _of_entropy(spec, state, batch, values, draw)
    return found


def _values(algo: Any, cfg: Any, batch: Batch) -> _Values | None:
    """Return what values the actions of a minibatch, of twins the least; None if nothing does."""
    if algo.values is not None:
        return lambda state, action: pick(algo.values(cfg, state, batch.obs), action)
    answers = None if algo.answers is None else algo.answers(cfg)
    if answers is None or answers.q_values is None:
        return None
    return lambda state, action: answers.q_values(cfg, state, batch.obs, action)


def _as_targets(state: Any) -> Any:
    """Return a state that has its target networks in the place of those that learn; None if it has none."""
    names = {each.name for each in fields(state)}
    found = {name.removesuffix("_target"): getattr(state, name) for name in names if name.endswith("_target")}
    if "target" in names:
        found["q"] = state.target
    found = {name: net for name, net in found.items() if name in names}
    return replace(state, **found) if found else None


def _of_entropy(spec: Any, state: Any, batch: Batch, values: _Values, draw: Stream) -> dict[str, Tensor]:
    """Return signals of a policy that is to keep its entropy."""
    algo, cfg = spec.algo, spec.algo_config
    answers, alpha = algo.answers(cfg), state.log_alpha.exp()
    chances = answers.chances(cfg, state, batch.obs, batch.legal, None)
    if cfg.spaces.continuous:
        noise = draw.normal(chances.mean[0].numel()).view(chances.mean.shape).to(chances.mean.dtype)
        action, log_pi = distributions.squashed_gaussian(chances.mean, chances.log_std, noise)
        loss, entropy = alpha[:, None] * log_pi - values(state, action), -log_pi
        more = {"losses/log_std": ops.mean(batch.weight, chances.log_std.mean(dim=-1))}
    else:
        q, log_pi = answers.q_values(cfg, state, batch.obs, None), chances.log_probs
        loss = distributions.expected(log_pi, alpha[:, None, None] * log_pi - q)
        entropy, more = chances.entropy(), {}
    means = ops.means(batch.weight, loss, entropy).unbind(dim=1)
    return more | {"losses/actor_loss": means[0], "losses/entropy": means[1], "losses/alpha": alpha.double()}
