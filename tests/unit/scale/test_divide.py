"""What a shard makes of the message that it begins with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evopipe.errors import ParamsError
from evopipe.scale import divide
from evopipe.schema.shards import ShardsConfig
from populations import problem
from tiny import params


@pytest.mark.parametrize(
    ("resources", "alone"),
    [({}, True), ({"gpu": 4.0}, True), ({"cpu": 0.0}, True), ({"cpu": 1.5}, True), ({"cpu": 2.0}, False)],
)
@pytest.mark.parametrize("rows", [None, 7])
def test_a_shard_trains_or_scores_its_own_members_with_what_its_machine_gives(
    resources: dict[str, float], alone: bool, rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = params({"population.size": 4, "runtime.cohorts": "exact", "train.replay.sharing": "own"})
    data["runtime"]["shards"] = {"count": 2, **({"resources": resources} if resources else {})}
    spec, asked, together = problem(), [], object()

    def of(*given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(
            spec=spec, live=lambda clock, keys: ("live", clock, keys.tolist()), held_out=lambda *given: given
        )

    monkeypatch.setattr(divide, "problem_of", of)
    about = {"params": data, "folder": "here", "keys": [5, -3, 2**62], **({"held out": rows} if rows else {})}
    found, regime, clock = divide.make(about, together)
    ((parsed, *others),) = asked
    assert others == [Path("here"), alone, together]
    assert parsed.population.size == 4
    assert found is spec
    assert clock.members == 3
    assert regime == ((3, 7) if rows else ("live", clock, [5, -3, 2**62]))


def test_no_process_serves_shards_that_accelerate_does_not_run() -> None:
    assert [divide.served(ShardsConfig(engine=engine)) for engine in ("none", "ray")] == [False, False]


@pytest.mark.parametrize(
    ("count", "room", "members", "each", "ends"),
    [
        ("auto", 3, 8, 1, [0, 3, 5, 8]), ("auto", 9, 4, 1, [0, 1, 2, 3, 4]), ("auto", 3, 8, 4, [0, 4, 8]),
        (2, 9, 12, 4, [0, 8, 12]), (1, 9, 5, 1, [0, 5]), (3, 1, 9, 3, [0, 3, 6, 9]),
    ],
)  # fmt: skip
def test_members_that_share_a_memory_are_in_one_shard_with_their_own_keys(
    count: Any, room: int, members: int, each: int, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(divide, "Shards", lambda *given: made.append(given))
    monkeypatch.setattr(divide, "replace", lambda _, **more: SimpleNamespace(**more))
    given: Any = SimpleNamespace(spec=problem())
    engine: Any = SimpleNamespace(room=room)
    found = divide.in_shards(
        given, ShardsConfig(engine="ray", count=count), {"a": 1}, members, Path("here"), engine, each
    )
    assert found.parts == len(ends) - 1
    keys = np.arange(100, 100 + members)
    found.live("clock", keys)
    found.held_out(members, 7)
    own = [*map(range, ends[:-1], ends[1:])]
    for (_, _, slots, begin, to), first, more in zip(made, (100, 0), ({}, {"held out": 7}), strict=True):
        assert (slots, to) == (own, engine)
        about = {"params": {"a": 1}, "folder": str(Path("here").absolute()), **more}
        assert begin == [{**about, "keys": [first + slot for slot in of]} for of in own]


def test_more_shards_than_members_or_memories_are_refused() -> None:
    engine: Any = SimpleNamespace(room=99)
    given: Any = SimpleNamespace(spec=problem())
    for each, what in ((1, "members"), (2, "memories of theirs")):
        with pytest.raises(ParamsError, match=f"5 shards are more than there are {what}"):
            divide.in_shards(given, ShardsConfig(engine="ray", count=5), {}, 4, Path(), engine, each)
