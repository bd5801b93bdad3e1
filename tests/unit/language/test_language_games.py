"""Learning from games as tokens, and playing them: losses against loops over tokens, writers against whole passes."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from evopipe.core.net import Net, forward
from evopipe.core.structure import Widths
from evopipe.language.gpt import GPT, TransformerLayer
from evopipe.language.tasks.wordle import Wordle
from evopipe.language.writing import Writer, joint_writer
from evopipe.ops import language as ops
from evopipe.rng import Purpose, Stream
from evopipe.types import Games, Words

TASK = Wordle(words=("abc", "bca", "acb", "bbc"), tries=3)
V, L, P = len(TASK.tokens), TASK.length, 2
ILQL, BC = (importlib.import_module(f"evopipe.algos.{name}") for name in ("ilql", "bc_language"))
CPU = torch.device("cpu")
NOTHING = Stream(torch.zeros(P, dtype=torch.int64), Purpose.UPDATE, torch.zeros(1, dtype=torch.int64))


def games(n: int = 6, seed: int = 0) -> Games:
    """Games of unlike lengths, won and lost."""
    told = TASK.encode(TASK.rows(np.random.default_rng(seed), n))
    parts = (torch.from_numpy(x).expand(P, -1, -1) for x in (told.ids, told.real, told.acts, told.reward, told.done))
    return ops.games(*parts)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hyper(algo: Any, **changes: list[float]) -> dict[str, torch.Tensor]:
    plain = {name: [value] * P for name, value in algo.Config() if isinstance(value, float)}
    return {name: torch.tensor(values) for name, values in {**plain, **changes}.items()}


def chances(logits: torch.Tensor) -> np.ndarray:
    found: np.ndarray = logits.double().log_softmax(dim=-1).numpy()
    return found


def test_decisions_by_hand() -> None:
    """Two turns of one letter; the second game ends at once, the third is cut off before its end."""
    ids = torch.tensor([[1, 6, 2, 7, 3], [1, 6, 0, 0, 0], [1, 6, 2, 0, 0]])
    real, acts = ids != 0, torch.tensor([[0, 1, 0, 1, 0]]).bool() & (ids != 0)
    reward = torch.tensor([[0.0, -1.0, 0.0, 0.5, 0.25], [0.0, 2.0, 0.0, 0.0, 0.0], [0.0, -1.0, 0.0, 0.0, 0.0]])
    done = torch.tensor([[0, 0, 0, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    found = ops.games(ids, real, acts, reward, done)
    own = found.acts.nonzero().tolist()
    assert own == [[0, 0], [0, 2], [1, 0], [2, 0]]
    told = [(float(found.reward[i, t]), int(found.after[i, t]), bool(found.over[i, t])) for i, t in own]
    assert told == [(-1.0, 2, False), (0.75, 4, True), (2.0, 1, True), (-1.0, 2, False)]


def test_every_reward_of_a_game_is_some_decisions() -> None:
    batch = games(20)
    told = TASK.encode(TASK.rows(np.random.default_rng(0), 20))
    got = (batch.reward * batch.acts).sum(dim=-1)[0]
    assert got.tolist() == told.reward.sum(axis=1).tolist()
    assert (batch.over & batch.acts).sum(dim=-1).unique().tolist() == [1]


def test_cloning_is_the_mean_over_what_players_wrote() -> None:
    batch, said = games(), random(P, 6, L, V)
    found = BC.loss(BC.Config(), {}, said, batch)
    for p in range(P):
        own = batch.acts[p].nonzero().tolist()
        each = [-chances(said[p, b, t])[batch.ids[p, b, t + 1]] for b, t in own]
        assert float(found[p]) == pytest.approx(np.mean(each), abs=1e-5)


def test_ilqls_losses_by_their_definition() -> None:
    """A token at a time, with unlike hyper-parameters; terminals and pads are among the tokens."""
    batch, cfg = games(), ILQL.Config(weight_limit=1.5)
    said = ILQL.Said(random(P, 6, L, V), random(P, 6, L, 2 * V + 1, seed=2), random(P, 6, L, 2 * V + 1, seed=3))
    hp = hyper(ILQL, expectile=[0.8, 0.6], gamma=[0.9, 1.0], cql=[0.1, 0.5], awac=[0.0, 2.0])
    policy, critic = ILQL.loss(cfg, hp, said, batch)
    lasts = 0
    for p in range(P):
        h = {name: float(values[p]) for name, values in hp.items()}
        policies, critics = [], []
        for b, t in batch.acts[p].nonzero().tolist():
            a, q, target = int(batch.ids[p, b, t + 1]), said.critic[p, b].double(), said.target[p, b, t].double()
            later = [s for s in range(t + 1, L - 1) if batch.acts[p, b, s]]
            y = float(batch.reward[p, b, t]) + (h["gamma"] * float(q[later[0], 2 * V]) if later else 0.0)
            lasts += not later
            u = min(float(target[a]), float(target[V + a])) - float(q[t, 2 * V])
            each = abs(h["expectile"] - (u < 0)) * u * u
            for k in range(2):
                each += (y - float(q[t, k * V + a])) ** 2 - h["cql"] * chances(q[t, k * V : (k + 1) * V])[a]
            critics.append(each)
            policies.append(-min(math.exp(h["awac"] * u), 1.5) * chances(said.policy[p, b, t])[a])
        assert float(critic[p]) == pytest.approx(np.mean(critics), abs=1e-5)
        assert float(policy[p]) == pytest.approx(np.mean(policies), abs=1e-5)
    assert lasts == 6 * P


def test_no_gradient_goes_where_none_belongs() -> None:
    """Not into the target, not through V of the next state, not from what nobody wrote, not from one loss to both."""
    batch = games()
    policy, critic, target = (random(P, 6, L, n, seed=n).requires_grad_() for n in (V, 2 * V + 1, 2 * V + 1))
    losses = ILQL.loss(ILQL.Config(), hyper(ILQL, awac=[1.0, 1.0]), ILQL.Said(policy, critic, target), batch)
    grads = torch.autograd.grad(losses[1].sum(), [policy, critic, target], allow_unused=True)
    assert grads[0] is None
    assert grads[2] is None
    decides = torch.cat((batch.acts, torch.zeros(P, 6, 1, dtype=torch.bool)), dim=-1)
    assert not grads[1][~decides].any()
    (own,) = torch.autograd.grad(losses[0].sum(), [policy])
    assert not own[~decides].any()
    assert own[decides].any(dim=-1).all()


def test_a_tokens_values_never_see_what_comes_after_it() -> None:
    critic, ids = nets(ILQL.networks(ILQL.Config(), Words(V, 16)))["critic"], games().ids
    before = ILQL.Values.of(forward(critic, ids))
    for t in range(1, L):
        other = torch.cat((ids[..., :t], (ids[..., t:] + 1) % V), dim=-1)
        for one, two in zip(before, ILQL.Values.of(forward(critic, other)), strict=True):
            assert torch.equal(one[:, :, :t], two[:, :, :t])
            assert not torch.equal(one[:, :, t], two[:, :, t])


def test_advantage_lowers_the_logits_of_tokens_that_are_worse_and_raises_none() -> None:
    said = {"policy": random(P, 4, V), "critic_target": random(P, 4, 2 * V + 1, seed=2)}
    found = ILQL.logits(ILQL.Config(), hyper(ILQL, beta=[0.0, 3.0]), said)
    plain = said["policy"].log_softmax(dim=-1)
    assert torch.equal(found[0], plain[0])
    for n in range(4):
        values = said["critic_target"][1, n]
        for a in range(V):
            advantage = min(float(values[a]), float(values[V + a])) - float(values[-1])
            assert float(found[1, n, a] - plain[1, n, a]) == pytest.approx(3.0 * min(0.0, advantage), abs=1e-5)


# --- updates ----------------------------------------------------------------------------------------------------------


def nets(words: Mapping[str, Widths], members: int = P, trainable: bool = True) -> dict[str, Net]:
    arch = GPT((TransformerLayer(1, 16),), 16, 16, L)
    found = {}
    for i, (name, widths) in enumerate(words.items()):
        structure: Any = arch.stack([arch] * members, widths, CPU)
        rows = [arch.initialise(widths, np.random.default_rng(10 * i + p)) for p in range(members)]
        found[name] = Net(structure, structure.pack(rows), trainable)
    return found


@pytest.mark.parametrize("algo", [BC, ILQL])
def test_updates_lower_the_loss_and_a_member_that_is_no_number_stays_as_it_is(algo: Any) -> None:
    cfg = algo.Config()
    state = algo.init(cfg, nets(algo.networks(cfg, Words(V, 16))))
    hp, batch, healthy = hyper(algo), games(40), torch.ones(P, dtype=torch.bool)
    hp |= {name: torch.full((P,), 1e-2) for name in hp if name.startswith("lr")}
    losses = [algo.update(cfg, state, hp, batch, healthy, NOTHING, 0).losses for _ in range(30)]
    assert bool((losses[-1] < 0.8 * losses[0]).all())
    state.policy.values[0, 0] = math.nan
    kept = [net.values.clone() for net in (state.policy, getattr(state, "critic_target", state.policy))]
    assert algo.update(cfg, state, hp, batch, healthy, NOTHING, 0).healthy.tolist() == [False, True]
    for before, net in zip(kept, (state.policy, getattr(state, "critic_target", state.policy)), strict=True):
        assert torch.equal(before[0].nan_to_num(), net.values[0].nan_to_num())
        assert not torch.equal(before[1], net.values[1])
    assert state.updates.tolist() == [30.0, 31.0]


def test_the_target_follows_the_critic_by_its_share() -> None:
    cfg = ILQL.Config()
    state = ILQL.init(cfg, nets(ILQL.networks(cfg, Words(V, 16))))
    hp = hyper(ILQL, tau=[0.25, 1.0])
    before = state.critic_target.values.clone()
    ILQL.update(cfg, state, hp, games(), torch.ones(P, dtype=torch.bool), NOTHING, 0)
    after = before + torch.tensor([0.25, 1.0])[:, None] * (state.critic.values - before)
    torch.testing.assert_close(state.critic_target.values, after)


# --- writing ----------------------------------------------------------------------------------------------------------


def player(decode: str = "sample", members: int = P, beams: int = 3) -> tuple[Any, dict[str, Net], dict[str, Any]]:
    cfg = ILQL.Config(decode=decode, beams=beams)
    widths = ILQL.networks(cfg, Words(V, 16))
    made = nets({"policy": widths["policy"], "critic_target": widths["critic"]}, members, trainable=False)
    for net in made.values():
        net.values.mul_(3.0)
    return cfg, made, {name: values[:1].repeat(members) for name, values in hyper(ILQL).items()}


def writer(cfg: Any, made: dict[str, Net], hp: dict[str, Any], seeds: np.ndarray) -> Writer:
    return Writer(made, lambda said: ILQL.logits(cfg, hp, said), cfg, hp, seeds)


def logits_of(cfg: Any, made: dict[str, Net], hp: dict[str, Any], p: int, ids: list[int]) -> torch.Tensor:
    """What the next token of one game of one member is drawn by, from all its tokens at once."""
    row = torch.tensor(ids).expand(len(made["policy"].values), 1, -1)
    said = {name: net.structure.forward(net.views, row)[:, :, -1] for name, net in made.items()}
    return ILQL.logits(cfg, hp, said)[p, 0]


def test_games_are_played_alike_alone_and_among_others() -> None:
    cfg, made, hp = player()
    seeds = np.arange(100, 120)
    together = TASK.play(
        np.tile(seeds, P), joint_writer([(writer(cfg, made, hp, seeds), np.arange(P * 20))], TASK.guess)
    )
    for p in range(P):
        mine, h = {name: net.part(p, p + 1) for name, net in made.items()}, {n: x[p : p + 1] for n, x in hp.items()}
        for i in (0, 7):
            alone = writer(cfg, mine, h, seeds[i : i + 1])
            played = TASK.play(seeds[i : i + 1], joint_writer([(alone, np.arange(1))], TASK.guess))
            assert played.rows[0] == together.rows[20 * p + i]
    assert len({str(row) for row in together.rows}) > 20


def test_the_likeliest_token_is_written_from_all_before_it_and_rows_may_be_of_unlike_lengths() -> None:
    """Also after a row has lagged behind: what was read of it before is read again."""
    cfg, made, hp = player("greedy")
    write, draws = writer(cfg, made, hp, np.arange(3)), np.random.default_rng(0)
    ids, used = np.zeros((3 * P, L), np.int64), np.ones(3 * P, np.int64)
    ids[:, 0] = 1
    for _ in range(5):
        grows = draws.integers(0, 3, 3 * P)
        for r in range(3 * P):
            ids[r, used[r] : used[r] + grows[r]] = draws.integers(2, V, grows[r])
        used += grows
        expected = [int(logits_of(cfg, made, hp, r // 3, ids[r, : used[r]].tolist()).argmax()) for r in range(3 * P)]
        assert write(ids, used).tolist() == expected


@pytest.mark.parametrize("beams", [1, 2, V**3])
def test_beams_find_the_likeliest_turn_and_one_alone_is_greedy(beams: int) -> None:
    cfg, made, hp = player("beam", beams=beams)
    write, ids, used = writer(cfg, made, hp, np.arange(1)), np.zeros((P, L), np.int64), np.ones(P, np.int64)
    ids[:, 0] = 1
    found = []
    for i in range(3):
        token = write(ids, used, 3)
        ids[np.arange(P), 1 + i] = token
        used = used + 1
        found.append(token)
    for p in range(P):
        kept: list[tuple[float, list[int]]] = [(0.0, [1])]
        for _ in range(3):
            longer = [
                (total + float(each), [*begun, a])
                for total, begun in kept
                for a, each in enumerate(logits_of(cfg, made, hp, p, begun).log_softmax(dim=-1))
            ]
            kept = sorted(longer, key=lambda pair: -pair[0])[: min(beams, 40)]
        assert [int(token[p]) for token in found] == kept[0][1][1:]


def test_a_token_is_drawn_as_often_as_its_chance_says() -> None:
    cfg, made, hp = player(members=1)
    ids = np.zeros((4000, L), np.int64)
    ids[:, 0] = 1
    drawn = writer(cfg, made, hp, np.arange(4000))(ids, np.ones(4000, np.int64))
    expected = logits_of(cfg, made, hp, 0, [1]).softmax(dim=-1).numpy()
    assert np.abs(np.bincount(drawn, minlength=V) / 4000 - expected).max() < 0.04
