"""Mutation: how often, how far, and what it must never do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import populations
import tiny
from evopipe.core.arch import Arch
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.mutations import (
    NONE,
    Mutation,
    Traits,
    mutate,
)
from evopipe.mutations.rl_hp import scaled
from evopipe.run.spec import first_members
from evopipe.schema.declare import Evolve
from evopipe.schema.evolution import MutationConfig, TournamentConfig
from evopipe.searchers.apply import evolve

EVOLVE = {
    "lr": {"min": 1e-4, "max": 1e-2},
    "batch_size": {"min": 16, "max": 64},
    "learn_step": {"min": 1, "max": 10},
}
KINDS = ("none", "architecture", "parameters", "activation", "rl_hp")


def world(
    size: int = 1, encoder: tuple[int, ...] = (32,), evolve: Mapping[str, Any] | None = None, **config: Any
) -> Any:
    """Members and the algorithm's traits."""
    block = {"network": {"encoder": list(encoder), "latent": 32}, "evolve": EVOLVE if evolve is None else evolve}
    p = populations.problem(config={**block, **config})
    return first_members(p, size)[0], p.traits


def config(**changes: Any) -> MutationConfig:
    return MutationConfig.model_validate(changes)


def only(*kinds: str, **changes: Any) -> MutationConfig:
    return config(probabilities={kind: float(kind in kinds) for kind in KINDS}, **changes)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def changed(a: Member, b: Member) -> bool:
    """Whether anything at all differs."""
    return a.arch != b.arch or a.hyper != b.hyper or not populations.same(a, b)


# ----------------------------------------------------------------------------------------------- probabilities


@pytest.mark.thorough
def test_kinds_come_as_often_as_their_weights_say() -> None:
    (member,), traits = world()
    weights = {"none": 2.0, "architecture": 1.0, "parameters": 3.0, "activation": 2.5, "rl_hp": 1.5}
    cfg, rng, n = config(probabilities=weights), generator(), 3000
    counts = Counter(mutate(cfg, traits, member, rng)[1].kind for _ in range(n))
    for kind, weight in weights.items():
        share = weight / 10
        assert abs(counts[kind] - n * share) < 4.5 * (n * share * (1 - share)) ** 0.5, kind


def test_before_training_the_kind_none_is_left_out() -> None:
    (member,), traits = world()
    rng = generator()
    kinds = {mutate(config(), traits, member, rng, allow_none=False)[1].kind for _ in range(300)}
    assert kinds == set(KINDS) - {"none"}
    p = populations.problem(mutation={"before_training": True})
    members, mutations = first_members(p, 40)
    assert NONE not in mutations
    assert len({m.arch for m in members}) > 3
    assert first_members(populations.problem(), 3)[1] == [NONE] * 3


def test_a_kind_of_weight_0_never_comes_even_where_another_is_impossible() -> None:
    (member,), traits = world()
    cfg = only("activation", "none", activations=["ReLU"])
    rng = generator()
    assert {mutate(cfg, traits, member, rng)[1] for _ in range(50)} == {NONE}


def test_a_mutation_that_would_change_nothing_gives_way_to_another_and_is_never_recorded() -> None:
    """Peer fault: a drawn kind whose bound was reached was recorded as a mutation that changed nothing."""
    (member,), traits = world(encoder=(32,))
    frozen = {name: getattr(config().architecture, name) for name in ("node_steps", "latent_steps")} | {
        "min_layers": 0, "max_layers": 1, "min_nodes": 32, "max_nodes": 32, "min_latent": 32, "max_latent": 32,
    }  # fmt: skip
    cfg = only("architecture", "activation", "rl_hp", activations=["ReLU"], architecture=frozen)
    rng, seen = generator(), Counter[str]()
    for _ in range(400):
        child, mutation = mutate(cfg, traits, member, rng)
        assert changed(member, child)
        assert mutation.before != mutation.after
        seen[mutation.kind] += 1
        member = replace(child, arch=member.arch, tensors=member.tensors)
    assert set(seen) == {"architecture", "rl_hp"}  # a head layer can still come


@pytest.mark.thorough
def test_with_two_layers_of_32_no_architecture_mutation_is_a_no_op() -> None:
    """Peer fault: there, 32 % of the architecture mutations were."""
    (member,), traits = world(encoder=(32, 32))
    rng = generator()
    for _ in range(300):
        found = populations.mutated("architecture", config(), traits, member, rng)
        assert found is not None
        child, mutation = found
        assert child.arch != member.arch
        assert mutation.before != mutation.after


def test_where_nothing_can_change_the_child_is_its_parent() -> None:
    (member,), traits = world(evolve={})
    cfg = only("activation", "rl_hp", activations=["ReLU"])
    child, mutation = mutate(cfg, traits, member, generator(), allow_none=False)
    assert child is member
    assert mutation is NONE


# ------------------------------------------------------------------------------------------------ architecture


@pytest.mark.thorough
def test_layers_change_as_often_as_new_layer_prob_says() -> None:
    (member,), traits = world(encoder=(64, 64))
    for share, n in ((0.0, 50), (0.2, 400), (1.0, 50)):
        cfg, rng = config(new_layer_prob=share), generator()
        records = [populations.mutated("architecture", cfg, traits, member, rng) for _ in range(n)]
        layers = sum("layers" in found[1].what for found in records if found)
        assert abs(layers - n * share) <= 4.5 * (n * share * (1 - share)) ** 0.5


def test_without_layer_changes_and_at_every_width_bound_there_is_no_architecture_mutation() -> None:
    (member,), traits = world(encoder=(32,))
    bounds = {"min_nodes": 32, "max_nodes": 32, "min_latent": 32, "max_latent": 32}
    assert (
        populations.mutated(
            "architecture", config(new_layer_prob=0.0, architecture=bounds), traits, member, generator()
        )
        is None
    )


@pytest.mark.thorough
def test_records_say_what_changed_from_what_to_what() -> None:
    (member,), traits = world(encoder=(64, 64))
    rng = generator()
    for _ in range(200):
        found = populations.mutated("architecture", config(), traits, member, rng)
        assert found is not None
        child, m = found
        part, _, what = m.what.partition(" ")
        if what == "layers":
            assert (m.before, m.after) == (len(getattr(member.arch, part)), len(getattr(child.arch, part)))
        else:
            name, _, index = part.partition(".")
            old, new = (
                a.latent if name == "latent" else getattr(a, name)[int(index)].width for a in (member.arch, child.arch)
            )
            assert (m.before, m.after) == (old, new)
        assert m.describe() == f"{m.what} {m.before} → {m.after}"
        assert json.loads(json.dumps(m.to_json())) == m.to_json()


def test_online_and_target_networks_receive_the_same_new_weights() -> None:
    (member,), traits = world(encoder=(32, 32))
    rng = generator()
    for _ in range(40):
        found = populations.mutated("architecture", config(), traits, member, rng)
        assert found is not None
        assert torch.equal(found[0].tensors["q"], found[0].tensors["target"])
        assert len(found[0].tensors["adam.mean"]) == len(found[0].tensors["adam.square"]) == len(found[0].tensors["q"])


def test_adam_moments_of_surviving_weights_survive() -> None:
    """Peer fault: an architecture mutation built a new optimiser and lost them."""
    (member,), traits = world(encoder=(32, 32))
    values = torch.from_numpy(generator().standard_normal(len(member.tensors["q"]))).float()
    trained = {"adam.mean": values, "adam.square": values.square(), "adam.steps": torch.tensor(77.0)}
    member = replace(member, tensors={**member.tensors, **trained})
    widths, rng = traits.widths["q"], generator()
    for _ in range(60):
        found = populations.mutated("architecture", config(), traits, member, rng)
        assert found is not None
        child = found[0]
        assert float(child.tensors["adam.steps"]) == 77.0
        for moment in ("adam.mean", "adam.square"):
            old, new = (m.arch.named(widths, m.tensors[moment]) for m in (member, child))
            for name in old.keys() & new.keys():
                corner = tuple(slice(min(a, b)) for a, b in zip(old[name].shape, new[name].shape, strict=True))
                assert torch.equal(new[name][corner], old[name][corner])


# --------------------------------------------------------------------------------------- parameters, activation


def test_parameter_noise_touches_a_tenth_of_the_chosen_matrices() -> None:
    (member,), traits = world(encoder=(128,))
    widths, rng, sd = traits.widths["q"], generator(), 0.1
    relative, fresh, matrices = [], 0, Counter[int]()
    for _ in range(200):
        found = populations.mutated("parameters", config(sd=sd), traits, member, rng)
        assert found is not None
        child, mutation = found
        before, after = (member.arch.named(widths, m.tensors["q"]) for m in (member, child))
        touched = {name: part != after[name] for name, part in before.items() if bool((part != after[name]).any())}
        assert all(name.endswith("weight") for name in touched)
        matrices[len(touched)] += 1
        for name, where in touched.items():
            assert int(where.sum()) <= -(-where.numel() // 10)
            assert int(where.sum()) >= where.numel() // 10 - 2
            noise = ((after[name] - before[name]) / before[name].abs())[where]
            near = noise.abs() < 6 * sd
            fresh += int((~near).sum())
            relative.append(noise[near])
        assert mutation.kind == "parameters"
        assert int(mutation.what.split()[0]) >= sum(int(where.sum()) for where in touched.values())
        assert torch.equal(member.tensors["target"], child.tensors["target"])
        assert torch.equal(member.tensors["adam.mean"], child.tensors["adam.mean"])
    assert set(matrices) == {1, 2, 3}
    noise = torch.cat(relative)
    assert abs(float(noise.mean())) < 0.01
    assert float(noise.std()) == pytest.approx(sd, rel=0.1)
    assert fresh / (fresh + len(noise)) == pytest.approx(0.05, abs=0.012)


def test_parameter_noise_reaches_all_networks_that_act_and_no_others() -> None:
    """Of a shared encoder and what reads it, here an actor; a critic is left as it is."""
    p = populations.problem(algo="td3:continuous:shared")
    assert len(p.traits.acting) == 2
    before, rng, reached = first_members(p, 1)[0][0], generator(), Counter[str]()
    for _ in range(20):
        found = populations.mutated("parameters", config(sd=0.1), p.traits, before, rng)
        assert found is not None
        reached.update(n for n, tensor in found[0].tensors.items() if not torch.equal(tensor, before.tensors[n]))
    kinds = {p.traits.kinds[name] for name in reached}
    assert kinds == {("parameters", network) for network in p.traits.acting}
    assert len(reached) == 2, "the networks themselves, not their targets"


def test_no_noise_is_no_mutation() -> None:
    (member,), traits = world()
    assert populations.mutated("parameters", config(sd=0.0), traits, member, generator()) is None


def test_an_activation_is_never_replaced_by_itself() -> None:
    (member,), traits = world()
    rng, seen = generator(), Counter[str]()
    for _ in range(300):
        found = populations.mutated("activation", config(), traits, member, rng)
        assert found is not None
        child, mutation = found
        assert child.arch.activation != member.arch.activation
        assert (mutation.before, mutation.after) == (member.arch.activation, child.arch.activation)
        assert populations.same(member, child)
        seen[child.arch.activation] += 1
        member = child
    assert set(seen) == {"ReLU", "ELU", "GELU"}
    assert populations.mutated("activation", config(activations=[member.arch.activation]), traits, member, rng) is None


# ------------------------------------------------------------------------------------------- hyper-parameters


def test_hyper_parameters_stay_in_their_bounds_and_always_move() -> None:
    (member,), traits = world()
    rng, seen = generator(), Counter[str]()
    for _ in range(1500):
        found = populations.mutated("rl_hp", config(), traits, member, rng)
        assert found is not None
        child, mutation = found
        name = mutation.what
        assert {n for n in member.hyper if member.hyper[n] != child.hyper[n]} == {name}
        low, high = EVOLVE[name]["min"], EVOLVE[name]["max"]
        assert low <= child.hyper[name] <= high
        assert type(child.hyper[name]) is (float if name == "lr" else int)
        assert (mutation.before, mutation.after) == (member.hyper[name], child.hyper[name])
        seen[name] += 1
        member = child
    assert all(count > 400 for count in seen.values())


@pytest.mark.parametrize(
    ("old", "up", "whole", "expected"),
    [
        (0.5, True, False, 0.6),
        (0.5, False, False, 0.4),
        (10.0, True, False, 10.0),
        (9.5, True, False, 10.0),
        (10, False, True, 8),
        (8, True, True, 10),
        (2, True, True, 3),  # 2.4 rounds to 2
        (2, False, True, 1),  # 1.6 rounds to 2
        (1, False, True, 1),
        (20, True, True, 20),  # outside by hand: it must not jump down where it should grow
        (20, False, True, 10),
    ],
)
def test_growing_and_shrinking_by_hand(old: float, up: bool, whole: bool, expected: float) -> None:
    assert scaled(old, Evolve(min=0.1 if not whole else 1, max=10), up, whole) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high", "after"), [(0.1, 0.5, 0.4), (0.5, 10.0, 0.6)])
def test_at_a_bound_the_only_hyper_parameter_goes_the_other_way(low: float, high: float, after: float) -> None:
    """Whichever way was drawn: both are, over so many draws."""
    (member,), traits = world()
    alone = replace(traits, evolve={"lr": Evolve(min=low, max=high)})
    at_bound = replace(member, hyper={**member.hyper, "lr": 0.5})
    found = [populations.mutated("rl_hp", config(), alone, at_bound, generator(seed)) for seed in range(20)]
    assert [each and each[1].after for each in found] == [pytest.approx(after)] * 20


def test_whole_numbers_stay_inside_bounds_that_are_none() -> None:
    between = Evolve(min=1.5, max=3.5)
    assert [scaled(value, between, up, True) for value, up in ((3, True), (2, False), (2, True), (3, False))] == [
        3,
        2,
        3,
        2,
    ]


def test_hyper_parameters_are_never_shared_between_members() -> None:
    """Peer fault: clones shared one object, so that mutating one member changed its siblings."""
    members, traits = world(size=3)
    fitness = [-np.inf, 1.0, -np.inf]  # all are children of the one in slot 1
    children = evolved(members, traits, fitness, probabilities={kind: float(kind == "none") for kind in KINDS})[0]
    assert len({id(m.hyper) for m in (*members, *children)}) == 6
    before = [dict(m.hyper) for m in children]
    rng = generator()
    mutated = [mutate(only("rl_hp"), traits, child, rng)[0] for child in children]
    assert [dict(m.hyper) for m in children] == before
    assert len({id(m.hyper) for m in (*children, *mutated)}) == 6
    for child in children:
        storages = {t.data_ptr() for t in child.tensors.values()}
        assert not storages & {
            t.data_ptr() for m in (*members, *children) if m is not child for t in m.tensors.values()
        }


def test_mutation_leaves_its_argument_as_it_was() -> None:
    (member,), traits = world(encoder=(32, 32))
    kept = replace(member, hyper=dict(member.hyper), tensors={n: t.clone() for n, t in member.tensors.items()})
    rng = generator()
    for _ in range(200):
        mutate(config(), traits, member, rng)
        assert not changed(member, kept)


# ------------------------------------------------------------------------------------------ the evolution step


def evolved(
    members: list[Member], traits: Traits, fitness: list[float], generation: int = 1, **mutation: Any
) -> tuple[tuple[Member, ...], tuple[Mutation, ...], tuple[int, ...]]:
    born = evolve(TournamentConfig(), config(**mutation), traits, members, np.array(fitness), 3, generation, 100)
    return born.members, born.mutations, born.parents


def test_an_evolution_step_keeps_keys_ids_and_ancestry_in_order() -> None:
    members, traits = world(size=4)
    children, mutations, parents = evolved(members, traits, [0.0, 3.0, 1.0, 2.0])
    assert [c.slot for c in children] == [0, 1, 2, 3]
    assert [c.key for c in children] == [m.key for m in members]
    assert parents[0] == 1
    assert (children[0].id, children[0].parent) == (1, None)  # the elite stays who it is
    assert mutations[0] is NONE
    assert populations.same(children[0], members[1])
    assert [c.id for c in children[1:]] == [101, 102, 103]
    assert [c.parent for c in children[1:]] == [members[p].id for p in parents[1:]]


def test_an_evolution_step_is_a_function_of_seed_and_generation() -> None:
    members, traits = world(size=6)
    fitness = [0.0, 3.0, 1.0, 2.0, 5.0, 4.0]
    first, again, other = (evolved(members, traits, fitness, generation) for generation in (1, 1, 2))
    assert first[1:] == again[1:]
    assert not any(changed(a, b) for a, b in zip(first[0], again[0], strict=True))
    assert first[1:] != other[1:]


def test_the_elite_mutates_only_where_asked() -> None:
    members, traits = world(size=3)
    always = {kind: float(kind == "rl_hp") for kind in KINDS}
    spared = evolved(members, traits, [1.0, 2.0, 3.0], probabilities=always)
    assert [m.kind for m in spared[1]] == ["none", "rl_hp", "rl_hp"]
    mutated = evolved(members, traits, [1.0, 2.0, 3.0], probabilities=always, mutate_elite=True)
    assert [m.kind for m in mutated[1]] == ["rl_hp"] * 3


def test_equal_parents_get_unlike_mutations_in_unlike_slots() -> None:
    members, traits = world(size=8)
    _, mutations, _ = evolved(members, traits, [9.0] + [-np.inf] * 7, probabilities={"none": 0.0})
    assert len(set(mutations[1:])) >= 5


SCRIPT = """
import sys, json, hashlib
import numpy as np
sys.path.insert(0, {tests!r})
import populations
from evopipe.run.spec import first_members
p = populations.problem(mutation={{"before_training": True}})
members, mutations = first_members(p, 12)
digest = hashlib.sha256()
for member in members:
    for name in sorted(member.tensors):
        digest.update(member.tensors[name].numpy().tobytes())
print(json.dumps([digest.hexdigest(), [m.to_json() for m in mutations], [dict(m.hyper) for m in members]]))
"""


@pytest.mark.thorough
def test_mutation_does_not_depend_on_pythons_hash_seed() -> None:
    def run(seed: str) -> str:
        script = SCRIPT.format(tests=str(tiny.ROOT / "tests"))
        command = [sys.executable, "-c", script]
        env = tiny.environment(PYTHONHASHSEED=seed, OMP_NUM_THREADS="1")
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    first, second = run("1"), run("2")
    assert first == second
    assert len(json.loads(first)[1]) == 12


def test_mutations_can_chain_for_long() -> None:
    (member,), traits = world(encoder=(32, 32))
    rng, kinds = generator(5), Counter[str]()
    bounds = config().architecture
    for _ in range(200):
        member, mutation = mutate(config(), traits, member, rng)
        kinds[mutation.kind] += 1
        widths = [block.width for part in (member.arch.encoder, member.arch.head) for block in part]
        assert all(bounds.min_nodes <= width <= bounds.max_nodes for width in widths)
        assert bounds.min_latent <= member.arch.latent <= bounds.max_latent
        assert bounds.min_layers <= len(member.arch.encoder) <= bounds.max_layers
        assert all(torch.isfinite(tensor).all() for tensor in member.tensors.values())
    assert len(kinds) == 5
    assert isinstance(member.arch, Arch)
    assert all(isinstance(block, Block) for block in member.arch.layers.values())
