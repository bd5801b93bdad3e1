"""Atomic files: exact bytes, typed errors with their sentences, real full and read-only disks."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from disks import mounted, run_script
from evopipe.errors import DataError, DiskError, MissingInputError
from evopipe.storage.files import (
    publishing,
    read_bytes,
    read_json,
    translating,
    write_bytes,
    write_csv,
    write_json,
    write_text,
)
from evopipe.storage.folders import write_folder


def test_writes_replace_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    write_bytes(path, b"old")
    write_bytes(path, [b"ne", memoryview(b"w"), bytearray(b"!")])
    assert read_bytes(path) == b"new!"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(b"cached")
    link = tmp_path / "link"
    link.symlink_to(cache)
    write_bytes(link, b"new")
    assert (cache.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"cached", b"new", False)


def test_json_is_deterministic_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    value = {"b": [0.1 + 0.2, -0.0, 5e-324, 2**200, None, True], "a": {"é": "ü"}}
    write_json(path, value)
    assert path.read_text("utf-8").startswith('{\n  "a": {\n    "é": "ü"\n  },\n  "b": [\n    0.30000000000000004,\n')
    assert path.read_bytes().endswith(b"}\n")
    back = read_json(path)
    assert back == value
    assert math.copysign(1, back["b"][1]) == -1
    first = path.read_bytes()
    write_json(path, dict(reversed(value.items())))
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": [1, math.nan]}, "a[1] is nan, which JSON cannot hold: write null instead"),
        (math.inf, "the value is inf, which JSON cannot hold: write null instead"),
        ({"a": {3: 4}}, "a has the key 3: JSON keys must be text"),
        (
            {"a": {1, 2}},
            "cannot be written as JSON (Object of type set is not JSON serializable): use plain values only",
        ),
        ("\ud800", r"'\ud800' has no UTF-8 form: remove it from the text"),
    ],
)
def test_json_refuses_what_it_cannot_hold(tmp_path: Path, value: object, sentence: str) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(DataError) as caught:
        write_json(path, value)
    assert str(caught.value) == f"{path}: {sentence}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": NaN}', b"[1e999]", b"\xff", b"[" * 100_000])
def test_broken_json_is_a_data_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json: is not valid JSON \(.*\): restore it with `dvc checkout`, or run"):
        read_json(path)


def test_json_that_holds_itself(tmp_path: Path) -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(DataError, match=r"x\.json: cannot be written as JSON \("):
        write_json(tmp_path / "x.json", value)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    write_csv(path, ["step", "fitness", "note"], [[1, 0.1, 'a "b", c'], (2, math.nan, None)])
    assert path.read_bytes() == b'step,fitness,note\n1,0.1,"a ""b"", c"\n2,nan,\n'


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "file", tmp_path / "gone"):
        with pytest.raises(MissingInputError) as caught:
            read_bytes(path)
        assert str(caught.value) == f"{path}: is not there: run the stage that writes it, or correct the path"
        assert caught.value.exit_code == 66


def test_reading_a_folder_or_a_pipe_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: is not a regular file"):
        read_bytes(tmp_path / "pipe")
    with pytest.raises(DataError, match="is not a regular file: restore it with"):
        read_bytes(tmp_path)


def test_what_fails_half_way_leaves_no_trace(tmp_path: Path) -> None:
    """Neither of the block's own errors, nor of a rename that the system refuses."""
    (tmp_path / "in the way").mkdir()
    (tmp_path / "in the way" / "kept").write_bytes(b"kept")
    with pytest.raises(ZeroDivisionError), publishing(tmp_path / "file") as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    with pytest.raises(DiskError, match="in the way: cannot be written, a folder is in its place"):
        write_bytes(tmp_path / "in the way", b"whole")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in the way", "kept"]


def test_text_is_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "π\n")
    assert (tmp_path / "x").read_bytes() == b"\xcf\x80\n"


# --- Disks that refuse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_bytes, lambda path, data: write_folder(path, {"f": data})])
def test_a_file_in_the_place_of_a_folder(tmp_path: Path, write: object) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    path = tmp_path / "file" / "below" / "x"
    with pytest.raises(DiskError) as caught:
        write(path, b"data")  # type: ignore[operator]
    assert caught.value.exit_code == 74
    assert str(caught.value).startswith(f"{path.parent}: cannot be written, a part of this path is a file (")
    assert "move that file away, or work in another folder; what was saved before is unchanged" in str(caught.value)
    assert (tmp_path / "file").read_bytes() == b"kept"


def test_the_sentence_of_every_system_error(tmp_path: Path) -> None:
    expected = {
        errno.ENOSPC: "the disk is full",
        errno.EDQUOT: "the disk quota is used up",
        errno.EFBIG: "the file would exceed the size limit",
        errno.EROFS: "the file system is read-only",
        errno.EACCES: "permission is denied",
        errno.EPERM: "the operation is not permitted",
        errno.EIO: "the device reports an input/output error",
        errno.ENAMETOOLONG: os.strerror(errno.ENAMETOOLONG),
    }
    for number, reason in expected.items():
        with pytest.raises(DiskError) as caught, translating(tmp_path):
            raise OSError(number, os.strerror(number))
        assert str(caught.value).startswith(f"{tmp_path}: cannot be written, {reason}")


FILL = """
import sys
from pathlib import Path
from evopipe.errors import DiskError
from evopipe.storage.files import write_bytes, read_bytes
from evopipe.storage.folders import write_folder, read_folder
folder = Path(sys.argv[1])
write_bytes(folder / "file", b"old")
write_folder(folder / "out", {"a": b"old", "b": b"old"})
for write in (
    lambda: write_bytes(folder / "file", bytes(3_000_000)),
    lambda: write_folder(folder / "out", {"a": b"new", "b": bytes(3_000_000)}),
):
    try:
        write()
    except DiskError as error:
        print(error)
assert read_bytes(folder / "file") == b"old"
assert read_folder(folder / "out") == {"a": b"old", "b": b"old"}
print(sorted(path.name for path in folder.iterdir()))
"""


def test_a_full_disk_keeps_the_old_content(tmp_path: Path) -> None:
    done = mounted('mount -t tmpfs -o size=1m tmpfs "$0"', tmp_path, FILL, str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second, left = done.stdout.splitlines()
    why = "cannot be written, the disk is full (No space left on device): free some space and run again"
    assert first == f"{tmp_path / 'file'}: {why}; what was saved before is unchanged"
    assert second == f"{tmp_path / 'out'}: {why}; what was saved before is unchanged"
    assert left == "['file', 'out']"


def test_a_file_size_limit_keeps_the_old_content(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
    done = run_script(limit + FILL, str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second, left = done.stdout.splitlines()
    assert "file: cannot be written, the file would exceed the size limit (File too large): raise the limit" in first
    assert "out: cannot be written, the file would exceed the size limit (File too large): raise the limit" in second
    assert left == "['file', 'out']"


def test_a_read_only_folder(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from evopipe.errors import DiskError
from evopipe.storage.files import write_bytes, read_bytes
from evopipe.storage.folders import write_folder, read_folder
from evopipe.storage.lock import RunLock
folder = Path(sys.argv[1])
for write in (
    lambda: write_bytes(folder / "file", b"x"),
    lambda: write_folder(folder / "below" / "out", {"a": b"x"}),
    lambda: RunLock(folder / "lock").__enter__(),
):
    try:
        write()
    except DiskError as error:
        print(error)
"""
    done = mounted('mount -t tmpfs -o ro tmpfs "$0"', tmp_path, script, str(tmp_path))
    assert done.returncode == 0, done.stderr
    why = (
        "cannot be written, the file system is read-only (Read-only file system): mount it writable, or work in another"
    )
    lines = done.stdout.splitlines()
    assert [line.split(f": {why} folder; ")[0] for line in lines] == [
        f"{tmp_path}/file",
        f"{tmp_path}/below",
        f"{tmp_path}/lock",
    ]


def test_storage_does_not_import_torch() -> None:
    done = run_script("import sys, evopipe.storage.lock, evopipe.storage.checkpoint; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_a_device_or_a_pipe_is_no_file_to_replace(tmp_path: Path) -> None:
    """As `/dev/null` is: who may write to its folder would take it from everybody."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiskError, match="pipe: this is a device or a pipe, not a file: choose another name"):
        write_json(tmp_path / "pipe", {})
    assert (tmp_path / "pipe").is_fifo()
    assert [*tmp_path.iterdir()] == [tmp_path / "pipe"]
