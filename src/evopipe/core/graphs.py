"""Fast paths: CUDA graphs and `torch.compile` around the unchanged `act` and `update` of an algorithm.

On a GPU, the arithmetic of small networks costs less than launching its kernels. A CUDA graph records the kernels of a
tick once and launches them with one call. A graph holds tensors by address: inputs are copied into fixed buffers, state
is written in place, and outputs are cloned because the next replay overwrites them. Everything but the graph itself
also runs on the CPU (`buffers`). Recording never changes the state. A path that fails is abandoned with one warning.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from evopipe.types import Tensor

Compile = Literal["auto", "on", "off"]
Capture = Literal["none", "buffers", "graph"]
Body: TypeAlias = "Callable[..., tuple[Tensor, ...]]"
TRIALS = 2  # runs before a capture: kernels are loaded, libraries get their workspaces, views are made
RECOMPILES = 64  # structures that torch.compile keeps code for; its own 8 are gone after a few generations


class Paths:
    """The fast paths of a run, CUDA graphs and `torch.compile`: one object for all its cohorts (batches of members).

    Args:
        capture: how functions are called. `graph`: by CUDA graphs. `buffers`: without graphs, but with fixed input and
            output tensors as a graph has them; used where CUDA graphs do not work, as on a CPU. `none`: as they are.
        compiled: whether `update` goes through `torch.compile`, which changes the last bits of results.

    Attributes:
        given_up: one sentence for each path that failed and was abandoned, with the reason.
        recorded: the number of functions that were recorded for replay.
    """

    def __init__(self, capture: Capture = "none", compiled: bool = False) -> None:
        self.capture: Capture = capture
        self.compiled = compiled
        self.given_up: list[str] = []
        self.recorded = 0
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    @classmethod
    def choose(cls, compile: Compile, device: torch.device) -> Paths:
        """Return the fast paths that `compile`, the parameter `runtime.compile`, selects on this device."""
        on_cuda = device.type == "cuda"
        if compile == "off" or (compile == "auto" and not on_cuda):
            return cls()
        return cls("graph" if on_cuda else "buffers", compiled=compile == "on")

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` compiled by `torch.compile` for constant shapes. The compiled function is cached."""
        if function not in self._compiled:
            import torch._dynamo.config as dynamo

            dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILES)
            self._compiled[function] = torch.compile(function, dynamic=False)
        return self._compiled[function]

    def give_up(self, path: Literal["CUDA graphs", "torch.compile"], error: Exception) -> None:
        if path == "CUDA graphs":
            self.capture = "buffers"
        else:
            self.compiled = False
        lines = str(error).strip().splitlines() or [type(error).__name__]
        sentence = f"{path} failed here and will not be used: {type(error).__name__}: {lines[0][:300]}"
        self.given_up.append(sentence)
        warnings.warn(sentence, stacklevel=2)


class Runner:
    """Cache of the recordings that one cohort (a batch of members) has made of its work, such as CUDA graphs of `act`.

    A recording is run again instead of the function that it was made from. `paths` are the fast paths of the run; None
    if the run has none.
    """

    def __init__(self, paths: Paths | None = None) -> None:
        self.paths = paths or Paths()
        self._played: dict[Hashable, tuple[tuple[Tensor, ...], _Recording]] = {}

    def ready(
        self,
        name: Hashable,
        make: Callable[[Callable[..., Any]], Body],
        inputs: Sequence[Tensor],
        device: torch.device,
        bound: Callable[[], Sequence[Tensor]],
        written: Callable[[], Sequence[Tensor]] = lambda: (),
    ) -> Callable[[], tuple[Tensor, ...]]:
        """Return a function without arguments that runs the work on `inputs`, and returns the outputs as a tuple.

        The work is the function that `make` returns, for example one that calls an algorithm's `update`. If `name` is
        new, this method records the work. The returned function replays the recording on `inputs`. The work is recorded
        again if `bound` or `written` returns other tensor objects than before. If `Paths.capture` is `none`, nothing
        is recorded, and the returned function calls the work itself.

        Args:
            name: the key of the recording. Work with other shapes or operators needs another key.
            make: a function that takes a decorator, and returns the work. It must apply the decorator to the part of
                the work that may be compiled. The work takes tensors on the device, and never synchronises with the
                host.
            inputs: the work's arguments, on the host or the device. Only their values may differ between calls.
            device: the device on which the work runs.
            bound: a function without arguments that returns the other tensors that the work reads.
            written: a function without arguments that returns the tensors that the work writes in place.
        """
        if self.paths.capture == "none":
            return partial(make(lambda function: function), *(upload(x, device) for x in inputs))
        known, now = self._played.get(name), (*bound(), *written())
        if known is None or len(known[0]) != len(now) or any(a is not b for a, b in zip(known[0], now, strict=True)):
            self._played.pop(name, None)  # its memory first
            known = now, _Recording(self.paths, make, inputs, device, written())
            self._played[name] = known
        return partial(known[1], inputs)


class _Recording:
    """A piece of work on fixed tensors."""

    def __init__(
        self,
        paths: Paths,
        make: Callable[[Callable[..., Any]], Body],
        inputs: Sequence[Tensor],
        device: torch.device,
        written: Sequence[Tensor],
    ) -> None:
        paths.recorded += 1
        self.inputs = tuple(upload(x, device).clone() for x in inputs)
        # Plain first, always: what is made at first use (views of the flat storage) must not be made while recording.
        body = make(lambda function: function)
        outputs = _try(body, self.inputs, written)
        if paths.compiled:
            body, outputs = self._compiled(paths, make, written) or (body, outputs)
        self.outputs = tuple(out.clone() for out in outputs)
        self.body = body  # kept also where a graph replays: the graph reads the work's constants, by address
        self.replay = self._call
        if paths.capture == "graph":
            self._capture(paths)

    def _compiled(
        self, paths: Paths, make: Callable[[Callable[..., Any]], Body], written: Sequence[Tensor]
    ) -> tuple[Body, tuple[Tensor, ...]] | None:
        """Compile, and return the work and its results; None where that fails, as without a C++ compiler."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's talk to its developers
                body = make(paths.compile)
                return body, _try(body, self.inputs, written)
        except Exception as error:
            paths.give_up("torch.compile", error)
            return None

    def _capture(self, paths: Paths) -> None:
        """Record a CUDA graph. Nothing is computed while recording, so a failure leaves the state as it was."""
        try:
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            # The outer context gives the stream back where the end of a broken capture raises. Other threads may go on
            # using the device meanwhile: trackers and environments are none of the capture's business.
            with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                outputs = self.body(*self.inputs)
        except Exception as error:
            paths.give_up("CUDA graphs", error)
            return
        self.outputs, self.replay = outputs, graph.replay

    def _call(self) -> None:
        for kept, out in zip(self.outputs, self.body(*self.inputs), strict=True):
            kept.copy_(out)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for buffer, given in zip(self.inputs, inputs, strict=True):
            buffer.copy_(_staged(given, buffer.device), non_blocking=True)
        self.replay()
        return tuple(out.clone() for out in self.outputs)


def _try(body: Body, inputs: Sequence[Tensor], written: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run the work and undo what it wrote. On CUDA this happens on a side stream, as a capture asks for."""
    before = [tensor.clone() for tensor in written]
    try:
        with _side_stream(inputs[0].device):
            for _ in range(TRIALS):
                outputs = body(*inputs)
            return tuple(out.clone() for out in outputs)  # they may lie in what is put back now
    finally:
        with torch.no_grad():
            for tensor, old in zip(written, before, strict=True):
                tensor.copy_(old)


@contextlib.contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """Work on another CUDA stream, in order with the present one."""
    if device.type != "cuda":
        yield
        return
    present, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(present)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        present.wait_stream(side)


def upload(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the host to a device without waiting for earlier work of the device.

    A plain `.to(device)` would wait; a copy from pinned memory does not. The caller may overwrite `x` immediately. If
    `x` is on the CPU and the device is the CPU, `x` itself is returned.
    """
    if x.is_cpu and device.type == "cpu":
        return x
    return _staged(x, device).to(device, non_blocking=True)


def _staged(x: Tensor, device: torch.device) -> Tensor:
    return x.pin_memory() if device.type == "cuda" and x.device.type == "cpu" else x
