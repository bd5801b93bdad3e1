"""PPO of one agent by the CPU's own kernels: acting, and learning from all minibatches of a rollout in one call.

`algos.ppo` has the same in torch, and is what both are held to. Served are perceptrons and LSTM layers on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from evopipe.core.native import build
from evopipe.core.native.build import at, kernels
from evopipe.core.native.dense import MOST, Plan
from evopipe.types import Chosen, Hyper, Learned, Spaces, Tensor

if TYPE_CHECKING:
    from evopipe.core.net import Net
    from evopipe.core.optim import Adam
    from evopipe.rng import Stream

KINDS = {"discrete": 0, "multidiscrete": 0, "multibinary": 1, "continuous": 2}
GATES = 4
_RATES = ("lr", "clip", "vf_coef", "ent_coef", "grad_clip", "target_kl")
BETAS = 0.9, 0.999, 1e-8


class Lessons(NamedTuple):
    """Minibatches of a rollout of `P` members in `E` environments, in `stretches` of at most `L` ticks."""

    rows: Tensor  # [P, T, E, …], see `memory.rollout`
    memory: Tensor  # [P, T + 1, E, M]
    order: Tensor  # [P, epochs, stretches · E] int64, the order in which each epoch takes stretches and environments
    ticks: Tensor  # [stretches, L] int64
    within: Tensor  # [stretches, L] bool, false on pads
    batches: Sequence[int]  # each member's minibatches in an epoch
    sizes: Sequence[int]  # stretches in each of them
    epochs: Sequence[int]  # each member's


def _struct(name: str, pointers: str, numbers: str, doubles: str = "") -> Any:
    kinds = (ctypes.c_void_p, pointers), (ctypes.c_ssize_t, numbers), (ctypes.c_double, doubles)
    fields = [(field, kind) for kind, names in kinds for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


# As the source has them.
_Brain = _struct(
    "_Brain", "plan gated values mean square steps",
    "layers recurrent reads room widest size values_stride moments_stride",
)  # fmt: skip
_Lessons = _struct(
    "_Lessons", "rows memory order ticks within batches sizes epochs " + " ".join(_RATES)
    + " log_std_adam resting updates losses healthy",
    "row rows_stride memory_stride known count envs length most_epochs normalise clip_value masked",
    "beta1 beta2 eps",
)  # fmt: skip


class _Policy(ctypes.Structure):
    _fields_ = (
        ("brains", _Brain * 3), ("each", ctypes.c_void_p), ("log_std", ctypes.c_void_p),
        *((name, ctypes.c_ssize_t) for name in "members observations outputs choices kind squash memory".split()),
    )  # fmt: skip
    keep: Any  # tensors that it points to


def _described(cfg: Any, state: Any) -> _Policy | None:
    """What the kernels must know of a state; None where they cannot serve it. Kept beside the actor's structure."""
    nets = (state.encoder, state.encoder_adam), (state.actor, state.actor_adam), (state.critic, state.critic_adam)
    known: dict[Any, Any] | None = getattr(state.actor.structure, "plans", None)
    if build.chosen() is None or known is None or torch.compiler.is_compiling():
        return None
    places = *(0 if net is None else net.values.data_ptr() for net, _ in nets), state.log_std.data_ptr()
    if "policy" not in known or known["policy"][0] != places:
        known["policy"] = places, _describe(cfg, state, nets)
    found: _Policy | None = known["policy"][1]
    return found


def _describe(cfg: Any, state: Any, nets: Sequence[tuple[Net | None, Adam | None]]) -> _Policy | None:
    spaces: Spaces = cfg.spaces
    each = torch.tensor(spaces.choices or (0,), dtype=torch.int32)
    policy = _Policy(
        each=at(each), log_std=at(state.log_std), members=len(state.log_std), observations=spaces.observations,
        outputs=spaces.actions, choices=spaces.action_size, kind=KINDS[spaces.kind], squash=cfg.squash, memory=0,
    )  # fmt: skip
    policy.keep, inputs = [each], spaces.observations
    for i, (net, adam) in enumerate(nets):
        if net is None or adam is None:
            continue
        brain = _brain(net, adam, inputs, policy)
        if brain is None:
            return None
        policy.brains[i] = brain
        if i == 0:
            inputs = net.structure.layout.hidden[-1].out  # type: ignore[attr-defined]
    return policy


def _brain(net: Net, adam: Adam, inputs: int, policy: _Policy) -> Any:
    """A network that reads so many numbers; its memory stands behind that of those before it."""
    structure: Any = net.structure
    if structure.layout.stem or structure.residual or net.values.device.type != "cpu":
        return None
    if net.values.dtype != torch.float32 or net.values.stride(1) != 1:
        return None
    count, hidden = structure.recurrent, structure.layout.hidden
    fields = torch.zeros(policy.members, count, 6, dtype=torch.int32)
    kept = 0
    for i in range(count):
        part, remembered = hidden[i], policy.memory + sum(structure.memory_widths[: 2 * i])
        for p, arch in enumerate(structure.archs):
            block = arch.layers.get(structure.names[i])
            if block is None or block.blend:
                return None
            spots = part.weight.units, part.weight.start, part.bias.start, part.recurrent.start, remembered
            fields[p, i] = torch.tensor([block.width, *spots])
        kept += (GATES + 4) * (part.weight.units + 16)
    reads = hidden[count - 1].out if count else inputs
    plan = Plan.of(structure, count, reads)
    if plan.layers > MOST or count > MOST:
        return None
    policy.memory += structure.memory
    policy.keep += [plan.fields, fields]
    widest = max(plan.widest, inputs, *(2 * hidden[i].out for i in range(count)))
    return _Brain(
        at(plan.fields), at(fields), at(net.values), at(adam.mean), at(adam.square), at(adam.steps), plan.layers, count,
        inputs, plan.room + kept, widest, structure.size, net.values.stride(0), adam.mean.stride(0),
    )  # fmt: skip


def learn(cfg: Any, state: Any, hp: Hyper, lessons: Lessons, healthy: Tensor) -> Learned | None:
    """Learn from all minibatches, epoch after epoch, in place; None where torch must, minibatch by minibatch.

    Losses are those of each member's last one; hp values and healthy are `[P]`."""
    policy = _described(cfg, state)
    if policy is None:
        return None
    rates = [hp[name].float().contiguous() for name in _RATES]
    counts = [torch.tensor(list(x)) for x in (lessons.batches, lessons.sizes, lessons.epochs)]
    order, ticks, within = (x.contiguous() for x in (lessons.order, lessons.ticks, lessons.within))
    losses, healthy = torch.full_like(rates[0], torch.nan), healthy.clone()
    rows, known, done = lessons.rows, cfg.spaces.observations + cfg.spaces.action_size, ctypes.c_int32()
    asked = _Lessons(
        *map(at, (rows, lessons.memory, order, ticks, within, *counts, *rates)),
        *map(at, (state.log_std_adam, state.resting, state.updates, losses, healthy)),
        rows.shape[3], rows.stride(0), lessons.memory.stride(0), known, order.shape[2], rows.shape[2], ticks.shape[1],
        order.shape[1], cfg.normalise_advantage, cfg.clip_value, rows.shape[3] > known + 6, *BETAS,
    )  # fmt: skip
    kernels().policy_learn(ctypes.addressof(policy), ctypes.addressof(asked), ctypes.addressof(done))
    return Learned(losses, healthy) if done.value else None


def act(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None) -> Chosen | None:
    """Draw actions, or take the likeliest where `draw` is None: obs `[P, E, O]`, memory `[P, E, M]` before it; None
    where torch must."""
    policy = _reading(cfg, state, obs, memory)
    if policy is None:
        return None
    envs = obs.shape[:2]
    action = torch.empty(*envs, *cfg.spaces.action_shape, dtype=torch.float32 if cfg.spaces.continuous else torch.int64)
    log_prob, value = obs.new_empty(2, *envs)
    after = torch.zeros_like(memory, memory_format=torch.contiguous_format) if policy.memory else memory
    return Chosen(action, log_prob, value, after) if _say(
        policy, obs, legal, memory, draw, action, log_prob, value, after
    ) else None  # fmt: skip


def value(cfg: Any, state: Any, obs: Tensor, memory: Tensor) -> Tensor | None:
    """Return V(s) `[P, B]`: obs `[P, B, O]`, memory `[P, B, M]` before it; None where torch must."""
    policy = _reading(cfg, state, obs, memory)
    if policy is None:
        return None
    found = obs.new_empty(obs.shape[:2])
    return found if _say(policy, obs, None, memory, value=found) else None


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor | None:
    """Return the likeliest legal actions, from an empty memory: obs `[P, E, O]`; None where torch must."""
    if (policy := _described(cfg, state)) is None:
        return None
    memory, shape = obs.new_zeros(*obs.shape[:2], policy.memory), (*obs.shape[:2], *cfg.spaces.action_shape)
    if _reading(cfg, state, obs, memory) is None:
        return None
    action = torch.empty(shape, dtype=torch.float32 if cfg.spaces.continuous else torch.int64)
    return action if _say(policy, obs, legal, memory, action=action) else None


def _reading(cfg: Any, state: Any, obs: Tensor, memory: Tensor) -> _Policy | None:
    policy = _described(cfg, state)
    if policy is None or obs.dtype != torch.float32 or memory.shape[-1] != policy.memory or not obs.numel():
        return None
    return policy if len(obs) == policy.members else None


def _say(
    policy: _Policy, obs: Tensor, legal: Tensor | None, memory: Tensor, draw: Stream | None = None,
    action: Tensor | None = None, log_prob: Tensor | None = None, value: Tensor | None = None,
    after: Tensor | None = None,
) -> bool:  # fmt: skip
    """Fill what is given from `action` on; say whether there was memory for it."""
    obs, memory, legal = obs.contiguous(), memory.contiguous(), None if legal is None else legal.contiguous()
    done = ctypes.c_int32()
    kernels().policy_act(
        ctypes.addressof(policy), obs.shape[1], at(obs), at(legal), at(memory), *_stream(draw), at(action), at(log_prob),
        at(value),
        at(after) if policy.memory else None, ctypes.addressof(done),
    )  # fmt: skip
    return bool(done.value)


def _stream(draw: Stream | None) -> tuple[Any, ...]:
    return (None, 0, None) if draw is None else (at(draw.keys), draw.salt, at(draw.step))


def enter(
    spaces: Spaces, rows: Tensor, obs: Tensor, legal: Tensor | None, begins: Tensor, chosen: Chosen
) -> bool:  # fmt: skip
    """Enter what is known before a step into rows `[P, E, …]`, see `memory.rollout`; say whether the kernels can."""
    kinds = (obs, chosen.log_prob, chosen.value) + ((chosen.action,) if spaces.continuous else ())
    if not _plain(rows, *kinds):
        return False
    obs, action, log_prob, value, begins = (
        x.contiguous() for x in (obs, chosen.action, chosen.log_prob, chosen.value, begins)
    )
    legal = None if legal is None else legal.contiguous()
    kernels().rollout_enter(
        *obs.shape, spaces.action_size, spaces.actions, at(rows), rows.stride(0), at(obs), at(action),
        not spaces.continuous, at(log_prob), at(value), at(begins), at(legal),
    )  # fmt: skip
    return True


def finish(after: Tensor, expected: Tensor, next_obs: Tensor, reward: Tensor, *ends: Tensor) -> bool:
    """Enter what a step gave, `[P, E, …]`, and how it ended, bool `[P, E]` each; say whether the kernels can. Expected
    are the values `[P, E]` in the step's row."""
    if not _plain(after, expected, next_obs, reward):
        return False
    next_obs, reward, *ends = (x.contiguous() for x in (next_obs, reward, *ends))  # type: ignore[assignment]
    kernels().rollout_finish(
        *next_obs.shape, at(after), after.stride(0), at(expected), *expected.stride(), at(next_obs), at(reward),
        *map(at, ends),
    )  # fmt: skip
    return True


def _plain(*tensors: Tensor) -> bool:
    return build.chosen() is not None and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
