"""The kernels give the same bits compiled for AVX2 and for AVX-512: random shapes of all that they compute."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from evopipe.native import build
from kernel_cases import FAMILIES

SEEDS = 40  # of every family: hundreds of shapes in half a minute
NEEDS = {
    "x86-64-v3": {"avx2", "fma", "bmi1", "bmi2", "movbe", "f16c", "abm"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    build.use(None)


def bits(family: str, seed: int) -> list[bytes]:
    return [x.detach().contiguous().numpy().tobytes() for x in FAMILIES[family](seed)]


@pytest.mark.thorough
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are x86's")
@pytest.mark.parametrize("family", FAMILIES)
def test_another_instruction_set_gives_the_same_bits(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for name, needed in NEEDS.items():
        lacking = sorted(needed - set(build._processor().split()))
        if lacking:
            pytest.skip(f"this processor is no {name}: it lacks {', '.join(lacking)}")
        monkeypatch.setitem(build.TARGETS, name, (f"-march={name}",))
        made.append(build.load(name))
    differ = []
    for seed in range(SEEDS):
        found = []
        for kernels in made:
            build.use(kernels)
            found.append(bits(family, seed))
        if found[0] != found[1]:
            differ.append(seed)
    assert not differ


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_computed_twice_is_the_same(family: str, request: pytest.FixtureRequest) -> None:
    """Nothing is read that nobody wrote. With `--sanitize` nothing is read or written where nothing is, either."""
    build.use(build.load())
    for seed in range(SEEDS if request.config.getoption("--sanitize") else 3):
        assert bits(family, seed) == bits(family, seed), seed


def test_the_compiler_fuses_nothing_by_itself() -> None:
    """Else a product and a sum would be rounded as its version and the width of vectors have it."""
    assert "-ffp-contract=off" in build.FLAGS
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & {*build.FLAGS}
