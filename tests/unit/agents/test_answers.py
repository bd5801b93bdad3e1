"""What a policy can be asked: values, action values, probabilities, as its algorithm's own networks have them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import evopipe
import populations
import reference
from evopipe.core.member import Member, tensor_kinds
from evopipe.envs.pool import EnvPool
from evopipe.errors import DataError, UsageError
from evopipe.policies import policy
from evopipe.policies.policy import Policy
from evopipe.run.population import about_spec
from evopipe.run.spec import EnvSpec, first_members
from evopipe.storage import members as stored

B = 5
CASES = (
    "dqn", "rainbow", "qrdqn", "cqn", "ddpg", "td3", "td3bc", "td3:continuous:shared", "sac", "sac:continuous", "tqc",
    "crossq", "redq", "iql",
    "iql:continuous", "bc", "bc:continuous", "ppo", "ppo:continuous", "ppo:multidiscrete", "ppo:multibinary",
)  # fmt: skip

Nets = Callable[[str, torch.Tensor], torch.Tensor]
"""A network by its name, one member's by itself: `[B, inputs]` → `[B, outputs]`."""


def trained(p: EnvSpec, seed: int = 1) -> Member:
    """A member as training may leave it: no two networks alike, targets unlike the online ones."""
    member, rng = first_members(p, 1)[0][0], np.random.default_rng(seed)
    kinds = tensor_kinds(p.algo.State, p.widths)
    learned = {
        name: reference.random_row(member.arch, p.widths[network], rng)  # type: ignore[arg-type]
        for name, (kind, network) in kinds.items()
        if kind == "parameters"
    }
    if "log_std" in member.tensors:
        learned["log_std"] = torch.from_numpy(rng.normal(-0.5, 0.3, member.tensors["log_std"].shape)).float()
    return replace(member, tensors={**member.tensors, **learned})


def described(p: EnvSpec) -> dict[str, Any]:
    pool = EnvPool(p.env, 1)
    config = p.algo_config.model_dump(mode="json")
    about = {"algo": p.train.algo, "env": {"id": p.env.id, "kwargs": p.env.kwargs}, "config": config}
    about |= {**pool.actions.to_json(), **pool.observations.to_json()}
    pool.close()
    return about


def saved(p: EnvSpec, member: Member, folder: Path, critic: bool = True) -> Policy:
    policy.save(folder, p.train.algo, member, described(p), False, "", critic)
    return evopipe.load(folder)


def nets(p: EnvSpec, member: Member) -> Nets:
    """The member's online networks, by the reference; a head reads its own inputs, then the shared encoder's."""
    where = {network: name for name, (kind, network) in reversed(tensor_kinds(p.algo.State, p.widths).items())
             if kind == "parameters" and "target" not in name}  # fmt: skip

    def run(network: str, x: torch.Tensor, action: torch.Tensor | None = None) -> torch.Tensor:
        widths = p.widths[network]
        if widths.role == "head":
            x = reference.function(member.arch, p.widths["encoder"], member.tensors[where["encoder"]], x)  # type: ignore[arg-type]
            x = x if action is None else torch.cat((action, x), dim=1)
        elif action is not None:
            x = torch.cat((x, action), dim=1)
        return reference.function(member.arch, widths, member.tensors[where[network]], x)  # type: ignore[arg-type]

    return run


def masked(logits: torch.Tensor, legal: torch.Tensor) -> torch.Tensor:
    return torch.where(legal, logits, -torch.inf).softmax(dim=-1)


def expected(
    p: EnvSpec, run: Any, member: Member, obs: torch.Tensor, legal: torch.Tensor, action: torch.Tensor
) -> dict[str, Any]:
    """By hand: what the papers say of the networks' outputs. `action` in the algorithm's own terms."""
    name, out = p.train.algo, {}
    twin = lambda: (run("critic_1", obs), run("critic_2", obs))  # noqa: E731
    taken = lambda a: torch.minimum(run("critic_1", obs, a), run("critic_2", obs, a))[:, 0]  # noqa: E731
    if name in ("dqn", "cqn", "qrdqn", "rainbow"):
        q = run("q", obs)
        if name == "qrdqn":
            q = q.view(B, -1, 50).mean(dim=-1)
        if name == "rainbow":
            atoms = torch.linspace(-200.0, 200.0, 51)
            parts = q.view(B, -1, 51)  # the value's row stands first
            q = parts[:, :1] + parts[:, 1:] - parts[:, 1:].mean(dim=1, keepdim=True)
            q = (q.softmax(dim=-1) * atoms).sum(dim=-1)
        out = {"q": q, "q_of": q[torch.arange(B), action], "value": torch.where(legal, q, -torch.inf).amax(dim=1)}
    elif name == "ddpg":
        out["q_of"] = run("critic", obs, action)[:, 0]
        out["value"] = run("critic", obs, torch.tanh(run("actor", obs)))[:, 0]
    elif name in ("td3", "td3bc"):
        out = {"q_of": taken(action), "value": taken(torch.tanh(run("actor", obs)))}
    elif name == "tqc":
        out["q_of"] = torch.cat((run("critic_1", obs, action), run("critic_2", obs, action)), dim=1).mean(dim=1)
    elif name == "redq":
        out["q_of"] = torch.cat([run(f"critic_{k}", obs, action) for k in range(1, 11)], dim=1).mean(dim=1)
    elif p.spaces.continuous and name in ("sac", "iql", "crossq"):
        out["q_of"] = taken(action)
    elif name in ("sac", "iql"):
        q = torch.minimum(*twin())
        out = {"q": q, "q_of": q[torch.arange(B), action]}
    if name in ("iql", "ppo"):
        out["value"] = run("value" if name == "iql" else "critic", obs)[:, 0]
    if name in ("sac", "iql", "bc", "ppo") and p.spaces.kind == "discrete":
        out["chances"] = masked(run("actor", obs), legal)
        out["log_prob"] = out["chances"][torch.arange(B), action].log()
    elif name in ("sac", "tqc", "crossq", "redq"):
        mean, log_std = run("actor", obs).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = torch.atanh(action)
        out["log_prob"] = (normal.log_prob(u) - torch.log(1 - action**2)).sum(dim=1)
    elif name == "ppo" and p.spaces.continuous:
        normal = torch.distributions.Normal(run("actor", obs), member.tensors["log_std"].exp())
        out["log_prob"] = normal.log_prob(action).sum(dim=1)
    elif name == "ppo" and p.spaces.kind == "multibinary":
        chance = torch.where(legal, run("actor", obs).sigmoid(), 0.0)
        out["chances"] = chance
        out["log_prob"] = torch.where(action == 1, chance, 1 - chance).log().sum(dim=1)
    elif name == "ppo":
        logits, allowed = run("actor", obs).split(p.spaces.choices, dim=1), legal.split(p.spaces.choices, dim=1)
        each = [masked(x, may) for x, may in zip(logits, allowed, strict=True)]
        out["chances"] = torch.cat(each, dim=1)
        out["log_prob"] = sum(x[torch.arange(B), a].log() for x, a in zip(each, action.unbind(dim=1), strict=True))
    return out


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_the_algorithms_own_networks(case: str, tmp_path: Path) -> None:
    """One by one, without pads: of a batch, of one, in NumPy and in torch, with illegal actions and without."""
    p = populations.problem(algo=case)
    member = trained(p)
    loaded, space, rng = saved(p, member, tmp_path / "elite"), EnvPool(p.env, 1).actions, np.random.default_rng(2)
    obs = torch.from_numpy(rng.normal(size=(B, p.observations))).float()
    legal = np.ones((B, p.actions), np.bool_)
    if not p.spaces.continuous:
        legal[0, 0] = False
    relative = np.stack([space.sample(row, rng) for row in legal])
    own = space.own(relative)
    found = expected(p, nets(p, member), member, obs, torch.from_numpy(legal), torch.from_numpy(relative))
    may = {} if p.spaces.continuous else {"mask": legal}
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]] = {
        "value": (loaded.value, (), may),
        "q": (loaded.q_values, (), {}),
        "q_of": (loaded.q_values, (own,), {}),
        "chances": (loaded.probabilities, (), may),
        "log_prob": (loaded.log_prob, (own,), may),
    }
    for name, (call, more, named) in calls.items():
        if name not in found:
            with pytest.raises(UsageError, match=r"it has act\(obs\)|cannot be listed"):
                call(obs.numpy(), *more, **named)
            continue
        in_numpy, in_torch = call(obs.numpy(), *more, **named), call(obs, *more, **named)
        assert isinstance(in_numpy, np.ndarray)
        assert isinstance(in_torch, torch.Tensor)
        assert in_numpy.dtype == np.float32
        np.testing.assert_array_equal(in_numpy, in_torch.numpy())
        np.testing.assert_allclose(in_numpy, found[name].numpy(), rtol=2e-4, atol=2e-5)
        one = call(obs[1].numpy(), *(a[1] for a in more), **{key: mask[1] for key, mask in named.items()})
        assert one.shape == in_numpy.shape[1:]
        np.testing.assert_allclose(one, in_numpy[1], rtol=1e-5, atol=1e-6)


def test_what_a_policy_has_is_said(tmp_path: Path) -> None:
    def asked(case: str, name: str, *more: Any) -> str:
        p = populations.problem(algo=case)
        made = saved(p, first_members(p, 1)[0][0], tmp_path / case.replace(":", "-"))
        with pytest.raises(UsageError) as caught:
            getattr(made, name)(np.zeros(p.observations), *more)
        return str(caught.value)

    start = "a policy of {} with {} actions has no {}: it has act(obs)"
    assert asked("dqn", "probabilities") == (
        start.format("dqn", "discrete", "probabilities") + " and value(obs) and q_values(obs)"
    )
    assert asked("bc:continuous", "value") == start.format("bc", "continuous", "value")
    assert asked("sac:continuous", "probabilities") == (
        start.format("sac", "continuous", "probabilities") + " and q_values(obs, action) and log_prob(obs, action)"
    )
    assert asked("td3", "q_values") == "these actions are continuous, and cannot be listed: call q_values(obs, action)"


@pytest.mark.parametrize("action", [2, -1, 0.5, [0, 1, 0], [math.nan], None, "left"])
def test_an_action_that_is_none(action: Any, tmp_path: Path) -> None:
    p = populations.problem(algo="ppo")
    made = saved(p, first_members(p, 1)[0][0], tmp_path / "elite")
    with pytest.raises(UsageError, match=r"^action "):
        made.log_prob(np.zeros((2, 4)), action)


def test_without_its_critic_a_policy_says_so_and_acts(tmp_path: Path) -> None:
    """By default the critic stays out of the folder; the probabilities need none."""
    p = populations.problem(algo="ppo")
    member, obs = trained(p), np.random.default_rng(0).normal(size=(B, 4))
    whole, bare = saved(p, member, tmp_path / "whole"), saved(p, member, tmp_path / "bare", critic=False)
    assert (whole.act(obs) == bare.act(obs)).all()
    np.testing.assert_array_equal(whole.probabilities(obs), bare.probabilities(obs))
    with pytest.raises(UsageError, match=r"without its critic; set export\.critic to true"):
        bare.value(obs)
    assert "critic" not in bare.about
    assert whole.about["critic"] == ["critic"]


def test_a_recurrent_policy_values_what_it_remembers(tmp_path: Path) -> None:
    network = {"encoder_kind": "lstm", "encoder": [16], "latent": 16}
    p = populations.problem(algo="ppo", config={"network": network, "learn_step": 64})
    made = saved(p, first_members(p, 1)[0][0], tmp_path / "elite")
    obs = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    _, memory = made.step(obs[0])
    state, algo, cfg = made._cohort.state, made._algo, made._cfg
    seen, kept = torch.from_numpy(obs[1])[None], torch.from_numpy(memory)[None]
    own = algo.step(cfg, state, seen, None, kept, None)
    np.testing.assert_array_equal(made.value(obs[1], memory=memory), own.value[0].numpy())
    assert (made.value(obs[1]) != made.value(obs[1], memory=memory)).any()
    chances = made.probabilities(obs[1], memory=memory)
    assert (chances.argmax(axis=1) == made.step(obs[1], memory)[0]).all()
    action = chances.argmin(axis=1)
    np.testing.assert_allclose(made.log_prob(obs[1], action, memory=memory), np.log(chances.min(axis=1)), rtol=1e-5)


def test_normalised_observations_are_valued_as_they_are_seen(tmp_path: Path) -> None:
    p = populations.problem(train={"normalise": {"observations": True}})
    member = p.equip(trained(p))
    seen = {"normaliser.count": 4.0, "normaliser.mean": 1.0, "normaliser.square": 16.0}  # mean 1, deviation 2
    tensors = {n: torch.full_like(t, seen[n]) if n in seen else t for n, t in member.tensors.items()}
    loaded = saved(p, replace(member, tensors=tensors), tmp_path / "elite")
    obs = torch.randn(B, 4, generator=torch.Generator().manual_seed(0))
    known = nets(p, member)("q", (obs - 1.0) / 2.0)
    np.testing.assert_allclose(loaded.value(obs).numpy(), known.amax(dim=1).numpy(), rtol=1e-5, atol=1e-5)


# --- trained members --------------------------------------------------------------------------------------------------


@pytest.fixture
def group(tmp_path: Path) -> tuple[EnvSpec, list[Member], Path]:
    p = populations.problem(algo="td3", mutation=populations.UNLIKE)
    members = [replace(trained(p, seed), slot=seed, id=10 + seed) for seed in range(3)]
    about = {**about_spec(p), "policy": described(p), "elite": {"id": 11}}
    stored.write(tmp_path / "trained", [*members, members[1]], about)
    return p, members, tmp_path / "trained"


def test_every_trained_member_is_a_policy(group: tuple[EnvSpec, list[Member], Path], tmp_path: Path) -> None:
    """It acts and values as it would if it had been exported with its critic; the elite behind them is none of them."""
    p, members, folder = group
    obs = np.random.default_rng(1).normal(size=(B, p.observations)).astype(np.float32)
    policies = policy.trained(folder)
    assert len(policies) == 3
    for i, (made, member) in enumerate(zip(policies, members, strict=True)):
        exported, again = saved(p, member, tmp_path / str(i)), evopipe.load(folder, member=i)
        for other in (exported, again):
            np.testing.assert_array_equal(made.act(obs), other.act(obs))
            np.testing.assert_array_equal(made.value(obs), other.value(obs))
        assert (made.about["id"], made.about["algo"]) == (10 + i, "td3")


@pytest.mark.parametrize("member", [3, -1, 1.0, True, "1"])
def test_a_member_that_is_not_there(group: tuple[EnvSpec, list[Member], Path], member: Any) -> None:
    with pytest.raises(UsageError, match=r"there is no member .*: they are 0 to 2$"):
        evopipe.load(group[2], member=member)


def test_members_that_do_not_say_what_they_are(group: tuple[EnvSpec, list[Member], Path]) -> None:
    stored.write(group[2], group[1], about_spec(group[0]))
    with pytest.raises(DataError, match="does not say what its members' policies are"):
        evopipe.load(group[2], member=0)


def test_a_policy_says_what_it_is(group: tuple[EnvSpec, list[Member], Path]) -> None:
    made = evopipe.load(group[2], member=2)
    assert repr(made) == "<Policy td3, Pendulum-v1: 3 observations → 1 continuous actions, network 16|16>"
    assert issubclass(UsageError, evopipe.EvopipeError)
