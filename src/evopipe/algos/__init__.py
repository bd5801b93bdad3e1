"""The algorithms: one file each, discovered by name; a leading underscore marks what several have in common.

An algorithm is a module of this package that defines the names below. `REGIME` says what its members live on; each
regime asks for names of its own. Params validation, command-line help, contract tests, evolution ranges and checkpoints
follow from them; a missing one fails at import with a sentence. What is optional has a default.

A `State` has one row a member; hyper-parameters `hp`, `healthy` and losses are `[P]`. `loss` and `update` give each
transition's error `[P, B]` too, where there is one. An action is int64 `[P, E]`, or float32 `[P, E, A]` in [−1, 1],
which the environment stretches to its bounds; legal actions are bool `[P, E, A]`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from evopipe.errors import ParamsError, did_you_mean
from evopipe.types import Chosen, Learned, Spaces

REQUIRED = {
    "PAPER": "the paper's link",
    "REGIME": "what members live on: `off_policy`, transitions; `on_policy`, their last steps; `dialogue`, completions "
    "that they write; `text`, rows of a dataset; `games`, games as tokens",
    "POLICY": "the network that acts",
    "ACTIONS": "the kinds of action space served: `discrete`, `continuous`",
    "Config": "the pydantic schema of its block in params.yaml",
    "State": "the dataclass of everything that learns",
    "networks": "input and output width of every network",
    "init": "the state from fresh networks",
    "greedy": "the best actions",
    "loss": "each member's loss",
    "update": "one learning step",
}
REGIMES = {
    "off_policy": {
        "explore": "the exploration rate after so many environment steps of a member",
        "act": "actions while training, exploring",
    },
    "on_policy": {
        "step": "actions drawn from the policy or its best, with their log-probabilities, values and memory",
        "value": "values of observations",
        "schedule": "what hyper-parameters are multiplied by after so many steps",
    },
    "dialogue": {
        "asks": "what is to be known of completions before `estimate`: `reference`, `value`",
        "estimate": "the advantages of a rollout",
    },
    "text": {
        "asks": "what is to be known of rows before `loss`: `reference`, `value`, `end`: what is behind the last token",
        "fitness": "the score of held-out rows",
    },
    "games": {
        "logits": "what tokens are drawn by, from the outputs of the networks that write",
    },
}
OF_TEXT = ("dialogue", "text", "games")
"""Regimes of language models."""
OF_ENVIRONMENTS = ("ACTIONS", "greedy")
"""Names that an algorithm of no environment goes without."""
OPTIONAL: dict[str, Any] = {
    "values": None,  # (cfg, state, obs) → values of all actions, of which it takes the best
    "answers": None,  # (cfg) → `Answers`, what its policy can be asked; by default what follows from `values`
    "period": lambda cfg: getattr(cfg, "policy_delay", 1),  # of unlike updates; `turn` of `update` counts within it
    "learn": None,  # (cfg, state, hp, lessons, healthy) → `Learned` from all minibatches of a rollout, or None
    "COMPILED": False,  # whether the CPU's own kernels compute all that it learns, where networks are dense
    "OFFLINE_ONLY": False,  # whether it only makes sense on a dataset (`train.mode: offline`)
    "RECURRENT": False,  # whether it serves networks with a memory
    "TEAM": False,  # whether it is for teams of agents, see `Spaces.team`
    "ACTS_WITH": (),  # parts of the state that an exported policy needs beside its network
    "figures": None,  # (cfg, hp, now, text) → what else an evaluation tells of held-out rows, by name, `[P, n]` each
    "PAIRS": False,  # whether a minibatch of text is chosen rows, then as many rejected ones
    "MASKED_LOSS": False,  # whether its loss reads which actions are legal in `obs`, `Batch.legal`
}


MASKED = {
    mode: f"train.{key}: the environment masks actions, the dataset has no masks, and learning would bootstrap from "
    f"illegal actions; set it to {value}"
    for mode, key, value in (("online", "warm_start", "0"), ("offline", "mode", "online"))
}
"""What is wrong where a run of either mode learns from a dataset and its environment masks actions."""
ONE_AGENT = "train.warm_start: datasets are of one agent, the environment has a team; set it to 0"


class Answers(NamedTuple):
    """What a policy can be asked beside its action; None where it knows nothing of the kind."""

    value: Callable[..., Any] | None = None  # (cfg, state, obs, legal, memory) → V(s) `[P, B]`
    # (cfg, state, obs, action) → Q(s, a) `[P, B]`; of all actions `[P, B, A]` where action is None
    q_values: Callable[..., Any] | None = None
    # (cfg, state, obs, legal, memory) → the `ops.distributions.Distribution` of actions
    chances: Callable[..., Any] | None = None


class Algorithm(ModuleType):
    """A module of this package: it defines what `REQUIRED`, `REGIMES` and `OPTIONAL` name."""

    REGIME: str
    ACTIONS: tuple[str, ...]
    update: Callable[..., Learned]
    step: Callable[..., Chosen]
    answers: Callable[[Any], Answers] | None
    period: Callable[[Any], int]


@cache
def names(of_text: bool = False) -> tuple[str, ...]:
    """Return the names of all algorithms that serve environments, or of those that train language models, sorted."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return tuple(name for name in found if (regime_name(name) in OF_TEXT) == of_text)


def regime_name(name: str) -> str:
    """Return the regime that a file names. It is not imported: that takes a tenth of a second for all."""
    spec = find_spec(f"{__name__}.{name}")
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(r'^REGIME = "(\w+)"', text, re.MULTILINE)
    return found[1] if found else ""


def on_policy(algo: Algorithm) -> bool:
    """Whether an algorithm learns from what its members have just done, and from nothing else."""
    return algo.REGIME == "on_policy"


def unserved(name: str, spaces: Spaces, env_id: str, space: object) -> str | None:
    """Return what is wrong where an algorithm does not serve an environment's actions or agents; None where it does."""
    team, kind = spaces.team is not None, spaces.kind
    if team == get(name).TEAM and kind in get(name).ACTIONS:
        return None  # before all of them are imported
    able = [other for other in names() if team == get(other).TEAM and kind in get(other).ACTIONS]
    remedy = f"take {', '.join(able)}" if able else "none can yet"
    if team != get(name).TEAM:
        has, serves = ("a team of agents", "one agent") if team else ("one agent", "teams of agents")
        return f"train.algo: {name} serves {serves}, {env_id} has {has}; {remedy}"
    serves = " and ".join(get(name).ACTIONS)
    return f"train.algo: {name} serves {serves} actions, {env_id} has {kind} ones ({space}); {remedy}"


def misfit(name: str, cfg: Any, spaces: Spaces) -> tuple[str, str] | None:
    """Return what an algorithm cannot do with the network of its configuration: key and sentence; None if it can."""
    algo = get(name)
    if spaces.team is not None:
        try:
            spaces.team.groups(cfg.groups)
        except ValueError as error:
            return "groups", str(error)
    if cfg.network.encoder_kind == "lstm" and not algo.RECURRENT:
        able = [f"train.algo: {other}" for other in names() if get(other).RECURRENT and get(other).TEAM == algo.TEAM]
        remedy = "take mlp, simba or resnet" + (f", or {' or '.join(able)}" if able else "")
        return "network.encoder_kind", f"{name} keeps no memory between steps; {remedy}"
    if not cfg.network.head and any(widths.joins for widths in algo.networks(cfg, spaces).values()):
        return "network.head", (
            "with share_encoder the critics read the action behind the encoder, and need a hidden layer there; give at "
            "least one width"
        )
    return None


@cache
def get(name: str) -> Algorithm:
    """Return an algorithm. Raises ParamsError if there is none of that name; ImportError if its file lacks a name that
    an algorithm must define."""
    if name not in (known := names() + names(of_text=True)):
        raise ParamsError(
            f"train.algo: no algorithm {name!r}{did_you_mean(name, known)} (there are: {', '.join(known)})"
        )
    module: Any = importlib.import_module(f"{__name__}.{name}")
    regime = REGIMES.get(getattr(module, "REGIME", ""))
    if regime is None and hasattr(module, "REGIME"):
        raise ImportError(f"algos/{name}.py: REGIME is {module.REGIME!r}, there are {' and '.join(REGIMES)}")
    of_text = getattr(module, "REGIME", "") in OF_TEXT
    required = {name: what for name, what in REQUIRED.items() if not (of_text and name in OF_ENVIRONMENTS)}
    for needed, what in (required | (regime or {})).items():
        if not hasattr(module, needed):
            raise ImportError(f"algos/{name}.py does not define {needed!r} ({what}): every such algorithm must")
    for optional, default in OPTIONAL.items():
        if not hasattr(module, optional):
            setattr(module, optional, default)
    return cast("Algorithm", module)
