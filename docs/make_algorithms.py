"""Write `docs/algorithms/` from the algorithms' files: `python docs/make_algorithms.py`; `--check` compares.

The pictures of their learning curves are drawn anew where they show other data than `docs/curves/` holds.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import learning_curves
from make_parameters import publish, rows, table

from evopipe import algos
from evopipe.schema.evolution import MutationConfig
from evopipe.schema.read import read_yaml
from evopipe.types import Spaces, Words

FOLDER = Path(__file__).parent / "algorithms"
PIPELINES = Path(__file__).parents[1] / "pipelines"
OBSERVATIONS, ACTIONS = 1009, 911  # primes that no network has by chance: they stand for O and A
HIDDEN, VOCABULARY = 1013, 919  # of a language model


SPELLED = {
    "bc_language": "BC of games", "crossq": "CrossQ", "neural_ts": "NeuralTS", "neural_ucb": "NeuralUCB",
    "ppo_language": "PPO of completions", "qrdqn": "QR-DQN", "rainbow": "Rainbow", "reward_model": "Reward model",
    "td3bc": "TD3+BC",
}  # fmt: skip
"""How the field spells algorithms whose name in capital letters is another one."""
OFFLINE = ("bc", "cqn", "iql", "td3bc")
"""Algorithms that are made to learn from a dataset alone."""
SMALL = {
    "discrete": {"env": {"id": "CartPole-v1"}},
    "continuous": {"env": {"id": "Pendulum-v1"}},
    "team": {"env": {"id": "simple_spread_v3"}},
    "text": {"language": {"model": "tiny", "full": True, "task": "copy"}},
    "games": {"language": {"model": "gpt", "task": "wordle"}},
}
"""What algorithms are tried on first."""


def render(name: str) -> str:
    """Return the page of one algorithm."""
    algo = algos.get(name)
    first, _, text = (algo.__doc__ or "").strip().partition("\n\n")
    title, lead = _title(name, " ".join(first.split()))
    of_text = algo.REGIME in algos.PROBLEMS["text"]
    parts = [
        f"# {title}",
        "<!-- Made by docs/make_algorithms.py: do not edit. -->",
        *([lead] if lead else []),
        f"`train.algo: {name}`. Paper: <{algo.PAPER}>. {_serves(algo)} "
        f"Its file: [src/evopipe/algos/{name}.py](../../src/evopipe/algos/{name}.py).",
        f"```python\nimport evopipe\n\nresult = evopipe.train({_params(name, algo)})\n```",
        text,
        *_curves(name),
        "## Hyper-parameters\n\nKeys of `algos."
        + name
        + "`."
        + ("" if of_text else f" The network's own keys are in [parameters.md](../parameters.md#algos{name}network)."),
        table([row for row in rows(algo.Config, f"algos.{name}") if not row.name.endswith(".evolve`")]),
        "## Networks\n\n"
        + (
            "Each is a small GPT: tokens in, so many numbers out for every one of them."
            if algo.REGIME == "games"
            else "The policy is the base with a member's own adapter."
            if of_text
            else "Each is observation → encoder → latent → head → output."
        ),
        _networks(algo),
        "## State\n\nEverything that learns, one row a member. All of it is checkpointed, cloned and mutated together.",
        _state(algo),
        "## What evolves",
        _evolution(algo, name),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _title(name: str, first: str) -> tuple[str, str]:
    """Return the title, which begins with the algorithm's name, and what else its first sentence says."""
    short, (head, _, rest) = SPELLED.get(name, name.upper()), first.rstrip(".").partition(": ")
    lead = f"{rest[0].upper()}{rest[1:]}." if rest else ""
    if head.lower().startswith(short.lower()):
        return head, lead
    word = head.partition(" ")[0]
    return f"{short}: {head if word == 'Kahneman-Tversky' else head[0].lower() + head[1:]}", lead


def _params(name: str, algo: algos.Algorithm) -> str:
    """Return parameters that an algorithm runs with, as they are written in Python."""
    kind = "games" if algo.REGIME == "games" else "text" if algo.REGIME in algos.PROBLEMS["text"] else algo.ACTIONS[0]
    params = SMALL["team" if algo.TEAM else kind]
    more = ', "mode": "offline"' if name in OFFLINE else ', "warm_start": 0' if algo.REGIME == "off_policy" else ""
    lines = [f"{_quoted(key)}: {_quoted(value)}" for key, value in params.items()]
    lines.append(f'"train": {{"algo": "{name}"{more}}}')
    return "\n    {\n" + "".join(f"        {line},\n" for line in lines) + "    }\n"


def _quoted(value: Any) -> str:
    """Return a value as it is written in Python, texts in double quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {_quoted(each)}" for key, each in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _serves(algo: algos.Algorithm) -> str:
    """Return what an algorithm learns from."""
    if algo.REGIME == "dialogue":
        return "It trains language models, by rewards for completions that they write."
    if algo.REGIME == "games":
        return "It trains small language models of its own, whole ones, on a dataset of games as tokens."
    if algo.REGIME == "text":
        what = "completions with a label" if algo.LABELS else "texts"
        what = "pairs of completions, one preferred" if algo.PAIRS else what
        return f"It trains language models, on a dataset of {what}."
    return f"Serves: {' and '.join(algo.ACTIONS)} actions, every [observation](../environments.md)."


def _curves(name: str) -> list[str]:
    """Return the section on learning curves, nothing where there is none yet."""
    ran = dict.fromkeys(row.pipeline for row in learning_curves.read(name))
    own = {pipeline: read_yaml(PIPELINES / pipeline / "params.yaml").data["train"]["algo"] for pipeline in ran}
    return [learning_curves.section(name, own)] if own else []


def _networks(algo: algos.Algorithm) -> str:
    of_text = algo.REGIME in algos.PROBLEMS["text"]
    continuous = not of_text and algo.ACTIONS[0] == "continuous"  # of an algorithm that serves both, its first
    letters = {
        OBSERVATIONS: "O (length of an observation)",
        ACTIONS: "A (dimensions of an action)" if continuous else "A (number of actions)",
        OBSERVATIONS + ACTIONS: "O + A",
        OBSERVATIONS * ACTIONS: "O · A, an arm's own input",
        2 * ACTIONS: "2 A",
        25: "25, quantiles",
        50 * ACTIONS: "50 A, quantiles of each action's return",
        51 * (ACTIONS + 1): "51 (A + 1), atoms of the advantages and of the value",
        HIDDEN: "H (width of the base's hidden states)",
        VOCABULARY: "V (tokens of the vocabulary)",
        2 * VOCABULARY + 1: "2 V + 1, two values of every token and one of the state",
    }
    lines = ["| Network | Input width | Output width | Acts |", "| --- | --- | --- | --- |"]
    known: Any = Words(VOCABULARY, HIDDEN) if of_text else Spaces(OBSERVATIONS, ACTIONS, continuous)
    for name, widths in algo.networks(algo.Config(), known).items():
        inputs, outputs = (letters.get(width, str(width)) for width in (widths.inputs, widths.outputs))
        lines.append(f"| `{name}` | {inputs} | {outputs} | {'yes' if name == algo.POLICY else 'no'} |")
    return "\n".join(lines)


def _state(algo: algos.Algorithm) -> str:
    lines = ["| Part | What it is |", "| --- | --- |"]
    for field in dataclasses.fields(algo.State):
        kind, network = field.metadata["kind"], "` and `".join(field.metadata["networks"])
        what = {
            "parameters": f"weights of `{network}`" + ("" if field.metadata.get("trainable") else ", not trained"),
            "scales": f"a scale for every weight of `{network}`"
            + ("" if field.metadata.get("trainable") else ", not trained"),
            "moments": f"Adam moments and step counts of `{network}`",
            "row": "a number for each member",
        }[kind]
        lines.append(f"| `{field.name}` | {what} |")
    return "\n".join(lines)


def _evolution(algo: algos.Algorithm, name: str) -> str:
    config: Any = algo.Config()
    fields = algo.Config.model_fields
    may = [n for n, f in fields.items() if isinstance(f.json_schema_extra, dict) and f.json_schema_extra["evolvable"]]
    lines = ["| Hyper-parameter | Evolves by default | Range | Grows by | Shrinks by |", f"|{' --- |' * 5}"]
    for hyper in may:
        how = config.evolve.get(hyper)
        cells = ("yes", f"{how.min:g} to {how.max:g}", how.grow, how.shrink) if how else ("no", "", "", "")
        lines.append(f"| `{hyper}` | {' | '.join(map(str, cells))} |")
    choices = ", ".join(MutationConfig().activations)
    others = (
        f"Architecture (layers, widths, latent) and activation (by default one of {choices}) evolve for all of a "
        f"member's networks alike. Parameter noise goes to `{algo.POLICY}` only."
    )
    if algo.REGIME == "games":
        others = "Layers, heads and feed-forward nodes may come and go for all of a member's networks alike, see "
        others += "`evolution.mutation.probabilities.architecture`."
    elif algo.REGIME in algos.PROBLEMS["text"]:
        others = "The rank of a member's adapter may grow, see `evolution.mutation.probabilities.rank`."
    return (
        f"Add a block to `algos.{name}.evolve` to let another hyper-parameter of this table evolve, remove one to hold "
        "it fixed. Every member has its own value.\n\n"
        + "\n".join(lines)
        + f"\n\n{others} See [evolution.md](../evolution.md)."
    )


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    names = algos.names(None)
    pages = {FOLDER / f"{name}.md": render(name) for name in names}
    code = publish(pages, "Write docs/algorithms/ from the algorithms' files.", arguments, "make_algorithms")
    for name in names:
        stale = learning_curves.stale(name)
        if stale and "--check" in (arguments if arguments is not None else sys.argv):
            print(
                *(f"{path}: stale, run `python docs/make_algorithms.py`" for path in stale), sep="\n", file=sys.stderr
            )
            code = 1
        elif stale:
            for path, content in learning_curves.pictures(name).items():
                path.write_bytes(content)
    return code


if __name__ == "__main__":
    sys.exit(main())
