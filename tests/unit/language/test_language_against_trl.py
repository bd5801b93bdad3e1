"""Each loss switch against TRL's own trainer: the loss of a step and its gradient of every weight, to six digits.

TRL is no dependency, and is not installed with the others: `pip install --no-deps trl==1.16.0 accelerate==1.15.0`.
"""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="a peer, not installed with the others: pip install --no-deps trl accelerate")

import torch
import trl

import words
from evopipe.language.hooks import reference
from evopipe.ops import language as ops
from evopipe.types import Text, TokenScores

pytestmark = [pytest.mark.slow, pytest.mark.numerical, pytest.mark.filterwarnings("ignore")]

B, PROMPT, T = 4, 3, 4


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def rows(seed: int, width: int = T) -> Text:
    """Rows of a tiny model's tokens: prompts with pads on the left, completions of unlike lengths."""
    g = torch.Generator().manual_seed(seed)
    base = words.base()
    ids = torch.randint(3, len(base.tokenizer), (1, B, PROMPT + width), generator=g)
    mask = torch.arange(width) < torch.tensor([[width], [2], [1], [3]])
    before = torch.arange(PROMPT) >= torch.tensor([[0], [1], [2], [0]])
    real = torch.cat((before, mask), dim=-1)[None]
    return Text(ids.masked_fill(~real, base.pad), real, mask[None], torch.zeros_like(ids[..., :width]))


def common(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder), "use_cpu": True, "report_to": "none", "save_strategy": "no", "bf16": False,
        "per_device_train_batch_size": B, "gradient_checkpointing": False, "gradient_accumulation_steps": 1,
    }  # fmt: skip


def model() -> Any:
    return copy.deepcopy(words.base().model).requires_grad_(True)


def slopes(loss: torch.Tensor, of: Any) -> torch.Tensor:
    """The gradient of every weight, one behind the other."""
    weights = [each for each in of.parameters() if each.requires_grad]
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return torch.cat([
        (torch.zeros_like(w) if each is None else each).flatten() for w, each in zip(weights, found, strict=True)
    ])  # fmt: skip


def alike(ours: torch.Tensor, theirs: torch.Tensor, of: Any) -> None:
    """Compare two losses, and their gradients; these are sums of many products, and share an order of magnitude."""
    assert float(ours) == pytest.approx(float(theirs), rel=2e-6, abs=1e-7)
    own, other = slopes(ours, of), slopes(theirs, of)
    assert float(other.abs().max()) > 1e-4
    assert float((own - other).abs().max()) <= 2e-6 * float(other.abs().max())


def hyper(cfg: Any) -> dict[str, torch.Tensor]:
    plain = {name: value for name, value in cfg if isinstance(value, float | int) and not isinstance(value, bool)}
    return {name: torch.tensor([float(value)]) for name, value in plain.items()}


def algorithm(name: str, **changes: Any) -> tuple[Any, Any]:
    found = importlib.import_module(f"evopipe.algos.{name}")
    return found, found.Config.model_validate({"evolve": {}, **changes})


GRPO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sequences": ({"mean": "sequence"}, {"loss_type": "grpo"}),
    "tokens": ({"mean": "token"}, {"loss_type": "bnpo"}),
    "DAPO": ({"clip_low": 0.1, "clip_high": 0.4}, {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.4}),
    "GSPO": ({"level": "sequence", "mean": "sequence"},
             {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "CISPO": ({"cispo": True, "clip_low": 1.0, "clip_high": 0.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    "INTELLECT-2": ({"clip_most": 1.35}, {"loss_type": "bnpo", "delta": 1.35}),
    "divergence": ({"beta": 0.3}, {"loss_type": "bnpo", "beta": 0.3, "use_bias_correction_kl": False}),
    "divergence without bias": (
        {"beta": 0.3, "unbiased_kl": True}, {"loss_type": "bnpo", "beta": 0.3, "use_bias_correction_kl": True},
    ),
    "entropy": ({"ent_coef": 0.05}, {"loss_type": "bnpo", "entropy_coef": 0.05}),
}  # fmt: skip
"""Of each switch our settings and theirs; a CISPO of theirs has no lower bound, and its upper one is 1 + ours."""


def grpo_trainer(folder: Path, **changes: Any) -> Any:
    from datasets import Dataset

    beta = changes.pop("beta", 0.0)
    args = trl.GRPOConfig(
        **common(folder), num_generations=2, max_completion_length=T, temperature=1.0,
        beta=0.0, **{"epsilon": 0.2, "epsilon_high": 0.28, **changes},
    )  # fmt: skip
    found = trl.GRPOTrainer(
        model=model(), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=args,
        train_dataset=Dataset.from_list([{"prompt": "1"}] * B), processing_class=words.base().tokenizer,
    )  # fmt: skip
    found.beta = beta  # where the arguments have one, a second model is loaded from the hub
    return found


def drawn(trainer: Any, text: Text) -> tuple[TokenScores, Text, dict[str, torch.Tensor]]:
    """Their model's log-probabilities and entropies; and the rows with older ones, a base's and advantages, as either
    side takes them."""
    g = torch.Generator().manual_seed(5)
    inputs = {
        "prompt_ids": text.ids[0, :, :PROMPT], "prompt_mask": text.real[0, :, :PROMPT].long(),
        "completion_ids": text.ids[0, :, PROMPT:], "completion_mask": text.mask[0].long(),
        "advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]), "num_items_in_batch": text.mask.sum(),
    }  # fmt: skip
    log_prob, entropy, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, text.ids[0], text.real[0].long(), T, compute_entropy=True
    )
    old, base = (log_prob.detach() + 0.5 * torch.randn(log_prob.shape, generator=g) for _ in range(2))
    inputs |= {"old_per_token_logps": old, "ref_per_token_logps": base}
    own = Text(
        text.ids, text.real, text.mask, text.turn, log_prob=old[None],
        reference=base[None] if trainer.beta else None, advantage=inputs["advantages"][None, :, None].expand(1, B, T),
    )  # fmt: skip
    return TokenScores(log_prob[None], entropy[None], None), own, inputs


def test_their_log_probabilities_are_ours(tmp_path: Path) -> None:
    text = rows(1)
    now, *_ = drawn(grpo_trainer(tmp_path), text)
    own = reference(words.base(), text)
    assert float((own - now.log_prob)[text.mask].abs().max()) <= 2e-6


@pytest.mark.parametrize("name", GRPO)
def test_a_step_of_grpo_is_theirs(name: str, tmp_path: Path) -> None:
    ours, theirs = GRPO[name]
    trainer = grpo_trainer(tmp_path, **theirs)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    now, own, inputs = drawn(trainer, rows(1))
    found, cfg = algorithm("grpo", **{"beta": 0.0, "mean": "token", **ours})
    alike(found.loss(cfg, hyper(cfg), now, own)[0], trainer._compute_loss(trainer.model, inputs), trainer.model)


def test_a_step_of_dr_grpo_is_theirs_but_for_its_constant_length(tmp_path: Path) -> None:
    trainer = grpo_trainer(tmp_path, loss_type="dr_grpo")
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    now, own, inputs = drawn(trainer, rows(1))
    found, cfg = algorithm("grpo", beta=0.0, dr=True)
    share = float(own.mask.sum()) / (B * T)
    alike(share * found.loss(cfg, hyper(cfg), now, own)[0], trainer._compute_loss(trainer.model, inputs), trainer.model)


@pytest.mark.parametrize("how", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_a_corrected_step_is_theirs(how: Any, tmp_path: Path) -> None:
    """The weights are those that `importance` gives to the advantages; their trainer multiplies losses by them."""
    trainer = grpo_trainer(tmp_path, loss_type="bnpo")
    trainer.model.train()
    trainer.current_gradient_accumulation_steps, trainer.use_vllm = 1, True
    trainer.vllm_importance_sampling_correction = True
    now, own, inputs = drawn(trainer, rows(1))
    assert own.log_prob is not None
    g = torch.Generator().manual_seed(7)
    engine = own.log_prob + 0.8 * torch.randn(own.log_prob.shape, generator=g)
    weight = ops.importance(own.log_prob, engine, own.mask, how, 0.5, 1.5).weight
    assert own.advantage is not None
    inputs["importance_sampling_ratio"] = weight[0]
    inputs["sampling_per_token_logps"] = engine[0]
    found, cfg = algorithm("grpo", beta=0.0)
    loss = found.loss(cfg, hyper(cfg), now, Text(**{
        name: getattr(own, name) for name in own.__slots__ if name != "advantage"
    }, advantage=own.advantage * weight))  # fmt: skip
    assert len({*weight[own.mask].tolist()}) > 1
    alike(loss[0], trainer._compute_loss(trainer.model, inputs), trainer.model)


# --- preferences ------------------------------------------------------------------------------------------------------


def preferred(theirs: Any, text: Text) -> TokenScores:
    """A model's log-probabilities of the tokens of pairs."""
    logits = theirs(input_ids=text.ids[0], attention_mask=text.real[0].long()).logits[:, PROMPT - 1 : -1]
    return TokenScores(ops.log_probs(logits, text.ids[0, :, PROMPT:])[None], torch.zeros(1, B, T), None)


def inputs_of(text: Text) -> dict[str, torch.Tensor]:
    """Pairs as their collators make them: the first half of the rows is chosen, the second rejected."""
    return {
        "input_ids": text.ids[0], "attention_mask": text.real[0].long(),
        "completion_mask": torch.cat((torch.zeros(B, PROMPT), text.mask[0]), dim=-1).long(),
    }  # fmt: skip


def on_the_right(text: Text) -> Text:
    """Rows without pads in front, which their preference collators do not make."""
    real = torch.cat((torch.ones(1, B, PROMPT, dtype=torch.bool), text.mask), dim=-1)
    return Text(text.ids.masked_fill(text.ids == words.base().pad, 3), real, text.mask, text.turn)


def moved(theirs: Any) -> Any:
    """A model whose weights are not those of its base."""
    with torch.no_grad():
        for each in theirs.parameters():
            each.add_(0.02 * torch.randn(each.shape, generator=torch.Generator().manual_seed(each.numel())))
    return theirs


def test_a_step_of_dpo_is_theirs(tmp_path: Path) -> None:
    from datasets import Dataset

    args = trl.DPOConfig(**common(tmp_path), beta=0.4, max_length=None)
    data = Dataset.from_list([{"prompt": "1", "chosen": "2", "rejected": "3"}] * B)
    trainer = trl.DPOTrainer(
        model=model(), ref_model=model(), args=args, train_dataset=data, processing_class=words.base().tokenizer
    )
    moved(trainer.model).train()
    text = on_the_right(rows(2))
    base = reference(words.base(), text)
    now = preferred(trainer.model, text)
    own = Text(text.ids, text.real, text.mask, text.turn, reference=base)
    found, cfg = algorithm("dpo", beta=0.4, nll_alpha=0.0)
    theirs = trainer._compute_loss(trainer.model, inputs_of(text), False)
    alike(found.loss(cfg, hyper(cfg), now, own)[0], theirs, trainer.model)


@pytest.mark.parametrize("kind", ["kto", "apo_zero"])
def test_a_step_of_kto_is_theirs(kind: str, tmp_path: Path) -> None:
    from datasets import Dataset

    args = trl.KTOConfig(
        **common(tmp_path), beta=0.4, max_length=None, desirable_weight=1.5, undesirable_weight=0.5,
        loss_type={"kto": "kto", "apo_zero": "apo_zero_unpaired"}[kind],
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": "1", "completion": str(i), "label": i % 2 == 0} for i in range(B)])
    trainer = trl.KTOTrainer(
        model=model(), ref_model=model(), args=args, train_dataset=data, processing_class=words.base().tokenizer
    )
    moved(trainer.model).train()
    trainer.current_gradient_accumulation_steps = 1
    text, others = on_the_right(rows(2)), on_the_right(rows(3))
    both = Text(*(torch.cat((getattr(text, n), getattr(others, n)), dim=1) for n in ("ids", "real", "mask", "turn")))
    labels = torch.tensor([True, False, True, False])
    now = TokenScores(
        torch.cat([preferred(trainer.model, each).log_prob for each in (text, others)], dim=1),
        torch.zeros(1, 2 * B, T), None,
    )  # fmt: skip
    own = Text(
        both.ids, both.real, both.mask, both.turn, reference=reference(words.base(), both),
        reward=torch.cat((labels.float(), torch.zeros(B)))[None],
    )  # fmt: skip
    inputs = inputs_of(text) | {f"KL_{name}": each for name, each in inputs_of(others).items()} | {"label": labels}
    found, cfg = algorithm("kto", loss=kind, beta=0.4, desirable=1.5, undesirable=0.5)
    alike(found.loss(cfg, hyper(cfg), now, own)[0], trainer._compute_loss(trainer.model, inputs, False), trainer.model)


@pytest.mark.parametrize("kind", ["simpo", "orpo"])
def test_a_step_of_a_loss_without_a_base_is_theirs(kind: str, tmp_path: Path) -> None:
    """Of their ORPO the odds ratio: its other term imitates the prompt, too, where ours imitates the completion."""
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    how = {**common(tmp_path), "beta": 0.4, "max_length": 16}
    data = Dataset.from_list([{"prompt": "1", "chosen": "2", "rejected": "3"}] * B)
    shared = {"model": model(), "train_dataset": data, "processing_class": words.base().tokenizer}
    trainer: Any = (
        CPOTrainer(args=CPOConfig(**how, loss_type="simpo", simpo_gamma=0.3, cpo_alpha=0.0), **shared)
        if kind == "simpo" else ORPOTrainer(args=ORPOConfig(**how), **shared)
    )  # fmt: skip
    moved(trainer.model).eval()
    text = on_the_right(rows(2))
    labels = text.ids[0].masked_fill(inputs_of(text)["completion_mask"] == 0, -100)
    parts = {"input_ids": text.ids[0], "attention_mask": text.real[0].long(), "labels": labels}
    pairs = {
        f"{which}_{name}": each[half]
        for which, half in (("chosen", slice(B // 2)), ("rejected", slice(B // 2, B))) for name, each in parts.items()
    }  # fmt: skip
    theirs, _ = trainer.get_batch_loss_metrics(trainer.model, pairs)
    if kind == "orpo":
        theirs = theirs - trainer.concatenated_forward(trainer.model, pairs)[4]
    found, cfg = algorithm("dpo", loss=kind, beta=0.4, margin=0.3, nll_alpha=0.0)
    alike(found.loss(cfg, hyper(cfg), preferred(trainer.model, text), text)[0], theirs, trainer.model)
