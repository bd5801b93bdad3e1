"""The algorithms for language models: losses against loops over tokens, and updates of a model of pairs of letters."""

from __future__ import annotations

import importlib
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from evopipe.core.net import Net, score
from evopipe.core.structure import Widths
from evopipe.language.tokens import with_end
from evopipe.ops import language as ops
from evopipe.rng import Purpose, Stream
from evopipe.types import Hyper, Text, TokenScores, Words

pytestmark = pytest.mark.numerical

DIALOGUE, TEXT = ("grpo", "reinforce", "ppo_language"), ("sft", "dpo")
P, B, T, V = 3, 8, 4, 6
NOTHING = Stream(torch.zeros(P, dtype=torch.int64), Purpose.UPDATE, torch.zeros(1, dtype=torch.int64))


def algorithm(name: str) -> Any:
    return importlib.import_module(f"evopipe.algos.{name}")


def config(name: str, **changes: Any) -> Any:
    return algorithm(name).Config.model_validate({"evolve": {}, **changes})


def hyper(cfg: Any, members: int = P, **changes: list[float]) -> Hyper:
    """The hyper-parameters of a configuration as tensors, some of them unlike between members."""
    plain = {name: value for name, value in cfg if isinstance(value, float | int) and not isinstance(value, bool)}
    return {name: torch.tensor(changes.get(name, [float(value)] * members)) for name, value in plain.items()}


def rollout(seed: int = 0, **changes: Any) -> Text:
    """Completions of unlike lengths, two of which share a prompt; numbers where nothing counts are drawn too."""
    g = np.random.default_rng(seed)
    numbers = {
        name: torch.from_numpy(g.standard_normal((P, B, T))).float() for name in ("log_prob", "reference", "value")
    }
    ids = torch.from_numpy(g.integers(0, V, (P, B, T + 1)))
    mask = torch.arange(T) < torch.from_numpy(g.integers(1, T + 1, (P, B, 1)))
    real = torch.cat((torch.ones(P, B, 1, dtype=torch.bool), mask), dim=-1)
    reward = torch.from_numpy(g.integers(0, 2, (P, B))).float()
    return replace(Text(ids, real, mask, torch.zeros(P, B, T, dtype=torch.int64), reward=reward, **numbers), **changes)


def said(seed: int = 9, value: bool = False) -> TokenScores:
    g = np.random.default_rng(seed)
    log_prob, entropy, of_value = (torch.from_numpy(g.standard_normal((P, B, T))).float() for _ in range(3))
    return TokenScores(log_prob, entropy.abs(), of_value if value else None)


# --- losses -----------------------------------------------------------------------------------------------------------


def expected_policy_loss(
    cfg: Any, hp: Hyper, now: TokenScores, batch: Text, p: int, rows: list[int], advantage: Any, kl: bool = True
) -> float:
    """A member's loss by its definition, a token at a time."""
    sequences, tokens = [], []
    for b in rows:
        mine = []
        for t in range(T):
            if not batch.mask[p, b, t]:
                continue
            lp, lo, lr = (float(x[p, b, t]) for x in (now.log_prob, batch.log_prob, batch.reference))
            ratio, a = math.exp(lp - lo), advantage(b, t)
            bounded = min(max(ratio, 1 - float(hp["clip_low"][p])), 1 + float(hp["clip_high"][p]))
            each = -bounded * a * lp if getattr(cfg, "cispo", False) else -min(ratio * a, bounded * a)
            each -= float(hp["ent_coef"][p]) * float(now.entropy[p, b, t])
            if kl:
                each += float(hp["beta"][p]) * (math.exp(lr - lp) - (lr - lp) - 1)
            if now.value is not None:
                v, old, target = (float(x[p, b, t]) for x in (now.value, batch.value, batch.target))
                near = old + min(max(v - old, -float(hp["clip_value"][p])), float(hp["clip_value"][p]))
                each += float(hp["vf_coef"][p]) * 0.5 * max((v - target) ** 2, (near - target) ** 2)
            mine.append(each)
        sequences.append(float(np.mean(mine)))
        tokens += mine
    if not tokens:
        return 0.0
    return float(np.mean(tokens if cfg.mean == "token" else sequences))


COEFFICIENTS: dict[str, Any] = {
    "clip_low": [0.1, 0.2, 0.3],
    "clip_high": [0.4, 0.3, 0.2],
    "beta": [0.0, 0.1, 1.0],
    "ent_coef": [0.0, 0.01, 0.1],
}


@pytest.mark.parametrize("changes", [{}, {"mean": "sequence"}, {"dr": True}, {"cispo": True, "dr": True}])
def test_grpos_loss_by_its_definition(changes: dict[str, Any]) -> None:
    """Groups of 2 in rows of 8: those with equal rewards are in no mean."""
    algo, cfg = algorithm("grpo"), config("grpo", **changes)
    hp = hyper(cfg, **COEFFICIENTS)
    done, now = algo.estimate(cfg, hp, rollout(), group=2), said()
    found = algo.loss(cfg, hp, now, done)
    kept = 0
    for p in range(P):
        r = done.reward[p].numpy()
        rows = [b for b in range(B) if r[b] != r[b ^ 1]]
        kept += len(rows)
        std = 1.0 if cfg.dr else math.sqrt(0.5) + 1e-4
        expected = expected_policy_loss(cfg, hp, now, done, p, rows, lambda b, t, r=r, std=std: (r[b] - 0.5) / std)
        assert float(found[p]) == pytest.approx(expected, rel=1e-4)
        assert done.keep[p].tolist() == [b in rows for b in range(B)]
    assert 0 < kept < P * B


@pytest.mark.parametrize("baseline", ["batch", "rloo"])
def test_reinforces_loss_by_its_definition(baseline: str) -> None:
    """The divergence is in the return, and in nothing else."""
    algo, cfg = algorithm("reinforce"), config("reinforce", baseline=baseline, mean="sequence")
    hp, before, now = hyper(cfg, **COEFFICIENTS), rollout(1), said()
    done = algo.estimate(cfg, hp, before, group=4)
    found = algo.loss(cfg, hp, now, done)
    for p in range(P):
        apart = ((before.log_prob - before.reference) * before.mask)[p].sum(dim=-1).numpy()
        returns = before.reward[p].numpy() - float(hp["beta"][p]) * apart
        if baseline == "batch":
            advantage = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-4)
        else:
            groups = returns.reshape(2, 4)
            advantage = (groups - (groups.sum(axis=1, keepdims=True) - groups) / 3).reshape(-1)
        kept = [b for b in range(B) if baseline == "batch" or len(set(returns.reshape(2, 4)[b // 4])) > 1]
        expected = expected_policy_loss(
            cfg, hp, now, replace(before), p, kept, lambda b, t, a=advantage: a[b], kl=False
        )
        assert float(found[p]) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_ppos_loss_by_its_definition() -> None:
    algo, cfg = algorithm("ppo_language"), config("ppo_language", gamma=0.9, gae_lambda=0.8)
    hp, now = hyper(cfg, **COEFFICIENTS, clip_value=[0.1, 0.5, 2.0]), said(value=True)
    done = algo.estimate(cfg, hp, rollout(2), group=1)
    found = algo.loss(cfg, hp, now, done)
    for p in range(P):
        raw = np.zeros((B, T))
        for b in range(B):
            n = int(done.mask[p, b].sum())
            later, after = 0.0, 0.0
            for t in reversed(range(n)):
                reward = float(done.reward[p, b]) if t == n - 1 else 0.0
                later = reward + 0.9 * after - float(done.value[p, b, t]) + 0.9 * 0.8 * later
                after = float(done.value[p, b, t])
                raw[b, t] = later
                assert float(done.target[p, b, t]) == pytest.approx(later + after, abs=1e-5)
        kept = raw[done.mask[p].numpy()]
        white = (raw - kept.mean()) / (kept.std() + 1e-4)
        expected = expected_policy_loss(cfg, hp, now, done, p, list(range(B)), lambda b, t, w=white: w[b, t])
        assert float(found[p]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_the_loss_of_supervised_learning_is_the_cross_entropy_of_what_is_to_be_learned(mean: str) -> None:
    algo, cfg, batch, now = algorithm("sft"), config("sft", mean=mean), rollout(3), said()
    found, by_row = algo.loss(cfg, hyper(cfg), now, batch), algo.fitness(cfg, hyper(cfg), now, batch)
    for p in range(P):
        rows = [now.log_prob[p, b][batch.mask[p, b]].tolist() for b in range(B)]
        each = [np.mean(row) for row in rows] if mean == "sequence" else list(itertools.chain(*rows))
        assert float(found[p]) == pytest.approx(-np.mean(each), rel=1e-5)
        assert by_row[p].tolist() == pytest.approx([np.mean(row) for row in rows], rel=1e-5)


def test_dpos_loss_by_its_definition() -> None:
    """Rows 0 to 3 were chosen, 4 to 7 rejected; fitness weighs all members alike."""
    algo, cfg, batch, now = algorithm("dpo"), config("dpo"), rollout(4), said()
    hp = hyper(cfg, beta=[0.1, 0.5, 2.0], nll_alpha=[0.0, 1.0, 0.5])
    found, fit = algo.loss(cfg, hp, now, batch), algo.fitness(cfg, hp, now, batch)
    apart = ((now.log_prob - batch.reference) * batch.mask).sum(dim=-1)
    own = (now.log_prob * batch.mask).sum(dim=-1) / batch.mask.sum(dim=-1)
    for p in range(P):
        for beta, alpha, result in (
            (float(hp["beta"][p]), float(hp["nll_alpha"][p]), float(found[p])),
            (0.1, 1.0, -float(fit[p].mean())),
        ):
            each = [
                math.log1p(math.exp(-beta * float(apart[p, i] - apart[p, i + 4]))) - alpha * float(own[p, i])
                for i in range(4)
            ]
            assert result == pytest.approx(np.mean(each), rel=1e-4)


def test_a_reward_models_loss_by_its_definition() -> None:
    """What a head says behind a completion's last token is its reward; rows 0 to 3 were chosen, 4 to 7 rejected."""
    algo, cfg = algorithm("reward_model"), config("reward_model")
    batch, value = with_end(rollout(4)), torch.randn(P, B, T + 1, generator=torch.Generator().manual_seed(1))
    now, hp = TokenScores(value[..., :-1], value[..., :-1], value), hyper(cfg)
    found, fit, told = (f(cfg, hp, now, batch) for f in (algo.loss, algo.fitness, algo.figures))
    assert batch.mask.sum(dim=-1).unique().tolist() == [1, 2, 3, 4]
    for p in range(P):
        reward = [float(value[p, b, int(batch.mask[p, b].sum())]) for b in range(B)]
        apart = [reward[i] - reward[i + 4] for i in range(4)]
        each = [math.log1p(math.exp(-margin)) for margin in apart]
        assert float(found[p]) == pytest.approx(np.mean(each), rel=1e-5)
        assert (-fit[p]).tolist() == pytest.approx(each, rel=1e-5)
        assert told["accuracy"][p].tolist() == [float(margin > 0) for margin in apart]


def test_an_evaluation_tells_how_likely_whole_completions_are() -> None:
    """A base's own pair is no right one: nothing is preferred."""
    batch, now = rollout(4), said()
    whole = (now.log_prob * batch.mask).sum(dim=-1).exp()
    told = algorithm("sft").figures(config("sft"), hyper(config("sft")), now, batch)
    torch.testing.assert_close(told, {"chance": whole})
    algo, cfg = algorithm("dpo"), config("dpo")
    told = algo.figures(cfg, hyper(cfg), now, batch)
    apart = ((now.log_prob - batch.reference) * batch.mask).sum(dim=-1)
    torch.testing.assert_close(
        told,
        {"accuracy": (apart[:, :4] > apart[:, 4:]).float(), "chosen": whole[:, :4], "rejected": whole[:, 4:]},
    )
    assert 0 < told["accuracy"].mean() < 1
    same = algo.figures(cfg, hyper(cfg), now._replace(log_prob=batch.reference), batch)
    assert same["accuracy"].max() == 0


def test_a_pair_of_which_one_completion_does_not_count_is_in_no_mean() -> None:
    algo, cfg, batch, now = algorithm("dpo"), config("dpo"), rollout(4), said()
    hp, four = hyper(cfg), [0, 2, 4, 6]
    keep = torch.ones(P, B, dtype=torch.bool)
    keep[:, [1, 7]] = False  # one of the second pair, the other one of the fourth
    few = TokenScores(*(None if x is None else x[:, four] for x in now))
    only = {name: getattr(batch, name)[:, four] for name in ("ids", "real", "mask", "turn", "reference")}
    torch.testing.assert_close(
        algo.loss(cfg, hp, now, replace(batch, keep=keep)), algo.loss(cfg, hp, few, Text(**only))
    )


@pytest.mark.parametrize("name", [*DIALOGUE, *TEXT])
def test_numbers_where_nothing_counts_reach_neither_loss_nor_gradient(name: str) -> None:
    algo, cfg, batch, now = algorithm(name), config(name), rollout(5), said(value=True)
    hp, results = hyper(cfg), []
    for pad in (0.0, 60.0):
        changed = {x: getattr(batch, x).masked_fill(~batch.mask, pad) for x in ("log_prob", "reference", "value")}
        text = replace(batch, **changed)
        if name in DIALOGUE:
            text = algo.estimate(cfg, hp, text, 2)
        leaves = [x.masked_fill(~batch.mask, -pad).requires_grad_(True) for x in now]
        losses = algo.loss(cfg, hp, TokenScores(*leaves), text)
        losses.sum().backward()
        results.append([losses.detach(), *(x.grad for x in leaves if x.grad is not None)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def test_a_round_in_which_nothing_differs_gives_a_loss_of_zero() -> None:
    for name in ("grpo", "reinforce"):
        algo, cfg = algorithm(name), config(name, beta=0.0)
        alike = rollout(6, reward=torch.full((P, B), 0.1))
        done = algo.estimate(cfg, hyper(cfg), alike, 4)
        assert not done.keep.any()
        assert algo.loss(cfg, hyper(cfg), said(), done).tolist() == [0.0] * P


def test_rows_that_were_left_out_before_are_nobodys_baseline() -> None:
    algo, cfg = algorithm("grpo"), config("grpo")
    keep = torch.ones(P, B, dtype=torch.bool)
    keep[:, 0] = False
    reward = torch.tensor([100.0, 0, 1, 1, 0, 0, 0, 0]).expand(P, B)
    done = algo.estimate(cfg, hyper(cfg), rollout(7, reward=reward, keep=keep), 4)
    assert done.keep[0].tolist() == [False, True, True, True] + [False] * 4
    assert float(done.advantage[0, 1:4, 0].sum()) == pytest.approx(0.0, abs=1e-5)


def test_the_base_is_asked_only_where_it_counts() -> None:
    for name in DIALOGUE:
        asks = algorithm(name).asks
        assert ("reference" in asks(config(name, beta=0.0))) is False
        assert "reference" in asks(config(name, beta=0.5))
        assert "reference" in asks(config(name, beta=0.0, evolve={"beta": {"min": 0.0, "max": 1.0}}))
        assert ("value" in asks(config(name))) is (name == "ppo_language")
    assert (algorithm("sft").asks(config("sft")), algorithm("dpo").asks(config("dpo"))) == (set(), {"reference"})


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("grpo", {"group_size": 1}, r"group_size \(1\) must be at least 2: a completion is compared with others"),
        ("reinforce", {"group_size": 1, "baseline": "rloo"}, r"group_size \(1\) must be at least 2"),
        ("grpo", {"rows": 4}, r"group_size \(8\) is above rows \(4\): a prompt's completions are of one round"),
        (
            "grpo",
            {"evolve": {"group_size": {"min": 4, "max": 100}}},
            r"evolve.group_size \(100\) is above rows \(64\)",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        config(name, **changes)


# --- updates ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bigrams:
    """A language model: a logit for each letter after each other one, `N` = V², in rows."""

    members: int
    size: int = 48  # 36 numbers, in whole cache lines
    memory: int = 0
    copies: int = 1

    def part(self, first: int, end: int | None, every: int = 1) -> Bigrams:
        return Bigrams(len(range(self.members)[first:end:every]))

    def views(self, of: Any) -> Any:
        return of(0, V, V)

    def score(self, views: Any, text: Text, entropy: bool, hidden: bool) -> tuple[torch.Tensor, TokenScores]:
        before, ids = text.ids[..., -T - 1 : -1], text.ids[..., -T:]
        rows = before.flatten(1)[..., None].expand(-1, -1, V)
        logits = views.gather(1, rows).view(*before.shape, V)
        states = torch.nn.functional.one_hot(before, V).float()
        return states, TokenScores(ops.log_probs(logits, ids), ops.entropy(logits), None)


@dataclass(frozen=True)
class Head:
    """A value for each letter that came before."""

    members: int
    size: int = 16
    memory: int = 0
    copies: int = 1

    def part(self, first: int, end: int | None, every: int = 1) -> Head:
        return Head(len(range(self.members)[first:end:every]))

    def views(self, of: Any) -> Any:
        return of(0, V, 1)

    def forward(self, views: Any, x: torch.Tensor) -> torch.Tensor:
        return x @ views


def state_of(name: str, cfg: Any, members: int = P) -> Any:
    algo, words = algorithm(name), Words(V, V)
    made: dict[str, Any] = {"policy": Bigrams(members), "value": Head(members)}
    widths = algo.networks(cfg, words)
    assert all(isinstance(width, Widths) for width in widths.values())
    return algo.init(cfg, {key: Net(made[key], torch.zeros(members, made[key].size), trainable=True) for key in widths})


def written(name: str, state: Any, seed: int) -> Text:
    """Completions of letters drawn from a model of pairs of letters, with what it says of them."""
    g = torch.Generator().manual_seed(seed)
    table, values = state.policy.values[:, : V * V].view(-1, V, V), getattr(state, "value", None)
    members = len(table)
    ids = torch.randint(0, V, (members, B, 1), generator=g)
    for _ in range(T):
        chances = table.gather(1, ids[..., -1:].expand(-1, -1, V)).softmax(dim=-1)
        drawn = torch.multinomial(chances.flatten(0, 1), 1, generator=g).view(members, B, 1)
        ids = torch.cat((ids, drawn), dim=-1)
    mask = torch.ones(members, B, T, dtype=torch.bool)
    text = Text(ids, torch.ones_like(ids, dtype=torch.bool), mask, torch.zeros_like(ids[..., 1:]))
    with torch.no_grad():
        now = score(state.policy, text, values)
    base = torch.full((members, B, T), -math.log(V))
    reward = (ids[..., 1:] == 0).float().mean(dim=-1)  # the share of the first letter
    return replace(text, log_prob=now.log_prob, value=now.value, reference=base, reward=reward)


def learn(
    name: str, cfg: Any, state: Any, seed: int, healthy: torch.Tensor, hp: Hyper | None = None, **changes: Any
) -> Any:
    algo, hp = algorithm(name), hp or hyper(cfg, len(healthy))
    batch = written(name, state, seed)
    if name in DIALOGUE:
        batch = algo.estimate(cfg, hp, replace(batch, **changes), cfg.group_size)
    return algo.update(cfg, state, hp, replace(batch, **({} if name in DIALOGUE else changes)), healthy, NOTHING, 0)


@pytest.mark.parametrize("name", DIALOGUE)
def test_rewarded_letters_come_to_be_written(name: str) -> None:
    """From all letters alike, .17, to nearly nothing but the rewarded one."""
    cfg = config(name, lr=0.1, group_size=4, rows=B, **({"lr_value": 0.1} if name == "ppo_language" else {}))
    state, healthy = state_of(name, cfg), torch.ones(P, dtype=torch.bool)
    for step in range(60):
        result = learn(name, cfg, state, step, healthy)
        assert result.errors.max() < 1e-6, "what learns is what wrote"
    assert result.healthy.all()
    assert written(name, state, 1000).reward.mean() > 0.8


def test_imitated_letters_come_to_be_written() -> None:
    cfg = config("sft", lr=0.1)
    state, healthy = state_of("sft", cfg), torch.ones(P, dtype=torch.bool)
    text = written("sft", state, 0)
    ids = (text.ids[..., :1] + torch.arange(T + 1)) % V  # the alphabet, from anywhere
    for _ in range(40):
        result = algorithm("sft").update(cfg, state, hyper(cfg), replace(text, ids=ids), healthy, NOTHING, 0)
    assert result.losses.max() < 0.1
    assert result.errors is None


@pytest.mark.parametrize("nll", [0.0, 1.0])
def test_preferred_letters_come_to_be_likelier_than_rejected_ones(nll: float) -> None:
    """With α also likelier than the base finds them."""
    algo, cfg = algorithm("dpo"), config("dpo", lr=0.05, nll_alpha=nll)
    state, healthy, hp = state_of("dpo", cfg), torch.ones(P, dtype=torch.bool), hyper(cfg)
    text = written("dpo", state, 0)
    up, down = ((text.ids[:, : B // 2, :1] + way * torch.arange(T + 1)) % V for way in (1, -1))
    text = replace(text, ids=torch.cat((up, down), dim=1))
    for _ in range(40):
        algo.update(cfg, state, hp, text, healthy, NOTHING, 0)
    now = score(state.policy, text)
    assert (algo.preference(cfg, now, text, hp).margin > 0.5).all()
    if nll:
        assert (now.log_prob[:, : B // 2] > -math.log(V)).all()


@pytest.mark.parametrize("name", [*DIALOGUE, *TEXT])
def test_a_member_whose_loss_is_no_number_is_frozen_and_the_others_learn_as_alone(name: str) -> None:
    cfg = config(name, **({"group_size": 4, "rows": B} if name in DIALOGUE else {}))
    ill, healthy = state_of(name, cfg), torch.ones(P, dtype=torch.bool)
    clean = state_of(name, cfg)
    ill.policy.values[1] = math.nan
    changes = written(name, clean, 0)
    fields = {"ids": changes.ids, "log_prob": changes.log_prob, "value": changes.value, "reward": changes.reward}
    algo, found = algorithm(name), []
    for state in (clean, ill):
        batch = replace(changes, **fields)
        if name in DIALOGUE:
            batch = algo.estimate(cfg, hyper(cfg), batch, 4)
        found.append(algo.update(cfg, state, hyper(cfg), batch, healthy, NOTHING, 0))
    assert found[0].healthy.tolist() == [True, True, True]
    assert found[1].healthy.tolist() == [True, False, True]
    assert ill.updates.tolist() == [1, 0, 1]
    for p in (0, 2):
        assert torch.equal(ill.policy.values[p], clean.policy.values[p])
        assert (clean.policy.values[p] != 0).any()
        assert torch.equal(found[0].losses[p], found[1].losses[p])


@pytest.mark.parametrize("name", ["grpo", "reinforce"])
def test_a_member_whose_rewards_are_all_equal_stays_where_it_is(name: str) -> None:
    """Also where earlier updates gave its moments a direction."""
    cfg = config(name, group_size=4, rows=B, beta=0.0)
    state, healthy = state_of(name, cfg), torch.ones(P, dtype=torch.bool)
    learn(name, cfg, state, 0, healthy)
    before = state.policy.values.clone()
    reward = written(name, state, 1).reward
    reward[1] = 0.5
    result = learn(name, cfg, state, 1, healthy, reward=reward)
    assert torch.equal(state.policy.values[1], before[1])
    assert (state.policy.values[[0, 2]] != before[[0, 2]]).any(dim=1).all()
    assert state.updates.tolist() == [2, 1, 2]
    assert result.healthy.all()
