"""Imports without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from evopipe.imports import uncollected


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_cycles_are_collected_again_after_a_block_also_one_that_fails() -> None:
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_block_inside_another_leaves_the_outer_one_as_it_is() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    gc.disable()  # by a caller, who wants none
    with uncollected():
        pass
    assert not gc.isenabled()
