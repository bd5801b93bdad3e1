"""Shards as Ray actors, in a running cluster or in one on this machine that lives as long as the training."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evopipe.errors import EvopipeError, ParamsError, ResourceError, need_package, said, suggestion
from evopipe.parallel import available_cpus
from evopipe.scale.shard import Make, Shard
from evopipe.scale.shards import Lost
from evopipe.schema.shards import ShardsConfig
from evopipe.version import SOURCE

_COLOURS, _FULL = re.compile("\x1b\\[[0-9;]*m"), re.compile("OutOfDiskError|ObjectStoreFullError")
_PATIENCE = 300.0  # seconds that a cluster has to find room for a shard
_LONGEST = 40  # characters of a folder for temporary files in which Ray's sockets have room for their names
# Where the process that began a cluster is killed, two helpers of Ray's would look for it for a minute, and leave its
# files. This process sees to both.
_WATCH = """
import contextlib, os, shutil, sys, time
import psutil
parent, folder, helpers = int(sys.argv[1]), sys.argv[2], []
with contextlib.suppress(psutil.Error):
    for each in psutil.Process(parent).children():
        if each.name() == "raylet":
            helpers += each.children()
while os.getppid() == parent:
    time.sleep(0.2)
for helper in helpers:
    with contextlib.suppress(psutil.Error):
        helper.kill()
shutil.rmtree(folder, ignore_errors=True)
"""


class _Actor:
    """What Ray runs of a shard, in the folder of the pipeline."""

    def __init__(self, folder: str, make: Make) -> None:
        if Path(folder).is_dir():
            os.chdir(folder)
        if folder not in sys.path:
            sys.path.append(folder)
        self._shard = Shard(make)

    def answer(self, message: bytes) -> bytes:
        return self._shard.answer(message)

    def ready(self) -> None:
        """Answer as soon as there is room, and a process."""


class Names(NamedTuple):
    """The names of the parameters that configure a Ray cluster, as error messages show them.

    Attributes:
        engine: the parameter that chooses Ray.
        settings: the parameter with the arguments of `ray.init`.
        address: the parameter with the address of a running cluster.
        instead: what messages tell the user to do if Ray cannot be used.
    """

    engine: str = "runtime.shards.engine"
    settings: str = "runtime.shards.ray_init"
    address: str = "runtime.shards.address"
    instead: str = "set engine: none"


class Cluster:
    """A connection to a Ray cluster, either a running one or one that is started here and ends with this process.

    If this process is connected to a cluster already, that cluster is used, and the configuration has no effect.

    Args:
        cfg: the block `runtime.shards` of the parameters, with the cluster's address and the settings of `ray.init`.
        what: the setting that needs Ray. The error message shows it if Ray is not installed.
        names: what all other error messages call the parameters. None if they are those of `runtime.shards`.

    Attributes:
        ray: the module `ray`.
        own: True if this object made the connection, and ends it in `close`.

    Raises:
        MissingInputError: Ray is not installed.
        ParamsError: Ray refuses one of the `ray_init` settings.
        ResourceError: Ray does not start, or is not at the address.
    """

    def __init__(
        self, cfg: ShardsConfig, what: str = "runtime.shards.engine: ray", names: Names | None = None
    ) -> None:  # fmt: skip
        need_package("ray", "ray", what)
        self._scratch = ""
        self._watch: subprocess.Popen[bytes] | None = None
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # An actor without a GPU must not see any: results depend on the device.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        # Else Ray writes a token into the user's home. It reads the one that there is when it is imported, once.
        if cfg.address is None and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        self.ray: Any = importlib.import_module("ray")
        self.own, names = not self.ray.is_initialized(), names or Names()
        known = [name for name, p in inspect.signature(self.ray.init).parameters.items() if p.kind is p.KEYWORD_ONLY]
        for key in cfg.ray_init:
            if key not in known and not key.startswith("_"):  # those are Ray's own, which it checks itself
                raise ParamsError(f"{names.settings}: ray.init takes no {key!r}{suggestion(key, known)[:300]}")
        if self.own:
            try:
                _knock(cfg.address)
                with _alone() if cfg.address is None else contextlib.nullcontext():
                    self.ray.init(**self._arguments(cfg))
                if cfg.address is None:
                    watch = [sys.executable, "-c", _WATCH, str(os.getpid()), self._scratch]
                    self._watch = subprocess.Popen(watch, start_new_session=True)
            except (Exception, SystemExit) as error:
                self.close()
                raise _refusal(cfg, names, error) from None

    def _arguments(self, cfg: ShardsConfig) -> dict[str, Any]:
        quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": False}
        if cfg.address is not None:
            return {"address": cfg.address, **quiet, **cfg.ray_init}
        cpus = available_cpus()
        if cfg.count != "auto":  # they share the CPUs that there are
            cpus = max(cpus, math.ceil(cfg.count * cfg.resources.get("cpu", 1.0)))
        self._scratch = tempfile.mkdtemp(prefix="evopipe-ray-")
        return {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": self._scratch if len(tempfile.gettempdir()) <= _LONGEST else None,
            **quiet,
            **cfg.ray_init,
        }

    def close(self) -> None:
        if self.own:
            with contextlib.suppress(Exception):
                self.ray.shutdown()
            if self._watch is not None:
                self._watch.kill()
                self._watch.wait()
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)


class OnRay:
    """The engine that runs each shard as a Ray actor; it implements `scale.shards.ShardEngine`.

    Args:
        cfg: the block `runtime.shards` of the parameters.
        folder: the project's folder. It becomes an actor's working folder if it exists on the actor's machine; else the
            actor keeps the folder in which Ray started it.
        make: a function that takes a shard's first message, and returns the shard's configuration, regime (training
            loop) and clock.

    Raises:
        ResourceError: Ray does not start, is not at the address, or has no room for a shard.
    """

    def __init__(self, cfg: ShardsConfig, folder: Path, make: Make) -> None:
        self._cluster = Cluster(cfg)
        self._ray, self._cfg, self._folder, self._make = self._cluster.ray, cfg, str(folder.absolute()), make
        self._actors: dict[int, Any] = {}
        self._begun: dict[int, tuple[Any, float]] = {}  # when a shard was started that did not answer yet
        self._asked: dict[int, Any] = {}
        if not self.room:
            has = ", ".join(f"{name} {n:g}" for name, n in sorted(self._has().items()))
            self.close()
            raise ResourceError(
                f"runtime.shards.resources: no node of the Ray cluster has room for a shard ({has}); lower them"
            )

    def _has(self) -> dict[str, float]:
        found = {"cpu" if name == "CPU" else "gpu" if name == "GPU" else name: float(amount)
                 for name, amount in self._ray.cluster_resources().items()}  # fmt: skip
        return {name: found.get(name, 0.0) for name in self._cfg.resources}

    @property
    def room(self) -> int:
        wanted = {name: amount for name, amount in self._cfg.resources.items() if amount > 0}
        has = self._has()
        return min((int(has[name] / amount) for name, amount in wanted.items()), default=available_cpus())

    def start(self, shard: int) -> None:
        if shard in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(self._actors[shard])
        others = {name: n for name, n in self._cfg.resources.items() if name not in ("cpu", "gpu")}
        actor = self._ray.remote(_Actor).options(
            num_cpus=self._cfg.resources.get("cpu", 0.0), num_gpus=self._cfg.resources.get("gpu", 0.0),
            resources=others, max_restarts=0, max_concurrency=1, runtime_env={"env_vars": {"PYTHONPATH": code_path()}},
        )  # fmt: skip
        self._actors[shard] = actor.remote(self._folder, self._make)
        self._begun[shard] = self._actors[shard].ready.remote(), time.monotonic()

    def send(self, shard: int, message: bytes) -> None:
        try:
            self._asked[shard] = self._actors[shard].answer.remote(message)
        except self._ray.exceptions.RayError as error:
            raise _no_room(error) from None

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        try:
            if shard in self._begun and not self._found_room(shard, seconds):
                return None
            if not self._ray.wait([self._asked[shard]], timeout=seconds)[0]:
                return None
            answer: bytes = self._ray.get(self._asked[shard])
            return answer
        except self._ray.exceptions.RayError as error:
            text = " ".join(_COLOURS.sub("", str(error)).split())
            if _FULL.search(text):
                raise _no_room(error) from None
            cause = text.partition("The actor died because ")[2] or text
            raise Lost(f"its actor died ({cause[:200]})") from None

    def _found_room(self, shard: int, seconds: float) -> bool:
        ready, since = self._begun[shard]
        if not self._ray.wait([ready], timeout=seconds)[0]:
            if time.monotonic() - since > _PATIENCE:
                raise ResourceError(
                    f"the Ray cluster found no room for shard {shard} in {_PATIENCE:.0f} s (runtime.shards.resources: "
                    f"{self._cfg.resources}): free some, add a node, or lower runtime.shards.count; the same command "
                    "continues from the last checkpoint"
                )
            return False
        self._ray.get(ready)
        del self._begun[shard]
        return True

    def close(self) -> None:
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors.clear()
        self._cluster.close()


def _no_room(error: Exception) -> ResourceError:
    return ResourceError(
        f"runtime.shards: Ray has no room for members and states ({type(error).__name__}): free /dev/shm and the "
        "folder for temporary files (TMPDIR), or take fewer members; the same command continues from the last "
        "checkpoint"
    )


def code_path() -> str:
    """Return a `PYTHONPATH` with which Ray actors import the same code as this process.

    All its folders are absolute, so that it does not matter in which folder an actor starts.
    """
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([str(SOURCE), *(str(Path(each).absolute()) for each in named)])


def _knock(address: str | None) -> None:
    """Check that a server listens at an address; Ray itself would try for minutes.

    Raises:
        OSError: none does.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let a cluster listen on 127.0.0.1 alone: Ray takes the machine's own address instead, which others reach."""
    services = importlib.import_module("ray._private.services")
    before = getattr(services, "resolve_ip_for_localhost", None)
    if before is not None:
        services.resolve_ip_for_localhost = lambda host: host  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if before is not None:
            services.resolve_ip_for_localhost = before  # type: ignore[attr-defined]


def _refusal(cfg: ShardsConfig, names: Names, error: BaseException) -> EvopipeError:
    what = said(error).splitlines()[0][:300]
    if cfg.ray_init and (isinstance(error, (TypeError, ValueError, AssertionError)) or "keyword argument" in what):
        told = ", ".join(f"{key}={value!r:.60}" for key, value in cfg.ray_init.items())
        return ParamsError(f"{names.settings}: Ray does not take {told} ({what}); see the arguments of ray.init")
    if cfg.address is not None:
        return ResourceError(
            f"{names.address}: no Ray cluster answers at {cfg.address!r} ({what}); start one by `ray start`"
        )
    return ResourceError(
        f"{names.engine}: Ray does not start ({what}); it needs room in /dev/shm, a writable folder for "
        f"temporary files (TMPDIR), and a machine that is not so busy; or {names.instead}"
    )
