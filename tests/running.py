"""What each process that runs tests needs: a torch thread, signals, kernels that a test begins with, order of files."""

from __future__ import annotations

import signal
from collections.abc import Generator
from itertools import groupby
from typing import Any

import pytest
import torch

from evopipe.errors import ParamsError
from evopipe.native import build

# A shell starts background jobs with SIGINT ignored, `nohup` any job with SIGHUP, and children inherit that: the tests
# send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Under load, several threads on nets this small are slower by orders of magnitude; and bits depend on the number.
torch.set_num_threads(1)

# Whether there is a compiler: where there is one, a test that cannot have the kernels fails.
COMPILER = any(build._compilers([]))

SANITIZERS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sanitize"):
        build.FLAGS = (*build.FLAGS, *SANITIZERS)
        build.TARGETS["native"] = ()  # masked instructions, which wider vectors have, are not looked at
    if config.getoption("--native"):
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


def backwards(config: pytest.Config) -> bool:
    """Whether this is each second process of several.

    Pytest compiles each test file once, and keeps it. Processes that went the same way would all compile all of them;
    these meet in the middle.
    """
    return int(getattr(config, "workerinput", {"workerid": "gw0"})["workerid"].removeprefix("gw")) % 2 == 1


# Both hooks must be of a plugin: those of a conftest are not asked about the folders above it.
@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if isinstance(collector, pytest.Session | pytest.Directory) and backwards(collector.config):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in the order in which all other processes have them."""
    if backwards(config):
        files = [list(found) for _, found in groupby(items, key=lambda item: item.path)]
        items[:] = [item for found in reversed(files) for item in found]
