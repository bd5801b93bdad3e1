"""One shard, message by message: what it is told, does and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.core.member import Member
from evopipe.errors import DataError, ParamsError
from evopipe.problems.env import regime_of
from evopipe.run.clock import Clock
from evopipe.run.regime import Setup
from evopipe.run.spec import EnvSpec, first_members
from evopipe.scale.shard import Shard, pack, split_message, state_of, unpack
from evopipe.storage import members as stored
from evopipe.storage.tensors import dump_tensors
from populations import UNLIKE, problem

Made = Callable[..., tuple[Shard, list[Member]]]


def shard_of(p: EnvSpec, members: int) -> tuple[Shard, list[Member]]:
    """A shard that has begun, and its members."""
    first = [*first_members(p, members)[0]]

    def make(about: Mapping[str, Any]) -> Any:
        clock = Clock.of(p, len(about["keys"]))
        return p, regime_of(Setup(p, clock, np.array(about["keys"]))), clock

    shard = Shard(make)
    told = unpack(shard.answer(pack({"do": "begin", "keys": [member.key for member in first]})))[0]
    assert (told["warm"], told["threshold"], told["remarks"], told["measured"]) == (0, 475.0, [], None)
    assert (told["number"], told["whole"], told["clock"]) == (0, True, vars(Clock.of(p, members)))
    return shard, first


def sent(members: list[Member], about: dict[str, Any], tensors: Mapping[str, torch.Tensor] | None = None) -> bytes:
    packed, described = stored.pack(members, "members")
    return pack({**about, "members": described}, {**packed, **(tensors or {})})


def go_on(tick: int, after: int | None = None, broken: int = 0) -> dict[str, Any]:
    return {"do": "go on", "tick": tick, "broken": broken, "after": after}


def out(p: EnvSpec, members: list[Member], **clock: int) -> bytes:
    """The message by which members go out, with these counts."""
    known = {"generation": 0, "tick": 0, "here": 0, "each": Clock.of(p, len(members)).each, **clock}
    about = {"parents": None, "new": [], "clock": {**known, "living": len(members)}}
    return sent(members, go_on(0) | about)


def test_a_state_is_told_whole_to_whom_was_not_told_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an answer was lost, or after the shard was restored."""
    monkeypatch.setattr("evopipe.scale.changes._LARGE", 1)
    p = problem(train={"learning_delay": 10**6})
    shard, first = shard_of(p, 2)
    shard.answer(out(p, first))
    whole = {*shard.regime.state()}
    found = []
    for tick, after in ((2, 0), (4, 1), (6, 1), (8, 2), (9, 4)):
        answer = shard.answer(pack(go_on(tick, after)))
        about = unpack(answer)[0]
        found.append((about["number"], about["after"], {*state_of(answer)} >= whole))
    assert found == [(1, 0, True), (2, 1, False), (3, 0, True), (4, 0, True), (5, 4, False)]
    shard.close()


def test_losses_go_to_their_members_and_come_back() -> None:
    """Of unlike members, whose cohorts are in another order than their slots; and of some who wait."""
    p = problem(seed=12, mutation=UNLIKE, train={"learning_delay": 10**6})
    shard, first = shard_of(p, 4)
    for slots in ([0, 1, 2, 3], [1, 3]):
        about = {"do": "restore", "clock": {**vars(Clock.of(p, 4)), "living": len(slots)}}
        losses = torch.tensor([float(10 + slot) for slot in slots])
        message = split_message(sent([first[slot] for slot in slots], about, {"losses": losses}))[0]
        assert unpack(shard.answer(message + dump_tensors(shard.regime.state())))[0]["lost"] == 0
        if len(slots) == 4:
            assert [slot for cohort in shard._cohorts for slot in cohort.slots] != slots
        told, tensors = unpack(shard.answer(pack(go_on(0, 0))))
        assert tensors["losses"].tolist() == losses.tolist()
        assert [member.slot for member in stored.unpack(tensors, told["members"], "members")] == slots
    shard.close()


def test_a_message_says_how_far_to_go_and_what_was_broken() -> None:
    p = problem(train={"learning_delay": 10**6})
    shard, first = shard_of(p, 2)
    shard.answer(out(p, first, generation=3, tick=7, here=2))
    for tick, broken in ((7, 5), (9, 0), (8, 2), (12, 1)):
        about, tensors = unpack(shard.answer(pack(go_on(tick, broken=broken))))
        assert tensors == {}, "nobody asked for its state"
        clock = about["clock"]
        right = max(tick, 9 if broken in (2,) else tick)
        assert (clock["tick"], clock["here"], clock["broken_here"]) == (right, right - 5, broken)
        assert (clock["generation"], clock["members"], clock["living"]) == (3, 2, 2)
        assert about["seconds"] > 0.0
    shard.close()


def test_what_goes_wrong_is_answered_by_its_kind() -> None:
    def make(about: Mapping[str, Any]) -> Any:
        if "why" in about:
            raise ParamsError(about["why"])
        raise KeyError("keys")

    shard = Shard(make)
    shard.close()  # it has nothing yet
    told = [unpack(shard.answer(pack({"do": "begin", **more})))[0] for more in ({"why": "so"}, {})]
    assert [each["error"] for each in told] == ["ParamsError", "RuntimeError"]
    assert told[0]["text"] == "so"
    assert told[1]["text"].startswith("KeyError: 'keys'\nTraceback")
    assert unpack(shard.answer(pack({"do": "dance"})))[0]["error"] == "DataError"
    assert all("clock" not in each for each in told)


def test_a_message_has_two_parts() -> None:
    one, other = {"x": torch.arange(3)}, {"y": torch.ones(2), "z": torch.zeros(1, 0)}
    message = pack({"a": 1}, one, other)
    first, second = split_message(message)
    assert first + second == message
    about, tensors = unpack(first)
    assert (about, tensors["x"].tolist(), {*tensors}) == ({"a": 1}, [0, 1, 2], {"x"})
    assert {name: x.tolist() for name, x in state_of(first + second).items()} == {"y": [1.0, 1.0], "z": [[]]}
    assert state_of(pack({"a": 1})) == {}
    bare = dump_tensors(one)
    with pytest.raises(DataError, match="does not say what it is about"):
        unpack(len(bare).to_bytes(8, "little") + bare)
