"""Training state on disk: each save is a new folder, the newest intact one is what a resumed run starts from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evopipe.errors import DataError, DiskError, MissingInputError, UsageError
from evopipe.storage.files import RESTORE, Content, delete, dump_json, parse_json, translating
from evopipe.storage.folders import clean_temporaries, read_folder, remove_folder, write_folder
from evopipe.storage.tensors import load_tensors, tensor_pieces

if TYPE_CHECKING:
    import torch

_NAME = re.compile(r"step-(\d{12,})")
_TENSORS = "state.safetensors"
_META = "meta.json"


@dataclass(frozen=True)
class Loaded:
    """What `CheckpointStore.load` found.

    Attributes:
        step: the number given to `save`.
        tensors: by name, on the CPU, each with its own writable memory.
        meta: plain JSON values, floats exact.
        warnings: one sentence for each newer checkpoint that was damaged, naming its file.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    warnings: tuple[str, ...]


class CheckpointStore:
    """The checkpoints of one run in one folder.

    One process at a time: hold a `RunLock` while you use it.

    Args:
        folder: where they lie; created at the first save. Nothing else should lie there.
        keep: how many to keep, at least 1. With 2 the run survives damage to the newest.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 1:
            raise UsageError(f"keep={keep}: at least one checkpoint must be kept")
        self.folder = folder
        self.keep = keep
        self._damaged: set[Path] = set()

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """Save durably, then remove what is no longer needed.

        Removed are the oldest beyond `keep`, checkpoints of a later step (they belong to a future that this run left
        behind) and those that `load` found damaged.

        Args:
            step: a count that grows from save to save; an equal one replaces.
            tensors: the state's tensors, any device. Contiguous CPU tensors are written without a copy.
            meta: plain JSON values (no NaN or infinity: keep such numbers in a tensor).

        Raises:
            UsageError: the step is negative.
            DataError: a tensor or a value cannot be saved.
            DiskError: the disk is full or read-only; the checkpoints from before are unchanged.
        """
        if step < 0:
            raise UsageError(f"step={step}: a checkpoint's step cannot be negative")
        path = self.folder / f"step-{step:012d}"
        about = dump_json({"meta": dict(meta), "step": step}, str(path / _META))
        files: dict[str, Content] = {_META: about, _TENSORS: tensor_pieces(tensors)}
        write_folder(path, files)
        self._damaged.discard(path)
        self._prune(step)

    def load(self) -> Loaded | None:
        """Return the newest intact checkpoint, or None where none was ever saved.

        Raises:
            DataError: there are checkpoints, and all of them are damaged.
        """
        warnings: list[str] = []
        try:
            clean_temporaries(self.folder)
        except DiskError as error:  # reading must work where writing does not
            warnings.append(str(error))
        self._damaged.clear()
        faults: list[str] = []
        for step, path in reversed(self._saved()):
            try:
                tensors, meta = _read(step, path)
            except (DataError, MissingInputError) as error:
                self._damaged.add(path)
                faults.append(str(error).removesuffix(f": {RESTORE}"))
            else:
                skipped = [f"{fault}: skipped, the checkpoint of step {step} is used instead" for fault in faults]
                return Loaded(step, tensors, meta, (*warnings, *skipped))
        if faults:
            raise DataError(
                f"{self.folder}: none of its {len(faults)} checkpoints is intact ({'; '.join(faults)}): "
                "delete the folder to start over"
            )
        return None

    def clear(self) -> None:
        """Remove the folder and every checkpoint in it, the newest last.

        Raises:
            DiskError: something cannot be removed.
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

    def _prune(self, newest: int) -> None:
        usable = [path for step, path in self._saved() if step <= newest and path not in self._damaged]
        kept = set(usable[-self.keep :])
        for _, path in self._saved():
            if path not in kept:
                remove_folder(path)
        self._damaged.clear()


def _read(step: int, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    files = read_folder(path, only=(_META, _TENSORS))
    document = parse_json(files[_META], str(path / _META))
    if not isinstance(document, dict) or document.get("step") != step or not isinstance(document.get("meta"), dict):
        raise DataError(f"{path / _META}: does not describe step {step}")
    return load_tensors(files[_TENSORS], str(path / _TENSORS)), document["meta"]
