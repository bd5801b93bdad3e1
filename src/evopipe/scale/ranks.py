"""Shards as ranks of `accelerate launch`. Rank 0 drives the run, has a shard itself, and alone writes files.

A shard may consist of several adjacent ranks (`runtime.shards.ranks`). They receive the same messages and do the same
work, except for the parts of rows that they divide (see `language.together`). The first of them answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from evopipe.errors import ParamsError, ResourceError, UsageError
from evopipe.language.together import Together
from evopipe.parallel import available_cpus
from evopipe.run.evaluate import Stopped
from evopipe.scale.shard import Shard, unpack
from evopipe.schema.shards import ShardsConfig

_SHORT = 1 << 14  # bytes that go with a message's length: to wake a process takes longer than to bring them
_FOREVER = timedelta(days=30)  # that ranks wait for each other: an evaluation may be long


def served(cfg: ShardsConfig, make: Callable[..., Any]) -> bool:
    """Run as a worker of `accelerate launch`, unless this process is rank 0; return whether it was a worker.

    In rank 0 the function returns False at once. In any other rank it returns True when the training has ended. If no
    ranks were launched, the function replaces this process by `accelerate launch`, and does not return.

    Args:
        cfg: the block `runtime.shards`.
        make: a function that makes a shard's configuration, regime (training loop) and clock from the shard's first
            message.

    Raises:
        UsageError: the training was started from Python and not by a command.
        ResourceError: rank 0 ended.
    """
    if not _by_command():
        raise UsageError("runtime.shards.engine: accelerate is for `evopipe train` and pipelines; in Python take ray")
    if "RANK" not in os.environ:
        _launch(cfg)
    _join()
    if distributed.get_rank() == 0:
        return False
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # rank 0 decides, and saves first
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    own = _Own(cfg, make)
    try:
        while message := _receive(0):
            with contextlib.suppress(Stopped):
                answer = own.answer(message)
                if own.together.leads:
                    _send(answer, 0)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ResourceError(
            f"rank 0, which drives the training, is gone ({reason}); run the same command again"
        ) from None
    finally:
        own.close()
        distributed.destroy_process_group()
    return True


class _Own:
    """The shard of this rank, or its part in one of several."""

    def __init__(self, cfg: ShardsConfig, make: Callable[..., Any]) -> None:
        world, rank, size = distributed.get_world_size(), distributed.get_rank(), cfg.ranks
        self.together = Together()
        if size > 1 and not world % size:  # else rank 0 refuses
            starts = range(0, world, size)
            groups = [distributed.new_group(range(first, first + size), timeout=_FOREVER) for first in starts]
            self.together = Together(size, rank % size, rank - rank % size, groups[rank // size])
            make = partial(make, together=self.together)
        self._shard = Shard(make)
        self.close = self._shard.close

    def answer(self, message: bytes, stopped: Callable[[], bool] = lambda: False) -> bytes:
        """Answer a message (see `Shard.answer`) together with this shard's other ranks.

        Raises:
            ResourceError: this is not the first of them, and something went wrong here, or came out otherwise.
        """
        answer = self._shard.answer(message, self.together.agreed(stopped, _device()))
        if self.together.size > 1:
            about, tensors = unpack(answer)
            if "error" in about:
                if not self.together.leads:
                    raise ResourceError(about["text"])
            elif about.get("do") == "restore":
                self._compare(tensors)
        return answer

    def _compare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        digest = hashlib.sha256(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors))).digest()
        own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(_device())
        first = own.clone()
        self.together.tell(0, first)
        if not torch.equal(own, first):
            raise ResourceError(
                f"rank {distributed.get_rank()} computes other bits than rank {self.together.first}: the devices and "
                "versions of a shard's ranks must be alike"
            )


def _by_command() -> bool:
    """Return whether this process is evopipe's command line. Another program must not become a rank, or a launcher."""
    program = Path(sys.argv[0])
    return program.is_file() and "evopipe" in (program.stem, program.parent.name)


def _launch(cfg: ShardsConfig) -> None:
    """Become the launcher of as many processes as there are to be shards."""
    if cfg.count == "auto":
        room = torch.cuda.device_count() or int(available_cpus() / max(cfg.resources.get("cpu", 1.0), 1.0))
        count = max(1, room // cfg.ranks) * cfg.ranks
    else:
        count = cfg.count * cfg.ranks
    launch = [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(count),
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        "-m", "evopipe", *sys.argv[1:],
    ]  # fmt: skip
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, launch)


def _join() -> None:
    from accelerate import PartialState

    if os.environ.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody else is to reach it
    PartialState(timeout=_FOREVER)


def _send(data: bytes, rank: int) -> None:
    for part in (len(data).to_bytes(8, "little") + data[:_SHORT].ljust(_SHORT, b"\0"), data[_SHORT:]):
        if part:
            distributed.send(torch.frombuffer(bytearray(part), dtype=torch.uint8).to(_device()), rank)


def _receive(rank: int) -> bytes:
    first = _part(8 + _SHORT, rank)
    size = int.from_bytes(first[:8], "little")
    return first[8 : 8 + size] + (_part(size - _SHORT, rank) if size > _SHORT else b"")


def _part(size: int, rank: int) -> bytes:
    data = torch.empty(size, dtype=torch.uint8, device=_device())
    distributed.recv(data, rank)
    return data.cpu().numpy().tobytes()


def _device() -> torch.device:
    """Where tensors are sent from: nccl sends a GPU's alone."""
    return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


class Ranks:
    """The engine of rank 0, which runs shards as ranks of `accelerate launch`; it implements
    `scale.shards.ShardEngine`.

    If a rank dies, the run ends, and can be resumed from its last checkpoint. `cfg` is the block `runtime.shards`, and
    `make` a function that makes a shard's configuration, regime (training loop) and clock from its first message.

    Raises:
        ParamsError: the number of launched processes does not fit the configured number of shards.
    """

    def __init__(self, cfg: ShardsConfig, make: Callable[..., Any]) -> None:
        world, self._ranks = distributed.get_world_size(), cfg.ranks
        self.room = world // cfg.ranks
        if world % cfg.ranks or cfg.count not in ("auto", self.room):
            raise ParamsError(
                f"runtime.shards.count: {cfg.count}, of {cfg.ranks} processes each, but {world} processes were "
                "launched; set it to auto, and launch a multiple of runtime.shards.ranks"
            )
        self._own = _Own(cfg, make)
        self._told = b""  # to rank 0's own shard
        self._unheard: Counter[int] = Counter()  # answers of a shard that are still to come

    def start(self, shard: int) -> None:
        """Do nothing, because `accelerate launch` has started all ranks already."""

    def send(self, shard: int, message: bytes) -> None:
        if shard:
            self._hear(shard)  # an answer to what was given up, as by a signal: while it is sent, nothing is received
            self._unheard[shard] += 1
        else:
            self._told = message
        for rank in range(shard * self._ranks, (shard + 1) * self._ranks):
            try:
                if rank:
                    _send(message, rank)
            except RuntimeError as error:
                raise _gone(rank, error) from None

    def receive(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        if not shard:
            return self._own.answer(self._told, stopped)
        return self._hear(shard)

    def _hear(self, shard: int) -> bytes:
        """Wait for a shard's answer, if one is still to come."""
        answer = b""
        try:
            while self._unheard[shard]:
                answer = _receive(shard * self._ranks)
                self._unheard[shard] -= 1
        except RuntimeError as error:
            raise _gone(shard * self._ranks, error) from None
        return answer

    def close(self) -> None:
        self._own.close()
        if not distributed.is_initialized():
            return
        for rank in range(1, self.room * self._ranks):
            try:
                if not self._unheard[rank // self._ranks]:
                    _send(b"", rank)
            except RuntimeError:
                pass
        distributed.destroy_process_group()


def _gone(shard: int, error: RuntimeError) -> ResourceError:
    reason = str(error).splitlines()[0][:200]
    return ResourceError(
        f"rank {shard} is gone ({reason}): its own output says why; the same command continues from the last checkpoint"
    )
