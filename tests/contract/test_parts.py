"""A member computes the same bits in every company: alone, or in any part of its cohort.

Helpers learn with parts of a cohort, so how many CPUs a machine has must not show in the weights. Matrix products are
where it shows: a library may take another kernel for one matrix than for several, or for one that begins elsewhere in a
cache line. `.ci/run` repeats this under another instruction set.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import populations
from evopipe.algos import on_policy
from evopipe.core.cohort import dissolve
from evopipe.core.member import Member
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.run.spec import EnvSpec, first_members
from populations import TICKS, batch_for, cases, rollout_for, same, update

pytestmark = pytest.mark.numerical
SIZE = 4
BORDERS = [borders for n in range(1, SIZE) for borders in itertools.combinations(range(1, SIZE), n)]
"""Every way to cut four members into parts."""


def main_size(algo: str) -> tuple[EnvSpec, list[Member]]:
    """Four members of the main job's size, padded unlike each other, with layer normalisation."""
    network: dict[str, Any] = {"encoder": [128], "latent": 128, "layer_norm": True}
    if algo.endswith(":shared"):
        network["head"] = [64]
    p = populations.problem(algo=algo, cohorts="merged", config={"network": network, "batch_size": 128})
    members = []
    for slot, (width, latent, activation) in enumerate(
        [(128, 128, "ReLU"), (100, 112, "ReLU"), (136, 128, "GELU"), (120, 72, "Tanh")]
    ):
        head = [48 + slot] if algo.endswith(":shared") else []
        own = replace(
            p,
            algo_config=p.algo_config.model_copy(
                update={
                    "network": p.algo_config.network.model_copy(
                        update={"encoder": (width,), "latent": latent, "head": tuple(head), "activation": activation}
                    )
                }
            ),
        )
        members.append(first_members(own, SIZE)[0][slot])
    return p, members


def learned(p: EnvSpec, members: list[Member], borders: tuple[int, ...]) -> list[Member]:
    """Members after three updates in these parts, each on its own share of the same transitions."""
    (cohort,) = p.form(members)
    cuts = list(itertools.pairwise((0, *borders, SIZE)))
    parts = [cohort.part(first, end) for first, end in cuts]
    for i in range(3):
        if on_policy(p.algo):
            whole = rollout_for(p, p.form(members)[0], i)
            for own, cut in zip(parts, cuts, strict=True):
                learn_from_rollout(p, own, whole.part(*cut), TICKS, i)
            continue
        batch = batch_for(p, cohort, i)
        given = {f.name: getattr(batch, f.name) for f in fields(batch)}
        some = {name: value for name, value in given.items() if value is not None and name != "next_legal"}
        for own, (first, end) in zip(parts, cuts, strict=True):
            update(p, own, replace(batch, **{name: value[first:end] for name, value in some.items()}), i)
    return sorted((member for own in parts for member in dissolve([own])), key=lambda m: m.slot)


@pytest.mark.parametrize("algo", cases(teams=True))
@pytest.mark.thorough
def test_no_bit_of_a_member_depends_on_the_part_that_it_learns_in(algo: str) -> None:
    p, members = main_size(algo)
    whole = learned(p, members, ())
    assert not any(same(before, after) for before, after in zip(members, whole, strict=True))
    for borders in BORDERS:
        unlike = [m.slot for m, n in zip(whole, learned(p, members, borders), strict=True) if not same(m, n)]
        assert unlike == [], borders


@pytest.mark.parametrize("envs", [1, 3, 16])
@pytest.mark.parametrize("algo", ["dqn", "rainbow"])
def test_no_value_depends_on_the_part_that_a_member_acts_in(algo: str, envs: int) -> None:
    p, members = main_size(algo)
    (cohort,) = p.form(members)
    obs = torch.randn(SIZE, envs, p.observations, generator=torch.Generator().manual_seed(0))
    whole = p.algo.values(p.algo_config, cohort.state, obs)  # type: ignore[attr-defined]
    for borders in BORDERS:
        for first, end in itertools.pairwise((0, *borders, SIZE)):
            own = cohort.part(first, end)
            assert torch.equal(p.algo.values(p.algo_config, own.state, obs[first:end]), whole[first:end])  # type: ignore[attr-defined]
