"""A second device, in software: numbers that live somewhere else than on the host, as those of a GPU do.

Tensors of it say `meta` (the one device torch has no kernels of its own for) and hold their numbers out of reach. What
fails on CUDA fails here: an operator on tensors of two devices, NumPy of a tensor that is not on the host. Everything
that makes the host wait is counted; while a graph is recorded (`recording`), whatever would break the capture, or the
replays after it, is an error.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from evopipe.core.graphs import Body, Runner
from evopipe.regimes.rollouts import _ticks_of

DEVICE = torch.device("meta")
aten = torch.ops.aten


class CaptureError(RuntimeError):
    """What a graph cannot hold."""


class Remote(torch.Tensor):
    """A tensor on the second device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Remote:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=DEVICE,
        )  # fmt: skip

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func}: the second device is off; work on its tensors inside `with Device()`")


class _Functions(TorchFunctionMode):
    """`torch.tensor` makes numbers on the host and copies them; for `meta` alone torch leaves the numbers out."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu") == DEVICE:
            del kwargs["device"]
            return func(*args, **kwargs).to(DEVICE)
        if func is torch.Tensor.tolist and isinstance(args[0], Remote):
            return args[0].cpu().tolist()
        return func(*args, **kwargs)


class Device(TorchDispatchMode):
    """The second device, switched on.

    Attributes:
        waits: what made the host wait for the device, and how often.
    """

    def __init__(self) -> None:
        super().__init__()
        self._functions = _Functions()
        self.waits: Counter[str] = Counter()
        self._recording = False
        self._made: list[weakref.ref[Remote]] = []

    def __enter__(self) -> Device:
        _ticks_of.cache_clear()  # what is kept by device is of this one, and gone with it
        self._functions.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)
        _ticks_of.cache_clear()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While a graph is recorded. Afterwards nothing that was made in between may be in use."""
        self._recording, self._made = True, []
        try:
            yield
        finally:
            self._recording = False

    def kept(self, but: Sequence[torch.Tensor]) -> int:
        """How many tensors made while recording are in use still, `but` for these."""
        spared = {t.inner.untyped_storage()._cdata for t in but if isinstance(t, Remote)}
        alive = [t for t in (made() for made in self._made) if t is not None]
        return len({t.inner.untyped_storage()._cdata for t in alive} - spared)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        remote = any(isinstance(x, Remote) for x in tensors)
        to = kwargs.get("device")
        if not remote and to != DEVICE:
            return func(*args, **kwargs)
        into = isinstance(args[0], Remote) if func is aten.copy_.default else to == DEVICE
        patient = kwargs.get("non_blocking") or (func is aten.copy_.default and args[2:] == (True,))
        self._judge(func, tensors, to, waits=not (patient and into))
        if to == DEVICE:
            kwargs["device"] = torch.device("cpu")
        inner_args, inner_kwargs = tree_map_only(Remote, lambda x: x.inner, (args, kwargs))
        out = func(*inner_args, **inner_kwargs)
        if to is not None and to != DEVICE:
            return out
        if func is aten.copy_.default and not isinstance(args[0], Remote):
            return args[0]
        wrapped = tree_map_only(torch.Tensor, self._wrap, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _wrap(self, inner: torch.Tensor) -> Remote:
        made = Remote(inner)
        if self._recording:
            self._made.append(weakref.ref(made))
        return made

    def _judge(self, func: Any, tensors: Sequence[torch.Tensor], to: torch.device | None, waits: bool) -> None:
        """Refuse what no device does, count what the host waits for, refuse both in a graph."""
        local = [x for x in tensors if not isinstance(x, Remote)]
        index = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index)
        moves = func in (aten.copy_.default, aten._to_copy.default)
        if local and not moves and not index and any(x.dim() for x in local):
            raise RuntimeError(f"{func}: tensors of two devices")
        wait = ""
        if torch.Tag.data_dependent_output in func.tags or func is aten._local_scalar_dense.default:
            wait = "a value is read on the host"
        elif moves and (local or (to is not None and to != DEVICE)):
            wait = "a copy from or to the host"
        elif index and any(x.dtype == torch.bool for x in tensors[1:]):
            wait = "indexing by a mask: the shape depends on the data"
        elif index and local:
            wait = "an index from the host"
        elif not index and torch.Tag.dynamic_output_shape in func.tags:
            wait = "the shape of the result depends on the data"
        elif local:
            wait = "a number from the host"
        if wait and waits:  # on the way to the device one need not wait, on the way back one must
            self.waits[wait] += 1
        if self._recording and (wait or torch.Tag.nondeterministic_seeded in func.tags):
            raise CaptureError(f"{func}: {wait or 'a random number generator'}")


class Recorder(Runner):
    """Runs a cohort's work as a graph would: on what it was recorded on, with nothing left over but its results."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def ready(
        self,
        name: Hashable,
        make: Callable[[Callable[..., Any]], Body],
        inputs: Sequence[torch.Tensor],
        device: torch.device,
        bound: Callable[[], Sequence[torch.Tensor]],
        written: Callable[[], Sequence[torch.Tensor]] = lambda: (),
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        read, changed = bound(), written()
        buffers, body = [x.to(device) for x in inputs], make(lambda function: function)
        before = [tensor.clone() for tensor in changed]
        body(*buffers)  # what is made once is made now
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        with self.device.recording():
            outputs = body(*buffers)
        left = self.device.kept((*outputs, *read, *changed))
        if left:
            raise CaptureError(f"{name}: {left} tensors made while recording outlive it; a replay overwrites them")
        return lambda: outputs
