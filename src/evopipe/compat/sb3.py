"""Policies with the interface of Stable-Baselines3's models, for its `evaluate_policy` and for scripts that call
`predict`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evopipe.policies.acting import Policy

_LEAST = 1e-12  # the policy explores by its own noise, and next to never takes an action at random


class Predictor:
    """A trained policy with the method `predict` of Stable-Baselines3's models.

    The function `stable_baselines3.common.evaluation.evaluate_policy` accepts a `Predictor` as its model, with
    environments of the policy's spaces.

    Args:
        policy: a policy of one agent, as `evopipe.load` returns it.
        seed: seed of the draws of predictions that are not deterministic.

    Examples:
        >>> import evopipe
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> policy = evopipe.train({**small, "evaluate": {"episodes": 4}}).policy
        >>> actions, state = Predictor(policy).predict([[0.0, 0.1, 0.0, -0.1]], deterministic=True)
        >>> actions.shape, state
        ((1,), None)
    """

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self.policy, self._seed = policy, seed

    def predict(
        self, observation: Any, state: tuple[npt.NDArray[np.float32], ...] | None = None,
        episode_start: npt.NDArray[np.bool_] | None = None, deterministic: bool = False,
        action_masks: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[Any, tuple[npt.NDArray[np.float32], ...] | None]:  # fmt: skip
        """Return the actions for one observation or a batch of B, and the next state of a recurrent policy.

        Args:
            observation: an observation as the environment gives it, or a batch `[B, …]`.
            state: what the last call returned; None at the beginning.
            episode_start: `[B]`, true where an episode begins; the recurrent state is cleared there.
            deterministic: whether actions are greedy. If False, actions are drawn as in training: from the policy of
                algorithms that have one, with the noise of those that explore by noise. Algorithms that act by values
                are greedy in any case.
            action_masks: whether each of A discrete actions is legal, `[A]` or `[B, A]`, as sb3-contrib's `MaskablePPO`
                takes masks; None if all are legal.

        Returns:
            Actions as `Policy.act` returns them, and the state: a tuple with one array `[B, memory]`, or None if the
            policy is not recurrent.

        Raises:
            UsageError: see `Policy.act`.
        """
        memory = None
        if state is not None and self.policy.memory:
            memory = state[0]
            if episode_start is not None:
                memory = np.where(np.asarray(episode_start, bool)[:, None], np.float32(0.0), memory)
        self._seed += 1
        actions, after = self.policy.step(
            observation, memory, action_masks, 0.0 if deterministic else _LEAST, self._seed
        )
        return actions, (np.asarray(after),) if self.policy.memory else None
