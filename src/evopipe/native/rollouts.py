"""Whole rollouts by the native kernels: members act in environments in C for many ticks in one call, and advantages.

A tick gives the bits of `policy.act`, the pool's `step`, `policy.enter`, `policy.finish` and `policy.next_episodes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from evopipe.native import build, header, policy
from evopipe.native.build import kernels
from evopipe.native.header import at
from evopipe.native.statistics import Normalising
from evopipe.rng import Purpose, salt
from evopipe.types import Tensor


class Ticks(NamedTuple):
    """The arguments of `play`, by which `P` members take some ticks (environment steps). Each member acts in `E` of the
    `R` environments of a pool.

    An observation has `O` numbers and a recurrent state `M`. The kernels change the tensors in place, except `slots`
    and `keys`.

    Attributes:
        pool: the C struct of all environments, see `native.environment.States.packed`.
        slots: `[P]` int64, each member's place in the population. It says which environments of the pool the member
            acts in.
        keys: `[P]` int64, the members' random keys.
        first: the number of the first tick, the counter of random draws.
        many: the number of ticks.
        episodes: three tensors `[R]` int64, with one entry for each environment of the pool: the random key of the
            member that it belongs to, its index among that member's environments, and the number of episodes begun in
            it.
        rows: `[P, many, E, …]`, the steps of a rollout, see `memory.rollout`.
        after: `[P, many, E, O + 4]`, the results of the steps, see `memory.rollout`.
        memory: `[P, many + 1, E, M]`, the recurrent states before each step and after the last one.
        remembered: `[P, E, M]`, the recurrent state before the first tick, and afterwards that after the last.
        returns: four tensors; None if they are not needed. The first, `[R]`, has the returns of running episodes. The
            others have one entry for each slot (place in the population): the sum of the returns of ended episodes, the
            number of ended episodes, and the number of steps in broken episodes. An episode is broken if a step gave a
            number that is not finite.
        broken: `[P]` int64, for each member the number of steps that broke an episode; None if no step can do so.
        normalise: the normalisation of observations and rewards; None if nothing is normalised.
    """

    pool: bytes
    slots: Tensor
    keys: Tensor
    first: int
    many: int
    episodes: tuple[Tensor, Tensor, Tensor]
    rows: Tensor
    after: Tensor
    memory: Tensor
    remembered: Tensor
    returns: tuple[Tensor, Tensor, Tensor, Tensor] | None
    broken: Tensor | None
    normalise: Normalising | None


def play(cfg: Any, state: Any, ticks: Ticks) -> Callable[[], None] | None:
    """Return a function that lets members act in environments in C for some ticks (steps); None if the kernels cannot.

    The returned function takes no arguments and returns nothing. It writes the steps, their results and the counts into
    the tensors of `ticks`.

    Args:
        cfg, state: the algorithm's configuration, equal for all members, and the members' state.
        ticks: the ticks: the environments, the members, and the tensors to write.
    """
    found, rows, memory = policy.described(cfg, state, None), ticks.rows, ticks.memory
    if found is None:
        return None
    if not policy.readable(found, rows[:, 0], ticks.remembered) or not policy.plain(rows, ticks.after, memory):
        return None
    kind, (row_keys, row_envs, begun) = header.of("play_call"), ticks.episodes
    returns = header.of("returns_call").pack(*map(at, ticks.returns or (None,) * 4))
    by = ticks.normalise
    call = kind.pointer(kind.packed(
        pool=ticks.pool, slots=at(ticks.slots), keys=at(ticks.keys), row_keys=at(row_keys), row_envs=at(row_envs),
        begun=at(begun), envs=rows.shape[2], ticks=ticks.many, first=ticks.first, salt=salt(Purpose.ACT),
        steps=at(rows), after=at(ticks.after), memory=at(memory), row=rows.shape[3], steps_stride=rows.stride(0),
        after_stride=ticks.after.stride(0), memory_stride=memory.stride(0), remembered=at(ticks.remembered),
        returns=returns, broken=at(ticks.broken),
        normalise=by.packed() if by else bytes(header.of("normalise_call").size),
    ))  # fmt: skip

    def go() -> None:
        assert ticks.many <= rows.shape[1]
        build.done(kernels().play_ticks(found.pointer, call))

    return go


def estimate(
    rows: Tensor, after: Tensor, known: int, observations: int, next_value: Tensor, gamma: Tensor, lam: Tensor
) -> bool:
    """Compute advantages (GAE) and value targets of a rollout, and store them in `rows`, by the C kernels.

    Return whether the kernels could do it; if not, nothing is stored.

    Args:
        rows: `[P, T, E, …]`, the steps of P members in E environments over T ticks, see `memory.rollout`.
        after: `[P, T, E, …]`, the results of the steps: next observations, rewards and ends of episodes.
        known: the index of the log-probability in a row. The value, the advantage and other numbers come after it, see
            `StepLayout.log_prob`.
        observations: `O`, the width of an observation.
        next_value: `[P, T · E]`, the values of the states after each step.
        gamma: `[P]`, the discounts.
        lam: `[P]`, λ of GAE.
    """
    if not policy.plain(rows, after, next_value, gamma, lam):
        return False
    next_value, gamma, lam = next_value.contiguous(), gamma.contiguous(), lam.contiguous()
    kernels().estimate_advantages(header.of("estimate_call")(
        *rows.shape[:3], observations, known, at(rows), at(after), rows.shape[3], rows.stride(0), after.shape[3],
        after.stride(0), at(next_value), at(gamma), at(lam),
    ))  # fmt: skip
    return True
