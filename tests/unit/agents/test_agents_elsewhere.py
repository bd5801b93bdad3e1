"""Processes that environments live in, as far as nothing of Ray's runs: who takes turns, and who is replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evopipe.agents.elsewhere import _Hosts
from evopipe.scale.on_ray import code_path


class TaskError(Exception):
    """What Ray raises where what was called raised an exception."""

    def __init__(self, cause: Any) -> None:
        super().__init__("in Ray")
        self.cause = cause


class ActorError(Exception):
    """What Ray raises where a process died."""


def hosts(processes: int, at_once: int = 1) -> tuple[_Hosts, list[Any]]:
    """So many processes of a Ray whose answers are functions; and what it was asked to make."""
    asked: list[Any] = []

    def made(**options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(remote=object)

    ray = SimpleNamespace(
        remote=lambda kind: SimpleNamespace(options=made),
        get=lambda answer: answer(),
        exceptions=SimpleNamespace(RayTaskError=TaskError, RayActorError=ActorError),
    )
    cluster: Any = SimpleNamespace(ray=ray)
    return _Hosts(cluster, processes, at_once), asked


def fails(error: Exception) -> Any:
    def answer() -> None:
        raise error

    return answer


def test_environments_take_turns_and_processes_need_no_cpu_of_their_own() -> None:
    found, asked = hosts(2, at_once=64)
    (zero, first), (one, second), (two, again) = (found.next() for _ in range(3))
    assert (zero, one, two) == (0, 1, 2)
    assert first is again
    assert first is not second
    environment = {"env_vars": {"PYTHONPATH": code_path()}}
    assert asked == [{"num_cpus": 0, "max_concurrency": 64, "runtime_env": environment}]


def test_an_answer_or_what_the_environment_itself_raised_comes_back() -> None:
    found, _ = hosts(1)
    number, host = found.next()
    assert found.get(number, host, lambda: 5) == 5
    with pytest.raises(KeyError, match="broken"):
        found.get(number, host, fails(TaskError(KeyError("broken"))))
    with pytest.raises(TaskError, match="in Ray"):
        found.get(number, host, fails(TaskError("no exception")))
    assert found.next()[1] is host, "it has not died"


def test_a_process_that_died_is_replaced_once_for_all_that_lived_in_it() -> None:
    found, _ = hosts(2)
    (zero, dead), (one, alive), (two, same) = (found.next() for _ in range(3))
    assert dead is same
    for number, host in ((zero, dead), (two, same)):
        with pytest.raises(RuntimeError, match="the Ray process of this environment died, and the episode with it"):
            found.get(number, host, fails(ActorError()))
        if number == zero:
            fresh = found._hosts[0]
    assert found._hosts == [fresh, alive]
    assert fresh is not dead
    with pytest.raises(RuntimeError, match="died"):
        found.get(one, alive, fails(ActorError()))
    assert found._hosts[0] is fresh
    assert found._hosts[1] is not alive
