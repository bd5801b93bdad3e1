"""REDQ: which critics its target takes, when actor and targets move, what is refused."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

import populations
from evopipe.core.cohort import dissolve
from evopipe.core.member import Member
from evopipe.errors import ParamsError
from evopipe.ops.value import least_of_some
from evopipe.params.load import parse_params
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import first_members
from populations import batch_for, draw_at, equal, same

pytestmark = pytest.mark.numerical


def problem(**config: Any) -> Any:
    return populations.problem(algo="redq", config={"batch_size": 8, "critics": 4, **config})


def learned(p: Any, members: list[Member], updates: int) -> tuple[list[Member], list[bool]]:
    """The members after so many updates, and which are healthy."""
    (cohort,) = p.form(members)
    healthy = cohort.healthy
    for step in range(updates):
        healthy = p.algo.update(
            p.algo_config, cohort.state, cohort.hyper, batch_for(p, cohort, step), healthy, draw_at(cohort, step),
            step % p.algo_config.policy_delay,
        ).healthy  # fmt: skip
    return dissolve([cohort]), healthy.tolist()


def test_the_least_of_two_of_four_is_of_every_pair_about_equally_often() -> None:
    """A critic's value is its number: the least and the largest of a subset name it."""
    draw = Stream(torch.arange(6000), Purpose.UPDATE, torch.tensor([3]))
    counts = dict.fromkeys(combinations(range(4), 2), 0)
    first = least_of_some(torch.arange(4.0)[None, :, None].expand(6000, 4, 1), draw.uniform(4), 2)
    last = -least_of_some(-torch.arange(4.0)[None, :, None].expand(6000, 4, 1), draw.uniform(4), 2)
    for a, b in zip(first.flatten().int().tolist(), last.flatten().int().tolist(), strict=True):
        counts[a, b] += 1  # one critic twice would be no key
    assert all(abs(count - 1000) < 5 * (6000 * 1 / 6 * 5 / 6) ** 0.5 for count in counts.values())


def test_the_actor_rests_between_its_turns_and_targets_do_not() -> None:
    p = problem(policy_delay=3)
    first = first_members(p, 1)[0]
    for updates, moves in ((2, False), (3, True)):
        (after,), _ = learned(p, first, updates)
        for name in ("actor", "log_alpha"):
            assert torch.equal(after.tensors[name], first[0].tensors[name]) != moves
        for name in (f"critics{target}.critic_{k}" for target in ("", "_target") for k in range(1, 5)):
            assert not torch.equal(after.tensors[name], first[0].tensors[name]), name


@pytest.mark.parametrize("name", ["critics.critic_4", "critics_target.critic_4", "actor"])
def test_a_number_that_is_none_freezes_its_member_though_no_target_takes_it(name: str) -> None:
    p = problem(subset=1, policy_delay=9)
    members = first_members(p, 2)[0]
    members[1].tensors[name][0] = torch.nan
    (well, ill), healthy = learned(p, members, 2)
    assert healthy == [True, False]
    (undisturbed, _), _ = learned(p, first_members(p, 2)[0], 2)
    assert same(well, undisturbed)
    assert equal(ill.tensors["critics.critic_1"], first_members(p, 2)[0][1].tensors["critics.critic_1"])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"critics": 21}, "algos.redq.critics"),
        ({"subset": 0}, "algos.redq.subset"),
        ({"critics": 3, "subset": 4}, "subset (4) must not be above critics (3)"),
    ],
)
def test_what_cannot_be_is_one_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError) as error:
        parse_params({"train": {"algo": "redq"}, "algos": {"redq": data}})
    assert sentence in str(error.value)
