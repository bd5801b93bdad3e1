"""Transitions with named parts, as newer scripts hand them to `memory.add`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from evopipe.errors import UsageError

PARTS = {"obs": "state", "state": "state", "context": "state", "action": "action", "reward": "reward",
         "next_obs": "next_state", "next_state": "next_state", "done": "done", "terminated": "done"}  # fmt: skip
"""What parts of a transition are called in scripts, and in memories."""


class TensorDict(dict[str, Any]):
    """Parts of a transition by name, of one environment or of `n`. One of the package `tensordict` will do as well.

    Args:
        source: the parts by name: arrays, tensors or numbers, or dictionaries and tuples of them.
        batch_size: not needed: parts `[n, …]` are known by the reward, which is `[n]` then.
        device: not needed.

    Examples:
        >>> from evopipe.compat.agilerl import ReplayBuffer, TensorDict
        >>> memory = ReplayBuffer(max_size=100)
        >>> memory.add(TensorDict({"obs": [1.0, 2.0], "reward": 1.0}).float().unsqueeze(0))
        >>> len(memory)
        1
    """

    def __init__(
        self, source: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), batch_size: Sequence[int] | None = None,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(source)
        self.batch_size = batch_size

    def _mapped(self, function: Callable[[Any], Any]) -> Self:
        for name, part in self.items():
            self[name] = mapped(part, function)
        return self

    def float(self) -> Self:
        """Turn every part into float32, in place."""
        return self._mapped(lambda part: np.asarray(part, np.float32))

    def unsqueeze(self, dim: int = 0) -> Self:
        """Make parts of one environment those of `n` = 1, in place."""
        if dim != 0:
            raise UsageError(f"unsqueeze: the axis of environments is the first one, 0, got {dim}")
        return self._mapped(lambda part: np.asarray(part)[None])

    def to_tensordict(self) -> Self:
        """Return the same."""
        return self

    def to(self, device: Any = None) -> Self:
        """Return the same: batches are put where the agent is."""
        return self


class Transition(TensorDict):
    """One step of an environment, or of `n` environments, for `memory.add`.

    Args:
        obs, action, reward, next_obs, done: the step; parts `[n, …]` where there are `n` environments.
        batch_size, device: not needed.

    Examples:
        >>> from evopipe.compat.agilerl import ReplayBuffer, Transition
        >>> memory = ReplayBuffer(max_size=100)
        >>> memory.add(Transition(obs=[[0.0]], action=[1], reward=[1.0], next_obs=[[1.0]], done=[False]))
        >>> memory.sample(2)["obs"].shape
        (2, 1)
    """

    def __init__(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any, batch_size: Sequence[int] | None = None,
        device: Any = None,
    ) -> None:  # fmt: skip
        parts = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done}
        super().__init__(parts, batch_size)


class MultiAgentTransition(Transition):
    """One step of a team, or of `n` teams, for `MultiAgentReplayBuffer.add`: every part is a dictionary by agent.

    Examples:
        >>> from evopipe.compat.agilerl import MultiAgentReplayBuffer, MultiAgentTransition
        >>> memory, obs = MultiAgentReplayBuffer(100), {"left": [[0.0]], "right": [[1.0]]}
        >>> ends, acts = {"left": [False], "right": [False]}, {"left": [0], "right": [1]}
        >>> memory.add(MultiAgentTransition(obs, acts, {"left": [1.0], "right": [0.0]}, obs, ends))
        >>> len(memory)
        1
    """


def mapped(part: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same with a function's value for every array."""
    if isinstance(part, Mapping) or hasattr(part, "keys"):
        return {key: mapped(part[key], function) for key in part.keys()}  # noqa: SIM118 (a TensorDict of tensordict's)
    return tuple(mapped(each, function) for each in part) if isinstance(part, tuple) else function(part)


def parts_of(transition: Any, of: str) -> tuple[dict[str, Any], bool]:
    """Return a transition's parts by the names that memories have, and whether they are of several environments.

    Of a context and its reward, as bandits have them, the action is 0 and the episode ends.

    Raises:
        UsageError: a part is missing, or is known to nobody; the message begins with `of`.
    """
    if not hasattr(transition, "keys"):
        raise UsageError(f"{of}: add takes a Transition, or parts by name, not a {type(transition).__name__}")
    found: dict[str, Any] = {}
    for name in transition.keys():  # noqa: SIM118
        if name not in PARTS:
            raise UsageError(f"{of}: a transition has no part {name!r}, but {', '.join(PARTS)}")
        part = transition[name]
        foreign = hasattr(part, "keys") and not isinstance(part, dict)
        found[PARTS[name]] = mapped(part, lambda x: x) if foreign else part
    reward = found.get("reward")
    first: Any = next(iter(reward.values())) if isinstance(reward, dict) else reward
    several = np.ndim(first) > 0
    if found.keys() == {"state", "reward"}:
        shape = np.shape(first)
        found |= {"action": np.zeros(shape, np.int64), "next_state": found["state"], "done": np.ones(shape, np.bool_)}
    if missing := sorted({*PARTS.values()} - found.keys()):
        raise UsageError(f"{of}: the transition lacks {', '.join(missing)}")
    return found, several
