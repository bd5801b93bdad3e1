"""Replay buffers for loops of one's own, by AgileRL's names: transitions go in, batches come out.

The memories of whole populations (`train_off_policy` …) are `evopipe.memory`'s own; these are the same ones, filled by
the caller. They keep observations and actions as the environment has them, and learn their shapes when first filled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from evopipe.compat.agilerl.forms import form_of
from evopipe.compat.agilerl.transitions import MultiAgentTransition, parts_of
from evopipe.compat.agilerl.vect import marks_of
from evopipe.errors import UsageError
from evopipe.memory.nstep import NStep
from evopipe.memory.priorities import Priorities
from evopipe.memory.replay import Replay, RowLayout

CPU = torch.device("cpu")
FIELDS = ("state", "action", "reward", "next_state", "done")
_SPELLED = {"obs": "state", "next_obs": "next_state", "terminated": "done"}


class Memory(ABC):
    """The base class of replay buffers. A transition has five parts: state, action, reward, next state and done;
    `field_names` says in which order the parts are saved, and `memory_size` how many transitions fit."""

    def __init__(self, memory_size: int, field_names: Sequence[str]) -> None:
        self._names = [_SPELLED.get(name, name) for name in field_names]
        if sorted(self._names) != sorted(FIELDS):
            raise self._refusal(f"field_names must be {', '.join(FIELDS)}, got {[*field_names]}")
        self.memory_size, self.counter = int(memory_size), 0  # transitions kept, and saved so far

    def save_to_memory(self, *parts: Any, is_vectorised: bool = False) -> None:
        """Save one transition, or, with `is_vectorised`, one transition of each environment.

        Args:
            *parts: state, action, reward, next state and done in the order of `field_names`, `[…]`, or `[n, …]` for n
                environments. For a team, each part is a dictionary by agent. An agent that is missing from the state is
                absent; an agent that is missing from the next state has ended its episode.
            is_vectorised: whether the parts are `[n, …]`.

        Raises:
            UsageError: there are not five parts, or a shape differs from that of the first transition.
        """
        if len(parts) != len(FIELDS):
            raise self._refusal(f"a transition has {len(FIELDS)} parts, {len(parts)} were saved")
        self._save(dict(zip(self._names, parts, strict=True)), is_vectorised)

    def save_to_memory_vect_envs(self, *parts: Any) -> None:
        """Save one transition of each of n environments; the parts are `[n, …]` each, in the order of `field_names`.

        If the environments come from `make_vect_envs`, steps in which an environment was only reset after the end of an
        episode are left out.
        """
        self.save_to_memory(*parts, is_vectorised=True)

    def add(self, transition: Any) -> Any:
        """Save one step: a `Transition`, or a mapping of a transition's parts by name. The parts are of one
        environment, or `[n, …]` of n environments. This method returns None; that of `MultiStepReplayBuffer` returns
        transitions.

        Raises:
            UsageError: a part is missing, or a shape differs from that of the first transition.
        """
        self._save(*parts_of(transition, type(self).__name__))

    def _refusal(self, sentence: str) -> UsageError:
        return UsageError(f"{type(self).__name__}: {sentence}")

    @abstractmethod
    def _save(self, parts: Mapping[str, Any], several: bool) -> None:
        """Save one transition, or one of each of several environments, by the names of its parts."""

    @abstractmethod
    def __len__(self) -> int:
        """Transitions that are there."""

    def _need_any(self) -> None:
        if not len(self):
            raise self._refusal("nothing can be sampled, it is empty")


class Experiences(tuple[Any, ...]):
    """A batch of B transitions from a replay buffer: a tuple (state, action, reward, next_state, done) of NumPy arrays
    `[B, …]`.

    The parts can also be read by name: `obs`, `action`, `reward`, `next_obs`, `done`, and `idxs` and `weights`, `[B]`
    each.

    Attributes:
        memory: the buffer that the batch was drawn from.
        rows: the same transitions, each packed into one row of numbers (see `memory.replay.RowLayout`), `[1, B, size]`.
        at: the transitions' row indices in the buffer, `[1, B]`.
        places: for a prioritised buffer, the indices of the rows whose priorities learning updates, `[1, B]`; else
            None.
        weight: for a prioritised buffer, the importance weights, `[1, B]`; else None.

    Examples:
        >>> from evopipe import ReplayBuffer
        >>> memory = ReplayBuffer(memory_size=100)
        >>> memory.save_to_memory([1.0, 2.0], 1, 0.5, [2.0, 3.0], True)
        >>> batch = memory.sample(batch_size=2)
        >>> type(batch).__name__, batch[0].shape, batch[4].shape
        ('Experiences', (2, 2), (2,))
    """

    memory: ReplayBuffer
    rows: torch.Tensor
    at: torch.Tensor
    places: torch.Tensor | None
    weight: torch.Tensor | None

    def __getitem__(self, key: Any) -> Any:
        if key == "idxs":
            return self.at[0].numpy()
        if key == "weights":
            return np.ones(len(self[2]), np.float32) if self.weight is None else self.weight[0].numpy()
        return super().__getitem__(_PARTS[key] if isinstance(key, str) else key)


_PARTS: dict[Any, int] = {"obs": 0, "action": 1, "reward": 2, "next_obs": 3, "done": 4}


class ReplayBuffer(Memory):
    """A ring buffer of transitions that all agents share.

    Args:
        memory_size: the capacity in transitions; the oldest transitions are overwritten.
        field_names: the names `state`, `action`, `reward`, `next_state` and `done`, in the order in which a script
            saves these parts.
        action_dim, num_envs: have no effect; the shapes follow from the saved transitions.
        device: has no effect; a batch is moved to the agent's device when the agent learns from it.
        max_size: the newer name of `memory_size`.
        seed: seed of the random draws of `sample`.

    Attributes:
        alpha: the exponent of priorities; None if the buffer is not prioritised.

    Raises:
        UsageError: neither or both of `memory_size` and `max_size` are given, or `field_names` has other names.

    Examples:
        >>> from evopipe import ReplayBuffer
        >>> memory = ReplayBuffer(memory_size=100)
        >>> for step in range(5):
        ...     memory.save_to_memory([float(step)], 1, 0.5, [step + 1.0], False)
        >>> state, action, reward, next_state, done = memory.sample(batch_size=8)
        >>> len(memory), state.shape, sorted({*reward.tolist()})
        (5, (8, 1), [0.5])
    """

    steps = 1
    alpha: float | None = None

    def __init__(
        self, memory_size: int | None = None, field_names: Sequence[str] = FIELDS, action_dim: Any = None,
        device: Any = None, *, max_size: int | None = None, num_envs: int | None = None, seed: int = 1,
    ) -> None:  # fmt: skip
        if (memory_size is None) == (max_size is None):
            raise self._refusal("give memory_size, how many transitions it keeps")
        super().__init__(memory_size or max_size or 0, field_names)
        self.num_envs = num_envs
        self.form: Any = None  # a `Form`, from the first transition on
        self._replay: Any = None
        self._nstep: NStep | None = None
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return 0 if self._replay is None else int(self._replay.size[0])

    @property
    def size(self) -> int:
        """The number of stored transitions."""
        return len(self)

    @property
    def replay(self) -> Replay:
        """The ring buffer in which the transitions are stored, each packed into one row of numbers.

        Raises:
            UsageError: no transition was saved yet.
        """
        if self._replay is None:
            raise self._refusal("nothing was saved yet")
        replay: Replay = self._replay
        return replay

    def fill(self, named: Mapping[str, np.ndarray]) -> None:
        """Replace all transitions by others. `named` has an array of n transitions, `[n, …]`, for each of the five
        parts, by the part's name."""
        counter, self.form, self._replay, self._nstep = self.counter, None, None, None
        self._save(named, True)
        self.counter = counter

    def add(self, transition: Any) -> Any:
        """Save one step: a `Transition`, a mapping of its parts by name, or the `Completed` that
        `MultiStepReplayBuffer.add` returned. The parts are of one environment, or `[n, …]` of n environments. This
        method returns None; that of `MultiStepReplayBuffer` returns transitions.

        Raises:
            UsageError: a part is missing, a shape differs from that of the first transition, or the transition is a
                team's.
        """
        if isinstance(transition, MultiAgentTransition):
            raise self._refusal("it keeps one agent's transitions: take a MultiAgentReplayBuffer for a team's")
        if isinstance(transition, Completed):
            self._take(transition)
        else:
            super().add(transition)

    def _take(self, completed: Completed) -> None:
        """Keep transitions of several steps as the memory that completed them does, row by row."""
        source = completed.memory
        if self._replay is None:
            if source.memory_size != self.memory_size:
                raise self._refusal(
                    f"it keeps {self.memory_size} transitions, and the memory of several steps {source.memory_size}: "
                    "give both the same size"
                )
            self.form, self.steps = source.form, source.steps
            self._replay = self._ring(source.replay.layout)
        self.counter += completed.rows.shape[1]
        self._replay.add(completed.rows, np.ones(completed.rows.shape[:2], bool))

    def _save(self, parts: Mapping[str, Any], several: bool) -> None:
        state, action, reward, following, done = (parts[name] for name in FIELDS)
        if self.form is None:
            self._begin(state, action, several)
        obs = self.form.rows(state, several)
        n = len(obs)
        done = np.broadcast_to(np.asarray(done, bool).reshape(-1), (n,))
        reward = np.asarray(reward, np.float32).reshape(-1)
        marks = marks_of(following, n) if several else None
        idle = np.zeros(n, bool) if marks is None else marks.began
        terminated, truncated = (done, np.zeros(n, bool)) if marks is None else (marks.terminated, marks.truncated)
        after, acts = self.form.rows(following, several), self.form.actions(action, n)
        if self._nstep is None:
            rows, keep = self._replay.layout.pack(obs, acts, reward, terminated, after), ~idle
        else:
            rows, keep = self._nstep.add(obs, acts, reward, terminated, truncated, after, None, idle)  # windows wait
        self.counter += int((~idle).sum())
        self._kept = rows[keep][None]
        self._replay.add(rows.reshape(1, -1, rows.shape[-1]), keep.reshape(1, -1))

    def _ring(self, layout: RowLayout) -> Replay:
        trees = None if self.alpha is None else Priorities(1, self.memory_size, self.alpha, CPU)
        return Replay(layout, 1, self.memory_size, CPU, trees)

    def _begin(self, state: Any, action: Any, several: bool) -> None:
        self.form = form = form_of(state, action, several)
        layout = RowLayout(form.size, form.width, masked=False, continuous=form.vectors, steps=self.steps)
        self._replay = self._ring(layout)
        if self.steps > 1:
            self._nstep = NStep(layout, len(form.rows(state, several)))

    def sample(self, batch_size: int, *args: Any, beta: float | None = None, return_idx: bool = False) -> Experiences:
        """Return a batch of transitions drawn with replacement, uniformly or by priority.

        Args:
            batch_size: the number of transitions.
            *args: `beta`, if it is passed by position.
            beta: how strongly the importance weights of a prioritised buffer correct for the priorities: 0 not at all,
                1 fully; None for 0.4. It has no effect for other buffers.
            return_idx: has no effect; the batch always has the indices, as `["idxs"]`.

        Raises:
            UsageError: the buffer is empty.
        """
        self._need_any()
        replay = self.replay
        u = torch.from_numpy(self._random.random((1, batch_size)))
        first, size = replay.first([0]), torch.from_numpy(replay.filled([0]))
        weight = places = None
        if replay.priorities is None:
            rows, index = replay.draw(first, size, u), (u * size[:, None]).long()
        else:
            slots, ones = torch.zeros(1, dtype=torch.int64), torch.ones(1, batch_size)
            beta = float(args[0]) if beta is None and args else (0.4 if beta is None else beta)
            rows, places, weight = replay.draw_by_priority(slots, first, size, u, ones, torch.tensor(beta))
            index = places
        return self._batch(rows, index, places, weight)

    def _batch(self, rows: Any, index: Any, places: Any = None, weight: Any = None) -> Experiences:
        form = self.form
        batch = self.replay.layout.unpack(rows, torch.ones(rows.shape[:2]), torch.ones(1))
        found = Experiences(
            (form.back(batch.obs[0].numpy()), form.own(batch.action[0].numpy()), batch.reward[0].numpy(),
             form.back(batch.next_obs[0].numpy()), 1.0 - batch.discount[0].numpy())
        )  # fmt: skip
        found.memory, found.rows, found.at, found.places, found.weight = self, rows, index, places, weight
        return found


@dataclass(frozen=True)
class Completed:
    """The n-step transitions that one call of `MultiStepReplayBuffer.add` completed.

    Attributes:
        memory: the buffer of that call.
        rows: the transitions, each packed into one row of numbers (see `memory.replay.RowLayout`), `[1, n, size]`.
    """

    memory: ReplayBuffer
    rows: np.ndarray  # [1, n, size], at least one


class MultiStepReplayBuffer(ReplayBuffer):
    """A replay buffer of n-step transitions. At the end of an episode a transition has fewer steps. Each agent
    discounts the rewards by its own γ.

    Args:
        memory_size, max_size: the older and the newer name of the capacity in transitions.
        field_names: the names of a transition's five parts, in the order in which a script saves them.
        num_envs: the number of environments whose steps are saved.
        n_step: the number of steps in a transition.
        gamma: has no effect, because each agent has a discount of its own.
        device, action_dim: have no effect.
        seed: seed of the random draws of `sample`.

    Examples:
        >>> from evopipe import MultiStepReplayBuffer
        >>> memory = MultiStepReplayBuffer(memory_size=100, n_step=3)
        >>> for step in range(5):
        ...     memory.save_to_memory_vect_envs([[float(step)]], [1], [1.0], [[step + 1.0]], [step == 4])
        >>> len(memory)
        5
    """

    def __init__(
        self, memory_size: int | None = None, field_names: Sequence[str] = FIELDS, num_envs: int | None = None,
        n_step: int = 3, gamma: float | None = None, device: Any = None, action_dim: Any = None, *,
        max_size: int | None = None, seed: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(memory_size, field_names, action_dim, device, max_size=max_size, num_envs=num_envs, seed=seed)
        self.steps = self.n_step = int(n_step)

    def add(self, transition: Any) -> Completed | None:
        """Save one step, as `ReplayBuffer.add`. Return the n-step transitions that it completes; None if there are
        none.

        A script may pass the result to another buffer's `add`. That buffer then has the same transitions at the same
        indices.
        """
        super().add(transition)
        return Completed(self, self._kept) if self._kept.size else None

    def sample_from_indices(self, idxs: Any) -> Experiences:
        """Return the batch of the B transitions at the indices `idxs` `[B]`, such as `batch["idxs"]` of a batch from
        another buffer with the same transitions."""
        index = torch.as_tensor(np.asarray(idxs)).reshape(1, -1).long()
        return self._batch(self.replay.rows[0][index[0]][None], index)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A prioritised replay buffer, which draws transitions with a high TD error more often (Schaul et al., 2016).

    Args:
        memory_size, max_size: the older and the newer name of the capacity in transitions.
        field_names: the names of a transition's five parts, in the order in which a script saves them.
        alpha: the exponent of priorities; 0 draws uniformly.
        n_step: the number of steps in a transition, as in `MultiStepReplayBuffer`.
        num_envs, gamma, device, action_dim: have no effect.
        seed: seed of the random draws of `sample`.

    Examples:
        >>> from evopipe import PrioritizedReplayBuffer
        >>> memory = PrioritizedReplayBuffer(memory_size=100, alpha=0.6)
        >>> for step in range(5):
        ...     memory.save_to_memory([float(step)], 1, 0.5, [step + 1.0], False)
        >>> memory.sample(batch_size=4, beta=0.4)[0].shape
        (4, 1)
    """

    def __init__(
        self, memory_size: int | None = None, field_names: Sequence[str] = FIELDS, num_envs: int | None = None,
        alpha: float = 0.6, n_step: int = 1, gamma: float | None = None, device: Any = None, action_dim: Any = None, *,
        max_size: int | None = None, seed: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(memory_size, field_names, action_dim, device, max_size=max_size, num_envs=num_envs, seed=seed)
        self.alpha, self.steps = alpha, int(n_step)
        self.n_step = self.steps

    def update_priorities(self, index: Any, priorities: Any) -> None:
        """Set the priorities `[B]` of the B transitions with the row indices `index` `[B]`. `agent.learn` calls this
        method by itself."""
        assert self.replay.priorities is not None
        at, errors = (torch.as_tensor(x).reshape(1, -1) for x in (index, priorities))
        self.replay.priorities.update(torch.zeros(1, dtype=torch.int64), at.long(), errors.float())


class ReplayDataset(IterableDataset[Experiences]):
    """An endless iterable dataset of batches drawn from a replay buffer, for a `torch.utils.data.DataLoader`. A batch
    has `batch_size` transitions.

    Examples:
        >>> from evopipe import ReplayBuffer, ReplayDataset
        >>> memory = ReplayBuffer(memory_size=100)
        >>> memory.save_to_memory([1.0, 2.0], 1, 0.5, [2.0, 3.0], True)
        >>> next(iter(ReplayDataset(memory, batch_size=4)))[0].shape
        (4, 2)
    """

    def __init__(self, buffer: ReplayBuffer, batch_size: int = 256) -> None:
        self.buffer, self.batch_size = buffer, batch_size

    def __iter__(self) -> Iterator[Experiences]:
        while True:
            yield self.buffer.sample(self.batch_size)


class Sampler:
    """An object that draws batches from a replay buffer, or from a `ReplayDataset`.

    Args:
        distributed: whether `dataset` is given instead of `memory`. The batches are the same, because there is one
            process.
        memory: the replay buffer to sample from.
        dataset: a `ReplayDataset` to sample from, if `distributed` is True.
        dataloader, per, n_step: have no effect; the buffer itself is prioritised or has n steps.

    Raises:
        UsageError: neither or both of `memory` and `dataset` are given, or `distributed` does not fit them.

    Examples:
        >>> from evopipe import ReplayBuffer, Sampler
        >>> memory = ReplayBuffer(memory_size=100)
        >>> memory.save_to_memory([1.0, 2.0], 1, 0.5, [2.0, 3.0], True)
        >>> Sampler(memory=memory).sample(4)[0].shape
        (4, 2)
    """

    def __init__(
        self, distributed: bool = False, per: bool = False, n_step: bool = False, memory: ReplayBuffer | None = None,
        dataset: ReplayDataset | None = None, dataloader: Any = None,
    ) -> None:  # fmt: skip
        if (memory is None) == (dataset is None) or distributed != (dataset is not None):
            raise UsageError("Sampler: give memory, or with distributed=True a dataset, one of both")
        self.memory = memory if memory is not None else dataset.buffer  # type: ignore[union-attr]

    def sample(self, batch_size: int, *args: Any, **kwargs: Any) -> Experiences:
        """Return a batch of `batch_size` transitions from the buffer. Further arguments are those of
        `ReplayBuffer.sample`, such as `beta`."""
        return self.memory.sample(batch_size, *args, **kwargs)
