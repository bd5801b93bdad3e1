"""`finetune_llm_reasoning` and `finetune_llm_preference`: a run of language models from a script's arguments."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evopipe.compat.agilerl.breed import one_process
from evopipe.compat.agilerl.evolution import Mutations, TournamentSelection, unmutated
from evopipe.compat.agilerl.gyms import PreferenceGym, ReasoningGym
from evopipe.compat.agilerl.language import Gym, LanguageAgent, LanguageBreed, problem_of
from evopipe.compat.agilerl.settings import language_block
from evopipe.compat.agilerl.train import PROJECT, conduct, conducted, refuse_idle, views
from evopipe.errors import UsageError
from evopipe.formats import score
from evopipe.ops.statistics import mean_of_finite
from evopipe.params.text import LanguageParams
from evopipe.problems.text import describe
from evopipe.problems.text_export import write_policy
from evopipe.rng import Purpose
from evopipe.run.run import Champion, Run
from evopipe.run.text import TextSpec
from evopipe.storage.files import write_csv
from evopipe.track.events import Message, Tracker
from evopipe.version import __version__


def finetune_llm_reasoning(
    pop: Sequence[LanguageAgent], env: ReasoningGym | None = None, env_fn: Callable[[], ReasoningGym] | None = None,
    init_hp: Mapping[str, Any] | None = None, save_elite: bool | None = None, elite_path: str | None = None,
    wb: bool = False, evo_steps: int | None = None, checkpoint_steps: int | None = None,
    tournament: TournamentSelection | None = None, mutation: Mutations | None = None, wandb_api_key: str | None = None,
    wandb_project: str = PROJECT, wandb_entity: str | None = None, wandb_run_name: str | None = None,
    evaluation_interval: int = 10, max_reward: int | None = None, verbose: bool = True, accelerator: Any = None,
    max_steps: int | None = None, num_epochs: int | None = None, log_csv: bool = False,
) -> list[LanguageAgent]:  # fmt: skip
    """Train language models on questions with rewards, by `GRPO`, `LLMPPO` or `LLMREINFORCE`.

    A step is one batch of questions, the same for all agents. Each agent writes its own completions, and learns from
    these.

    Args:
        pop: agents, as `create_population` or `GRPO.population` make them.
        env: the questions and their reward function. Give either `env` or `env_fn`.
        env_fn: a function that makes `env`. It is called once, because all agents get the same questions.
        init_hp: hyper-parameters that must agree with the population's; they are checked, and not used otherwise.
        save_elite: whether the best agent is written with its model to `elite_path`; `evopipe.load` reads it.
        elite_path: the folder for the best agent; the default is `<algorithm>-elite`.
        wb: whether metrics go to Weights & Biases.
        evo_steps: steps between evolutions; needed with `tournament` or `mutation`.
        checkpoint_steps: steps between two checkpoints, in which each agent is written to a folder
            `<elite_path>_<index>_<step>`; None for no checkpoints.
        tournament: the selection; None for no selection.
        mutation: the mutation; None for no mutation. Only hyper-parameters can mutate, so the weights of
            `architecture`, `parameters` and other changes must be 0.
        wandb_api_key, wandb_project, wandb_entity, wandb_run_name: settings of Weights & Biases.
        evaluation_interval: steps between evaluations. Agents are also evaluated before each evolution and at the end.
            All agents get the same held-out rows, at most 64.
        max_reward: the reward of a completion that is completely right. The share of such completions is reported as
            `accuracy`; None for no such report.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        max_steps: the number of questions that each agent gets, rounded up to whole steps; None for each question once.
        num_epochs: the number of times that each agent gets all questions; if given, `max_steps` has no effect.
        log_csv: whether to write `<algorithm>.csv`: for each agent and each time between two evaluations, the mean
            reward, length and divergence, and the fitness.

    Returns:
        The trained agents by index; `fitness` holds the scores of the evaluations.

    Raises:
        UsageError: an argument would have no effect, or the environment is for other algorithms.
        ParamsError: a value is out of its bounds.
        DivergedError, EnvironmentFailed, Interrupted: see `evopipe.run.session.Session.train`.

    Examples:
        >>> from evopipe import finetune_llm_reasoning
        >>> from evopipe import GRPO, ReasoningGym
        >>> from evopipe.language.base import load_base
        >>> from evopipe.schema.language import LanguageConfig
        >>> base = load_base(LanguageConfig.model_validate({"tiny": {"characters": "0123456789="}}), seed=1)
        >>> rows = [{"question": f"{n}=", "answer": str(n)} for n in range(10)]
        >>> reward = lambda completion, answer, question: float(completion == answer)
        >>> env = ReasoningGym(rows[:8], rows[8:], base.tokenizer, reward, data_batch_size_per_gpu=4)
        >>> agent = GRPO(actor_network=base.model, group_size=4, max_output_tokens=1)
        >>> (agent,) = finetune_llm_reasoning([agent], env, evaluation_interval=1, verbose=False)
        >>> agent.steps, len(agent.fitness)
        ([8], 2)
    """
    return _Finetuning(ReasoningGym, **locals()).run()


def finetune_llm_preference(
    pop: Sequence[LanguageAgent], env: PreferenceGym | None = None, env_fn: Callable[[], PreferenceGym] | None = None,
    init_hp: Mapping[str, Any] | None = None, save_elite: bool | None = None, elite_path: str | None = None,
    wb: bool = False, evo_steps: int | None = None, checkpoint_steps: int | None = None,
    tournament: TournamentSelection | None = None, mutation: Mutations | None = None, wandb_api_key: str | None = None,
    wandb_project: str = PROJECT, wandb_entity: str | None = None, wandb_run_name: str | None = None,
    evaluation_interval: int = 10, verbose: bool = True, accelerator: Any = None, max_steps: int | None = None,
    num_epochs: int | None = None, log_csv: bool = False,
) -> list[LanguageAgent]:  # fmt: skip
    """Train language models by `DPO` on pairs of completions, of which one is preferred.

    A step is one batch of pairs, the same for all agents. An agent's score is the negative loss of held-out pairs.

    Args:
        pop: agents, as `create_population` or `DPO.population` make them.
        env: the pairs. Give either `env` or `env_fn`.
        env_fn: a function that makes `env`. It is called once, because all agents get the same pairs.
        init_hp: hyper-parameters that must agree with the population's; they are checked, and not used otherwise.
        save_elite, elite_path: whether the best agent is written with its model, and to which folder; the default is
            `dpo-elite`.
        wb, wandb_api_key, wandb_project, wandb_entity, wandb_run_name: whether metrics go to Weights & Biases, and its
            settings.
        evo_steps: steps between evolutions; needed with `tournament` or `mutation`.
        checkpoint_steps: steps between two checkpoints, in which each agent is written to a folder
            `<elite_path>_<index>_<step>`; None for no checkpoints.
        tournament: the selection; None for no selection.
        mutation: the mutation of hyper-parameters; None for no mutation.
        evaluation_interval: steps between evaluations.
        verbose: whether progress is printed.
        accelerator: has no effect, but one with several processes is refused.
        max_steps: the number of pairs that each agent gets, rounded up to whole steps; None for each pair once.
        num_epochs: the number of times that each agent gets all pairs; if given, `max_steps` has no effect.
        log_csv: whether to write `dpo.csv`: for each agent and each time between two evaluations, the mean loss and the
            fitness.

    Returns:
        The trained agents by index; `fitness` holds the scores of the evaluations.

    Raises:
        UsageError: an argument would have no effect, or the environment is for other algorithms.
        ParamsError: a value is out of its bounds.
        DivergedError, EnvironmentFailed, Interrupted: see `evopipe.run.session.Session.train`.

    Examples:
        >>> from evopipe import finetune_llm_preference
        >>> from evopipe import DPO, PreferenceGym
        >>> from evopipe.language.base import load_base
        >>> from evopipe.schema.language import LanguageConfig
        >>> base = load_base(LanguageConfig.model_validate({"tiny": {"characters": "0123456789="}}), seed=1)
        >>> rows = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "0"} for n in range(1, 10)]
        >>> env = PreferenceGym(rows[:6], rows[6:], base.tokenizer, data_batch_size_per_gpu=3)
        >>> (agent,) = finetune_llm_preference([DPO(actor_network=base.model)], env, num_epochs=2, verbose=False)
        >>> agent.steps, len(agent.fitness)
        ([12], 1)
    """
    return _Finetuning(PreferenceGym, **locals()).run()


class _Finetuning(SimpleNamespace):
    """A call of one of both training functions: its arguments as attributes, and the class of its environments, `gym`.
    The functions' signatures alone declare them."""

    pop: Sequence[LanguageAgent]
    mutation: Mutations | None
    tournament: TournamentSelection | None

    def __init__(self, gym: type[Gym], **arguments: Any) -> None:
        super().__init__(gym=gym, **{"max_reward": None, **arguments})

    @property
    def breed(self) -> LanguageBreed:
        return self.pop[0].breed

    def check(self) -> None:
        if not self.pop or not all(isinstance(agent, LanguageAgent) for agent in self.pop):
            raise UsageError("pop: give agents of a language model, as create_population or GRPO.population make them")
        if len({id(agent.breed) for agent in self.pop}) > 1:
            raise UsageError(
                "pop: its agents were made one by one, each with settings of its own: make them together, by "
                "create_population or GRPO.population"
            )
        if (self.env is None) == (self.env_fn is None):
            raise UsageError("env: give either env or env_fn")
        evolves = self.tournament is not None or self.mutation is not None
        if evolves != (self.evo_steps is not None):
            told, missing = ("evo_steps", "tournament or mutation") if not evolves else ("tournament", "evo_steps")
            raise UsageError(f"{told}: it would be without effect: give {missing} too")
        for what in ("evaluation_interval", "evo_steps", "checkpoint_steps", "max_steps", "num_epochs"):
            value = getattr(self, what)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{what}: must be a whole number of at least 1, got {value!r}")
        refuse_idle(vars(self))
        one_process(self.accelerator)
        if self.tournament is not None:
            self.tournament.check(len(self.pop))
        if self.mutation is not None:
            weights = self.mutation.config.probabilities
            for name in ("architecture", "parameters", "activation"):
                if getattr(weights, name):
                    raise UsageError(f"mutation: {name} changes what agents share, the model: give Mutations({name}=0)")
        hp = {key.lower(): value for key, value in (self.init_hp or {}).items()}
        made = language_block(self.breed.algo, self.breed.settings, self.breed.ranges, None)
        said = language_block(self.breed.algo, {**self.breed.settings, **hp}, self.breed.ranges, None)
        for name, value in said.items():
            if value != made[name]:
                raise UsageError(
                    f"init_hp: it says that {name} is {value!r}, and the population was created with {made[name]!r}: "
                    "give it to create_population"
                )

    def params(self, env: Gym) -> LanguageParams:
        batch, held_out = env.data_batch_size, min(64, len(env.test))
        wanted = self.num_epochs * len(env) if self.num_epochs is not None else self.max_steps or len(env)
        tournament, mutation = self.tournament or TournamentSelection(0, False), self.mutation or unmutated()
        weights = mutation.config.probabilities
        mutated = {"probabilities": {"none": weights.none, "rank": 0.0, "rl_hp": weights.rl_hp},
                   "mutate_elite": mutation.config.mutate_elite}  # fmt: skip
        tracking = {"backends": ["wandb"], "experiment": self.wandb_project} if self.wb else {"backends": []}
        found = self.breed.params(
            {
                "seed": self.breed.seed if mutation.rand_seed is None else mutation.rand_seed,
                "population": {"size": len(self.pop)},
                "train": {
                    "algo": self.breed.algo, "max_steps": math.ceil(wanted / batch),
                    "evo_steps": self.evo_steps or self.evaluation_interval, "eval_episodes": held_out,
                    "confirm_episodes": max(2, min(256, len(env.test))) if self.save_elite else 2,
                },
                "evolution": {"tournament": tournament.config.model_dump(), "mutation": mutated},
                "tracking": tracking,
            },
            env,
        )  # fmt: skip
        own = mutation.evolve(self.breed.algo, found.algo_config.evolve)
        block = type(found.algo_config).model_validate({**found.algo_config.model_dump(), "evolve": own})
        return found.model_copy(update={"algos": {self.breed.algo: block}})

    def run(self) -> list[LanguageAgent]:
        self.check()
        env = self.env if self.env is not None else self.env_fn() if self.env_fn is not None else None
        if not isinstance(env, self.gym):
            raise UsageError(f"env: give a {self.gym.__name__}, got a {type(env).__name__}")
        params = self.params(env)
        problem, quiet = problem_of(self.breed, params, env, self.max_reward), not self.verbose
        if self.wandb_entity is not None:
            os.environ["WANDB_ENTITY"] = self.wandb_entity
        with conducted(problem, self.pop, params, quiet, self.wandb_api_key, self.wandb_run_name) as session:
            agents = partial(views, session.run, LanguageAgent, self.breed, self.pop, env.data_batch_size)
            champion = conduct(session, _Between(self, session.run, agents))
        if self.save_elite:
            self._save(problem.spec, champion)
        return agents()

    def _save(self, spec: TextSpec, champion: Champion) -> None:
        path = self.elite_path or f"{self.breed.algo}-elite"
        near = 1.96 * champion.error
        told = {"mean": champion.score, "interval": [champion.score - near, champion.score + near]}
        about = {
            **describe(spec), "format": 1, "arch": champion.member.arch.to_json(), "merged": True,
            "hyper": dict(champion.member.hyper), "evaluation": told, "before": None,
            "training": {"score": champion.score, "standard_error": champion.error, "confirmed": champion.confirmed,
                         "generation": champion.generation},
            "provenance": {"evopipe": __version__},
        }  # fmt: skip
        write_policy(Path(path), spec, champion.member, about, path)


class _Between:
    """What is due between two steps: evaluations, checkpoints, rows of the CSV file."""

    def __init__(self, call: _Finetuning, run: Run[TextSpec], agents: Callable[[], list[LanguageAgent]]) -> None:
        self.call, self.made, self.agents = call, run, agents
        self.saved = self.told = self.generation = 0

    def __call__(self, tracker: Tracker) -> None:
        call, clock = self.call, self.made.clock
        if call.checkpoint_steps and clock.tick > self.saved and clock.tick % call.checkpoint_steps == 0:
            self.saved = clock.tick
            for agent in self.agents():
                agent.save_checkpoint(f"{call.elite_path or call.breed.algo}_{agent.index}_{clock.tick}")
        if clock.here and clock.here % call.evaluation_interval == 0 and not clock.generation_over:
            self._evaluate(tracker)
        if call.log_csv and clock.generation > self.generation:
            self.generation = clock.generation
            measures: Any = self.made.regime
            scored = [record.members for record in self.made.lineage[1:]]
            rows = [
                [*row, scored[int(row[0]) - 1][int(row[1])].fitness] for row in measures.measures.rows()
                if row[0] <= clock.generation
            ]  # fmt: skip
            names = ("generation", "agent", *measures.measures.names, "fitness")
            write_csv(Path(f"{call.breed.algo}.csv"), names, rows)

    def _evaluate(self, tracker: Tracker) -> None:
        """Score agents between two evolutions, for those who watch."""
        made = self.made
        if made.clock.tick == self.told:
            return
        self.told = made.clock.tick
        seeds = made.spec.seeds(Purpose.EVALUATE, made.spec.train.eval_episodes)
        played = made.regime.evaluate(made.cohorts, seeds, lambda: False)
        found = ", ".join(score(mean_of_finite(returns)) for returns in played.returns)
        tracker.emit(Message("info", f"step {made.clock.tick}: agents score {found}"))
