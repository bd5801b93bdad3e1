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
            "", max_length=1000, description="what its tokenizer knows, a token each; empty: all bytes"
        )
        hidden: int = Field(64, ge=8, le=1024, multiple_of=8, description="width of its hidden states")
        layers: int = Field(2, ge=1, le=16, description="its layers")
        heads: int = Field(4, ge=1, le=16, description="attention heads of a layer; they divide `hidden`")

        @model_validator(mode="after")
        def _divides(self) -> Self:
            if self.hidden % (2 * self.heads):
                raise ValueError(f"hidden ({self.hidden}) must be a multiple of 2 · heads ({2 * self.heads})")
            return self

    class Gpt(Schema):
        """Settings of `language.model: gpt`: members are small GPTs over the tokens of a game, and their architecture
        evolves."""

        hidden: int = Field(64, ge=16, le=4096, multiple_of=16, description="width of the stream between layers")
        layers: int = Field(2, ge=1, le=64, description="layers that members start with")
        heads: int = Field(4, ge=1, le=256, description="attention heads of each of them")
        head: int = Field(16, ge=16, le=512, multiple_of=16, description="width of a head")
        feedforward: int = Field(128, ge=16, le=1 << 14, multiple_of=16, description="feed-forward nodes of each layer")

    model: str = Field(
        "tiny",
        min_length=1,
        description="the base: `tiny`, made here; a folder as `save_pretrained` writes it; or a model's id on the hub; "
        "`gpt`: none, members are whole models that play games",
    )
    tiny: Tiny = Field(default_factory=Tiny)
    gpt: Gpt = Field(default_factory=Gpt)
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="numbers of the base's weights")
    engine: Literal["transformers", "vllm"] = Field(
        "transformers",
        description="what writes completions: `transformers`, this program's own loop over the base; `vllm`, an extra, "
        "on CUDA, for adapters of a base in a folder",
    )
    full: bool = Field(
        False, description="whether members change every weight of the base, for tiny ones; false: low-rank adapters"
    )
    rank: int = Field(8, ge=1, le=512, description="rank of the adapters that members start with")
    scale: float = Field(2.0, gt=0.0, le=1000.0, description="what adapters are multiplied by, PEFT's alpha / rank")
    task: str = Field("copy", min_length=1, description="the task: its name, or `module:Class` for one's own")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the task")
    reward: str | None = Field(
        None,
        description="what scores completions: `module:function`, f(completion, row); a reward model's exported folder; "
        "null: the task's own score",
    )
    reward_seconds: float = Field(10.0, gt=0.0, le=3600.0, description="longest that a completion's score may take")
    chat: bool = Field(
        False, description="whether prompts go through the model's chat template; false: texts as they are"
    )
    system: str | None = Field(None, description="what a chat begins with, as the system's message; null: nothing")
    special_tokens: bool = Field(
        False,
        description="whether special tokens, such as one that ends a turn, act where they stand in the text of rows "
        "and environments; false: there they are plain text",
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), strict=False, description="texts that end a completion, and are no part of what is rewarded or shown"
    )
    max_prompt: int = Field(64, ge=1, le=1 << 20, description="most tokens of a prompt; longer ones are left out")
    max_completion: int = Field(
        16, ge=1, le=1 << 20, description="most tokens of a completion; to be learned from, longer ones are left out"
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

        rows: int = Field(1000, ge=2, le=10**7, description="rows made")

    class Jsonl(Schema):
        """Settings of `fetch.source: jsonl`, which reads a file with one JSON object per line."""

        path: str = Field("data/rows.jsonl", description="the file")

    class Datasets(Schema):
        """Settings of `fetch.source: datasets`, which reads a Hugging Face dataset."""

        name: str = Field("data/rows", min_length=1, description="a local folder, or an id on the hub")
        subset: str | None = Field(
            None, description="which of its configurations, where it has several; null: its only"
        )
        split: str = Field("train", min_length=1, description="which of its splits")
        columns: dict[str, str] = Field(
            default_factory=dict, description="its columns by the names that rows have here, where they are others"
        )

    source: Literal["generate", "jsonl", "datasets"] = Field(
        "generate", description="which of the blocks below is read"
    )
    generate: Generate = Field(default_factory=Generate)
    jsonl: Jsonl = Field(default_factory=Jsonl)
    datasets: Datasets = Field(default_factory=Datasets)
    validation: float = Field(0.1, gt=0.0, lt=0.9, description="share of the rows that score members while they train")
    test: float = Field(0.1, gt=0.0, lt=0.9, description="share of the rows for the held-out evaluation alone")

    overlap: Literal["keep", "leave_out", "error"] = Field(
        "keep",
        description="what becomes of held-out rows whose prompt is learned from, too: `keep`, they are counted; "
        "`leave_out`; `error`, they are named",
    )

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.validation + self.test > 0.95:
            raise located([(("test",), "with `validation` it leaves nothing to learn from: lower one of them")])
        return self


class TextTrain(Schema):
    """Settings of the training. A step is one batch of prompts, with the updates from the completions of these prompts.
    For algorithms that learn from a dataset, a step is one batch of rows."""

    algo: str = Field("grpo", description="which algorithm: a block of `algos`")
    max_steps: int = Field(100, ge=1, le=10**9, description="steps of each member")
    evo_steps: int = Field(10, ge=1, le=10**9, description="steps of each member between evolutions")
    eval_episodes: int = Field(64, ge=1, le=10**6, description="held-out rows that score each member per generation")
    confirm_episodes: int = Field(
        256, ge=2, le=10**6, description="held-out rows that confirm a new best member that clears the target"
    )
    target: float | None = Field(None, description="score that ends training early; null: never")
    target_sigmas: float = Field(0.0, ge=0.0, description="standard errors by which the confirmed mean must clear it")
    callbacks: CallbacksConfig = Field(default_factory=CallbacksConfig, validate_default=True)

    _spare = left_out("callbacks")


class TextMutation(Schema):
    """Settings of the mutation of children after selection. Mutation may change the rank of an adapter or the
    architecture of a small GPT; it never changes the base model."""

    class Probabilities(Schema):
        """Relative weights of the kinds of mutation; they need not sum to 1."""

        none: _Weight = Field(0.4, description="child equals parent")
        rank: _Weight = Field(0.0, description="the adapter's rank grows; the member stays what it is")
        architecture: _Weight = Field(
            0.0, description="a GPT gains or loses a layer, heads or nodes; with what it gains it stays what it is"
        )
        rl_hp: _Weight = Field(0.6, description="one RL hyper-parameter grows or shrinks")

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

        min_layers: int = Field(1, ge=1, le=8, description="fewest layers")
        max_layers: int = Field(4, ge=1, le=8, description="most layers")
        min_heads: int = Field(1, ge=1, le=256, description="fewest heads of a layer")
        max_heads: int = Field(8, ge=1, le=256, description="most heads of a layer; one at a time comes or goes")
        min_nodes: int = Field(16, ge=16, le=4096, multiple_of=16, description="fewest feed-forward nodes of a layer")
        max_nodes: int = Field(256, ge=16, le=4096, multiple_of=16, description="most feed-forward nodes of a layer")

        _ordered = ordered("layers", "heads", "nodes")

    probabilities: Probabilities = Field(default_factory=Probabilities)
    max_rank: int = Field(32, ge=1, le=512, description="largest rank that mutation may reach")
    gpt: Gpt = Field(default_factory=Gpt)
    mutate_elite: bool = Field(False, description="whether the elite's own copy in slot 0 mutates too")
    before_training: bool = Field(False, description="mutate every initial member once (kind `none` excluded)")


class TextRuntime(Schema):
    """Settings of where and how a run computes: device, threads, processes, checkpoints."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: CUDA where present, else CPU")
    threads: int = Field(1, ge=1, le=256, description="torch threads; tracked, for it changes results in the last bits")
    cohorts: Literal["merged", "exact"] = Field(
        "merged",
        description="`merged`: members of unlike ranks share a batch, and finished completions leave it; `exact`: no "
        "bit of a member depends on its neighbours",
    )
    rows_at_once: int | None = Field(
        None,
        ge=1,
        description="rows of text of each member that pass through the base at a time: fewer take less memory, and to "
        "learn are computed twice; tracked, for it changes results in the last bits; null: all",
    )
    learners: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        "auto",
        description="processes that divide the learning of GPTs on the CPU; `auto`: by CPUs, members and work; 1: the "
        "trainer alone, as wherever `threads` is more than 1; changes no result",
    )
    checkpoint_seconds: float = Field(30.0, gt=0.0, description="least time between two checkpoints")
    shards: ShardsConfig = Field(default_factory=ShardsConfig, validate_default=True)
