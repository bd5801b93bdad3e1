"""The algorithm, the parameters and the spaces that all agents of a population share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch

from evopipe.algos import unserved
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv, TeamSpace
from evopipe.errors import ParamsError, UsageError
from evopipe.machine import configure
from evopipe.params.load import Params, env_params
from evopipe.problems.specs import make_spec, settings_of
from evopipe.run.spec import EnvSpec
from evopipe.types import Spaces

NOWHERE = "no environment yet"  # an id that none has


@dataclass(frozen=True, eq=False)
class Breed:
    """The algorithm, the parameters and the spaces that all agents of a population share.

    Attributes:
        spec: the run configuration that was made from `params` and the spaces.
        params: the parameters, as in `params.yaml`.
        observations: the `ObservationSpace`; None for a team.
        actions: the `ActionSpace`; None for a team.
        team: the spaces of a team's agents; None for a single agent.
        observation_space, action_space: Gymnasium's spaces; for a team, dictionaries of spaces by agent.
    """

    spec: EnvSpec
    params: Params
    observations: Any
    actions: Any
    team: TeamSpace | None
    observation_space: Any
    action_space: Any

    @property
    def algo(self) -> str:
        return self.params.train.algo

    @property
    def seed(self) -> int:
        return self.params.seed

    @property
    def about(self) -> dict[str, Any]:
        """The algorithm, its configuration and the spaces as JSON data, in the form of an exported policy's
        `policy.json`."""
        own = self.team.to_json() if self.team is not None else self.actions.to_json() | self.observations.to_json()
        return settings_of(self.params.env, self.params.train.algo, self.params.algo_config) | own

    def rows(self, obs: Any) -> tuple[np.ndarray, bool]:
        """Return n observations as flat rows of O numbers, `[n, O]` float32, and whether `obs` was a single
        observation.

        Raises:
            UsageError: the observations do not fit the space.
        """
        try:
            rows, single = self.observations.read(obs)
        except ValueError as error:
            raise UsageError(f"obs holds {error}; pass what the environment gives, or a batch of it") from error
        return np.ascontiguousarray(np.asarray(rows, np.float32)), single

    def undrawn(self, drawn: torch.Tensor, space: ActionSpace | None = None) -> np.ndarray:
        """Convert n actions `[n, …]` from the algorithm's encoding to the environment's units, without clipping.

        Some algorithms squash continuous actions by tanh. Their actions are not scaled, and stay in [-1, 1].

        Args:
            drawn: the actions. In a team, continuous actions may be padded to the length of the longest in the team.
            space: for an agent of a team, the agent's action space; None for a single agent.
        """
        space = space or self.actions
        if space.bounds is None:
            discrete: np.ndarray = space.own(drawn.numpy())
            return discrete
        drawn = drawn[:, : space.size]
        if self.spec.algo_config.squash:
            return drawn.numpy().reshape(-1, *space.shape)
        low, high = space.bounds
        own: np.ndarray = low + (drawn.double().numpy() + 1.0) / 2.0 * (high - low)
        return own.astype(np.float32).reshape(-1, *space.shape)

    def drawn(self, own: Any, count: int, space: ActionSpace | None = None) -> torch.Tensor:
        """Convert n actions `[n, …]` from the environment's units to the algorithm's encoding.

        This is the inverse of the method `undrawn`, but the result has no padding.

        Args:
            own: the actions in the environment's units.
            count: the number of actions, `n`.
            space: for an agent of a team, that agent's space; None for a single agent.
        """
        space = space or self.actions
        array = np.asarray(own).reshape(count, *space.shape)
        if space.bounds is None:
            return torch.from_numpy(space.relative(array))
        flat = array.reshape(count, -1)
        if self.spec.algo_config.squash:
            return torch.from_numpy(flat.astype(np.float32))
        low, high = space.bounds
        return torch.from_numpy((2.0 * (flat - low) / (high - low) - 1.0).astype(np.float32))

    def with_params(self, params: Params, spec: EnvSpec, spaces: tuple[Any, Any] | None = None) -> Breed:
        """Return a copy of this breed with other parameters `params` and the run configuration `spec` made from them.

        `spaces`, if given, are the observation space and the action space of the copy.
        """
        if spaces is None:
            return replace(self, spec=spec, params=params)
        return replace(_of_spaces(*spaces, self.team is not None), spec=spec, params=params)


def _of_spaces(observations: Any, actions: Any, team: bool) -> Breed:
    nothing: Any = None
    if team:
        of = SimpleNamespace(
            possible_agents=[*observations], observation_space=observations.get, action_space=actions.get
        )
        found = TeamSpace.of(TeamEnv(of))
        return Breed(nothing, nothing, None, None, found, observations, actions)
    seen, done = ObservationSpace.of(observations), ActionSpace.of(actions)
    return Breed(nothing, nothing, seen, done, None, observations, actions)


def params_of(data: Mapping[str, Any]) -> Params:
    """Check data of the form of `params.yaml`, and return it as the parameters of a run in environments; see
    `parse_params`.

    Raises:
        ParamsError: a value cannot be used, or the parameters are those of a language model.
    """
    other = "language: these are parameters of a language model, which has functions of its own"
    return env_params(data, ParamsError(other))


def build(params: Params, observations: Any, actions: Any) -> Breed:
    """Make the `Breed` of a population from a run's parameters and Gymnasium's spaces. For a team, both spaces are
    dictionaries by agent.

    Raises:
        ParamsError: the algorithm does not support the spaces.
    """
    found = _of_spaces(observations, actions, by_agent(observations))
    algo, spaces = params.train.algo, spaces_of(found)
    if sentence := unserved(algo, spaces, "what is asked for", actions):
        raise ParamsError(sentence.replace("train.algo", "algo", 1))
    return found.with_params(params, make_spec(params, configure(params.runtime), spaces))


def by_agent(spaces: Any) -> bool:
    """Return whether `spaces` belongs to a team: whether it is a dictionary of spaces by agent, not a Gymnasium
    space."""
    return isinstance(spaces, Mapping) and not isinstance(spaces, gymnasium.Space)


def spaces_of(breed: Breed) -> Spaces:
    """Return a population's spaces in the form that algorithms use: the widths and kinds of observations and
    actions."""
    found: Spaces = breed.actions.spaces(breed.observations) if breed.team is None else breed.team.spaces
    return found


def device_of(device: Any) -> str:
    """Return the value of the parameter `runtime.device` for `device`, which is a torch device or its name.

    If `device` is None, the result is `auto`, the best available device.

    Raises:
        UsageError: evopipe does not support the device.
    """
    if device is None:
        return "auto"
    kind = torch.device(device).type if not isinstance(device, str) or device != "auto" else "auto"
    if kind not in ("auto", "cpu", "cuda"):
        raise UsageError(f"device: {device!s} is not served: take cpu or cuda")
    return kind


def one_process(accelerator: Any) -> None:
    """Raise a UsageError if an Accelerate `Accelerator` has more than one process.

    If the argument is None, there is no accelerator, and nothing is raised.
    """
    if accelerator is not None and getattr(accelerator, "num_processes", 1) > 1:
        raise UsageError(
            f"accelerator: it has {accelerator.num_processes} processes, and evopipe trains all members in one: start "
            "the script with plain python; learners and environments have processes of their own (runtime.learners, "
            "runtime.env_workers)"
        )


class ActionScaling:
    """A converter of actions from the algorithm's encoding to the environment's units, for a script's own loop. It is
    for environments of one agent.

    Args:
        breed: what all agents of the population share, among it the action space with its bounds.
    """

    def __init__(self, breed: Breed) -> None:
        self._breed = breed

    @property
    def squash_output(self) -> bool:
        """Whether the algorithm's actions are in [-1, 1], so that they need `scale_action`."""
        return bool(getattr(self._breed.spec.algo_config, "squash", False))

    def scale_action(self, action: Any) -> np.ndarray:
        """Convert n actions of A numbers, `[n, A]` in [-1, 1], to the environment's units, between the bounds of the
        action space."""
        space: ActionSpace = self._breed.actions
        scaled: np.ndarray = space.own(np.asarray(action, np.float32).reshape(-1, space.size))
        return scaled
