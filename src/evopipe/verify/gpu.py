"""Checks that a GPU computes what the CPU does, and CUDA graphs what eager code does; measures their speed.

Every algorithm trains in its own regime, with members of different architectures. On the CPU, fixed buffers stand in
for graphs.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.benchmark import Timer

from evopipe import algos, rng
from evopipe.core.graphs import Paths
from evopipe.core.member import tensor_kinds
from evopipe.core.net import score
from evopipe.data.transitions import Transitions
from evopipe.errors import DataError, ResourceError, UsageError, suggestion
from evopipe.language.data import generate
from evopipe.language.tokens import tokenise
from evopipe.machine import configure
from evopipe.params.load import Params
from evopipe.params.text import LanguageParams
from evopipe.problems.env import problem_with
from evopipe.problems.specs import make_spec
from evopipe.problems.text import make_spec as make_language_spec
from evopipe.problems.text import regime_of
from evopipe.problems.text_data import form_of, task_of
from evopipe.regimes.learn import learn
from evopipe.regimes.rollouts import learn_from_rollout
from evopipe.regimes.text import on_device, rows_for
from evopipe.rng import Purpose
from evopipe.run.act import choose, step
from evopipe.run.problem import Problem
from evopipe.run.run import Run
from evopipe.run.session import begin
from evopipe.run.spec import EnvSpec, first_members
from evopipe.run.text import TextSpec
from evopipe.schema.runtime import RuntimeConfig

_UPDATES, _ROWS = 4, 4096  # updates at a time; transitions that are there before the first step
_DRAWS = "random draws and sampled rows"
_CLOSE = 1e-3  # of the largest number: sums in another order, and a unit near 0 that falls on its other side


_Finding: TypeAlias = tuple[str, str, bool | None]
"""What was looked at, what came out, and whether that is good, None of a figure."""


def find_device(kind: str) -> torch.device:
    """Configure torch for a kind of device, and return the device to be checked.

    `kind` is `cpu`, `cuda`, or `auto` for CUDA if there is a device, else the CPU.

    Raises:
        ResourceError: the kind is `cuda`, and torch finds no CUDA device.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise ResourceError(
            f"gpu check: torch sees no CUDA device here (torch {torch.__version__}, built for CUDA "
            f"{torch.version.cuda}); run it on a machine with one, or try the check itself with --device cpu"
        )
    return configure(RuntimeConfig.model_validate({"device": kind}))


def check(
    names: Sequence[str], device: torch.device, members: int, repeats: int, tell: Callable[[str], None], envs: int
) -> None:
    """Check that algorithms compute the same on a device as on the CPU, and with CUDA graphs as without; measure the
    speed.

    If the device is the CPU, there are no CUDA graphs; calls with fixed input and output buffers are checked instead.

    Args:
        names: the algorithms. If empty, all algorithms are checked; those of language models only if the extra
            `language` is installed.
        device: the device to be checked.
        members, envs: the numbers of members and environments, for each algorithm.
        repeats: how often the time is measured.
        tell: a function that is called with a line for each check.

    Raises:
        UsageError: a name is no algorithm, or is an algorithm for teams or games, which are not checked.
        DataError: a check failed; the message names the failures.
    """
    for name in set(names) - set(known := algos.working(None)):
        raise UsageError(f"gpu check: --algo: no algorithm {name!r}{suggestion(name, known)}")
    able = {name: _CHECKS[algos.get(name).REGIME] for name in known if algos.get(name).REGIME in _CHECKS}
    able = {name: checked for name, checked in able.items() if not algos.get(name).TEAM}
    for name in set(names) - able.keys():
        raise UsageError(f"gpu check: --algo: {name} learns in teams or from games, which are not checked")
    with_text = importlib.util.find_spec("transformers") is not None
    bad, usual = [], [name for name, checked in able.items() if with_text or checked is not _check_language]
    for name in names or usual:
        for what, result, good in able[name](name, device, members, repeats, envs):
            verdict = {True: "ok", False: "BAD", None: ""}[good]
            tell(f"{name:8} {what:44} {verdict:4} {result}".rstrip())
            if good is False:
                bad.append(f"{name}: {what}: {result}")
    if bad:
        raise DataError("\n".join([*bad, "train with runtime.compile: off, or runtime.device: cpu, until it agrees"]))


def _spec(name: str, device: torch.device, envs: int) -> EnvSpec:
    """Return a run whose members learn twice in a generation, off-policy at every tick."""
    algo, ticks = algos.get(name), 2
    block: dict[str, Any] = {"learn_step": max(1, envs // _UPDATES), "evolve": {}}
    if algos.on_policy(algo):
        ticks, rollout = 2 * _UPDATES, envs * _UPDATES
        block |= {"learn_step": rollout, "batch_size": max(1, rollout // 2), "epochs": 2}
    mode = "offline" if getattr(algo, "OFFLINE_ONLY", False) else "online"
    length = {"evo_steps": ticks * envs, "learning_delay": 0, "eval_episodes": 1, "eval_steps": 2, "target": 1e9}
    env = {"id": "CartPole-v1" if "discrete" in algo.ACTIONS else "Pendulum-v1", "num_envs": envs}
    params = {"algos": {name: block}, "env": env, "train": {"algo": name, "mode": mode, **length}}
    return make_spec(Params.model_validate({**params, "evolution": {"mutation": {"before_training": True}}}), device)


def _transitions(spec: EnvSpec) -> Transitions:
    """Make transitions up: the same on every device."""
    draw, zeros = np.random.default_rng(0), np.zeros(_ROWS, np.int64)
    obs, after = (draw.standard_normal((_ROWS, spec.observations)).astype(np.float32) for _ in range(2))
    reward, over = draw.standard_normal(_ROWS).astype(np.float32), draw.random(_ROWS) < 0.1
    action = draw.integers(spec.actions, size=_ROWS)
    if spec.spaces.continuous:
        action = draw.uniform(-1.0, 1.0, (_ROWS, spec.actions)).astype(np.float32)
    return Transitions(obs, action, reward, over, zeros.astype(bool), after, zeros)


def _check_in_environments(
    name: str, device: torch.device, members: int, repeats: int, envs: int
) -> Iterator[_Finding]:
    return _check(_spec(name, device, envs), members, repeats)


def _check(spec: EnvSpec, members: int, repeats: int) -> Iterator[_Finding]:
    on_cuda = spec.device.type == "cuda"
    way = "graphs" if on_cuda else "fixed buffers"
    plain, warm = replace(spec, paths=Paths()), None if algos.on_policy(spec.algo) else _transitions(spec)
    captured = replace(spec, paths=Paths("graph" if on_cuda else "buffers"))
    specs = (plain, captured, replace(plain, device=torch.device("cpu")))
    eager, fast, here = (begin(problem_with(each, warm), first_members(each, members)[0]) for each in specs)
    with closing(eager.regime), closing(fast.regime), closing(here.regime):
        there, cpu = _numbers(eager), _numbers(here)
        yield from _apart(there, cpu)
        for run in (eager, fast):
            _train(run)
        one, two = ({name: x.numpy().tobytes() for name, x in run.state()[0].items()} for run in (eager, fast))
        differ = sum(one.get(name) != two.get(name) for name in one.keys() | two.keys())
        given_up = "; ".join(fast.spec.paths.given_up)
        yield f"{way} were captured", given_up or "yes", not given_up
        yield f"{way} compute what eager code does", f"{differ} of {len(one)} tensors differ", not differ
        for work, what in ((_act, "time to act"), (_learn, f"time of {_UPDATES} updates")):
            turns = [[_seconds(work, run) for run in (eager, fast)] for _ in range(repeats)]
            slow, quick = (1e6 * statistics.median(column) for column in zip(*turns, strict=True))
            yield what, f"{slow:.0f} µs eager, {quick:.0f} µs with {way}: {slow / quick:.2f} ×", None
        if on_cuda:
            waits = "; ".join(filter(None, map(_waits, (eager, fast))))
            yield "learning waits for nothing", waits or "yes", not waits


def _numbers(run: Run[EnvSpec]) -> dict[str, list[torch.Tensor]]:
    """Return what members draw and their values, or actions; let all learn once, and return what came of it."""
    spec, algo, replay = run.spec, run.spec.algo, getattr(run.regime, "replay", None)
    keys, when = (torch.tensor(x, device=spec.device) for x in ([m.key for m in run.members], [0, 1, 2]))
    draws = rng.uniform(keys, Purpose.REPLAY, when, 64)
    rows = [] if replay is None else [replay.sample(range(len(keys)), draws).cpu()]
    obs = torch.from_numpy(_transitions(spec).obs[None, :256]).to(spec.device)
    of = getattr(algo, "values", None) or partial(algo.greedy, legal=None)
    alone = [spec.form_alone(member)[0].state for member in run.members]
    values = [of(spec.algo_config, state, obs).cpu() for state in alone]
    for _ in range(_UPDATES if algos.on_policy(algo) else 1):
        run.advance()
    return {_DRAWS: [draws.cpu(), *rows], "values": values, **_learned(run)}


def _learned(run: Run[Any]) -> dict[str, list[torch.Tensor]]:
    """Return what came of learning, after one member the next."""
    kinds = tensor_kinds(run.spec.algo.State, run.spec.widths)
    names = [name for name, (kind, _) in kinds.items() if kind == "moments" and name.endswith(".mean")]
    moments = [member.tensors[name].cpu() for member in run.members for name in names]
    return {"losses": [run.state()[0]["losses_here"]], "first moments": moments}


def _apart(there: Mapping[str, list[torch.Tensor]], cpu: Mapping[str, list[torch.Tensor]]) -> Iterator[_Finding]:
    """Say how far numbers are from the CPU's."""
    for what, expected in cpu.items():
        far, allowed = max(map(_distance, there[what], expected)), 0.0 if what == _DRAWS else _CLOSE
        yield f"{what} are the CPU's", f"{far:.1e} of the largest apart, {allowed:.0e} allowed", far <= allowed


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference as a share of the largest number; infinite where one is not finite."""
    far = float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))
    return far if np.isfinite(far) else float("inf")


def _train(run: Run[EnvSpec]) -> None:
    """Train for two generations: cohorts form anew in between."""
    for _ in range(2):
        if run.clock.generation_over:
            run.close_generation(lambda: False)
        while not run.clock.generation_over:
            run.advance()


def _act(run: Run[EnvSpec]) -> None:
    spec, device = run.spec, run.spec.device
    for cohort in run.cohorts:
        shape = len(cohort.members), spec.env.num_envs
        obs, legal = torch.ones(*shape, spec.observations), torch.ones(*shape, spec.actions, dtype=torch.bool)
        if algos.on_policy(spec.algo):
            no, memory = torch.zeros(shape, dtype=torch.bool, device=device), torch.zeros(*shape, cohort.memory)
            step(spec, cohort, obs.to(device), legal.to(device), no, memory.to(device), None)
        else:
            choose(spec, cohort, obs.numpy(), legal.numpy(), None)


def _learn(run: Run[EnvSpec]) -> None:
    """Make this many updates; on-policy, from a rollout of this many ticks."""
    regime: Any = run.regime
    for i, cohort in enumerate(run.cohorts):
        if algos.on_policy(run.spec.algo):
            learn_from_rollout(run.spec, cohort, regime.playing[i].rollout, _UPDATES, run.clock.tick)
        else:
            learn(run.spec, cohort, regime.replay, run.clock.tick, _UPDATES)


def _seconds(work: Callable[[Run[EnvSpec]], None], run: Run[EnvSpec]) -> float:
    timer = Timer("work(run)", globals={"work": work, "run": run}, num_threads=torch.get_num_threads())
    return timer.timeit(10).mean


def _waits(run: Run[EnvSpec]) -> str:
    """Learn with every wait of the host an error, and return it."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        _learn(run)
    except RuntimeError as error:
        return f"{run.spec.paths.capture}: {error}".partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


# --- language models --------------------------------------------------------------------------------------------------


def _check_language(name: str, device: torch.device, members: int, repeats: int, envs: int) -> Iterator[_Finding]:
    """Look whether a GPU writes and learns as the CPU does: members of unlike ranks over a tiny base."""
    there, here = (_language_run(name, each, members) for each in (device, torch.device("cpu")))
    with closing(there.regime), closing(here.regime):
        yield from _apart(_language_numbers(there), _language_numbers(here))
        regime: Any = there.regime
        first = dict(zip(regime.measures.names, next(iter(regime.measures.rows()))[2:], strict=True))
        if "drift" in first:
            drift = first["drift"]
            yield "what learns is what wrote", f"{drift:.1e} apart, {_CLOSE:.0e} allowed", 0 <= drift <= _CLOSE
        timer = Timer("run.advance()", globals={"run": there}, num_threads=torch.get_num_threads())
        seconds = statistics.median(timer.timeit(3).mean for _ in range(repeats))
        yield "time of a step", f"{1e3 * seconds:.1f} ms", None


def _language_run(name: str, device: torch.device, members: int) -> Run[TextSpec]:
    rows = {"rows": 16, "group_size": 4, "batch_size": 16, "lr": 1e-2, "evolve": {}}
    able = algos.get(name).Config.model_fields
    params = LanguageParams.model_validate({
        "language": {
            "task": "reverse", "kwargs": {"shortest": 2, "by_place": True}, "rank": 4, "max_prompt": 8,
            "max_completion": 6,
        },
        "train": {"algo": name, "max_steps": 10**6, "evo_steps": 10**6},
        "evolution": {"mutation": {"probabilities": {"rank": 1.0, "rl_hp": 0.0}, "before_training": True}},
        "algos": {name: {key: value for key, value in rows.items() if key in able}},
    })  # fmt: skip
    spec = make_language_spec(params, device)
    form = form_of(spec.algo)
    made = generate(task_of(spec.language), spec.language.task, params.seed, 200, form)
    corpus = tokenise(made, form, spec.base, spec.language, params.fetch, params.seed)
    first, _ = first_members(spec, members)
    return begin(Problem(spec, lambda clock, keys: regime_of(spec, clock, corpus)), first)


def _language_numbers(run: Run[TextSpec]) -> dict[str, list[torch.Tensor]]:
    """Return what members say of the same rows before they learn; let all learn once, and return what came of it."""
    spec = run.spec
    cfg = spec.language
    pairs = generate(task_of(cfg), cfg.task, 1, 32, "supervised")
    told = tokenise(pairs, "supervised", spec.base, cfg, LanguageParams().fetch, 1)
    said = []
    for cohort in run.cohorts:
        text = rows_for(spec, told, np.arange(len(told.rows)), len(cohort.members), None)
        now = score(getattr(cohort.state, spec.algo.POLICY).frozen, on_device(text, spec.device))
        said.append(now.log_prob.masked_fill(~text.mask.to(spec.device), 0.0).cpu())
    run.advance()
    return {"log-probabilities": said, **_learned(run)}


_CHECKS: dict[str, Callable[[str, torch.device, int, int, int], Iterator[_Finding]]] = {
    "off_policy": _check_in_environments,
    "on_policy": _check_in_environments,
    "dialogue": _check_language,
    "text": _check_language,
}
"""How algorithms are checked, by regime; those of games are not."""
