"""What every test shares: one torch thread, and slow tests and whole products only where they are asked for."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
import torch

from evopipe.errors import ParamsError
from evopipe.native import build

# A shell starts background jobs with SIGINT ignored, `nohup` any job with SIGHUP, and children inherit that: the tests
# send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Under load, several threads on nets this small are slower by orders of magnitude; and bits depend on the number.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--native", action="store_true", help="networks go through the CPU's own kernels, not torch's")
    parser.addoption("--sanitize", action="store_true", help="kernels look for faults of memory; see `make sanitize`")


# Whether there is a compiler: where there is one, a test that cannot have the kernels fails.
COMPILER = any(build._compilers([]))


SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["EVOPIPE_KERNELS_STRICT"] = "1"  # a warning of the C compiler's is an error here, in processes too
    if config.getoption("--sanitize"):
        build.FLAGS = (*build.FLAGS, *SANITIZERS)
        build.TARGETS["native"] = ()  # masked instructions, which wider vectors have, are not looked at
    if config.getoption("--native"):
        if not COMPILER:
            pytest.exit("there is no C compiler, and so no kernels of our own to test", returncode=0)
        build.use(build.load())


def _unless_no_compiler() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except (build.NoKernels, ParamsError) as error:
        if COMPILER or not isinstance(error.__cause__ or error, build.NoKernels):
            raise
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    return (yield from _unless_no_compiler())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    return (yield from _unless_no_compiler())


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """A run that a test or a fixture makes in this process chooses kernels for all of it; a test begins with these."""
    build.use(build.load() if request.config.getoption("--native") else None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.getoption("-m")
    if config.getoption("--slow") or "slow" in asked:
        return
    marks = ("slow",) if "thorough" in asked else ("slow", "thorough")
    left_out = {item for item in items if any(item.get_closest_marker(mark) for mark in marks)}
    if "product" not in asked:
        products: dict[str, list[pytest.Function]] = {}
        for item in items:
            if item not in left_out and item.get_closest_marker("product") and isinstance(item, pytest.Function):
                products.setdefault(item.nodeid.partition("[")[0], []).append(item)
        for cases in products.values():
            left_out.update(set(cases) - cover(cases))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def cover(cases: list[pytest.Function]) -> set[pytest.Function]:
    """Few cases of one test's product in which each value of each parameter occurs, all about equally often."""
    values = {case: {(name, repr(value)) for name, value in case.callspec.params.items()} for case in cases}
    missing = {value for found in values.values() for value in found}
    taken: Counter[tuple[str, str]] = Counter()
    chosen: set[pytest.Function] = set()
    while missing:
        best = max(cases, key=lambda case: (len(values[case] & missing), -sum(taken[value] for value in values[case])))
        chosen.add(best)
        taken.update(values[best])
        missing -= values[best]
    return chosen
