"""Datasets of tasks, and their registry in the project's folder."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evopipe.errors import DataError, MissingInputError, UsageError, need_package, suggestion
from evopipe.storage.files import read_bytes, write_text
from evopipe.storage.keys import dvc_root

REGISTRY = Path("data/agents")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


class Tasks:
    """A dataset for agents: a list of tasks, each a mapping. `name` and `split` are the dataset's names in the
    registry; None for a dataset that is not registered."""

    def __init__(self, data: Sequence[Mapping[str, Any]], name: str | None = None, split: str | None = None) -> None:
        self.data = [dict(row) if isinstance(row, Mapping) else row for row in data]
        for i, row in enumerate(self.data):
            if not isinstance(row, dict):
                raise DataError(f"dataset {name or ''}: row {i} is of type {type(row).__name__}, expected a mapping")
        self.name, self.split = name, split

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.data[i]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.data)

    def get_data(self) -> list[dict[str, Any]]:
        return self.data

    def repeat(self, n: int) -> Tasks:
        """Return a dataset with every task `n` times, the copies of a task next to each other."""
        return Tasks([row for row in self.data for _ in range(n)], self.name, self.split)

    def shuffle(self, seed: int = 0) -> Tasks:
        order = np.random.default_rng(seed).permutation(len(self.data))
        return self.select(order.tolist())

    def select(self, index: Sequence[int]) -> Tasks:
        return Tasks([self.data[i] for i in index], self.name, self.split)

    def get_data_path(self) -> str | None:
        """Return the path of the dataset's file in the registry; None if the registry does not have it."""
        if self.name is None or self.split is None:
            return None
        path = DatasetRegistry.path(self.name, self.split)
        return str(path) if path.exists() else None

    get_verl_data_path = get_data_path

    @classmethod
    def load_data(cls, path: str | Path) -> Tasks:
        """Read a dataset from a file with one task a row: `.json` (a list), `.jsonl`, `.csv`, or `.parquet` (needs the
        extra `language`).

        Raises:
            MissingInputError: the file does not exist, or the extra is not installed.
            DataError: the file cannot be read in its format, or does not hold a list of mappings.
        """
        path = Path(path)
        if path.suffix == ".parquet":
            need_package("datasets", "language", str(path))
            import datasets

            return cls([dict(row) for row in datasets.Dataset.from_parquet(str(path))])
        try:
            text = read_bytes(path).decode("utf-8")
            if path.suffix == ".csv":
                return cls(list(csv.DictReader(io.StringIO(text))))
            if path.suffix == ".jsonl":
                return cls([json.loads(line) for line in text.splitlines() if line.strip()])
            rows = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}: cannot be read ({error}); it must be .json, .jsonl, .csv or .parquet") from None
        if not isinstance(rows, list):
            raise DataError(f"{path}: holds {type(rows).__name__}, expected a list of rows")
        return cls(rows)


class DatasetRegistry:
    """A registry of datasets by name and split. Its files are `data/agents/<name>/<split>.jsonl` in the project's
    folder."""

    @staticmethod
    def path(name: str, split: str = "default", folder: Path | None = None) -> Path:
        for what, value in (("name", name), ("split", split)):
            if not _NAME.fullmatch(value):
                raise UsageError(f"dataset: the {what} {value!r} must be of letters, digits, '.', '_' and '-'")
        return (folder or dvc_root()) / REGISTRY / name / f"{split}.jsonl"

    @classmethod
    def register_dataset(cls, name: str, data: Any, split: str = "default") -> Tasks:
        """Write a split of the dataset `name` to the registry, and return it as `Tasks`. `data` is a list of mappings
        or a Hugging Face dataset."""
        made = Tasks([dict(row) for row in data], name, split)
        path = cls.path(name, split)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in made.data]
        write_text(path, "\n".join([*lines, ""]))
        return made

    @classmethod
    def load_dataset(cls, name: str, split: str = "default") -> Tasks:
        """Read a split of a dataset from the registry.

        Raises:
            MissingInputError: the registry has no such dataset or split; the message suggests the most similar name.
        """
        path = cls.path(name, split)
        if not path.exists():
            known = cls.get_dataset_splits(name) or cls.get_dataset_names()
            near = suggestion(split if cls.get_dataset_splits(name) else name, known) if known else ""
            raise MissingInputError(f"{path}: no dataset {name!r} with the split {split!r}{near}")
        return Tasks(Tasks.load_data(path).data, name, split)

    @classmethod
    def get_dataset_names(cls) -> list[str]:
        top = dvc_root() / REGISTRY
        return sorted(path.name for path in top.iterdir() if path.is_dir()) if top.is_dir() else []

    @classmethod
    def get_dataset_splits(cls, name: str) -> list[str]:
        top = dvc_root() / REGISTRY / name
        return sorted(path.stem for path in top.glob("*.jsonl")) if top.is_dir() else []

    @classmethod
    def dataset_exists(cls, name: str, split: str | None = None) -> bool:
        splits = cls.get_dataset_splits(name)
        return split in splits if split is not None else bool(splits)

    @classmethod
    def remove_dataset_split(cls, name: str, split: str) -> bool:
        """Delete a split of the dataset `name`; return whether the split existed."""
        path = cls.path(name, split)
        if not path.exists():
            return False
        path.unlink()
        return True

    @classmethod
    def remove_dataset(cls, name: str) -> bool:
        """Delete all splits of the dataset `name`; return whether the dataset existed."""
        folder = cls.path(name).parent
        if not folder.is_dir():
            return False
        shutil.rmtree(folder)
        return True
