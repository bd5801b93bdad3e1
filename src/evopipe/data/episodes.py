"""Episodes: the form into which every source of data is read, and the check that they fit an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from evopipe.envs.spaces import ActionSpace, brief
from evopipe.errors import DataError, ParamsError

Array = npt.NDArray[Any]

REMEDY = "set `env` to the dataset's environment, or fetch another dataset"
_SLACK = 1e-4  # share of its width by which an action may lie outside of a Box, as rounding makes it


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One recorded episode of `T` steps, with `O` numbers in an observation and `A` in a continuous action.

    Attributes:
        obs: `[T + 1, O]` float32, the observations before each step and after the last one.
        action: `[T]` int64 or `[T, A]` float32, the environment's own actions.
        reward: `[T]` float32, the rewards.
        terminated: `[T]` bool, whether the step reached an end state; True at most in the last step.
        truncated: `[T]` bool, whether the episode was cut after the step; True at most in the last step.
        seed: the seed with which the environment was reset; None if it is not known.
    """

    obs: Array  # [T + 1, O] float32
    action: Array  # [T] int64 or [T, A] float32, the environment's own values
    reward: Array  # [T] float32
    terminated: Array  # [T] bool, True at most in the last step
    truncated: Array  # [T] bool, True at most in the last step
    seed: int | None = None  # what the environment was reset with, if that is known

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class EpisodeDataset:
    """A list of recorded episodes, and facts of the file from which the episodes were read.

    Attributes:
        episodes: the episodes.
        where: the name of the file in messages.
        action_space: the action space that the file records; None if it records none.
        dropped: the number of steps that were left out because their next observation is not known.
        notes: further facts of the file, as sentences.
    """

    episodes: list[RecordedEpisode]
    where: str  # the source's name in messages
    action_space: gymnasium.Space[Any] | None = None  # if the source records one
    dropped: int = 0  # steps left out, for their true next observation is not known
    notes: tuple[str, ...] = ()  # what else there is to say of the source, in sentences


def check_fits(dataset: EpisodeDataset, obs_size: int, action_space: gymnasium.Space[Any]) -> None:
    """Check that a dataset can be used for an environment with observations of `obs_size` numbers and this action
    space.

    Raises:
        DataError: observations or actions do not fit, or the dataset has no step.
    """
    if not any(len(episode) for episode in dataset.episodes):
        raise DataError(f"{dataset.where}: holds no step; give a dataset with at least one episode")
    actions, recorded = ActionSpace.of(action_space), dataset.action_space
    if recorded is not None and not _are_alike(recorded, actions):
        raise DataError(
            f"{dataset.where}: its action space is {brief(recorded)}, env's {brief(action_space)}: {REMEDY}"
        )
    for number, episode in enumerate(dataset.episodes):
        action, fault = episode.action, ""
        if episode.obs.shape[1] != obs_size:
            fault = f"has observations of {episode.obs.shape[1]} numbers, env's have {obs_size}"
        elif (action.ndim == 2) != actions.continuous:
            kinds = ("indices", "vectors of numbers")
            fault = f"took actions that are {kinds[action.ndim == 2]}, env's are {kinds[actions.continuous]}"
        elif actions.bounds is not None and action.shape[1] != len(actions.bounds[0]):
            fault = f"took actions of {action.shape[1]} numbers, env's have {len(actions.bounds[0])}"
        else:
            low, high = actions.bounds or (np.array(actions.start), np.array(actions.start + actions.size - 1))
            slack = _SLACK * (high - low) if actions.continuous else 0
            if (wrong := np.argwhere((action < low - slack) | (action > high + slack))).size:
                taken = f"took action {action[wrong[0][0]].tolist()} at step {wrong[0][0]}"
                fault = f"{taken}, env's go from {low.tolist()} to {high.tolist()}"
        if fault:
            raise DataError(f"{dataset.where}: episode {number} {fault}: {REMEDY}")


def _are_alike(recorded: gymnasium.Space[Any], actions: ActionSpace) -> bool:
    """Whether a recorded space has the same actions; how a Box is shaped does not matter."""
    try:
        theirs = ActionSpace.of(recorded)
    except ParamsError:
        return False
    if (theirs.kind, theirs.size, theirs.start) != (actions.kind, actions.size, actions.start):
        return False
    return actions.bounds is None or theirs.bounds is None or np.allclose(theirs.bounds, actions.bounds)
