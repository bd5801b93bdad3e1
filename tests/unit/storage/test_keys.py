"""`keys.py`: where a run's state lies, and what its key depends on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evopipe.errors import DiskError, MissingInputError, UsageError
from evopipe.schema.runtime import RuntimeConfig
from evopipe.storage.keys import content_key, dvc_root, state_folder


def test_dvc_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.chdir(inner)
    assert dvc_root() == inner
    (tmp_path / ".dvc").mkdir()
    assert dvc_root() == tmp_path
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "a"))
    assert dvc_root() == tmp_path / "a"


def test_state_folder_is_made_and_ignored_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    folder = state_folder("train", "abc")
    assert folder == tmp_path / ".evopipe" / "train" / "abc"
    assert folder.is_dir()
    assert (tmp_path / ".evopipe" / ".gitignore").read_text() == "*\n"
    assert state_folder("train", "abc") == folder


def test_state_folder_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".evopipe").write_text("a file")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with pytest.raises(DiskError, match="cannot make this folder for the run's state") as caught:
        state_folder("train", "abc")
    assert caught.value.exit_code == 74


def test_content_key_is_pinned(tmp_path: Path) -> None:
    """A changed key orphans every saved run: change it on purpose only."""
    (tmp_path / "file").write_bytes(b"content")
    assert content_key({"b": 1, "a": [1.5, None, "ä"]}, [tmp_path / "file"]) == "178f95b58ae39c03dab354022ff9ef6b"


def test_content_key_sees_content_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "x").write_bytes(b"1")
    (folder / "y").write_bytes(b"2")
    key = content_key({"a": 1, "b": 2}, [folder])
    assert len(key) == 32
    assert key == content_key({"b": 2, "a": 1}, [folder])
    os.utime(folder / "y", (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "z.pyc").write_bytes(b"3")
    assert key == content_key({"a": 1, "b": 2}, [folder])
    moved = tmp_path / "moved"
    folder.rename(moved)
    assert key == content_key({"a": 1, "b": 2}, [moved])
    changed = [content_key({"a": 1, "b": 3}, [moved]), content_key({"a": 1, "b": 2}, [])]
    (moved / "y").rename(moved / "z")
    changed.append(content_key({"a": 1, "b": 2}, [moved]))
    (moved / "z").write_bytes(b"22")
    changed.append(content_key({"a": 1, "b": 2}, [moved]))
    assert len({key, *changed}) == 5


def test_content_key_takes_params_and_paths() -> None:
    assert content_key({"runtime": RuntimeConfig()}) == content_key({"runtime": RuntimeConfig().model_dump()})
    assert content_key({"path": Path("a/b")}) == content_key({"path": "a/b"})


def test_content_key_refuses_what_it_cannot_hash(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no JSON form"):
        content_key({"a": object()})
    with pytest.raises(MissingInputError, match=r"gone: cannot be read .*; run the stage that makes it") as caught:
        content_key({}, [tmp_path / "gone"])
    assert caught.value.exit_code == 66
