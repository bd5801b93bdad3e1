"""What a probe tells of a minibatch, each number against its formula written out in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import populations
from crews import SPACES, transitions
from evopipe.core import optim
from evopipe.core.cohort import Cohort
from evopipe.ops.signals import mean
from evopipe.regimes import told
from evopipe.regimes.probe import CLIPPED, DORMANT, GRADIENT, OBSERVED, Probe, _dormant, gradients, probe
from evopipe.regimes.rollouts import probe_rollout
from evopipe.run.clock import Clock
from evopipe.run.spec import EnvSpec, first_members
from evopipe.types import Batch, Image, Sequences

NAME = "losses/"


def seen(algo: str, **config: Any) -> tuple[EnvSpec, Cohort, Batch]:
    """Two members of an algorithm, with rows of unlike weight, of which some are of weight 0."""
    p = populations.problem(algo=algo, config=config)
    (cohort,) = p.form(first_members(p, 2)[0])
    g = torch.Generator().manual_seed(5)
    weight = torch.rand(cohort.weight.shape, generator=g) * (torch.rand(cohort.weight.shape, generator=g) < 0.7)
    for net in vars(cohort.state).values():
        if hasattr(net, "structure") and hasattr(net, "values"):  # outputs that are not near 0
            net.values.mul_(2.0)
    return p, cohort, replace(populations.batch_for(p, cohort), weight=weight / weight.sum(dim=1, keepdim=True))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


def signals(p: EnvSpec, cohort: Cohort, batch: Any, offline: bool = False) -> dict[str, torch.Tensor]:
    """What the regime tells of a minibatch."""
    return told.of_batch(p, cohort.state, cohort.hyper, batch, populations.draw_at(cohort), offline)


def q_values(p: EnvSpec, state: Any, batch: Batch, action: torch.Tensor | None) -> torch.Tensor:
    return p.algo.answers(p.algo_config).q_values(p.algo_config, state, batch.obs, action).detach()


def greedy(p: EnvSpec, cohort: Cohort, batch: Batch) -> torch.Tensor:
    return p.algo.greedy(p.algo_config, cohort.state, batch.obs, None).detach()


def test_a_deterministic_actor_is_told_by_what_its_own_actions_are_worth() -> None:
    p, cohort, batch = seen("td3")
    own, of_data = (q_values(p, cohort.state, batch, x) for x in (greedy(p, cohort, batch), batch.action))
    found = signals(p, cohort, batch)
    close(found[f"{NAME}actor_loss"], -mean(batch.weight, own))
    close(found[f"{NAME}q_values"], mean(batch.weight, of_data))
    from_data = signals(p, cohort, batch, offline=True)
    close(from_data[f"{NAME}data_gap"], mean(batch.weight, own - of_data))
    assert told.NOISE not in from_data
    assert f"{NAME}data_gap" not in found


def test_the_gap_to_the_target_is_that_of_the_same_actions() -> None:
    """Of a network and its target, three apart everywhere by the output's bias."""
    p, cohort, batch = seen("dqn")
    state = replace(cohort.state, target=cohort.state.q.copy())
    ((bias, _),) = [(layer.bias, layer.weight) for layer in state.target.views[-1:]]
    bias.add_(3.0)
    found = told.of_batch(p, state, cohort.hyper, batch, populations.draw_at(cohort))
    close(found[f"{NAME}target_gap"], torch.full((2,), 3.0))


def test_noise_is_the_root_of_the_mean_square_of_an_actions_numbers() -> None:
    """Of actions of two numbers and more: near 0, where no action is clipped, it is its parameter."""
    spaces = replace(populations.problem(algo="td3").spaces, actions=3)
    p = replace(populations.problem(algo="td3", config={"noise_sd": 0.01, "batch_size": 512}), spaces=spaces)
    (cohort,) = p.form(first_members(p, 2)[0])
    batch = populations.batch_for(p, cohort)
    found = signals(p, cohort, batch)[told.NOISE]
    assert ((found - 0.01).abs() < 5e-4).all()
    draw = populations.draw_at(cohort).part(1)
    legal = torch.ones(*batch.obs.shape[:2], 3, dtype=torch.bool)
    explored = p.algo.act(p.algo_config, cohort.state, batch.obs, legal, torch.zeros(2), draw)
    square = (explored - greedy(p, cohort, batch)).double().square().sum(dim=2) / 3
    close(found, mean(batch.weight, square).sqrt())


def test_a_gaussian_actor_is_told_by_its_soft_values() -> None:
    """Actions tanh u of u = mean + exp(log_std) · noise, whose density is that of u by all |d tanh|."""
    p, cohort, batch = seen("sac:continuous")
    cohort.state.log_alpha.copy_(torch.tensor([0.5, -1.0]))
    chances = p.algo.answers(p.algo_config).chances(p.algo_config, cohort.state, batch.obs, None, None)
    middle, log_std = chances.mean.detach().double(), chances.log_std.detach().double()
    drawn = populations.draw_at(cohort).normal(middle[0].numel()).view(middle.shape).double()
    u = middle + log_std.exp() * drawn
    log_pi = torch.distributions.Normal(middle, log_std.exp()).log_prob(u) - torch.log1p(-u.tanh().square())
    entropy, alpha = -log_pi.sum(dim=2), torch.tensor([0.5, -1.0]).exp()
    q = q_values(p, cohort.state, batch, u.tanh().float())
    found = signals(p, cohort, batch)
    for name, x in {
        "actor_loss": -alpha[:, None] * entropy - q, "entropy": entropy, "log_std": log_std.mean(dim=2),
    }.items():  # fmt: skip
        torch.testing.assert_close(found[NAME + name], mean(batch.weight, x), rtol=1e-3, atol=1e-3)
    close(found[f"{NAME}alpha"], alpha)


def test_an_actor_of_choices_is_told_by_the_mean_over_them() -> None:
    p, cohort, batch = seen("sac")
    cohort.state.log_alpha.copy_(torch.tensor([0.5, -1.0]))
    chances = p.algo.answers(p.algo_config).chances(p.algo_config, cohort.state, batch.obs, None, None)
    log_pi, alpha = chances.log_probs.detach().double(), torch.tensor([0.5, -1.0]).double().exp()
    q = q_values(p, cohort.state, batch, None).double()
    found = signals(p, cohort, batch)
    each = log_pi.exp() * (alpha[:, None, None] * log_pi - q)
    close(found[f"{NAME}actor_loss"], mean(batch.weight, each.sum(dim=2)))
    close(found[f"{NAME}entropy"], mean(batch.weight, -(log_pi.exp() * log_pi).sum(dim=2)))


def test_the_share_of_legal_actions_is_of_what_goes_on() -> None:
    """An end has no actions behind it; rows that go on have one of two, or both."""
    p, cohort, batch = seen("dqn")
    legal = torch.ones(*batch.weight.shape, 2, dtype=torch.bool)
    legal[:, ::2, 1] = False
    share = torch.where(torch.arange(legal.shape[1]) % 2 == 0, 0.5, 1.0)
    masked = replace(batch, next_legal=legal)
    found = signals(p, cohort, masked)[told.LEGAL]
    goes_on = batch.weight.double() * (batch.discount > 0)
    close(found, (goes_on * share).sum(dim=1) / goes_on.sum(dim=1))
    assert told.LEGAL not in signals(p, cohort, batch)


@pytest.mark.parametrize("clipped", [False, True])
def test_a_clipped_objective_is_told_as_it_is_learned_from(clipped: bool) -> None:
    """With advantages of mean 0 and deviation 1 by the weights, and values that may be clipped, too."""
    p = populations.problem(algo="ppo:continuous", config={"normalise_advantage": True, "clip_value": clipped})
    (cohort,) = p.form(first_members(p, 2)[0])
    cohort.state.log_std.copy_(torch.tensor([[-0.5], [0.25]]))
    g = torch.Generator().manual_seed(3)
    shape = (2, 24, 1)
    weight = torch.rand(shape, generator=g)
    weight /= weight.sum(dim=(1, 2), keepdim=True)
    obs, *rest = (torch.randn(*shape[:2], 1, n, generator=g) for n in (p.observations, 1, 1, 1, 1, 1))
    action, noise, advantage, target, before = (x[..., 0] for x in rest)
    answers = p.algo.answers(p.algo_config)
    chances = answers.chances(p.algo_config, cohort.state, obs[:, :, 0], None, torch.zeros(2, 24, 0))
    value = answers.value(p.algo_config, cohort.state, obs[:, :, 0], None, torch.zeros(2, 24, 0)).detach().double()
    log_p = chances.log_prob(action).detach().double()
    batch = Sequences(
        obs=obs, action=action[:, :, None], legal=None, log_prob=(log_p + 0.3 * noise[..., 0])[..., None].float(),
        value=(value + 0.3 * before[..., 0])[..., None].float(), advantage=advantage + 1.0, target=target,
        begins=torch.ones(shape, dtype=torch.bool), memory=torch.zeros(2, 24, 0), weight=weight,
    )  # fmt: skip
    found, share = signals(p, cohort, batch), weight[..., 0].double()
    a = (advantage[..., 0] + 1.0).double()
    a = a - (share * a).sum(dim=1, keepdim=True)
    a = a / (share * a.square()).sum(dim=1, keepdim=True).sqrt()
    ratio, clip = (-0.3 * noise[..., 0].double()).exp(), cohort.hyper["clip"].double()[:, None]
    gain = torch.minimum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    off, old = value - target[..., 0], value + 0.3 * before[..., 0]
    held = old + (value - old).clamp(-clip, clip) - target[..., 0] if clipped else off
    for name, x in {"policy_loss": -gain, "value_loss": 0.5 * torch.maximum(off.square(), held.square())}.items():
        torch.testing.assert_close(found[NAME + name], (share * x).sum(dim=1), rtol=1e-4, atol=1e-4)
    close(found[f"{NAME}log_std"], torch.tensor([-0.5, 0.25]))


def test_the_size_of_observations_is_that_of_the_largest_column_that_is_no_image() -> None:
    """Of the mean absolute values 1, 100, 100, 3 and 50, where two columns are an image."""
    p, cohort, batch = seen("dqn")
    image = Image(1, 1, 1, 2)
    some = torch.tensor([1.0, 100.0, 100.0, -3.0])
    p = replace(p, spaces=replace(p.spaces, images=(image,)))
    found = probe(p, cohort, replace(batch, obs=some.expand(*batch.weight.shape, 4)), populations.draw_at(cohort), {
        **cohort.hyper,
    })  # fmt: skip
    close(found[OBSERVED], torch.full((2,), 3.0))


def test_errors_are_told_by_their_size() -> None:
    """Of a network that says 0 everywhere and rewards of 1 and -1 without a sequel, errors are of size 1."""
    p, cohort, batch = seen("dqn")
    cohort.state.q.values.zero_()
    cohort.state.target.values.zero_()
    signs = torch.where(torch.arange(batch.reward.shape[1]) % 2 == 0, 1.0, -1.0).expand_as(batch.reward)
    ended = replace(batch, reward=signs, discount=torch.zeros_like(batch.discount))
    found = probe(p, cohort, ended, populations.draw_at(cohort), cohort.hyper)
    close(found["losses/td_error"], torch.ones(2))
    close(found["charts/terminated"], torch.ones(2))


def test_of_a_team_each_agents_row_counts_as_much_as_it_learns() -> None:
    batch = transitions(SPACES["discrete"])
    assert batch.learns is not None
    expected = [[[w * own for own in row] for w, row in zip(*each, strict=True)]
                for each in zip(batch.weight.tolist(), batch.learns.tolist(), strict=True)]  # fmt: skip
    assert told.of_each(batch).tolist() == torch.tensor(expected).tolist()


def test_of_a_rollout_the_ticks_that_were_taken_are_told_and_no_others() -> None:
    """Of eight of sixteen: the deviation of their advantages, and how many of their steps ended."""
    p = populations.problem(algo="ppo")
    (cohort,) = p.form(first_members(p, 2)[0])
    rollout, at = populations.rollout_for(p, cohort, broken=0.0), p.observations + 1
    rollout.rows[..., at + 3] = torch.arange(16.0).square()[:, None]
    rollout.rows[..., at + 4], rollout.rows[..., at + 5] = 2.0 * rollout.rows[..., at + 1], 1.0
    recorder = Probe(p, Clock(2, 4, 16, 16))
    probe_rollout(p, cohort, rollout, 8, 8, recorder)
    deviation = torch.arange(8.0).square().std(correction=0)
    for slot, found in enumerate(recorder.diagnostics.told([0, 1])):
        ended = rollout.after[slot, :8, :, p.observations + 1].mean()
        assert found["losses/explained_variance"][0] == pytest.approx(0.75, rel=1e-4)  # by half of what they should be
        assert found["losses/advantage_std"][0] == pytest.approx(float(deviation), rel=1e-5)
        assert found["charts/terminated"][0] == pytest.approx(float(ended), rel=1e-5)


def sequences(p: EnvSpec, obs: torch.Tensor, memory: torch.Tensor, begins: bool) -> Sequences:
    """Sequences of observations `[P, B, L, O]` of an algorithm of two actions, each as likely as it was."""
    zeros = torch.zeros(obs.shape[:3])
    return Sequences(
        obs=obs, action=zeros.long(), legal=None, log_prob=zeros - 0.7, value=zeros, advantage=zeros + 1.0,
        target=zeros, begins=torch.full(zeros.shape, begins), memory=memory,
        weight=torch.ones_like(zeros) / zeros[0].numel(),
    )  # fmt: skip


def test_who_begins_remembers_nothing() -> None:
    p = populations.problem(algo="ppo", config={"network": {"encoder": [16], "latent": 16, "encoder_kind": "lstm"}})
    (cohort,) = p.form(first_members(p, 2)[0])
    memory = 3.0 * torch.randn(2, 5, cohort.memory, generator=torch.Generator().manual_seed(1))
    obs, none = torch.ones(2, 5, 3, p.observations), torch.zeros_like(memory)
    remembered, began, without = (
        signals(p, cohort, sequences(p, obs, *each)) for each in ((memory, False), (memory, True), (none, False))
    )
    for name in ("value_loss", "entropy"):
        close(began[NAME + name], without[NAME + name])
        assert (remembered[NAME + name] != without[NAME + name]).all()


def test_units_are_idle_that_no_step_of_a_sequence_wakes() -> None:
    """Where all that is seen is 0, half of the units are; those that a later step wakes are not."""
    p = populations.problem(algo="ppo")
    (cohort,) = p.form(first_members(p, 2)[0])
    obs = torch.zeros(2, 8, 2, p.observations)
    asleep = _dormant(p, cohort.state, sequences(p, obs, torch.zeros(2, 8, 0), True))[0][DORMANT]
    obs[:, :, 1] = 5.0 * torch.randn(2, 8, p.observations, generator=torch.Generator().manual_seed(1))
    awake = _dormant(p, cohort.state, sequences(p, obs, torch.zeros(2, 8, 0), True))[0][DORMANT]
    assert (asleep > 0.3).all()
    assert (awake < asleep / 2).all()


def test_gradients_are_told_of_all_networks_also_of_those_that_learn_less_often() -> None:
    p, cohort, batch = seen("td3", policy_delay=3)
    told_norm = probe(p, cohort, batch, populations.draw_at(cohort), cohort.hyper)[GRADIENT]
    norms = []
    for turn in (0, 2):
        with optim.watched() as watched:
            state, healthy = cohort.copied_state(), cohort.healthy.clone()
            p.algo.update(p.algo_config, state, cohort.hyper, batch, healthy, populations.draw_at(cohort), turn)
        norms.append(torch.stack([norm for norm, _ in watched], dim=1).square().sum(dim=1).sqrt())
    torch.testing.assert_close(told_norm, norms[1], rtol=1e-5, atol=0)
    assert (norms[1] > norms[0] * 1.0002).all()


def test_gradients_are_clipped_where_those_of_any_network_are() -> None:
    seen = [(torch.tensor([3.0, 0.0]), torch.tensor([True, False])), (torch.tensor([4.0, 2.0]), torch.zeros(2) > 0)]
    assert {name: x.tolist() for name, x in gradients(seen).items()} == {GRADIENT: [5.0, 2.0], CLIPPED: [1.0, 0.0]}
    assert gradients([]) == {}


def test_a_generation_ends_with_its_updates_a_step_and_the_norm_of_what_learns() -> None:
    """Twelve updates more than at its beginning, of three ticks of four environments; targets have no part in it."""
    p, cohort, _ = seen("dqn")
    cohort.state.updates.fill_(5.0)
    recorder = Probe(p, Clock(2, 4, 16, 16, here=3))
    recorder.adopt([cohort])
    cohort.state.updates.copy_(torch.tensor([17.0, 11.0]))
    recorder.end([cohort])
    for slot, found in enumerate(recorder.diagnostics.told([0, 1])):
        assert found["charts/updates_per_step"][0] == [1.0, 0.5][slot]
        assert found["losses/weight_norm"][0] == pytest.approx(float(cohort.state.q.values[slot].norm()), rel=1e-5)
