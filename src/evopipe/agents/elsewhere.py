"""Agents' environments in the processes of a Ray cluster, so that their computations do not block this process."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

from evopipe.agents.blocking import here
from evopipe.agents.environment import BaseEnv
from evopipe.errors import ParamsError
from evopipe.parallel import available_cpus
from evopipe.scale.on_ray import Cluster, Names, code_path
from evopipe.schema.shards import ShardsConfig
from evopipe.watchdog import staying

_NAMES = Names("engine='ray'", "ray_init", "ray_init.address", "take engine='local'")
_AT_ONCE = 64  # calls that a process takes at the same time, of environments that allow it


class _Host:
    """Environments in a process of Ray's, by number."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def make(self, number: int, env_class: type[Any], info: Mapping[str, Any]) -> None:
        self._held[number] = self._own(env_class.from_dict, info)

    def call(self, number: int, name: str, *args: Any) -> Any:
        return self._own(self._called, number, name, *args)

    def _called(self, number: int, name: str, *args: Any) -> Any:
        found = getattr(self._held[number], name)(*args)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    def close(self, number: int) -> None:
        env = self._held.pop(number, None)
        if env is not None:
            self._own(env.close)

    def _own(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call users' code, which must not take the other environments of this process along."""
        with staying():
            return here(function, *args)


async def _awaited(found: Any) -> Any:
    return await found


class _Hosts:
    """So many processes, which take turns; one that died is replaced."""

    def __init__(self, cluster: Cluster, processes: int, at_once: int) -> None:
        self.ray, self._lock = cluster.ray, threading.Lock()
        options = {"num_cpus": 0, "max_concurrency": at_once, "runtime_env": {"env_vars": {"PYTHONPATH": code_path()}}}
        self._host = self.ray.remote(_Host).options(**options)
        self._hosts: list[Any] = [self._host.remote() for _ in range(processes)]
        self._numbers = itertools.count()

    def next(self) -> tuple[int, Any]:
        """Return the number of another environment, and the process that it is to live in."""
        number = next(self._numbers)
        return number, self._hosts[number % len(self._hosts)]

    def get(self, number: int, host: Any, answer: Any) -> Any:
        """Return an answer. An exception of the environment is raised as it is."""
        try:
            return self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except self.ray.exceptions.RayActorError:
            with self._lock:
                place = number % len(self._hosts)
                if self._hosts[place] is host:  # nobody replaced it yet
                    self._hosts[place] = self._host.remote()
            raise RuntimeError("the Ray process of this environment died, and the episode with it") from None


def on_ray(env_class: type[BaseEnv], processes: int | None = None, **ray_init: Any) -> type[BaseEnv]:
    """Return a class of environments that run in processes of a Ray cluster: the cluster at `address=`, or a new one on
    this machine.

    Args:
        env_class: the environment's class; its observations and actions must be picklable.
        processes: the number of processes; None for `num_cpus`, or without that one for each CPU of this machine.
        **ray_init: arguments of `ray.init`. The arguments have no effect if this process is connected to a cluster
            already; a warning says so.

    Raises:
        MissingInputError: Ray is not installed.
        ParamsError: Ray refuses an argument.
        ResourceError: Ray does not start, or there is no cluster at the address.
    """
    address, cpus = ray_init.pop("address", None), ray_init.get("num_cpus")
    if address is not None and not isinstance(address, str):
        raise ParamsError(f"ray_init.address: of type {type(address).__name__}, expected text, such as 'host:6379'")
    cluster = Cluster(ShardsConfig(engine="ray", address=address or None, ray_init=ray_init), "engine='ray'", _NAMES)
    atexit.register(cluster.close)
    if not cluster.own and (ray_init or address):
        warnings.warn("ray_init: this process is in a Ray cluster already, which stays as it is", stacklevel=2)
    hosts = _Hosts(
        cluster, processes or int(cpus or available_cpus()), _AT_ONCE if env_class.is_multithread_safe() else 1
    )

    class Elsewhere(BaseEnv):
        """An environment in another process."""

        def __init__(self, info: Mapping[str, Any]) -> None:
            self._number, self._host = hosts.next()
            self._ask("make", env_class, dict(info))

        @classmethod
        def from_dict(cls, info: Mapping[str, Any]) -> Self:
            return cls(info)

        def reset(self) -> Any:
            return self._ask("call", "reset")

        def step(self, action: Any) -> Any:
            return self._ask("call", "step", action)

        def close(self) -> None:
            self._host.close.remote(self._number)  # nobody waits for it

        def _ask(self, what: str, *args: Any) -> Any:
            return hosts.get(self._number, self._host, getattr(self._host, what).remote(self._number, *args))

    Elsewhere.__name__ = f"{env_class.__name__}OnRay"
    return Elsewhere
