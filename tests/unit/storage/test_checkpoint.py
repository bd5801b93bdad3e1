"""Checkpoints: exact state back, the previous one where the newest is damaged, nothing lost to kills or full disks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from evopipe.errors import DataError
from evopipe.storage import checkpoint
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.folders import write_folder

META = {"generation": 3, "lr": 0.1 + 0.2, "key": 2**127 + 1, "history": [1, None, True, "x"], "nested": {"a": {}}}


def state(step: int, size: int = 50) -> dict[str, torch.Tensor]:
    return {"params": torch.full((2, size), step / 3), "steps": torch.full((2,), step)}


def holds(store: CheckpointStore, step: int) -> bool:
    loaded = store.load()
    return loaded is not None and loaded.step == step and torch.equal(loaded.tensors["params"], state(step)["params"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_nothing_saved(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    assert store.load() is None
    store.clear()
    assert names(tmp_path) == []


def test_round_trip(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "run").save(1234, state(1234), META)
    assert names(tmp_path / "run") == ["step-000000001234"]
    loaded = CheckpointStore(tmp_path / "run").load()
    assert loaded is not None
    assert (loaded.step, loaded.meta, loaded.warnings) == (1234, META, ())
    assert list(loaded.tensors) == ["params", "steps"]
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in state(1234).items())


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    for name in "ab":
        CheckpointStore(tmp_path / name).save(1, state(1), META)
    left, right = ({p.name: p.read_bytes() for p in (tmp_path / name).rglob("*.*")} for name in "ab")
    assert left == right


def test_keep_and_order(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    for step in (9, 10, 100, 10**12 - 1, 10**12):
        store.save(step, state(step), {})
    assert names(tmp_path / "run") == ["step-1000000000000", "step-999999999999"]
    assert holds(store, 10**12)


def test_equal_step_replaces(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(5, state(4), {"a": 1})
    store.save(5, state(5), {"a": 2})
    assert names(tmp_path / "run") == ["step-000000000005"]
    loaded = store.load()
    assert loaded is not None
    assert loaded.meta == {"a": 2}
    assert holds(store, 5)


@pytest.mark.parametrize("file", ["state.safetensors", "meta.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink(), lambda path: os.truncate(path, 20)])
def test_damaged_newest_is_skipped_and_named(tmp_path: Path, file: str, damage: object) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(10, state(10), {})
    store.save(20, state(20), {})
    damage(tmp_path / "run" / "step-000000000020" / file)  # type: ignore[operator]
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 10
    (warning,) = loaded.warnings
    assert warning.startswith(f"{tmp_path}/run/step-000000000020/{file}: ")
    assert warning.endswith(": skipped, the checkpoint of step 10 is used instead")


def test_a_damaged_one_is_not_counted_as_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(10, state(10), {})
    store.save(20, state(20), {})
    flip(tmp_path / "run" / "step-000000000020" / "meta.json")
    assert holds(store, 10)
    store.save(25, state(25), {})
    assert names(tmp_path / "run") == ["step-000000000010", "step-000000000025"]
    assert holds(store, 25)


def test_a_step_that_was_damaged_and_is_saved_anew_is_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(10, state(10), {})
    store.save(20, state(20), {})
    flip(tmp_path / "run" / "step-000000000020" / "meta.json")
    assert holds(store, 10)
    store.save(20, state(20), {})
    assert holds(store, 20)


def test_checkpoints_of_a_future_left_behind_go(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(20, state(20), {})
    store.save(15, state(15), {})
    assert names(tmp_path / "run") == ["step-000000000015"]
    assert holds(store, 15)


def test_all_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    for step in (10, 20):
        store.save(step, state(step), {})
        flip(tmp_path / "run" / f"step-{step:012d}" / "state.safetensors")
    with pytest.raises(DataError) as caught:
        store.load()
    text = str(caught.value)
    assert text.startswith(
        f"{tmp_path}/run: none of its 2 checkpoints is intact ({tmp_path}/run/step-000000000020/state"
    )
    assert "step-000000000010/state.safetensors: is damaged" in text
    assert text.endswith("): delete the folder to start over")
    assert caught.value.exit_code == 65


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(10, state(10), {})
    shutil.copytree(tmp_path / "run" / "step-000000000010", tmp_path / "run" / "step-000000000011")
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 10
    assert "step-000000000011/meta.json: does not describe step 11: skipped" in loaded.warnings[0]


def test_foreign_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "run" / "step-000000000001", {"other": b""})
    with pytest.raises(DataError, match=r"meta\.json: is not in the folder's manifest"):
        CheckpointStore(tmp_path / "run").load()
    write_folder(tmp_path / "run" / "step-000000000001", {"meta.json": b"[]", "state.safetensors": b""})
    with pytest.raises(DataError, match=r"meta\.json: does not describe step 1"):
        CheckpointStore(tmp_path / "run").load()


def test_leftovers_are_cleaned_at_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(1, state(1), {})
    shutil.copytree(tmp_path / "run" / "step-000000000001", tmp_path / "run" / ".tmp-12-ab")
    os.rename(tmp_path / "run" / "step-000000000001", tmp_path / "run" / ".old-step-000000000001")
    assert holds(store, 1)
    assert names(tmp_path / "run") == ["step-000000000001"]


def test_clear_removes_everything(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(1, state(1), {})
    store.save(2, state(2), {})
    (tmp_path / "run" / ".tmp-12-ab").mkdir()
    store.clear()
    assert names(tmp_path) == []
    assert store.load() is None


def test_clear_removes_the_newest_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is interrupted, what is left is what a resumed run should go on from, or nothing."""
    store, rename, left = CheckpointStore(tmp_path / "run"), os.rename, []
    for step in (1, 2):
        store.save(step, state(step), {})

    def watched(source: Path, target: Path) -> None:
        left.append([name for name in names(tmp_path / "run") if name.startswith("step-")])
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    store.clear()
    assert [[int(name[5:]) for name in each] for each in left] == [[1, 2], [2]]


def test_what_cannot_be_saved_leaves_the_rest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(1, state(1), {})
    with pytest.raises(DataError, match=r"step-000000000002/meta\.json: meta\.fitness\[0\] is -inf, which JSON cannot"):
        store.save(2, state(2), {"fitness": [float("-inf")]})
    with pytest.raises(DataError, match=r"tensor 'a': torch\.complex64"):
        store.save(2, {"a": torch.zeros(1, dtype=torch.complex64)}, {})
    assert names(tmp_path / "run") == ["step-000000000001"]
    assert holds(store, 1)


# --- Real processes ---------------------------------------------------------------------------------------------------


def python(script: str, *arguments: str, wrapper: tuple[str, ...] = ()) -> list[str]:
    return [*wrapper, sys.executable, "-c", script, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(checkpoint.__file__).parents[2]), "OMP_NUM_THREADS": "1"}


FULL = """
import sys
from pathlib import Path
import torch
from evopipe.errors import DiskError
from evopipe.storage.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]) / "run")
for step in (1, 2):
    store.save(step, {"a": torch.full((50_000,), float(step))}, {"step": step})
for size in (400_000, 170_000):
    try:
        store.save(3, {"a": torch.zeros(size)}, {})
    except DiskError as error:
        print(error)
    loaded = store.load()
    assert (loaded.step, loaded.meta, loaded.warnings) == (2, {"step": 2}, ())
    assert torch.equal(loaded.tensors["a"], torch.full((50_000,), 2.0))
store.save(3, {"a": torch.zeros(50_000)}, {})
print(sorted(path.name for path in store.folder.iterdir()))
"""


@pytest.mark.thorough
def test_full_disk_keeps_the_previous_checkpoints(tmp_path: Path) -> None:
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"')
    probe = [*wrapper, str(tmp_path), "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    command = python(FULL, str(tmp_path), wrapper=(*wrapper, str(tmp_path)))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    *errors, left = done.stdout.splitlines()
    assert len(errors) == 2
    assert all("step-000000000003: cannot be written, the disk is full (No space left" in error for error in errors)
    assert left == "['step-000000000002', 'step-000000000003']"


READ_ONLY = """
import os, sys
from pathlib import Path
import torch
from evopipe.errors import DiskError
from evopipe.storage.checkpoint import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
loaded = store.load()
print(loaded.step, *loaded.warnings)
for attempt in (lambda: store.save(3, {"a": torch.zeros(2)}, {}), store.clear):
    try:
        attempt()
    except DiskError as error:
        print(error)
"""


@pytest.mark.thorough
def test_read_only_folder_loads_and_says_why_it_cannot_save(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    store.save(2, state(2), {})
    (tmp_path / "run" / ".tmp-1-x").mkdir()
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c", mount, str(tmp_path))
    if (
        shutil.which("unshare") is None
        or subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting is not permitted here")
    command = python(READ_ONLY, str(tmp_path / "run"), wrapper=wrapper)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded, saved, cleared = done.stdout.splitlines()
    assert loaded.startswith(f"2 {tmp_path}/run: cannot be written, the file system is read-only")
    assert saved.startswith(f"{tmp_path}/run/step-000000000003: cannot be written, the file system is read-only")
    assert cleared.startswith(f"{tmp_path}/run/step-000000000002: cannot be written, the file system is read-only")
    assert holds(store, 2)


# Forking from one prepared process spares the import of torch for each of the killed writers.
WRITERS = """
import os, sys
from pathlib import Path
import torch
from evopipe.storage.checkpoint import CheckpointStore
torch.set_num_threads(1)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        store = CheckpointStore(Path(sys.argv[1]))
        step = int(line)
        while True:
            step += 1
            store.save(step, {f"t{i}": torch.full((60_000,), float(step + i)) for i in range(4)}, {"step": step})
            os.write(1, b"saved %d\\n" % step)
    print("pid", child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


@pytest.mark.thorough
def test_killed_in_the_middle_of_saves(tmp_path: Path) -> None:
    """20 kills at random instants, or more until one hits a save: what `save` acknowledged is there, intact, and no
    temporary outlives a load."""
    draw = random.Random(7)
    folder = tmp_path / "run"
    last = 0
    interrupted = 0
    with subprocess.Popen(
        python(WRITERS, str(folder)), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for turn in range(200):
            if turn >= 20 and last and interrupted:
                break
            writers.stdin.write(f"{last}\n")
            writers.stdin.flush()
            acknowledged = last
            while not (line := writers.stdout.readline()).startswith("pid"):
                acknowledged = int(line.split()[1])
            time.sleep(draw.uniform(0.0, 0.06) * (1 + turn // 20))
            os.kill(int(line.split()[1]), signal.SIGKILL)
            while not (line := writers.stdout.readline()).startswith("gone"):
                acknowledged = int(line.split()[1])
            interrupted += any(path.name.startswith(".") for path in folder.glob(".*"))
            loaded = CheckpointStore(folder).load()
            if loaded is None:
                assert acknowledged == 0
                continue
            assert loaded.step in (acknowledged, acknowledged + 1)
            assert (loaded.meta, loaded.warnings) == ({"step": loaded.step}, ())
            for i in range(4):
                assert torch.equal(loaded.tensors[f"t{i}"], torch.full((60_000,), float(loaded.step + i)))
            assert all(name.startswith("step-") for name in names(folder))
            last = loaded.step
        writers.stdin.close()
    assert last > 0
    assert interrupted > 0
