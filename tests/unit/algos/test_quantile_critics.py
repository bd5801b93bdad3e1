"""TQC: how many critics there are, what its targets leave out, what is refused; QR-DQN: what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import populations
from evopipe import algos
from evopipe.core.cohort import Cohort, dissolve
from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import first_members
from evopipe.types import Batch
from populations import same

pytestmark = pytest.mark.numerical

MEMBERS, OBS, ACTIONS = 3, 3, 1


def cohort_of(**config: Any) -> tuple[Any, Cohort]:
    p = populations.problem(algo="tqc", config=config)
    (cohort,) = p.form(first_members(p, MEMBERS)[0])
    return p, cohort


def random_batch(cohort: Cohort) -> Batch:
    g, shape = torch.Generator().manual_seed(5), (MEMBERS, cohort.batch)
    return Batch(
        obs=torch.randn(*shape, OBS, generator=g), action=2 * torch.rand(*shape, ACTIONS, generator=g) - 1,
        reward=torch.randn(*shape, generator=g), discount=torch.full(shape, 0.9),
        next_obs=torch.randn(*shape, OBS, generator=g), next_legal=None, weight=cohort.weight,
    )  # fmt: skip


def stream(step: int) -> Stream:
    return Stream(torch.arange(MEMBERS), Purpose.UPDATE, torch.tensor([step]))


@pytest.mark.parametrize("critics", [2, 3, 10])
def test_members_have_as_many_critics_as_the_configuration_says(critics: int) -> None:
    p, cohort = cohort_of(critics=critics, quantiles=5)
    names = {f"critics.critic_{k}" for k in range(1, critics + 1)}
    for member in dissolve([cohort]):
        assert {name for name in member.tensors if name.startswith("critics.")} == names
        online = [member.tensors[name] for name in sorted(names)]
        assert all(not torch.equal(a, b) for i, a in enumerate(online) for b in online[:i]), "each begins by itself"
        assert all(same(a, b) for a, b in zip(dissolve(p.form([member])), [member], strict=True))
    theirs, whole = cohort.part(1, 3), cohort.state.critics.values
    assert torch.equal(theirs.state.critics.values, whole[critics : 3 * critics])
    assert torch.equal(theirs.state.critics_adam.steps, cohort.state.critics_adam.steps[critics : 3 * critics])


def test_more_dropped_quantiles_give_lower_targets_and_none_are_the_largest() -> None:
    targets = []
    for dropped in (0, 1, 4):
        p, cohort = cohort_of(critics=3, quantiles=5, dropped=dropped)
        y = p.algo.target(p.algo_config, cohort.state, random_batch(cohort), stream(0))
        assert y.shape == (MEMBERS, cohort.batch, 3 * (5 - dropped))
        assert (y.diff(dim=-1) >= 0).all()
        targets.append(y)
    for more, fewer in itertools.pairwise(targets):
        assert torch.equal(more[..., : fewer.shape[-1]], fewer), "the lowest are kept"
        assert (fewer.mean(dim=-1) < more.mean(dim=-1)).all()


def test_a_target_critic_that_is_no_number_is_seen_though_its_quantiles_are_left_out() -> None:
    p, cohort = cohort_of(critics=5, quantiles=3, dropped=2)
    cohort.state.critics_target.values[5] = (
        torch.nan
    )  # the second member's first: its three of fifteen, ten are dropped
    y = p.algo.target(p.algo_config, cohort.state, random_batch(cohort), stream(0))
    assert y.isfinite().all()
    learned = p.algo.update(
        p.algo_config, cohort.state, cohort.hyper, random_batch(cohort), cohort.healthy, stream(0), 0
    )
    assert learned.healthy.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("algo", "data", "sentence"),
    [
        ("tqc", {"quantiles": 5, "dropped": 5}, "algos.tqc: dropped (5) must be below quantiles (5)"),
        ("tqc", {"critics": 1}, "algos.tqc.critics:"),
        ("tqc", {"critics": 11}, "algos.tqc.critics:"),
        ("tqc", {"dropped": -1}, "algos.tqc.dropped:"),
        ("qrdqn", {"quantiles": 0}, "algos.qrdqn.quantiles:"),
    ],
)
def test_what_cannot_be_is_one_sentence(algo: str, data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError) as error:
        parse_params({"train": {"algo": algo}, "algos": {algo: data}})
    assert sentence in str(error.value)
    with pytest.raises(ValidationError):
        algos.get(algo).Config(**data)
