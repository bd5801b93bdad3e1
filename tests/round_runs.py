"""Small runs whose numbers are round, as the report reads them, and episodes of agents: each can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lineages
from evopipe.core.arch import Arch
from evopipe.mutations import NONE, Mutation
from evopipe.report import read
from evopipe.report.lives import Key, lives_of
from evopipe.schema.network import NetworkConfig
from evopipe.searchers.history import Best, Born, Record, Scored

SMALL = lineages.ARCH
LARGE = Arch.start(NetworkConfig(encoder=(8, 16), latent=8, activation="Tanh"), ())
WIDENED = Mutation("architecture", "encoder", [8], [8, 16])
FASTER = Mutation("rl_hp", "lr", 1e-3, 2e-3)
NOISE = Mutation("parameters", "noise")
BENT = Mutation("activation", "activation", "ReLU", "Tanh")
SWAPPED = Mutation("swap", "two layers of the encoder")


def scored(slot: int, id: int, fitness: float | None, arch: Arch = SMALL, lr: float = 1e-3) -> Scored:
    hyper = {"lr": lr, "batch_size": 32}
    return Scored(slot, id, None, id, arch, hyper, fitness is not None, float("-inf") if fitness is None else fitness)


def born(
    slot: int, id: int, of: int | None, by: Mutation = NONE, arch: Arch = SMALL, lr: float = 1e-3, why: str = ""
) -> Born:
    return Born(slot, id, of, of, arch, {"lr": lr, "batch_size": 32}, by, why)


LINEAGE = [
    Record(0, 0, (), None, tuple(born(slot, slot, None) for slot in range(3))),
    Record(1, 100, (scored(0, 0, 10.0), scored(1, 1, 20.0), scored(2, 2, None)), Best(1, 20.0),
           (born(0, 1, 1), born(1, 3, 1, WIDENED, LARGE), born(2, 4, 0, FASTER, lr=2e-3))),
    Record(2, 200, (scored(0, 1, 18.0), scored(1, 3, 30.0, LARGE), scored(2, 4, 11.0, lr=2e-3)), Best(3, 30.0),
           (born(0, 3, 1, arch=LARGE), born(1, 5, 1, NOISE, LARGE), born(2, 6, 0, BENT))),
    Record(3, 300, (scored(0, 3, 28.0, LARGE), scored(1, 5, 36.0, LARGE), scored(2, 6, 12.0)), Best(5, 36.0),
           (born(0, 5, 1, arch=LARGE), born(1, 7, 0, arch=LARGE), born(2, 8, 1, SWAPPED, LARGE))),
    Record(4, 400, (scored(0, 5, 37.0, LARGE), scored(1, 7, -400.0, LARGE), scored(2, 8, None, LARGE))),
]  # fmt: skip
"""The elite is 5: 1 came first, 3 of it, 5 of 3 and went on. 7 fell far; 2 and 8 diverged."""


def held(name: str, mean: float, interval: tuple[float, float], returns: dict[int, float], share: float) -> read._Held:
    """Episodes by seed, one step longer each; of the mean the agent `chaser` has a share, and `runner` the rest."""
    episodes = tuple(
        read._Episode(member=name, seed=seed, total=total, length=10 + i)
        for i, (seed, total) in enumerate(returns.items())
    )
    agents = {"runner": mean * (1 - share), "chaser": mean * share}
    return read._Held(name, mean, interval, episodes, agents, {"all": mean})


def alone(held: read._Held) -> read._Held:
    return replace(held, agents={}, groups={})


ELITE = held("elite", 33.0, (30.0, 35.5), {7: 30.0, 8: 31.0, 9: 38.0}, 0.75)
MEMBERS = (
    held("slot 0", 32.0, (28.0, 36.0), {7: 28.0, 8: 31.0, 9: 37.0}, 0.5),
    held("slot 1", -12.0, (-60.0, 20.0), {7: 20.0, 8: 4.0, 9: -60.0}, 0.25),
    held("slot 2", 34.0, (33.0, 35.0), {7: 33.0, 8: 34.0, 9: 35.0}, 1.0),
)
GENERATIONS = tuple(
    read._Generation(generation, steps, score)
    for generation, steps, score in ((1, 300, 20.0), (2, 600, 30.0), (3, 900, 35.0), (4, 1200, 36.5))
)
SIGNALS = {(g, slot): {"losses/approx_kl": 0.1 * g + 0.01 * slot} for g in range(1, 5) for slot in range(3)}
TEAM = read.FinishedRun(
    generations=GENERATIONS,
    nodes=read._nodes(LINEAGE),
    summary=read._Summary("max_steps", 4, read._Steps(1200, 7200), read._Champion(5, 4, 36.5, True), 40.0),
    policy={
        "algo": "ippo", "env": {"id": "chase_v1"}, "config": {"score": "sum"},
        "provenance": {"evopipe": "9.8.7", "git_revision": None, "fingerprint": {"cpu": "x", "torch": "2.1"}},
    },
    elite=ELITE,
    members=MEMBERS,
    timing=(read._Timing(1, 30.0, 300, 150), read._Timing(3, 0.0, 1, 1), read._Timing(4, 60.0, 300, 3000)),
    signals=SIGNALS,
    replays=read._Replays(
        read._Champion(5, 4, 36.5), 400,
        (read._Replayed(21, 20.0, (15.0, 25.0)), read._Replayed(22, None, None), read._Replayed(23, 28.0, (26.0,
        29.0))),
        24.0, (20.0, 28.0), ("architecture",),
        (read._Change(0, {"lr": 1e-3, "batch_size": 32.0}), read._Change(200, {"lr": 5e-4})),
    ),
)  # fmt: skip
"""A team of two agents, a target that was not reached, replays, and other runs beside it."""

STEPS = {1: 100, 2: 200, 3: 300, 4: 500}
MEASURES: dict[str, dict[Key, float | str]] = {
    "reward": {(1, 0): 0.25, (2, 0): 0.5, (3, 1): 0.5, (4, 0): 0.75, (4, 1): 1.0},
    "kl": {(1, 0): 0.0005, (2, 0): 0.001, (3, 1): 0.002, (4, 0): 0.016, (4, 1): 0.004},
}
WAITED = read.FinishedRun(
    generations=tuple(read._Generation(g, steps, 9.0 if g > 2 else 7.0) for g, steps in STEPS.items()),
    nodes=read._nodes(lineages.WAITED),
    summary=read._Summary("target", 4, read._Steps(500, 40), read._Champion(2, 3, 9.0)),
    policy={"algo": "grpo", "env": {"id": "sums"}, "config": {}, "provenance": {"evopipe": "9.8.7"}},
    elite=alone(replace(ELITE, interval=(8.0, 8.5), mean=8.25)),
    members=tuple(map(alone, MEMBERS[:2])),
    timing=(),
    told=read._Told(
        MEASURES,
        (
            read._Completion("1+1=", read._Said("2", 1.0), read._Said("11", -0.5)),
            read._Completion("2+2=", read._Said("4"), read._Said("", None)),
        ),
        -3.25, (0.125, 0.875),
    ),
    lives=lives_of(lineages.WAITED, STEPS),
    replays=replace(TEAM.replays, mean=8.6, interval=(8.25, 9.0)),  # type: ignore[type-var]
)  # fmt: skip
"""Language models of which some waited; a child is the elite, and nothing was measured."""

GAMES = replace(
    WAITED,
    told=read._Told(
        {"loss": {(1, 0): 0.5, (2, 0): 0.25}},
        games=(
            read._Game(game=read._Turns(("ab", "cd"), ("yb", "gg")), total=-1.0, won=True),
            read._Game(game=read._Turns(("ba", "<<"), ("by", "")), total=-3.0, won=False),
        ),
        players={
            "elite": read._Player(-1.5, 0.75, 2.5), "random": read._Player(-6.0, 0.25, 4.5),
            "optimal": read._Player(-1.25, 1.0, 2.0),
        },
    ),
)  # fmt: skip
"""The same of games of words."""

SEATS = 21
MANY = replace(
    TEAM,
    generations=(read._Generation(1, 1000, 20.0), read._Generation(2, 2_500_000, 40.0)),
    nodes=read._nodes([
        Record(0, 0, (), None, tuple(born(slot, slot, None) for slot in range(SEATS))),
        Record(1, 10, tuple(scored(slot, slot, float(slot)) for slot in range(SEATS)), Best(20, 20.0),
               tuple(born(slot, SEATS + slot, SEATS - 1 - slot, FASTER, lr=2e-3) for slot in range(SEATS))),
        Record(2, 20, tuple(scored(slot, SEATS + slot, 2.0 * slot - 300.0 * (slot == 3), lr=2e-3 if slot else 3e-3)
                            for slot in range(SEATS))),
    ]),
    summary=replace(TEAM.summary, target=None, elite=read._Champion(41, 2, 40.0, True)),
    members=tuple(held(f"slot {slot}", slot - 90.0 * (slot == 2), (slot - 95.0, slot + 3.0),
    {7: slot - 200.0 * (slot == 2)}, 0.5)
                  for slot in range(12)),
    timing=(read._Timing(1, 7200.0, 36_000_000, 0), read._Timing(2, 3700.0, 0, 370)),
)  # fmt: skip
"""More than fit: the marks are smaller, and what lies far below the rest stands at the edge."""

LONG = replace(
    TEAM,
    generations=tuple(read._Generation(g, 10 * g, 1.0) for g in range(1, 22)),
    nodes=read._nodes([Record(0, 0, (), None, (born(0, 0, None),)),
                       *(Record(g, g, (scored(0, 0, 1.0),), None, (born(0, 0, 0),)) for g in range(1, 22))]),
    summary=replace(TEAM.summary, target=0.5, elite=read._Champion(0, 21, 1.0)),
)  # fmt: skip
"""One member that never changed."""


def said(reward: float, action: Any = None, done: bool = False, **out: Any) -> dict[str, Any]:
    return {"reward": reward, "action": action, "done": done, "model_output": out}


def piece(text: str, step: int, written: bool = True, **numbers: Any) -> dict[str, Any]:
    return {"text": text, "step": step, "written": written, **numbers}


ADD = {"function": {"name": "add", "arguments": '{"a": 1}'}}
EPISODES: dict[str, list[dict[str, Any]]] = {
    "Round 1": [
        {
            "id": "7:0", "slot": 2, "task": {"question": "1+1"}, "termination_reason": "env_done", "is_correct": True,
            "attempts": 3, "info": {},
            "trajectories": [
                {
                    "name": "solver", "reward": 1.0,
                    "steps": [said(0.25, completion_ids=[1, 2, 3], tool_calls=[ADD]),
                              said(0.75, "two", True, completion_ids=[4, 5])],
                    "rows": [[
                        piece("What is 1+1?", 0, False),
                        piece("ab", 0, tokens=["a", "b"], advantage=[0.5, -1.0], log_prob=[-1.0, -2.0],
                              new_log_prob=[-0.75, -3.0]),
                        piece("the tool's answer", 0, False),
                        piece("two", 1),
                    ]],
                },
                {"name": "judge", "reward": 1.0, "steps": [said(0.5, completion_ids=[6])]},
            ],
        },
        {
            "id": "7:1", "slot": 2, "task": "1+1", "termination_reason": "max_turns_exceeded", "is_correct": False,
            "info": {
                "error": {"error_type": "ValueError", "error_message": "no <number>"}, "close": "it hung"},
                "counts": False,
            "trajectories": [{"name": "solver", "reward": -0.25, "steps": [said(-0.25, {"move": 3})],
            "rows": [[piece("x", 0)]]}],
        },
    ],
    "Elite": [
        {"id": "8:0", "task": "2+2", "termination_reason": "timeout", "is_correct": False, "info": {},
        "trajectories": []},
        {"id": "9:0", "task": "3", "termination_reason": "env_done", "is_correct": False, "info": {},
         "trajectories": [{"name": "solver", "reward": 0.0, "steps": [said(0.0)], "rows": []}]},
        {"id": "9:1", "task": "3", "termination_reason": "env_done", "is_correct": True, "info": {},
         "trajectories": [{"name": "solver", "reward": 0.0, "steps": [said(0.0)], "rows": []}]},
    ],
}  # fmt: skip
