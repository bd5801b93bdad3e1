"""The algorithms: one file each, found by name. Files with a leading underscore hold what several have in common.

An algorithm is a module of this package, or one that another package names by an entry point of the group
`evopipe.algos`. It must define the names below. `REGIME` says what its members learn from, and each regime needs
further names. Validation of parameters, command-line help, contract tests, evolution ranges and checkpoints follow from
these names. A missing name fails at import with a sentence; optional names have defaults.

A `State` has one row a member; hyper-parameters `hp`, `healthy` and losses are `[P]`. `loss` and `update` also return
each transition's error `[P, B]`, if there is one. An action is int64 `[P, E]`, or float32 `[P, E, A]` in [−1, 1], which
the environment stretches to its bounds; legal actions are bool `[P, E, A]`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from evopipe import plugins
from evopipe.errors import ParamsError, did_you_mean
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Chosen, Learned, Spaces

REQUIRED = {
    "PAPER": "the paper's link",
    "REGIME": "what members live on: `off_policy`, transitions; `on_policy`, their last steps; `dialogue`, completions "
    "that they write; `text`, rows of a dataset; `games`, games as tokens",
    "POLICY": "the network that acts",
    "Config": "the pydantic schema of its block in params.yaml",
    "State": "the dataclass of everything that learns",
    "networks": "input and output width of every network",
    "init": "the state from fresh networks",
    "loss": "each member's loss",
    "update": "one learning step",
}
_ACTS = {
    "ACTIONS": "the kinds of action space served: `discrete`, `continuous`",
    "greedy": "the best actions",
}
REGIMES = {
    "off_policy": {
        **_ACTS,
        "explore": "the exploration rate after so many environment steps of a member",
        "act": "actions while training, exploring",
    },
    "on_policy": {
        **_ACTS,
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
_FIELDS = {
    "off_policy": ("batch_size", "learn_step", "network", "evolve"),
    "on_policy": (*"batch_size learn_step network evolve epochs gamma gae_lambda max_seq_len sequences".split(),),
}
"""What a regime reads of a `Config`; of language models `batch_size` and `evolve`."""
PROBLEMS = {"env": ("off_policy", "on_policy"), "text": ("dialogue", "text", "games")}
"""The regimes of each kind of problem: environments, and language models."""
OPTIONAL: dict[str, Any] = {
    "values": None,  # (cfg, state, obs) → values of all actions, of which it takes the best
    "answers": None,  # (cfg) → `Answers`, what its policy can be asked; by default what follows from `values`
    # How the CPU's own kernels act and learn (`native.ticks.Choice` and `native.update.Recipe`); None where torch must.
    "choice": None,  # (cfg, state) → how they choose as `act` does
    "recipe": None,  # (cfg, state, hp, batch) → how they make an update
    "signals": None,  # (cfg, state, batch) → what a minibatch tells beside what all algorithms do, by name, `[P]` each
    "period": lambda cfg: getattr(cfg, "policy_delay", 1),  # of unlike updates; `turn` of `update` counts within it
    "learn": None,  # (cfg, state, hp, lessons, healthy) → `Learned` from all minibatches of a rollout, or None
    "play": None,  # (cfg, state, ticks) → what lets members act in environments in C by `step`'s bits, or None
    "COMPILED": False,  # whether the CPU's own kernels compute all that it learns, where networks are dense
    "OFFLINE_ONLY": False,  # whether it only makes sense on a dataset (`train.mode: offline`)
    "RECURRENT": False,  # whether it serves networks with a memory
    "TEAM": False,  # whether it is for teams of agents, see `Spaces.team`
    "ACTS_WITH": (),  # parts of the state that an exported policy needs beside its network
    "figures": None,  # (cfg, hp, now, text) → what else an evaluation tells of held-out rows, by name, `[P, n]` each
    "PAIRS": False,  # whether a minibatch of text is chosen rows, then as many rejected ones
    "LABELS": False,  # whether it is rows, `reward` says which are desirable, then their prompts with others' texts
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
    """The functions by which an exported policy computes values and probabilities; None for one that it does not
    support.

    All take the algorithm's configuration `cfg` and state `state` first. The other arguments are, for P members with B
    observations each:

    - `obs` `[P, B, O]`: the observations.
    - `legal` `[P, B, A]`: which of A discrete actions are legal; None if all are.
    - `memory` `[P, B, M]`: the recurrent states before the observations.
    - `action`: the actions, `[P, B]` int64 if discrete, else `[P, B, A]`.

    Attributes:
        value: a function (cfg, state, obs, legal, memory) that returns the state values V(s), `[P, B]`.
        q_values: a function (cfg, state, obs, action) that returns the action values Q(s, a), `[P, B]`; `[P, B, A]` for
            all actions if `action` is None.
        chances: a function (cfg, state, obs, legal, memory) that returns the policy's distribution of actions, an
            `ops.distributions.Distribution`.
    """

    value: Callable[..., Any] | None = None
    q_values: Callable[..., Any] | None = None
    chances: Callable[..., Any] | None = None


class Algorithm(ModuleType):
    """The type of an algorithm's module, which defines the names in `REQUIRED`, `REGIMES` and `OPTIONAL`.

    Attributes:
        REGIME: the name of the regime, which says what members learn from, such as `off_policy`.
        ACTIONS: the kinds of action space that the algorithm supports.
        State: the class of the algorithm's state: networks, optimisers and counts.
        update: a function that makes one update of all members in place, and returns `Learned`: the losses, which
            members are healthy, and the errors for prioritised sampling.
        step: a function that chooses actions in training, and returns them as `Chosen`; only on-policy algorithms have
            it.
        answers: a function of the configuration that returns the `Answers`, by which an exported policy computes
            values. If it is None, and the module has a function `values`, the `Answers` are derived from that function.
        period: a function of the configuration that returns after how many updates the same kinds of update repeat.
            This is 1 if all updates are of one kind, and 2 if, for example, the actor learns in every second update.
    """

    REGIME: str
    ACTIONS: tuple[str, ...]
    State: type[Any]
    update: Callable[..., Learned]
    step: Callable[..., Chosen]
    answers: Callable[[Any], Answers] | None
    period: Callable[[Any], int]


@cache
def names(kind: str | None = "env") -> tuple[str, ...]:
    """Return the sorted names of evopipe's own algorithms, followed by those of other packages.

    If another package's algorithm does not have a known regime (training loop), it counts as one for environments.
    `get` then reports what is wrong with it.

    Args:
        kind: the kind of problem: `env` for environments, `text` for language models; None for all algorithms.
    """
    if kind is None:
        return tuple(name for each in PROBLEMS for name in names(each))
    regimes = {name: regime_name(name) for name in (*_own(), *plugins.names(plugins.ALGOS, _own()))}
    return tuple(name for name, regime in regimes.items() if (regime in PROBLEMS["text"]) == (kind == "text"))


@cache
def _own() -> tuple[str, ...]:
    """Names of the modules of this package."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")))


def plugin(name: str) -> plugins.Plugin | None:
    """Return the entry point of an algorithm that another package defines; None for evopipe's own algorithms.

    Raises:
        ParamsError: two packages offer the name, or one offers a name of evopipe's own.
    """
    return plugins.find(plugins.ALGOS, name, "train.algo", _own())


def working(kind: str | None = "env") -> list[str]:
    """Return the names of the algorithms that can be used.

    The result has the names that `names` returns for this kind of problem, except other packages' algorithms that
    `refused` rejects.
    """
    return [name for name in names(kind) if refused(name) is None]


def refused(name: str) -> str | None:
    """Return why an algorithm of another package cannot be used, as the end of a sentence about `train.algo`.

    The result is None if the algorithm can be used, as evopipe's own algorithms always can.
    """
    try:
        get(name)
    except ParamsError as error:
        return str(error).removeprefix("train.algo: ")
    return None


def by_kernels(algo: Algorithm, name: str) -> Callable[..., Any] | None:
    """Return the algorithm's function that describes a part of its work to the C kernels; None if there is none.

    For an algorithm of another package, the result is always None. The package may have copied the function from an
    algorithm of evopipe, although its algorithm computes something else.

    Args:
        algo: the algorithm.
        name: the function's name: `choice`, `recipe` or `play`. `choice` takes (cfg, state) and returns a `Choice`.
            `recipe` takes (cfg, state, hp, batch) and returns a `Recipe`. `play` takes (cfg, state, ticks) and returns
            a function without arguments that lets members act, see `native.rollouts.play`. Each of the three returns
            None if the kernels cannot do the work.
    """
    own = getattr(algo, "__name__", "").startswith(f"{__name__}.")
    found: Callable[..., Any] | None = getattr(algo, name) if own else None
    return found


def regime_name(name: str) -> str:
    """Return the regime that an algorithm's file names, without importing the file; empty if it names none.

    The regime says what members learn from, such as `off_policy`. Importing all algorithms would take a tenth of a
    second.
    """
    if name in _own():
        spec = find_spec(f"{__name__}.{name}")
        file = Path(spec.origin) if spec and spec.origin else None
    else:
        outside = plugins.offered(plugins.ALGOS, name)
        file = outside.file() if outside else None
    text = file.read_text(encoding="utf-8", errors="replace") if file else ""
    found = re.search(r'^REGIME = "(\w+)"', text, re.MULTILINE)
    return found[1] if found else ""


def on_policy(algo: Algorithm) -> bool:
    """Return whether an algorithm is on-policy: it learns only from the members' latest rollouts."""
    return algo.REGIME == "on_policy"


def unserved(name: str, spaces: Spaces, env_id: str, space: object) -> str | None:
    """Return why an algorithm does not support an environment's actions or team, as a sentence; None if it does.

    Args:
        name: the algorithm's name.
        spaces: the environment's spaces, which are checked.
        env_id: the environment's id, which the sentence shows.
        space: the environment's action space, which is not checked; the sentence only shows it.
    """
    team, kind = spaces.team is not None, spaces.kind
    if team == get(name).TEAM and kind in get(name).ACTIONS:
        return None  # before all of them are imported
    able = [other for other in working() if team == get(other).TEAM and kind in get(other).ACTIONS]
    remedy = f"take {', '.join(able)}" if able else "none can yet"
    if team != get(name).TEAM:
        has, serves = ("a team of agents", "one agent") if team else ("one agent", "teams of agents")
        return f"train.algo: {name} serves {serves}, {env_id} has {has}; {remedy}"
    serves = " and ".join(get(name).ACTIONS)
    return f"train.algo: {name} serves {serves} actions, {env_id} has {kind} ones ({space}); {remedy}"


def misfit(name: str, cfg: Any, spaces: Spaces) -> tuple[str, str] | None:
    """Return why an algorithm cannot use its configured network, as a pair (key of the parameter, sentence); None if it
    can.

    Args:
        name: the algorithm's name.
        cfg: its configuration.
        spaces: the environment's spaces.
    """
    algo = get(name)
    if spaces.team is not None:
        try:
            spaces.team.groups(cfg.groups)
        except ValueError as error:
            return "groups", str(error)
    if cfg.network.module is not None:
        return _misfit_of_a_module(name, cfg, spaces)
    if cfg.network.encoder_kind == "lstm" and not algo.RECURRENT:
        able = [f"train.algo: {other}" for other in working() if get(other).RECURRENT and get(other).TEAM == algo.TEAM]
        remedy = "take mlp, simba or resnet" + (f", or {' or '.join(able)}" if able else "")
        return "network.encoder_kind", f"{name} keeps no memory between steps; {remedy}"
    if cfg.network.encoder_kind != "mlp" and any(widths.renorm for widths in algo.networks(cfg, spaces).values()):
        return "network.encoder_kind", f"{name} renormalises what plain layers of its critics read; take mlp"
    if not cfg.network.head and any(widths.joins for widths in algo.networks(cfg, spaces).values()):
        return "network.head", (
            "with share_encoder the critics read the action behind the encoder, and need a hidden layer there; give at "
            "least one width"
        )
    return None


def _misfit_of_a_module(name: str, cfg: Any, spaces: Spaces) -> tuple[str, str] | None:
    """See `misfit`, of a network that is a module of the user's own."""
    algo = get(name)
    if algo.TEAM:
        return "network.module", f"{name} holds a network for each group of a team, and serves evopipe's own alone"
    if any(each.metadata.get("kind") == "scales" for each in fields(algo.State)):
        return "network.module", f"{name} puts noise on single layers, and serves evopipe's own alone"
    if any(widths.renorm for widths in algo.networks(cfg, spaces).values()):
        return "network.module", f"{name} renormalises what single layers read, and serves evopipe's own alone"
    if any(widths.role != "whole" for widths in algo.networks(cfg, spaces).values()):
        return "share_encoder", "a module of one's own is not cut into encoder and heads; set it to false"
    return None


@cache
def get(name: str) -> Algorithm:
    """Return the module of an algorithm by the algorithm's name.

    Raises:
        ParamsError: there is no algorithm of that name, or an algorithm of another package cannot be used: its import
            fails, it lacks a required name, or its `Config` is wrong.
        ImportError: an algorithm of evopipe's own lacks a required name.
    """
    if name not in (known := names(None)):
        raise ParamsError(
            f"train.algo: no algorithm {name!r}{did_you_mean(name, known)} (there are: {', '.join(known)})"
        )
    outside = plugin(name)
    if outside is None:
        module: Any = importlib.import_module(f"{__name__}.{name}")
        wrong = _lacks(module)
        if wrong is not None:
            raise ImportError(f"algos/{name}.py{wrong}")
    else:
        module = outside.load("train.algo")
        if not isinstance(module, ModuleType):
            raise ParamsError(f"train.algo: {outside} names no module but a {type(module).__name__}: mend its metadata")
        if (wrong := _lacks(module)) is not None:
            raise ParamsError(f"train.algo: {outside}{wrong}; mend or uninstall it")
        if (wrong := _unfit(module)) is not None:
            raise ParamsError(f"train.algo: {outside}: Config {wrong}; mend or uninstall it")
    for optional, default in OPTIONAL.items():
        if not hasattr(module, optional):
            setattr(module, optional, default)
    return cast("Algorithm", module)


def _lacks(module: ModuleType) -> str | None:
    """Return what of `REQUIRED` and `REGIMES` a module lacks, or has otherwise, to be put behind its name."""
    named = getattr(module, "REGIME", "")
    regime = REGIMES.get(named) if isinstance(named, str) else None
    if regime is None and hasattr(module, "REGIME"):
        return f": REGIME is {named!r}, there are {' and '.join(REGIMES)}"
    for needed, what in (REQUIRED | (regime or {})).items():
        if not hasattr(module, needed):
            return f" does not define {needed!r} ({what}): every such algorithm must"
    return None


def _unfit(module: Any) -> str | None:
    """Return what is wrong with the `Config` of another package's algorithm."""
    config = module.Config
    if not (isinstance(config, type) and issubclass(config, AlgoConfig)):
        return "is no subclass of evopipe.schema.declare.AlgoConfig"
    lacking = set(_FIELDS.get(module.REGIME, ("batch_size", "evolve"))) - config.model_fields.keys()
    if lacking:
        return f"lacks {', '.join(sorted(lacking))}, which every run of {module.REGIME!r} reads"
    undeclared = [name for name, field in config.model_fields.items() if field.is_required()]
    return f"gives {undeclared[0]} no default" if undeclared else None
