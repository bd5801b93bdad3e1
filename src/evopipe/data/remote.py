"""Minari datasets of a remote, downloaded into Minari's own cache."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from evopipe.errors import MissingInputError

REACH_SECONDS = 30.0
_DOWNLOAD_SECONDS = 6 * 3600.0
_ID = re.compile(r"(?:[\w-]+/)*[\w-]+-v\d+", re.ASCII)
# Minari answers a dead network with hours of retries or a long traceback: a child process can be stopped and summed up.
# It ends with its parent (prctl(PR_SET_PDEATHSIG, SIGKILL)), which may be killed while it waits.
_END = "import ctypes,sys;sys.platform=='linux' and ctypes.CDLL(None).prctl(1,9);"
_LIST = _END + "import json,minari,sys;print(json.dumps(sorted(minari.list_remote_datasets(prefix=sys.argv[1]))))"
# Without force a folder that a stopped download left behind would count as the dataset.
_DOWNLOAD = _END + "import minari,sys;minari.download_dataset(sys.argv[1],force_download=sys.argv[2]=='again')"


def local_folder(dataset_id: str, reach_seconds: float = REACH_SECONDS) -> Path:
    """Return the local folder of a remote dataset, downloaded unless Minari's cache has it.

    Raises:
        MissingInputError: it is no id, or the remote cannot be reached within so many seconds or does not have it.
    """
    if not _ID.fullmatch(dataset_id):
        raise MissingInputError(
            f"fetch.minari.dataset: {dataset_id!r} is no folder here and no remote id (namespace/name-v0)"
        )
    cache = Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")
    folder = cache / dataset_id
    if not all((folder / "data" / name).is_file() for name in ("metadata.json", "main_data.hdf5")):
        known = json.loads(_child([_LIST, dataset_id.rpartition("-v")[0]], dataset_id, reach_seconds) or "[]")
        if dataset_id not in known:
            others = f"; it has {', '.join(known)}" if known else ""
            raise MissingInputError(f"fetch.minari.dataset: the remote has no dataset {dataset_id!r}{others}")
        _child([_DOWNLOAD, dataset_id, "again" if folder.exists() else "new"], dataset_id, _DOWNLOAD_SECONDS)
    return folder


def _child(script: list[str], dataset_id: str, seconds: float) -> str:
    """Run a line of Python with arguments in a process of its own and return the last line it printed."""
    what = f"fetch.minari.dataset: the remote of {dataset_id!r}"
    remedy = "check the network, or give a local folder"
    command = [sys.executable, "-c", *script]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise MissingInputError(f"{what} did not answer within {seconds:g} s; {remedy}") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().rpartition("\n")[2].strip()[:300] or f"exit code {error.returncode}"
        raise MissingInputError(f"{what} cannot be used ({reason}); {remedy}") from error
    return done.stdout.strip().rpartition("\n")[2]
