"""A finished run as the report needs it, read from its files: members by descent, scores, times."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from evopipe import layout
from evopipe.errors import DataError
from evopipe.report import words
from evopipe.report.lives import Key, Life, lives_of
from evopipe.report.opponents import Matches, met
from evopipe.searchers.history import Origin, Record, Scored, origins, read_lineage
from evopipe.storage.files import parse_json, read_bytes, read_json
from evopipe.storage.folders import read_folder
from evopipe.track.signals import read_signals

_T = TypeVar("_T")


@dataclass(frozen=True)
class Node:
    """The state of one member at the end of one generation.

    Attributes:
        key: the (generation, slot); a slot is a member's place in the population.
        id: the member's id, which it keeps while it survives.
        parent: the (generation, slot) in which the parent was last scored; None for initial weights.
        fitness: the score; NaN if the member diverged.
        gain: the fitness minus the parent's; NaN if one of them is missing.
        kind: the kind of the mutation that made the member.
        change: what the mutation changed, as text.
        survived: whether the member went on from the previous generation unchanged; `parent` then is its own earlier
            node.
        network: a short description of the architecture.
        traits: hyper-parameters and traits of the architecture by name.
        steps: environment steps that the member has trained for.
        why: the reason why the member is in its slot, as text.
    """

    key: Key
    id: int
    parent: Key | None
    fitness: float
    gain: float
    kind: str
    change: str
    survived: bool
    network: str
    traits: Mapping[str, float | str]
    steps: int = 0
    why: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the member diverged, which means that it has no finite fitness."""
        return not math.isfinite(self.fitness)

    @property
    def made(self) -> str:
        """A text that names the kind of the mutation that made the member, and says what the mutation changed."""
        name = words.KINDS.get(self.kind, self.kind)
        return self.change if self.change.startswith(name) else f"{name}{f': {self.change}' if self.change else ''}"

    @property
    def began(self) -> str:
        """A text that says how the member was created. For a member with a parent, it is `made`; otherwise it is
        `a new trial` or `first generation`."""
        if self.parent:
            return self.made
        return "a new trial" if self.why else "first generation"

    @property
    def about(self) -> str:
        """The text of the member's tooltip: its place, its origin, its fitness and its network."""
        born = "survived" if self.survived else self.began
        if not self.parent and self.kind != "none":
            born += f", {self.made}"
        born += f" ({self.why})" if self.why else ""
        gain = f" ({words.figure(self.gain, signed=True)} over its parent)" if math.isfinite(self.gain) else ""
        scored = "diverged" if self.diverged else f"fitness {words.figure(self.fitness)}{gain}"
        return f"generation {self.key[0]}, slot {self.key[1]}, member {self.id}\n{born}\n{scored}\n{self.network}"


@dataclass(frozen=True)
class _Generation:
    generation: int
    env_steps: int  # of the population, from the start on
    elite: Annotated[float, BeforeValidator(lambda text: text or math.nan)]  # the best score so far


@dataclass(frozen=True)
class _Timing:
    generation: int
    seconds: float
    env_steps: int
    eval_steps: int


@dataclass(frozen=True)
class _Steps:
    training: int
    evaluation: int


@dataclass(frozen=True)
class _Champion:
    id: int
    generation: int
    score: float
    confirmed: bool = False


@dataclass(frozen=True)
class _Summary:
    reason: str
    generations: int
    steps: _Steps
    elite: _Champion
    target: float | None = None


@dataclass(frozen=True)
class _Score:
    mean: float
    interval: tuple[float, float]
    agents: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Judged:
    mean: float
    task: float | None = None


@dataclass(frozen=True)
class _Player:
    """How someone plays games: mean return, share of them that is won, mean number of guesses."""

    mean: float
    won: float
    tries: float


@dataclass(frozen=True)
class _Episode:
    member: str
    seed: int
    total: Annotated[float, Field(alias="return")]
    length: int


@dataclass(frozen=True)
class _Held:
    name: str
    mean: float
    interval: tuple[float, float]
    episodes: tuple[_Episode, ...]  # at least one
    agents: Mapping[str, float]  # the mean return of each agent of a team; none where one agent acts
    groups: Mapping[str, float]  # and of each group's agents, summed up

    @property
    def returns(self) -> list[float]:
        """One an episode."""
        return [episode.total for episode in self.episodes]


@dataclass(frozen=True)
class Payoff:
    """Statistics of the children that one kind of mutation made.

    Attributes:
        kind: the kind of mutation.
        children: the number of children.
        gains: the children's fitness minus their parents', ascending, without children that diverged.
        diverged: the number of children that diverged.
    """

    kind: str
    children: int
    gains: tuple[float, ...]
    diverged: int

    @property
    def improved(self) -> float:
        """The share of the children that have a higher fitness than their parents."""
        return sum(gain > 0 for gain in self.gains) / self.children

    @property
    def median(self) -> float:
        """The median of the gains (a child's fitness minus its parent's); NaN if there are none."""
        return median(self.gains) if self.gains else math.nan


@dataclass(frozen=True)
class _Said:
    """What a completion was, and its reward, None where none could be given."""

    text: str
    reward: float | None = None


@dataclass(frozen=True)
class _Completion:
    """A held-out prompt, and what the elite and the base make of it."""

    prompt: str
    elite: _Said
    base: _Said


@dataclass(frozen=True)
class _Turns:
    guesses: tuple[str, ...]
    colours: tuple[str, ...]


@dataclass(frozen=True)
class _Game:
    """A game of words."""

    game: _Turns
    total: Annotated[float, Field(alias="return")]
    won: bool

    @property
    def turns(self) -> list[list[tuple[str, str]]]:
        """Of each guess the letters, and what was said of each: `g`, `y`, `b`, or `x` where nothing was."""
        turns = zip(self.game.guesses, self.game.colours, strict=True)
        return [list(zip(guess, told or "x" * len(guess), strict=True)) for guess, told in turns]


@dataclass(frozen=True)
class _Told:
    """What language models did: means of each generation by name, and completions, or games."""

    measures: Mapping[str, Mapping[Key, float | str]]
    completions: tuple[_Completion, ...] = ()
    base: float = math.nan  # the base's mean score
    task: tuple[float, float] | None = None  # the base's and the elite's by the task itself, if a reward model scores
    games: tuple[_Game, ...] = ()
    players: Mapping[str, _Player] = field(default_factory=dict)  # of the games: the elite, and who made the data


@dataclass(frozen=True)
class _Change:
    steps: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class _Replayed:
    """A replay; no mean where it diverged."""

    seed: int
    mean: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class _Replays:
    """What `evopipe replay` wrote of an elite."""

    elite: _Champion
    steps: int
    replays: tuple[_Replayed, ...]
    mean: float | None
    interval: tuple[float, float] | None
    not_followed: tuple[str, ...]
    schedule: tuple[_Change, ...]


@dataclass(frozen=True)
class FinishedRun:
    """The data of one finished run that the report shows, read from the files of its stages.

    Attributes:
        generations: environment steps and the best score so far, for each generation.
        nodes: the members' states by (generation, slot); a slot is a member's place in the population.
        summary: the reason why the run ended, and its totals.
        policy: the content of the elite's `policy.json`.
        elite: the held-out scores of the best member.
        members: the held-out scores of the last population.
        timing: seconds and steps of each generation.
        told: figures and completions of language models; None for other runs.
        signals: means of the training signals by name, for each (generation, slot).
        lives: the histories of members, if they did not all train at the same time; else empty.
        replays: the results of `evopipe replay` for this elite; None if there are none.
        lessons: the generations in which a curriculum changed the training environments, each with those keyword
            arguments that differ in the run; empty without a curriculum.
        met: how each generation trained by self-play, and against whom; empty without self-play.
    """

    generations: tuple[_Generation, ...]
    nodes: Mapping[Key, Node]
    summary: _Summary
    policy: Mapping[str, Any]
    elite: _Held
    members: tuple[_Held, ...]
    timing: tuple[_Timing, ...]
    told: _Told | None = None
    signals: Mapping[Key, Mapping[str, float]] = field(default_factory=dict)
    lives: tuple[Life, ...] = ()
    replays: _Replays | None = None
    lessons: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    met: tuple[Matches, ...] = ()

    @cached_property
    def slots(self) -> int:
        """The number of slots (places in the population) that the report shows. The last one shown is the last in which
        a member was scored."""
        return 1 + max((slot for _, slot in self.nodes), default=0)

    @cached_property
    def descent(self) -> tuple[Node, ...]:
        """The elite (the best member) and its ancestors, generation by generation, the oldest first."""
        born = self.summary.elite
        node = next((n for n in self.nodes.values() if (n.key[0], n.id) == (born.generation, born.id)), None)
        line = []
        while node is not None:
            line.append(node)
            node = self.nodes[node.parent] if node.parent else None
        return tuple(reversed(line))

    @cached_property
    def env_steps(self) -> Mapping[int, int]:
        """The population's environment steps of training at the end of each generation, by generation."""
        return {row.generation: row.env_steps for row in self.generations}

    @cached_property
    def payoffs(self) -> list[Payoff]:
        """Statistics of each kind of mutation that made a child. Members that survived unchanged are not counted as
        children."""
        children: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            if node.parent is not None and not node.survived:
                children.setdefault(node.kind, []).append(node)
        found = []
        for kind in dict.fromkeys((*words.KINDS, *sorted(children))):
            if nodes := children.get(kind):
                gains = tuple(sorted(node.gain for node in nodes if math.isfinite(node.gain)))
                found.append(Payoff(kind, len(nodes), gains, sum(node.diverged for node in nodes)))
        return found

    @cached_property
    def traits(self) -> tuple[dict[str, dict[Key, float | str]], dict[str, float | str]]:
        """Hyper-parameters and architecture traits of all members, as two dicts by name.

        The first dict has traits that differ between members or generations, with their values by (generation, slot); a
        slot is a member's place in the population. The second dict has constant traits, each with its one value.
        """
        columns: dict[str, dict[Key, float | str]] = {}
        for node in self.nodes.values():
            for name, value in node.traits.items():
                columns.setdefault(name.replace("_", " "), {})[node.key] = value
        varying = {name: column for name, column in columns.items() if len(set(column.values())) > 1}
        return varying, {name: next(iter(columns[name].values())) for name in columns if name not in varying}


def read(folder: Path) -> FinishedRun:
    """Read a finished run from the folder that has its `reports/` and `models/elite/`.

    Raises:
        MissingInputError: a file is missing.
        DataError: a file does not have the content that its stage writes, or files belong to different runs.
    """
    for out in (*layout.OUTS["train"][1:], *layout.OUTS["evaluate"], layout.ELITE):  # all but the trained members
        if out != layout.SIGNALS:  # runs of earlier versions have none
            layout.need(folder, out)
    best = _json(folder, layout.EVALUATION, _Score, "elite")
    scores = {"elite": best, **_json(folder, layout.MEMBERS, dict[str, _Score])}
    episodes = _rows(folder, layout.EPISODES, _Episode)
    held = {name: tuple(episode for episode in episodes if episode.member == name) for name in scores}
    for name, score in scores.items():
        if not held[name]:
            raise _unlike(folder, layout.EPISODES, f"no episode of {name}")
        if (score.agents.keys(), score.groups.keys()) != (best.agents.keys(), best.groups.keys()):
            raise _unlike(folder, layout.MEMBERS, f"{name}: other agents or groups than the elite's")
    policy = read_folder(folder / layout.ELITE, only=("policy.json",))["policy.json"]
    about = parse_json(policy, str(folder / layout.ELITE / "policy.json"))
    beside = layout.SHOWN_BESIDE.get(str(about.get("kind")), ())
    order = [str(agent["id"]) for agent in about.get("team", ())]  # files have names sorted
    if sorted(order) != sorted(best.agents):
        raise _unlike(folder, layout.EVALUATION, "other agents than the policy's")
    summary, generations = _json(folder, layout.TRAIN, _Summary), _rows(folder, layout.FITNESS, _Generation)
    lineage = read_lineage(read_bytes(folder / layout.LINEAGE), str(folder / layout.LINEAGE))
    elite, *last = (
        _Held(n.replace("member_", "slot "), at.mean, at.interval, held[n], {a: at.agents[a] for a in order}, at.groups)
        for n, at in scores.items()
    )
    return FinishedRun(
        generations=generations,
        nodes=_nodes(lineage),
        summary=summary,
        policy=about,
        elite=elite,
        members=tuple(last),
        timing=_rows(folder, layout.TIMING, _Timing),
        signals=(signals := _signals(folder)),
        told=_told(folder, beside) if beside else None,
        lives=lives_of(lineage, {row.generation: row.env_steps for row in generations}),
        replays=_replays(folder, summary.elite),
        lessons=_lessons(lineage),
        met=met(lineage, signals),
    )


def _lessons(lineage: Sequence[Record]) -> tuple[tuple[int, dict[str, Any]], ...]:
    """Return from which generations on a curriculum taught what, of the arguments that it ever changed."""
    taught = [(record.generation, record.curriculum) for record in lineage if record.curriculum is not None]
    names = sorted({name for _, given in taught for name in given})
    varied = [name for name in names if any(given.get(name) != taught[0][1].get(name) for _, given in taught)]
    told = [(generation, {name: given.get(name) for name in varied}) for generation, given in taught]
    return tuple(now for place, now in enumerate(told) if not place or told[place - 1][1] != now[1])


def _signals(folder: Path) -> dict[Key, dict[str, float]]:
    """Read the members' signals, means alone; nothing where there are none."""
    if not (folder / layout.SIGNALS).exists():
        return {}
    found = read_signals(folder / layout.SIGNALS)
    return {key: {name: mean for name, (mean, _) in own.items()} for key, own in found.items()}


def _replays(folder: Path, elite: _Champion) -> _Replays | None:
    """Read the replays of this elite; None where there are none, or they are of another."""
    if not (folder / layout.REPLAY).exists():
        return None
    found = _json(folder, layout.REPLAY, _Replays)
    named = (elite.id, elite.generation, elite.score)
    return found if (found.elite.id, found.elite.generation, found.elite.score) == named else None


def _told(folder: Path, files: Iterable[Path] = (layout.MEASURES, layout.COMPLETIONS)) -> _Told:
    """Read what language models did; MissingInputError or DataError as `read`."""
    for out in files:
        layout.need(folder, out)
    measures: dict[str, dict[Key, float | str]] = {}
    for row in _rows(folder, layout.MEASURES, dict[str, float | Literal[""]]):
        key = int(row.pop("generation") or 0), int(row.pop("slot") or 0)
        for name, value in row.items():
            if isinstance(value, float):
                measures.setdefault(name, {})[key] = value
    measures = {name: column for name, column in measures.items() if len(set(column.values())) > 1}
    shown = _json(folder, layout.COMPLETIONS, tuple[_Completion | _Game, ...])
    games = tuple(each for each in shown if isinstance(each, _Game))
    if games:
        players = {"elite": _json(folder, layout.EVALUATION, _Player, "elite")}
        players |= _json(folder, layout.EVALUATION, dict[str, _Player], "behaviours")
        return _Told(measures, games=games, players=players)
    said = tuple(each for each in shown if isinstance(each, _Completion))
    base, elite = (_json(folder, layout.EVALUATION, _Judged, name) for name in ("base", "elite"))
    return _Told(
        measures, said, base.mean, None if base.task is None or elite.task is None else (base.task, elite.task)
    )


def _nodes(lineage: Sequence[Record]) -> dict[Key, Node]:
    """Return every member at the end of every generation, in order."""
    found: dict[Key, Node] = {}
    for record, of in origins(lineage):
        for member in record.members:
            origin = of[member.slot]
            parent = found.get(origin.parent) if origin.parent else None
            found[record.generation, member.slot] = _node(member, record, parent, origin)
    return found


def _node(member: Scored, record: Record, parent: Node | None, origin: Origin) -> Node:
    fitness = member.fitness if member.healthy and math.isfinite(member.fitness) else math.nan
    hyper = {name: float(value) for name, value in sorted(member.hyper.items())}
    return Node(
        key=(record.generation, member.slot),
        id=member.id,
        parent=parent.key if parent else None,
        fitness=fitness,
        gain=fitness - parent.fitness if parent else math.nan,
        kind=origin.mutation.kind,
        change=origin.mutation.describe(),
        survived=parent is not None and parent.id == member.id,
        network=f"{member.arch.describe()} {member.arch.activation}",
        traits=hyper | dict(_traits(member.arch.to_json())),
        steps=record.step if member.steps is None else member.steps,
        why=origin.why,
    )


def _traits(arch: Mapping[str, Any]) -> Iterator[tuple[str, float | str]]:
    """Describe an architecture by numbers and words; a part that is a list of layers gives two."""
    for key, value in sorted(arch.items()):
        name = key.replace("_", " ")
        if isinstance(value, Mapping):  # arguments of a module of the user's own
            yield from _traits({name: json.dumps(x) if isinstance(x, list | dict) else x for name, x in value.items()})
        elif isinstance(value, list):
            yield f"{name} layers", float(len(value))
            yield f"{name} units", float(sum(layer[0] for layer in value))
        elif isinstance(value, bool) or not isinstance(value, int):
            yield name, {True: "yes", False: "no"}.get(value, str(value))
        else:
            yield f"{name} units" if name == "latent" else name, float(value)


def _json(folder: Path, path: Path, kind: type[_T], part: str = "") -> _T:
    """Read a file, or what it holds under one key."""
    content = read_json(folder / path)
    if part and not (isinstance(content, dict) and part in content):
        raise _unlike(folder, path, f"{part}: missing")
    return _checked(folder, path, kind, content[part] if part else content)


def _rows(folder: Path, path: Path, kind: type[_T]) -> tuple[_T, ...]:
    text = read_bytes(folder / path).decode(errors="replace")
    return _checked(folder, path, tuple[kind, ...], list(csv.DictReader(text.splitlines())))  # type: ignore[valid-type]


def _checked(folder: Path, path: Path, kind: type[_T], data: Any) -> _T:
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise _unlike(folder, path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _unlike(folder: Path, path: Path, fault: str) -> DataError:
    remedy = f"dvc repro {layout.WRITER[path]}" if path in layout.WRITER else "evopipe replay"
    return DataError(f"{folder / path}: does not hold what it should ({fault}); run `{remedy}` again")
