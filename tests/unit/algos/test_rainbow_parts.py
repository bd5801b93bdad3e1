"""Rainbow: the projection and the noise against the papers' formulas, written out; its parts on and off."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import populations
from evopipe import algos
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort
from evopipe.core.layout import Block
from evopipe.core.member import Member
from evopipe.core.net import Net, forward
from evopipe.core.padded import Padded, noise_scale, noisy
from evopipe.core.structure import Widths
from evopipe.errors import ParamsError
from evopipe.ops.value import project
from evopipe.params.load import parse_params
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import first_members
from evopipe.schema.evolution import MutationConfig
from evopipe.schema.train import ReplayConfig
from evopipe.types import Batch
from populations import finish, same, started

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
PLAIN = {"distributional": False, "dueling": False, "noisy": False}


# ---------------------------------------------------------------------------------------------- the projection


def by_the_paper(z: np.ndarray, r: float, discount: float, p: np.ndarray) -> np.ndarray:
    """Bellemare, Dabney & Munos (2017), algorithm 1, with the mass of a value that hits an atom kept."""
    apart, m = (z[-1] - z[0]) / (len(z) - 1), np.zeros(len(z))
    for j in range(len(z)):
        b = min((min(max(r + discount * z[j], z[0]), z[-1]) - z[0]) / apart, len(z) - 1)
        lower, upper = math.floor(b + 1e-12), math.ceil(b - 1e-12)
        if lower == upper:
            m[lower] += p[j]
        else:
            m[lower] += p[j] * (upper - b)
            m[upper] += p[j] * (b - lower)
    return m


def _normalised(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    drawn = torch.from_numpy(rng.gamma(0.5, size=shape) + 1e-9)
    return drawn / drawn.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize(("low", "high", "atoms"), [(-10.0, 10.0, 51), (-200.0, 300.0, 51), (-3.0, 5.0, 2), (0, 7, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_projection_is_the_papers_loop(low: float, high: float, atoms: int, dtype: torch.dtype) -> None:
    """Inside, on and beyond the bounds, terminal or not, over several steps."""
    rng = np.random.default_rng(0)
    z = torch.linspace(low, high, atoms, dtype=dtype)
    p = _normalised(rng, 4, 50, atoms).to(dtype)
    r = torch.from_numpy(rng.normal(0, 0.6 * (high - low), (4, 50))).to(dtype)
    discount = torch.from_numpy(rng.choice([0.0, 1.0, 0.99, 0.99**3, 0.5], (4, 50))).to(dtype)
    given = project(z, r, discount, p)
    for i in np.ndindex(4, 50):
        expected = by_the_paper(z.double().numpy(), float(r[i]), float(discount[i]), p[i].double().numpy())
        # A value that all but hits an atom may lie on either side of it: the shares differ by no more than the rounding
        # of its place, a number up to `atoms`.
        atol = 8 * atoms * torch.finfo(dtype).eps
        np.testing.assert_allclose(given[i].numpy(), expected, rtol=0, atol=atol)


def test_the_projection_keeps_mass_always_and_the_mean_inside_the_support() -> None:
    rng = np.random.default_rng(1)
    z, p = torch.linspace(-10, 10, 51).double(), _normalised(rng, 300, 51)
    discount = torch.from_numpy(rng.uniform(0, 1, 300))
    within = torch.from_numpy(rng.uniform(-1, 1, 300)) * (10 - 10 * discount)  # then no r + γ z leaves [-10, 10]
    given = project(z, within, discount, p)
    torch.testing.assert_close(given.sum(dim=-1), torch.ones(300).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(given @ z, within + discount * (p @ z), rtol=0, atol=1e-6)
    beyond = project(z, torch.from_numpy(rng.normal(0, 50, 300)), discount, p)
    torch.testing.assert_close(beyond.sum(dim=-1), torch.ones(300).double(), rtol=0, atol=1e-12)
    assert (beyond >= 0).all()


def test_values_that_hit_atoms_stay_whole() -> None:
    """No share leaks to a neighbour: where nothing happens, and where the reward moves by whole atoms."""
    for low, high, atoms in ((-10.0, 10.0, 51), (-200.0, 300.0, 51), (-0.3, 0.7, 11)):
        z, p = torch.linspace(low, high, atoms), _normalised(np.random.default_rng(2), 1, atoms).float()
        still = project(z, torch.zeros(1), torch.ones(1), p)
        assert torch.equal(still, p)
    z, p = torch.linspace(-2, 2, 5), torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]])
    torch.testing.assert_close(project(z, torch.ones(1), torch.ones(1), p), p.roll(1, dims=1))
    assert torch.equal(project(z, torch.tensor([1.0]), torch.zeros(1), p)[0] > 0, torch.eye(5, dtype=torch.bool)[3])


def test_beyond_the_support_everything_lands_on_its_ends() -> None:
    z, p = torch.linspace(-1, 1, 3), torch.tensor([[0.25, 0.25, 0.5]])
    assert project(z, torch.tensor([1e9]), torch.ones(1), p).tolist() == [[0, 0, 1]]
    assert project(z, torch.tensor([-3e38]), torch.ones(1), p).tolist() == [[1, 0, 0]]
    assert project(z, torch.tensor([torch.inf]), torch.zeros(1), p).tolist() == [[0, 0, 1]]


def test_a_reward_that_is_no_number_stays_with_its_transition() -> None:
    z, p = torch.linspace(-1, 1, 3), torch.full((2, 3), 1 / 3)
    given = project(z, torch.tensor([torch.nan, 0.0]), torch.ones(2), p)
    assert given[0].isnan().any()
    torch.testing.assert_close(given[1], p[1])


# ------------------------------------------------------------------------------------------------------- noise


def nets(arch: Arch, members: int = 2, sigma: float = 0.5) -> tuple[Net, Net]:
    """Networks of one architecture, and their scales."""
    structure = Padded([arch] * members, Widths(3, 4), CPU)
    rng = np.random.default_rng(0)
    net = Net(structure, structure.pack([arch.initialise(Widths(3, 4), rng) for _ in range(members)]))
    return net, replace(net, values=noise_scale(structure, sigma))


ARCH = Arch((Block(20),), 24, (Block(18), Block(33)), "ReLU", True)


def stream(step: int, members: int = 2) -> Stream:
    return Stream(torch.arange(members), Purpose.UPDATE, torch.tensor([step]))


@pytest.mark.thorough
def test_noise_is_factorised_and_as_large_as_the_paper_says() -> None:
    """ε = f(a) f(b), f(x) = sign(x) √|x|: of every layer behind the latent, mean 0, f of mean square E|x| = √(2/π)."""
    net, scale = nets(ARCH)
    found = [noisy(net, scale, stream(step)) for step in range(400)]
    encoder = 2
    for i, plain in enumerate(net.views):
        if i < encoder:
            assert all(views[i] is plain for views in found)
            continue
        inputs = [0, 20, 24, 18, 33][i] if i else 3
        sigma = 0.5 * inputs**-0.5
        own = [20, 24, 18, 33, 4][i]
        weights = torch.stack([v[i].weight - plain.weight for v in found])[..., :inputs, :own] / sigma
        biases = torch.stack([v[i].bias - plain.bias for v in found])[..., :own] / sigma
        assert abs(float(weights.mean())) < 0.05
        assert abs(float(biases.mean())) < 0.05
        mean_square = math.sqrt(2 / math.pi)  # of f(x) = sign(x) √|x|
        assert float(biases.square().mean()) == pytest.approx(mean_square, rel=0.05)
        assert float(weights.square().mean()) == pytest.approx(mean_square**2, rel=0.1)
        # f(a) and f(b) are two draws: were they one, the diagonal would be f(b)² and this 0.8.
        assert abs(float(weights.diagonal(dim1=-2, dim2=-1).mean())) < 0.1
        # The bias's noise is f(b): what is left of the weights' is one number a row.
        into = weights / biases
        torch.testing.assert_close(into, into[..., :1].expand_as(into), rtol=2e-3, atol=2e-3)
        assert not torch.equal(weights[0, 0], weights[0, 1]), "each member its own"
        assert not torch.equal(weights[0], weights[1]), "each update its own"


def test_pads_get_no_noise() -> None:
    net, scale = nets(ARCH)
    for i, views in enumerate(noisy(net, scale, stream(0))):
        inputs, own = [3, 20, 24, 18, 33][i], [20, 24, 18, 33, 4][i]
        assert not views.weight[:, inputs:].any()
        assert not views.weight[:, :, own:].any()
        assert not views.bias[..., own:].any()


def test_a_batch_has_one_noise_and_the_scale_sets_its_size() -> None:
    """Peer fault: σ was overwritten, and the noise did not depend on it."""
    net, _ = nets(ARCH)
    x = torch.randn(1, 1, 3, generator=torch.Generator().manual_seed(0)).expand(2, 5, 3)
    plain = forward(net, x)
    spread = []
    for sigma in (0.0, 0.1, 1.0):
        scale = replace(net, values=noise_scale(net.structure, sigma))
        outputs = torch.stack([forward(net, x, noisy(net, scale, stream(step))) for step in range(50)])
        torch.testing.assert_close(outputs, outputs[:, :, :1].expand_as(outputs), rtol=1e-5, atol=1e-5)
        spread.append(float((outputs - plain).square().mean().sqrt()))
    assert spread[0] == 0.0
    assert spread[2] > 3 * spread[1] > 0


def test_noise_does_not_depend_on_a_neighbours_depth() -> None:
    """Of the layers behind the latent; the encoder's depth is another matter."""
    deep = replace(ARCH, encoder=(Block(20), Block(32)))
    net, scale = nets(ARCH, members=1)
    both = Padded([ARCH, deep], Widths(3, 4), CPU)
    rows = [net.structure.unpack(net.values)[0], deep.initialise(Widths(3, 4), np.random.default_rng(1))]
    mixed = Net(both, both.pack(rows))
    given = noisy(mixed, replace(mixed, values=noise_scale(both, 0.5)), stream(3))
    expected = noisy(net, scale, stream(3, members=1))
    for a, b in zip(given[-3:], expected[-3:], strict=True):
        rows_, columns = b.weight.shape[1:]
        torch.testing.assert_close(a.weight[0, :rows_, :columns], b.weight[0])
        torch.testing.assert_close(a.bias[0, :, :columns], b.bias[0])


def cohort_of(**config: Any) -> tuple[Any, Cohort]:
    p = populations.problem(algo="rainbow", config=config)
    (cohort,) = p.form(first_members(p, 3)[0])
    return p, cohort


def test_greedy_actions_have_no_noise_and_training_actions_do() -> None:
    p, cohort = cohort_of(noisy_sigma=5.0)
    obs, legal = torch.randn(3, 40, 4), torch.ones(3, 40, 2, dtype=torch.bool)
    best = p.algo.values(p.algo_config, cohort.state, obs).argmax(dim=-1)
    assert torch.equal(p.algo.greedy(p.algo_config, cohort.state, obs, legal), best)
    zero = torch.zeros(3)
    taken = [p.algo.act(p.algo_config, cohort.state, obs, legal, zero, stream(t, 3)) for t in range(20)]
    assert any(not torch.equal(a, best) for a in taken)
    assert torch.equal(taken[3], p.algo.act(p.algo_config, cohort.state, obs, legal, zero, stream(3, 3)))
    quiet = replace(cohort.state, noise=replace(cohort.state.noise, values=torch.zeros_like(cohort.state.noise.values)))
    assert torch.equal(p.algo.act(p.algo_config, quiet, obs, legal, zero, stream(3, 3)), best)


# -------------------------------------------------------------------------------------------------------- loss


def random_batch(cohort: Cohort, masked: bool = False) -> Batch:
    g, shape = torch.Generator().manual_seed(5), (3, cohort.batch)
    legal = torch.rand(*shape, 2, generator=g) < 0.5
    legal[..., 0] |= ~legal[..., 1]
    return Batch(
        obs=torch.randn(*shape, 4, generator=g), action=torch.randint(2, shape, generator=g),
        reward=3 * torch.randn(*shape, generator=g), discount=0.9 * (torch.rand(shape, generator=g) > 0.3),
        next_obs=torch.randn(*shape, 4, generator=g), next_legal=legal if masked else None,
        weight=cohort.weight * torch.rand(shape, generator=g),
    )  # fmt: skip


@pytest.mark.thorough
def test_without_all_its_parts_it_is_dqn() -> None:
    """A whole run with evolution, to the bit."""
    runs = [
        started(populations.problem("CartPole-v1", algo, config={"lr": 1e-3, "eps_steps": 300, **config}), 3)
        for algo, config in (("dqn", {}), ("rainbow", PLAIN))
    ]
    for run in runs:
        finish(run)
    dqn, rainbow = (run.members for run in runs)
    for a, b in zip(dqn, rainbow, strict=True):
        assert float(a.tensors["updates"]) > 200
        for name in a.tensors:
            assert populations.equal(a.tensors[name], b.tensors[name]), name
    for run in runs:
        run.close()


def test_each_part_can_be_switched_off() -> None:
    on = dict.fromkeys((*PLAIN, "double"), True)
    results = {}
    for off in (None, *on):
        p, cohort = cohort_of(**{name: name != off for name in on})
        for step in range(4):
            learned = p.algo.update(
                p.algo_config, cohort.state, cohort.hyper, random_batch(cohort), cohort.healthy, stream(step, 3), 0
            )
        assert learned.healthy.all()
        results[off] = p.algo.values(p.algo_config, cohort.state, torch.ones(3, 1, 4))
    values = list(results.values())
    assert all(not torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])


# --------------------------------------------------------------------------------------------------- evolution


def trained_member(**config: Any) -> tuple[Any, Member]:
    network = {"encoder": [32], "latent": 24, "head": [16], "layer_norm": True, **config.pop("network", {})}
    p = populations.problem(algo="rainbow", config={"network": network, **config})
    run = started(replace(p, train=p.train.model_copy(update={"evo_steps": 10**6})), 1)
    populations.advance(run, 60)
    (member,) = run.members
    run.close()
    return p, member


BOUNDS = {"min_nodes": 8, "max_nodes": 96, "min_latent": 8, "max_latent": 96, "node_steps": [16], "latent_steps": [8]}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.thorough
def test_architecture_mutations_keep_the_function_and_give_new_weights_noise(norm: bool) -> None:
    """What is added leaves the noise-free values unchanged; new scales are positive, as large as the paper's."""
    p, member = trained_member(network={"layer_norm": norm}, noisy_sigma=0.7)
    obs = torch.randn(1, 30, 4, generator=torch.Generator().manual_seed(0))
    cfg = MutationConfig.model_validate({"architecture": BOUNDS, "new_layer_prob": 0.5}, strict=False)

    def values(m: Member) -> torch.Tensor:
        (cohort,) = p.form_alone(m)
        found: torch.Tensor = p.algo.values(p.algo_config, cohort.state, obs)
        return found

    old, seen = values(member), set()
    for seed in range(40):
        found = populations.mutated("architecture", cfg, p.traits, member, np.random.default_rng(seed))
        assert found is not None
        child, mutation = found
        seen.add((mutation.what, mutation.after > mutation.before))
        if mutation.after > mutation.before:
            torch.testing.assert_close(values(child), old, rtol=1e-4, atol=1e-4)
        before, after = (m.arch.named(p.widths["q"], m.tensors["noise"]) for m in (member, child))
        for name, part in after.items():
            if name.rpartition(".")[2] in ("gain", "shift", "alpha"):
                assert not part.any()
                continue
            kept = tuple(slice(0, min(a, b)) for a, b in zip(part.shape, before[name].shape, strict=True)) \
                if name in before else None  # fmt: skip
            inputs = after[name.rpartition(".")[0] + ".weight"].shape[0]
            new = torch.ones_like(part, dtype=torch.bool)
            if kept is not None:
                assert torch.equal(part[kept], before[name][kept])
                new[kept] = False
            if new.any():
                assert (part[new] > 0).all()
                torch.testing.assert_close(part[new], torch.full_like(part[new], 0.7 * inputs**-0.5), rtol=0.1, atol=0)
    assert len({what for what, grew in seen if grew}) >= 4
    assert {grew for _, grew in seen} == {True, False}


def test_parameter_noise_goes_to_the_policys_weights_only() -> None:
    p, member = trained_member()
    found = populations.mutated("parameters", MutationConfig(), p.traits, member, np.random.default_rng(0))
    assert found is not None
    changed = {name for name, t in found[0].tensors.items() if not torch.equal(t, member.tensors[name])}
    assert changed == {"q"}
    assert not same(found[0], member)


def test_the_target_starts_as_a_copy_noise_included() -> None:
    p = populations.problem(algo="rainbow")
    member = first_members(p, 1)[0][0]
    assert torch.equal(member.tensors["q"], member.tensors["target"])
    assert torch.equal(member.tensors["noise"], member.tensors["noise_target"])
    assert {f.name for f in fields(p.algo.State)} >= {"q", "target", "noise", "noise_target"}


# --------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"v_min": 10.0, "v_max": 10.0}, "algos.rainbow: v_min (10.0) must be below v_max (10.0)"),
        ({"v_min": 3.0, "v_max": -3.0}, "algos.rainbow: v_min (3.0) must be below v_max (-3.0)"),
        ({"atoms": 1}, "algos.rainbow.atoms:"),
        ({"noisy_sigma": -0.1}, "algos.rainbow.noisy_sigma:"),
    ],
)
def test_what_the_distribution_cannot_be(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ParamsError) as caught:
        parse_params({"train": {"algo": "rainbow"}, "algos": {"rainbow": data}})
    assert sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ValidationError):
        algos.get("rainbow").Config(**data)


@pytest.mark.parametrize("key", ["alpha", "beta"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_what_priorities_cannot_be(key: str, value: float) -> None:
    with pytest.raises(ParamsError) as caught:
        parse_params({"train": {"replay": {"prioritised": True, key: value}}})
    assert f"train.replay.{key}:" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    for allowed in (0.0, 1.0):
        assert getattr(ReplayConfig.model_validate({key: allowed}), key) == allowed


# ----------------------------------------------------------------------------------------------- known values


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "n_step", "expected"),
    [
        ("Chain", 1, [[0.512, 0.64], [0.512, 0.8], [0.64, 1.0]]),
        # Cut after ten steps, worth 1 / (1 − γ) whatever is done on the way.
        pytest.param("Endless", 3, [[5.0, 5.0]] * 4, marks=pytest.mark.slow),
        pytest.param("OneStep", 3, [[0.0, 0.5], [0.0, 1.0]], marks=pytest.mark.slow),
    ],
)
def test_values_that_are_known_with_every_part_switched_on(env: str, n_step: int, expected: list[list[float]]) -> None:
    """Noise explores, priorities choose; over three steps where the behaviour on the way does not matter."""
    p = populations.problem(
        f"envs_for_tests:{env}-v0", "rainbow",
        train={"max_steps": 10**6, "evo_steps": 10**6, "learning_delay": 100,
               "replay": {"capacity": 2000, "n_step": n_step, "prioritised": True}},
        config={"network": {"encoder": [32], "latent": 32}, "lr": 3e-3, "batch_size": 64, "learn_step": 1,
                "gamma": 0.8, "tau": 0.1, "v_min": -1.0, "v_max": 6.0, "noisy_sigma": 0.5},
    )  # fmt: skip
    run, values = started(p, 2), vars(algos.get("rainbow"))["values"]
    populations.advance(run, 600)
    for cohort in run.cohorts:
        found = values(p.algo_config, cohort.state, torch.eye(4).expand(len(cohort.slots), -1, -1))
        given = found[:, : len(expected)].numpy()
        np.testing.assert_allclose(given, [expected] * len(cohort.slots), rtol=0, atol=0.1)
    run.close()
