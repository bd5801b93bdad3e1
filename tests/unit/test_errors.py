"""`errors.py`: failures of the machine get a sentence and an exit code."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from evopipe.errors import DataError, DiskError, Interrupted, ResourceError, translate_failures


@contextmanager
def _translated(error: Exception) -> Iterator[None]:
    with translate_failures():
        yield
        raise error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory(error: Exception) -> None:
    advice = r"lower train\.replay\.capacity, population\.size or env\.num_envs"
    with pytest.raises(ResourceError, match=advice) as caught, _translated(error):
        pass
    assert caught.value.exit_code == 72
    assert caught.value.__cause__ is error


def test_memory_that_torch_really_lacks() -> None:
    with pytest.raises(ResourceError, match="memory ran out"), translate_failures():
        torch.empty(2**60)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/data/x"),
        OSError(errno.EROFS, "Read-only file system", "/data/x"),
        OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk(error: Exception) -> None:
    with (
        pytest.raises(DiskError, match=r"a file could not be written .*; free some space") as caught,
        _translated(error),
    ):
        pass
    assert caught.value.exit_code == 74
    assert str(caught.value).startswith("/data/x: ") == bool(getattr(error, "filename", None))


def test_a_full_disk() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with pytest.raises(DiskError), translate_failures(), open("/dev/full", "w") as stream:
        stream.write("x")
        stream.flush()


def test_permission() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    sentence = r"^/data/x: this process may not use that file \(Permission denied\)"
    with pytest.raises(DiskError, match=sentence), _translated(error):
        pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        FileNotFoundError(errno.ENOENT, "No such file", "/x"),
        RuntimeError("shapes differ"),
        DataError("data.h5: holds the words No space left on device"),
        KeyError("x"),
    ],
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, _translated(error):
        pass
    assert caught.value is error


def test_an_interrupted_call_passes_an_except_for_exceptions() -> None:
    with pytest.raises(Interrupted) as stopped:
        try:
            with translate_failures():
                raise Interrupted(15, "saved")
        except Exception:
            pytest.fail("a loop over several runs would go on with the next")
    assert (stopped.value.exit_code, str(stopped.value)) == (143, "saved")
