"""Atomic files and folders: exact bytes, typed errors with their sentences, real full and read-only disks."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from evopipe.errors import DataError, DiskError, EvopipeError, MissingInputError, UsageError
from evopipe.storage import safeio

FILES = {"weights.bin": b"\x00\x01\x02" * 50, "deep/er/notes.txt": b"hello", "empty": b""}


def run_script(script: str, *arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with this project importable."""
    source = str(Path(safeio.__file__).parents[2])
    return subprocess.run(
        [*wrapper, sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def mounted(options: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a tmpfs on `folder`, in a mount namespace that vanishes with it; skip where not permitted."""
    wrapper = ("unshare", "--mount", "--map-root-user", "sh", "-c")
    mount = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("mounting needs unshare")
    if subprocess.run([*wrapper, mount, str(folder), "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    return run_script(script, str(folder), wrapper=(*wrapper, mount, str(folder)))


# --- Single files -----------------------------------------------------------------------------------------------------


def test_writes_replace_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    safeio.write_bytes(path, b"old")
    safeio.write_bytes(path, [b"ne", memoryview(b"w"), bytearray(b"!")])
    assert safeio.read_bytes(path) == b"new!"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(b"cached")
    link = tmp_path / "link"
    link.symlink_to(cache)
    safeio.write_bytes(link, b"new")
    assert (cache.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"cached", b"new", False)


def test_json_is_deterministic_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    value = {"b": [0.1 + 0.2, -0.0, 5e-324, 2**200, None, True], "a": {"é": "ü"}}
    safeio.write_json(path, value)
    assert path.read_text("utf-8").startswith('{\n  "a": {\n    "é": "ü"\n  },\n  "b": [\n    0.30000000000000004,\n')
    assert path.read_bytes().endswith(b"}\n")
    back = safeio.read_json(path)
    assert back == value
    assert math.copysign(1, back["b"][1]) == -1
    first = path.read_bytes()
    safeio.write_json(path, dict(reversed(value.items())))
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
        safeio.write_json(path, value)
    assert str(caught.value) == f"{path}: {sentence}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": NaN}', b"[1e999]", b"\xff", b"[" * 100_000])
def test_broken_json_is_a_data_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.json: is not valid JSON \(.*\): restore it with `dvc checkout`, or run"):
        safeio.read_json(path)


def test_json_that_holds_itself(tmp_path: Path) -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(DataError, match=r"x\.json: cannot be written as JSON \("):
        safeio.write_json(tmp_path / "x.json", value)


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    safeio.write_csv(path, ["step", "fitness", "note"], [[1, 0.1, 'a "b", c'], (2, math.nan, None)])
    assert path.read_bytes() == b'step,fitness,note\n1,0.1,"a ""b"", c"\n2,nan,\n'
    with pytest.raises(DataError) as caught:
        safeio.write_csv(path, ["a", "b"], [[1, 2], [3]])
    assert str(caught.value) == f"{path}: row 2 has 1 cells, the header 2: give every row one per column"


def test_reading_what_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "file", tmp_path / "gone"):
        with pytest.raises(MissingInputError) as caught:
            safeio.read_bytes(path)
        assert str(caught.value) == f"{path}: is not there: run the stage that writes it, or correct the path"
        assert caught.value.exit_code == 66


def test_reading_a_folder_or_a_pipe_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: is not a regular file"):
        safeio.read_bytes(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a folder, a file is expected"):
        safeio.read_bytes(tmp_path)


# --- Disks that refuse ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [safeio.write_bytes, lambda path, data: safeio.write_folder(path, {"f": data})])
def test_a_file_in_the_place_of_a_folder(tmp_path: Path, write: object) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    path = tmp_path / "file" / "below" / "x"
    with pytest.raises(DiskError) as caught:
        write(path, b"data")  # type: ignore[operator]
    assert caught.value.exit_code == 74
    assert str(caught.value).startswith(f"{path}: cannot be written, a part of this path is a file (")
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
        with pytest.raises(DiskError) as caught, safeio.translating(tmp_path):
            raise OSError(number, os.strerror(number))
        assert str(caught.value).startswith(f"{tmp_path}: cannot be written, {reason}")


FILL = """
import sys
from pathlib import Path
from evopipe.errors import DiskError
from evopipe.storage import safeio
folder = Path(sys.argv[1])
safeio.write_bytes(folder / "file", b"old")
safeio.write_folder(folder / "out", {"a": b"old", "b": b"old"})
for write in (
    lambda: safeio.write_bytes(folder / "file", bytes(3_000_000)),
    lambda: safeio.write_folder(folder / "out", {"a": b"new", "b": bytes(3_000_000)}),
):
    try:
        write()
    except DiskError as error:
        print(error)
assert safeio.read_bytes(folder / "file") == b"old"
assert safeio.read_folder(folder / "out") == {"a": b"old", "b": b"old"}
print(sorted(path.name for path in folder.iterdir()))
"""


def test_a_full_disk_keeps_the_old_content(tmp_path: Path) -> None:
    done = mounted("size=1m", tmp_path, FILL)
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
from evopipe.storage import safeio
from evopipe.storage.lock import RunLock
folder = Path(sys.argv[1])
for write in (
    lambda: safeio.write_bytes(folder / "file", b"x"),
    lambda: safeio.write_folder(folder / "below" / "out", {"a": b"x"}),
    lambda: RunLock(folder / "lock").__enter__(),
):
    try:
        write()
    except DiskError as error:
        print(error)
"""
    done = mounted("ro", tmp_path, script)
    assert done.returncode == 0, done.stderr
    why = (
        "cannot be written, the file system is read-only (Read-only file system): mount it writable, or work in another"
    )
    lines = done.stdout.splitlines()
    assert [line.split(f": {why} folder; ")[0] for line in lines] == [
        f"{tmp_path}/file",
        f"{tmp_path}/below/out",
        f"{tmp_path}/lock",
    ]


def test_safeio_does_not_import_torch() -> None:
    done = run_script("import sys, evopipe.storage.lock, evopipe.storage.checkpoint; print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


# --- Tensors ----------------------------------------------------------------------------------------------------------


def sample_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    flat = torch.randn(4, 6, generator=generator)
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
    types += [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]
    tensors = {f"as {dtype}": (flat * 3).abs().to(dtype) for dtype in types}
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])
    views = {"row": flat[1], "turned": flat.T, "whole": flat, "same": flat, "scalar": flat[0, 0], "none": flat[:0]}
    return {**tensors, **views, "special": special, "grad": flat.clone().requires_grad_(), "ü": flat[:, ::2]}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    left, right = left.detach().contiguous(), right.contiguous()
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def test_tensors_round_trip_to_the_bit() -> None:
    tensors = sample_tensors()
    data = safeio.dump_tensors(tensors)
    back = safeio.load_tensors(data)
    assert list(back) == sorted(tensors)
    assert all(same_bits(tensors[name], back[name]) for name in tensors)
    back["row"].add_(1.0)
    assert not torch.equal(back["row"], back["whole"][1])


def test_tensor_bytes_do_not_depend_on_the_order_of_names() -> None:
    tensors = sample_tensors()
    assert safeio.dump_tensors(dict(reversed(tensors.items()))) == safeio.dump_tensors(tensors)


def test_tensor_bytes_are_what_the_format_says(tmp_path: Path) -> None:
    tensors = sample_tensors()
    (tmp_path / "x.safetensors").write_bytes(safeio.dump_tensors(tensors))
    with safetensors.safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() is None
        assert set(file.keys()) == set(tensors)
        assert all(same_bits(tensors[name], file.get_tensor(name)) for name in tensors)
    assert safeio.load_tensors(safeio.dump_tensors({})) == {}
    assert same_bits(safeio.load_tensors(safetensors.torch.save({"a": tensors["row"]}))["a"], tensors["row"])


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.zeros(3)
    piece = safeio.tensor_pieces({"a": tensor})[1]
    tensor.fill_(1.0)
    assert bytes(piece) == safeio.dump_tensors({"a": tensor})[-12:]


def test_tensors_the_format_cannot_hold() -> None:
    with pytest.raises(
        DataError, match=r"^tensor 'a': torch.complex64 with layout torch.strided cannot be saved: make"
    ):
        safeio.dump_tensors({"a": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(DataError, match=r"^tensor 'a': torch.float32 with layout torch.sparse_coo cannot be saved"):
        safeio.dump_tensors({"a": torch.eye(2).to_sparse()})
    with pytest.raises(DataError, match=r"^tensor '__metadata__': the name is reserved"):
        safeio.dump_tensors({"__metadata__": torch.zeros(1)})


@pytest.mark.parametrize("cut", [0, 7, 8, 30, -1])
def test_cut_tensor_bytes(cut: int) -> None:
    data = safeio.dump_tensors({"a": torch.arange(9)})[:cut]
    with pytest.raises(DataError, match=r"^elite: is not a valid safetensors file \("):
        safeio.load_tensors(data, "elite")


# --- Folders ----------------------------------------------------------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "models" / "one", FILES)
    safeio.write_folder(tmp_path / "models" / "two", dict(reversed(FILES.items())))
    assert safeio.read_folder(tmp_path / "models" / "one") == FILES
    assert safeio.read_folder(tmp_path / "models" / "one", only=["empty"]) == {"empty": b""}
    assert tree(tmp_path / "models" / "one") == tree(tmp_path / "models" / "two")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["one", "two"]
    document = json.loads((tmp_path / "models" / "one" / "manifest.json").read_text())
    assert sorted(document) == ["files", "format", "sha256"]
    assert document["files"]["empty"]["size"] == 0


def test_replacing_drops_the_old_files_and_files_in_pieces_are_joined(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    safeio.write_folder(tmp_path / "out", {"only": [b"a", b"bc"]})
    assert safeio.read_folder(tmp_path / "out") == {"only": b"abc"}
    assert sorted(tree(tmp_path)) == ["out/manifest.json", "out/only"]


def test_the_working_folder_itself_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    monkeypatch.chdir(tmp_path / "out")
    assert safeio.read_folder(Path()) == FILES


def test_unlisted_files_are_ignored(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    (tmp_path / "out" / ".gitignore").write_text("x")
    assert safeio.read_folder(tmp_path / "out") == FILES


def test_missing_folder_manifest_and_name(tmp_path: Path) -> None:
    manifest = tmp_path / "out" / "manifest.json"
    sentence = f"{manifest}: is not there: run the stage that writes it, or correct the path"
    for exists in (False, True):
        if exists:
            manifest.parent.mkdir()
        with pytest.raises(MissingInputError) as caught:
            safeio.read_folder(tmp_path / "out")
        assert str(caught.value) == sentence
    safeio.write_folder(tmp_path / "out", FILES)
    with pytest.raises(MissingInputError, match=r"out/nothing: is not in the folder's manifest: run the stage"):
        safeio.read_folder(tmp_path / "out", only=["nothing"])


def test_damage_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    path = tmp_path / "out" / "deep" / "er" / "notes.txt"
    path.write_bytes(b"hallo")
    with pytest.raises(DataError) as caught:
        safeio.read_folder(tmp_path / "out")
    fault = f"{path}: is damaged, its checksum does not match the folder's manifest"
    assert str(caught.value) == f"{fault}: restore it with `dvc checkout`, or run the stage that writes it again"
    with pytest.raises(DataError) as caught:
        safeio.read_folder(tmp_path / "out", remedy="")
    assert str(caught.value) == fault
    path.write_bytes(b"hell")
    with pytest.raises(DataError, match=r"notes\.txt: has 4 bytes, its manifest says 5: restore"):
        safeio.read_folder(tmp_path / "out")
    path.unlink()
    with pytest.raises(DataError, match=r"notes\.txt: is gone, though the folder's manifest lists it: restore"):
        safeio.read_folder(tmp_path / "out")
    assert safeio.read_folder(tmp_path / "out", only=["empty"]) == {"empty": b""}


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """Of files of any size, written in one piece or in several, one of them asked for or all."""
    size = 3 * 2**20
    parts = [bytes(size // 3), bytearray(size // 3), memoryview(bytes(size // 3))]
    safeio.write_folder(tmp_path / "out", {"few": b"abc", "many": parts})
    assert safeio.read_folder(tmp_path / "out") == {"few": b"abc", "many": bytes(size)}
    path = tmp_path / "out/many"
    for place in (0, 4096, 2**20 - 1, 2**20, 2**20 + 1, size // 2, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
        for only in (None, ["many"]):
            with pytest.raises(DataError, match="many: is damaged, its checksum does not match the folder's manifest"):
                safeio.read_folder(tmp_path / "out", only=only)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\0")
        assert safeio.read_folder(tmp_path / "out", only=["few"]) == {"few": b"abc"}


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b"  ", b" "),
        lambda raw: raw.replace(b'"size": 5', b'"size": 6'),
        lambda raw: b"[]",
        lambda raw: b"3",
        lambda raw: b"",
    ],
)
def test_any_change_of_the_manifest_is_damage(tmp_path: Path, change: object) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_bytes(change(manifest.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=r"manifest\.json: is damaged, its own checksum does not match: restore"):
        safeio.read_folder(tmp_path / "out")


def forge(folder: Path, content: dict[str, object]) -> None:
    """Write a manifest whose own checksum is right, as an attacker or another version would."""
    sealed = {**content, "sha256": safeio._self_sum(content)}
    (folder / "manifest.json").write_bytes(safeio.dump_json(sealed, "manifest", indent=2))


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../secret", "a\\b", "", "manifest.json", "./a", "a\0"]
)
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"use a plain relative name other than 'manifest\.json'"):
        safeio.write_folder(tmp_path / "new", {name: b"x"})
    assert list(tmp_path.iterdir()) == []
    safeio.write_folder(tmp_path / "out", FILES)
    (tmp_path / "secret").write_bytes(b"secret")
    forge(tmp_path / "out", {"files": {name: {"sha256": "0", "size": 6}}, "format": 1})
    with pytest.raises(DataError, match="lists files in a way that is not safe to read"):
        safeio.read_folder(tmp_path / "out")


def test_a_name_that_is_a_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file name 'a/b/c': 'a' is a file already, so it cannot be a folder"):
        safeio.write_folder(tmp_path / "out", {"a": b"", "a/b/c": b""})


def test_manifests_of_another_format_or_shape(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    forge(tmp_path / "out", {"files": {}, "format": 2})
    with pytest.raises(DataError, match="has format 2, this version reads 1: use the version of evopipe that wrote it"):
        safeio.read_folder(tmp_path / "out")
    broken: tuple[object, ...] = ([], {"a": 1}, {"a": {"size": 1}}, {"a": {"sha256": "0", "size": "many"}})
    for files in broken:
        forge(tmp_path / "out", {"files": files, "format": 1})
        with pytest.raises(DataError, match="lists files in a way that is not safe to read"):
            safeio.read_folder(tmp_path / "out")


def test_a_replacement_cut_short_between_its_renames(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", FILES)
    shutil.copytree(tmp_path / "out", tmp_path / ".tmp-99-new")
    os.rename(tmp_path / "out", tmp_path / ".old-out")
    assert safeio.read_folder(tmp_path / "out") == FILES
    safeio.clean_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert safeio.read_folder(tmp_path / "out") == FILES


def test_a_replacement_cut_short_after_its_renames(tmp_path: Path) -> None:
    safeio.write_folder(tmp_path / "out", {"new": b"new"})
    safeio.write_folder(tmp_path / ".old-out", FILES)
    assert safeio.read_folder(tmp_path / "out") == {"new": b"new"}
    safeio.clean_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert safeio.read_folder(tmp_path / "out") == {"new": b"new"}


def test_cleaning_leaves_everything_else(tmp_path: Path) -> None:
    safeio.clean_temporaries(tmp_path / "nowhere")
    safeio.write_folder(tmp_path / "out", FILES)
    (tmp_path / ".tmp-file").write_bytes(b"half")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "out")
    (tmp_path / ".hidden").write_bytes(b"kept")
    safeio.clean_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "out"]
    assert safeio.read_folder(tmp_path / "out") == FILES


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(EvopipeError, match=r"out: cannot be written, a part of this path is a file"):
        safeio.write_folder(tmp_path / "out", FILES)
    assert tree(tmp_path) == {"out": b"precious"}


KILLED = """
import os, signal, sys
from pathlib import Path
from evopipe.storage import safeio
folder, left = Path(sys.argv[1]), int(sys.argv[2])

def count(event, arguments):
    global left
    if event in ("os.rename", "open", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
safeio.write_folder(folder / "out", {"a": b"new", "b/c": b"new"})
os._exit(0)
"""


def test_killed_before_every_file_operation_of_a_replacement(tmp_path: Path) -> None:
    """Kill -9 at each step in turn: the folder reads as the old one or the new one, whole, and cleaning keeps it so."""
    old, new = {"a": b"old"}, {"a": b"new", "b/c": b"new"}
    outcomes = []
    for step in range(60):
        folder = tmp_path / str(step)
        safeio.write_folder(folder / "out", old)
        code = run_script(KILLED, str(folder), str(step)).returncode
        found = safeio.read_folder(folder / "out")
        assert found in (old, new)
        safeio.clean_temporaries(folder)
        assert [path.name for path in folder.iterdir()] == ["out"]
        assert safeio.read_folder(folder / "out") == found
        outcomes.append((code, found == new))
        if code == 0:
            break
    assert outcomes[0] == (-9, False)
    assert outcomes[-1] == (0, True)
    assert (-9, True) in outcomes
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome[1])
