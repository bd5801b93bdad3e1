"""HDF5 files that anybody may have written: read in a process of its own, whose memory is limited.

Ten thousand bytes can unpack to as many as one likes, and a damaged file can crash the library that reads it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import h5py

from evopipe.data.hdf5 import check_regular, opened
from evopipe.errors import DataError, ResourceError
from evopipe.parallel import Died, Helper, can_help

T = TypeVar("T")

_TIMES, _SPARE = 64, 2**30  # a file may take 64 times its size and 1 GiB


def read_foreign(path: Path, read: Callable[[h5py.File], T]) -> T:
    """Return what `read` makes of a file: data that can be pickled.

    A system without helper processes (not Linux) reads it in this process, without a limit of memory.

    Raises:
        MissingInputError: it is not there.
        DataError: it is damaged, `read` found it `Unusable`, or reading it crashed.
        ResourceError: reading it takes more memory than its size explains.
    """
    check_regular(path)
    if not can_help():
        with opened(path, str(path)) as file:
            return read(file)
    allowed = _TIMES * path.stat().st_size + _SPARE
    too_much = (
        f"{path}: takes more than {allowed / 2**30:.1f} GiB of memory, the limit for its size ({_TIMES} times that and "
        "1 GiB); if you trust it, unpack it first with `h5repack -f NONE`, else fetch another dataset"
    )
    with open(os.memfd_create("evopipe"), "w+b") as result:

        def work() -> None:
            _limit(allowed)
            try:
                with opened(path, str(path)) as file:
                    content = read(file)
                pickle.dump(content, result, pickle.HIGHEST_PROTOCOL)
                result.flush()
            except MemoryError:
                raise ResourceError(too_much) from None

        helper = Helper(work)
        try:
            helper.tell()
            error = helper.wait()
        except Died as died:
            if died.killed:
                remedy = "use a machine with more, or fetch another dataset"
                raise ResourceError(f"{path}: reading it took all memory there is ({died}); {remedy}") from died
            raise DataError(f"{path}: is damaged so that reading it crashed ({died}); fetch another dataset") from died
        finally:
            helper.dismiss()
        if error is not None:
            raise error
        result.seek(0)
        found: T = pickle.load(result)
        return found


def _limit(more: int) -> None:
    """Let this process have so many bytes of addresses more than now, and leave no core file where it crashes. Where
    the machine has less than that, the kernel is to end this process, not one that did nothing."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    with contextlib.suppress(OSError):  # /proc may be read-only
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
