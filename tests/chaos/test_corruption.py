"""Flipped bits and truncations over checkpoints, an elite-like folder and transitions: all are noticed before use."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from evopipe.data.transitions import Transitions, read_transitions, write_transitions
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


@pytest.mark.parametrize("places", [300, pytest.param(None, marks=pytest.mark.slow)])
def test_transitions(tmp_path: Path, places: int | None) -> None:
    """A bit of many bytes, or every bit: HDF5 itself reads zeros after some flips, and takes 21 GB after others."""
    path, steps, draw = tmp_path / "transitions.h5", 300, np.random.default_rng(0)
    obs, reward = draw.normal(size=(steps + 1, 3)).astype(np.float32), draw.normal(size=steps).astype(np.float32)
    ends = np.arange(steps) % 50 == 49
    made = Transitions(obs[:-1], np.arange(steps) % 2, reward, ends, ~ends, obs[1:], np.arange(steps) // 50)
    write_transitions(path, made, {"mean": 0.5})

    def refused() -> None:
        with pytest.raises(DataError) as caught:
            read_transitions(path)
        assert str(caught.value).startswith(
            f"{path}: is damaged or not written by evopipe, its checksum does not match"
        )

    size, order = path.stat().st_size, random.Random(1)
    flips = [(place, bit) for place in range(size) for bit in range(8)]
    if places is not None:  # and two that once went unnoticed
        flips = [(1589, 0), (14532, 0), *order.sample(flips, places)]
    with open(path, "r+b", buffering=0) as file:
        for place, bit in flips:
            (intact,) = os.pread(file.fileno(), 1, place)
            os.pwrite(file.fileno(), bytes([intact ^ 1 << bit]), place)
            refused()
            os.pwrite(file.fileno(), bytes([intact]), place)
        np.testing.assert_array_equal(read_transitions(path).obs, obs[:-1])
        for shorter in sorted(order.sample(range(size), TRUNCATIONS), reverse=True):
            file.truncate(shorter)
            refused()


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
