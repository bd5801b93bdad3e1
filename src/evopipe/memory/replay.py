"""Replay buffers of packed transitions: each transition is one row of float32 numbers.

A transition is one float32 row: observation, next observation, action, reward, terminated. If it spans several steps,
it has the reward of each, and their number. If the environment masks actions, the legal next actions follow, and the
legal actions too if the algorithm's loss reads them. Rows packed in one tensor are sampled 5 to 28 times faster than
five indexed tensors. Images of bytes may be stored beside the rows (`evopipe.memory.frames`).

For a team, each part holds that of all agents, one after the other, and 2 K numbers follow: which agents acted, and
where the last step leaves each (`next_alive`, see `evopipe.types`). Observations are stored as the environment gave
them; the reader leaves out agents that are absent. If a row spans several steps, each agent has its own number of
steps, which ends where it terminates or is truncated. It is 0 if the row holds no transition of that agent, although it
acted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from evopipe.core.graphs import upload
from evopipe.memory.frames import Frames
from evopipe.memory.priorities import Priorities
from evopipe.native import build
from evopipe.native import replay as native
from evopipe.native import ticks as native_ticks
from evopipe.rng import Stream
from evopipe.types import Batch, Image, Spaces

if TYPE_CHECKING:
    from collections.abc import Sequence

_COHORTS = 16  # of which batches are kept


@dataclass(frozen=True)
class RowLayout:
    """Layout of a packed transition: the widths of its parts, which follow one another in a row of float32 numbers.

    Attributes:
        obs: O, the width of an observation; for a team of K agents K · O.
        actions: A, the number of discrete actions or the width of a continuous action; for a team K · A.
        masked: whether a row holds which actions are legal after the transition.
        continuous: whether actions are continuous.
        steps: the largest number of environment steps that a transition spans.
        legal: whether a row holds which actions are legal before the transition.
        agents: K for a team, 0 for a single agent.
    """

    obs: int
    actions: int
    masked: bool
    continuous: bool = False
    steps: int = 1
    legal: bool = False
    agents: int = 0

    @classmethod
    def of(cls, spaces: Spaces, masked: bool, steps: int = 1, legal: bool = False) -> RowLayout:
        """Return the layout for an environment's spaces.

        Args:
            spaces: the environment's spaces.
            masked: whether a row holds which actions are legal after the transition.
            steps: the largest number of environment steps that a transition spans.
            legal: whether the algorithm's loss also needs the actions that are legal before the transition, as the
                constant `MASKED_LOSS` of the algorithm's module says. A row holds them only if `masked` is True too.
        """
        k, agents = spaces.agents, sum(spaces.by_agent)
        sizes = k * spaces.observations, k * spaces.actions
        return cls(*sizes, masked, spaces.continuous, steps, masked and legal, agents)

    @property
    def size(self) -> int:
        """The number of float32 numbers in a row."""
        return self._alive + 2 * self.agents

    @property
    def each(self) -> int:
        """The number of agents whose values a row holds: `K` for a team, else 1."""
        return self.agents or 1

    @property
    def action(self) -> int:
        """The number of columns of a row that hold the action."""
        return self.actions if self.continuous else self.each

    @property
    def _reward(self) -> int:
        return 2 * self.obs + self.action

    @property
    def _mask(self) -> int:
        return self._reward + (self.steps + (2 if self.steps > 1 else 1)) * self.each

    @property
    def _legal(self) -> int:
        return self._mask + (self.actions if self.masked else 0)

    @property
    def _alive(self) -> int:
        return self._legal + (self.actions if self.legal else 0)

    def pack(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        next_obs: Any,
        next_legal: Any = None,
        taken: Any = None,
        legal: Any = None,
        alive: Any = None,
        next_alive: Any = None,
    ) -> Any:
        """Pack n transitions into rows `[n, size]` float32. NumPy arrays give an array, tensors a tensor.

        Args:
            obs, next_obs: `[n, O]`, the observations before and after, O numbers each.
            action: `[n]`, or `[n, A]` for continuous actions of A numbers.
            reward: `[n]`, the rewards. `[n, steps]` if transitions may span several steps and `taken` is given: the
                reward of each step, and 0 after a transition's last step.
            terminated: `[n]`, whether the episode reached an end state.
            next_legal, legal: `[n, A]` bool, which of the A actions are legal after and before the transition; None if
                all are.
            taken: `[n]`, the number of steps of each transition; None if each spans one step.
            alive: `[n, K]`, for a team of K agents, which agents acted; None if all acted.
            next_alive: `[n, K]`, for a team, each agent's status after the step: `GONE` (takes no part in the next
                step), `ACTS` (acts next) or `CUT` (was truncated).

        For a team of K agents, the other arrays have an axis `K` too. It is directly before the axis `O` or `A`; in
        arrays without such an axis, it is the last one.
        """
        n, k = len(obs), self.each
        rows: Any = np.empty((n, self.size), np.float32)
        if isinstance(obs, Tensor):
            rows = torch.empty(n, self.size, device=obs.device)
        o, r = self.obs, self._reward
        ends = r + self.steps * k

        def flat(x: Any) -> Any:
            return x.reshape(n, -1) if isinstance(x, np.ndarray | Tensor) else x

        rows[:, :o], rows[:, o : 2 * o], rows[:, 2 * o : r] = flat(obs), flat(next_obs), flat(action)
        rows[:, ends : ends + k] = flat(terminated)
        if self.steps == 1 or taken is not None:
            rows[:, r:ends] = flat(reward)
        else:
            rows[:, r : r + k], rows[:, r + k : ends] = flat(reward), 0.0
        if self.steps > 1:
            rows[:, ends + k : self._mask] = 1.0 if taken is None else flat(taken)
        if self.masked:
            rows[:, self._mask : self._legal] = 1.0 if next_legal is None else flat(next_legal)
        if self.legal:
            rows[:, self._legal : self._alive] = 1.0 if legal is None else flat(legal)
        if self.agents:
            rows[:, self._alive : self._alive + k] = 1.0 if alive is None else alive
            rows[:, self._alive + k :] = 1.0 if next_alive is None else next_alive
        return rows

    def with_outcome(self, rows: np.ndarray, reward: np.ndarray, terminated: np.ndarray | None) -> np.ndarray:
        """Write other rewards and ends into n packed transitions of a single agent that span one step each; return
        them.

        Args:
            rows: `[n, size]`, the transitions; written in place.
            reward: `[n]`, the rewards.
            terminated: `[n]`, whether each step reached an end state; None leaves that as it is.
        """
        rows[:, self._reward] = reward
        if terminated is not None:
            rows[:, self._reward + 1] = terminated
        return rows

    def unpack(self, rows: Tensor, weight: Tensor, gamma: Tensor) -> Batch:
        """Return packed rows as a `Batch` whose tensors are views of the rows where possible.

        Args:
            rows: `[P, B, size]`, B transitions for each of P members.
            weight: `[P, B]`, the weight of each transition in the loss.
            gamma: `[P]`, the discount, by which the rewards of several steps are summed.
        """
        if self.agents:
            return self._unpack_team(rows, weight, gamma)
        o, r = self.obs, self._reward
        if self.steps == 1:
            reward, bootstrap = rows[..., r], gamma[:, None]
        else:
            powers = gamma[:, None] ** torch.arange(self.steps, device=gamma.device)
            reward = (rows[..., r : r + self.steps] * powers[:, None]).sum(dim=-1)  # Σ γᵏ r
            bootstrap = gamma[:, None] ** rows[..., r + self.steps + 1]  # γⁿ
        return Batch(
            obs=rows[..., :o],
            action=rows[..., 2 * o : r] if self.continuous else rows[..., 2 * o].long(),
            reward=reward,
            discount=bootstrap * (1 - rows[..., r + self.steps]),
            next_obs=rows[..., o : 2 * o],
            next_legal=rows[..., self._mask : self._legal] > 0.5 if self.masked else None,
            weight=weight,
            legal=rows[..., self._legal :] > 0.5 if self.legal else None,
        )

    def _unpack_team(self, rows: Tensor, weight: Tensor, gamma: Tensor) -> Batch:
        def agents(first: int, end: int) -> Tensor:
            found: Tensor = rows[..., first:end].unflatten(-1, (self.agents, -1))
            return found

        o, r, k = self.obs, self._reward, self.agents
        ends = r + self.steps * k
        terminated, (alive, next_alive) = rows[..., ends : ends + k], rows[..., self._alive :].split(k, dim=-1)
        if self.steps == 1:
            reward, bootstrap, learns = rows[..., r:ends], gamma[:, None, None], alive
        else:
            powers = gamma[:, None] ** torch.arange(self.steps, device=gamma.device)  # [P, steps]
            each = rows[..., r:ends].unflatten(-1, (self.steps, k))
            reward = (each * powers[:, None, :, None]).sum(dim=-2)
            taken = rows[..., ends + k : self._mask]
            bootstrap, learns = gamma[:, None, None] ** taken, alive * (taken > 0)
        action = agents(2 * o, r)
        return Batch(
            obs=agents(0, o),
            action=action if self.continuous else (action.long()[..., 0] if action.shape[-1] == 1 else action.long()),
            reward=reward,
            discount=bootstrap * (1 - terminated),
            next_obs=agents(o, 2 * o),
            next_legal=agents(self._mask, self._legal) > 0.5 if self.masked else None,
            weight=weight,
            legal=agents(self._legal, self._alive) > 0.5 if self.legal else None,
            alive=alive,
            learns=learns,
            next_alive=next_alive,
        )


class Incoming:
    """Buffer for the transitions of one step of all environments, which C kernels append to a `Replay`.

    The method `before` writes observations and legal actions before the step. The method `after` writes actions and
    results, and appends the transitions.

    Args:
        replay: the replay buffer.
        rows: the number of all environments, whether they step or not.
        at: `[n]`, the indices of the environments that step; None if all do.
    """

    def __init__(self, replay: Replay, rows: int, at: np.ndarray | None) -> None:
        layout, where = replay.layout, slice(None) if at is None else at
        o, r, mask, legal = layout.obs, layout._reward, layout._mask, layout._legal
        packed, self._keep = np.zeros((rows, layout.size), np.float32), np.zeros(rows, np.bool_)
        self._where: Any = where
        self._obs, self._next_obs = packed[:, :o], packed[:, o : 2 * o]
        self._action = packed[:, 2 * o : r] if layout.continuous else packed[:, 2 * o]
        self._reward, self._terminated = packed[:, r], packed[:, r + 1]
        self._next_legal = packed[:, mask:legal] if layout.masked else None
        self._legal = packed[:, legal:] if layout.legal else None
        self.kernel = native_ticks.Appender(
            replay.rows, torch.from_numpy(packed).view(replay.memories, -1, layout.size),
            torch.from_numpy(self._keep).view(replay.memories, -1), torch.from_numpy(replay.position),
            torch.from_numpy(replay.size), None if replay.priorities is None else replay.priorities.native, replay.each,
        )  # fmt: skip

    def before(self, obs: np.ndarray, legal: np.ndarray) -> None:
        """Write what precedes a step of n environments: the observations of O numbers, `[n, O]`, and which of the A
        actions are legal, `[n, A]`."""
        self._obs[self._where] = obs
        if self._legal is not None:
            self._legal[self._where] = legal

    def after(
        self, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray, next_obs: np.ndarray,
        next_legal: np.ndarray, broken: np.ndarray,
    ) -> None:  # fmt: skip
        """Write the actions and the outcomes of the step, and append the transitions to the replay buffer.

        A transition that holds a number that is not finite is left out.

        Args:
            action, reward, terminated: `[n, …]`, `[n]` and `[n]`, for the n environments that stepped.
            next_obs: `[n, O]`, the observations after the step, O numbers each.
            next_legal: `[n, A]` bool, which of the A actions are legal after the step.
            broken: `[n]` bool, the environments whose step is unusable; their transitions are left out.
        """
        at = self._where
        self._action[at], self._reward[at], self._terminated[at] = action, reward, terminated
        self._next_obs[at], self._keep[at] = next_obs, ~broken
        if self._next_legal is not None:
            self._next_legal[at] = next_legal
        self.kernel.append()


class Replay:
    """Replay buffers of a population: ring buffers of packed transitions, with priorities if sampling uses them.

    All members share one buffer, each member has its own, or `each` neighbouring members share one. Every member has
    its own priorities, even if it shares a buffer.

    Args:
        layout: the layout of a transition.
        memories: `M`, the number of buffers.
        capacity: the number of rows of each buffer.
        device: the device of the rows.
        priorities: the priorities; None for uniform sampling.
        images: columns of an observation that hold byte images.
        each: the number of neighbouring members that share a buffer.

    Attributes:
        frames: the storage of the images' columns, as bytes; None without images.
        rows: `[M, capacity, width]`, the transitions without the columns that `frames` stores.
        position: `[M]` int64 on the host, the index at which the next row of each buffer is written.
        size: `[M]` int64 on the host, the number of rows that each buffer holds.
    """

    def __init__(
        self,
        layout: RowLayout,
        memories: int,
        capacity: int,
        device: torch.device,
        priorities: Priorities | None = None,
        images: Sequence[Image] = (),
        each: int = 1,
    ) -> None:
        self.priorities, self.each = priorities, each
        self.layout, self.memories, self.capacity, self.device = layout, memories, capacity, device
        self.frames = Frames(images, layout.obs, memories * capacity, layout.steps, device) if images else None
        width = layout.size - (2 * self.frames.size if self.frames else 0)
        self.rows = torch.zeros(memories, capacity, width, device=device)
        self.position = np.zeros(memories, np.int64)
        self.size = np.zeros(memories, np.int64)
        self._filled_at = self.size.ctypes.data
        self._drawn: dict[tuple[int, int], native.Batches] = {}  # by what cohorts' weights are, and purpose
        self._placed: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def tensors(self) -> list[Tensor]:
        """Return all tensors that sampling reads, except priorities."""
        return [self.rows, *([self.frames.places, self.frames.store] if self.frames else [])]

    @property
    def _flat(self) -> Tensor:
        return self.rows.view(-1, self.rows.shape[2])

    def add(self, rows: np.ndarray, keep: np.ndarray, each: int | None = None) -> None:
        """Append n transitions to each of the M buffers. A full buffer overwrites its oldest rows.

        Args:
            rows: `[M, n, layout.size]`, n packed transitions for each buffer.
            keep: `[M, n]` bool. Transitions where it is False are left out, and so are transitions that are not finite.
            each: how many transitions in succession come from the same environment, in order of time. None means as
                many as a transition has steps; this fits the result of `NStep.add`. Only buffers with images use it.
        """
        if build.serve(self.rows) and self.frames is None:
            self._admit(native.store(self.rows, rows, keep, self.position, self.size))
            return
        kept = keep & np.logical_and.reduce(np.isfinite(rows), axis=2)
        if kept.shape[1] > self.capacity:  # only the last ones would survive
            rank = kept.cumsum(axis=1)
            kept &= rank > rank[:, -1:] - self.capacity
        rank = kept.cumsum(axis=1)
        count = rank[:, -1]
        memory, column = kept.nonzero()
        chosen = rows[memory, column]
        place = memory * self.capacity + (self.position[memory] + rank[memory, column] - 1) % self.capacity
        if self.frames is not None:
            each = self.layout.steps if each is None else each
            self.frames.add(place, chosen, np.flatnonzero(kept) // each, -(-kept.size // each))
            chosen = self.frames.without_images(chosen)
        at = upload(torch.from_numpy(place), self.device)
        self._flat[at] = upload(torch.from_numpy(chosen), self.device)
        self._admit(at)
        self._count(count)

    def add_of(self, memory: np.ndarray, rows: np.ndarray) -> None:
        """Append n packed transitions `[n, layout.size]`, each to the buffer with its index in `memory` `[n]`, in their
        order."""
        count = np.bincount(memory, minlength=self.memories)
        every = np.zeros((self.memories, int(count.max()), rows.shape[1]), np.float32)
        keep = np.arange(every.shape[1]) < count[:, None]
        every[keep] = rows[np.argsort(memory, kind="stable")]
        self.add(every, keep, each=1)

    def _admit(self, at: Tensor) -> None:
        """Give new rows at these places `[n]`, counted over all buffers, their first priorities."""
        if self.priorities is not None:
            members = len(self.priorities.largest) // self.memories  # that sample each memory
            slots, index = at // self.capacity, at % self.capacity
            if members > 1:
                others = torch.arange(members, device=self.device).repeat_interleave(len(at))
                slots, index = slots.repeat(members) * members + others, index.repeat(members)
            self.priorities.admit(slots, index)

    def add_all(self, rows: Tensor) -> None:
        """Append n transitions to each of the M buffers, without synchronising the host with the device.

        `rows` `[M, n, layout.size]` on the device are the packed transitions. All buffers must be equally full. The
        transitions must be finite, span one step each and have no images. If n exceeds the capacity, only the last
        transitions are stored.
        """
        rows = rows[:, -self.capacity :]
        n = rows.shape[1]
        at = (torch.arange(n, device=self.device) + int(self.position[0])) % self.capacity  # all are filled alike
        self.rows[:, at] = rows
        if self.priorities is not None:
            begins = torch.arange(self.memories, device=self.device) * self.capacity
            self._admit((begins[:, None] + at).flatten())
        self._count(n)

    def incoming(self, rows: int, at: np.ndarray | None) -> Incoming | None:
        """Return a buffer from which the C kernels append the transitions of one step; None if the kernels cannot.

        The kernels cannot append transitions with images, n-step returns or the agents of a team, and need a replay
        buffer on the CPU.

        Args:
            rows: the number of all environments, whether they step or not.
            at: `[n]`, the indices of the environments that step; None if all do.
        """
        served = build.serve(self.rows) and self.frames is None
        return Incoming(self, rows, at) if served and self.layout.steps == 1 and not self.layout.agents else None

    def _count(self, rows: Any) -> None:
        """Count rows that were appended to each buffer, in place: the kernels know where the numbers lie."""
        self.position[:] = (self.position + rows) % self.capacity
        self.size[:] = np.minimum(self.size + rows, self.capacity)

    def clear(self, memories: Sequence[int]) -> None:
        """Empty the buffers with the indices `memories`."""
        self.position[list(memories)] = self.size[list(memories)] = 0
        if self.priorities is not None:
            slots = torch.arange(self.memories * self.each).view(self.memories, -1)[list(memories)]
            self.priorities.clear(upload(slots.flatten(), self.device))

    @property
    def filled_at(self) -> int:
        """The memory address of the attribute `size`, an array that C kernels read. The address does not change."""
        return self._filled_at

    @property
    def evenly_filled(self) -> bool:
        """Whether all buffers hold equally many rows and write their next row to the same index.

        Buffers stop being evenly filled when a transition is left out of some of them.
        """
        return bool((self.position == self.position[0]).all())

    def draw_by_priority(
        self, slots: Tensor, first: Tensor, size: Tensor, u: Tensor, weight: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw B transitions for each of P members, each with a probability proportional to its priority.

        Args:
            slots: `[P]` int64 on the device, the members' slots (places in the population).
            first: `[P]`, the index of the first row of each member's buffer, as the method `first` returns it.
            size: `[P]`, the number of rows in each member's buffer (N).
            u: `[P, B]` float64 on the device, uniform numbers in [0, 1).
            weight: `[P, B]`, the weight of each place of the minibatch, 0 beyond the member's own batch size.
            beta: `[]`, the exponent β of importance sampling.

        Returns:
            The transitions `[P, B, layout.size]`, their row indices `[P, B]`, and `weight` times the importance
            weights (N · p)^−β, `[P, B]`. Here p is the probability with which a row was drawn. A member's importance
            weights are divided by the largest of them.
        """
        index, weight = self._by_priority(slots, size, u, weight, beta)
        return self._rows(index, first), index, weight

    def _by_priority(
        self, slots: Tensor, size: Tensor, u: Tensor, weight: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert self.priorities is not None
        index, chance = self.priorities.draw(slots, u)
        if build.serve(chance):
            return index, native.importances(size, chance, weight, beta)
        importance = (size[:, None] * chance) ** -beta
        largest = torch.where(weight > 0, importance, 0.0).amax(dim=1, keepdim=True)
        return index, weight * importance / largest

    def batch(
        self, draw: Stream, slots: Tensor, first: Tensor, size: Tensor, weight: Tensor, beta: Tensor, gamma: Tensor
    ) -> tuple[Batch, Tensor]:  # fmt: skip
        """Draw a minibatch of B transitions for each of P members, by priorities if there are any, else uniformly.

        Args:
            draw: the stream of random numbers.
            slots: `[P]` int64 on the device, the members' slots (places in the population).
            first: `[P]`, the index of the first row of each member's buffer, as the method `first` returns it.
            size: `[P]`, the number of rows in each member's buffer.
            weight: `[P, B]`, the weight of each place of the minibatch, 0 beyond the member's own batch size.
            beta: `[]`, the exponent β of importance sampling; unused without priorities.
            gamma: `[P]`, the discounts.

        Returns:
            The minibatch, and the indices `[P, B]` of its rows. The next minibatch that is drawn with the same `weight`
            may overwrite its tensors.
        """
        if build.serve(self.rows) and self.frames is None:
            return self.batches(draw, slots, first, weight, gamma).draw(draw.step, size, beta)
        u = draw.uniform(weight.shape[1])
        if self.priorities is None:
            index = (u * size[:, None]).long()
        else:
            index, weight = self._by_priority(slots, size, u, weight, beta)
        return self.layout.unpack(self._rows(index, first), weight, gamma), index

    def batches(self, draw: Stream, slots: Tensor, first: Tensor, weight: Tensor, gamma: Tensor) -> native.Batches:
        """Return the C kernels' sampler for P members. It draws minibatches of B transitions from this buffer, as the
        method `batch` does.

        Args:
            draw: the stream of random numbers.
            slots: `[P]` int64 on the device, the members' slots (places in the population).
            first: `[P]`, the index of the first row of each member's buffer, as the method `first` returns it.
            weight: `[P, B]`, the weight of each of the B places of the minibatch, 0 beyond the member's own batch size.
            gamma: `[P]`, the discounts.
        """
        whose = id(weight), draw.purpose  # a minibatch for another purpose is drawn by other numbers
        known, given = self._drawn.get(whose), (draw.keys, slots, first, weight, gamma)
        if known is None or not known.serve(self.rows, *given):
            if len(self._drawn) >= _COHORTS:
                self._drawn.clear()
            levels = [] if self.priorities is None else self.priorities.levels
            self._drawn[whose] = known = native.Batches(self.layout, self._flat, levels, draw, *given)
        return known

    def _rows(self, index: Tensor, first: Tensor) -> Tensor:
        at = (index + first[:, None]).view(-1)
        rows = self._flat.index_select(0, at)
        return (rows if self.frames is None else self.frames.join(rows, at)).view(*index.shape, self.layout.size)

    def sample(self, slots: Sequence[int], u: Tensor) -> Tensor:
        """Draw U minibatches of B transitions for each of P members, uniformly with replacement.

        The result is `[P, U, B, layout.size]`. `slots` `[P]` are the members, and `u` `[P, U, B]` are uniform random
        numbers in [0, 1).
        """
        size = upload(torch.from_numpy(self.filled(slots)), self.device)
        return self.draw(self.first(slots), size, u.flatten(1)).view(*u.shape, self.layout.size)

    def filled(self, slots: Sequence[int]) -> np.ndarray:
        """Return, for each of the P members in `slots`, the number of rows in its buffer, `[P]` int64 on the host."""
        filled: np.ndarray = self.size[self.memory_of(slots)]
        return filled

    def first(self, slots: Sequence[int]) -> Tensor:
        """Return the index of the first row of each member's buffer, `[P]` int64 on the device.

        The rows of all buffers are numbered one buffer after another. `slots` are the slots (places in the population)
        of P members.
        """
        return upload(torch.from_numpy(self.memory_of(slots) * self.capacity), self.device)

    def places(self, slots: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Return two tensors `[P]` int64 on the device, which are cached.

        The first holds the slots (places in the population) `slots` of P members. The second holds the index of the
        first row of each member's buffer: it is the result of the method `first`.
        """
        found = self._placed.get(slots)
        if found is None:
            if len(self._placed) >= _COHORTS:
                self._placed.clear()
            self._placed[slots] = found = upload(torch.tensor(slots), self.device), self.first(slots)
        return found

    def memory_of(self, slots: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the index of the buffer that each of P members uses, `[P]` int64, from 0 to M − 1 for M buffers.

        `slots` holds the members' slots (places in the population).
        """
        return np.zeros(len(slots), np.int64) if self.memories == 1 else np.asarray(slots) // self.each

    def draw(self, first: Tensor, size: Tensor, u: Tensor) -> Tensor:
        """Draw n transitions for each of P members, uniformly with replacement: `[P, n, layout.size]`.

        Unlike `sample`, the method can be captured in a CUDA graph, because it reads nothing on the host.

        Args:
            first: `[P]` on the device, the index of the first row of each member's buffer, as the method `first`
                returns it.
            size: `[P]` on the device, the number of rows in each member's buffer, as the method `filled` returns it.
            u: `[P, n]` float64, uniform numbers in [0, 1).
        """
        return self._rows((u * size[:, None]).long(), first)

    def state(self) -> dict[str, Tensor]:
        """Return a copy on the CPU of the buffers' contents, as tensors by name.

        The contents are the filled rows, positions and sizes, and if there are any, priorities and the separately
        stored images (frames).
        """
        filled = int(self.size.max(initial=0))
        return {
            "rows": self.rows[:, :filled].to("cpu", copy=True),
            "position": torch.from_numpy(self.position.copy()),
            "size": torch.from_numpy(self.size.copy()),
            **({} if self.priorities is None else self.priorities.state(filled)),
            **({} if self.frames is None else self.frames.state()),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        self.rows[:, : state["rows"].shape[1]] = state["rows"].to(self.device)
        self.position[:] = state["position"].numpy()
        self.size[:] = state["size"].numpy()
        if self.priorities is not None:
            self.priorities.restore(state)
        if self.frames is not None:
            self.frames.restore(state)
