"""Code that the training functions share: it converts their arguments to `Params`, and runs a training."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from evopipe import rng
from evopipe.algos import get, on_policy
from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.breed import Breed, one_process, params_of
from evopipe.compat.agilerl.environments import config_of
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection, unmutated
from evopipe.compat.agilerl.settings import algorithm_of, block_of
from evopipe.core.member import Member
from evopipe.data.transitions import Transitions
from evopipe.envs.make import opened
from evopipe.envs.workers import Workers
from evopipe.errors import UsageError, need_package, suggestion
from evopipe.formats import score
from evopipe.machine import configure
from evopipe.params.load import AnyParams, Params
from evopipe.policies import policy
from evopipe.problems.env import problem_with
from evopipe.problems.specs import make_spec
from evopipe.regimes.learners import learner_count
from evopipe.run.problem import Problem
from evopipe.run.run import Champion, Run
from evopipe.run.session import Home, Session
from evopipe.run.spec import JobT
from evopipe.storage.keys import content_key, state_folder
from evopipe.track.events import Tracker
from evopipe.track.tracking import Tracked

Trained = tuple[list[Agent], list[list[float]]]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def newer_spellings(function: FunctionT) -> FunctionT:
    """Return a training function that also accepts the names `init_hp` and `mut_p` for its arguments `INIT_HP` and
    `MUT_P`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in ("init_hp", "mut_p"):
            if name in kwargs:
                kwargs[name.upper()] = kwargs.pop(name)
        return function(*args, **kwargs)

    return cast("FunctionT", call)


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
    training = {"score": champion.score, "standard_error": champion.error, "confirmed": champion.confirmed,
            "generation": champion.generation}  # fmt: skip
    about = json.loads(json.dumps({**breed.about, "hyper": dict(champion.member.hyper), "training": training}))
    card = (
        f"# {breed.algo} in {breed.params.env.id}\n\nThe elite of a training by evopipe, best of generation "
        f"{champion.generation}: mean return {score(champion.score)} (standard error {score(champion.error)}).\n\n"
        f"```python\nimport evopipe\n\npolicy = evopipe.load({str(folder)!r})\n```\n"
    )
    policy.save(folder, breed.algo, champion.member, about, program=False, card=card, critic=True)


def entering(agents: Sequence[Any], seed: int) -> list[Member]:
    """Return the agents' members, prepared as the first members of a run.

    A member's slot is its place in `agents`, and its random key follows from `seed` and its slot. If no two members
    have the same id, all keep their ids. Otherwise every member's id becomes its slot.
    """
    keys, members = rng.member_keys(seed, range(len(agents))), [agent.member for agent in agents]
    ids = [member.id for member in members]
    if len({*ids}) < len(ids):
        ids = [*range(len(ids))]
    return [replace(member, slot=slot, id=ids[slot], key=int(keys[slot])) for slot, member in enumerate(members)]


def views(run: Run[Any], view: Callable[..., Any], breed: Any, before: Sequence[Any], each: int = 1) -> list[Any]:
    """Return an agent for each current member of a run.

    Args:
        run: the run, whose members and clock are read.
        view: the function or class that makes an agent from (breed, member, mutation).
        breed: what all agents share, a `Breed` or `LanguageBreed`.
        before: the agents before the run, by index. An agent's count of steps continues from the agent with the same
            index.
        each: the factor by which the steps of the run are multiplied before they are added to an agent's count.
    """
    found = [view(breed, member, birth) for member, birth in zip(run.members, run.births, strict=True)]
    for agent in found:
        agent.steps = [before[agent.index].steps[-1] + run.clock.step * each]
    return found


@contextlib.contextmanager
def conducted(
    problem: Problem[JobT], agents: Sequence[Any], params: AnyParams, quiet: bool, key: str | None,
    name: str | None = None,
) -> Iterator[Session[JobT]]:  # fmt: skip
    """Open the session of a training that a script started, for a `with` block.

    At the end of the block the training's checkpoints are removed. If no tracker is used, its log is removed too.

    Args:
        problem: the problem that the agents train on.
        agents: the agents.
        params: the parameters.
        quiet: whether no progress is printed.
        key: the API key of Weights & Biases; None if it is not needed.
        name: the run's name in Weights & Biases.

    Raises:
        MissingInputError: Weights & Biases is used and not installed. For other errors see `run.session.Session`.
    """
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
        tracked = Tracked(params.tracking, params.model_dump(mode="json"))
        with Session.opened(problem, members, births, tracked, home, quiet, name) as session:
            yield session


def conduct(session: Session[Any], between: Callable[[Tracker], None]) -> Champion:
    """Train to the end, deliver the results to the trackers, and return the champion, the best member of all
    generations.

    Args:
        session: the session of the training.
        between: a function that is called with the tracker after each step, and once more at the end.

    Raises:
        DivergedError, EnvironmentFailed, Interrupted: see `run.session.Session.train`.
    """
    champion = session.train(between)
    between(session.tracker)
    if session.trackers.backends:
        session.write(champion)
        session.end()
    return champion


# Arguments that have no effect without another one, and which that may be.
_NEEDS = {
    "checkpoint_path": ("checkpoint",), "overwrite_checkpoints": ("checkpoint",),
    "elite_path": ("save_elite", "checkpoint_steps"),
    **dict.fromkeys(("wandb_api_key", "wandb_kwargs", "wandb_entity", "wandb_run_name", "wandb_project"), ("wb",)),
}  # fmt: skip
PROJECT = "AgileRL"  # documented default of `wandb_project`
_TRAIN = ("max_steps", "evo_steps", "eval_steps", "learning_delay")  # keys of the block `train` by the same names


def refuse_idle(arguments: Mapping[str, Any]) -> None:
    """Check that every argument of a training function has an effect.

    Raises:
        UsageError: an argument has no effect, because another argument that it needs is missing.
    """
    for name, needs in _NEEDS.items():
        missing = all(arguments.get(each) in (None, False) for each in needs)
        if missing and arguments.get(name) not in (None, False, {}, PROJECT):
            others = " or ".join(each for each in needs if each in arguments)
            raise UsageError(f"{name}: it would be without effect: give {others} too")


def function_for(name: str) -> str:
    """Return the name of the training function that fits an algorithm.

    `name` is evopipe's name of the algorithm. The result is never `train_offline`: for an algorithm that learns only
    from datasets, it is `train_off_policy`.
    """
    algo: Any = get(name)
    if "contexts" in algo.Config.model_fields:
        return "train_bandits"
    return f"train_{'multi_agent_' * algo.TEAM}{'on' if on_policy(algo) else 'off'}_policy"


class Call(SimpleNamespace):
    """The arguments of one call of a training function, as attributes named as in the function's signature, such as
    `pop`, `mutation` and `tournament`.

    There are two more attributes, `train` and `block`. They hold parameters that the call sets, in place of those with
    which the population was created. `train` has parameters of the block `train` of `params.yaml`; `block` has
    parameters of the algorithm's block, `algos.<name>`.

    Args:
        arguments: the arguments by name.
    """

    pop: Sequence[Agent]
    mutation: Mutations | None
    tournament: TournamentSelection | None

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(**{"wandb_kwargs": None, **arguments})
        self.train: dict[str, Any] = {"learning_delay": 0}
        self.train |= {name: arguments[name] for name in _TRAIN if name in arguments}
        self.block: dict[str, Any] = {}

    @classmethod
    def of(cls, function: str, arguments: Mapping[str, Any]) -> Call:
        """Return the checked call of the training function with this name. `arguments` are its arguments by name.

        Raises:
            UsageError: an argument would have no effect, or the algorithm needs another training function.
        """
        call = cls(arguments)
        call.check()
        fits = function_for(call.name)
        if function != fits and (function, fits) != ("train_offline", "train_off_policy"):
            raise UsageError(f"{function}: {call.name} is not for it: call {fits}")
        return call

    @property
    def name(self) -> str:
        """Evopipe's name of the population's algorithm."""
        return str(self.pop[0].algo)

    def check(self) -> None:
        """Check the arguments against each other and against the population.

        Raises:
            UsageError: an argument cannot be used, or would have no effect.
        """
        if not self.pop or not all(isinstance(agent, Agent) for agent in self.pop):
            raise UsageError(
                "pop: give agents, as create_population makes them, without wrappers of your own: members act and "
                "learn in one batch, which these do not see"
            )
        if len({agent.breed.algo for agent in self.pop}) > 1:
            raise UsageError("pop: its agents are of unlike algorithms")
        for what, named in (("algo", self.algo), ("mutation.algo", self.mutation and self.mutation.algo)):
            if named is not None and algorithm_of(str(named)) != self.name:
                raise UsageError(f"{what}: it says {named}, and the population is one of {self.name}")
        refuse_idle(vars(self))
        one_process(self.accelerator)
        if self.tournament is not None:
            self.tournament.check(len(self.pop))
        self._check_dictionaries()

    def _check_dictionaries(self) -> None:
        config = self.pop[0].breed.params.algo_config
        hp = {key.upper(): value for key, value in (self.INIT_HP or {}).items()}
        for name in ("RECURRENT", "SHARE_ENCODERS"):
            hp.pop(name, None)
        for key in hp:
            block = block_of(self.name, {key: hp[key]}, {}, None)
            block.pop("network")
            rates = key == "LR" and {"LR_ACTOR", "LR_CRITIC"} & hp.keys()
            for own, value in {} if rates else block.items():
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
        for key, value in {key.upper(): value for key, value in (self.MUT_P or {}).items()}.items():
            if key not in known:
                raise UsageError(f"MUT_P: nobody reads {key!r}{suggestion(key, known)}")
            if known[key] != value:
                raise UsageError(f"MUT_P: {key} is {value!r}, and mutation was made with {known[key]!r}")

    def params(self) -> Params:
        """Return the parameters of the run, in the form that `params.yaml` would give."""
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
                    "algo": self.name, "warm_start": 0, "eval_episodes": self.eval_loop * env.num_envs,
                    "target": None if self.target is None else float(self.target), **confirm, **self.train,
                    "normalise": breed.params.train.normalise.model_dump(),
                },
                "evolution": {"tournament": tournament.config.model_dump(), "mutation": mutation.config.model_dump()},
                "runtime": {"device": breed.params.runtime.device},
                "tracking": {"backends": ["wandb"] if self.wb else [], **self._tracked()},
                "algos": {self.name: block},
            }
        )  # fmt: skip

    def _tracked(self) -> dict[str, Any]:
        settings = dict(self.wandb_kwargs or {})
        project = settings.pop("project", self.env_name)
        if settings:
            raise UsageError(
                f"wandb_kwargs: evopipe does not hand {', '.join(sorted(settings))} on: it knows project; set the "
                "others in the environment, as WANDB_ENTITY or WANDB_MODE"
            )
        return {"experiment": project} if self.wb and project else {}

    def run(
        self, warm: Transitions | None = None, collect: Any = None, adopt: Callable[[Any], None] | None = None
    ) -> Trained:
        """Train the population; return the trained agents, and a list of their fitnesses for every generation.

        Args:
            warm: transitions that agents learn from before their own, or the dataset of offline training; None for
                none.
            collect: a function (regime, ticks) that collects rollouts for all members. `regime` is the training loop,
                see `evopipe.parts.OnPolicy`, and `ticks` the number of steps. None: evopipe collects them.
            adopt: a function that is called once, after the training. Its argument is the training loop, which holds
                the replay buffer. None for no such function.
        """
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
        breed = self.pop[0].breed.with_params(params, spec, spaces)
        learners = learner_count(params.runtime.learners, params.runtime.threads, spec.environments_first)
        workers = Workers(params.runtime.env_workers, learners)
        problem = problem_with(spec, warm, workers, learners, collect, breed.about)
        with conducted(problem, self.pop, params, not self.verbose, self.wandb_api_key) as session:
            made = session.run
            agents = partial(views, made, type(self.pop[0]).viewing, breed, self.pop)
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
        """The beginning of a file's name, for files that the training writes and for which the call gives no path."""
        return f"{self.env_name or 'env'}-{self.name}".replace("/", "_").replace(":", "_")
