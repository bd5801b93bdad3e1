"""The training functions of scripts: their arguments become `Params`, and the population's own run does the rest."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evopipe.algos import get, on_policy
from evopipe.data.transitions import Transitions
from evopipe.envs.make import opened
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError, suggestion, translate_failures
from evopipe.face.agent import Agent
from evopipe.face.breed import params_of
from evopipe.face.given import config_of
from evopipe.face.outcome import checkpoints, conduct, entering, save_policy, views
from evopipe.face.population import one_process
from evopipe.face.settings import algorithm_of, block_of
from evopipe.machine import configure
from evopipe.run.drive import begin
from evopipe.run.learners import learner_count
from evopipe.schema.params import Params
from evopipe.stages.setup import about_spec, make_spec

Trained = tuple[list[Agent], list[list[float]]]


class Call(SimpleNamespace):
    """What a training function is given, by its names there; `train` and `block` say more of those blocks."""

    @classmethod
    def of(cls, function: str, given: Mapping[str, Any]) -> Call:
        """Return the call of a training function with these arguments. Raises UsageError if one would be without
        effect, or the algorithm is for another function."""
        call = cls(**{"wandb_kwargs": None, **given}, train={}, block={})
        call.check()
        algo = get(call.name)
        fits = f"train_{'multi_agent_' * algo.TEAM}{'on' if on_policy(algo) else 'off'}_policy"
        if function != fits and (function, fits) != ("train_offline", "train_off_policy"):
            raise UsageError(f"{function}: {call.name} is not for it: call {fits}")
        return call

    @property
    def name(self) -> str:
        return str(self.pop[0].algo)

    def check(self) -> None:
        """Refuse what would be without effect."""
        if not self.pop or not all(isinstance(agent, Agent) for agent in self.pop):
            raise UsageError("pop: give agents, as create_population makes them")
        if len({agent.breed.algo for agent in self.pop}) > 1:
            raise UsageError("pop: its agents are of unlike algorithms")
        for what, given in (
            ("algo", self.algo),
            ("mutation.algo", None if self.mutation is None else self.mutation.algo),
        ):
            if given is not None and algorithm_of(given) != self.name:
                raise UsageError(f"{what}: it says {given}, and the population is one of {self.name}")
        pairs = (
            ("checkpoint_path", self.checkpoint_path is not None, "checkpoint", self.checkpoint is not None),
            ("overwrite_checkpoints", self.overwrite_checkpoints, "checkpoint", self.checkpoint is not None),
            ("elite_path", self.elite_path is not None, "save_elite", self.save_elite),
            ("wandb_api_key", self.wandb_api_key is not None, "wb", self.wb),
            ("wandb_kwargs", bool(self.wandb_kwargs), "wb", self.wb),
        )
        for what, told, needs, there in pairs:
            if told and not there:
                raise UsageError(f"{what}: it would be without effect: give {needs} too")
        one_process(self.accelerator)
        if self.tournament is not None:
            self.tournament.check(len(self.pop))
        self._check_dictionaries()

    def _check_dictionaries(self) -> None:
        """Refuse dictionaries that say otherwise than the objects that were made of them."""
        config = self.pop[0].breed.params.algo_config
        hp = {key: value for key, value in (self.INIT_HP or {}).items() if key not in ("RECURRENT", "SHARE_ENCODERS")}
        for key in hp:
            said = block_of(self.name, {key: hp[key]}, {}, None)
            said.pop("network")
            rates = key == "LR" and {"LR_ACTOR", "LR_CRITIC"} & hp.keys()
            for own, value in {} if rates else said.items():
                if getattr(config, own) != value:
                    raise UsageError(
                        f"INIT_HP: {key} is {hp[key]!r}, and the population was created with {getattr(config, own)!r}: "
                        "give it to create_population"
                    )
        if self.MUT_P and self.mutation is None:
            raise UsageError("MUT_P: it would be without effect: give mutation, made of it")
        if self.mutation is None:
            return
        chances, made = self.mutation.config.probabilities, self.mutation.config
        known = {"NO_MUT": chances.none, "ARCH_MUT": chances.architecture, "PARAMS_MUT": chances.parameters,
                 "ACT_MUT": chances.activation, "RL_HP_MUT": chances.rl_hp, "NEW_LAYER": made.new_layer_prob,
                 "MUT_SD": made.sd, "RAND_SEED": self.mutation.rand_seed, "RL_HP_SELECTION": self.mutation.selection,
                 **{f"{which}_{name.upper()}": end for name, ends in self.mutation.ends.items()
                    for which, end in zip(("MIN", "MAX"), ends, strict=True)}}  # fmt: skip
        for key, value in (self.MUT_P or {}).items():
            if key not in known:
                raise UsageError(f"MUT_P: nobody reads {key!r}{suggestion(key, known)}")
            if known[key] != value:
                raise UsageError(f"MUT_P: {key} is {value!r}, and mutation was made with {known[key]!r}")

    def params(self) -> Params:
        """Return the run as `params.yaml` would have it."""
        breed, env = self.pop[0].breed, config_of(self.env)
        block = breed.params.algo_config.model_dump() | self.block
        evolution: dict[str, Any] = {"tournament": {"size": 0, "elitism": False}}
        if self.tournament is not None:
            evolution["tournament"] = self.tournament.config.model_dump()
        if self.mutation is None:
            kinds = "architecture", "parameters", "activation", "rl_hp"
            evolution["mutation"] = {"probabilities": {"none": 1.0, **dict.fromkeys(kinds, 0.0)}}
        else:
            evolution["mutation"] = self.mutation.config.model_dump()
            block["evolve"] = {
                name: each.model_dump()
                for name, each in self.mutation.ranges(self.name, breed.spec.traits.evolve).items()
            }
        # Nobody asks how good the best is where no target ends the run and it is not written: evolution does not.
        asked = self.target is not None or self.save_elite or self.wb
        confirm = {} if asked else {"confirm_episodes": 2}
        seed = None if self.mutation is None else self.mutation.rand_seed
        return params_of(
            {
                "seed": breed.params.seed if seed is None else seed,
                "env": env.model_dump(),
                "population": {"size": len(self.pop)},
                "train": {
                    "algo": self.name, "max_steps": self.max_steps, "evo_steps": self.evo_steps, "warm_start": 0,
                    "learning_delay": 0, "eval_episodes": self.eval_loop * env.num_envs, "eval_steps": self.eval_steps,
                    "target": None if self.target is None else float(self.target), **confirm, **self.train,
                },
                "evolution": evolution,
                "runtime": {"device": breed.params.runtime.device},
                "tracking": {"backends": ["wandb"] if self.wb else [], **self._tracked()},
                "algos": {self.name: block},
            }
        )  # fmt: skip

    def _tracked(self) -> dict[str, Any]:
        given = dict(self.wandb_kwargs or {})
        project = given.pop("project", self.env_name)
        if given:
            raise UsageError(
                f"wandb_kwargs: evopipe does not hand {', '.join(sorted(given))} on: it knows project; set the others "
                "in the environment, as WANDB_ENTITY or WANDB_MODE"
            )
        return {"experiment": project} if self.wb and project else {}

    def run(
        self, warm: Transitions | None = None, collect: Any = None, adopt: Callable[[Any], None] | None = None
    ) -> Trained:
        """Train, from the agents on; `adopt` is given the regime when all is done."""
        params = self.params()
        spec = make_spec(params, configure(params.runtime))
        if spec.spaces != self.pop[0].breed.spec.spaces:
            raise UsageError(
                f"env: it shows and takes other things than the population was created for ({spec.spaces.to_json()}, "
                f"not {self.pop[0].breed.spec.spaces.to_json()}): create it with env.single_observation_space and "
                "env.single_action_space"
            )
        with opened(params.env) as env:
            spaces = env.observation_space, env.action_space
        if spec.spaces.team is not None:
            spaces = dict(spaces[0]), dict(spaces[1])  # type: ignore[call-overload]
        breed = self.pop[0].breed.told(params, spec, spaces)
        members, births = entering(self.pop, params.seed), [agent.mutation for agent in self.pop]
        about = {**about_spec(spec), "policy": breed.about}
        learners = learner_count(params.runtime.learners, params.runtime.threads)
        with (
            tempfile.TemporaryDirectory(prefix="evopipe-") as scratch,
            translate_failures(),
            Workers(params.runtime.env_workers, learners) as workers,
        ):
            made = begin(spec, members, warm, births, workers, learners, collect)
            agents = partial(views, made, Agent, breed, self.pop)
            path = self.checkpoint_path or f"{self.file}-checkpoint"
            save = checkpoints(made, agents, self.checkpoint, path, self.overwrite_checkpoints)
            try:
                champion = conduct(made, params, about, Path(scratch), lambda _: save(), not self.verbose,
                                   self.wandb_api_key)  # fmt: skip
                if adopt is not None:
                    adopt(made.regime)
                trained = agents()
                if self.save_elite:
                    save_policy(Path(self.elite_path or f"{self.file}-elite"), breed, champion)
                fitnesses = [[scored.fitness for scored in record.members] for record in made.lineage[1:]]
            finally:
                made.close()
        return trained, fitnesses

    @property
    def file(self) -> str:
        """How files of this training begin where nothing else is said."""
        return f"{self.env_name or 'env'}-{self.name}".replace("/", "_").replace(":", "_")


def epsilon_of(algo: str, config: Any, envs: int, start: float, end: float, decay: float) -> dict[str, Any]:
    """Return ε as an algorithm's block has it: multiplied by `decay` at every step of the vector, down to `end`. Raises
    UsageError if it is out of bounds, or the algorithm explores otherwise, and it is not the default."""
    if not 0.0 <= end <= start <= 1.0 or not 0.0 < decay <= 1.0:
        raise UsageError(
            f"eps_start, eps_end, eps_decay: 0 ≤ end ≤ start ≤ 1 and 0 < decay ≤ 1, got {start}, {end}, {decay}"
        )
    if not hasattr(config, "eps_schedule"):
        if (start, end, decay) != (1.0, 0.1, 0.995):
            raise UsageError(f"eps_start, eps_end, eps_decay: {algo} explores by noise of its own, and has no ε")
        return {}
    if decay == 1.0 or start <= end:
        return {"eps_start": start, "eps_end": start, "eps_schedule": "exponential", "eps_steps": 1}
    steps = max(1, round(envs * math.log(max(end, 1e-8) / max(start, 1e-8)) / math.log(decay)))
    return {"eps_start": float(start), "eps_end": float(end), "eps_schedule": "exponential", "eps_steps": steps}


def own_function(collect_rollouts_fn: Any) -> Any:
    """Return a caller's way to collect rollouts; None where it is the one that there is. Raises UsageError if it takes
    an agent and an environment, and all members are stepped together."""
    from evopipe.face.rollouts import collect_rollouts, collect_rollouts_recurrent

    if collect_rollouts_fn in (None, collect_rollouts, collect_rollouts_recurrent):
        return None
    needed = [
        each for each in inspect.signature(collect_rollouts_fn).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if len(needed) != 2:
        raise UsageError(
            "collect_rollouts_fn: all members are stepped together here: give a function of (regime, ticks) that calls "
            "regime.choose(), regime.pool.step(...) and regime.record(step) so many times, see docs/python.md"
        )
    return collect_rollouts_fn
