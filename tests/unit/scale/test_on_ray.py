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
    made._begun = {
        1: ("ready", now),
        0: ("not ready", now - on_ray._PATIENCE + 60.0),
        2: ("not ready", now - on_ray._PATIENCE - 1.0),
    }
    assert made.receive(1, 0.5, lambda: False) == b"answer"
    assert made.receive(0, 0.5, lambda: False) is None
    assert [*made._begun] == [0, 2], "it found its room"
    with pytest.raises(ResourceError, match="found no room for shard 2 in 300 s"):
        made.receive(2, 0.5, lambda: False)
    made._begun[1] = "gone", now
    with pytest.raises(Lost, match="its actor died"):
        made.receive(1, 0.5, lambda: False)


class Remote:
    """A remote method of an actor, which notes its calls and returns what was noted."""

    def __init__(self, noted: list[Any], *name: Any) -> None:
        self._noted, self._name = noted, name

    def remote(self, *given: Any) -> Any:
        self._noted.append((*self._name, *given))
        return self._noted[-1]


def test_each_shard_is_an_actor_with_its_own_resources_which_a_restart_replaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A message goes to the actor of its shard, the latest one; the end of the engine ends them all and the cluster."""
    noted: list[Any] = []
    names, resources = iter("abcd"), {"cpu": 1.5, "gpu": 0.25, "big": 2.0}

    class Remotely:
        def options(self, **given: Any) -> Any:
            assert given.pop("runtime_env") == {"env_vars": {"PYTHONPATH": code_path()}}
            assert given == {
                "num_cpus": 1.5, "num_gpus": 0.25, "resources": {"big": 2.0}, "max_restarts": 0, "max_concurrency": 1
            }  # fmt: skip
            return self

        def remote(self, *given: Any) -> Any:
            name = next(names)
            noted.append((name, *given))
            return SimpleNamespace(name=name, ready=Remote(noted, name, "ready"), answer=Remote(noted, name, "answer"))

    def kill(actor: Any) -> None:
        noted.append((actor.name, "killed"))
        if actor.name == "a":
            raise RuntimeError("it was dead")

    ray = SimpleNamespace(
        remote=lambda kind: Remotely() if kind is _Actor else None, kill=kill,
        cluster_resources=lambda: {"CPU": 4.0, "GPU": 1.0, "big": 4.0}, exceptions=SimpleNamespace(RayError=RayError),
    )  # fmt: skip
    cluster = SimpleNamespace(ray=ray, close=lambda: noted.append("closed"))
    monkeypatch.setattr(on_ray, "Cluster", lambda cfg: cluster)
    monkeypatch.chdir(tmp_path)
    made = OnRay(ShardsConfig(engine="ray", resources=resources), Path("here"), max)
    assert made.room == 2
    for shard in (0, 1, 0):
        made.start(shard)
    for shard in (1, 0):
        made.send(shard, b"%d" % shard)
    assert {shard: asked for shard, (asked, _) in made._begun.items()} == {0: ("c", "ready"), 1: ("b", "ready")}
    assert made._asked == {0: ("c", "answer", b"0"), 1: ("b", "answer", b"1")}
    where = str(tmp_path / "here")
    assert noted == [
        ("a", where, max), ("a", "ready"), ("b", where, max), ("b", "ready"), ("a", "killed"), ("c", where, max),
        ("c", "ready"), ("b", "answer", b"1"), ("c", "answer", b"0"),
    ]  # fmt: skip
    noted.clear()
    made.close()
    made.close()
    assert noted == [("c", "killed"), ("b", "killed"), "closed", "closed"]
    with pytest.raises(ResourceError, match=r"no node .* has room for a shard \(big 4, cpu 4, gpu 1\); lower them"):
        OnRay(ShardsConfig(engine="ray", resources={**resources, "big": 5.0}), Path("here"), max)
    assert noted[-1] == "closed"


def test_an_actor_needs_no_cpu_or_gpu_that_is_not_asked_for_and_a_full_store_is_said() -> None:
    given: dict[str, Any] = {}

    def full(message: bytes) -> Any:
        raise RayError("ObjectStoreFullError")

    actor = SimpleNamespace(ready=Remote([], "ready"), answer=SimpleNamespace(remote=full))
    options = SimpleNamespace(remote=lambda *about: actor)
    kinds = SimpleNamespace(options=lambda **said: given.update(said) or options)
    made = engine({"big": 1.0}, {}, remote=lambda kind: kinds)
    made._folder, made._make = "", max
    made.start(3)
    assert (given["num_cpus"], given["num_gpus"], given["resources"]) == (0.0, 0.0, {"big": 1.0})
    with pytest.raises(ResourceError, match=r"Ray has no room for members and states \(RayError\): free /dev/shm"):
        made.send(3, b"")


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
    assert arguments(count=cpus + 3, resources={"gpu": 1.0})["num_cpus"] == cpus + 3
    assert arguments(ray_init={"num_cpus": 99})["num_cpus"] == 99, "who asks for it has it otherwise"
    there = arguments(address="ray://host:1", count=50, ray_init={"namespace": "mine"})
    assert (there["address"], there["namespace"], "num_cpus" in there) == ("ray://host:1", "mine", False)


class Watch:
    """A process that watches over a cluster."""

    def __init__(self, noted: list[Any], words: list[str], start_new_session: bool) -> None:
        noted.append((*words[:2], *words[3:], start_new_session))
        self.kill, self.wait = (lambda: noted.append("killed")), (lambda: noted.append("waited"))


@pytest.mark.parametrize("asked", ["own", "elsewhere", "there", "fails"])
def test_a_cluster_is_begun_and_ended_by_who_made_it(
    asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of its own listens on this machine alone, is watched, and leaves no folder; one at an address is not watched;
    where there was a connection, it stays, and nothing is asked for."""
    noted: list[Any] = []
    services = SimpleNamespace(resolve_ip_for_localhost=len)

    def init(address: str | None = None, *, num_cpus: int | None = None, namespace: str = "", **_: Any) -> None:
        noted.append((address, num_cpus, namespace, services.resolve_ip_for_localhost("127.0.0.1"), _.get("_temp_dir")))
        if asked == "fails":
            raise OSError("no room")

    ray = SimpleNamespace(
        init=init, shutdown=lambda: noted.append("shutdown"), is_initialized=lambda: asked == "there"
    )  # fmt: skip
    modules = {"ray": ray, "ray._private.services": services}
    monkeypatch.setattr(on_ray.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(on_ray.subprocess, "Popen", lambda words, **more: Watch(noted, words, **more))
    monkeypatch.setattr(on_ray.tempfile, "gettempdir", lambda: "t" * 40)
    monkeypatch.setattr(on_ray.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    address = "auto" if asked == "elsewhere" else None
    with pytest.raises(ParamsError, match=r"ray_init: ray.init takes no 'namespaces', did you mean 'namespace'\?"):
        Cluster(ShardsConfig(engine="ray", address=address, ray_init={"namespaces": "x"}))
    assert noted == []
    cfg = ShardsConfig(engine="ray", address=address, ray_init={"namespace": "x", "_hidden": 1, "num_cpus": 3})
    if asked == "fails":
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        with pytest.raises(ResourceError, match=r"^engine: Ray does not start .*; or take local$"):
            Cluster(cfg, names=Names("engine", instead="take local"))
        assert "RAY_AUTH_TOKEN" not in os.environ, "who chose a way has it"
        assert noted == [("local", 3, "x", "127.0.0.1", str(tmp_path)), "shutdown"]
        assert not tmp_path.exists()
        return
    made = Cluster(cfg)
    assert made.own == (asked != "there")
    begun = {
        "own": [
            ("local", 3, "x", "127.0.0.1", str(tmp_path)),
            (sys.executable, "-c", str(os.getpid()), str(tmp_path), True),
        ],
        "elsewhere": [("auto", 3, "x", 9, None)],
        "there": [],
    }[asked]  # fmt: skip
    assert noted == begun
    assert services.resolve_ip_for_localhost is len, "only while it begins"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"
    assert ("RAY_AUTH_TOKEN" in os.environ) == (asked != "elsewhere"), "a cluster elsewhere has its own"
    made.close()
    assert (
        noted[len(begun) :] == {"own": ["shutdown", "killed", "waited"], "elsewhere": ["shutdown"], "there": []}[asked]
    )
    assert tmp_path.exists() == (asked != "own")


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
