"""Chat templates as models publish them, and small tokenizers of the two families for them, made offline."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import words
from evopipe.language.base import Base, base_of

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    "}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + "
    "'<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif "
    "message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
LLAMA_2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + "
    "' [/INST]' }}{% else %}{{ ' ' + message['content'] + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GENERATION = (  # it shows an answer without what was thought, and says itself where it stands
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'].split('</think>')[-1] }}{{ '<|end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|end|>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# By name: the template, how it ends an answer, the token that ends a text, and the other special ones.
CHATS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "chatml": (CHATML, "<|im_end|>", "<|im_end|>", ("<|im_start|>",)),
    "llama-3": (LLAMA_3, "<|eot_id|>", "<|end_of_text|>", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "gemma": (GEMMA, "<end_of_turn>", "<eos>", ("<start_of_turn>", "<end_of_turn>")),
    "phi-3": (PHI_3, "<|end|>", "<|endoftext|>", ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")),
    "zephyr": (ZEPHYR, "</s>", "</s>", ()),
    "llama-2": (LLAMA_2, " </s>", "</s>", ()),
}
FAMILIES = ("bytes", "first", "always", "prepended")
_LEARNED = ["the end of a turn, and the next one begins: what is 12 and 30? It is 42.", "Yes, it's so.\n\nNo more."] * 9


@cache
def tokenizer(family: str, name: str) -> Any:
    """A byte-level tokenizer as GPT-2's and Llama 3's, or one as SentencePiece's: `first` writes a space before a text,
    `always` before all that follows a special token too, `prepended` does so by its normaliser, as Llama 2's."""
    template, _, end, more = CHATS[name]
    special = ["<unk>", "<s>", end, *(token for token in more if token != end)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    if family == "bytes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.post_processor = processors.ByteLevel(trim_offsets=True)
    else:
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        if family == "prepended":
            made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=family, split=True)
        made.decoder = decoders.Sequence([
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0),
        ])  # fmt: skip
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*special, *(() if family == "bytes" else fallback)],
        initial_alphabet=alphabet if family == "bytes" else [], show_progress=False,
    )  # fmt: skip
    made.train_from_iterator(_LEARNED, trainer)
    if family != "bytes":  # training made special tokens of the bytes: a model has them in its vocabulary alone
        data = json.loads(made.to_str())
        data["added_tokens"] = [each for each in data["added_tokens"] if each["content"] in special]
        made = Tokenizer.from_str(json.dumps(data))
    make: Any = PreTrainedTokenizerFast
    found = make(
        tokenizer_object=made, bos_token="<s>", eos_token=end, unk_token="<unk>",
        additional_special_tokens=[token for token in special[2:] if token != end],
    )  # fmt: skip
    found.chat_template = template
    return found


@cache
def base(family: str, name: str) -> Base:
    """A base that tests share, with such a tokenizer; its weights are whatever torch draws."""
    return of(tokenizer(family, name))


def of(made: Any) -> Base:
    config = LlamaConfig(
        vocab_size=len(made), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model: Any = LlamaForCausalLM
    return base_of("written", model(config), made, "0", words.CPU)
