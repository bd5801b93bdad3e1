from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from evopipe import runtime
from evopipe.errors import DataError, DiskError, MissingInputError, ParamsError, ResourceError, UsageError
from evopipe.runtime import (
    RuntimeConfig,
    StopSignal,
    configure,
    content_key,
    dvc_root,
    fingerprint,
    git_revision,
    state_folder,
    translate_failures,
    watch_ancestors,
)

# --- threads and device -----------------------------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_module_does_not_import_torch() -> None:
    program = "import sys, evopipe.runtime; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_configure_sets_threads_whatever_the_environment_says(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert configure(RuntimeConfig(device="cpu", threads=2)) == torch.device("cpu")
    assert torch.get_num_threads() == fingerprint()["threads"] == 2
    configure(RuntimeConfig(device="cpu", threads=1))  # Again, after work was done: no error.
    assert torch.get_num_threads() == fingerprint()["threads"] == 1


def test_one_thread_takes_denormal_numbers_for_zero_and_several_do_not(threads: None) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    for count in (2, 1):
        configure(RuntimeConfig(device="cpu", threads=count))
        assert bool(torch.tensor([1e-40]) * 0.5 == 0.0) == (count == 1)


def test_configure_auto_takes_what_is_there(threads: None) -> None:
    device = configure(RuntimeConfig(device="auto"))
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert torch.empty(1, device=device).device == device


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_configure_refuses_a_device_that_is_not_there(threads: None) -> None:
    with pytest.raises(ParamsError, match=r"^runtime\.device: 'cuda' was asked for, but torch sees no CUDA") as caught:
        configure(RuntimeConfig(device="cuda"))
    assert caught.value.exit_code == 65


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_only_sets_the_flag(signum: signal.Signals) -> None:
    with StopSignal() as stop:
        assert stop.signum is None
        signal.raise_signal(signum)
        assert stop.signum == signum
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signum  # The first one decides on the exit code.


def test_second_sigint_raises() -> None:
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert stop.signum == signal.SIGTERM


def test_handlers_are_restored_also_after_an_error() -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(signum) for signum in signals]
    with pytest.raises(RuntimeError), StopSignal():
        assert [signal.getsignal(signum) for signum in signals] != before
        raise RuntimeError
    assert [signal.getsignal(signum) for signum in signals] == before


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.signum is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_inert_in_another_thread() -> None:
    seen: list[object] = []

    def work() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopSignal() as stop:
            seen.extend([signal.getsignal(signal.SIGTERM) is before, stop.signum])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, None]


# --- no orphans (whole process trees: tests/chaos/test_orphans.py) ----------------------------------------------------

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def _row(*argv: str) -> runtime._Process:
    return runtime._Process(9, "S", 1, 9, 9, 0, argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("/venv/bin/python", "/venv/bin/dvc", "repro"),
        ("python3.11", "-m", "dvc", "repro"),
        ("python", "-X", "dev", "/venv/bin/dvc", "exp", "run"),
        ("python", "/site-packages/dvc/__main__.py", "repro"),
        ("/usr/bin/dvc", "repro"),
    ],
)
def test_what_is_dvc(argv: tuple[str, ...]) -> None:
    assert _row(*argv).is_dvc


@pytest.mark.parametrize(
    "argv",
    [
        ("/bin/bash", "--noprofile", "--norc", "-c", "dvc repro && echo dvc"),
        ("make", "dvc"),
        ("python", "/home/ann/dvc/tool.py"),
        ("uv", "run", "dvc", "repro"),
        ("vim", "dvc.yaml"),
        (),
    ],
)
def test_what_is_not_dvc(argv: tuple[str, ...]) -> None:
    assert not _row(*argv).is_dvc


def test_command_shells() -> None:
    assert _row("/bin/bash", "--noprofile", "--norc", "-c", "python -m evopipe train").is_command_shell
    assert _row("sh", "-c", "x").is_command_shell
    assert not _row("-bash").is_command_shell
    assert not _row("python", "-c", "x").is_command_shell


@linux
def test_a_process_is_read_from_proc() -> None:
    here = runtime._process(os.getpid())
    assert here is not None
    assert (here.pid, here.parent, here.group) == (os.getpid(), os.getppid(), os.getpgrp())
    assert here.session == os.getsid(0)
    assert runtime._process(2**22 + 1) is None


@linux
@pytest.mark.parametrize("with_pidfd", [True, False])
def test_the_end_of_a_process_is_noticed(with_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(runtime, "_POLL_SECONDS", 0.02)
    child = subprocess.Popen(["sleep", "60"])
    row = runtime._process(child.pid)
    assert row is not None
    waiter = threading.Thread(target=runtime._wait_for_end, args=(row,), daemon=True)
    waiter.start()
    waiter.join(0.15)
    assert waiter.is_alive()  # Not before its time.
    child.kill()  # A zombie until it is waited for: dead all the same.
    waiter.join(5)
    assert not waiter.is_alive()
    child.wait()
    runtime._wait_for_end(row)  # Long gone: returns at once.


@linux
def test_nothing_is_watched_without_dvc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    watch_ancestors()
    assert not any(thread.name == "evopipe-watch-dvc" for thread in threading.enumerate())


WATCHING = "import time, evopipe.runtime as r; r.watch_ancestors(); print('alive', flush=True); time.sleep({})"


def _environment() -> dict[str, str]:
    return {**os.environ, "DVC_STAGE": "train"}


@linux
@pytest.mark.parametrize("own_group", [False, True])
def test_a_variable_set_by_hand_does_no_harm(own_group: bool) -> None:
    """From a script (the program that started it is watched) and from an interactive shell (own process group)."""
    run = subprocess.run(
        [sys.executable, "-c", WATCHING.format(0.3)],
        env=_environment(),
        process_group=0 if own_group else None,
        capture_output=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, b"alive\n")


@linux
def test_a_process_that_is_an_orphan_already_stops_at_once() -> None:
    """The shell is in a session of its own and gone before Python has started: as when DVC is killed right away."""
    program = WATCHING.format(20)
    script = f"(sleep 0.2; exec '{sys.executable}' -c \"{program}\" >&2) &"
    shell = subprocess.run(
        ["sh", "-c", script], env=_environment(), start_new_session=True, capture_output=True, timeout=60
    )
    # The orphan holds the pipe, so the call above returned when it was gone: before it could say a word.
    assert shell.stderr == b""


# --- folders and keys -------------------------------------------------------------------------------------------------


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


# --- where results come from ------------------------------------------------------------------------------------------


def test_fingerprint_is_stable_and_tells_no_host() -> None:
    told = fingerprint()
    assert told == fingerprint()
    assert told["torch"] == torch.__version__ or told["torch"] in torch.__version__
    assert told["threads"] == torch.get_num_threads()
    assert told["device"] == "cpu"
    assert {"python", "numpy", "gymnasium", "platform", "cpu", "cpu_capability"} <= told.keys()
    assert os.uname().release not in str(told)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_git_revision_of_a_real_repository(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    assert git_revision(repo) is None
    _git(repo, "init", "-q")
    assert git_revision(repo) is None  # No commit yet.
    (repo / "sub").mkdir()
    (repo / "sub" / "file").write_text("x")
    _git(repo, "add", ".")
    _git(repo, "commit", "-qm", "one")
    head = _git(repo, "rev-parse", "HEAD").strip()
    assert git_revision(repo / "sub") == head
    (repo / "sub" / "file").write_text("dirty")
    assert git_revision(repo) == head
    _git(repo, "pack-refs", "--all")
    assert git_revision(repo) == head
    _git(repo, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert git_revision(tmp_path / "tree") == head
    _git(repo, "checkout", "-q", "--detach")
    assert git_revision(repo) == head


def test_git_revision_needs_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("nonsense\n")
    assert git_revision(tmp_path) is None
    (tmp_path / ".git" / "HEAD").write_text(COMMIT + "\n")
    assert git_revision(tmp_path) == COMMIT


# --- failures of the machine ------------------------------------------------------------------------------------------


@contextmanager
def _translated(error: Exception) -> Iterator[None]:
    with translate_failures():
        yield
        raise error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory(error: Exception) -> None:
    advice = r"lower train\.replay\.capacity, population\.size or env\.num_envs"
    with pytest.raises(ResourceError, match=advice) as caught, _translated(error):
        pass
    assert caught.value.exit_code == 72
    assert caught.value.__cause__ is error


def test_memory_that_torch_really_lacks() -> None:
    with pytest.raises(ResourceError, match="memory ran out"), translate_failures():
        torch.empty(2**60)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/data/x"),
        OSError(errno.EROFS, "Read-only file system", "/data/x"),
        OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk(error: Exception) -> None:
    with (
        pytest.raises(DiskError, match=r"a file could not be written .*; free some space") as caught,
        _translated(error),
    ):
        pass
    assert caught.value.exit_code == 74
    assert str(caught.value).startswith("/data/x: ") == bool(getattr(error, "filename", None))


def test_a_full_disk() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with pytest.raises(DiskError), translate_failures(), open("/dev/full", "w") as stream:
        stream.write("x")
        stream.flush()


def test_permission() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    sentence = r"^/data/x: this process may not use that file \(Permission denied\)"
    with pytest.raises(DiskError, match=sentence), _translated(error):
        pass


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        FileNotFoundError(errno.ENOENT, "No such file", "/x"),
        RuntimeError("shapes differ"),
        DataError("data.h5: holds the words No space left on device"),
        KeyError("x"),
    ],
)
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, _translated(error):
        pass
    assert caught.value is error
