"""Shards as the ranks that `accelerate launch` starts: rank 0 drives and has one itself, and it alone writes."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from evopipe.errors import ParamsError, ResourceError, UsageError
from evopipe.parallel import available_cpus
from evopipe.run.shard import Make, Shard
from evopipe.schema.shards import ShardsConfig

_FOREVER = timedelta(days=30)  # that ranks wait for each other: an evaluation may be long


def served(cfg: ShardsConfig, make: Make) -> bool:
    """See `stages.shards.served`."""
    if not _by_command():
        raise UsageError("runtime.shards.engine: accelerate is for `evopipe train` and pipelines; in Python take ray")
    if "RANK" not in os.environ:
        _launch(cfg)
    _join()
    if distributed.get_rank() == 0:
        return False
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # rank 0 decides, and saves first
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    shard = Shard(make)
    try:
        while message := _receive(0):
            _send(shard.answer(message), 0)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ResourceError(
            f"rank 0, which drives the training, is gone ({reason}); run the same command again"
        ) from None
    finally:
        shard.close()
        distributed.destroy_process_group()
    return True


def _by_command() -> bool:
    """Whether this process is the command line's: another program's is nobody's to become a rank, or a launcher."""
    program = Path(sys.argv[0])
    return program.is_file() and "evopipe" in (program.stem, program.parent.name)


def _launch(cfg: ShardsConfig) -> None:
    """Become the launcher of as many processes as there are to be shards."""
    count = cfg.count
    if count == "auto":
        count = torch.cuda.device_count() or max(1, int(available_cpus() / max(cfg.resources.get("cpu", 1.0), 1.0)))
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
    device = _device()
    distributed.send(torch.tensor([len(data)], device=device), rank)
    if data:
        distributed.send(torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device), rank)


def _receive(rank: int) -> bytes:
    size = torch.zeros(1, dtype=torch.int64, device=_device())
    distributed.recv(size, rank)
    data = torch.empty(int(size), dtype=torch.uint8, device=size.device)
    if len(data):
        distributed.recv(data, rank)
    return data.cpu().numpy().tobytes()


def _device() -> torch.device:
    """Where tensors are sent from: nccl sends a GPU's alone."""
    return torch.device("cuda" if distributed.get_backend() == "nccl" else "cpu")


class Ranks:
    """The engine (see `run.shards.Engine`) of rank 0. A rank that dies ends the run, which goes on from its last
    checkpoint."""

    def __init__(self, cfg: ShardsConfig, make: Make) -> None:
        self.room = distributed.get_world_size()
        if cfg.count not in ("auto", self.room):
            raise ParamsError(
                f"runtime.shards.count: {cfg.count}, but {self.room} processes were launched; set it to auto"
            )
        self._own = Shard(make)
        self._told = b""  # to rank 0's own shard
        self._unheard: Counter[int] = Counter()  # answers of a rank that are still to come

    def start(self, shard: int) -> None:
        """Every rank is there from the beginning."""

    def tell(self, shard: int, message: bytes) -> None:
        if not shard:
            self._told = message
            return
        self._unheard[shard] += 1
        try:
            _send(message, shard)
        except RuntimeError as error:
            raise _gone(shard, error) from None

    def heard(self, shard: int, seconds: float, stopped: Callable[[], bool]) -> bytes | None:
        if not shard:
            return self._own.answer(self._told, stopped)
        answer = b""
        try:
            while self._unheard[shard]:  # those to what was given up, as by a signal, come first
                answer = _receive(shard)
                self._unheard[shard] -= 1
        except RuntimeError as error:
            raise _gone(shard, error) from None
        return answer

    def close(self) -> None:
        self._own.close()
        if not distributed.is_initialized():
            return
        for shard in range(1, self.room):
            try:
                if not self._unheard[shard]:
                    _send(b"", shard)
            except RuntimeError:
                pass
        distributed.destroy_process_group()


def _gone(shard: int, error: RuntimeError) -> ResourceError:
    reason = str(error).splitlines()[0][:200]
    return ResourceError(
        f"rank {shard} is gone ({reason}): its own output says why; the same command continues from the last checkpoint"
    )
