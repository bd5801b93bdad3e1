"""The training functions of scripts: their arguments become `Params`, and the population's own run does the rest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from evopipe import policy, rng
from evopipe.algos import get, on_policy
from evopipe.core.member import Member
from evopipe.data.transitions import Transitions
from evopipe.envs.make import opened
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError, need_package, suggestion
from evopipe.face.agent import Agent
from evopipe.face.breed import Breed, params_of
from evopipe.face.evolution import Mutations, TournamentSelection, unmutated
from evopipe.face.given import config_of
from evopipe.face.population import one_process
from evopipe.face.settings import algorithm_of, block_of
from evopipe.keys import content_key, state_folder
from evopipe.machine import configure
from evopipe.problems.env import problem_with
from evopipe.problems.specs import make_spec
from evopipe.run.learners import learner_count
from evopipe.run.problem import Problem
from evopipe.run.run import Champion, Run
from evopipe.run.session import Home, Session
from evopipe.run.spec import JobT
from evopipe.schema.params import AnyParams, Params
from evopipe.track.events import Tracker

Trained = tuple[list[Agent], list[list[float]]]


def _checkpoints(
    run: Run[Any], agents: Callable[[], Sequence[Any]], every: int | None, path: str, overwrite: bool
) -> Callable[[], None]:
    """Return what writes every agent, as `agents` returns them, after the generation in which each `every` environment
    steps of a member were taken, None for never: to the folder `path_INDEX_STEPS`, or `path_INDEX` with `overwrite`."""
    saved = generation = 0

    def save() -> None:
        nonlocal saved, generation
        clock = run.clock
        if every is not None and clock.generation > generation:
            generation = clock.generation
            if clock.step // every > saved:
                saved = clock.step // every
                for agent in agents():
                    agent.save_checkpoint(f"{path}_{agent.index}{'' if overwrite else f'_{clock.step}'}")

    return save


def _save_policy(folder: Path, breed: Breed, champion: Champion) -> None:
    """Write the elite as `evopipe.load` reads it, critic included. Raises DiskError if it cannot be written."""
    told = {"score": champion.score, "standard_error": champion.error, "confirmed": champion.confirmed,
            "generation": champion.generation}  # fmt: skip
    about = json.loads(json.dumps({**breed.about, "hyper": dict(champion.member.hyper), "training": told}))
    card = (
        f"# {breed.algo} in {breed.params.env.id}\n\nThe elite of a training by evopipe, best of generation "
        f"{champion.generation}: mean return {champion.score:.4g} (standard error {champion.error:.2g}).\n\n"
        f"```python\nimport evopipe\n\npolicy = evopipe.load({str(folder)!r})\n```\n"
    )
    policy.save(folder, breed.algo, champion.member, about, program=False, card=card, critic=True)


def entering(agents: Sequence[Any], seed: int) -> list[Member]:
    """Return agents' members as a run with this seed begins with them: in the order given, with its own draws."""
    keys, members = rng.member_keys(seed, range(len(agents))), [agent.member for agent in agents]
    ids = [member.id for member in members]
    if len({*ids}) < len(ids):
        ids = [*range(len(ids))]
    return [replace(member, slot=slot, id=ids[slot], key=int(keys[slot])) for slot, member in enumerate(members)]


def views(run: Run[Any], view: Callable[..., Any], breed: Any, before: Sequence[Any], each: int = 1) -> list[Any]:
    """Return agents, by a class of theirs, of a run's members as they are; `each` is what they count for a step."""
    found = [view(breed, member, birth) for member, birth in zip(run.members, run.births, strict=True)]
    for agent in found:
        agent.steps = [before[agent.index].steps[-1] + run.clock.step * each]
    return found


@contextlib.contextmanager
def conducted(
    problem: Problem[JobT], agents: Sequence[Any], params: AnyParams, quiet: bool, key: str | None,
    name: str | None = None,
) -> Iterator[Session[JobT]]:  # fmt: skip
    """Give the session of a script, whose checkpoints and, if no tracker is asked for, log are gone with it. `key` is
    of Weights & Biases, `name` what people read there. Raises MissingInputError if that is asked for and not installed,
    and what `run.session.Session` raises."""
    members = entering(agents, params.seed)
    with tempfile.TemporaryDirectory(prefix="evopipe-") as scratch:
        state = Path(scratch)
        if params.tracking.backends:
            need_package("wandb", "wandb", "wb=True")
            if key is not None:
                os.environ["WANDB_API_KEY"] = key
            begun = hashlib.sha256()
            for member in members:
                for part in sorted(member.tensors):
                    begun.update(member.tensors[part].numpy().tobytes())
            state = state_folder("train", content_key({**params.tracked(), "members": begun.hexdigest()}), Path())
        home = Home(Path(scratch), state, math.inf, checkpoints=Path(scratch) / "checkpoints", project=Path())
        births = [agent.mutation for agent in agents]
        with Session.opened(problem, members, births, params, home, quiet, name) as session:
            yield session


def conduct(session: Session[Any], between: Callable[[Tracker], None]) -> Champion:
    """Train to the end, bring it to the trackers that are asked for, and return the champion; `between` is called
    between two steps, and at the end. For errors see `Session.train`."""
    champion = session.train(between)
    between(session.tracker)
    if session.params.tracking.backends:
        session.write(champion)
        session.end()
    return champion


@dataclass
class Call:
    """What every training function is given, by its names there; `train` and `block` say more of those blocks."""

    env: Any
    env_name: str
    algo: str | None
    pop: Sequence[Agent]
    INIT_HP: Mapping[str, Any] | None
    MUT_P: Mapping[str, Any] | None
    max_steps: int
    evo_steps: int
    eval_steps: int | None
    eval_loop: int
    target: float | None
    tournament: TournamentSelection | None
    mutation: Mutations | None
    checkpoint: int | None
    checkpoint_path: str | None
    overwrite_checkpoints: bool
    save_elite: bool
    elite_path: str | None
    wb: bool
    verbose: bool
    accelerator: Any
    wandb_api_key: str | None
    wandb_kwargs: Mapping[str, Any] | None = None
    train: dict[str, Any] = field(default_factory=dict)
    block: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, function: str, given: Mapping[str, Any]) -> Call:
        """Return the call of a training function, of its arguments by name. Raises UsageError if one would be without
        effect, or the algorithm is for another function."""
        call = cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})
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
        tournament, mutation = self.tournament or TournamentSelection(0, False), self.mutation or unmutated()
        block["evolve"] = mutation.evolve(self.name, breed.spec.traits.evolve)
        # Nobody asks how good the best is where no target ends the run and it is not written: evolution does not.
        asked = self.target is not None or self.save_elite or self.wb
        confirm = {} if asked else {"confirm_episodes": 2}
        return params_of(
            {
                "seed": breed.params.seed if mutation.rand_seed is None else mutation.rand_seed,
                "env": env.model_dump(),
                "population": {"size": len(self.pop)},
                "train": {
                    "algo": self.name, "max_steps": self.max_steps, "evo_steps": self.evo_steps, "warm_start": 0,
                    "learning_delay": 0, "eval_episodes": self.eval_loop * env.num_envs, "eval_steps": self.eval_steps,
                    "target": None if self.target is None else float(self.target), **confirm, **self.train,
                },
                "evolution": {"tournament": tournament.config.model_dump(), "mutation": mutation.config.model_dump()},
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
        learners = learner_count(params.runtime.learners, params.runtime.threads, spec.environments_first)
        workers = Workers(params.runtime.env_workers, learners)
        problem = problem_with(spec, warm, workers, learners, collect, breed.about)
        with conducted(problem, self.pop, params, not self.verbose, self.wandb_api_key) as session:
            made = session.run
            agents = partial(views, made, Agent, breed, self.pop)
            path = self.checkpoint_path or f"{self.file}-checkpoint"
            save = _checkpoints(made, agents, self.checkpoint, path, self.overwrite_checkpoints)
            champion = conduct(session, lambda _: save())
            if adopt is not None:
                adopt(made.regime)
            trained = agents()
            if self.save_elite:
                _save_policy(Path(self.elite_path or f"{self.file}-elite"), breed, champion)
            fitnesses = [[scored.fitness for scored in record.members] for record in made.lineage[1:]]
        return trained, fitnesses

    @property
    def file(self) -> str:
        """How files of this training begin where nothing else is said."""
        return f"{self.env_name or 'env'}-{self.name}".replace("/", "_").replace(":", "_")
