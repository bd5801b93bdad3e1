"""evopipe itself: its stages `population` and `train`, as `dvc repro` runs them, and its parts alone."""

from __future__ import annotations

import csv
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from common import EnvClock, Parts, draws, main, processor, sync_of, timed
from per_step import per_step
from scripts import script

from evopipe import rng
from evopipe.core.cohort import Cohort, dissolve
from evopipe.envs.pool import EnvPool
from evopipe.errors import Interrupted
from evopipe.layout import POPULATION
from evopipe.machine import configure
from evopipe.mutations import NONE
from evopipe.native import build, dense
from evopipe.params.load import Params, parse_params
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.regimes import learn as learning
from evopipe.regimes import on_policy, rollouts
from evopipe.regimes.learn import learn, updates_due
from evopipe.regimes.off_policy import OffPolicy
from evopipe.regimes.on_policy import OnPolicy
from evopipe.rng import Purpose, Stream
from evopipe.run import session, world
from evopipe.run.act import act
from evopipe.run.evaluate import Evaluator
from evopipe.run.population import about_spec
from evopipe.run.run import Run
from evopipe.run.spec import EnvSpec, first_members
from evopipe.searchers.apply import evolve
from evopipe.stages import evaluate, population, train
from evopipe.storage import members as stored
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.files import read_json
from evopipe.types import Batch

sys.path.append(str(Path(__file__).parents[1]))

from harness import tournament

Settings = Mapping[str, Any]


CONTINUOUS = ("tau", "lr_actor", "lr_critic", "policy_delay", "noise_sd", "random_steps")
# The settings of each algorithm's block that are its own.
OWN = {
    "dqn": ("tau", "lr", "double", "eps_start", "eps_end"), "td3": CONTINUOUS, "ddpg": CONTINUOUS,
    "cqn": ("tau", "lr", "double"), "rainbow": ("tau", "lr", "atoms", "v_min", "v_max", "noisy_sigma"),
    "ppo": (
        "lr", "epochs", "gae_lambda", "clip", "clip_value", "vf_coef", "ent_coef", "max_seq_len", "share_encoder",
    ),
    "sac": ("tau", "lr_actor", "lr_critic", "lr_alpha", "alpha", "random_steps"),
    "maddpg": CONTINUOUS, "matd3": CONTINUOUS,
    "ippo": ("lr", "epochs", "gae_lambda", "clip", "clip_value", "vf_coef", "ent_coef"),
}  # fmt: skip


def algorithm_of(s: Settings) -> tuple[str, dict[str, Any]]:
    """Return the algorithm's name and its block of a params file."""
    algo = s.get("algo", "dqn")
    block = {name: s[name] for name in ("batch_size", "learn_step", "gamma", "grad_clip", *OWN[algo])}
    if algo == "dqn":
        decay = np.log(s["eps_end"] / s["eps_start"]) / np.log(s["eps_decay"]) if "eps_decay" in s else 1.0
        block |= {"eps_schedule": "exponential", "eps_steps": max(1, round(decay * s["num_envs"]))}
    if algo in ("dqn", "cqn"):
        block["loss"] = "mse"
    block["network"] = {name: s[name] for name in ("encoder", "latent", "head", "layer_norm")}
    block["network"]["encoder_kind"] = "lstm" if s.get("recurrent") else "mlp"
    block["evolve"] = {name: {"min": low, "max": high} for name, (low, high) in s["search"].items()}
    return algo, block


def params_of(s: Settings, size: int | None = None) -> Params:
    """Return a params file's content with these settings."""
    algo, block = algorithm_of(s)
    mutation = {
        "probabilities": s["probabilities"], "new_layer_prob": s["new_layer_prob"], "sd": s["mutation_sd"],
        "mutate_elite": s["mutate_elite"], "before_training": True,
    }  # fmt: skip
    return parse_params(
        {
            "seed": s["seed"],
            "env": {
                "id": s["env"], "kwargs": s.get("kwargs", {}), "num_envs": s["num_envs"],
                "backend": s.get("backend", "sync"),
            },
            "population": {"size": size or s["population"]},
            "train": {
                "algo": algo, "max_steps": s["max_steps"], "evo_steps": s["evo_steps"],
                "learning_delay": s["learning_delay"], "warm_start": 0, "eval_episodes": s["eval_episodes"],
                "target": 1e9,  # out of reach: nobody else confirms champions, which costs 100 episodes each
                "replay": {"capacity": s["capacity"], **s.get("replay", {})},
            },
            "evolution": {"tournament": {"size": s["tournament"]}, "mutation": mutation},
            "runtime": {
                "device": s["device"], "threads": s["threads"], "env_workers": s.get("env_workers", "auto"),
                "kernels": s.get("kernels", "auto"),
            },
            "tracking": {"backends": []},  # the peers track nothing either; the local log is always written
            "algos": {algo: block},
        }
    )  # fmt: skip


def count_environments(clock: EnvClock) -> None:
    """Count the environments made from now on in this process."""
    make = gymnasium.make
    gymnasium.make = lambda *args, **options: clock.watch(make(*args, **options))


def keep_run(begun: Callable[[Run], None]) -> list[Run]:
    """Keep the loops that the train stage makes where they can be asked; `begun` is told of each."""
    runs: list[Run] = []
    original = session.begin

    def made(*args: Any, **options: Any) -> Run:
        runs.append(original(*args, **options))
        begun(runs[-1])
        return runs[-1]

    session.begin = made
    return runs


def count_updates() -> Callable[[], int]:
    """Count the updates that members took, by the algorithm's own counters."""
    total, start = [0.0], [0.0]
    original = Run.close_generation

    def taken(loop: Run) -> float:
        return sum(float(cohort.state.updates.sum()) for cohort in loop.cohorts)

    def counted(loop: Run, stopped: Callable[[], bool]) -> None:
        total[0] += taken(loop) - start[0]
        original(loop, stopped)
        start[0] = taken(loop)  # children begin with their parents' counts

    Run.close_generation = counted  # type: ignore[method-assign]
    return lambda: round(total[0])


def watch_parts() -> Parts:
    """Count the seconds of learning (sampling included), acting, the environments, evaluating, evolving, saving."""
    parts = Parts()
    for owner, method, part in (
        (learning, "_updates", "learn and sample"), (world, "act", "act"), (Evaluator, "__call__", "evaluate"),
        (Run, "_carry_out", "evolve"), (Run, "_form", "evolve"), (OffPolicy, "_store", "store"),
        (rollouts, "_epochs", "learn and sample"), (on_policy, "step", "act"), (OnPolicy, "choose", "store"),
        (OnPolicy, "_enter", "store"),
        (EnvPool, "send", "environment"), (EnvPool, "receive", "environment"), (EnvPool, "reset", "environment"),
        (EnvPool, "__init__", "set up"), (CheckpointStore, "save", "save"), (CheckpointStore, "load", "save"),
        (population, "run", "set up"),
    ):  # fmt: skip
        parts.watch(owner, method, part)
    return parts


def end_to_end(s: Settings) -> dict[str, Any]:
    """Run `population` and `train` for a number of steps, outputs, logs and checkpoints included."""
    params = params_of(s)
    # Steps are counted in environments of Gymnasium that run in this process.
    clock, here = EnvClock(), params.runtime.env_workers == 0 and params.env.backend == "sync" and not s.get("team")
    if here:
        count_environments(clock)
    updates, parts = count_updates(), watch_parts()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began, idle = time.perf_counter(), processor()
        population.run(params, quiet=True, folder=folder)
        train.run(params, quiet=True, folder=folder)
        seconds, busy = time.perf_counter() - began, processor() - idle
        steps = read_json(folder / "reports/train.json")["steps"]
        with (folder / "reports/fitness.csv").open() as file:
            curve = [[float(row["best"]), float(row["mean"])] for row in csv.DictReader(file)]
    if here and clock.steps != steps["all"]:
        raise RuntimeError(f"the environments took {clock.steps} steps, the run reports {steps['all']}")
    return {
        "seconds": seconds,
        "processor_seconds": busy,
        "training_steps": steps["training"],
        "steps": steps["all"],
        "step_seconds": clock.step_seconds,
        "reset_seconds": clock.reset_seconds,
        "updates": updates(),
        "curve": curve,
        "parts": parts.seconds,
    }


def time_to_solved(s: Settings) -> dict[str, Any]:
    """Run `population` and `train` until a member passes the target on 100 held-out episodes."""
    params = solving_params(s)
    began, idle = time.perf_counter(), processor()
    runs = keep_run(_stop_at(s))
    result: dict[str, Any] = {"solved": False}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            if s.get("drawn"):
                draw_population(params, s["search"], folder)
            else:
                population.run(params, quiet=True, folder=folder)
            train.run(params, quiet=True, folder=folder)
        except Interrupted:
            pass
        seconds, busy = time.perf_counter() - began, processor() - idle
        signal.setitimer(_timer(s)[0], 0)
        loop = runs[0]
        steps, spent = loop.clock.env_steps + loop.clock.eval_steps, busy if s.get("processor") else seconds
        if loop.reason == "target" and steps <= s["budget_steps"] and spent <= s["budget_seconds"]:
            evaluate.run(params, quiet=True, folder=folder)
            result = {
                "solved": True,
                "score": read_json(folder / "reports/train.json")["elite"]["score"],
                "second_score": read_json(folder / "reports/evaluation.json")["elite"]["mean"],
            }
    steps = min(steps, s["budget_steps"])
    return {**result, "seconds": seconds, "processor_seconds": busy, "steps": steps}


def draw_population(params: Params, search: Settings, folder: Path) -> None:
    """Write a population as the stage does, but of members whose values and widths are drawn from the search space."""
    algo, size, members = params.train.algo, params.population.size, []
    for slot, values in enumerate(draws(search, params.seed, size)):
        data, width = params.model_dump(mode="json"), values.pop("width")
        block = data["algos"][algo]
        if "lr" not in block:
            values |= {"lr_actor": values["lr"], "lr_critic": values.pop("lr")}
        block |= values
        if algo == "ppo":  # a larger batch is the whole rollout, and we refuse to call it more
            block["batch_size"] = min(block["batch_size"], block["learn_step"])
        block["network"] |= {"encoder": [width] * len(block["network"]["encoder"]), "latent": width}
        spec = make_spec(parse_params(data), configure(params.runtime))
        members.append(first_members(spec, size)[0][slot])
    stored.write(folder / POPULATION, members, {**about_spec(spec), "mutations": [NONE.to_json()] * size})


def solving_params(s: Settings) -> Params:
    """Return the params file of the workload, ending where the rule that all contestants have says so."""
    file = tournament.of(Path(__file__).parents[2] / s["params"])
    data = parse_params(file).model_dump(mode="json")
    data["seed"] = s["seed"]
    data["train"] |= {
        "target": s["target"], "confirm_episodes": s["confirm_episodes"], "target_sigmas": 0.0, "warm_start": 0,
        "max_steps": s["budget_steps"],
    }  # fmt: skip
    data["env"] |= {"backend": s.get("backend", data["env"]["backend"])}
    data["train"]["normalise"] |= s.get("normalise", {})
    data["tracking"] |= {"backends": []}
    data["runtime"] |= {"device": s["device"], "threads": s["threads"]}
    return parse_params(data)


def _timer(s: Settings) -> tuple[int, signal.Signals]:
    """Return the timer of a run's budget, and the signal that it ends with."""
    return (signal.ITIMER_PROF, signal.SIGPROF) if s.get("processor") else (signal.ITIMER_REAL, signal.SIGALRM)


def _stop_at(s: Settings) -> Callable[[Run], None]:
    """Ask the run to stop, as a user would, when its seconds are used up; return what makes one stop by its steps."""
    stop = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    timer, rings = _timer(s)
    signal.signal(rings, stop)
    signal.setitimer(timer, s["budget_seconds"])

    def begun(loop: Run) -> None:
        advance, asked = loop.advance, []

        def counted(most: int = 1) -> None:
            advance(most)
            if not asked and loop.clock.env_steps + loop.clock.eval_steps > s["budget_steps"]:
                asked.append(True)
                stop()

        loop.advance = counted

    return begun


# --- parts alone ------------------------------------------------------------------------------------------------------


def spec_of(s: Settings, size: int) -> EnvSpec:
    """Return the spec of a population of `size`."""
    params = params_of(s, size)
    return make_spec(params, configure(params.runtime))


def like_members(spec: EnvSpec, size: int) -> list[Any]:
    """Return members that all have the network of the settings."""
    bare = spec.mutation.model_copy(update={"before_training": False})
    return first_members(replace(spec, mutation=bare), size)[0]


def random_batch(cohort: Cohort, spec: EnvSpec) -> Batch:
    """Return a batch of standard-normal transitions `[P, B, …]`."""
    generator = torch.Generator().manual_seed(1)
    p, b = cohort.weight.shape
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(spec.device)  # noqa: E731
    o = spec.observations
    if spec.spaces.continuous:
        action = draw(p, b, spec.actions).clamp(-1.0, 1.0)
    else:
        action = torch.randint(spec.actions, (p, b), generator=generator).to(spec.device)
    discount = cohort.hyper["gamma"][:, None].expand(p, b).contiguous()  # as a memory gives it
    return Batch(draw(p, b, o), action, draw(p, b), discount, draw(p, b, o), None, cohort.weight)


def update_call(s: Settings, size: int) -> Callable[[], object]:
    """Return one learning step of a population as a call."""
    spec = spec_of(s, size)
    cohorts = [(cohort, random_batch(cohort, spec)) for cohort in spec.form(like_members(spec, size))]

    def update() -> None:
        for cohort, batch in cohorts:
            draw = Stream(cohort.keys, Purpose.UPDATE, torch.zeros(1, dtype=torch.int64, device=spec.device))
            spec.algo.update(spec.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, 0)

    return update


def products_of(s: Settings, size: int, seconds: float) -> dict[str, float]:
    """Time the matrix products of that learning step alone: two forward passes, three if double, one backward. By torch
    (`products`), and where our own kernels are in use by theirs, which add biases too (`own_products`)."""
    spec = spec_of(s, size)
    cohorts = spec.form(like_members(spec, size))
    ways = {"products": [_products(s, cohort, spec) for cohort in cohorts]}
    own = [_own_products(s, cohort, spec) for cohort in cohorts]
    if all(own):
        ways["own_products"] = [call for call in own if call]
    return {
        name: timed(lambda calls=calls: [call() for call in calls], seconds, sync=sync_of(s["device"]))
        for name, calls in ways.items()
    }


def _products(s: Settings, cohort: Cohort, spec: EnvSpec) -> Callable[[], None]:
    weights = [layer.weight.detach() for layer in cohort.state.target.views]
    rows = len(cohort.members), s["batch_size"]
    inputs, deltas = ([torch.randn(*rows, w.shape[end], device=spec.device) for w in weights] for end in (1, 2))

    def products() -> None:
        with torch.no_grad():
            for _ in range(3 if s["double"] else 2):
                for x, weight in zip(inputs, weights, strict=True):
                    torch.bmm(x, weight)
            for i, (x, weight, delta) in enumerate(zip(inputs, weights, deltas, strict=True)):
                torch.bmm(x.transpose(1, 2), delta)
                if i:
                    torch.bmm(delta, weight.transpose(1, 2))

    return products


def _own_products(s: Settings, cohort: Cohort, spec: EnvSpec) -> Callable[[], None] | None:
    net, rows = cohort.state.q, (len(cohort.members), s["batch_size"])
    x, anchor = torch.randn(*rows, spec.observations, device=spec.device), net.views[0].weight
    plan = dense.plan_of(net, spec.observations)
    if plan is None:
        return None
    fields = plan.fields.clone()
    fields[..., 7] = dense.ACTIVATIONS.index("Identity")
    plan = replace(plan, fields=fields)
    delta = torch.randn(*rows, plan.out)

    def products() -> None:
        for _ in range(3 if s["double"] else 2):
            _, saved = dense._forward(x, anchor, plan)
        back = SimpleNamespace(saved_tensors=(x, saved), anchor=anchor, plan=plan, needs_input_grad=(False, True))
        dense._dense().backward(back, delta)

    return products


def filled_replay(spec: EnvSpec, capacity: int) -> Any:
    """Return a replay memory full of standard-normal transitions."""
    from evopipe.memory.replay import Replay, RowLayout

    layout = RowLayout.of(spec.spaces, masked=False)
    draw = np.random.default_rng(1)
    normal = lambda: draw.standard_normal((capacity, spec.observations), np.float32)  # noqa: E731
    rows = layout.pack(
        normal(), draw.integers(spec.actions, size=capacity), draw.standard_normal(capacity), np.zeros(capacity),
        normal(),
    )  # fmt: skip
    replay = Replay(layout, 1, capacity, spec.device)
    replay.add(rows[None], np.ones((1, capacity), bool))
    return replay


def parts(s: Settings) -> dict[str, Any]:
    """Time the parts of one round of a population alone: one learn step of all, one act, one sample, one evolution."""
    sync, seconds, result = sync_of(s["device"]), s["part_seconds"], {}
    for size in s["sizes"]:
        spec = spec_of(s, size)
        replay = filled_replay(spec, s["capacity"])
        members = like_members(spec, size)
        (cohort,) = spec.form(members)
        rows = size * s["num_envs"]
        obs = np.random.default_rng(1).standard_normal((rows, spec.observations), np.float32)
        legal = np.ones((rows, spec.actions), bool)
        tick = SimpleNamespace(now=0)

        def sample(spec: EnvSpec = spec, cohort: Cohort = cohort, replay: Any = replay, tick: Any = tick) -> Any:
            tick.now += 1
            when = torch.tensor([tick.now], device=spec.device)
            rows = replay.sample(cohort.slots, rng.uniform(cohort.keys, Purpose.REPLAY, when, cohort.batch))
            return replay.layout.unpack(rows[:, 0], cohort.weight, cohort.hyper["gamma"])

        def learned(spec: EnvSpec = spec, cohort: Cohort = cohort, replay: Any = replay, tick: Any = tick) -> Any:
            tick.now += 1
            return learn(spec, cohort, replay, tick.now, 1)

        result[str(size)] = {
            "learn": timed(update_call(s, size), seconds, sync=sync),
            "act": timed(lambda p=spec, c=cohort, o=obs, m=legal: act(p, [c], o, m, 0.1, 1), seconds, sync=sync),
            "sample": timed(sample, seconds, sync=sync),
            "learn and sample": timed(learned, seconds, sync=sync),
            "evolve": _timed_evolution(s, spec, members, sync),
        }
    return result


def learn_step(s: Settings) -> dict[str, Any]:
    """Time one learn step of a population on batches that are there, and with drawing them from a full memory."""
    sync, seconds, result = sync_of(s["device"]), s["part_seconds"], {}
    for size in s["sizes"]:
        spec = spec_of(s, size)
        replay, ticks = filled_replay(spec, s["capacity"]), itertools.count()
        (cohort,) = spec.form(like_members(spec, size))
        drawn = lambda p=spec, c=cohort, r=replay, t=ticks: learn(p, c, r, next(t), 1)  # noqa: E731
        result[str(size)] = {
            "learn": timed(update_call(s, size), seconds, sync=sync),
            "learn and sample": timed(drawn, seconds, sync=sync),
        }
    return result


def _timed_evolution(s: Settings, spec: EnvSpec, members: list[Any], sync: Any) -> float:
    """Return the median microseconds of dissolve, select, clone, mutate and form."""
    draw, times = np.random.default_rng(1), []
    for generation in range(s["evolutions"]):
        cohorts = spec.form(members)
        fitness = draw.random(len(members))
        began = time.perf_counter()
        alive = dissolve(cohorts)
        born = evolve(spec.tournament, spec.mutation, spec.traits, alive, fitness, 1, generation, 100)
        spec.form(born.members)
        if sync:
            sync()
        times.append((time.perf_counter() - began) * 1e6)
        members = list(born.members)
    return statistics.median(times)


def curve(s: Settings) -> dict[str, Any]:
    """Time the learn step of 1 to 64 members, and its matrix products alone, in turns within the process."""
    sync, seconds = sync_of(s["device"]), s["part_seconds"]
    return {
        str(size): {
            "learn": timed(update_call(s, size), seconds, sync=sync),
            **products_of(s, size, seconds / 2),
        }
        for size in s["sizes"]
    }


def efficiency(s: Settings) -> dict[str, Any]:
    """Environment, acting and learning, each alone, over the loop's time for the same work. In one process."""
    params = params_of({**s, "env_workers": 0, "evo_steps": 10**9, "max_steps": 10**9})
    spec = make_spec(params, configure(params.runtime))
    loop = begin(spec, like_members(spec, s["population"]))
    while loop.clock.step <= s["warm_steps"]:
        loop.advance()
    actions: list[np.ndarray] = []
    send = loop.regime.world.pool.send
    loop.regime.world.pool.send = lambda a, rows=None: (actions.append(a.copy()), send(a, rows))[1]  # type: ignore[method-assign]
    first, state = loop.clock.here, loop.regime.world.pool.state()
    began = time.perf_counter()
    for _ in range(s["ticks"]):
        loop.advance()
    whole = time.perf_counter() - began
    loop.regime.world.pool.send = send  # type: ignore[method-assign]
    alone = {
        "environment": _environment_alone(loop, state, actions),
        "act": _act_alone(loop, s["ticks"]),
        "learn": _learn_alone(loop, first, s["ticks"]),
    }
    loop.close()
    return {"whole": whole, **alone, "efficiency": sum(alone.values()) / whole}


def _environment_alone(loop: Run, state: dict[str, np.ndarray], actions: list[np.ndarray]) -> float:
    loop.regime.world.pool.restore(state)
    began = time.perf_counter()
    for a in actions:
        step = loop.regime.world.pool.step(a)
        over = np.flatnonzero(step.terminated | step.truncated)
        if len(over):
            loop.regime.world.pool.reset(over, over)
    return time.perf_counter() - began


def _act_alone(loop: Run, ticks: int) -> float:
    began = time.perf_counter()
    for tick in range(ticks):
        act(loop.spec, loop.cohorts, loop.regime.world.pool.obs, loop.regime.world.pool.mask, 0.1, tick)
    return time.perf_counter() - began


def _learn_alone(loop: Run, first: int, ticks: int) -> float:
    began = time.perf_counter()
    for tick in range(first, first + ticks):
        for cohort in loop.cohorts:
            due = updates_due(cohort, tick, loop.spec.env.num_envs)
            if due:
                learn(loop.spec, cohort, loop.regime.replay, tick, due)
    return time.perf_counter() - began


def acting(s: Settings) -> dict[str, Any]:
    """Time ticks of the loop before its first rollout ends: the environments, acting, and keeping what happened."""
    params = params_of(s)
    spec = make_spec(params, configure(params.runtime))
    loop = begin(spec, like_members(spec, s["population"]))
    sync = sync_of(s["device"]) or (lambda: None)
    for _ in range(s["warm_ticks"]):
        loop.advance()
    sync()
    began = time.perf_counter()
    for _ in range(s["ticks"]):
        loop.advance()
    sync()
    seconds = time.perf_counter() - began
    steps = s["ticks"] * s["population"] * s["num_envs"]
    if sum(float(cohort.state.updates.sum()) for cohort in loop.cohorts):
        raise RuntimeError("a rollout ended within the measurement")
    loop.close()
    return {"seconds": seconds, "steps": steps, "steps_per_second": steps / seconds}


def priorities(s: Settings) -> dict[str, Any]:
    """Time one draw of a batch for every member by priority: places, importance weights and rows, from a full memory.

    Also the bytes of a memory's rows, and of its priorities with their sums.
    """
    from evopipe.memory.priorities import Priorities

    spec = spec_of(s, s["population"])
    replay = filled_replay(spec, s["capacity"])
    slots = list(range(s["population"]))
    trees = Priorities(len(slots), s["capacity"], s["replay"]["alpha"], spec.device)
    errors = np.abs(np.random.default_rng(2).standard_normal((len(slots), s["capacity"]), np.float32))
    trees.restore({"priorities": torch.from_numpy(errors), "largest": torch.from_numpy(errors.max(axis=1))})
    replay.priorities = trees
    (cohort,) = spec.form(like_members(spec, len(slots)))
    places, first = torch.tensor(slots, device=spec.device), replay.first(slots)
    size, beta = torch.from_numpy(replay.filled(slots)).to(spec.device), torch.tensor(s["replay"]["beta"])
    draws = rng.uniform(cohort.keys, Purpose.REPLAY, torch.arange(64, device=spec.device), cohort.batch)
    turn = itertools.cycle(range(draws.shape[1]))
    draw = lambda: replay.draw_by_priority(places, first, size, draws[:, next(turn)], cohort.weight, beta)  # noqa: E731
    return {
        "microseconds": timed(draw, s["part_seconds"], sync=sync_of(s["device"])),
        "rows_megabytes": replay.rows.nbytes / 1e6,
        "priorities_megabytes": sum(tensor.nbytes for tensor in trees.tensors()) / 1e6,
    }


def checkpoint(s: Settings) -> dict[str, Any]:
    """Time one checkpoint with a full replay, and give its share of wall time at the default interval."""
    spec = spec_of({**s, "env_workers": 0}, s["population"])
    loop = begin(spec, like_members(spec, s["population"]))
    loop.regime.replay = filled_replay(spec, s["capacity"])
    times = []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder) / "checkpoints")
        for i in range(s["saves"]):
            began = time.perf_counter()
            store.save(i, *loop.state())
            times.append(time.perf_counter() - began)
    loop.close()
    seconds = statistics.median(times)
    return {"milliseconds": seconds * 1e3, "share": seconds / parse_params({}).runtime.checkpoint_seconds}


def roofline(s: Settings) -> dict[str, Any]:
    """Time what no implementation of the same work on these cores can leave out.

    The environment's own `step` under random actions, and the matrix products of the learn steps. Both for one training
    step of the population, in microseconds.
    """
    env = gymnasium.make(s["env"]).unwrapped
    draw, actions = np.random.default_rng(1), int(gymnasium.make(s["env"]).action_space.n)
    env.reset(seed=1)
    spent, steps = 0.0, 0
    while spent < s["part_seconds"]:
        chosen = int(draw.integers(actions))
        began = time.perf_counter()
        _, _, terminated, _, _ = env.step(chosen)
        spent += time.perf_counter() - began
        steps += 1
        if terminated:
            env.reset(seed=steps)
    each = s["population"] * s["learn_step"]
    products = products_of(s, s["population"], s["part_seconds"])
    return {
        "step_microseconds": spent / steps * 1e6,
        **{f"{name}_microseconds": time / each for name, time in products.items()},
    }


def language(task: str, *given: Any) -> dict[str, Any]:
    """Run a task of language models, which need an extra."""
    import language_models as models

    result: dict[str, Any] = getattr(models, task)(*given)
    return result


def run_script(s: Settings) -> dict[str, Any]:
    """Run a script of AgileRL's documentation with our names in it."""
    import evopipe

    shown = SimpleNamespace(
        **{name: getattr(evopipe, name) for name in evopipe.__all__},
        make_team_envs=evopipe.make_vect_envs,
        team_spaces=lambda env: (env.observation_space, env.action_space),
    )
    shown.MultiAgentReplayBuffer = lambda size, ids: evopipe.MultiAgentReplayBuffer(size, agent_ids=ids)
    return script(shown, s)


def telling(task: Callable[[Settings], Mapping[str, Any]]) -> Callable[[Settings], Mapping[str, Any]]:
    """Return the task with the kernels that it used in its result."""
    return lambda s: {**task(s), "kernels": "native" if build.chosen() else "torch"}


if __name__ == "__main__":
    tasks = {
        "script": run_script, "end-to-end": end_to_end, "time-to-solved": time_to_solved, "parts": parts,
        "curve": curve, "efficiency": efficiency, "checkpoint": checkpoint, "roofline": roofline,
        "learn-step": learn_step, "acting": acting, "priorities": priorities,
        "grpo": lambda s: language("step", s, "grpo"), "dpo": lambda s: language("step", s, "dpo"),
        "completions": lambda s: language("completions", s), "per-step": per_step,
    }  # fmt: skip
    main({name: telling(task) for name, task in tasks.items()})
