"""Checkpoints on disk: each save is a new folder, and a resumed run starts from the newest intact one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.errors import DataError, DiskError, MissingInputError
from evopipe.storage.files import RESTORE, delete, dump_json, parse_json, translating
from evopipe.storage.folders import clean_temporaries, read_folder, remove_folder, write_folder
from evopipe.storage.tensors import load_tensors, tensor_pieces

if TYPE_CHECKING:
    import torch

_KEPT = 2  # so the run survives damage to the newest
_NAME = re.compile(r"step-(\d{12,})")
_TENSORS = "state.safetensors"
_META = "meta.json"


@dataclass(frozen=True)
class _Loaded:
    step: int  # the number given to `save`
    tensors: dict[str, torch.Tensor]  # on the CPU, each with its own writable memory
    meta: dict[str, Any]  # plain JSON values, floats exact
    warnings: tuple[str, ...]  # a sentence for each newer checkpoint that was damaged, naming its file


class CheckpointStore:
    """A folder with the checkpoints of one run; the first save makes the folder.

    Only one process may use the folder at a time: hold a `RunLock` meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """Save a checkpoint durably as number `step`, then remove older checkpoints, so that two remain.

        A checkpoint of the same step is replaced. Checkpoints of later steps, which exist if the run went back to an
        earlier step, and checkpoints that `load` found damaged are removed too. `tensors` holds the state's tensors by
        name, and `meta` is JSON data.

        Raises:
            DataError: a value or tensor cannot be saved.
            DiskError: writing failed; the old checkpoints are unchanged.
        """
        path = self.folder / f"step-{step:012d}"
        about = dump_json({"meta": dict(meta), "step": step}, str(path / _META))
        write_folder(path, {_META: about, _TENSORS: tensor_pieces(tensors)})
        self._damaged.discard(path)
        usable = [each for number, each in self._saved() if number <= step and each not in self._damaged]
        for _, each in self._saved():
            if each not in usable[-_KEPT:]:
                remove_folder(each)

    def load(self) -> _Loaded | None:
        """Return the newest intact checkpoint; None if there are no checkpoints.

        The result has the attributes `step`, `tensors` (on the CPU, by name) and `meta`, as given to `save`, and
        `warnings`: a sentence for each newer checkpoint that was damaged and skipped.

        Raises:
            DataError: there are checkpoints, but all are damaged.
        """
        warnings: list[str] = []
        try:
            clean_temporaries(self.folder)
        except DiskError as error:  # reading must work where writing does not
            warnings.append(str(error))
        faults: list[str] = []
        for step, path in reversed(self._saved()):
            try:
                files = read_folder(path, only=(_META, _TENSORS))
                about = parse_json(files[_META], str(path / _META))
                meta = about.get("meta") if isinstance(about, dict) and about.get("step") == step else None
                if not isinstance(meta, dict):
                    raise DataError(f"{path / _META}: does not describe step {step}")
                tensors = load_tensors(files[_TENSORS], str(path / _TENSORS))
            except (DataError, MissingInputError) as error:
                self._damaged.add(path)
                faults.append(str(error).removesuffix(f": {RESTORE}"))
            else:
                skipped = [f"{fault}: skipped, the checkpoint of step {step} is used instead" for fault in faults]
                return _Loaded(step, tensors, meta, (*warnings, *skipped))
        if faults:
            raise DataError(
                f"{self.folder}: none of its {len(faults)} checkpoints is intact ({'; '.join(faults)}): "
                "delete the folder to start over"
            )
        return None

    def described(self) -> list[dict[str, Any]] | None:
        """Return the JSON data of all checkpoints, the oldest first, without their tensors; None if one of them cannot
        be read."""
        try:
            files = [read_folder(path, only=(_META,))[_META] for _, path in self._saved()]
            return [parse_json(data, _META)["meta"] for data in files]
        except (DataError, MissingInputError, KeyError, TypeError):
            return None

    def clear(self) -> None:
        """Remove every checkpoint, the newest last, and the folder.

        Raises:
            DiskError: a file cannot be removed.
        """
        for _, path in self._saved():
            remove_folder(path)
        with translating(self.folder):
            delete(self.folder)

    def _saved(self) -> list[tuple[int, Path]]:
        """Return steps and folders, oldest first."""
        entries = self.folder.iterdir() if self.folder.is_dir() else ()
        matches = ((_NAME.fullmatch(path.name), path) for path in entries)
        return sorted((int(match[1]), path) for match, path in matches if match)
