"""The kernels are compiled by whatever C compiler there is, and what is kept of them is loaded only if it is whole and
the user's own."""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from evopipe import machine
from evopipe.errors import ParamsError
from evopipe.machine import configure
from evopipe.native import build, header
from evopipe.schema.runtime import RuntimeConfig

GCC = shutil.which("gcc")
NOBODY = 54321  # a user that owns nothing here
pytestmark = pytest.mark.skipif(GCC is None, reason="no gcc is installed here, by which these tests compile")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the kernels are kept: in a folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    OPEN.clear()
    build.load.cache_clear()
    machine.say_once.cache_clear()
    yield tmp_path / "cache" / "evopipe"
    build.load.cache_clear()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels, by gcc in a hurry."""
    made = tmp_path_factory.mktemp("compiled") / "kernels.so"
    subprocess.run([str(GCC), *build.FLAGS, "-O0", "-o", str(made), str(build.MAIN), "-lm"], check=True)
    return made


@pytest.fixture
def compiler(tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that has the kernels ready, and notes in a file beside it each time that it is asked for them."""
    monkeypatch.setenv("CC", str(script(tmp_path / "hurried", f'echo >> "$0.log"; {OUT}; exec cp {compiled} "$out"')))
    return tmp_path / "hurried.log"


OUT = 'for word in "$@"; do [ "$last" != -o ] || out=$word; last=$word; done'
"""What a script does to know where what it compiles shall lie."""


def script(path: Path, does: str) -> Path:
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo 1.2.3;; *) {does};; esac\n')
    path.chmod(0o755)
    return path


OPEN: list[Any] = []


def started() -> Any:
    """The kernels, as a new process has them: an open library would be found by its name, and its file not be read."""
    while OPEN:
        header.declarations().dlclose(OPEN.pop())
    build.load.cache_clear()
    OPEN.append(build.load())
    return OPEN[-1]


def compute(kernels: Any) -> bool:
    """Whether what was loaded computes, and so all of its pages are there."""
    target, online, weight = torch.zeros(1, 64), torch.ones(1, 64), torch.ones(1)
    own = torch.tensor([2, 4, 0, 64], dtype=torch.int32)
    places = own.data_ptr(), target.data_ptr(), 64, online.data_ptr(), 64, weight.data_ptr()
    kernels.polyak(header.of("polyak_call")(1, 1, *places))
    return torch.equal(target, online)


def times(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def library(cache: Path) -> Path:
    (kept,) = cache.glob("*.so")
    return kept


def damage(kept: Path, how: str) -> None:
    content = bytearray(kept.read_bytes())
    kept.unlink()  # a library that is loaded must not change below those who compute with it
    if how == "flipped":
        content[len(content) // 3] ^= 4
    kept.write_bytes({"cut": content[: len(content) // 8], "empty": b"", "flipped": content}[how])
    kept.chmod(0o600)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_a_damaged_library_is_compiled_anew(how: str, cache: Path, compiler: Path) -> None:
    started()
    damage(library(cache), how)
    compute(started())
    assert times(compiler) == 2
    started()
    assert times(compiler) == 2, "what was mended is kept"


@pytest.mark.thorough
def test_a_library_without_its_digest_is_compiled_anew(cache: Path, compiler: Path) -> None:
    started()
    assert not [path.unlink() for path in cache.iterdir() if path.suffix != ".so"][1:], "one digest lay there"
    compute(started())
    assert times(compiler) == 2


def planted(tmp_path: Path) -> tuple[bytes, Path]:
    """A library of somebody else, and the file that it makes when it is loaded."""
    mark, source = tmp_path / "mark", tmp_path / "planted.c"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{mark}", "w"); }}\n')
    subprocess.run([str(GCC), "-shared", "-fPIC", "-o", str(tmp_path / "planted.so"), str(source)], check=True)
    return (tmp_path / "planted.so").read_bytes(), mark


def plant(kept: Path, content: bytes) -> list[Path]:
    """Put it where the user's own library lay, with a digest that fits; return both files."""
    files = [kept, kept.with_suffix(".sha256")]
    for file, data in zip(files, (content, hashlib.sha256(content).hexdigest().encode()), strict=True):
        file.unlink(missing_ok=True)
        file.write_bytes(data)
        file.chmod(0o600)
    return files


def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path: Path, cache: Path, compiler: Path) -> None:
    content, mark = planted(tmp_path)
    started()
    for count, how in enumerate(("writable", "linked", "named", "told"), start=2):
        files = plant(library(cache), content)
        if how == "writable":
            files[0].chmod(0o622)
        elif how == "linked":
            files[0].hardlink_to(shutil.move(files[0], tmp_path / how))
        elif how == "named":
            files[0].symlink_to(shutil.move(files[0], tmp_path / how))
        else:
            files[1].chmod(0o666)
        compute(started())
        assert times(compiler) == count, how
        assert not mark.exists(), how


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_library_of_another_user_is_not_loaded(tmp_path: Path, cache: Path, compiler: Path) -> None:
    content, mark = planted(tmp_path)
    started()
    for file in (plant(library(cache), content), plant(library(cache), content)[::-1]):
        os.chown(file[0], NOBODY, NOBODY)
    compute(started())
    assert times(compiler) == 2
    assert not mark.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path, cache: Path, compiler: Path) -> None:
    content, mark = planted(tmp_path)
    started()
    plant(library(cache), content)
    os.chown(cache, NOBODY, NOBODY)
    temporary = tmp_path / f"evopipe-{os.geteuid()}"
    compute(started())
    assert not mark.exists()
    assert library(temporary).exists(), "kept below the folder for temporary files instead"
    plant(library(temporary), content)
    os.chown(temporary, NOBODY, NOBODY)
    compute(started())
    assert not mark.exists()
    assert times(compiler) == 3


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o750])
def test_what_is_kept_is_the_users_alone_under_any_umask(mode: int, cache: Path, compiler: Path) -> None:
    before = os.umask(0)
    try:
        started()
        (cache.parent / "evopipe").chmod(mode)
        started()
    finally:
        os.umask(before)
    for path in (cache.parent, cache, *cache.iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert times(compiler) == 1


def test_nothing_else_stays_in_the_cache(cache: Path, compiler: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "compile-killed").mkdir()
    (cache / "compile-killed" / "half.so").write_text("x")
    (cache / "of-someone").write_text("x")
    started()
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".sha256", ".so"]


@pytest.mark.thorough
def test_processes_that_begin_at_once_keep_one_library(cache: Path, compiler: Path) -> None:
    """And one that was killed while it compiled hinders nobody."""
    code = "from evopipe.native import build; build.load(); print('loaded')"
    slow = Path(os.environ["CC"])
    slow.write_text(slow.read_text().replace("exec cp", "sleep 2; exec cp"))
    begun = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    until = time.monotonic() + 60
    while not times(compiler) and time.monotonic() < until:
        time.sleep(0.05)
    begun[0].kill()
    assert [process.communicate(timeout=120)[0] for process in begun][1:] == ["loaded\n"] * 2
    assert compute(started())
    assert len([*cache.glob("*.so")]) == 1


BROKEN = {
    "makes nothing": "exit 0",
    "makes an empty file": f'{OUT}; : > "$out"',
    "makes another library": f'{OUT}; echo "int x;" | {GCC} -shared -fPIC -x c -o "$out" -',
    "fails": "echo nonsense >&2; exit 1",
    "says no text": r"printf '\377\376 error \377' >&2; exit 3",
}


def unusable(tmp_path: Path, how: str) -> str:
    bad = tmp_path / "bad"
    if how in BROKEN:
        script(bad, BROKEN[how])
    elif how == "cannot run":
        bad.write_bytes(b"\x00\x01 no program")
        bad.chmod(0o755)
    elif how == "odd version":
        bad.write_bytes(b"#!/bin/sh\nprintf '\\377\\200 version'; exit 1\n")
        bad.chmod(0o755)
    return 'gcc "unbalanced' if how == "odd words" else str(bad)


@pytest.mark.parametrize("how", [*BROKEN, "cannot run", "odd version", "is missing", "odd words"])
def test_an_unusable_compiler_ends_in_a_sentence(
    how: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", unusable(tmp_path, how))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "path"
    path.mkdir()
    for name in ("sh", "printf"):
        (path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(path))
    configure(RuntimeConfig(kernels="auto"))
    configure(RuntimeConfig(kernels="auto"))
    assert build.chosen() is None
    assert not list(cache.glob("*.so"))
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("note: networks are computed by torch: ")
    with pytest.raises(ParamsError, match=r"^runtime\.kernels: [^\n]*; or set it to 'torch'$"):
        configure(RuntimeConfig(kernels="native"))


def test_where_one_compiler_fails_the_next_is_tried(
    tmp_path: Path, cache: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "cc", "echo cc.c: error: no such builtin >&2; exit 1")
    script(tmp_path / "bin" / "gcc", f'{OUT}; exec cp {compiled} "$out"')
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    compute(started())
    (said,) = capsys.readouterr().err.splitlines()
    assert "no such builtin" in said
    assert str(tmp_path / "bin" / "gcc") in said


def test_a_compiler_may_be_named_with_arguments(
    tmp_path: Path, cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{shutil.which('env')} {os.environ['CC']}")
    compute(started())
    assert times(compiler) == 1


def test_without_a_home_the_kernels_are_kept_among_temporary_files(
    tmp_path: Path, cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)  # as in a container that runs as a number
    compute(started())
    compute(started())
    assert times(compiler) == 1
    assert library(tmp_path / f"evopipe-{os.geteuid()}").exists()


@pytest.mark.thorough
def test_under_a_home_that_cannot_be_written_they_are_compiled_once(tmp_path: Path, compiler: Path) -> None:
    here = {
        **os.environ,
        "XDG_CACHE_HOME": "/proc/nowhere",
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    for _ in range(2):
        subprocess.run([sys.executable, "-c", "from evopipe.native import build; build.load()"], env=here, check=True)
    assert times(compiler) == 1


def test_without_any_folder_that_can_be_written_torch_serves(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, "/proc/nowhere")
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    configure(RuntimeConfig(kernels="auto"))
    assert build.chosen() is None
    assert capsys.readouterr().err.count("note: networks are computed by torch: ") == 1


COMPILERS = (
    *("gcc", "gcc-10", "gcc-11", "gcc-12", "gcc-13", "gcc-14"),
    *("clang", "clang-14", "clang-15", "clang-16", "clang-17", "clang-18"),
    "aarch64-linux-gnu-gcc",
)
X86 = (("-march=native",), build.TARGETS["portable"], ("-march=x86-64",))


def installed(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


def processors(name: str) -> tuple[tuple[str, ...], ...]:
    """For which processors a compiler compiles."""
    if name.startswith("aarch64"):
        return ((),)
    return X86 if platform.machine() == "x86_64" else (build.TARGETS["native"],)


@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.thorough
def test_no_compiler_warns(name: str) -> None:
    for flags in processors(name):
        command = [installed(name), *build.FLAGS, *flags, "-Werror", "-fsyntax-only", str(build.MAIN)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, ""), flags


def test_a_warning_is_an_error_in_tests_alone(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = script(tmp_path / "own", 'echo "$@" >> "$0.log"; echo error: none; exit 1')
    monkeypatch.setenv("CC", str(own))
    monkeypatch.setenv("PATH", "/nowhere")
    for strict in ("1", ""):
        monkeypatch.setenv("EVOPIPE_KERNELS_STRICT", strict)
        build.load.cache_clear()
        with pytest.raises(build.NoKernels):
            build.load()
    asked = Path(f"{own}.log").read_text().splitlines()
    assert ["-Werror" in line.split() for line in asked] == [True, False]
    assert all("-Wall -Wextra" in line for line in asked)


@pytest.mark.thorough
def test_which_compilers_were_tried(record_property: object, capsys: pytest.CaptureFixture[str]) -> None:
    tried = {}
    for name in COMPILERS:
        if found := shutil.which(name):
            ran = subprocess.run([found, "--version"], capture_output=True, text=True, check=True)
            tried[name] = ran.stdout.splitlines()[0]
    missing = [name for name in COMPILERS if name not in tried]
    with capsys.disabled():
        print("\ncompilers tried:", "; ".join(f"{name} ({version})" for name, version in tried.items()))
        print("not installed here:", ", ".join(missing) or "none")
    assert callable(record_property)
    record_property("compilers", sorted(tried))
    assert "gcc" in tried


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["-march=native", "-march=x86-64"])
@pytest.mark.parametrize("name", [name for name in COMPILERS if not name.startswith("aarch64")])
def test_what_a_compiler_makes_computes_as_torch_does(name: str, processor: str, tmp_path: Path) -> None:
    """The kernels' own tests, by that compiler; x86-64 has neither AVX nor fused multiply-adds."""
    if platform.machine() != "x86_64":
        pytest.skip("the instruction sets are x86's")
    own = script(tmp_path / "own", f'exec {installed(name)} "$@" {processor}')
    files = [Path(__file__).with_name(f"test_native{part}.py") for part in ("", "_replay", "_value")]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *map(str, files),
            "-k",
            "not without_a_compiler",
        ],
        env={**os.environ, "CC": str(own), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert library(tmp_path / "cache" / "evopipe").exists(), "they were this compiler's"


SAYS_BITS = r"""
#include "kernels.c"
#include <stdio.h>

static float numbers[1 << 14], more[1 << 14], out[1 << 14], packed[1 << 16];
static void fill(float *to, uint64_t seed) {
  for (int i = 0; i < 1 << 14; i++) to[i] = (float)((double)(mixed_bits(seed + i) >> 11) * 0x1p-52 - 1.0);
}
static void say(const char *what, const void *from, size_t bytes) {
  uint64_t digest = 14695981039346656037u;
  for (size_t i = 0; i < bytes; i++) digest = (digest ^ ((const uint8_t *)from)[i]) * 1099511628211u;
  printf("%s %016llx\n", what, (unsigned long long)digest);
}

int main(void) {
  const int64_t keys[] = {3, -7, 1 << 20}, step = 11, slots[] = {1, 0}, widths[] = {1024, 32, 1};
  for (int transposed = 0; transposed < 2; transposed++)
    for (int n = 1; n < 40; n += 6) {
      fill(numbers, n), fill(more, 99 + n);
      product(13, n, n + 3, numbers, n, 1, more, transposed ? n : n + 3, transposed, out, n + 3, more, 0, packed);
      say("product", out, sizeof(float) * 13 * (n + 3));
    }
  const draw_call drawn_by = {3, 1, 101, keys, 5, &step, out};
  normals(&drawn_by), say("normals", out, sizeof(float) * 303);
  gumbels(&drawn_by), say("gumbels", out, sizeof(float) * 303);
  const int32_t own[] = {2, 4, 0, 1000};
  float steps = 3.0f, lr = 1e-3f, weight = 0.01f;
  const uint8_t active = 1;
  fill(numbers, 1), fill(more, 2), fill(out, 3), fill(packed, 4);
  for (int i = 0; i < 1024; i++) packed[i] *= packed[i];
  adam(&(adam_call){1, 1, own, numbers, 1000, more, 1000, out, packed, 1000, &steps, &lr, &active, 0.9, 0.999, 1e-8});
  polyak(&(polyak_call){1, 1, own, more, 1000, numbers, 1000, &weight});
  say("adam", numbers, 4000), say("polyak", more, 4000);
  static float rows[2048], sums[64], top[2], chance[64];
  static double u[64];
  static int64_t index[64];
  fill(packed, 8);
  for (int i = 0; i < 2048; i++) rows[i] = packed[i] < 0 ? 0 : packed[i];
  float *levels[] = {rows, sums, top};
  const tree of = {3, levels, widths};
  double ends[2 * 1024];
  const tree_call call = {
      .of = &of, .members = 2, .n = 32, .slots = slots, .u = u, .index = index, .chance = chance, .ends = ends,
      .places = 32};
  tree_add_up_all(&call), say("sums", sums, sizeof sums);
  uniform(&(draw_call){2, 1, 32, keys, 1, &step, u});
  tree_draw(&call);
  say("index", index, sizeof index), say("chance", chance, sizeof chance);
  return 0;
}
"""


@pytest.mark.slow
def test_an_arm_processor_computes_the_same_bits(tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("it compares x86 with ARM")
    emulator = shutil.which("qemu-aarch64-static") or installed("qemu-aarch64")
    (tmp_path / "bits.c").write_text(SAYS_BITS)
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
    said = []
    for compiler, more, by in (
        ("gcc", build.TARGETS["portable"], ()),
        (installed(COMPILERS[-1]), ("-static",), (emulator,)),
    ):
        made = tmp_path / f"bits-{len(said)}"
        command = [compiler, *flags, *more, f"-I{build.MAIN.parent}", "-o", str(made), str(tmp_path / "bits.c"), "-lm"]
        subprocess.run(command, check=True)
        said.append(subprocess.run([*by, str(made)], check=True, capture_output=True, text=True).stdout)
    assert said[0] == said[1]
    assert said[0].count("\n") > 20


def test_a_compiler_that_takes_too_long_is_named_with_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow-cc"
    slow.write_text("#!/bin/sh\nexec sleep 20\n")
    slow.chmod(0o755)
    monkeypatch.setattr(build, "SECONDS", 0.05)
    with pytest.raises(build.NoKernels) as raised:
        build._said((str(slow), "-O3", "a.c"))
    assert str(raised.value) == f"{slow} took longer than 0.05 seconds, as on a machine that is overloaded"
