"""Shards on Ray, as far as nothing of Ray's runs: how many fit, what a cluster is asked for, and what went wrong."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evopipe.errors import ParamsError, ResourceError
from evopipe.parallel import available_cpus
from evopipe.scale import on_ray
from evopipe.scale.on_ray import Cluster, Names, OnRay, _Actor, _knock, _refusal, code_path
from evopipe.scale.shard import pack, unpack
from evopipe.scale.shards import Lost
from evopipe.schema.shards import ShardsConfig
from evopipe.version import SOURCE


class RayError(Exception):
    """What Ray raises."""


def engine(resources: dict[str, float], has: dict[str, float], **ray: Any) -> OnRay:
    """An engine in a cluster that has these resources, by Ray's names."""
    made = object.__new__(OnRay)
    made._cfg = ShardsConfig(engine="ray", resources=resources)
    made._ray = SimpleNamespace(cluster_resources=lambda: has, exceptions=SimpleNamespace(RayError=RayError), **ray)
    made._actors, made._begun, made._asked = {}, {}, {}
    return made


@pytest.mark.parametrize(
    ("resources", "room"),
    [
        ({"cpu": 1.0}, 7), ({"cpu": 2.0}, 3), ({"cpu": 0.5}, 15), ({"cpu": 1.0, "gpu": 1.0}, 2),
        ({"cpu": 0.0, "gpu": 0.25}, 8), ({"cpu": 1.0, "tpu": 1.0}, 0), ({"cpu": 1.0, "big": 2.0}, 2), ({"cpu": 8.0}, 0),
    ],
)  # fmt: skip
def test_as_many_shards_fit_as_have_all_that_they_need(resources: dict[str, float], room: int) -> None:
    assert engine(resources, {"CPU": 7.5, "GPU": 2.0, "big": 5.0, "memory": 1e9}).room == room


def test_shards_that_need_nothing_are_as_many_as_there_are_cpus() -> None:
    assert engine({"cpu": 0.0}, {"CPU": 1.0}).room == available_cpus()


def test_an_answer_is_waited_for_and_what_went_wrong_is_said() -> None:
    """No room for what is sent ends the run; an actor that died is made anew; one that was just started has to find
    room first."""
    waits: list[Any] = []
    answers: dict[Any, Any] = {"late": None, "there": b"answer", "gone": RayError("x The actor died because of memory")}
    answers |= {"full": RayError("\x1b[36mOutOfDiskError\x1b[0m: no space"), "ready": None, "not ready": None}

    def wait(asked: list[Any], timeout: float) -> Any:
        waits.append((asked, timeout))
        return (asked if asked[0] not in ("late", "not ready") else []), []

    def get(asked: Any) -> Any:
        if isinstance(answers[asked], RayError):
            raise answers[asked]
        return answers[asked]

    made = engine({"cpu": 1.0}, {"CPU": 4.0}, wait=wait, get=get)
    made._asked = {0: "late", 1: "there", 2: "gone", 3: "full"}
    assert made.receive(0, 0.25, lambda: False) is None
    assert made.receive(1, 0.5, lambda: False) == b"answer"
    assert waits == [(["late"], 0.25), (["there"], 0.5)]
    with pytest.raises(Lost, match=r"^its actor died \(of memory\)$"):
        made.receive(2, 0.1, lambda: False)
    with pytest.raises(ResourceError, match="Ray has no room for members and states"):
        made.receive(3, 0.1, lambda: False)
    now = on_ray.time.monotonic()
    made._begun = {1: ("ready", now), 0: ("not ready", now), 2: ("not ready", now - on_ray._PATIENCE - 1.0)}
    assert made.receive(1, 0.5, lambda: False) == b"answer"
    assert made.receive(0, 0.5, lambda: False) is None
    assert [*made._begun] == [0, 2], "it found its room"
    with pytest.raises(ResourceError, match="found no room for shard 2 in 300 s"):
        made.receive(2, 0.5, lambda: False)


def arguments(**settings: Any) -> dict[str, Any]:
    """What `ray.init` is called with."""
    made = object.__new__(Cluster)
    made._scratch = ""
    found = made._arguments(ShardsConfig(engine="ray", **settings))
    if made._scratch:
        os.rmdir(made._scratch)
    return found


def test_a_cluster_of_this_machine_is_nobody_elses_and_has_a_cpu_for_each_shard() -> None:
    cpus = available_cpus()
    auto = arguments()
    assert (auto["address"], auto["_node_ip_address"], auto["include_dashboard"]) == ("local", "127.0.0.1", False)
    assert auto["num_cpus"] == cpus
    assert arguments(count=cpus + 3)["num_cpus"] == cpus + 3
    assert arguments(count=1)["num_cpus"] == cpus
    assert arguments(count=cpus + 3, resources={"cpu": 1.5})["num_cpus"] == -(-3 * (cpus + 3) // 2)
    assert arguments(ray_init={"num_cpus": 99})["num_cpus"] == 99, "who asks for it has it otherwise"
    there = arguments(address="ray://host:1", count=50, ray_init={"namespace": "mine"})
    assert (there["address"], there["namespace"], "num_cpus" in there) == ("ray://host:1", "mine", False)


def test_a_server_is_looked_for_where_an_address_has_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "auto", "local", None):
            _knock(address)
    with pytest.raises(OSError, match="refused"):
        _knock(f"ray://127.0.0.1:{port}")


def test_what_ray_refuses_is_told_of_by_the_parameter_that_is_to_blame() -> None:
    names = Names(instead="take local")
    asked = ShardsConfig(engine="ray", ray_init={"num_gpus": -1})
    own = _refusal(asked, names, ValueError("must be positive"))
    assert isinstance(own, ParamsError)
    assert str(own) == (
        "runtime.shards.ray_init: Ray does not take num_gpus=-1 (ValueError: must be positive); see the arguments of "
        "ray.init"
    )
    at = _refusal(ShardsConfig(engine="ray", address="h:1", ray_init={"namespace": "a"}), names, OSError("refused"))
    assert (
        str(at)
        == "runtime.shards.address: no Ray cluster answers at 'h:1' (OSError: refused); start one by `ray start`"
    )
    none = _refusal(ShardsConfig(engine="ray"), names, ValueError("no room"))
    assert isinstance(none, ResourceError)
    assert str(none).startswith("runtime.shards.engine: Ray does not start (ValueError: no room); ")
    assert str(none).endswith("; or take local")


def test_actors_find_this_code_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "own", "/else"]))
    assert code_path().split(os.pathsep) == [str(SOURCE), str(tmp_path / "own"), "/else"]


def test_an_actor_works_in_the_folder_of_the_pipeline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Or, where that is not there, where it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "inner").mkdir()

    def make(about: Any) -> Any:
        raise ParamsError(str(Path.cwd()))

    for folder in (tmp_path / "inner", tmp_path / "nowhere"):
        told = unpack(_Actor(str(folder), make).answer(pack({"do": "begin"})))[0]
        assert (told["error"], told["text"]) == ("ParamsError", str(tmp_path / "inner"))
        assert str(folder) in sys.path
