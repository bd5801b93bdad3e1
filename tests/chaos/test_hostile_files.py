"""Mutated policies and members, intact by their checksums: each is used or refused in a sentence, none is a bug's."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import populations
from evopipe.algos import on_policy
from evopipe.core.member import Member
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.errors import DataError, EvopipeError, UsageError
from evopipe.policies import play, policy
from evopipe.run.population import about_spec
from evopipe.run.spec import EnvSpec, first_members, go_on
from evopipe.storage import members as stored
from evopipe.storage.folders import read_folder, write_folder
from tiny import call, prepared

QUICK, SLOW = 11, 220  # mutated folders of each case

LSTM = {"network": {"encoder_kind": "lstm", "encoder": [8], "latent": 8}, "learn_step": 64}
CASES: dict[str, dict[str, Any]] = {
    "dqn": {"train": {"normalise": {"observations": True}}},
    "rainbow": {"config": {"network": {"encoder_kind": "simba", "encoder": [8], "latent": 8}}},
    "sac:continuous": {},
    "td3:continuous:shared": {"mutation": populations.UNLIKE},
    "ppo": {"config": LSTM},
    "ppo:multidiscrete": {},
    "maddpg": {"config": {"share": "group"}},
    "ippo:continuous": {"config": LSTM},
    "dqn:discrete:images": {
        "env": "envs_for_tests:Pixels-v0",
        "config": {"network": {"conv": [{"channels": 4, "kernel": 3, "stride": 2}], "encoder": [8], "latent": 8}},
    },
}
STRANGE = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e308, -1e308, 2**31, 2**63, -(2**63) - 1, 10**300, 4096, 65537,
    float("nan"), float("inf"), "", "x", "lstm", "simba", "dqn", "ppo", "Tanh", "multibinary", "ümläut\0", [], {}, [[]],
    [0], [-1], [1, 2, 3, 4], [[16, True]], [[16, False]] * 9, {"a": {"b": []}}, [1e300], [None], [2**40, 2**40],
)  # fmt: skip

Files = dict[str, bytes]


def spec_of(case: str) -> EnvSpec:
    return populations.problem(algo=case.removesuffix(":images"), **CASES[case])


def grown(p: EnvSpec, size: int) -> list[Member]:
    return [p.equip(member) for member in first_members(p, size)[0]]


def described(p: EnvSpec) -> dict[str, Any]:
    with opened(p.env) as env:
        _, spaces = read_spaces(env)
    config = p.algo_config.model_dump(mode="json")
    return {"algo": p.train.algo, "config": config, "env": {"id": p.env.id, "kwargs": p.env.kwargs}, **spaces}


# --- mutations --------------------------------------------------------------------------------------------------------


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of JSON data."""
    keys: list[Any] = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mutate_json(raw: bytes, draw: random.Random) -> bytes:
    """Change one to three values: gone, of another type, huge, negative, no number, nested, twice, or another's."""
    data = json.loads(raw)
    for _ in range(draw.randint(1, 3)):
        every = places(data)
        # What a policy is made of lies near the top; a run's provenance is much and unread.
        top = [place for place in every if place[0] is data] if draw.random() < 0.4 else every
        if not top:
            break
        container, key = draw.choice(top)
        value = container[key]
        change = draw.randrange(8)
        if change == 0:
            del container[key]
        elif change == 1:
            container[key] = [value]
        elif change == 2 and isinstance(value, int | float):
            container[key] = draw.choice((-value, value + 1, value - 1, value * 1000, float(value), str(value)))
        elif change == 3 and isinstance(value, list):
            container[key] = draw.choice((value * 2, value[:-1], value[::-1], value * 1000))
        elif change == 4:
            other, name = draw.choice(every)
            container[key] = (
                copy.deepcopy(other[name]) if name in other or (isinstance(other, list) and name < len(other)) else 0
            )
        else:
            container[key] = copy.deepcopy(draw.choice(STRANGE))
    return draw.choice([json.dumps(data)] * 30 + ["[]", "3", "null", '""', "[" * 5000]).encode()


def mutate_tensors(raw: bytes, draw: random.Random) -> bytes:
    """Change the header of a safetensors file, or its numbers."""
    size = struct.unpack("<Q", raw[:8])[0]
    header, body = json.loads(raw[8 : 8 + size]), bytearray(raw[8 + size :])
    name = draw.choice(sorted(header))
    change, entry = draw.randrange(7), header[name]
    if change == 0:
        del header[name]
    elif change == 1:
        entry["shape"] = draw.choice(([*entry["shape"][::-1]], [*entry["shape"], 1], [1, *entry["shape"]]))
    elif change == 2:
        entry["dtype"] = draw.choice({"F32": ["I32", "U32"], "I64": ["F64", "U64"], "F64": ["I64"]}[entry["dtype"]])
    elif change == 3:
        header[name + draw.choice(("", "x", ".0"))] = header.pop(name)
    elif change == 4:
        other = draw.choice(sorted(header))
        header[name], header[other] = header[other], header[name]
    elif change == 5:
        start, end = entry["data_offsets"]
        body[start:end] = draw.choice((b"\xff", b"\x7f", b"\x80", b"\x01")) * (end - start)
    else:
        header["extra"] = entry
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(body)


def flip(raw: bytes, draw: random.Random) -> bytes:
    """Change a byte, or cut the end off."""
    data = bytearray(raw)
    data[draw.randrange(min(len(data), draw.choice((64, len(data)))))] ^= 1 << draw.randrange(8)
    return bytes(data[: draw.randrange(len(data))] if draw.random() < 0.2 else data)


def mutated(files: Files, draw: random.Random) -> Files:
    told, tensors = sorted(files, key=lambda name: name.endswith(".safetensors"))
    change = draw.randrange(10)
    if change < 6:
        return files | {told: mutate_json(files[told], draw)}
    if change < 9:
        return files | {tensors: mutate_tensors(files[tensors], draw)}
    name = draw.choice((told, tensors))
    return files | {name: flip(files[name], draw)}


def hurt(folder: Path, names: tuple[str, ...], times: int, use: Callable[[Path], None]) -> int:
    """Use so many mutated folders; return how many were refused. The manifest is written anew: it says nothing."""
    intact, refused = read_folder(folder, names), 0
    for number in range(times):
        write_folder(folder, mutated(intact, random.Random(f"{folder.name} {number}")))
        said = None
        try:
            use(folder)
        except EvopipeError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(f"mutation {number} of {folder.name} gave {error!r}") from error
        if said is not None:
            assert "\n" not in said
            assert len(said) < 1500
            refused += 1
    write_folder(folder, intact)
    use(folder)
    return refused


# --- what is done with them -------------------------------------------------------------------------------------------


def consult(made: policy.Policy | policy.TeamPolicy) -> None:
    """Everything that a policy can be asked; that it has no such thing is an answer."""
    repr(made)
    if isinstance(made, policy.TeamPolicy):
        seen = {
            agent: np.zeros((2, space.size), np.float32)
            for agent, space in zip(made.agents, made.team.observations, strict=True)
            if space.plain
        }
        asked: list[Any] = [made.step, made.act, made.value, made.probabilities]
        for ask in (*asked, lambda obs: made.step(obs, epsilon=0.5, seed=1), lambda obs: made.module(0)):
            with contextlib.suppress(UsageError):
                ask(seen)
        return
    made.module()
    rows = made.on_rows()
    obs = np.zeros((2, made.observations), np.float32)
    action, _ = rows.step(obs)
    rows.step(obs, epsilon=0.5, seed=1)
    calls = [(ask, (obs,)) for ask in (rows.value, rows.q_values, rows.probabilities)]
    for ask, given in [*calls, (rows.q_values, (obs, action)), (rows.log_prob, (obs, action))]:
        with contextlib.suppress(UsageError):
            ask(*given)


def use_policy(folder: Path) -> None:
    made = policy.load(folder)
    consult(made)
    play.environment_of(made, trust=True)


def times(request: pytest.FixtureRequest) -> int:
    return SLOW if request.config.getoption("--slow") else QUICK


@pytest.mark.parametrize("case", CASES)
def test_policies(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    p = spec_of(case)
    folder = tmp_path / f"policy of {case.replace(':', ' ')}"
    policy.save(folder, p.train.algo, grown(p, 1)[0], described(p), False, "card", critic=True)
    assert hurt(folder, (policy.POLICY, policy.TENSORS), times(request), use_policy) > QUICK // 3


@pytest.mark.parametrize("case", CASES)
def test_members(case: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """As the stages read them, as policies, and as those that a run goes on from."""
    p = spec_of(case)
    folder, fresh = tmp_path / f"members of {case.replace(':', ' ')}", grown(p, 2)
    stored.write(folder, [*fresh, fresh[0]], {**about_spec(p), "policy": described(p), "elite": {"id": 0}})

    def use(folder: Path) -> None:
        read, _ = stored.read(folder, about_spec(p), "run it again", p.check)
        cohorts = p.form([replace(member, slot=i) for i, member in enumerate(read)])
        for cohort in cohorts:
            rows = 2 * p.spaces.agents
            obs = torch.zeros(len(cohort.members), rows, p.observations)
            if on_policy(p.algo):
                p.algo.step(p.algo_config, cohort.state, obs, None, torch.zeros(len(obs), rows, cohort.memory), None)
            else:
                p.algo.greedy(p.algo_config, cohort.state, cohort.normalised(obs), None)
        go_on(p, read, first_members(p, 2)[0])
        for made in policy.trained(folder):
            consult(made)

    assert hurt(folder, ("members.json", "members.safetensors"), times(request), use) > QUICK // 3


def test_a_population_that_does_not_say_how_it_was_born_is_not_trained(tmp_path: Path) -> None:
    """Nor one whose members have no places, or the same."""
    prepared(tmp_path, {})
    folder, remedy = tmp_path / "models/population", "run `evopipe population`"
    files = read_folder(folder, ("members.json", "members.safetensors"))
    told = json.loads(files["members.json"])
    for change in (
        {"mutations": None},
        {"mutations": [{"kind": 3}] * 3},
        {"mutations": []},
        {"members": told["members"][::-1]},
    ):
        write_folder(folder, files | {"members.json": json.dumps(told | change).encode()})
        answer = call(tmp_path, "train")
        assert (answer.code, answer.err.count("\n")) == (65, 1), answer.err
        assert remedy in answer.err


# --- sizes ------------------------------------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """The most numbers that any one tensor has that torch makes on the CPU."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "cpu":
            self.most = max(self.most, out.untyped_storage().nbytes() // 4)
        return out


def test_a_team_too_large_to_be_one_is_refused_at_once(tmp_path: Path) -> None:
    p = spec_of("maddpg")
    policy.save(tmp_path / "elite", "maddpg", grown(p, 1)[0], described(p), False, "card")
    files = read_folder(tmp_path / "elite")
    told = json.loads(files[policy.POLICY])
    team = [told["team"][0] | {"id": i, "observations": 1 << 20} for i in range(1000)]
    write_folder(tmp_path / "elite", files | {policy.POLICY: json.dumps(told | {"team": team}).encode()})
    with pytest.raises(DataError, match="team: "):
        policy.load(tmp_path / "elite")


@pytest.mark.parametrize("change", [
    {"arch": {"encoder": [[4096, False]] * 8, "latent": 4096, "head": [[4096, False]] * 8}},
    {"arch": {"latent": 4096}, "actions": 1 << 20},
    {"actions": 1 << 20},
    {"observations": 1 << 20},
])  # fmt: skip
@pytest.mark.thorough
def test_nothing_is_allocated_for_what_the_file_does_not_hold(change: dict[str, Any], tmp_path: Path) -> None:
    p = spec_of("dqn")
    policy.save(tmp_path / "elite", "dqn", grown(p, 1)[0], described(p), False, "card")
    files = read_folder(tmp_path / "elite")
    told = json.loads(files[policy.POLICY])
    told["arch"] |= change.pop("arch", {})
    write_folder(tmp_path / "elite", files | {policy.POLICY: json.dumps(told | change).encode()})
    with _Largest() as largest, pytest.raises(DataError, match=r"the tensor '.*' is .*, expected"):
        policy.load(tmp_path / "elite")
    assert largest.most <= 10_000


def test_loading_imports_nothing_that_the_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    p = spec_of("dqn")
    about = {**described(p), "env": {"id": "planted:Env-v0", "kwargs": {}}, "network": "planted", "critic": ["planted"]}
    policy.save(tmp_path / "elite", "dqn", grown(p, 1)[0], about, False, "card")
    with pytest.raises(DataError, match="critic: "):
        policy.load(tmp_path / "elite")
    for name in ("planted", "../planted", "_actor_critic", "__init__"):
        files = read_folder(tmp_path / "elite")
        told = {**json.loads(files[policy.POLICY]), "critic": [], "algo": name}
        write_folder(tmp_path / "elite", files | {policy.POLICY: json.dumps(told).encode()})
        with pytest.raises(DataError, match="no algorithm"):
            policy.load(tmp_path / "elite")
