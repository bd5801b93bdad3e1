"""Members on disk: everything of them comes back, whatever state they were in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import populations
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.errors import DataError
from evopipe.storage import members as stored
from evopipe.storage.files import dump_json, parse_json
from evopipe.storage.folders import read_folder, write_folder
from evopipe.storage.tensors import dump_tensors, load_tensors

ARCHS = (
    Arch((Block(24), Block(8, blend=True)), 16, (Block(9),), "GELU", True),
    Arch((), 5, (), "ReLU", False),
)


def some() -> list[Member]:
    """Two of a kind that differ in everything; more than ten, so that one's number begins another's."""
    members = []
    for i in range(12):
        tensors = {"q": torch.arange(4.0) + i, "adam.steps": torch.tensor(3 * i), "mean": torch.rand(2).double()}
        members.append(
            Member(
                slot=11 - i,
                id=40 + i,
                parent=None if i < 2 else 20 + i,
                key=(-1) ** i * (2**62 + i),
                arch=ARCHS[i % 2],
                hyper={"lr": 0.1 + i / 7, "batch_size": 32 + i},
                tensors=tensors,
                healthy=i % 3 != 0,
                fitness=((), (1.5, -math.inf, i / 3), (-math.inf,))[i % 3],
            )
        )
    return members


def test_members_come_back_as_they_were() -> None:
    """Through the bytes of both files: sick ones sick, failed evaluations at −∞, each with its own tensors."""
    before = some()
    tensors, described = stored.pack(before, "group")
    told = parse_json(dump_json({"all": described}, "a test"), "a test")["all"]
    after = stored.unpack(load_tensors(dump_tensors(tensors)), told, "group")
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert populations.same(old, new)
        for name in ("slot", "id", "parent", "key", "arch", "hyper", "healthy", "fitness"):
            assert (getattr(new, name), type(getattr(new, name))) == (getattr(old, name), type(getattr(old, name)))
        assert {name: type(value) for name, value in new.hyper.items()} == {"lr": float, "batch_size": int}


def test_groups_lie_side_by_side() -> None:
    """A checkpoint holds several, and the name of one may begin another's."""
    before = some()
    one, described = stored.pack(before[:3], "members")
    two, others = stored.pack(before[3:5], "members.last")
    both = one | two
    assert len(both) == len(one) + len(two)
    for group, told, prefix in ((before[:3], described, "members"), (before[3:5], others, "members.last")):
        after = stored.unpack(both, told, prefix)
        assert [member.id for member in after] == [member.id for member in group]
        assert all(populations.same(old, new) for old, new in zip(group, after, strict=True))


def test_what_lacks_something_is_no_member() -> None:
    tensors, described = stored.pack(some()[:2], "group")
    lacking = {name: tensor for name, tensor in tensors.items() if not name.startswith("group.1.")}
    with pytest.raises(DataError, match=r"member 1 of 'group' has no tensors"):
        stored.unpack(lacking, described, "group")
    for name in described[0]:
        without = {key: value for key, value in described[0].items() if key != name}
        with pytest.raises(DataError, match=rf"member 0 of 'group' cannot be rebuilt .*: {name}: missing"):
            stored.unpack(tensors, [without, described[1]], "group")


@pytest.mark.parametrize("elite", [False, True])
def test_only_an_elite_stands_behind_the_slots(elite: bool, tmp_path: Path) -> None:
    members = [replace(member, slot=slot) for slot, member in zip((0, 1, 0), some(), strict=False)]
    stored.write(tmp_path / "members", members, {"elite": {}} if elite else {})
    if elite:
        assert [m.slot for m in stored.read(tmp_path / "members", {}, "write it again", lambda them: None)[0]] == [
            0,
            1,
            0,
        ]
        return
    with pytest.raises(DataError, match=r"its members have the slots \[0, 1, 0\]; write it again"):
        stored.read(tmp_path / "members", {}, "write it again", lambda them: None)


def refused(folder: Path, **how: Any) -> str:
    with pytest.raises(DataError) as caught:
        stored.read(folder, how.pop("wanted", {}), "write it again", **how)
    return str(caught.value).removeprefix(str(folder)).lstrip(":/ ")


def test_members_of_something_else_are_refused(tmp_path: Path) -> None:
    """What the folder was written for comes before what its members are; what fits is handed on."""
    folder, members = tmp_path / "members", [replace(member, slot=slot) for slot, member in enumerate(some()[:2])]
    stored.write(folder, members, {"algo": "dqn", "env": {"id": "E-v1"}})
    wanted = {"algo": "dqn", "env": {"id": "F-v1"}}
    said = "written for env {'id': 'E-v1'}, params.yaml says {'id': 'F-v1'}; write it again"
    assert refused(folder, wanted=wanted, check=lambda them: "too old") == said
    assert refused(folder, wanted={"more": 1}) == "written for more None, params.yaml says 1; write it again"
    assert refused(folder, check=lambda them: f"too old are {[one.id for one in them]}") == (
        f"too old are {[one.id for one in members]}; write it again"
    )
    found, about = stored.read(folder, {"algo": "dqn"}, "write it again")
    assert all(populations.same(old, new) for old, new in zip(members, found, strict=True))
    assert about["env"] == {"id": "E-v1"}
    files = read_folder(folder)
    for content in (b"[]", b'{"members": []}', b'{"members": {}}', b"{}"):
        write_folder(folder, {**files, "members.json": content})
        assert refused(folder).endswith("is not what members are described by (no `members`); write it again")
