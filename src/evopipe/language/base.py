"""The frozen base model that all members adapt, held once, and its tokenizer.

No file is ever unpickled, and no code of a repository is run: weights come from safetensors, architectures from
`transformers`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evopipe import rng
from evopipe.errors import DataError, MissingInputError, need_package
from evopipe.language import chats
from evopipe.language.encoding import PLACE, Encoder, Marked, encoder_of, plain
from evopipe.language.hub import REACH_SECONDS, first_line, quiet, reach
from evopipe.language.layers import BaseWeight, all_weights, linear_layers
from evopipe.language.together import Together
from evopipe.language.weights import ANEW, check_config, check_model, headers, misfit
from evopipe.rng import Purpose
from evopipe.schema.language import LanguageConfig
from evopipe.types import Tensor, Words

PAD, END, UNKNOWN = "<pad>", "<|end|>", "<unk>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")  # of a repository: never code, never a pickle
_NARROW = 0.02  # standard deviation of a tiny model's first weights


@dataclass(frozen=True, eq=False)
class Base:
    """A frozen causal language model with its tokenizer, which all members of a run share.

    Attributes:
        name: the model's name in the parameters.
        model: the model of `transformers`, whose parameters do not learn; None if members are small GPTs.
        tokenizer: the tokenizer of `transformers`; if members are small GPTs, the texts of the tokens.
        digest: a hash of the model and its tokenizer. It tells bases apart, because an adapter fits only one base.
        words: the sizes of the vocabulary and of the hidden states.
        ends: the tokens that end a completion.
        pad: the token that fills up shorter rows; masks exclude it.
        device: the device of the model.
        rows_at_once: how many rows of each member the model computes at a time; None for all.
        exact: whether a member's results must have the same bits whatever other members are in the batch. If so, even
            columns that hold nothing but pads are computed.
        length: the most tokens of a row, if members are small GPTs (see the function `tokens_alone`); else 0.
        special_tokens: whether a special token's name, such as `<eos>`, becomes that token if a text of a dataset or an
            environment has it. If False, it stays plain text.
        together: the processes that divide the rows among themselves.
        hooked: the registered forward hooks, see `hooks`.
        active: the changes that the hooks add at present.
    """

    name: str
    model: Any
    tokenizer: Any
    digest: str
    words: Words
    ends: tuple[int, ...]
    pad: int
    device: torch.device
    rows_at_once: int | None = None
    exact: bool = False
    length: int = 0
    special_tokens: bool = False
    together: Together = field(default_factory=Together)
    hooked: list[Any] = field(default_factory=list, repr=False)
    active: list[Any] = field(default_factory=list, repr=False)

    @cached_property
    def linear(self) -> tuple[BaseWeight, ...]:
        """All linear layers of the model except the one that computes the logits. LoRA adapters are added to these
        layers."""
        return linear_layers(self.model, self.model.get_output_embeddings(), self.name)

    @cached_property
    def weights(self) -> tuple[BaseWeight, ...]:
        """All weights of the model, for members that change every weight (`language.full`)."""
        return all_weights(self.model, self.name)

    @property
    def places(self) -> int | None:
        """The model's context length, which is the largest number of tokens in a row; None if its configuration sets no
        limit."""
        return None if self.model is None else getattr(self.model.config, "max_position_embeddings", None)

    def with_tokenizer(self, tokenizer: Any) -> Base:
        """Return a copy of the base with another tokenizer. Both share the model and its hooks.

        Raises:
            DataError: the tokenizer has more tokens than the model, or no token ends a text.
        """
        if len(tokenizer) > self.words.vocabulary:
            raise DataError(
                f"language.model: {self.name} has a tokenizer of {len(tokenizer)} tokens and a model of "
                f"{self.words.vocabulary}: they do not belong together"
            )
        ends = _ends(self.model, tokenizer)
        if not ends:
            raise DataError(
                f"language.model: {self.name} has no token that ends a text: set eos_token in its tokenizer"
            )
        for token in ends:
            if not 0 <= token < self.words.vocabulary:
                raise DataError(
                    f"language.model: {self.name} ends a text by the token {token}, and its vocabulary has "
                    f"{self.words.vocabulary}: correct eos_token_id in its generation_config.json, or its tokenizer's "
                    "eos_token"
                )
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
        return replace(self, tokenizer=tokenizer, ends=ends, pad=int(pad))

    @property
    def encoder(self) -> Encoder:
        """The encoder that converts text to tokens with the base's tokenizer."""
        return encoder_of(self.tokenizer, len(self.tokenizer))

    def data(self, text: str) -> Marked:
        """Mark a text as data, in which special tokens have no effect, because a dataset, an environment or a model
        wrote it.

        If the attribute `special_tokens` is True, the text is not marked.
        """
        return Marked(text) if self.special_tokens else Marked.as_data(text)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text alone, without a beginning-of-text token.

        The text counts as data, so special tokens have no effect in it (see the method `data`).
        """
        return self.encoder.encode(self.data(text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def show(self, ids: Sequence[int]) -> str:
        """Convert tokens to text for people, including special tokens and those of the chat template."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def prompt(
        self, prompt: str | Sequence[Mapping[str, Any]], chat: bool, system: str | None, go_on: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:  # fmt: skip
        """Return the tokens of a prompt, at least one token.

        A list of messages goes through the chat template. A text does so only if `chat` is true.

        Args:
            prompt: a text or a list of messages. Special tokens in it are plain text, unless this base's attribute
                `special_tokens` is true.
            chat: whether a text is shown as a message of the user through the chat template.
            system: the system message; None for none. If the chat template is not used, it is put before the text.
                Special tokens in it take effect.
            go_on: whether the model continues the last message instead of beginning its own.
            tools: the schemas of tools that the template shows, in the form of OpenAI's API.

        Raises:
            DataError: there is no chat template, or it refuses the messages.
        """
        text, begin = self._asked(prompt, chat, system, go_on, tools)
        return [*begin, *self.encoder.encode(text)] or [self.ends[0]]

    def completed(
        self, prompt: str | Sequence[Mapping[str, str]], completions: Sequence[str], chat: bool, system: str | None,
        go_on: bool = False,
    ) -> tuple[list[int], list[list[int]]]:  # fmt: skip
        """Return the tokens of a prompt, and the tokens of each completion with the end of its turn.

        Prompt and completion are tokenised as one text, which is then cut where the completion begins. If a token would
        lie on both sides of the cut, the completion is tokenised separately. The prompt's tokens are therefore the same
        for any completion.

        Args:
            prompt: a text or a list of messages.
            completions: the texts of the completions.
            chat: whether a text is shown as a message of the user through the chat template.
            system: the system message; None for none. If the chat template is not used, it is put before the text.
            go_on: whether the completions continue the last message instead of beginning a new one.

        Raises:
            DataError: there is no chat template, or it refuses the messages.
        """
        text, _ = self._asked(prompt, chat, system, go_on)
        chatting = chat or not isinstance(prompt, str)
        end = chats.turn_end(self.tokenizer) if chatting else ""
        found = []
        for completion in completions:
            whole = text.joined(self.data(plain(completion))).joined(Marked(end))
            if chatting:
                messages, own = self._messages(prompt, system)
                if go_on:
                    messages[-1] = {**messages[-1], "content": messages[-1]["content"] + completion}
                else:
                    messages.append({"role": "assistant", "content": completion})
                shown = self._shown(messages, own)
                _, stop = shown.of.get(len(messages) - 1, (0, 0))
                if stop >= len(text) and shown.text.text.startswith(text.text):  # else it opens answers in another way
                    stop += len(end) if shown.text.text.startswith(end, stop) else 0
                    whole = shown.text.part(0, stop)
            ids = self.encoder.tokens_from(whole, len(text))
            found.append([*ids, *(() if end and ids[-1:] and ids[-1] in self.ends else self.ends[:1])])
        return self.prompt(prompt, chat, system, go_on), found

    def conversation(
        self, messages: Sequence[Mapping[str, str]], system: str | None
    ) -> tuple[list[int], list[tuple[list[int], bool]]]:
        """Return the tokens of a chat before its first answer, and the pieces of the rest of the chat.

        Each piece is a pair (tokens, whether it is an answer). An answer is a message of the assistant with the end of
        its turn; members learn to write answers. The other pieces are the text between answers.

        The chat is tokenised as one text, which is then cut. If a token would lie on both sides of a cut, the text
        after the cut is tokenised separately. `system` is a system message that begins the chat; None for none.

        Raises:
            DataError: there is no chat template, or it refuses the messages. Or the template changes the content of an
                answer, and does not mark with `{% generation %}` what the model writes.
        """
        told, own = self._messages(messages, system)
        shown = self._shown(told, own)
        spans = chats.answers(self.tokenizer, self.name, told, own, shown)
        cuts = [place for span in spans for place in span]
        pieces = [
            (self.encoder.tokens_from(shown.text.part(0, end), start), i % 2 == 0)
            for i, (start, end) in enumerate(itertools.pairwise(cuts))
        ]
        if not chats.turn_end(self.tokenizer):  # the last answer is to end, too
            pieces[-1][0].append(self.ends[0])
        return self.encoder.encode(shown.text.part(0, cuts[0])) or [self.ends[0]], pieces

    def between(
        self, messages: Sequence[Mapping[str, Any]], replies: Sequence[int], last: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int] | None:  # fmt: skip
        """Return the tokens that the chat template writes after the last reply in a chat: later messages, and the
        beginning of the model's next turn.

        Args:
            messages: the chat.
            replies: the indices of the replies, the messages that the model wrote.
            last: the last token of the last reply. If that token ended the turn, the template's end of turn is left
                out.
            tools: the schemas of tools that the template shows.

        Returns:
            The tokens, or None if there is no chat template, or if it does not show each reply exactly once.

        Raises:
            DataError: the chat template refuses the messages.
        """
        if not self.tokenizer.chat_template:
            return None
        shown = self._shown(messages, 0, replies, "add_generation_prompt", tools)
        text, end = shown.text.text, chats.turn_end(self.tokenizer)
        if text.count(PLACE) != len(replies):
            return None
        at = text.rindex(PLACE) + 1
        ids, ended = self.encoder.continuation(shown.text.part(at)), self.encoder.continuation(Marked(end))
        return ids[len(ended) :] if ended and last == ended[-1] and text.startswith(end, at) else ids

    def _messages(
        self, prompt: str | Sequence[Mapping[str, Any]], system: str | None
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a prompt as messages, and how many of them are the run's own."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        return (messages, 0) if system is None else ([{"role": "system", "content": system}, *messages], 1)

    def _shown(
        self, messages: Sequence[Mapping[str, Any]], own: int, replies: Sequence[int] = (), ending: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> chats.Shown:  # fmt: skip
        return chats.show(
            self.tokenizer, self.encoder, self.name, messages, own, self.special_tokens, replies, ending, tools
        )

    def _asked(
        self, prompt: str | Sequence[Mapping[str, Any]], chat: bool, system: str | None, go_on: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[Marked, tuple[int, ...]]:  # fmt: skip
        """Return a prompt as text, and the tokens before it."""
        if isinstance(prompt, str) and not chat:
            return Marked(system or "").joined(self.data(plain(prompt))), self.encoder.begin
        ending = "continue_final_message" if go_on else "add_generation_prompt"
        messages, own = self._messages(prompt, system)
        return self._shown(messages, own, ending=ending, tools=tools).text, ()


def load_base(cfg: LanguageConfig, seed: int, device: torch.device | None = None) -> Base:
    """Load the base model that the block `language` (`cfg`) names, or make a tiny one whose weights are drawn with
    `seed`.

    `device` is the device of the model, None for the CPU.

    Raises:
        MissingInputError: the extra `language` is not installed; or the folder or hub id does not exist, or lacks a
            file.
        DataError: a file is damaged, or could be read only by unpickling it or by running the model's own code.
    """
    for package in ("transformers", "tokenizers"):
        need_package(package, "language", "language.model")
    device = device or torch.device("cpu")
    if cfg.model == "tiny":
        model, tokenizer = _tiny(cfg.tiny, seed).to(getattr(torch, cfg.dtype)), tiny_tokenizer(cfg.tiny.characters)
        digest = digest_of(model, tokenizer.backend_tokenizer.to_str())
    else:
        folder = _folder_of(cfg.model)
        model, tokenizer = _read(folder, cfg.dtype)
        digest = _digest_of_files(folder)
    return replace(base_of(cfg.model, model, tokenizer, digest, device), special_tokens=cfg.special_tokens)


def base_of(name: str, model: Any, tokenizer: Any, digest: str, device: torch.device) -> Base:
    """Return a base made of a model and a tokenizer of `transformers`. The model's weights are frozen.

    `name` is the model's name in messages, `digest` a hash that identifies the model, and `device` the device to which
    the model is moved. With None as `tokenizer`, the base cannot convert text until `with_tokenizer` adds one.

    Raises:
        DataError: model and tokenizer do not belong together, or no token ends a text.
    """
    model.to(device).eval().requires_grad_(False)
    vocabulary = int(model.get_output_embeddings().weight.shape[0])
    words = Words(vocabulary, int(model.get_output_embeddings().weight.shape[1]))
    bare = Base(name, model, None, digest, words, (), 0, device)
    return bare if tokenizer is None else bare.with_tokenizer(tokenizer)


def tokens_alone(tokens: Sequence[str], length: int, hidden: int, device: torch.device | None = None) -> Base:
    """Return a base without a model, for members that are small GPTs.

    Args:
        tokens: the texts of the tokens; token 0 is the pad.
        length: the most tokens of a row.
        hidden: the width of the members' hidden states.
        device: the device of the members; None for the CPU.
    """
    digest = hashlib.sha256(json.dumps([*tokens, length]).encode()).hexdigest()[:32]
    words, device = Words(len(tokens), hidden), device or torch.device("cpu")
    return Base("gpt", None, tuple(tokens), digest, words, (), 0, device, length=length)


def _ends(model: Any, tokenizer: Any) -> tuple[int, ...]:
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    turn = chats.turn_end(tokenizer)
    found = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    found += tokenizer.encode(turn, add_special_tokens=False)[-1:] if turn else []  # what a chat's answers end with
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))


# --- tiny -------------------------------------------------------------------------------------------------------------


def tiny_tokenizer(characters: str) -> Any:
    """Return a tokenizer with one token for each of these characters, or one for each byte if `characters` is empty."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = [PAD, END, *ROLES]
    if characters:
        known = [*specials, UNKNOWN, *dict.fromkeys(characters)]
        made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(known)}, unk_token=UNKNOWN))
        made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        made.decoder = decoders.Fuse()
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(models.BPE({token: i for i, token in enumerate([*specials, *alphabet])}, []))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.decoder = decoders.ByteLevel()
    unknown = {"unk_token": UNKNOWN} if characters else {}
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=made, pad_token=PAD, eos_token=END, padding_side="left",
        additional_special_tokens=list(ROLES), **unknown,
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _tiny(cfg: LanguageConfig.Tiny, seed: int) -> Any:
    """Make a Llama; its weights are drawn in the order of their names, not by torch's generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(cfg.characters)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=cfg.hidden, intermediate_size=4 * cfg.hidden,
        num_hidden_layers=cfg.layers, num_attention_heads=cfg.heads, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    draws = rng.host(rng.run_key(seed), Purpose.INIT)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.ndim == 2:
                drawn = draws.standard_normal(tuple(weight.shape), dtype=np.float32)
                weight.copy_(torch.from_numpy(_NARROW * drawn))
    return model


def digest_of(model: Any, tokenizer: str) -> str:
    """Return a hash of a model's weights and of `tokenizer`, the JSON text that describes its tokenizer. The hash
    identifies the base."""
    digest = hashlib.sha256(tokenizer.encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


# --- folders and the hub ----------------------------------------------------------------------------------------------


def _folder_of(name: str) -> Path:
    """Return the folder that a model lies in, fetched from the hub where it is none."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if name.count("/") > 1 or name.startswith((".", "/", "~")) or folder.exists():
        raise MissingInputError(f"language.model: {name} is no folder; run what writes it, or correct the name")
    need_package("huggingface_hub", "language", f"language.model: {name}")
    import huggingface_hub

    with contextlib.suppress(Exception):  # what was fetched before needs no network
        return Path(huggingface_hub.snapshot_download(name, local_files_only=True, allow_patterns=list(_FILES)))
    failed = reach(lambda: huggingface_hub.HfApi().model_info(name, timeout=REACH_SECONDS / 2))
    if failed is None:
        try:
            patterns = list(_FILES)
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, etag_timeout=REACH_SECONDS))
        except Exception as error:
            failed = first_line(error)
    raise MissingInputError(
        f"language.model: {name} is no folder here, and the hub does not give it ({failed}): correct the name, or "
        "name a folder"
    )


def _read(folder: Path, dtype: str) -> tuple[Any, Any]:
    where = f"language.model: {folder}"
    config = _config(folder, where)
    if "auto_map" in config:
        raise DataError(f"{where} brings code of its own (auto_map in config.json), which is never run: take another")
    if not list(folder.glob("*.safetensors")):
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        if pickled:
            raise DataError(f"{where} has its weights in {pickled[0].name}, a pickle, which is never read: convert it")
        raise MissingInputError(f"{where} has no *.safetensors: it holds no model's weights")
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        raise MissingInputError(f"{where} has no tokenizer (tokenizer.json): save it into the same folder")
    held = headers(folder, where)
    check_config(config, held, where)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    with quiet(logging):
        try:
            described = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise DataError(f"{where}/config.json cannot be read ({said}): {ANEW}") from None
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise DataError(f"{where}: its tokenizer cannot be read ({first_line(error)}): write it anew") from None
        try:
            with torch.random.fork_rng(devices=[]):
                load: Any = AutoModelForCausalLM.from_pretrained
                model, told = load(
                    folder, local_files_only=True, trust_remote_code=False, use_safetensors=True,
                    dtype=getattr(torch, dtype), output_loading_info=True,
                )  # fmt: skip
        except Exception as error:
            wrong = None
            with contextlib.suppress(Exception):
                wrong = misfit(described, held)
            raise DataError(f"{where}: {wrong or f'cannot be read ({first_line(error)})'}: {ANEW}") from None
    if lacking := sorted(told["missing_keys"]):
        raise DataError(f"{where}: its files lack {lacking[0]!r}, {len(lacking)} tensors in all: write it anew")
    if unused := sorted(told["unexpected_keys"]):
        what = f"its config.json has no place for {len(unused)} of its tensors, such as {unused[0]}, which are not used"
        print(f"warning: {where}: {what}", file=sys.stderr)
    check_model(model, held, dtype, where)
    return model, tokenizer


def _config(folder: Path, where: str) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingInputError(f"{where} has no config.json: it is no model as `save_pretrained` writes it") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where}/config.json cannot be read ({first_line(error)}): write it anew") from None
    if not isinstance(config, dict):
        raise DataError(f"{where}/config.json holds no mapping: write it anew")
    return config


def _digest_of_files(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted({file for pattern in _FILES for file in folder.glob(pattern)}):
        with path.open("rb") as stream:
            digest.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def stacked(rows: Sequence[Sequence[int]], pad: int, left: bool) -> tuple[Tensor, Tensor]:
    """Pad rows of tokens to one length with the token `pad`, at the beginning if `left` is true, else at the end.
    Return the tokens of n rows of L tokens, `[n, L]` int64, and a mask `[n, L]` bool that is False for pads."""
    width = max((len(row) for row in rows), default=0)
    ids, real = np.full((len(rows), width), pad, dtype=np.int64), np.zeros((len(rows), width), dtype=np.bool_)
    for i, row in enumerate(rows):  # in torch each row would give Python's lock away
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place], real[i, place] = row, True
    return torch.from_numpy(ids), torch.from_numpy(real)
