"""Atomic folders: whole or absent, every damage noticed, nothing lost to kills."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from disks import run_script
from evopipe.errors import DataError, DiskError, EvopipeError, MissingInputError
from evopipe.storage.files import RESTORE
from evopipe.storage.folders import _manifest, clean_temporaries, read_folder, write_folder

FILES = {"weights.bin": b"\x00\x01\x02" * 50, "deep/er/notes.txt": b"hello", "empty": b""}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_round_trip_and_equal_bytes(tmp_path: Path) -> None:
    write_folder(tmp_path / "models" / "one", FILES)
    write_folder(tmp_path / "models" / "two", dict(reversed(FILES.items())))
    assert read_folder(tmp_path / "models" / "one") == FILES
    assert read_folder(tmp_path / "models" / "one", only=["empty"]) == {"empty": b""}
    assert tree(tmp_path / "models" / "one") == tree(tmp_path / "models" / "two")
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["one", "two"]
    document = json.loads((tmp_path / "models" / "one" / "manifest.json").read_text())
    assert sorted(document) == ["files", "format", "sha256"]
    assert document["files"]["empty"]["size"] == 0


def test_replacing_drops_the_old_files_and_files_in_pieces_are_joined(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", FILES)
    write_folder(tmp_path / "out", {"only": [b"a", b"bc"]})
    assert read_folder(tmp_path / "out") == {"only": b"abc"}
    assert sorted(tree(tmp_path)) == ["out/manifest.json", "out/only"]


def test_the_working_folder_itself_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "out", FILES)
    monkeypatch.chdir(tmp_path / "out")
    assert read_folder(Path()) == FILES


def test_unlisted_files_are_ignored(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", FILES)
    (tmp_path / "out" / ".gitignore").write_text("x")
    assert read_folder(tmp_path / "out") == FILES


def test_missing_folder_manifest_and_name(tmp_path: Path) -> None:
    manifest = tmp_path / "out" / "manifest.json"
    sentence = f"{manifest}: is not there: run the stage that writes it, or correct the path"
    for exists in (False, True):
        if exists:
            manifest.parent.mkdir()
        with pytest.raises(MissingInputError) as caught:
            read_folder(tmp_path / "out")
        assert str(caught.value) == sentence
    write_folder(tmp_path / "out", FILES)
    with pytest.raises(MissingInputError, match=r"out/nothing: is not in the folder's manifest: run the stage"):
        read_folder(tmp_path / "out", only=["nothing"])


def test_damage_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", FILES)
    path = tmp_path / "out" / "deep" / "er" / "notes.txt"
    path.write_bytes(b"hallo")
    with pytest.raises(DataError) as caught:
        read_folder(tmp_path / "out")
    assert str(caught.value) == f"{path}: is damaged, its checksum does not match the folder's manifest: {RESTORE}"
    path.unlink()
    with pytest.raises(DataError, match=r"notes\.txt: is gone, though the folder's manifest lists it: restore"):
        read_folder(tmp_path / "out")
    assert read_folder(tmp_path / "out", only=["empty"]) == {"empty": b""}


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    """Of files of any size, written in one piece or in several, one of them asked for or all."""
    size = 3 * 2**20
    parts = [bytes(size // 3), bytearray(size // 3), memoryview(bytes(size // 3))]
    write_folder(tmp_path / "out", {"few": b"abc", "many": parts})
    assert read_folder(tmp_path / "out") == {"few": b"abc", "many": bytes(size)}
    path = tmp_path / "out/many"
    for place in (0, 4096, 2**20 - 1, 2**20, 2**20 + 1, size // 2, size - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\1")
        for only in (None, ["many"]):
            with pytest.raises(DataError, match="many: is damaged, its checksum does not match the folder's manifest"):
                read_folder(tmp_path / "out", only=only)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"\0")
        assert read_folder(tmp_path / "out", only=["few"]) == {"few": b"abc"}


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
    write_folder(tmp_path / "out", FILES)
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_bytes(change(manifest.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=r"manifest\.json: is damaged, its own checksum does not match: restore"):
        read_folder(tmp_path / "out")


def forge(folder: Path, content: dict[str, object]) -> None:
    """Write a manifest whose own checksum is right, as an attacker or another version would."""
    (folder / "manifest.json").write_bytes(_manifest(content))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "./a", "a\0"])
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path / "out", FILES)
    (tmp_path / "secret").write_bytes(b"secret")
    forge(tmp_path / "out", {"files": {name: {"sha256": "0", "size": 6}}, "format": 1})
    with pytest.raises(DataError, match="lists files in a way that is not safe to read"):
        read_folder(tmp_path / "out")


def test_a_name_that_is_a_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="out: cannot be written, a part of this path is a file"):
        write_folder(tmp_path / "out", {"a": b"", "a/b/c": b""})
    assert list(tmp_path.iterdir()) == []


def test_manifests_of_another_format_or_shape(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", FILES)
    forge(tmp_path / "out", {"files": {}, "format": 2})
    with pytest.raises(DataError, match="has format 2, this version reads 1: use the version of evopipe that wrote it"):
        read_folder(tmp_path / "out")
    (tmp_path / "out/a").write_bytes(b"")
    for files, fault in (([], "lists files in a way"), ({"a": 1}, "is damaged"), ({"a": {"size": 0}}, "is damaged")):
        forge(tmp_path / "out", {"files": files, "format": 1})
        with pytest.raises(DataError, match=fault):
            read_folder(tmp_path / "out")


def test_a_replacement_cut_short_between_its_renames(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", FILES)
    shutil.copytree(tmp_path / "out", tmp_path / ".tmp-99-new")
    os.rename(tmp_path / "out", tmp_path / ".old-out")
    assert read_folder(tmp_path / "out") == FILES
    clean_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert read_folder(tmp_path / "out") == FILES


def test_a_replacement_cut_short_after_its_renames(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", {"new": b"new"})
    write_folder(tmp_path / ".old-out", FILES)
    assert read_folder(tmp_path / "out") == {"new": b"new"}
    clean_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert read_folder(tmp_path / "out") == {"new": b"new"}


def test_cleaning_leaves_everything_else(tmp_path: Path) -> None:
    clean_temporaries(tmp_path / "nowhere")
    write_folder(tmp_path / "out", FILES)
    (tmp_path / ".tmp-file").write_bytes(b"half")
    (tmp_path / ".tmp-link").symlink_to(tmp_path / "out")
    (tmp_path / ".hidden").write_bytes(b"kept")
    clean_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "out"]
    assert read_folder(tmp_path / "out") == FILES


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"precious")
    with pytest.raises(EvopipeError, match=r"out: cannot be written, a part of this path is a file"):
        write_folder(tmp_path / "out", FILES)
    assert tree(tmp_path) == {"out": b"precious"}


def test_a_replacement_whose_second_rename_fails_keeps_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old folder has its name back at once, not only when somebody cleans, and no temporary is left."""
    write_folder(tmp_path / "out", FILES)
    rename, refused = os.rename, []

    def failing(source: Path, target: Path) -> None:
        if Path(target) == tmp_path / "out" and not refused:
            refused.append(source)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(DiskError, match="out: cannot be written, the device reports an input/output error"):
        write_folder(tmp_path / "out", {"new": b"new"})
    assert [path.name for path in refused[0].parent.iterdir()] == ["out"]
    assert tree(tmp_path / "out").keys() == {*FILES, "manifest.json"}
    assert read_folder(tmp_path / "out") == FILES


KILLED = """
import os, signal, sys
from pathlib import Path
from evopipe.storage.folders import clean_temporaries, read_folder, write_folder

left = 10**9

def count(event, arguments):
    global left
    if event in ("os.rename", "open", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

old, new = {"a": b"old"}, {"a": b"new", "b/c": b"new"}
for step in range(60):
    folder = Path(sys.argv[1]) / str(step)
    write_folder(folder / "out", old)
    child = os.fork()
    if child == 0:
        left = step
        sys.addaudithook(count)
        write_folder(folder / "out", new)
        os._exit(0)
    killed = os.waitpid(child, 0)[1] != 0
    found = read_folder(folder / "out")
    assert found in (old, new), step
    clean_temporaries(folder)
    assert [path.name for path in folder.iterdir()] == ["out"], step
    assert read_folder(folder / "out") == found, step
    print("killed" if killed else "whole", "new" if found == new else "old")
    if not killed:
        break
"""


def test_killed_before_every_file_operation_of_a_replacement(tmp_path: Path) -> None:
    """Kill -9 at each step in turn: the folder reads as the old one or the new one, whole, and cleaning keeps it so."""
    done = run_script(KILLED, str(tmp_path))
    assert done.returncode == 0, done.stderr
    outcomes = done.stdout.splitlines()
    assert outcomes[0] == "killed old"
    assert outcomes[-1] == "whole new"
    kinds = sorted(set(outcomes), key=outcomes.index)
    assert kinds == ["killed old", "killed new", "whole new"], "never back to the old one"
    assert outcomes == sorted(outcomes, key=kinds.index)
