"""What actor-critic algorithms have in common: their networks, how a deterministic actor acts, what critics learn.

Of a configuration and a state each function reads what it says, by the names that all of them use. An x is what
networks read: features `[P, B, latent]` of the encoder that they share, or, without one, observations `[P, B, O]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch

from evopipe.algos import Answers, _hyper
from evopipe.core import optim
from evopipe.core.net import Net, forward
from evopipe.native import actor_critic as native
from evopipe.native import build
from evopipe.native.ticks import Choice
from evopipe.native.update import Learners, Recipe
from evopipe.ops.distributions import Distribution, distribution, squashed
from evopipe.ops.policy import Noise as NoiseKind
from evopipe.ops.policy import likeliest, noisy, smoothed
from evopipe.ops.value import pick, twin_loss
from evopipe.rng import Stream
from evopipe.schema.declare import hyper
from evopipe.types import Batch, Hyper, Learned, Tensor

ActorRate = Annotated[float, _hyper.rate("Adam for the actor")]
CriticRate = Annotated[float, _hyper.rate("Adam for the critics")]
PolicyDelay = Annotated[int, hyper(doc="critic updates for each update of the actor and the target networks",
    raising="slower, steadier actor", ge=1, le=1000)]  # fmt: skip
TargetNoise = Annotated[float, hyper(doc="standard deviation of the noise on actions in the critics' targets",
    raising="smoother targets", evolvable=True, ge=0, le=10)]  # fmt: skip
TargetNoiseLimit = Annotated[float, hyper(doc="largest noise on actions in the critics' targets",
    raising="smoother targets", evolvable=True, ge=0, le=2)]  # fmt: skip
RandomSteps = Annotated[int, hyper(doc="first steps of a member, with random actions", unit="environment steps",
    raising="explores longer at first", ge=0, le=10**12)]  # fmt: skip
Noise = Annotated[NoiseKind, hyper(doc="kind of exploration noise: `gaussian`, or `ou` (Ornstein-Uhlenbeck)")]
NoiseDeviation = Annotated[float, hyper(
    doc="standard deviation of the exploration noise on continuous actions", raising="explores more", ge=0,
    le=10)]  # fmt: skip
NoiseReturn = Annotated[float, hyper(doc="share of Ornstein-Uhlenbeck noise that decays per step",
    raising="less correlated", ge=0.05, le=1)]  # fmt: skip
SharedEncoder = Annotated[bool, hyper(
    doc="whether actor and critics share an encoder, which learns by the critics' loss alone")]  # fmt: skip
RANGES = _hyper.ranges(lr_actor=(1e-4, 1e-2), lr_critic=(1e-4, 1e-2), batch_size=(32, 512), learn_step=(1, 8))


def explore(cfg: Any, step: int) -> float:
    """Return the probability of a uniformly random action after `step` environment steps of a member.

    The probability is 1 for the first `cfg.random_steps` steps, and 0 afterwards.
    """
    return float(step < cfg.random_steps)


def greedy(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the deterministic actions μ(s) of the actors, `[P, E, A]` in [−1, 1].

    `obs` is `[P, E, O]`, for P members with E environments each. `cfg` and `state` are the algorithm's configuration
    and state. `legal` has no effect, because actions are continuous.
    """
    with torch.no_grad():
        return squashed(forward(state.actor, forward(state.encoder, obs)))


def act(cfg: Any, state: Any, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Return the actions μ(s) with exploration noise, clipped to [−1, 1].

    With probability ε, an action is uniformly random instead.

    The result is `[P, E, A]` for P members with E environments each.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        obs: `[P, E, O]`, the observations.
        legal: has no effect, because actions are continuous.
        epsilon: `[P]`, ε.
        draw: the stream of random numbers.
    """
    return noisy(greedy(cfg, state, obs, legal), epsilon, draw, cfg.noise_sd, cfg.noise, cfg.ou_theta)


def output(cfg: Any, state: Any, obs: Tensor) -> Tensor:
    """Return the outputs of the actors, `[P, E, A]`. `obs` is `[P, E, O]`, for P members with E environments each.

    The outputs are logits of discrete actions, or continuous actions before the tanh. NaN becomes 0. `cfg` and `state`
    are the algorithm's configuration and state.
    """
    with torch.no_grad():
        return torch.nan_to_num(forward(state.actor, obs))


def best(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None) -> Tensor:
    """Return the most likely legal actions `[P, E]`; for continuous actions, μ(s) `[P, E, A]`.

    obs is `[P, E, O]` for P members with E environments each. For discrete actions, the actors' outputs are logits, and
    `legal` `[P, E, A]` bool says which actions are legal; None for all. `cfg` and `state` are the algorithm's
    configuration and state.
    """
    return likeliest(output(cfg, state, obs), legal, cfg.spaces.continuous)


def action_value(critic: Net, x: Tensor, action: Tensor, views: Any = None) -> Tensor:
    """Return the critic's values Q(s, a) `[P, B]` for B transitions of P members; `[P, K, B]` if each member has K
    critics.

    Args:
        critic: the critics.
        x: what the critics read: the observations; with a shared encoder, its features.
        action: `[P, B, A]`, the actions.
        views: parameter tensors to use instead of the critic's own, see `core.net.forward`; None for its own.
    """
    # A head's own inputs stand before the latent, so that members' latents may differ.
    inputs = (action, x) if critic.structure.widths.role == "head" else (x, action)
    return forward(critic, torch.cat(inputs, dim=-1), views).squeeze(-1)


def chances(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Distribution:
    """Return the policy's distribution over the legal actions: a softmax of the actor's outputs, see `output`.

    obs is `[P, B, O]` for B observations of P members, and legal `[P, B, A]` bool, or None if all actions are legal.
    `cfg` and `state` are the algorithm's configuration and state. `memory` has no effect, because the actors are not
    recurrent.
    """
    return distribution(cfg.spaces, output(cfg, state, obs), None, legal)


def q_values(cfg: Any, state: Any, obs: Tensor, action: Tensor | None) -> Tensor:
    """Return the smaller value of each member's two critics, min(Q₁, Q₂), without gradient.

    obs is `[P, B, O]` for B observations of P members. The result is `[P, B]` for the actions `action`, or `[P, B, A]`
    for all discrete actions if `action` is None. `cfg` and `state` are the algorithm's configuration and state.
    """
    with torch.no_grad():
        x = forward(getattr(state, "encoder", None), obs)
        q = forward(state.critics, x) if action is None else of_taken(cfg, state.critics, x, action)
        return q.amin(dim=1)


def of_own_action(
    greedy: Callable[..., Tensor], q_values: Callable[..., Tensor] = q_values
) -> Callable[[Any], Answers]:
    """Return the function `answers` for an algorithm with a deterministic actor.

    Such an algorithm's state value V(s) is Q(s, μ(s)), the value of the actor's action μ(s). The returned function
    takes the algorithm's configuration, and returns the `Answers`: the functions by which an exported policy computes
    values.

    Args:
        greedy: the algorithm's function (cfg, state, obs, legal) that returns the actions μ(s).
        q_values: the algorithm's function (cfg, state, obs, action) that returns the action values Q(s, a).
    """

    def value(cfg: Any, state: Any, obs: Tensor, legal: Tensor | None, memory: Tensor) -> Tensor:
        return q_values(cfg, state, obs, greedy(cfg, state, obs, legal))

    return lambda cfg: Answers(value, q_values)


def clipped_double_loss(
    state: Any, hp: Hyper, batch: Batch, draw: Stream, x: Tensor, x_t: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute clipped double Q-learning: return the loss of each member's two critics `[P]`, and each transition's
    error `[P, B]`.

    The targets are r + γ min(Q₁⁻, Q₂⁻)(s′, a′), where a′ = μ⁻(s′) with clipped noise (Fujimoto, van Hoof & Meger, 2018,
    eq. 10 and 14). The sign ⁻ marks target networks.

    Args:
        state: the algorithm's state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: a minibatch of B transitions.
        draw: the stream of random numbers, for the noise.
        x, x_t: observations before and after the step; with a shared encoder, their features.
    """
    with torch.no_grad():
        action_t = torch.tanh(forward(state.actor_target, x_t))
        action_t = smoothed(action_t, draw, hp["target_noise"], hp["target_clip"])
        q1_t, q2_t = action_value(state.critics_target, x_t, action_t).unbind(dim=1)
        y = torch.addcmul(batch.reward, batch.discount, torch.minimum(q1_t, q2_t))  # [P, B]
    return twin_loss(action_value(state.critics, x, batch.action) - y[:, None], batch.weight)


def recipe(critic: str, cfg: Any, state: Any, hp: Hyper, batch: Batch, close: bool = False) -> Recipe | None:
    """Return the `Recipe`, which tells the C kernels how to update a deterministic actor and its critics.

    The result is None if the kernels cannot make this update; then torch makes it.

    Args:
        critic: the name of the state's field with the critics.
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        batch: the minibatch of the update. Only the type and the width of its observations matter.
        close: whether the actor's loss is that of TD3+BC, which stays close to the actions of a dataset.
    """
    if not build.serve_wholly(batch.obs) or getattr(state, "encoder", None) is not None:
        return None
    of, places = Learners.of(state, critic), native.alone(cfg.spaces.observations, cfg.spaces.actions)
    limit, alpha = hp.get("target_clip", 0.0), hp["alpha"] if close else None
    job = native.ddpg_job(of, hp, places, batch, noise_clip=limit, alpha=alpha)
    if job is None:
        return None
    noise, scale = (cfg.spaces.actions, hp["target_noise"]) if critic == "critics" else (0, None)
    return Recipe("ddpg_update", of, job, noise, scale, turn=cfg.policy_delay - 1)


def choice(cfg: Any, state: Any) -> Choice | None:
    """Return a `Choice`: what the C kernels need to choose the same actions as `act`.

    The result is None if the kernels cannot choose these actions; then torch chooses. `cfg` and `state` are the
    algorithm's configuration and state.
    """
    plain = cfg.noise == "gaussian" and getattr(state, "encoder", None) is None
    return Choice(state.actor, "noisy", cfg.noise_sd) if plain else None


def actor_loss(state: Any, critic: str, batch: Batch) -> Tensor:
    """Return the actor's loss of each member, `[P]`: the weighted sum of −Q(s, μ(s)) over the transitions of `batch`.

    `state` is the algorithm's state, and `critic` the name of its field with the critics. If there are two critics, Q
    is the first.
    """
    q = state.critics.pair[0] if critic == "critics" else state.critic.frozen
    with torch.no_grad():
        x = forward(state.encoder, batch.obs)
    return -(batch.weight * action_value(q, x, torch.tanh(forward(state.actor, x)))).sum(dim=1)


def learn(
    state: Any, critic: str, hp: Hyper, healthy: Tensor, found: tuple[Tensor, Tensor],
    climb: Callable[[], Tensor] | None,
) -> Learned:  # fmt: skip
    """Take the gradient steps of an actor-critic update, in place.

    Return the two tensors of `found`, and which members are still healthy (all their numbers are finite).

    Args:
        state: the algorithm's state.
        critic: the name of the state's field with the critics.
        hp: the hyper-parameters that may differ between the P members, by name, `[P]` each.
        healthy: `[P]` bool, the members that learn.
        found: a pair: the critics' losses `[P]`, from which critics and a shared encoder learn, and each transition's
            error `[P, B]`.
        climb: a function without arguments that returns the actor's losses `[P]`; None in updates that leave out the
            actor and the target networks.
    """
    losses, errors = found
    online, encoder = getattr(state, critic), getattr(state, "encoder", None)
    critics = (online, getattr(state, f"{critic}_adam"), hp["lr_critic"])
    healthy = healthy & state.actor.finite  # its own loss may come later
    shared = (encoder, getattr(state, "encoder_adam", None), hp["lr_critic"])
    healthy = optim.descend(losses, healthy, hp["grad_clip"], critics, shared)
    if climb is not None:
        healthy = optim.descend(climb(), healthy, hp["grad_clip"], (state.actor, state.actor_adam, hp["lr_actor"]))
        optim.polyak(getattr(state, "encoder_target", None), encoder, hp["tau"] * healthy)
        optim.polyak(getattr(state, f"{critic}_target"), online, hp["tau"] * healthy)
        optim.polyak(getattr(state, "actor_target", None), state.actor, hp["tau"] * healthy)
    state.updates.add_(healthy)
    return Learned(losses.detach(), healthy, errors)


def of_taken(cfg: Any, critics: Net, x: Tensor, action: Tensor) -> Tensor:
    """Return the values Q₁ and Q₂ of the actions taken, `[P, 2, B]` for B transitions of P members.

    Args:
        cfg: the algorithm's configuration.
        critics: the two critics of each member.
        x: what the critics read: the observations; with a shared encoder, its features.
        action: the actions, `[P, B, A]` if continuous, else `[P, B]` int64.
    """
    if cfg.spaces.continuous:
        return action_value(critics, x, action)
    return pick(forward(critics, x), action[:, None].expand(-1, 2, -1))
