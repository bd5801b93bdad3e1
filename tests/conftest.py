"""What every test shares: one torch thread, and slow tests only where they are asked for."""

from __future__ import annotations

import signal

import pytest
import torch

# A shell starts background jobs with SIGINT ignored, `nohup` any job with SIGHUP, and children inherit that: the tests
# send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Under load, several threads on nets this small are slower by orders of magnitude; and bits depend on the number.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow") or "slow" in config.getoption("-m"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
