"""Steps of off-policy members by the native kernels: acting, learning, storing, each in one call, or all in one.

`run.act`, `regimes.learn` and `memory.replay` have the same in torch, to the bit. What a struct points to is held by
the object that made it, and must neither move nor be replaced while that is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from evopipe.native import build, header, update
from evopipe.native.header import at
from evopipe.native.networks import Net
from evopipe.native.replay import Batches, Priority
from evopipe.native.update import Recipe
from evopipe.rng import Purpose, Stream, salt
from evopipe.types import Tensor

CHOOSE = ("best", "squashed", "noisy")
UPDATES = ("value_update", "ddpg_update", "sac_update")  # `ticks.c` counts both in the same order


class Choice(NamedTuple):
    """The way in which members choose actions by a network.

    Attributes:
        net: the network.
        how: the meaning of the network's outputs. `best`: action values, of which the largest is taken (see
            `ops.policy.epsilon_greedy`). `squashed`: mean and log standard deviation of a Gaussian, whose samples are
            squashed by a tanh. `noisy`: an action, to which normal noise is added.
        deviation: the standard deviation of the noise, for `noisy`.
    """

    net: Net
    how: str
    deviation: float = 0.0


class Chooser:
    """Callable that chooses the exploratory actions of P members by one call of the C kernels per step.

    The object is called with (obs, legal, actions, tick, epsilon) and returns nothing. The first three are memory
    addresses: of the observations, of the legal actions, and of the actions, which the call writes. `tick` is the
    number of the environment step, and `epsilon` the probability of a random action.

    Args:
        choice: the network, and how actions are chosen from its outputs.
        actions: `A`, the width of an action or the number of actions.
        observations: `O`, the width of an observation.
        envs: the number of environments of each member.
        keys: `[P]`, the members' random keys.
        healthy: `[P]` bool, False for members that have diverged.
        rows: `[P]` int64, the row of each member's first environment in the array of observations.
        places: `[P]` int64, the row of each member's first environment in the array of actions.
    """

    def __init__(
        self, choice: Choice, actions: int, observations: int, envs: int, keys: Tensor, healthy: Tensor, rows: Tensor,
        places: Tensor,
    ) -> None:  # fmt: skip
        fields = update.network(choice.net, None, observations, len(keys))
        assert fields is not None
        part = Stream(keys, Purpose.ACT, keys[:1]).part(1).keys
        self._held = choice.net, keys, part, healthy, rows, places, fields
        kind = header.of("chooser")
        self.packed = kind.packed(
            net=header.of("network").packed(**fields), how=CHOOSE.index(choice.how), members=len(keys), envs=envs,
            actions=actions, deviation=choice.deviation, keys=at(keys), part_keys=at(part), salt=salt(Purpose.ACT),
            to=at(places), healthy=at(healthy), **{"from": at(rows)},
        )  # fmt: skip
        self._pointer, self._call = kind.pointer(self.packed), header.of("choose_call")

    @staticmethod
    def serves(choice: Choice, observations: int, keys: Tensor) -> bool:
        """Return whether the C kernels can choose actions by the network of `choice`.

        Args:
            choice: the network, and how actions are chosen from its outputs.
            observations: the width of an observation.
            keys: `[P]`, the members' random keys.
        """
        return build.chosen() is not None and update.network(choice.net, None, observations, len(keys)) is not None

    def __call__(self, obs: int, legal: int, actions: int, tick: int, epsilon: float) -> None:
        """Choose the actions of one tick (environment step), and write them.

        Args:
            obs: the memory address of the observations.
            legal: the memory address of the legal actions.
            actions: the memory address at which the actions are written.
            tick: the number of the tick.
            epsilon: the probability of a random action.

        Raises:
            MemoryError: there is not enough memory.
        """
        build.done(build.kernels().tick_choose(self._pointer, self._call(obs, legal, actions, tick, epsilon)))


class Updates:
    """Callable that makes all due updates of P members from a replay buffer by one call of the C kernels.

    The object is called with (step, turn, updates, beta, filled) and returns nothing. `step` is the counter of the
    first random draw. `updates` is the number of updates to make. Updates are counted in periods, see the argument
    `period`; `turn` is the place of the first update in its period, from 0. `beta` is the exponent of importance
    sampling. `filled` is the memory address of an array, which holds the number of rows in each buffer.

    Args:
        how: the recipe of one update.
        batches: the sampler of minibatches.
        period: the number of updates in a period. In each period the actor learns once, in the update whose place in
            the period is `how.turn`.
        keys: `[P]`, the members' random keys.
        healthy: `[P]` bool, False for members that have diverged; changed in place.
        losses: `[P]`, the members' last losses; changed in place.
        memory: `[P]` int64, the index of each member's replay buffer.
        priorities: the priorities of the buffers; None for uniform sampling.
    """

    def __init__(
        self, how: Recipe, batches: Batches, period: int, keys: Tensor, healthy: Tensor, losses: Tensor,
        memory: Tensor, priorities: Priority | None,
    ) -> None:  # fmt: skip
        part = Stream(keys, Purpose.UPDATE, keys[:1]).part(1).keys
        (members, n), held = batches.index.shape, update.minibatch(batches.batch)
        noise, own = (torch.empty(members, n, how.noise) if wanted else None for wanted in (how.noise, how.own_noise))
        errors = torch.zeros(members, n)
        trees = None if priorities is None else priorities.of(batches.slots, batches.index, errors)
        self._held = (
            how, batches, keys, part, healthy, losses, memory, noise, own, errors, held, trees, how.scale
        )  # fmt: skip
        kind = header.of("lessons")
        self.packed = kind.packed(
            how=UPDATES.index(how.name), members=members, numbers=how.noise, period=period, turn=how.turn,
            salt=salt(Purpose.UPDATE), batches=batches.address, batch=header.address(held[1]),
            job=header.address(how.job.pointer), keys=at(keys), part_keys=at(part), scale=at(how.scale),
            noise=at(noise), own_noise=at(own), memory=at(memory), losses=at(losses),
            errors=at(errors), healthy=at(healthy), priorities=0 if trees is None else header.address(trees[0]),
        )  # fmt: skip
        self._pointer, self._call = kind.pointer(self.packed), header.of("learn_call")

    @staticmethod
    def serves(how: Recipe, batches: Batches) -> bool:
        """Return whether an object of this class, made once, can make these updates at every tick.

        It holds the addresses of tensors. The result is therefore False if one of these tensors is a temporary copy.
        `how` describes the update to the C kernels, and `batches` is the sampler of minibatches.
        """
        return update.lasting(how) and update.minibatch(batches.batch)[2] is None

    def __call__(self, step: int, turn: int, updates: int, beta: float, filled: int) -> None:
        """Make the updates. The arguments are explained in the docstring of the class.

        Raises:
            MemoryError: there is not enough memory.
        """
        build.done(build.kernels().tick_learn(self._pointer, self._call(step, turn, updates, beta, filled)))


class Appender:
    """An object that appends transitions, with their first priorities, to replay buffers by one call of the C kernels.

    Args:
        to: `[M, capacity, size]`, the M ring buffers.
        rows: `[M, n, size]`, the transitions that each call appends.
        keep: `[M, n]` bool, which of the transitions are appended. Transitions that are not finite are left out too.
        position: `[M]` int64, the index at which each buffer's next row is written; advanced in place.
        filled: `[M]` int64, the number of rows in each buffer; raised in place.
        priorities: the priorities of the buffers; None for uniform sampling.
        each: the number of members that share each buffer.
    """

    def __init__(
        self, to: Tensor, rows: Tensor, keep: Tensor, position: Tensor, filled: Tensor, priorities: Priority | None,
        each: int,
    ) -> None:  # fmt: skip
        places = torch.empty(keep.numel(), dtype=torch.int64)
        trees = None if priorities is None else priorities.of()
        self.rows, self.keep = rows, keep
        self._held = to, position, filled, places, trees
        kind = header.of("memory_call")
        self.packed = kind.packed(
            store=header.of("store_call").pack(
                *rows.shape, to.shape[1], at(rows), at(keep), at(to), at(position), at(filled), at(places)
            ),
            priorities=0 if trees is None else header.address(trees[0]), each=each,
        )  # fmt: skip
        self._pointer = kind.pointer(self.packed)

    def append(self) -> None:
        """Append the transitions that the tensor `rows` holds now, if `keep` is True for them.

        `rows` and `keep` are the tensors that the constructor got.
        """
        build.kernels().tick_remember(self._pointer)


class ManyTicks:
    """Callable that takes many ticks of off-policy members in one call of the C kernels, in environments in C.

    A tick is one step in every environment: members choose actions, step, store the transitions and make the updates
    that are due.

    The object is called with (tick, here, epsilon, beta). `tick` and `here` are the number of the first tick, counted
    in the run and in the generation. `epsilon` and `beta` hold, for each tick, the probability of a random action and
    the exponent of importance sampling. The call stops after the first tick with a broken transition (one with a number
    that is not finite). It returns the number of ticks taken, and the number of transitions broken in the last one.

    Args:
        choosers, lessons: the chooser and the updater of each cohort (members that train together), made for these
            environments and replay buffers.
        every: for each cohort, the number of a member's steps from one update to the next.
        pool: the C struct of a pool of R environments, see `native.environment.States.packed`.
        rows: `[n]` int64, the indices of the environments that step; None for all.
        episodes: three tensors `[R]` int64, with a number for each environment of the pool: the random key of the
            environment's member; the environment's number among those of this member; and how many episodes have begun
            in the environment. The third tensor is changed in place.
        returns: four tensors that are changed in place: the returns of running episodes `[R]`; then, `[slots]` each,
            the sum of the returns of ended episodes, the number of ended episodes, and the number of broken steps. None
            if they are not needed.
        memory: the object that appends the transitions to the replay buffers.
        obs: `[n, O]`, the present observations, which the caller writes before a call.
        legal: `[n, A]` bool, the legal actions.
        actions: a buffer for the actions of a tick, `[n]` int64 or `[n, A]` float32.
        envs: the number of environments of each member.
        delay: the number of a member's steps before it may learn.
        at_once: the number of updates that a member makes each time that updates are due.
        apart: how many step numbers of the random generator are reserved for each tick; more than a tick has updates,
            so that no two updates draw the same numbers.
        alone: whether each member has a replay buffer of its own and no step can be broken. Then each member takes all
            its ticks at once, one member after the other or several in parallel threads.
    """

    def __init__(
        self, choosers: Sequence[Chooser], lessons: Sequence[Updates], every: Sequence[int], pool: bytes,
        rows: Tensor | None, episodes: tuple[Tensor, Tensor, Tensor],
        returns: tuple[Tensor, Tensor, Tensor, Tensor] | None, memory: Appender, obs: Tensor, legal: Tensor,
        actions: Tensor, envs: int, delay: int, at_once: int, apart: int, alone: bool,
    ) -> None:  # fmt: skip
        (n, _), (keys, of, begun) = obs.shape, episodes
        self.obs, whole = obs, len(begun)
        after, reward = torch.empty_like(obs), torch.empty(n)
        over, *ends = (torch.zeros(count, dtype=torch.bool) for count in (whole, n, n))
        found, seeds = torch.empty(2, whole, dtype=torch.int64)
        counted = header.of("returns_call").pack(*map(at, returns or (None,) * 4))
        arrays = [header.of(name).pointer(b"".join(each.packed for each in those))
                  for name, those in (("chooser", choosers), ("lessons", lessons))]  # fmt: skip
        steps = torch.tensor(list(every), dtype=torch.int64)
        env = header.of("env_call").changed(
            pool, rows=n, where=at(rows), actions=at(actions), obs=at(after), rewards=at(reward),
            terminated=at(ends[0]), truncated=at(ends[1]),
        )  # fmt: skip
        begins = header.of("episodes_call").pack(
            whole, at(over), at(keys), at(of), at(begun), salt(Purpose.EPISODE), at(found), at(seeds)
        )
        self._held = (
            choosers, lessons, rows, episodes, returns, memory, legal, actions, after, reward, over, ends, found, seeds,
            arrays, steps,
        )  # fmt: skip
        kind = header.of("world_call")
        self._pointer = kind.pointer(kind.packed(
            cohorts=len(choosers), choosers=header.address(arrays[0]), lessons=header.address(arrays[1]),
            every=at(steps), env=env, memory=memory.packed, episodes=begins, obs=at(obs), legal=at(legal),
            rows=at(memory.rows), keep=at(memory.keep), over=at(over), returns=counted,
            envs=envs, delay=delay, at_once=at_once, apart=apart, alone=alone,
        ))  # fmt: skip

    def __call__(self, tick: int, here: int, epsilon: Sequence[float], beta: Sequence[float]) -> tuple[int, int]:
        """Take ticks, one for each `epsilon` and `beta`, fewer where transitions are broken.

        `tick` and `here` are the number of the first one, of those who live and within the generation.

        Returns:
            how many were taken, and how many transitions were broken in the last one.

        Raises:
            MemoryError: there is none for it; some members may be further than others.
        """
        rates, told = torch.tensor([[*epsilon], [*beta]]), torch.zeros(2, dtype=torch.int64)
        call = header.of("ticks_call")(tick, here, len(epsilon), at(rates[0]), at(rates[1]), at(told))
        build.done(build.kernels().tick_many(self._pointer, call))
        taken, broken = told.tolist()
        return taken, broken
