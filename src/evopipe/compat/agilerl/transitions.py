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
    """A transition as a dictionary of named parts, of one environment or of `n`. `memory.add` also takes a TensorDict
    of the package `tensordict`.

    Args:
        source: the parts by name: arrays, tensors or numbers, or dictionaries and tuples of these.
        batch_size: has no effect. The parts are of `n` environments if the reward is an array `[n]`.
        device: has no effect.

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
        """Convert every part to float32 in place, and return this object."""
        return self._mapped(lambda part: np.asarray(part, np.float32))

    def unsqueeze(self, dim: int = 0) -> Self:
        """Add a first axis of length 1 to every part in place, and return this object. The parts are then of n = 1
        environments.

        Raises:
            UsageError: `dim` is not 0.
        """
        if dim != 0:
            raise UsageError(f"unsqueeze: the axis of environments is the first one, 0, got {dim}")
        return self._mapped(lambda part: np.asarray(part)[None])

    def to_tensordict(self) -> Self:
        """Return this object unchanged."""
        return self

    def to(self, device: Any = None) -> Self:
        """Return this object unchanged. A batch is moved to the agent's device when the agent learns from it."""
        return self


class Transition(TensorDict):
    """One step of an environment, or of `n` environments, for `memory.add`.

    Args:
        obs: the observation before the step, or `[n, …]`.
        action: the action, or `[n, …]`.
        reward: the reward, or `[n]`.
        next_obs: the observation after the step, or `[n, …]`.
        done: whether the step ended the episode, or `[n]`.
        batch_size, device: have no effect.

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
    """Apply a function to every array of `part`, an array or a nested dictionary or tuple of arrays; return the results
    in the same structure."""
    if isinstance(part, Mapping) or hasattr(part, "keys"):
        return {key: mapped(part[key], function) for key in part.keys()}  # noqa: SIM118 (a TensorDict of tensordict's)
    return tuple(mapped(each, function) for each in part) if isinstance(part, tuple) else function(part)


def parts_of(transition: Any, of: str) -> tuple[dict[str, Any], bool]:
    """Return a transition's parts by the names `state`, `action`, `reward`, `next_state` and `done`, and whether the
    transition holds steps of several environments.

    A bandit's transition may have only its context (`state`) and a reward. Then the action is 0, the next state is the
    context, and `done` is True.

    Raises:
        UsageError: a part is missing or unknown; the message begins with `of`, such as the name of a buffer's class.
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
