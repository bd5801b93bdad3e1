"""What every test shares: slow tests and whole products only where they are asked for, and collecting that is cheap.

What needs torch is in `running.py`: who only hands tests out to other processes needs none of it.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

# A file that says this of all its tests.
LEFT_OUT = re.compile(r"^pytestmark = \[?pytest\.mark\.(slow|thorough)\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")
    parser.addoption("--native", action="store_true", help="networks go through the CPU's own kernels, not torch's")
    parser.addoption("--sanitize", action="store_true", help="kernels look for faults of memory; see `make sanitize`")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["EVOPIPE_KERNELS_STRICT"] = "1"  # a warning of the C compiler's is an error here, in processes too
    compilers = (*os.environ.get("CC", "").split()[:1], "cc", "gcc", "clang")
    if config.getoption("--native") and not any(map(shutil.which, compilers)):
        pytest.exit("there is no C compiler, and so no kernels of our own to test", returncode=0)
    if config.getoption("dist", "no") == "no":  # else the tests run in processes of xdist's
        config.pluginmanager.import_plugin("running")


# ----------------------------------------------------------------------------------------------------- collecting


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: looking for garbage among it, now or at any later time, would take seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files are not imported if none of their tests would run, unless they are named: imports take longest."""
    if collection_path.suffix != ".py" or any(collection_path.samefile(named(word)) for word in config.args):
        return None
    asked, text = config.getoption("-m"), collection_path.read_text(encoding="utf-8")
    if asked == "numerical":  # a mark that each file gives itself
        return "pytest.mark.numerical" not in text or None
    found = LEFT_OUT.search(text)
    return (found is not None and found[1] in left_out_marks(config)) or None


def named(argument: str) -> str:
    """The file of `FILE::TEST`; nothing's name if there is none."""
    path = argument.partition("::")[0]
    return path if os.path.exists(path) else os.devnull


def left_out_marks(config: pytest.Config) -> tuple[str, ...]:
    asked = config.getoption("-m")
    if config.getoption("--slow") or "slow" in asked:
        return ()
    return ("slow",) if "thorough" in asked else ("slow", "thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marks = left_out_marks(config)
    if not marks:
        return
    left_out = {item for item in items if any(item.get_closest_marker(mark) for mark in marks)}
    if "product" not in config.getoption("-m"):
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
