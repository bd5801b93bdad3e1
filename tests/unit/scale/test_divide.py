"""What a shard makes of the message that it begins with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
