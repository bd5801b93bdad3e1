"""The blocks of a `params.yaml` for language models; `language` replaces `env`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from evopipe.own import NAME
from evopipe.schema.callbacks import CallbacksConfig
from evopipe.schema.declare import Schema, left_out, located, ordered, some_mass
from evopipe.schema.shards import ShardsConfig

_Weight = Annotated[float, Field(ge=0.0)]
Form = Literal["reasoning", "preference", "labelled", "supervised", "games"]


class LanguageConfig(Schema):
    """Settings of the base model that members adapt, and of the task on which they train."""

    class Tiny(Schema):
        """Settings of `language.model: tiny`, a small Llama with random weights that are drawn from the run's seed."""

        characters: str = Field(
            "",
            max_length=1000,
            description="characters of the tokenizer, one token each; empty: those of a generated task, else all bytes",
        )
        hidden: int = Field(64, ge=8, le=1024, multiple_of=8, description="width of the hidden states")
        layers: int = Field(2, ge=1, le=16, description="number of transformer layers")
        heads: int = Field(
            4, ge=1, le=16, description="attention heads of each layer; `hidden` must be a multiple of 2 · heads"
        )

        @model_validator(mode="after")
        def _divides(self) -> Self:
            if self.hidden % (2 * self.heads):
                raise ValueError(f"hidden ({self.hidden}) must be a multiple of 2 · heads ({2 * self.heads})")
            return self

    class Gpt(Schema):
        """Settings of `language.model: gpt`: members are small GPTs over the tokens of a game, and their architecture
        evolves."""

        hidden: int = Field(64, ge=16, le=4096, multiple_of=16, description="width of the hidden states")
        layers: int = Field(2, ge=1, le=64, description="number of transformer layers of an initial member")
        heads: int = Field(4, ge=1, le=256, description="attention heads of each layer of an initial member")
        head: int = Field(16, ge=16, le=512, multiple_of=16, description="width of each attention head")
        feedforward: int = Field(
            128,
            ge=16,
            le=1 << 14,
            multiple_of=16,
            description="nodes in the feed-forward part of each layer of an initial member",
        )

    model: str = Field(
        "tiny",
        min_length=1,
        description="base model that members adapt: `tiny` (made from `tiny` below), a folder that `save_pretrained` "
        "wrote, or a model's id on the Hugging Face hub; `gpt`: no base, each member is a small GPT of its own that "
        "plays games",
    )
    tiny: Tiny = Field(default_factory=Tiny)
    gpt: Gpt = Field(default_factory=Gpt)
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the base model's weights"
    )
    engine: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="software that generates completions: `transformers`, a loop in this package; `vllm`, the vLLM "
        "engine (an optional package, on CUDA), only for adapters of a base model in a folder",
    )
    full: bool = Field(
        False,
        description="true: members train every weight of the base model, for small models; false: they train LoRA "
        "adapters",
    )
    rank: int = Field(8, ge=1, le=512, description="rank of the LoRA adapter of an initial member")
    scale: float = Field(2.0, gt=0.0, le=1000.0, description="factor of a LoRA adapter's output: alpha / rank in PEFT")
    task: str = Field(
        "copy",
        min_length=1,
        description="task that makes prompts and scores answers: a built-in name, or `module:Class`",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the task's class")
    reward: str | None = Field(
        None,
        description="source of a completion's reward: a function f(completion, row) as `module:function`, or the "
        "folder of an exported reward model; null: the task's own score",
    )
    reward_seconds: float = Field(
        10.0, gt=0.0, le=3600.0, description="time limit in seconds for scoring one completion"
    )
    chat: bool = Field(
        False,
        description="true: prompts are formatted by the model's chat template; false: prompts are passed as they are",
    )
    system: str | None = Field(None, description="system message at the start of every chat; null: none")
    special_tokens: bool = Field(
        False,
        description="true: a special token's name (such as `<eos>`) in a row's or environment's text becomes that "
        "token; false: it stays plain text",
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        strict=False,
        description="texts that end a completion; they are cut off before the completion is scored or shown",
    )
    max_prompt: int = Field(
        64, ge=1, le=1 << 20, description="largest number of tokens of a prompt; rows with longer prompts are dropped"
    )
    max_completion: int = Field(
        16,
        ge=1,
        le=1 << 20,
        description="largest number of tokens of a completion: generation stops there, and dataset rows with longer "
        "completions are dropped",
    )

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.engine == "vllm" and self.full:
            raise located([(("engine",), "vllm serves adapters alone: set it to transformers, or `full` to false")])
        return self

    @field_validator("reward")
    @classmethod
    def _a_function_or_a_folder(cls, reward: str | None) -> str | None:
        if reward is not None and not NAME.fullmatch(reward) and "/" not in reward:
            raise ValueError(f"{reward!r} is not of the form 'module:function', and no folder's path: ./{reward}")
        return reward

    @property
    def reward_model(self) -> Path | None:
        """The folder of the reward model that scores completions; None if there is none."""
        return Path(self.reward) if self.reward is not None and not NAME.fullmatch(self.reward) else None


class TextFetch(Schema):
    """Settings of the stage `fetch` for language models: the source of the rows of text, and their splits."""

    class Generate(Schema):
        """Settings of `fetch.source: generate`, in which the task generates the rows."""

        rows: int = Field(1000, ge=2, le=10**7, description="number of rows to generate")

    class Jsonl(Schema):
        """Settings of `fetch.source: jsonl`, which reads a file with one JSON object per line."""

        path: str = Field("data/rows.jsonl", description="path of the file")

    class Datasets(Schema):
        """Settings of `fetch.source: datasets`, which reads a Hugging Face dataset."""

        name: str = Field(
            "data/rows", min_length=1, description="dataset: a local folder, or an id on the Hugging Face hub"
        )
        subset: str | None = Field(None, description="name of the dataset's configuration; null: its only one")
        split: str = Field("train", min_length=1, description="name of the dataset's split that is read")
        columns: dict[str, str] = Field(
            default_factory=dict,
            description="columns whose names are not those of the fields of a row (`prompt`, `answer` …), as {field: "
            "column}",
        )

    source: Literal["generate", "jsonl", "datasets"] = Field(
        "generate",
        description="source of the rows: `generate`, the task makes them; `jsonl`, a file; `datasets`, a Hugging Face "
        "dataset",
    )
    generate: Generate = Field(default_factory=Generate)
    jsonl: Jsonl = Field(default_factory=Jsonl)
    datasets: Datasets = Field(default_factory=Datasets)
    validation: float = Field(
        0.1, gt=0.0, lt=0.9, description="share of the rows held out to score members during training"
    )
    test: float = Field(0.1, gt=0.0, lt=0.9, description="share of the rows held out for the final evaluation")

    overlap: Literal["keep", "leave_out", "error"] = Field(
        "keep",
        description="treatment of validation and test rows whose prompt is also in the training rows: `keep` them and "
        "report their number; `leave_out`: drop them; `error`: end with a message that lists them",
    )

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.validation + self.test > 0.95:
            raise located([(("test",), "with `validation` it leaves nothing to learn from: lower one of them")])
        return self


class TextTrain(Schema):
    """Settings of the training. A step is one batch of prompts, with the updates from the completions of these prompts.
    For algorithms that learn from a dataset, a step is one batch of rows."""

    algo: str = Field(
        "grpo", description="name of the learning algorithm; its settings are the block of that name in `algos`"
    )
    max_steps: int = Field(100, ge=1, le=10**9, description="training steps of each member")
    evo_steps: int = Field(
        10,
        ge=1,
        le=10**9,
        description="training steps of each member per generation, after which selection and mutation follow",
    )
    eval_episodes: int = Field(
        64, ge=1, le=10**6, description="validation rows on which each member is scored per generation"
    )
    confirm_episodes: int = Field(
        256,
        ge=2,
        le=10**6,
        description="validation rows on which a new best member that reaches `target` is scored again",
    )
    target: float | None = Field(None, description="score at which training ends early; null: never")
    target_sigmas: float = Field(
        0.0, ge=0.0, description="standard errors by which the score of that second evaluation must exceed `target`"
    )
    callbacks: CallbacksConfig = Field(default_factory=CallbacksConfig, validate_default=True)

    _spare = left_out("callbacks")


class TextMutation(Schema):
    """Settings of the mutation of children after selection. Mutation may change the rank of an adapter or the
    architecture of a small GPT; it never changes the base model."""

    class Probabilities(Schema):
        """Relative weights of the kinds of mutation; they need not sum to 1."""

        none: _Weight = Field(0.4, description="weight of no mutation: the child equals its parent")
        rank: _Weight = Field(
            0.0,
            description="weight of raising the LoRA adapter's rank; new parts start at 0, so the model's outputs do "
            "not change",
        )
        architecture: _Weight = Field(
            0.0,
            description="weight of adding or removing a layer, heads or nodes of a GPT; an addition does not change "
            "its outputs",
        )
        rl_hp: _Weight = Field(0.6, description="weight of raising or lowering one hyper-parameter of the algorithm")

        @model_validator(mode="before")
        @classmethod
        def _of_a_base(cls, data: Any) -> Any:
            named = [name for name in ("parameters", "activation") if isinstance(data, dict) and name in data]
            if named:
                sentence = "members adapt a base whose form they share: delete this; `rank` lets their adapters grow"
                raise located([((name,), sentence) for name in named])
            return data

        _some_mass = model_validator(mode="after")(some_mass)

    class Gpt(Schema):
        """Bounds of the architectures of small GPTs, which mutations must keep."""

        min_layers: int = Field(1, ge=1, le=8, description="smallest number of transformer layers")
        max_layers: int = Field(4, ge=1, le=8, description="largest number of transformer layers")
        min_heads: int = Field(1, ge=1, le=256, description="smallest number of attention heads of a layer")
        max_heads: int = Field(
            8, ge=1, le=256, description="largest number of attention heads of a layer; a mutation adds or removes one"
        )
        min_nodes: int = Field(
            16, ge=16, le=4096, multiple_of=16, description="smallest number of feed-forward nodes of a layer"
        )
        max_nodes: int = Field(
            256, ge=16, le=4096, multiple_of=16, description="largest number of feed-forward nodes of a layer"
        )

        _ordered = ordered("layers", "heads", "nodes")

    probabilities: Probabilities = Field(default_factory=Probabilities)
    max_rank: int = Field(32, ge=1, le=512, description="largest rank of a LoRA adapter that mutation may reach")
    gpt: Gpt = Field(default_factory=Gpt)
    mutate_elite: bool = Field(
        False, description="true: the copy of the best member in slot 0 is mutated too; false: it stays unchanged"
    )
    before_training: bool = Field(
        False, description="true: every initial member is mutated once before training; kind `none` is not drawn"
    )


class TextRuntime(Schema):
    """Settings of where and how a run computes: device, threads, processes, checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the models: `cpu`, `cuda`, or `auto` (CUDA if there is a GPU, else the CPU)"
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="CPU threads of PyTorch; a change makes stages run again, because it changes the last bits of "
        "results",
    )
    cohorts: Literal["merged", "exact"] = Field(
        "merged",
        description="grouping of members into batches: `merged`, members of different ranks share a batch, which is "
        "faster; `exact`, only equal ranks do, and no bit of a member's results depends on the other members",
    )
    rows_at_once: int | None = Field(
        None,
        ge=1,
        description="text rows of each member in one forward pass of the base model; null: all. A lower number needs "
        "less memory, but recomputes the forward pass for the gradients, and changes the last bits of results",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes that share the CPU training of GPT members; `auto`: chosen from CPUs, members and work; "
        "1: the main process alone, always so if `threads` is above 1; no effect on results",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="shortest time in seconds between two checkpoints")
    shards: ShardsConfig = Field(default_factory=ShardsConfig, validate_default=True)
