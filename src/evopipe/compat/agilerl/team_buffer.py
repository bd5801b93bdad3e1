"""The replay buffer of teams, by AgileRL's name; `train_multi_agent_off_policy` uses only its capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evopipe.compat.agilerl.buffers import FIELDS, Memory
from evopipe.compat.agilerl.team_vect import ends_of, present_of

_Parts = dict[Any, np.ndarray]


class TeamExperiences(tuple[Any, ...]):
    """A batch of B transitions of a team: a tuple (state, action, reward, next_state, done) of dictionaries by agent,
    whose values are arrays `[B, …]`.

    Attributes:
        alive: bool `[B]` by agent: whether the agent acted in the step.
        next_alive: bool `[B]` by agent: whether the agent is present in the next state.
        cut: bool `[B]` by agent: whether the step truncated the agent's episode; False if the environments do not say.
    """

    alive: _Parts
    next_alive: _Parts
    cut: _Parts


class MultiAgentReplayBuffer(Memory):
    """A ring buffer of a team's transitions.

    Args:
        memory_size: the capacity in transitions; a transition is one step of all agents.
        field_names: the names of a transition's five parts, in the order in which a script saves them.
        agent_ids: the agents' ids; None for the agents in the first saved state.
        device: has no effect.
        seed: seed of the random draws of `sample`.

    Raises:
        UsageError: `field_names` are not the five parts of a transition.

    Examples:
        >>> from evopipe import MultiAgentReplayBuffer
        >>> memory = MultiAgentReplayBuffer(100, agent_ids=["left", "right"])
        >>> states = {"left": [0.0], "right": [1.0, 2.0]}
        >>> memory.save_to_memory(states, {"left": 0, "right": 1}, {"left": 1.0, "right": 0.0}, states,
        ...                       {"left": False, "right": False})
        >>> memory.sample(4)[0]["right"].shape
        (4, 2)
    """

    def __init__(
        self, memory_size: int, field_names: Sequence[str] = FIELDS, agent_ids: Sequence[Any] | None = None,
        device: Any = None, *, seed: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(memory_size, field_names)
        self.agent_ids = None if agent_ids is None else [*agent_ids]
        self._held: dict[str, _Parts] = {}
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self.counter, self.memory_size)

    def _save(self, parts: Mapping[str, Any], several: bool) -> None:
        if self.agent_ids is None:
            self.agent_ids = [*parts["state"]]
        present = [agent for agent in self.agent_ids if agent in parts["state"]]
        if not present:
            raise self._refusal(f"the state names none of the agents {self.agent_ids}")
        n = len(parts["state"][present[0]]) if several else 1
        if (ends := ends_of(parts["next_state"])) is not None:  # what it led to, even where an episode has begun since
            parts = {**parts, "next_state": ends.obs}
        at = (self.counter + np.arange(n)) % self.memory_size
        for name, part in parts.items():
            held = self._held.setdefault(name, {})
            for agent in self.agent_ids:
                if agent in part:
                    array = np.asarray(part[agent]) if several else np.asarray(part[agent])[None]
                    if agent not in held:
                        held[agent] = np.zeros((self.memory_size, *array.shape[1:]), array.dtype)
                    held[agent][at] = array
        for flag, of in (("alive", "state"), ("next_alive", "next_state")):
            there = self._held.setdefault(flag, {})
            for agent in self.agent_ids:
                there.setdefault(agent, np.zeros(self.memory_size, bool))[at] = present_of(parts[of], agent)
        cut = self._held.setdefault("cut", {})
        for agent in self.agent_ids:
            cut.setdefault(agent, np.zeros(self.memory_size, bool))[at] = ends is not None and ends.truncated[agent]
        self.counter += n

    def sample(self, batch_size: int, *_: Any) -> TeamExperiences:
        """Return a batch of `batch_size` transitions drawn uniformly, with replacement. Further arguments have no
        effect.

        Raises:
            UsageError: the buffer is empty.
        """
        self._need_any()
        at = self._random.integers(len(self), size=batch_size)
        drawn = {name: {agent: array[at] for agent, array in held.items()} for name, held in self._held.items()}
        found = TeamExperiences(tuple(drawn[name] for name in FIELDS))
        found.alive, found.next_alive, found.cut = drawn["alive"], drawn["next_alive"], drawn["cut"]
        return found
