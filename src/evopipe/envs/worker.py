"""A worker process: it holds a share of a pool's environments and steps them on request.

Started by `evopipe.envs.workers`, one command after the other over a socket, arrays in shared memory. It imports what
environments need and no more, and it lives exactly as long as the process that started it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from evopipe.envs.rows import Fault, Rows, broken, compute_alike, describe_spec, make_rows
from evopipe.envs.shared import Bell, Message, Op, SharedArrays, read_message
from evopipe.errors import EvopipeError
from evopipe.schema.blocks import EnvConfig
from evopipe.signals import ignore_stop_signals, signal_at_parent_death
from evopipe.types import Spaces

_LOOK_SECONDS = 2.0  # between two looks at whether the starter is still there


def main(fd: int, calls: int, answers: int, starter: int, main_thread: bool) -> None:
    """Serve the socket `fd` until the other side closes it; the bells `calls` and `answers` say what lies in it.

    `starter` is the process that must outlive this one.
    """
    ignore_stop_signals()
    channel, call, answered = socket.socket(fileno=fd), Bell(calls), Bell(answers)
    _die_with(starter, main_thread, channel)
    shares: dict[int, _Share] = {}
    while True:
        call.wait()
        fds: list[int] = []
        request = read_message(channel, fds)
        if request is None:
            break
        answer = _serve(shares, request, fds)
        try:
            channel.sendall(answer.pack())
            answered.ring()
        except OSError:
            break
    # No clean-up: pools were closed before, or the starter died and nobody waits for it.
    _flush()
    os._exit(0)


def _die_with(starter: int, main_thread: bool, channel: socket.socket) -> None:
    """End this process when its starter does, in the middle of an environment's step too."""
    if main_thread:  # the kernel counts the death of the thread that started us: safe only if that is the main one
        signal_at_parent_death(signal.SIGKILL)
    threading.Thread(target=_watch, args=(starter, channel.fileno()), name="evopipe-watch", daemon=True).start()


def _watch(starter: int, fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # hang-up is always reported
    while os.getppid() == starter and not poll.poll(_LOOK_SECONDS * 1000):
        pass
    os._exit(0)


def _serve(shares: dict[int, _Share], request: Message, fds: Sequence[int]) -> Message:
    body: dict[str, Any] | None = None
    try:
        if request.op is Op.OPEN:
            shares[request.pool] = _Share(request.body, fds[0])
        elif request.op is Op.RESET:
            body = shares[request.pool].reset(request.count)
        elif request.op is Op.STEP:
            shares[request.pool].step(request.count)
        elif request.op is Op.CLOSE:
            share = shares.pop(request.pool, None)
            if share is not None:
                share.rows.close()
    except Fault as fault:
        return _fault(request, "", fault.text, fault.row)
    except EvopipeError as error:
        return _fault(request, type(error).__name__, str(error))
    except BaseException as error:  # sys.exit() in an environment must not end the worker without a word
        return _fault(request, "EnvironmentFailed", f"{type(error).__name__}: {error}")
    finally:
        _flush()
    return Message(Op.DONE, request.number, request.pool, body=body)


def _fault(request: Message, kind: str, text: str, row: int = -1) -> Message:
    return Message(Op.FAULT, request.number, request.pool, body={"kind": kind, "text": text, "row": row})


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


class _Share:
    """The rows of one pool that this worker holds."""

    def __init__(self, about: dict[str, Any], fd: int) -> None:
        # Environments may read files by relative paths and import from the project's folder, as in the starter.
        os.chdir(about["folder"])
        sys.path[:] = about["path"]
        cfg = EnvConfig.model_validate({"id": about["id"], "kwargs": about["kwargs"]})
        self.mine = range(about["first"], about["rows"], about["shares"])
        self.every = slice(about["first"], None, about["shares"])
        self.rows: Rows = make_rows(cfg, self.mine)
        spec = describe_spec(self.rows.env(self.mine[0]))
        if spec != about["spec"]:
            raise EvopipeError(f"{cfg.id} is registered as {spec} here")
        self.shared = SharedArrays(about["rows"], Spaces(**about["spaces"]), fd)
        os.close(fd)
        self.failed: dict[int, tuple[int, Exception]] = {}  # episodes begun ahead that did not begin: seed, and why
        _same_threads(about["torch_threads"])
        compute_alike(about["floating_point"])

    def _named(self, count: int) -> tuple[Sequence[int], Any]:
        """The rows that a request is about, as numbers and as an index."""
        if count < 0:
            return self.mine, self.every
        index = self.shared.rows[self.every][:count].copy()
        return index.tolist(), index

    def reset(self, count: int) -> dict[str, Any] | None:
        rows, index = self._named(count)
        shared = self.shared
        shared.begun[index] = -1
        seeds = shared.seed[index].tolist()
        for row, seed in zip(rows, seeds, strict=True):
            failed = self.failed.pop(row, None)
            if failed is not None and failed[0] == seed:
                raise failed[1]
        obs, mask = self.rows.reset(rows, seeds)
        shared.obs[index] = obs
        if mask is None:
            return None
        shared.mask[index] = mask
        return {"masked": True}

    def step(self, count: int) -> None:
        rows, index = self._named(count)
        shared = self.shared
        began = time.perf_counter_ns()
        obs, reward, terminated, truncated, mask = self.rows.step(rows, shared.action[index])
        shared.spent[self.mine[0]] += time.perf_counter_ns() - began
        shared.stepped[self.mine[0]] += len(rows)
        shared.obs[index], shared.reward[index] = obs, reward
        shared.terminated[index], shared.truncated[index] = terminated, truncated
        if mask is not None:
            shared.mask[index] = mask
        over = terminated | truncated | broken(self.rows.actions, obs, reward, terminated, truncated, mask)
        shared.begun[index] = -1
        for i in over.nonzero()[0].tolist():
            self._begin_ahead(rows[i])

    def _begin_ahead(self, row: int) -> None:
        """Begin the episode that is known to follow. A fault is kept until that episode is asked for."""
        shared = self.shared
        self.failed.pop(row, None)
        seed = int(shared.next_seed[row])
        if seed < 0:
            return
        try:
            obs, mask = self.rows.reset([row], [seed])
        except Exception as error:
            self.failed[row] = seed, error
            return
        shared.next_obs[row] = obs[0]
        if mask is not None:
            shared.next_mask[row] = mask[0]
        shared.begun[row] = seed


def _same_threads(count: int | None) -> None:
    """Environments that compute with torch: their last bits depend on the number of threads."""
    torch = sys.modules.get("torch")
    if torch is not None and count is not None:
        torch.set_num_threads(count)
