"""Self-play: who joins the league and who is met, that a run comes to the same bits with workers and after a stop, and
what is refused."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import evopipe
import tiny
from evopipe import layout
from evopipe.core.numpy_policy import Policy
from evopipe.envs.games import digest
from evopipe.envs.workers import Workers
from evopipe.errors import DataError, EvopipeError, MissingInputError, ParamsError
from evopipe.params.load import Params, parse_params
from evopipe.problems import check
from evopipe.report.opponents import met
from evopipe.run.drive import Saver
from evopipe.run.league import League
from evopipe.schema.train import SelfPlayConfig
from evopipe.searchers.history import Opponent, read_lineage
from evopipe.stages import population, train
from evopipe.storage.checkpoint import CheckpointStore
from evopipe.storage.tensors import dump_arrays
from evopipe.track.events import Generation
from populations import begun, equal_states, go_on

SMALL: dict[str, Any] = {
    "env": {"id": "games_for_tests:Nim-v0", "num_envs": 4},
    "population": {"size": 2},
    "train": {
        "algo": "ppo", "max_steps": 160, "evo_steps": 40, "eval_episodes": 3, "target": None,
        "self_play": {"every": 1, "keep": 2},
    },
    "algos": {"ppo": {"learn_step": 20, "batch_size": 10, "epochs": 1, "network": {"encoder": [8], "latent": 8}}},
    "runtime": {"device": "cpu", "learners": 1},
    "tracking": {"backends": []},
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dqn": {
        "train": {**SMALL["train"], "algo": "dqn", "learning_delay": 8, "warm_start": 0},
        "algos": {"dqn": {"learn_step": 4, "batch_size": 8, "network": {"encoder": [8], "latent": 8}}},
    },
    "both": {"train": {**SMALL["train"], "curriculum": "games_for_tests:fewer"}},
}  # fmt: skip


def small(train: dict[str, Any] | None = None, **more: Any) -> Params:
    found = parse_params({**SMALL, **more, "train": {**SMALL["train"], **more.get("train", {}), **(train or {})}})
    assert isinstance(found, Params)
    return found


def test_the_best_of_each_generation_joins_and_the_newest_stay(tmp_path: Path) -> None:
    with begun(small(), league=tmp_path) as run:
        best, league, asked = [], [], []
        while not run.reason:
            if run.clock.generation_over:
                before = {member.id: member for member in run.members}
            go_on(run)
            if run.clock.here == 0:
                record = run.lineage[-1]
                first = max(record.members, key=lambda each: (each.fitness, -each.slot))
                data = dump_arrays(run.league._arrays(before[first.id]))  # type: ignore[union-attr]
                best.append(Opponent(first.id, record.generation, digest(data)))
                league.append(record.opponents)
                asked.append([each["chance"] for each in run.regime.world.pool._cfg.kwargs.get("opponents", [])])
        assert league == [(), (best[0],), (best[0], best[1]), (best[1], best[2])]
        assert asked == [[0.9], [0.4, 0.5], [0.4, 0.5], [0.4, 0.5]]
        for each in best[:3]:
            data = (tmp_path / f"{each.arrays}.npz").read_bytes()
            assert digest(data) == each.arrays
            assert Policy(tmp_path / f"{each.arrays}.npz").act(np.eye(8)[7]) in (0, 1, 2)


def test_every_second_generation_and_what_an_environment_is_asked_for(tmp_path: Path) -> None:
    cfg = SelfPlayConfig(every=2, keep=3, latest=0.2, fixed=0.5)
    with begun(small(), league=tmp_path) as run:
        (one, two) = run.members
        league = League(cfg, run.league._arrays, {"sticks": 7}, tmp_path)  # type: ignore[union-attr]
        scored = [scored_by(one, 1.0), scored_by(two, 1.0)]
        assert league.after(1, scored, ()) == ()
        (joined,) = league.after(2, scored, ())
        assert (joined.id, joined.generation) == (one.id, 2)  # of equals the one in the lower slot
        assert league.after(4, [scored_by(one, -np.inf)], (joined,)) == (joined,)
        again = league.after(4, scored, (joined,))  # unchanged, it is not there twice
        assert [(each.arrays, each.generation) for each in again] == [(joined.arrays, 4)]
        assert league.chances(0) == []
        assert league.chances(1) == [0.5]
        assert league.chances(4) == pytest.approx([0.1, 0.1, 0.1, 0.2])
        path = str(tmp_path / f"{joined.arrays}.npz")
        assert league.arguments(None, [joined]) == {
            "sticks": 7,
            "opponents": [{"arrays": path, "chance": 0.5, "explore": 0.1}],
        }
        assert league.arguments({"sticks": 3}, []) == {"sticks": 3, "opponents": []}


def scored_by(member: Any, fitness: float) -> Any:
    return replace(member, fitness=(fitness,))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_stopped_and_one_with_workers_come_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    params = small(**KINDS[kind])
    with begun(params, league=tmp_path / "straight") as straight:
        while not straight.reason:
            go_on(straight)
        expected = straight.state()
    assert len(straight.opponents) == 2
    with Workers(2) as workers, begun(params, workers) as divided:
        while not divided.reason:
            go_on(divided)
        assert divided.regime.world.pool.worker_count == 2
        assert divided.lineage == straight.lineage
        assert equal_states(divided.state(), expected) == []
    store, draw, count = CheckpointStore(tmp_path / "states"), random.Random(3), 0
    with contextlib.ExitStack() as held:
        run = held.enter_context(begun(params, league=tmp_path / "league"))
        while not run.reason:
            go_on(run)
            if draw.random() < 0.2:
                count += 1
                Saver(run, store, 0.0).save()
                held.close()
                run, loaded = held.enter_context(begun(params, league=tmp_path / "league")), store.load()
                assert loaded is not None
                assert run.restore(loaded.tensors, loaded.meta) == 0
        assert count > 3
        (tensors, meta), (expected_tensors, expected_meta) = run.state(), expected
        assert equal_states((tensors, {}), (expected_tensors, {})) == []
        assert meta == expected_meta


def test_opponents_that_no_checkpoint_names_are_removed(tmp_path: Path) -> None:
    league, store = tmp_path / "league", CheckpointStore(tmp_path / "states")
    left_behind = league / f"{'0' * 32}.npz"  # by a process that was killed before it could save, or remove it
    with begun(small(), league=league) as run:
        saver = Saver(run, store, 0.0)
        named: list[set[str]] = []
        while not run.reason:
            go_on(run)
            if run.clock.here == 0:
                left_behind.write_bytes(b"nobody")
                saver.save()
                named.append({each.arrays for each in run.opponents})
                assert {path.stem for path in league.glob("*.npz")} == set().union(*named[-2:])
        assert len(set().union(*named)) > len(set().union(*named[-2:]))
        expected = run.state()
        newest = max(store.folder.iterdir())
        (newest / "meta.json").write_bytes(b"{}")
        left_behind.write_bytes(b"nobody")
        saver._prune(league=run.league)  # type: ignore[arg-type]
        assert left_behind.is_file(), "what a checkpoint names that cannot be read is not known"
    with begun(small(), league=league) as run:
        loaded = store.load()
        assert loaded is not None
        run.restore(loaded.tensors, loaded.meta)
        assert {each.arrays for each in run.opponents} == named[-2]
        while not run.reason:
            go_on(run)
        assert equal_states((run.state()[0], {}), (expected[0], {})) == []
        assert run.state()[1] == expected[1]


def test_events_and_the_page_tell_whom_a_generation_met(tmp_path: Path) -> None:
    with begun(small(), league=tmp_path) as run:
        while len(run.lineage) < 4:
            go_on(run)
        made_by = dict(enumerate(run.births))
        told = [Generation.of(each, made_by, (), 1.0, (0, 0), (), run.told) for each in run.lineage[1:]]
        signals = {(3, slot): {name: mean for name, (mean, _) in own.items()} for slot, own in run.told.items()}
        lineage = list(run.lineage)
    first, _, third = told
    assert first.opponents == ()
    assert first.metrics()["self_play/opponents"] == 0
    assert third.opponents is not None
    assert [(each.generation, each.arrays) for each in third.opponents] == [
        (each.generation, each.arrays) for each in lineage[3].opponents or ()
    ]
    numbers = third.metrics()
    assert (numbers["self_play/opponents"], numbers["self_play/newest_generation"]) == (2, 2)
    returns = [own["charts/episodic_return"] for own in signals.values()]
    assert numbers["self_play/training_return"] == pytest.approx(sum(returns) / len(returns))
    rows = met(lineage, signals)
    assert [(each.generation, len(each.opponents)) for each in rows] == [(1, 0), (2, 1), (3, 2)]
    assert rows[0].told == "none: only the opponent of env.kwargs"
    assert rows[2].told == ", ".join(f"{each.generation} ({each.arrays[:8]})" for each in third.opponents)
    assert rows[2].training == numbers["self_play/training_return"]
    assert math.isnan(rows[0].training)
    assert rows[2].fitness == pytest.approx(np.mean([member.fitness for member in lineage[3].members]))


@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_run_whose_opponents_are_others_does_not_go_on(fault: str, tmp_path: Path) -> None:
    with begun(small(), league=tmp_path / "league") as run:
        while not run.opponents:
            go_on(run)
        tensors, meta = run.state()
    (file,) = (tmp_path / "league").iterdir()
    if fault == "missing":
        file.unlink()
        error, sentence = MissingInputError, "this opponent is not there"
    else:
        file.write_bytes(file.read_bytes()[:-1] + b"!")
        error, sentence = DataError, "this opponent's bytes have the hash"
    with begun(small(), league=tmp_path / "league") as run, pytest.raises(error, match=sentence):
        run.restore(tensors, meta)


@pytest.mark.thorough
def test_a_stage_that_was_stopped_goes_on_and_writes_its_league(tmp_path: Path) -> None:
    folders = [tmp_path / "straight", tmp_path / "stopped"]
    for folder in folders:
        population.run(small(), True, folder)
    train.run(small(), True, folders[0])

    def stops(run: Any) -> None:
        if run.generation == 2:
            raise ValueError("stop here")

    with pytest.raises(EvopipeError, match="stop here"):
        train.run(small(), True, folders[1], {"on_generation": stops})
    train.run(small(), True, folders[1])
    assert tiny.digests(folders[1]) == tiny.digests(folders[0])
    records = read_lineage((folders[1] / layout.LINEAGE).read_bytes(), "lineage")
    assert records[0].opponents is None
    last = records[-1].opponents
    assert last is not None
    kept = {file.stem for file in (folders[1] / layout.LEAGUE).glob("*.npz")}
    assert kept == {each.arrays for each in last}
    assert list(folders[1].glob("**/league")) == [folders[1] / layout.LEAGUE]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "idle": ({"train": {"self_play": {"keep": 3}}}, "every is 0, which is no self-play: set it to 1 or more, or leave"),
    "chances": ({"train": {"self_play": {"every": 1, "fixed": 0.6}}}, "latest (0.5) and fixed (0.6) add up to more th"),
    "backend": (
        {"env": {"id": "CartPole-v1", "backend": "c"}},
        "train.self_play.every: env.backend c cannot make environments anew: set it to sync, or this to 0",
    ),
    "offline": ({"train": {"algo": "cqn", "mode": "offline"}}, "members learn from a dataset, not in environments: se"),
    "algorithm": ({"train": {"algo": "sac"}}, "sac has neither logits nor action values, so its members cannot be opp"),
    "team": ({"train": {"algo": "ippo"}}, "ippo trains teams, so its members cannot be opponents: set it to 0"),
    "fitness": ({"search": {"fitness": "training"}}, "train.self_play changes whom members train against, generation "),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    given, sentence = REFUSED[case]
    with pytest.raises(ParamsError) as raised:
        small(**given)
    assert sentence in str(raised.value)


def test_an_environment_that_is_no_game_is_refused() -> None:
    with pytest.raises(
        ParamsError, match=r"^train\.self_play: 'CartPole-v1' takes no argument `opponents`, which an env"
    ):
        check(small(env={"id": "CartPole-v1"}))
    with pytest.raises(ParamsError, match=r"'opponents' is set by train\.self_play and cannot be given; remove it"):
        check(small(env={"id": "games_for_tests:Nim-v0", "kwargs": {"opponents": []}}))
    check(small())


def test_networks_that_cannot_be_opponents_are_refused() -> None:
    network = {"encoder": [8], "latent": 8, "encoder_kind": "simba"}
    params = small(algos={"ppo": {**SMALL["algos"]["ppo"], "network": network}})
    with (
        pytest.raises(
            ParamsError, match=r"^train\.self_play: members cannot be opponents: its network is more than a "
        ),
        begun(params),
    ):
        pass


@pytest.mark.thorough
def test_shards_are_refused() -> None:
    shards = {"device": "cpu", "cohorts": "exact", "shards": {"count": 2}}
    with pytest.raises(
        ParamsError, match=r"train\.self_play: shards do not make environments anew; set runtime\.shards"
    ):
        evopipe.train({**SMALL, "runtime": shards})


def test_a_block_that_says_nothing_is_not_written() -> None:
    assert "self_play" not in small({"self_play": {}}).model_dump()["train"]
    assert small().tracked()["train"]["self_play"]["keep"] == 2
