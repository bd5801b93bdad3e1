"""One generation by hand: whose child stands where, with what, and how far its architecture may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths
from evopipe.mutations import (
    NONE,
    Traits,
    mutate,
)
from evopipe.mutations.parameters import _disturb
from evopipe.problems.env import begin
from evopipe.run.spec import first_members
from evopipe.schema.declare import Evolve
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig, TournamentConfig
from evopipe.searchers.apply import Evolved, evolve
from evopipe.searchers.history import Born, Record, descent
from evopipe.types import Image

PROBABILITIES = ("none", "architecture", "parameters", "activation", "rl_hp")
ARCH = Arch((Block(32),), 32, (Block(16),), "ReLU", False)
BOUNDS = ArchitectureBounds(
    min_layers=1, max_layers=2, min_nodes=16, max_nodes=48, node_steps=(16,), min_latent=24, max_latent=40,
    latent_steps=(8,), min_channels=4, max_channels=12, channel_steps=(4,), min_kernel=2, max_kernel=5,
)  # fmt: skip


def only(*kinds: str, **changes: Any) -> MutationConfig:
    weights = {kind: float(kind in kinds) for kind in PROBABILITIES}
    return MutationConfig.model_validate({"probabilities": weights, **changes})


def traits(evolvable: Mapping[str, Evolve] | None = None) -> Traits:
    kinds = {
        "q": ("parameters", "q"), "adam.mean": ("moments", "q"), "adam.square": ("moments", "q"),
        "adam.steps": ("row", ""),
    }  # fmt: skip
    return Traits({"q": Widths(4, 2)}, ["q"], kinds, evolvable or {}, frozenset())


def member(slot: int) -> Member:
    """One whose every number says which slot it came from; it was born to 70 + slot, as 20 + slot."""
    size = 4 * 8 + 8 + 8 * 2 + 2
    tensors = {
        "q": torch.full((size,), 1.0 + slot), "adam.mean": torch.full((size,), 10.0 + slot),
        "adam.square": torch.full((size,), 20.0 + slot), "adam.steps": torch.tensor(30.0 + slot),
    }  # fmt: skip
    hyper = {"lr": 0.1 * (1 + slot)}
    return Member(
        slot, 20 + slot, 70 + slot, 500 + slot, Arch((), 8, (), "ReLU", False), hyper, tensors, fitness=(40.0 + slot,)
    )


def born(mutation: MutationConfig, *, elitism: bool = True, size: int = 4) -> tuple[list[Member], Evolved]:
    members, fitness = [member(slot) for slot in range(size)], np.array([1.0, 0.0, 9.0, 2.0])
    cfg = TournamentConfig(size=2, elitism=elitism)
    return members, evolve(cfg, mutation, traits({"lr": Evolve(min=1e-3, max=10.0)}), members, fitness, 3, 1, 100)


def names_of(one: Member) -> tuple[int, int, int | None, int]:
    return one.slot, one.id, one.parent, one.key


def assert_carried(child: Member, parent: Member) -> None:
    """All but name and place is the parent's, and shares no memory with it."""
    assert populations.same(child, parent)
    assert (child.arch, child.hyper, child.fitness) == (parent.arch, parent.hyper, parent.fitness)
    assert child.hyper is not parent.hyper
    assert not {t.data_ptr() for t in child.tensors.values()} & {t.data_ptr() for t in parent.tensors.values()}


def test_a_generation_without_mutation_by_hand() -> None:
    members, found = born(only("none"))
    assert found.parents[0] == 2
    assert len(set(found.parents)) > 1
    assert names_of(found.members[0]) == (0, 22, 72, 500)  # the elite under its own id and ancestry, on the slot's key
    for slot, (child, parent) in enumerate(zip(found.members, found.parents, strict=True)):
        assert_carried(child, members[parent])
        if slot:
            assert names_of(child) == (slot, 100 + slot, 20 + parent, 500 + slot)


def test_a_line_of_descent_ends_at_the_first_and_in_a_circle() -> None:
    """A survivor is born once; of a file that says that two descend from each other, each is told once."""

    def record(generation: int, *births: tuple[int, int | None]) -> Record:
        arch = Arch((), 8, (), "ReLU", False)
        children = tuple(Born(slot, id, parent, 0, arch, {}, NONE) for slot, (id, parent) in enumerate(births))
        return Record(generation, 0, children=children)

    def line(member: int, *records: Record) -> list[tuple[int, int | None, int]]:
        return [(birth["id"], birth["parent"], birth["generation"]) for birth in descent(records, member)]

    found = record(0, (0, None), (1, None)), record(1, (0, None), (2, 1)), record(2, (2, 1), (3, 2))
    assert line(3, *found) == [(3, 2, 2), (2, 1, 1), (1, None, 0)]
    assert line(9, *found) == []
    assert line(3, record(0, (4, 5)), record(1, (5, 4), (3, 4))) == [(3, 4, 1), (4, 5, 0), (5, 4, 1)]


@pytest.mark.parametrize("elitism", [False, True])
def test_who_is_called_a_survivor(elitism: bool) -> None:
    """The elite's copy, unless it mutated; without elitism nobody is."""
    members, found = born(only("rl_hp", mutate_elite=True), elitism=elitism)
    for slot, (child, parent) in enumerate(zip(found.members, found.parents, strict=True)):
        assert names_of(child) == (slot, 100 + slot, 20 + parent, 500 + slot)
        assert child.hyper["lr"] == pytest.approx(
            members[parent].hyper["lr"] * (1.2 if slot_grew(found, slot) else 0.8)
        )
        assert populations.same(child, members[parent])
    _, found = born(only("none", mutate_elite=True), elitism=elitism)
    assert names_of(found.members[0]) == ((0, 22, 72, 500) if elitism else (0, 100, 20 + found.parents[0], 500))


@pytest.mark.parametrize("elitism", [False, True])
def test_slot_0_is_spared_mutation_only_where_it_holds_the_elite(elitism: bool) -> None:
    _, found = born(only("rl_hp"), elitism=elitism)
    assert [change.kind for change in found.mutations] == ["none" if elitism else "rl_hp", "rl_hp", "rl_hp", "rl_hp"]


def test_every_generation_and_every_seed_draws_parents_anew() -> None:
    """Of equal fitness, so that nothing but the draw tells; equal ones are one in 8⁷."""
    kept, fitness = [member(slot) for slot in range(8)], np.zeros(8)

    def parents(seed: int, generation: int) -> tuple[int, ...]:
        cfg = TournamentConfig(size=1)
        return evolve(cfg, only("none"), traits(), kept, fitness, seed, generation, 100).parents

    when = [(3, 1), (3, 2), (3, 3), (4, 1)]
    drawn = [parents(*each) for each in when]
    assert len(set(drawn)) == len(drawn)
    assert drawn == [parents(*each) for each in when]


def slot_grew(found: Evolved, slot: int) -> bool:
    return bool(found.mutations[slot].after > found.mutations[slot].before)


def test_every_slot_mutates_by_its_own_key_and_every_generation_anew() -> None:
    """Slots of one parent get unlike mutations; the same slot in another generation too."""
    kept = [member(slot) for slot in range(4)]
    cfg, fitness = only("parameters"), np.array([-np.inf, -np.inf, 9.0, -np.inf])
    first, other = (evolve(TournamentConfig(), cfg, traits(), kept, fitness, 3, g, 100) for g in (1, 2))
    rows = [child.tensors["q"] for step in (first, other) for child in step.members[1:]]
    assert len({tuple(row.tolist()) for row in rows}) == 6
    assert all(populations.same(step.members[0], kept[2]) for step in (first, other))
    # A slot's mutation depends on its own key, and on no other slot's.
    for i, other_key in ((1, 501), (2, 999)):
        moved = [replace(m, key=other_key if m.slot == i else m.key) for m in kept]
        again = evolve(TournamentConfig(), cfg, traits(), moved, fitness, 3, 1, 100)
        equal = [populations.same(a, b) for a, b in zip(first.members, again.members, strict=True)]
        assert equal == [True, True, other_key == 501, True]


# ------------------------------------------------------------------------------------------------- first members


@pytest.mark.parametrize("algo", ["dqn", "td3", "sac", "ppo"])
def test_no_two_networks_begin_alike(algo: str) -> None:
    """Of one member, where twins would learn the same for ever; and of no two members."""
    p = populations.problem(algo=algo)
    rows = []
    for one in first_members(p, 3)[0]:
        online = [n for n, kind in p.traits.kinds.items() if kind[0] == "parameters" and "target" not in n]
        rows += [(name, one.tensors[name]) for name in online]
    for i, (_, a) in enumerate(rows):
        assert not any(len(a) == len(b) and torch.equal(a, b) for _, b in rows[:i])


# -------------------------------------------------------------------------------------------- architecture's bounds


def offered(bounds: ArchitectureBounds, arch: Arch, *others: Widths) -> set[tuple[str, str, int, int]]:
    found = list(arch.options(bounds, [Widths(4, 2), *others]))
    for _, what, _, after, new in found:
        part, _, kind = what.partition(" ")
        name, _, index = part.partition(".")
        if kind == "layers":
            assert len(getattr(new, part)) == after
            assert getattr(new, part)[: len(getattr(arch, part))] == getattr(arch, part)[:after]
        elif name == "conv":
            assert getattr(new.stem.convs[int(index)], "kernel" if kind == "kernel" else "channels") == after
        else:
            assert (new.latent if name == "latent" else getattr(new, name)[int(index)].width) == after
    return {each[:4] for each in found}


def test_all_changes_to_their_bounds_are_offered_and_none_beyond() -> None:
    inside = {
        ("encoder.add_layer", "encoder layers", 1, 2), ("head.add_layer", "head layers", 1, 2),
        ("head.remove_layer", "head layers", 1, 0),
        ("encoder.add_node", "encoder.0 width", 32, 48), ("encoder.remove_node", "encoder.0 width", 32, 16),
        ("latent.add_node", "latent width", 32, 40), ("latent.remove_node", "latent width", 32, 24),
        ("head.add_node", "head.0 width", 16, 32),
    }  # fmt: skip
    assert offered(BOUNDS, ARCH) == inside
    assert offered(BOUNDS, ARCH, Widths(2, 1, "head")) == inside - {("head.remove_layer", "head layers", 1, 0)}
    ends = Arch((Block(48), Block(16)), 40, (), "ReLU", False)
    assert offered(BOUNDS, ends) == {
        ("encoder.remove_layer", "encoder layers", 2, 1), ("head.add_layer", "head layers", 0, 1),
        ("encoder.remove_node", "encoder.0 width", 48, 32), ("encoder.add_node", "encoder.1 width", 16, 32),
        ("latent.remove_node", "latent width", 40, 32),
    }  # fmt: skip
    beyond = Arch((Block(47), Block(31)), 39, (Block(31), Block(33)), "ReLU", False)  # a whole step would pass a bound
    assert offered(BOUNDS, replace(beyond, latent=31)) == {
        ("encoder.remove_layer", "encoder layers", 2, 1), ("head.remove_layer", "head layers", 2, 1),
        ("encoder.remove_node", "encoder.0 width", 47, 31), ("encoder.add_node", "encoder.1 width", 31, 47),
        ("latent.add_node", "latent width", 31, 39),
        ("head.add_node", "head.0 width", 31, 47), ("head.remove_node", "head.1 width", 33, 17),
    }  # fmt: skip
    assert ("latent.remove_node", "latent width", 39, 31) in offered(BOUNDS, beyond)
    assert not {each for each in offered(BOUNDS, beyond) if each[0] == "latent.add_node"}


def test_a_normalised_stream_neither_grows_nor_shrinks() -> None:
    """Its mean is over all of its units, so that none comes or goes unnoticed; a plain stream does both."""
    streams = {kind: offered(BOUNDS, replace(ARCH, kind=kind)) for kind in ("simba", "resnet")}
    latent = {kind: {each for each in found if each[1] == "latent width"} for kind, found in streams.items()}
    both_ways = {("latent.add_node", "latent width", 32, 40), ("latent.remove_node", "latent width", 32, 24)}
    assert latent == {"simba": set(), "resnet": both_ways}
    assert streams["simba"] == streams["resnet"] - both_ways


def test_channels_and_kernels_reach_their_bounds_and_pass_none() -> None:
    image = Image(0, 1, 12, 12)
    convs = (Conv(8, 3, 1), Conv(12, 4, 1), Conv(6, 5, 1, 1), Conv(10, 3, 1))
    stem = Stem((image,), convs)
    found = {each for each in offered(BOUNDS, replace(ARCH, stem=stem)) if each[0].startswith("conv")}
    assert found == {
        ("conv.add_channel", "conv.0 channels", 8, 12), ("conv.remove_channel", "conv.0 channels", 8, 4),
        ("conv.remove_channel", "conv.1 channels", 12, 8), ("conv.add_channel", "conv.2 channels", 6, 10),
        ("conv.change_kernel", "conv.0 kernel", 3, 5), ("conv.change_kernel", "conv.1 kernel", 4, 2),
        ("conv.change_kernel", "conv.2 kernel", 5, 3),
        ("conv.remove_channel", "conv.3 channels", 10, 6), ("conv.change_kernel", "conv.3 kernel", 3, 5),
    }  # fmt: skip
    options = replace(ARCH, stem=stem).options(BOUNDS, [Widths(144, 2)])
    kernels = [new.stem.convs for method, *_, new in options if "kernel" in method]
    padding = [[conv.padding for conv in convs] for convs in kernels]
    assert padding == [[1, 0, 1, 0], [0, -1, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1]]  # the output keeps its size


def test_a_new_layer_is_as_wide_as_the_last_and_blended_in() -> None:
    arch = Arch((Block(48), Block(16)), 40, (), "ReLU", False)
    grown = {method: new for method, *_, new in arch.options(ArchitectureBounds(), []) if "add_layer" in method}
    assert grown["encoder.add_layer"].encoder == (Block(48), Block(16), Block(16, True))
    assert grown["head.add_layer"].head == (Block(40, True),)
    stream = replace(arch, kind="resnet")
    grown = {method: new for method, *_, new in stream.options(ArchitectureBounds(), []) if "add_layer" in method}
    assert grown["encoder.add_layer"].encoder == (Block(48), Block(16), Block(16))
    assert grown["head.add_layer"].head == (Block(40, True),)


@pytest.mark.thorough
def test_growth_is_as_likely_as_shrinkage() -> None:
    """For every kind of change that goes both ways; unlikely by 4.5 standard deviations otherwise."""

    def assert_even(ways: Sequence[bool]) -> None:
        n = len(ways)
        assert n > 100
        assert abs(sum(ways) - n / 2) < 4.5 * (n / 4) ** 0.5

    rng, one = np.random.default_rng(0), member(0)
    wide = {"lr": Evolve(min=1e-6, max=1e3), "tau": Evolve(min=1e-6, max=1e3)}
    one = replace(one, hyper={"lr": 1.0, "tau": 1.0})
    found = [populations.mutated("rl_hp", only("rl_hp"), traits(wide), one, rng) for _ in range(600)]
    records = [change for _, change in filter(None, found)]
    for name in wide:
        assert_even([change.after > change.before for change in records if change.what == name])
    assert_even([change.what == "lr" for change in records])

    deep = Arch((Block(16), Block(16)), 16, (Block(16), Block(16)), "ReLU", False)
    row = torch.zeros(deep.layout(Widths(4, 2)).size)
    started = replace(one, arch=deep, tensors={"q": row})
    bounds = {"min_nodes": 8, "min_latent": 8, "node_steps": [4, 8], "latent_steps": [4]}
    by_what: dict[str, list[bool]] = {}
    for i in range(720):
        share = float(i % 2)
        cfg = only("architecture", new_layer_prob=share, architecture=bounds)
        changed = populations.mutated("architecture", cfg, traits(), started, rng)
        assert changed is not None
        change = changed[1]
        by_what.setdefault(change.what.split()[0].split(".")[0] + str(i % 2), []).append(change.after > change.before)
    assert set(by_what) == {f"{part}{share}" for part in ("encoder", "head", "latent") for share in "01"} - {"latent1"}
    for ways in by_what.values():
        assert_even(ways)


def test_networks_get_new_weights_of_their_own_and_targets_their_networks() -> None:
    """Twins that grew by the same weights would be a little less two."""
    kinds = {name: ("parameters", name.removesuffix("_target")) for name in ("a", "b", "a_target", "b_target")}
    twins = Traits(dict.fromkeys("ab", Widths(4, 2)), ["a"], kinds, {}, frozenset())
    old = Arch((Block(16),), 16, (), "ReLU", False)
    size = old.layout(Widths(4, 2)).size
    one = replace(member(0), arch=old, tensors={name: torch.zeros(size) for name in kinds})
    found = populations.mutated(
        "architecture", only("architecture", new_layer_prob=1.0), twins, one, np.random.default_rng(0)
    )
    assert found is not None
    grown = {name: found[0].tensors[name] for name in kinds}
    assert torch.equal(grown["a"], grown["a_target"])
    assert torch.equal(grown["b"], grown["b_target"])
    assert not torch.equal(grown["a"], grown["b"])


def test_disturbed_weights_have_a_largest_size() -> None:
    matrix = torch.full((40, 50), 1e6)
    assert _disturb(matrix, 1.0, np.random.default_rng(0)) == 200
    assert matrix.max() == 1e6
    assert 50 < int((matrix != 1e6).sum()) < 150  # half of the noise is upwards
    zeros = torch.zeros(40, 50)
    _disturb(zeros, 1.0, np.random.default_rng(0))
    assert 0 < int((zeros != 0).sum()) < 30  # noise is relative: only those drawn anew move


def test_what_is_impossible_gives_way_by_the_weights_of_the_others() -> None:
    """Without an activation to change to, none and hyper-parameters share its part as 1 : 3."""
    weights = {"none": 1.0, "architecture": 0.0, "parameters": 0.0, "activation": 4.0, "rl_hp": 3.0}
    cfg = MutationConfig.model_validate({"probabilities": weights, "activations": ["ReLU"]})
    rng, few = np.random.default_rng(0), traits({"lr": Evolve(min=1e-3, max=10.0)})
    counts = Counter(mutate(cfg, few, member(0), rng)[1].kind for _ in range(800))
    assert set(counts) == {"none", "rl_hp"}
    assert abs(counts["rl_hp"] - 600) < 4.5 * (800 * 0.25 * 0.75) ** 0.5


def test_fitness_of_selection_is_the_mean_of_the_configured_window() -> None:
    """Members bring two evaluations along: the last alone, and the mean with these, name other elites."""
    histories = {3: (-1e6, 9e5, 0.0)}  # CartPole's returns are in between
    elites = {}
    for window in (1, 3, 4):
        p = populations.problem("CartPole-v1", tournament={"window": window, "size": 1})
        members = first_members(p, 4)[0]
        run = begin(p, [replace(m, fitness=histories.get(m.slot, (0.0, 0.0, 0.0))) for m in members])
        while not run.clock.generation_over:
            run.advance()
        populations.close_generation(run)
        last = [m.fitness[-1] for c in run.cohorts for m in c.members if m.slot == 0]
        assert len(last) == 1
        elites[window] = run.lineage[-1].children[0].id
    assert elites[1] != 3
    assert elites[3] == 3
    assert elites[4] != 3
