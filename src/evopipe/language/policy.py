"""Exported language models: `models/elite` of a language pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from evopipe import rng
from evopipe.core.net import Net
from evopipe.errors import DataError, MissingInputError, UsageError
from evopipe.language import hooks, peft
from evopipe.language.adapters import Adapted, Full
from evopipe.language.base import Base, load_base, stacked
from evopipe.language.generate import Sampling, generate, texts
from evopipe.language.tokens import with_end
from evopipe.schema.language import LanguageConfig
from evopipe.storage.files import parse_json
from evopipe.storage.folders import read_folder
from evopipe.storage.tensors import load_tensors
from evopipe.types import Text

POLICY, CHANGE, HEAD, MERGED = "policy.json", "change.safetensors", "head.safetensors", "merged"
_AT_ONCE = 64  # prompts that are completed at a time


class LanguagePolicy:
    """A trained language model, or reward model.

    Args:
        base: the base model with its tokenizer.
        config: the block `language` of the parameters of its training.
        about: the content of the model's `policy.json`: scores, lineage and provenance.
        net: the member's network, which changes the base model; None for the base model alone.
        head: the value head of a reward model: weights `[H]`, for hidden states of width H, and a bias. None for a
            language model.
    """

    def __init__(
        self, base: Base, config: LanguageConfig, about: Mapping[str, Any], net: Net | None,
        head: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.base, self.about, self._config, self._net, self.head = base, dict(about), config, net, head

    def __repr__(self) -> str:
        what = "language model" if self.head is None else "reward model"
        return f"<LanguagePolicy {self.about.get('algo', '')}: {what} over {self.base.name}>"

    @torch.no_grad()
    def reward(self, prompts: Sequence[Any], completions: Sequence[str]) -> list[float]:
        """Return the reward model's reward of each completion of the prompt at the same index. A prompt is a text or a
        list of messages.

        Raises:
            UsageError: this is no reward model, or there are not as many completions as prompts.
            DataError: the chat template refuses a chat.
        """
        if self.head is None:
            raise UsageError("reward: this is no reward model; train one: train.algo: reward_model")
        if len(prompts) != len(completions):
            raise UsageError(f"reward: {len(prompts)} prompts have {len(completions)} completions")
        weight, bias = self.head
        found: list[float] = []
        for start in range(0, len(prompts), _AT_ONCE):
            rows = []
            for prompt, own in zip(prompts[start:][:_AT_ONCE], completions[start:][:_AT_ONCE], strict=True):
                asked, (told,) = self.base.completed(prompt, [own], self._config.chat, self._config.system)
                rows.append([*asked, *told])
            ids, real = (x[None].to(self.base.device) for x in stacked(rows, self.base.pad, left=True))
            text = with_end(Text(ids, real, real, torch.zeros_like(ids)))
            hidden, _ = hooks.score(
                self.base, replace(text, mask=text.mask[..., -1:]), hidden=True, active=self._active
            )
            assert hidden is not None
            found += (hidden[0, :, -1].to(weight.dtype) @ weight + bias).tolist()
        return found

    def perform(
        self, games: int, seed: int, ask: Callable[[], str], show: Callable[[str], None], tell: Callable[[str], None]
    ) -> None:
        """Chat with a user. Each line that `ask` returns is a prompt, and `show` is called with its completion. An
        empty line ends the chat. `games`, `seed` and `tell` are not used."""
        while line := ask():
            show(self.generate(line))

    def generate(
        self, prompts: str | Sequence[Any], max_tokens: int | None = None, temperature: float = 0.0, top_k: int = 0,
        top_p: float = 1.0, samples: int = 1, seed: int = 0, stop: str | Sequence[str] | None = None,
    ) -> Any:  # fmt: skip
        """Complete prompts: with the most likely tokens, or by sampling if `temperature` is above 0.

        Args:
            prompts: a text, a list of texts, or a list of chats, each a list of messages (`role`, `content`).
            max_tokens: the most tokens of a completion; None for that of training.
            temperature: the divisor of logits in sampling; 0 for the most likely token.
            top_k: sample from the k most likely tokens; 0 for all.
            top_p: sample from the most likely tokens whose probabilities sum to this; 1 for all.
            samples: completions of each prompt.
            seed: seed of the random draws.
            stop: one text or several that end a completion and are removed from it; None for those of training.

        Returns:
            A text for a text, a list of texts for a list. If `samples` is above 1, each text is a list of that many.

        Raises:
            UsageError: a value is out of its range, or prompt and completion are longer than the base's context length.
            DataError: the chat template refuses a chat.
        """
        many = [prompts] if isinstance(prompts, str) else list(prompts)
        limit = self._config.max_completion if max_tokens is None else max_tokens
        for name, value, least in (("max_tokens", limit, 1), ("samples", samples, 1), ("top_k", top_k, 0)):
            if type(value) is not int or value < least:
                raise UsageError(f"generate: {name} must be a whole number of at least {least}, got {value!r:.40}")
        if not temperature >= 0 or not 0 < top_p <= 1:
            raise UsageError("generate: temperature must be at least 0, and top_p above 0 and at most 1")
        ends = self._config.stop if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(text, str) and text for text in ends):
            raise UsageError(f"generate: stop must be a text, or several, and none empty, got {stop!r:.40}")
        told: list[list[str]] = []
        for start in range(0, len(many), _AT_ONCE):
            part = many[start : start + _AT_ONCE]
            tokens = [self.base.prompt(prompt, self._config.chat, self._config.system) for prompt in part]
            self._need_places(max(map(len, tokens)), limit)
            ids, real = (x[None].to(self.base.device) for x in stacked(tokens, self.base.pad, left=True))
            one = torch.ones(1, device=self.base.device)
            how = Sampling(one * temperature, one.long() * top_k, one * top_p)
            keys = torch.tensor([rng.run_key(seed)], device=self.base.device)
            until = [ends] * len(part) if ends else ()
            written = generate(self.base, self._active, ids, real, samples, limit, how, keys, start, stop=until)
            (own,) = texts(self.base, written, until)
            told += [own[i : i + samples] for i in range(0, len(own), samples)]
        found = [each[0] for each in told] if samples == 1 else told
        return found[0] if isinstance(prompts, str) else found

    def _need_places(self, prompt: int, limit: int) -> None:
        places = self.base.places
        if places is not None and prompt + limit > places:
            raise UsageError(
                f"generate: a prompt of {prompt} tokens and max_tokens={limit} are more than {self.base.name} has "
                f"places for ({places}): shorten it, or lower max_tokens"
            )

    def _active(self) -> Any:
        if self._net is None:
            return nullcontext()
        structure: Any = self._net.structure
        return structure.active(self._net.views)


def load(folder: Path, about: Mapping[str, Any], device: torch.device | None = None) -> LanguagePolicy:
    """Load an exported language model from its folder.

    `about` is the content of its `policy.json`; `device` is the device of the model, None for the CPU.

    Raises:
        MissingInputError: the folder, or its base, lacks a file.
        DataError: a file is damaged, or belongs to another base.
    """
    try:
        config = LanguageConfig.model_validate(about["language"])
        kind, seed = about["arch"]["kind"], int(about["seed"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise DataError(f"{folder / POLICY}: does not say what it is ({error}); export it again") from None
    if about.get("merged"):
        merged = config.model_copy(update={"model": str(folder / MERGED)})
        base = load_base(merged, seed, device)
        return LanguagePolicy(base, config, about, None, _head(folder, about, base))
    base = load_base(config, seed, device)
    need_base(folder, about, base, "export it again")
    if kind == "full":
        arch: Any = Full()
        row = read_change(folder, base)
    else:
        arch, row = peft.read_adapter(folder, base)
    structure = arch.stack([arch], Adapted.of(base), base.device)
    return LanguagePolicy(base, config, about, Net(structure, structure.pack([row])), _head(folder, about, base))


def need_base(folder: Path, about: Mapping[str, Any], base: Base, remedy: str) -> None:
    """Check that an exported model was trained over this base.

    The check compares the base's digest with the one in `about`, the content of the model's `policy.json`. `folder` is
    the model's folder, for the error message.

    Raises:
        DataError: the model was trained over another base. The message ends with the text `remedy`, which says what to
            do.
    """
    if about.get("base") != base.digest:
        named = about.get("language")
        name = named.get("model") if isinstance(named, Mapping) else None
        what = f"another base than {base.name} is now" if "base" in about else f"no base that {POLICY} names"
        was = "" if name in (None, base.name) else f" (it names {name!s:.200})"
        raise DataError(f"{folder}: was trained over {what}{was}; {remedy}")


def _head(folder: Path, about: Mapping[str, Any], base: Base) -> tuple[Tensor, Tensor] | None:
    if not about.get("head"):
        return None
    tensors = load_tensors(read_folder(folder, only=(HEAD,))[HEAD], str(folder / HEAD))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {"weight": (base.words.hidden, 1), "bias": (1,)}:
        raise DataError(f"{folder / HEAD}: does not fit its base; export it again")
    return tensors["weight"][:, 0].to(base.device), tensors["bias"][0].to(base.device)


def load_reward(folder: Path, device: torch.device | None = None) -> LanguagePolicy:
    """Load an exported reward model from its folder. `device` is the device of the model, None for the CPU.

    Raises:
        MissingInputError: the folder, or a file of it, is missing.
        DataError: a file is damaged, or the exported model is no reward model.
    """
    if not (folder / POLICY).exists():
        raise MissingInputError(f"language.reward: {folder} is no exported reward model; run what writes it")
    about = described(folder)
    if about is None or not about.get("head"):
        raise DataError(f"language.reward: {folder} is no reward model; export one: train.algo: reward_model")
    return load(folder, about, device)


def read_change(folder: Path, base: Base) -> Tensor:
    """Read the change of an exported member that trained every weight of its base (`language.full: true`).

    The change is what the member adds to the weights. The result is one vector, a flat row.

    Raises:
        MissingInputError: the file with the change is missing.
        DataError: the change does not fit the base.
    """
    tensors = load_tensors(read_folder(folder, only=(CHANGE,))[CHANGE], str(folder / CHANGE))
    row = torch.zeros(Full().size(Adapted.of(base)))
    for name, part in Full().named(Adapted.of(base), row).items():
        if name not in tensors or tensors[name].shape != part.shape:
            raise DataError(f"{folder / CHANGE}: does not fit its base at {name!r}; export it again")
        part.copy_(tensors[name])
    return row


def described(folder: Path) -> dict[str, Any] | None:
    """Return the content of `policy.json` in an exported folder, if that holds a language model or a player of games;
    None if it holds another kind of policy."""
    about = parse_json(read_folder(folder, only=(POLICY,))[POLICY], str(folder / POLICY))
    return about if isinstance(about, dict) and "base" in about else None
