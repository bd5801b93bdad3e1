"""Networks cut behind the latent: an encoder and the heads that read it are what whole networks are, and stay so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import populations
import reference
from evopipe.algos._actor_critic import action_value
from evopipe.core import optim
from evopipe.core.arch import Arch
from evopipe.core.cohort import Cohort
from evopipe.core.layers import ACTIVATIONS
from evopipe.core.layout import Block
from evopipe.core.member import Member, tensor_kinds
from evopipe.core.morph import Change
from evopipe.core.net import Net, forward
from evopipe.core.padded import Padded
from evopipe.core.stem import Conv, Stem
from evopipe.core.structure import Widths, acting_networks, share_encoder
from evopipe.errors import ParamsError
from evopipe.policies import policy
from evopipe.run.spec import EnvSpec, first_members
from evopipe.schema.evolution import ArchitectureBounds, MutationConfig
from evopipe.schema.network import EncoderKind
from evopipe.storage.tensors import load_tensors
from evopipe.types import Image
from populations import UNLIKE, started, updated

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
OBSERVATIONS, ACTIONS, BATCH = 5, 2, 7
ENCODER, ACTOR, CRITIC = Widths(OBSERVATIONS, 0, "encoder"), Widths(0, ACTIONS, "head"), Widths(ACTIONS, 1, "head")
SHARED = {"encoder": ENCODER, "actor": ACTOR, "critic": CRITIC}
BOUNDS = ArchitectureBounds(
    min_layers=0, max_layers=3, min_nodes=3, max_nodes=40, min_latent=3, max_latent=40, node_steps=(1, 8, 16),
    latent_steps=(1, 8, 16), min_channels=1, max_channels=9, channel_steps=(2,),
)  # fmt: skip
EVERY = [(name, norm) for name in sorted(ACTIVATIONS) for norm in (False, True)]
Rows = Mapping[str, torch.Tensor]

everywhere = pytest.mark.parametrize(("activation", "norm"), EVERY)


def generators(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def rows_of(arch: Arch, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    return {name: reference.random_row(arch, widths, rng) for name, widths in SHARED.items()}


def net_of(
    archs: Sequence[Arch], rows: Sequence[torch.Tensor], widths: Widths, dtype: torch.dtype = torch.float32
) -> Net:
    structure = Padded(archs, widths, CPU)
    structure.masks = [None if mask is None else mask.to(dtype) for mask in structure.masks]
    return Net(structure, structure.pack([row.float() for row in rows]).to(dtype), trainable=True)


def nets_of(archs: Sequence[Arch], rows: Sequence[Rows], dtype: torch.dtype = torch.float32) -> tuple[Net, Net, Net]:
    encoder, actor, critic = (net_of(archs, [row[name] for row in rows], w, dtype) for name, w in SHARED.items())
    return encoder, actor, critic


def both_heads(nets: tuple[Net, Net, Net], obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """`[P, B, A + 1]`: what the actor's and the critic's head make of the features."""
    encoder, actor, critic = nets
    x = forward(encoder, obs)
    return torch.cat((forward(actor, x), action_value(critic, x, action)[..., None]), dim=-1)


def expected(arch: Arch, rows: Rows, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The same of one member by plain torch, `[B, A + 1]`."""
    encoder, actor, critic = (arch.named(widths, rows[name]) for name, widths in SHARED.items())
    x = reference.network(arch, encoder, obs)
    return torch.cat((reference.network(arch, actor, x), reference.network(arch, critic, torch.cat((action, x), 1))), 1)


def batch(members: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    obs, action = (torch.randn(members, BATCH, width, generator=g).to(dtype) for width in (OBSERVATIONS, ACTIONS))
    return obs, action


def alone(
    arch: Arch, rows: Sequence[torch.Tensor], obs: torch.Tensor, action: torch.Tensor, seeds: torch.Tensor
) -> reference.Known:
    """`expected` of one member, and the gradients of its sum, weighted by `seeds`, in each of its rows."""

    def all_of(obs: torch.Tensor, action: torch.Tensor, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [row.requires_grad_(True) for row in rows]
        y = expected(arch, dict(zip(SHARED, leaves, strict=True)), obs, action)
        return y, *torch.autograd.grad((y * seeds).sum(), leaves)

    return reference.known(all_of, obs, action, *rows)


# ------------------------------------------------------------------------------------------ cut and whole alike

IMAGES = Stem((Image(1, 2, 6, 6),), (Conv(4, 3, 2), Conv(3, 2, 1)))


@pytest.mark.parametrize("kind", ["mlp", "simba", "resnet", "lstm"])
@pytest.mark.parametrize("stem", [Stem(), IMAGES], ids=["vector", "images"])
@pytest.mark.parametrize("norm", [False, True])
def test_an_encoder_and_its_head_are_the_whole_network_to_the_bit(kind: EncoderKind, stem: Stem, norm: bool) -> None:
    inputs = OBSERVATIONS + sum(image.size for image in stem.images)
    depths = [((20, 33), 24, ()), ((17,), 40, (Block(9, True), Block(30))), ((16,), 8, (Block(50),))]
    archs = [
        Arch(tuple(map(Block, widths)), latent, head, activation, norm, stem, kind)
        for activation in ("ELU", "ReLU", "Sigmoid")
        for widths, latent, head in depths
    ]
    whole = Widths(inputs, 3)
    cut = {"encoder": Widths(inputs, 0, "encoder"), "head": Widths(0, 3, "head")}
    rows, pieces = [], []
    for arch in archs:
        row = arch.initialise(whole, generators(0))
        row += 0.1 * torch.from_numpy(generators(1).standard_normal(len(row))).float()
        parts = arch.named(whole, row)
        piece = {name: torch.empty(arch.layout(widths).size) for name, widths in cut.items()}
        found = {name: view for role, widths in cut.items() for name, view in arch.named(widths, piece[role]).items()}
        assert found.keys() == parts.keys()
        assert sum(map(len, piece.values())) == len(row)
        for name, view in found.items():
            view.copy_(parts[name])
        rows.append(row)
        pieces.append(piece)
    net = net_of(archs, rows, whole)
    encoder, head = (net_of(archs, [piece[role] for piece in pieces], widths) for role, widths in cut.items())
    x = torch.randn(len(archs), BATCH, inputs, generator=torch.Generator().manual_seed(0))
    y, z = forward(net, x), forward(head, forward(encoder, x))
    assert torch.equal(y, z)
    optim.backward(y.square().sum(dim=(1, 2)), net)
    optim.backward(z.square().sum(dim=(1, 2)), encoder, head)
    grads = zip(archs, *(n.structure.unpack(n.grad) for n in (net, encoder, head)), strict=True)
    for arch, of_whole, of_encoder, of_head in grads:
        found = arch.named(cut["encoder"], of_encoder) | arch.named(cut["head"], of_head)
        assert all(torch.equal(found[name], part) for name, part in arch.named(whole, of_whole).items())


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.thorough
def test_unlike_members_compute_what_their_own_networks_compute(norm: bool, seed: int) -> None:
    """A head's own inputs, latents of unlike widths, blends over both; and no gradient on a pad."""
    rng, dtype = generators(seed), torch.float64
    archs = [reference.random_arch(rng, name, norm) for name in sorted(ACTIVATIONS) for _ in range(2)]
    rows = [rows_of(arch, rng) for arch in archs]
    obs, action = batch(len(archs), seed, dtype)
    seeds = torch.randn(len(archs), BATCH, ACTIONS + 1, generator=torch.Generator().manual_seed(9)).to(dtype)
    nets = nets_of(archs, rows, dtype)
    y = both_heads(nets, obs, action)
    optim.backward((y * seeds).sum(dim=(1, 2)), *nets)
    for net in nets:
        own = torch.zeros_like(net.grad, dtype=torch.bool)
        for i, index in enumerate(net.structure.index):
            own[i, index] = True
        assert not net.grad[~own].any()
    grads = [net.structure.unpack(net.grad) for net in nets]
    for i, arch in enumerate(archs):
        own = alone(arch, [row.to(dtype) for row in rows[i].values()], obs[i], action[i], seeds[i])
        assert own.agrees(y[i], *(mine[i] for mine in grads)), arch


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_of_torch_modules(norm: bool) -> None:
    """Against torch.nn, whose encoder gets its gradient from both heads."""

    def layers(*widths: int) -> list[torch.nn.Module]:
        found: list[torch.nn.Module] = []
        for a, b in pairwise(widths):
            found += [torch.nn.Linear(a, b), *([torch.nn.LayerNorm(b)] if norm else []), torch.nn.GELU()]
        return found

    torch.manual_seed(0)
    arch = Arch((Block(20),), 12, (Block(9),), "GELU", norm)
    modules = {
        "encoder": torch.nn.Sequential(*layers(OBSERVATIONS, 20, 12)),
        "actor": torch.nn.Sequential(*layers(12, 9), torch.nn.Linear(9, ACTIONS)),
        "critic": torch.nn.Sequential(*layers(ACTIONS + 12, 9), torch.nn.Linear(9, 1)),
    }

    def flat(module: torch.nn.Module, grad: bool) -> torch.Tensor:
        found = []
        for layer in module.children():
            for parameter in layer.parameters():
                value = parameter.grad if grad else parameter.detach()
                assert value is not None
                found.append((value.T if value.ndim == 2 else value).flatten())
        return torch.cat(found)

    nets = nets_of([arch], [{name: flat(module, False) for name, module in modules.items()}])
    obs, action = batch(1)
    y = both_heads(nets, obs, action)
    seeds = torch.randn(BATCH, ACTIONS + 1)
    optim.backward((y * seeds).sum(dim=(1, 2)), *nets)
    x = modules["encoder"](obs[0])
    right = torch.cat((modules["actor"](x), modules["critic"](torch.cat((action[0], x), 1))), 1)
    (right * seeds).sum().backward()
    given = [flat(module, False) for module in modules.values()]
    own = alone(arch, given, obs[0], action[0], seeds)
    assert own.agrees(y[0], *(net.structure.unpack(net.grad)[0] for net in nets))
    assert own.agrees(right, *(flat(module, True) for module in modules.values()))


# ----------------------------------------------------------------------------------------------------- mutation


def changes(arch: Arch) -> Iterator[tuple[str, int, int, Arch]]:
    """(what, before, after, architecture) of every possible change."""
    widths = list(SHARED.values())
    for _, what, before, after, new in arch.options(BOUNDS, widths):
        yield what, before, after, new


def resized(old: Arch, new: Arch, rows: Rows, seed: int) -> dict[str, torch.Tensor]:
    return {name: Change(old, new, w).parameters(rows[name], generators(seed)) for name, w in SHARED.items()}


def columns(arch: Arch, rows: Rows, obs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`expected`, each output apart."""
    return expected(arch, rows, obs, action).unbind(1)


def composed(arch: Arch, rows: Rows, obs: torch.Tensor, action: torch.Tensor) -> reference.Known:
    """`columns`, as well as they are known from parameters in float32."""
    return reference.known(
        lambda obs, action, *rows: columns(arch, dict(zip(SHARED, rows, strict=True)), obs, action),
        obs, action, *(rows[name] for name in SHARED),
    )  # fmt: skip


def doubled(rows: Rows) -> dict[str, torch.Tensor]:
    return {name: row.double() for name, row in rows.items()}


@pytest.mark.thorough
@everywhere
@pytest.mark.parametrize("seed", range(4))
def test_every_addition_leaves_the_composed_function_unchanged(activation: str, norm: bool, seed: int) -> None:
    rng = generators(seed)
    arch = reference.random_arch(rng, activation, norm, narrowest=8, widest=30)
    rows = rows_of(arch, rng)
    obs, action = (x[0] for x in batch(1, seed))
    before_it, tried = composed(arch, rows, obs, action), 0
    for what, before, after, new in changes(arch):
        if after > before:
            grown = resized(arch, new, rows, tried)
            assert before_it.agrees(*columns(new, doubled(grown), obs.double(), action.double())), (arch, what, after)
            tried += 1
    assert tried >= 1


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("own", [3, 14, 30])
def test_a_wider_latent_before_a_blended_layer_of_the_head(own: int, norm: bool) -> None:
    """The new features pass the blended layer by, behind the head's own inputs, to places that others fill."""
    old, new = (Arch((Block(20),), latent, (Block(own, True),), "Tanh", norm) for latent in (13, 21))
    rows = rows_of(old, generators(0))
    obs, action = (x[0] for x in batch(1))
    wider = resized(old, new, rows, 1)
    assert composed(old, rows, obs, action).agrees(*columns(new, doubled(wider), obs.double(), action.double()))


@pytest.mark.parametrize("kind", ["mlp", "simba", "resnet", "lstm"])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.thorough
def test_every_addition_in_a_padded_cohort_of_every_kind(kind: EncoderKind, norm: bool) -> None:
    """Convolutions too: all members change theirs alike there."""
    image = IMAGES.images[0]
    arch = Arch((Block(21), Block(12)), 17, (Block(19),), "ELU", norm, IMAGES, kind)
    widths = share_encoder({"actor": Widths(37 + image.size, 3), "critic": Widths(39 + image.size, 1)}, 37 + image.size)
    rng = generators(0)
    rows = {}
    for name, w in widths.items():
        row = arch.initialise(w, rng)
        rows[name] = row + 0.1 * torch.from_numpy(rng.standard_normal(len(row))).float()
    g = torch.Generator().manual_seed(0)
    obs, action = (torch.randn(1, BATCH, width, generator=g) for width in (37 + image.size, 2))

    def outputs(of: Arch, obs: torch.Tensor, action: torch.Tensor, *own: torch.Tensor) -> tuple[torch.Tensor, ...]:
        encoder, actor, critic = (
            net_of([of], [row], w, obs.dtype) for row, w in zip(own, widths.values(), strict=True)
        )
        x = forward(encoder, obs)
        return forward(actor, x).detach(), action_value(critic, x, action).detach()

    old = reference.known(partial(outputs, arch), obs, action, *rows.values())
    tried = 0
    for _, what, before, after, new in arch.options(BOUNDS, list(widths.values())):
        grown = {name: Change(arch, new, w).parameters(rows[name], rng) for name, w in widths.items()}
        moments = {name: Change(arch, new, w).moments(rows[name]) for name, w in widths.items()}
        assert all(len(grown[n]) == len(moments[n]) == new.layout(w).size for n, w in widths.items()), what
        if after > before:
            assert old.agrees(*outputs(new, obs, action, *grown.values())), what
            tried += 1
    assert tried > 5


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_survivors_of_all_parts_keep_their_moments(norm: bool, seed: int) -> None:
    rng = generators(seed)
    arch = reference.random_arch(rng, "ReLU", norm, narrowest=8, widest=30)
    rows = rows_of(arch, rng)
    for what, _, _, new in changes(arch):
        for network, widths in SHARED.items():
            before = arch.named(widths, rows[network])
            for name, part in new.named(widths, Change(arch, new, widths).moments(rows[network])).items():
                if name not in before:
                    assert not part.any(), (what, network, name)
                    continue
                corner = tuple(slice(min(a, b)) for a, b in zip(part.shape, before[name].shape, strict=True))
                assert torch.equal(part[corner], before[name][corner]), (what, network, name)
                rest = part.clone()
                rest[corner] = 0.0
                assert not rest.any(), (what, network, name)


def test_latents_reach_the_heads_behind_their_own_inputs() -> None:
    """A wider latent adds rows at the end of a head's first weight: the actions' rows stay where they are."""
    old, new = (Arch((), latent, (), "ReLU", False) for latent in (4, 6))
    row = torch.arange(1.0, old.layout(CRITIC).size + 1)
    before, after = old.named(CRITIC, row), new.named(CRITIC, Change(old, new, CRITIC).moments(row))
    assert before["output.weight"].shape == (ACTIONS + 4, 1)
    assert after["output.weight"].flatten().tolist() == [1, 2, 3, 4, 5, 6, 0, 0]
    assert replace(old, latent=6) == new


# --------------------------------------------------------------------------------------------------- algorithms

SHARE: dict[str, Any] = {"share_encoder": True, "network": {"encoder": [16], "latent": 16, "head": [16]}}
OFF_POLICY = ["ddpg", "td3", "sac", "sac:continuous"]
each_off_policy = pytest.mark.parametrize("algo", OFF_POLICY)
each_algorithm = pytest.mark.parametrize("algo", [*OFF_POLICY, "ppo"])


def formed(algo: str, hyper: Mapping[str, float] | None = None, **config: Any) -> tuple[EnvSpec, Cohort]:
    """Three members, each with one encoder under all its networks; targets unlike them, and outputs of some size."""
    p = populations.problem(algo=algo, config={**SHARE, **config})
    g = torch.Generator().manual_seed(0)
    members = first_members(p, 3)[0]
    for member in members:
        for name, (kind, _) in tensor_kinds(p.algo.State, p.widths).items():
            if kind == "parameters":
                member.tensors[name].add_(0.2 * torch.randn(member.tensors[name].shape, generator=g))
    (cohort,) = p.form(members)
    given = {name: torch.full((3,), value) for name, value in (hyper or {}).items()}
    return p, replace(cohort, hyper={**cohort.hyper, **given})


def of_member(p: EnvSpec, member: Member, name: str) -> dict[str, torch.Tensor]:
    """A member's weights in double precision, ready for the reference."""
    widths = p.widths[tensor_kinds(p.algo.State, p.widths)[name][1]]
    return {k: v.double().requires_grad_() for k, v in member.arch.named(widths, member.tensors[name]).items()}


@each_algorithm
def test_a_member_acts_through_the_very_encoder_that_learns(algo: str) -> None:
    """Not through a copy of it: W6 of AgileRL, whose critic keeps one that never learns."""
    p, cohort = formed(algo)
    members = updated(p, cohort)
    (again,) = p.form(members)
    obs = torch.randn(3, 50, p.observations, generator=torch.Generator().manual_seed(1))
    acts = p.algo.greedy(p.algo_config, again.state, obs, None)
    for i, member in enumerate(members):
        features = reference.network(member.arch, of_member(p, member, "encoder"), obs[i].double())
        out = reference.network(member.arch, of_member(p, member, "actor"), features).detach()
        if not p.spaces.continuous:
            assert torch.equal(acts[i], out.argmax(dim=1))
        else:
            mean = out.chunk(2, dim=1)[0] if algo.startswith("sac") else out
            torch.testing.assert_close(acts[i].double(), torch.tanh(mean), rtol=0, atol=1e-5)
    again.state.encoder.values.neg_()
    assert not torch.equal(p.algo.greedy(p.algo_config, again.state, obs, None), acts)


@each_algorithm
def test_an_encoder_that_is_no_number_harms_its_member_only(algo: str) -> None:
    p, clean = formed(algo)
    _, ill = formed(algo)
    ill.state.encoder.values[1, ill.state.encoder.structure.index[1][0]] = torch.nan
    acting = [getattr(ill.state, name) for name in acting_networks(p.algo.POLICY, p.widths)]
    assert torch.stack([net.finite for net in acting]).all(dim=0).tolist() == [True, False, True]
    pairs = list(zip(updated(p, clean), updated(p, ill), strict=True))
    assert [b.healthy for _, b in pairs] == [True, False, True]
    assert [populations.same(a, b) for a, b in pairs] == [True, False, True]


@pytest.mark.parametrize(
    "algo",
    [pytest.param(algo, marks=() if algo == "ppo" else pytest.mark.slow) for algo in (*OFF_POLICY, "ppo")],
)
@pytest.mark.thorough
def test_an_exported_policy_has_the_encoder_with_it(algo: str, tmp_path: Path) -> None:
    p = populations.problem(algo=algo, mutation=UNLIKE, config=SHARE)
    pool = started(p, 3).regime.world.pool
    about = {**pool.actions.to_json(), **pool.observations.to_json(), "config": p.algo_config.model_dump(mode="json")}
    obs = torch.randn(3, 20, p.observations, generator=torch.Generator().manual_seed(1))
    for member in first_members(p, 3)[0]:
        (cohort,) = p.form_alone(member)
        expected = p.algo.greedy(p.algo_config, cohort.state, obs[:1], None)[0]
        folder = tmp_path / str(member.slot)
        policy.save(folder, algo.partition(":")[0], member, about, program=True, card="# card\n")
        own = pool.actions.own(expected.numpy())
        np.testing.assert_allclose(policy.load(folder).act(obs[0].numpy()), own, atol=1e-5)
        program = torch.export.load(folder / policy.PROGRAM).module()
        np.testing.assert_allclose(program(obs[0]).numpy(), own, atol=1e-5)
    assert set(member.arch.named(p.widths["encoder"], member.tensors["encoder"])) < set(
        load_tensors((folder / policy.TENSORS).read_bytes(), "policy")
    )


def test_parameter_noise_goes_to_all_networks_that_act() -> None:
    p = populations.problem(algo="td3", config=SHARE)
    member, seen = first_members(p, 1)[0][0], set()
    assert p.traits.acting == ["encoder", "actor"]
    for seed in range(20):
        found = populations.mutated("parameters", p.mutation, p.traits, member, generators(seed))
        assert found is not None
        changed = {name for name, tensor in member.tensors.items() if not torch.equal(tensor, found[0].tensors[name])}
        assert changed <= {"encoder", "actor"}
        seen |= changed
    assert seen == {"encoder", "actor"}


def without_a_layer(algo: str) -> EnvSpec:
    return populations.problem(algo=algo, config={**SHARE, "network": {**SHARE["network"], "head": []}})


@pytest.mark.parametrize("algo", ["ddpg", "td3", "sac:continuous"])
def test_a_critic_without_a_layer_behind_the_encoder_is_refused(algo: str) -> None:
    """Its best action would be the same in every state."""
    with pytest.raises(
        ParamsError, match=r"network\.head: with share_encoder the critics read the action behind the e"
    ):
        without_a_layer(algo)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_heads_that_read_no_action_need_no_layer(algo: str) -> None:
    assert without_a_layer(algo).algo_config.network.head == ()


def test_mutation_leaves_a_critic_its_layer() -> None:
    p = populations.problem(algo="td3", config=SHARE)
    (member,) = first_members(p, 1)[0]
    always = MutationConfig.model_validate({"new_layer_prob": 1.0})
    depths = set()
    for seed in range(30):
        found = populations.mutated("architecture", always, p.traits, member, generators(seed))
        assert found is not None
        depths.add(len(found[0].arch.head))
    assert depths == {1, 2}


def test_the_encoders_target_starts_as_a_copy_that_does_not_learn() -> None:
    arch = Arch((), 16, (), "ReLU", False)
    net = net_of([arch], [arch.initialise(ENCODER, generators(0))], ENCODER)
    before = net.values.clone()
    encoder, target, adam = optim.start_encoder({"encoder": net})
    assert encoder is net
    assert target is not None
    assert not target.trainable
    net.values.zero_()
    assert torch.equal(target.values, before)
    assert adam is not None
    assert not any(tensor.any() for tensor in (adam.mean, adam.square, adam.steps))
    assert optim.start_encoder({"actor": net}) == (None, None, None)


def test_who_acts() -> None:
    whole = {"actor": Widths(4, 2), "critic_1": Widths(6, 1), "critic_2": Widths(6, 1)}
    assert acting_networks("actor", whole) == ["actor"]
    cut = share_encoder(whole, 4)
    critic = Widths(2, 1, "head")
    assert cut == {
        "encoder": Widths(4, 0, "encoder"),
        "actor": Widths(0, 2, "head"),
        "critic_1": critic,
        "critic_2": critic,
    }
    assert acting_networks("actor", cut) == ["encoder", "actor"]
