"""200 one-bit flips and 80 truncations over checkpoints and an elite-like folder: every one is noticed before use."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evopipe.errors import DataError
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import dump_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.tensors import dump_tensors

FLIPS, TRUNCATIONS = 100, 40  # of each kind of folder, of which there are two
NEWEST = "step-000000000020"


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"params": torch.randn(4, 900, generator=generator), "moments": torch.zeros(4, 900), "steps": torch.ones(4)}


def flip_a_bit(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def damage_each_in_turn(folder: Path, times: int, damage: Callable[..., None], check: Callable[[Path], None]) -> None:
    """Damage a random file, check, mend; so every round meets exactly one fault."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    draw = random.Random(f"{damage.__name__} {times}")
    for round_ in range(times):
        path = files[round_ % len(files)]
        intact = path.read_bytes()
        damage(path, draw)
        assert path.read_bytes() != intact
        check(path)
        path.write_bytes(intact)


@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, FLIPS), (truncate, TRUNCATIONS)])
def test_checkpoints(tmp_path: Path, damage: Callable[..., None], times: int) -> None:
    store = CheckpointStore(tmp_path / "run")
    for step in (10, 20):
        store.save(step, state(step), {"generation": step, "lr": [0.1, 0.2]})
    expected = state(10)

    def previous_generation_is_taken(path: Path) -> None:
        loaded = store.load()
        assert loaded is not None
        assert (loaded.step, loaded.meta) == (10, {"generation": 10, "lr": [0.1, 0.2]})
        assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in expected.items())
        (warning,) = loaded.warnings
        assert warning.startswith(f"{path}: ")
        assert warning.endswith(": skipped, the checkpoint of step 10 is used instead")

    damage_each_in_turn(tmp_path / "run" / NEWEST, times, damage, previous_generation_is_taken)
    loaded = store.load()
    assert loaded is not None
    assert (loaded.step, loaded.warnings) == (20, ())


@pytest.mark.parametrize(("damage", "times"), [(flip_a_bit, FLIPS), (truncate, TRUNCATIONS)])
def test_elite(tmp_path: Path, damage: Callable[..., None], times: int) -> None:
    folder = tmp_path / "models" / "elite"
    files = {
        "weights.safetensors": dump_tensors(state(1)),
        "policy.json": dump_json({"algo": "dqn", "hidden": [64, 64], "lineage": list(range(50))}, "policy"),
        "program/policy.pt2": random.Random(1).randbytes(5000),
        "README.md": b"# A model card\n",
    }
    write_folder(folder, files)

    def refused_and_named(path: Path) -> None:
        with pytest.raises(DataError) as caught:
            read_folder(folder)
        assert str(caught.value).startswith(f"{path}: ")
        assert str(caught.value).endswith(": restore it with `dvc checkout`, or run the stage that writes it again")

    damage_each_in_turn(folder, times, damage, refused_and_named)
    assert read_folder(folder) == files


def test_both_generations_damaged(tmp_path: Path) -> None:
    """With no intact generation left nothing is used, and every damaged file is named."""
    store = CheckpointStore(tmp_path / "run")
    draw = random.Random(5)
    for step in (10, 20):
        store.save(step, state(step), {})
    damaged = [tmp_path / "run" / f"step-{step:012d}" / "state.safetensors" for step in (10, 20)]
    for path in damaged:
        flip_a_bit(path, draw)
    with pytest.raises(DataError) as caught:
        store.load()
    assert all(str(path) in str(caught.value) for path in damaged)
    assert str(caught.value).startswith(f"{tmp_path / 'run'}: none of its 2 checkpoints is intact (")
    assert str(caught.value).endswith(": delete the folder to start over")
