"""A script's own networks instead of evopipe's: the arguments `actor_network` and `critic_network`."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from evopipe.errors import UsageError

_SERVED = {"dqn": ("actor",), "cqn": ("actor",), "ppo": ("actor", "critic")}
"""The algorithms that read a script's networks as they are, and which they have."""
_numbers = itertools.count(1)


class DummyEvolvable:
    """A wrapper of a user's own network, to be passed as `actor_network` or `critic_network`. Mutation does not change
    the network's architecture.

    Args:
        module_fn: a class of `torch.nn.Module`, or a function that returns a module. An actor's module maps B
            observations of O numbers, `[B, O]`, to Q-values, logits or means of A actions, `[B, A]`; a critic's module
            maps observations to values `[B, 1]`.
        module_kwargs: keyword arguments of `module_fn`.
        device: has no effect.

    Examples:
        >>> import gymnasium, torch
        >>> from evopipe.compat.agilerl import DQN, DummyEvolvable
        >>> env = gymnasium.make("CartPole-v1")
        >>> network = DummyEvolvable(torch.nn.Linear, {"in_features": 4, "out_features": 2})
        >>> agent = DQN(env.observation_space, env.action_space, actor_network=network)
        >>> agent.get_action(env.reset(seed=1)[0]) in (0, 1)
        True
    """

    def __init__(
        self, module_fn: Callable[..., torch.nn.Module], module_kwargs: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:  # fmt: skip
        self.module_fn, self.module_kwargs = module_fn, dict(module_kwargs or {})

    def made(self) -> torch.nn.Module:
        """Make a new module, by a call of the attribute `module_fn` with the keyword arguments `module_kwargs`."""
        return self.module_fn(**self.module_kwargs)


def own_network(algo: str, own: Mapping[str, Any], net: Mapping[str, Any]) -> dict[str, Any]:
    """Return an algorithm's block `network` of `params.yaml`, for an algorithm that uses a script's own networks.

    Args:
        algo: evopipe's name of the algorithm.
        own: the networks by role, `actor` and `critic`; None for a role without one.
        net: the script's `net_config`, which must be empty.

    Raises:
        UsageError: the algorithm does not take a script's networks, or `net` is not empty. Or a network is missing, or
            belongs to a role that the algorithm does not have. Or a network is neither a `torch.nn.Module` nor a
            `DummyEvolvable`.
    """
    roles = _SERVED.get(algo)
    if roles is None:
        raise UsageError(
            f"actor_network, critic_network: {algo} has more networks than a script gives, or shapes what they return: "
            f"give net_config, or write a class for `network.module`; those of {', '.join(_SERVED)} may be one's own"
        )
    if net:
        raise UsageError("net_config: it would be without effect beside networks of one's own: give one of both")
    for role, given in own.items():
        if (given is not None) != (role in roles):
            what = "give it too" if given is None else "leave it out"
            raise UsageError(f"{role}_network: {algo} has {' and '.join(roles)}: {what}")
        if given is not None and not isinstance(given, DummyEvolvable | torch.nn.Module):
            kind = type(given).__name__
            raise UsageError(f"{role}_network: give a torch.nn.Module or a DummyEvolvable, not a {kind}")

    def network(inputs: int, outputs: int) -> torch.nn.Module:
        given = own["critic"] if len(roles) > 1 and outputs == 1 else own["actor"]
        return given.made() if isinstance(given, DummyEvolvable) else copy.deepcopy(given)

    name = f"given_{next(_numbers)}"
    setattr(sys.modules[__name__], name, network)
    return {"module": f"{__name__}:{name}"}
