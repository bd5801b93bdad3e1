"""CrossQ: how wide its critics are, what belongs to a member, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import populations
from evopipe import algos
from evopipe.core.cohort import dissolve
from evopipe.core.member import Member
from evopipe.errors import ParamsError
from evopipe.params.load import parse_params
from evopipe.run.spec import first_members
from populations import batch_for, draw_at, same

pytestmark = pytest.mark.numerical


def problem(**config: Any) -> Any:
    return populations.problem(algo="crossq", config={"batch_size": 8, **config})


def learned(p: Any, members: list[Member], updates: int = 3) -> list[Member]:
    (cohort,) = p.form(members)
    for step in range(updates):
        p.algo.update(
            p.algo_config, cohort.state, cohort.hyper, batch_for(p, cohort, step), cohort.healthy,
            draw_at(cohort, step), step % 3,
        )  # fmt: skip
    return dissolve([cohort])


def parts(p: Any, member: Member, name: str = "critics.critic_1") -> dict[str, torch.Tensor]:
    return dict(member.arch.named(p.widths[name.removeprefix("critics.")], member.tensors[name]))


@pytest.mark.parametrize("wider", [1, 4])
def test_critics_are_so_many_times_as_wide_as_the_actor(wider: int) -> None:
    p = problem(wider=wider)
    (member,) = first_members(p, 1)[0]
    found = parts(p, member)
    assert found["encoder.0.weight"].shape == (4, 16 * wider)  # Pendulum: 3 numbers observed, 1 of an action
    assert found["latent.weight"].shape == (16 * wider, 16 * wider)
    assert parts(p, member, "actor")["latent.weight"].shape == (16, 16)


def test_running_statistics_are_a_member_s_own_and_come_along_with_a_clone() -> None:
    """They move in every update, towards those of (s, a) and (s′, a′) together; a clone goes on as its parent would."""
    p = problem(renorm_rate=0.5)
    first = first_members(p, 2)[0]
    begun, later = parts(p, first[0])["encoder.0.norm"].view(4, 4), learned(p, first)
    running = parts(p, later[0])["encoder.0.norm"].view(4, 4)
    assert torch.equal(begun[2:], torch.tensor([[0.0], [1.0]]).expand(2, 4))
    assert (running[2:] != begun[2:]).all()
    assert not torch.equal(running[2:], parts(p, later[1])["encoder.0.norm"].view(4, 4)[2:])
    twin = later[0].clone(0, 7, later[0].key)
    assert same(*learned(p, [later[0]]), *learned(p, [twin]))


def test_the_first_statistics_are_those_of_both_halves_of_the_minibatch() -> None:
    p = problem(renorm_rate=1.0)
    (cohort,) = p.form(first_members(p, 1)[0])
    batch = batch_for(p, cohort, 0)
    (after,) = learned(p, first_members(p, 1)[0], 1)
    both = torch.cat((batch.obs[0, :8], batch.next_obs[0, :8]))  # places beyond the batch size do not count
    running = parts(p, after)["encoder.0.norm"].view(4, 4)
    torch.testing.assert_close(running[2, :3], both.mean(dim=0))
    torch.testing.assert_close(running[3, :3], both.var(dim=0, correction=0))


def test_actor_and_temperature_rest_in_two_of_three_updates() -> None:
    p = problem()
    first = first_members(p, 1)[0]
    for updates, moves in ((2, False), (3, True)):
        (after,) = learned(p, first, updates)
        for name in ("actor", "log_alpha"):
            assert torch.equal(after.tensors[name], first[0].tensors[name]) != moves
        assert not torch.equal(after.tensors["critics.critic_1"], first[0].tensors["critics.critic_1"])


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        ({"encoder_kind": "simba"}, "crossq renormalises what plain layers of its critics read; take mlp"),
        ({"encoder_kind": "resnet"}, "crossq renormalises what plain layers of its critics read; take mlp"),
        ({"module": "nets:Net"}, "crossq renormalises what single layers read, and serves evopipe's own alone"),
    ],
)
def test_networks_that_it_cannot_renormalise_are_refused(network: dict[str, Any], sentence: str) -> None:
    p = problem()
    cfg = p.algo_config.model_copy(update={"network": p.algo_config.network.model_copy(update=network)})
    found = algos.misfit("crossq", cfg, p.spaces)
    assert found is not None
    assert found[1] == sentence


@pytest.mark.parametrize("data", [{"wider": 0}, {"beta1": 1.0}, {"renorm_rate": 0.0}, {"policy_delay": 0}])
def test_what_cannot_be_is_one_sentence(data: dict[str, Any]) -> None:
    (key,) = data
    with pytest.raises(ParamsError) as error:
        parse_params({"train": {"algo": "crossq"}, "algos": {"crossq": data}})
    assert f"algos.crossq.{key}:" in str(error.value)


def test_a_member_that_is_not_healthy_keeps_its_statistics() -> None:
    p = problem()
    members = first_members(p, 2)[0]
    members[1] = replace(members[1], healthy=False)
    after = learned(p, members)
    assert torch.equal(after[1].tensors["critics.critic_1"], members[1].tensors["critics.critic_1"])
