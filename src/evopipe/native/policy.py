"""PPO and its team variants by the native kernels: acting, and learning from a whole rollout in one call.

`algos.ppo`, `algos.ippo` and `algos.mappo` have the same in torch, and tests compare both. Perceptrons and LSTM layers
on the CPU are supported. For a team, `E` and `B` stand for `E · K` and `B · K` rows, as in those files.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from evopipe.native import build, header, update
from evopipe.native.actor_critic import Places
from evopipe.native.build import kernels
from evopipe.native.dense import MOST, plan_of
from evopipe.native.header import at
from evopipe.native.networks import BETA1, BETA2, EPS, Adam, Net
from evopipe.rng import Purpose, Stream, salt
from evopipe.types import Chosen, Hyper, Learned, Spaces, Tensor

KINDS = {"discrete": 0, "multidiscrete": 0, "multibinary": 1, "continuous": 2}
GATES = 4
_RATES = ("lr", "clip", "vf_coef", "ent_coef", "grad_clip", "target_kl")
_NETS = ("encoder", "actor", "critic")


class Lessons(NamedTuple):
    """The minibatches of a rollout by `P` members in `E` environments each, over all epochs.

    The T ticks (environment steps) of the rollout are divided into stretches of at most `L` ticks. A minibatch consists
    of stretches, each of one environment.

    Attributes:
        rows: `[P, T, E, …]`, the steps, see `memory.rollout`.
        memory: `[P, T + 1, E, M]`, the recurrent state (M numbers) before each step, and after the last step.
        order: a function without arguments that returns the shuffled order of the stretches in each epoch, `[P, epochs,
            stretches · E]` int64. The number s · E + e means stretch s of environment e.
        ticks: `[stretches, L]` int64, the ticks of each stretch.
        within: `[stretches, L]` bool, False where a shorter stretch is padded to L ticks.
        batches: each member's number of minibatches in an epoch.
        sizes: each member's number of stretches in a minibatch.
        epochs: each member's number of epochs.
    """

    rows: Tensor
    memory: Tensor
    order: Callable[[], Tensor]
    ticks: Tensor
    within: Tensor
    batches: Sequence[int]
    sizes: Sequence[int]
    epochs: Sequence[int]


class Policy(NamedTuple):
    """The C struct of an on-policy algorithm's state (networks, optimisers, action space).

    Attributes:
        pointer: a pointer to the struct.
        members: the number of members.
        agents: the number of agents of a team; 1 for a single agent.
        memory: the number of values in the recurrent state of one observation; 0 if no network is recurrent.
        held: the tensors that the struct points to, which must be kept alive.
    """

    pointer: Any
    members: int
    agents: int
    memory: int
    held: list[Any]


def described(cfg: Any, state: Any, team: Places | None) -> Policy | None:
    """Return the C struct of an on-policy algorithm's state; None if the kernels cannot compute the policy.

    The struct is cached in the `structure` of the actor network. It is made again if the state has other tensors.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        team: the agents of a team; None for a single agent.
    """
    structure = state.actor.structure
    known: dict[Any, Any] | None = getattr(getattr(structure, "inner", structure), "plans", None)
    if not build.serve_wholly() or known is None or cfg.spaces.images:
        return None
    if cfg.spaces.kind not in KINDS:
        return None
    nets = [(getattr(state, name, None), getattr(state, f"{name}_adam", None)) for name in _NETS]
    places = *(0 if net is None else net.values.data_ptr() for net, _ in nets), state.log_std.data_ptr()
    if "policy" not in known or known["policy"][0] != places:
        known["policy"] = places, _describe(cfg, state, nets, team)
    found: Policy | None = known["policy"][1]
    return found


def _describe(
    cfg: Any, state: Any, nets: Sequence[tuple[Net | None, Adam | None]], team: Places | None
) -> Policy | None:
    spaces: Spaces = cfg.spaces
    team = team or Places((spaces.observations,), (spaces.actions,))
    groups = [[k for _, k in sorted((team.seat[k], k) for k, own in enumerate(team.group) if own == g)]
              for g in range(max(team.group) + 1)]  # fmt: skip
    starts = [0, *itertools.accumulate(map(len, groups))]
    agents = [k for group in groups for k in group]
    numbers = [
        torch.tensor(x, dtype=torch.int32) for x in (spaces.choices or (0,), agents, starts, team.sees, team.does)
    ]
    held: list[Any] = [*numbers]
    members, own = len(state.log_std), spaces.observations + team.ids
    inputs, memory, joint, packed = own, 0, False, []
    for name, (net, adam) in zip(_NETS, nets, strict=True):
        if net is None or adam is None:
            packed.append(bytes(header.of("network").size))
            continue
        if name == "critic" and len(agents) > 1:
            inputs = net.structure.widths.inputs
            joint = inputs != own
            if inputs == sum(team.sees) + team.ids == own:
                return None  # which of both it reads cannot be told
        found = _network(net, adam, inputs, members, len(groups), memory, held)
        if found is None:
            return None
        packed.append(found)
        memory += getattr(net.structure, "inner", net.structure).memory
        if name == "encoder":
            inputs = net.structure.layout.hidden[-1].out
    names = "each", "agent", "starts", "sees", "does"
    kind = header.of("policy")
    pointer = kind.pointer(kind.packed(
        nets=b"".join(packed), log_std=at(state.log_std), members=members, observations=spaces.observations,
        outputs=spaces.actions, choices=spaces.action_size, kind=KINDS[spaces.kind], squash=cfg.squash, memory=memory,
        agents=len(agents), groups=len(groups), ids=team.ids, joint=joint,
        **dict(zip(names, map(at, numbers), strict=True)),
    ))  # fmt: skip
    return Policy(pointer, members, len(agents), memory, held)


def _network(
    net: Net, adam: Adam, inputs: int, members: int, groups: int, memory: int, held: list[Any]
) -> bytes | None:
    """Return the fields of a network with this many inputs; its recurrent memory comes after that of the networks
    before it."""
    structure: Any = getattr(net.structure, "inner", net.structure)
    plan = plan_of(net, inputs, lstm=True)
    if plan is None or structure.recurrent > MOST or len(structure.archs) != members * groups:
        return None
    count, hidden = structure.recurrent, structure.layout.hidden
    fields = torch.zeros(len(structure.archs), count, 7, dtype=torch.int32)
    kept = 0
    for i in range(count):
        part, remembered = hidden[i], memory + sum(structure.memory_widths[: 2 * i])
        for row, arch in enumerate(structure.archs):
            block = arch.layers.get(structure.names[i])
            if block is not None:
                spots = part.weight.units, part.weight.start, part.bias.start, part.recurrent.start, remembered
                fields[row, i] = torch.tensor([block.width, *spots, part.alpha.start if block.blend else -1])
        kept += (GATES + 4) * (part.weight.units + 16) + part.out + 16
    held += [plan.fields, fields]
    widest = max(plan.widest, inputs, *(2 * hidden[i].out for i in range(count)))
    return header.of("network").packed(**{
        **update.rows(net, adam, members), "plan": at(plan.fields), "gated": at(fields), "layers": plan.layers,
        "recurrent": count, "inputs": inputs, "keep": plan.room + kept, "widest": widest,
    })  # fmt: skip


def learn(
    cfg: Any, state: Any, hp: Hyper, lessons: Lessons, healthy: Tensor, team: Places | None = None
) -> Learned | None:
    """Learn from all minibatches of a rollout, epoch after epoch, in place, by the C kernels.

    Return the losses `[P]` of each member's last minibatch, and which members are still healthy (all their numbers are
    finite). If the kernels do not support the networks, return None; the caller then uses torch.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        lessons: the minibatches.
        healthy: `[P]` bool, the members that learn.
        team: the agents of a team; None for a single agent.
    """
    policy = described(cfg, state, team)
    if policy is None:
        return None
    rates = [hp[name].float().contiguous() for name in _RATES]
    counts = [torch.tensor(list(x)) for x in (lessons.batches, lessons.sizes, lessons.epochs)]
    order, ticks, within = (x.contiguous() for x in (lessons.order(), lessons.ticks, lessons.within))
    losses, healthy = torch.full_like(rates[0], torch.nan), healthy.clone()
    rows, known = lessons.rows, cfg.spaces.observations + cfg.spaces.action_size
    names = ("batches", "sizes", "epochs", *_RATES)
    kind = header.of("rollout")
    asked = kind.packed(
        rows=at(rows), memory=at(lessons.memory), order=at(order), ticks=at(ticks), within=at(within),
        log_std_adam=at(state.log_std_adam), resting=at(state.resting), updates=at(state.updates), losses=at(losses),
        healthy=at(healthy), row=rows.shape[3], rows_stride=rows.stride(0), memory_stride=lessons.memory.stride(0),
        known=known, count=order.shape[2], envs=rows.shape[2] // policy.agents, length=ticks.shape[1],
        most_epochs=order.shape[1], normalise=cfg.normalise_advantage, clip_value=cfg.clip_value,
        masked=rows.shape[3] > known + 6, beta1=BETA1, beta2=BETA2, eps=EPS,
        **dict(zip(names, map(at, (*counts, *rates)), strict=True)),
    )  # fmt: skip
    build.done(kernels().ppo_update(policy.pointer, kind.pointer(asked)))
    return Learned(losses, healthy)


def act(
    cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None,
    team: Places | None = None,
) -> Chosen | None:  # fmt: skip
    """Sample actions from the policy, or take the most likely actions if `draw` is None, by the C kernels.

    Return actions, log-probabilities, values and the recurrent state after the step. If the kernels do not
    support the networks, return None; the caller then uses torch.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, E observations of each of P members: one per environment or, for a team, per environment and
            agent.
        legal: `[P, E, A]` bool, which of the A actions are legal; None if all are.
        memory: `[P, E, M]`, the recurrent state (M numbers) before the step.
        draw: the stream of random numbers; None for the most likely actions.
        team: the agents of a team; None for a single agent.
    """
    policy = described(cfg, state, team)
    if policy is None or not readable(policy, obs, memory):
        return None
    action = _actions(cfg, obs)
    log_prob, value = obs.new_empty(2, *obs.shape[:2])
    after = torch.zeros_like(memory, memory_format=torch.contiguous_format) if policy.memory else memory
    _say(policy, obs, legal, memory, draw, action, log_prob, value, after)
    return Chosen(action, log_prob, value, after)


def value(
    cfg: Any, state: Any, obs: Tensor, memory: Tensor, team: Places | None = None, next_alive: Tensor | None = None
) -> Tensor | None:  # fmt: skip
    """Return the state values V(s) `[P, B]`, by the C kernels. Return None if the kernels cannot compute them; then
    torch does.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, B, O]`, B observations of P members.
        memory: `[P, B, M]`, the recurrent state before each observation.
        team: the agents of a team; None for a single agent.
        next_alive: `[P, B]`, each agent's status after the step, see `GONE`, `ACTS` and `CUT` in `evopipe.types`. It is
            needed only if value targets of a team are computed from the values; else None.
    """
    policy = described(cfg, state, team)
    if policy is None or not readable(policy, obs, memory):
        return None
    found = obs.new_empty(obs.shape[:2])
    _say(policy, obs, None, memory, value=found, next_alive=next_alive)
    return found


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, team: Places | None = None) -> Tensor | None:
    """Return the most likely legal actions `[P, E, …]`, by the C kernels. Return None if the kernels cannot compute
    them; then torch does.

    A recurrent policy starts from a zero state.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, E observations of each of P members: one per environment or, for a team, per environment and
            agent.
        legal: `[P, E, A]` bool, which of the A actions are legal; None if all are.
        team: the agents of a team; None for a single agent.
    """
    policy = described(cfg, state, team)
    if policy is None:
        return None
    memory, action = obs.new_zeros(*obs.shape[:2], policy.memory), _actions(cfg, obs)
    if not readable(policy, obs, memory):
        return None
    _say(policy, obs, legal, memory, action=action)
    return action


def _actions(cfg: Any, obs: Tensor) -> Tensor:
    kind = torch.float32 if cfg.spaces.continuous else torch.int64
    return torch.empty(*obs.shape[:2], *cfg.spaces.action_shape, dtype=kind)


def readable(policy: Policy, obs: Tensor, memory: Tensor) -> bool:
    """Return whether the kernels can run a policy on these observations `[P, B, O]` and recurrent states `[P, B, M]`
    (`memory`), for P members.

    They cannot if the observations are empty or not float32, or if the shapes do not fit the policy.
    """
    if obs.dtype != torch.float32 or not obs.numel() or memory.shape[-1] != policy.memory:
        return False
    return bool(len(obs) == policy.members and obs.shape[1] % policy.agents == 0)


def _say(
    policy: Policy, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None = None,
    action: Tensor | None = None, log_prob: Tensor | None = None, value: Tensor | None = None,
    after: Tensor | None = None, next_alive: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill what is given from `action` to `after`."""
    obs, memory = obs.contiguous(), memory.contiguous()
    legal, next_alive = (None if x is None else x.contiguous() for x in (legal, next_alive))
    keys, when, added = (0, 0, 0) if draw is None else (at(draw.keys), at(draw.step), salt(draw.purpose))
    now = header.of("acting")(
        at(obs), at(memory), at(next_alive), at(legal), keys, when, at(action), at(log_prob), at(value),
        at(after) if policy.memory else 0, obs.shape[1] // policy.agents, added,
    )  # fmt: skip
    build.done(kernels().ppo_act(policy.pointer, now))


def enter(
    spaces: Spaces, rows: Tensor, obs: Tensor, legal: Tensor | None, begins: Tensor, chosen: Chosen
) -> bool:  # fmt: skip
    """Store in a rollout what is known before a step; return whether the C kernels could do it. If not, nothing is
    stored.

    P members act in E environments each. See `memory.rollout.Rollout.enter`.

    Args:
        spaces: the environment's spaces.
        rows: `[P, E, size]`, the rows of the rollout into which this step is written.
        obs: `[P, E, O]`, the observations.
        legal: `[P, E, A]` bool, the legal actions; None if the rollout does not store them.
        begins: `[P, E]` bool, whether an episode begins.
        chosen: the actions, their log-probabilities, and the values of the observations.
    """
    kinds = (obs, chosen.log_prob, chosen.value) + ((chosen.action,) if spaces.real else ())
    if not plain(rows, *kinds):
        return False
    obs, action, log_prob, value, begins = (
        x.contiguous() for x in (obs, chosen.action, chosen.log_prob, chosen.value, begins)
    )
    legal = None if legal is None else legal.contiguous()
    kernels().rollout_enter(header.of("enter_call")(
        *obs.shape, spaces.action_size, spaces.actions, at(rows), rows.stride(0), at(obs), at(action),
        not spaces.real, at(log_prob), at(value), at(begins), at(legal),
    ))  # fmt: skip
    return True


def finish(
    after: Tensor, expected: Tensor, next_obs: Tensor, reward: Tensor, next_alive: Tensor | None, *ends: Tensor
) -> bool:
    """Store the results of a step in a rollout; return whether the C kernels could do it. If not, nothing is stored.

    P members act in E environments each. See `memory.rollout.Rollout.finish`.

    Args:
        after: the part of `Rollout.after` into which the results of this step are written, `[P, E, O + 4]`, or for a
            team `[P, E, O + 5]`. O is the width of an observation.
        expected: `[P, E]`, the predicted values of the states before the step, which the rollout holds already.
        next_obs, reward: `[P, E, O]` and `[P, E]`, the results of the step.
        next_alive: `[P, E]`, the status of each agent after the step, see `evopipe.types`; None except for teams.
        ends: terminated, truncated and broken (a reward or observation is not finite), `[P, E]` bool each.
    """
    if not plain(after, expected, next_obs, reward, *([] if next_alive is None else [next_alive])):
        return False
    next_obs, reward, *ends = (x.contiguous() for x in (next_obs, reward, *ends))  # type: ignore[assignment]
    next_alive = None if next_alive is None else next_alive.contiguous()
    kernels().rollout_finish(header.of("finish_call")(
        *next_obs.shape, at(after), after.stride(0), at(expected), *expected.stride(), at(next_obs), at(reward),
        at(next_alive), *map(at, ends),
    ))  # fmt: skip
    return True


def plain(*tensors: Tensor) -> bool:
    """Return whether two conditions hold: all tensors are float32, and the C kernels may compute a whole update of them
    (see `build.serve_wholly`)."""
    return build.serve_wholly(*tensors) and {x.dtype for x in tensors} == {torch.float32}


def next_episodes(over: Tensor, keys: Tensor, envs: Tensor, begun: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the rows whose episode is over, and the seeds of their next episodes, `[n]` int64 each, by the C kernels.

    A row is one environment. The seeds are those that `rng.seeds` derives from key, environment and episode number.
    Return None if no kernels are selected.

    Args:
        over: `[R]` bool, whether the episode of each row is over.
        keys: `[R]` int64, the random key of each row's member.
        envs: `[R]` int64, the number of each row's environment among those of its member.
        begun: `[R]` int64, the number of episodes begun in each row; raised in place for rows that are over.
    """
    if build.chosen() is None:
        return None
    found, room = torch.empty(2, len(over), dtype=torch.int64), len(over)
    count = kernels().next_episodes(header.of("episodes_call")(
        room, at(over), at(keys), at(envs), at(begun), salt(Purpose.EPISODE), at(found), at(found) + 8 * room
    ))  # fmt: skip
    rows, seeds = found[:, :count]
    return rows, seeds
