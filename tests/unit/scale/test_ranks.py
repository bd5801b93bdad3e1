"""Ranks of `accelerate launch` as shards: what they tell each other, and who answers."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from evopipe.errors import ParamsError, ResourceError, UsageError
from evopipe.language.together import Together
from evopipe.parallel import can_help
from evopipe.run.clock import Clock
from evopipe.run.evaluate import Episodes, HeldOut, Stopped
from evopipe.scale import ranks
from evopipe.scale.shard import pack, unpack
from evopipe.schema.shards import ShardsConfig

pytestmark = pytest.mark.skipif(not can_help(), reason="needs fork")
SIZES = [1, ranks._SHORT - 1, ranks._SHORT, ranks._SHORT + 1, 3 * ranks._SHORT]


def together(folder: Path, world: int, work: Callable[[int], Any]) -> list[Any]:
    """What some work returns in each of so many processes that can tell each other."""

    def live(rank: int) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group(
            "gloo", f"file://{folder / 'store'}", timeout=timedelta(seconds=20), world_size=world, rank=rank
        )
        found = work(rank)
        (folder / f"{rank}.json").write_text(json.dumps(found))

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=live, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * world
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def test_messages_of_any_length_arrive_as_they_were(tmp_path: Path) -> None:
    messages = [bytes(np.random.default_rng(size).integers(0, 256, size, np.uint8)) for size in SIZES]

    def work(rank: int) -> bool:
        if rank:
            for message in messages:
                ranks._send(message, 0)
            ranks._send(b"", 0)
            return True
        return [ranks._receive(1) for _ in range(len(messages) + 1)] == [*messages, b""]

    assert together(tmp_path, 2, work) == [True, True]


def make(rank: int, about: Mapping[str, Any], together: Together) -> Any:
    """Members whose episodes return who played them: the rank, its place, and the rank that leads."""

    def play(cohorts: object, seeds: np.ndarray, stopped: object) -> Episodes:
        found = np.array([[rank, together.place, together.first, seeds[0]]])
        return Episodes(found, found, 1)

    return None, HeldOut(play), Clock(1, 1, 1, 1)


def message(seed: int) -> bytes:
    return pack({"do": "evaluate", "slots": [0], "torn": False}, {"seeds": torch.tensor([seed])})


def test_all_ranks_of_a_shard_do_what_it_is_told_and_the_first_answers(tmp_path: Path) -> None:
    """Two shards of two. An answer to what was given up, as by a signal, is not taken for the next one."""
    cfg = ShardsConfig(engine="accelerate", ranks=2)

    def work(rank: int) -> Any:
        if rank == 0:
            driver, found = ranks.Ranks(cfg, partial(make, rank)), []
            for shard in (1, 0):
                driver.send(shard, pack({"do": "begin"}))
                driver.receive(shard, 0.0, lambda: False)
            driver.send(1, message(5))
            driver.send(1, message(6))
            driver.send(0, message(7))
            for shard in (1, 0):
                answer = driver.receive(shard, 0.0, lambda: False)
                assert answer is not None
                found.append(unpack(answer)[1]["returns"][0].tolist())
            driver.close()
            return [driver.room, *found]
        own, played = ranks._Own(cfg, partial(make, rank)), []
        while told := ranks._receive(0):
            answer = own.answer(told)
            played += [x[0].tolist() for name, x in unpack(answer)[1].items() if name == "returns"]
            if own.together.leads:
                ranks._send(answer, 0)
        return played

    driver, *others = together(tmp_path, 4, work)
    assert driver == [2, [2, 0, 2, 6], [0, 0, 0, 7]]
    assert others == [[[1, 1, 0, 7]], [[2, 0, 2, 5], [2, 0, 2, 6]], [[3, 1, 2, 5], [3, 1, 2, 6]]]


@pytest.mark.parametrize(
    ("count", "each", "world", "room"),
    [
        ("auto", 2, 4, 2),
        (2, 2, 4, 2),
        (1, 4, 4, 1),
        (3, 1, 3, 3),
        (4, 2, 4, None),
        (2, 1, 4, None),
        ("auto", 2, 5, None),
    ],
)
def test_a_shard_counts_as_one_whatever_number_of_ranks_it_has(
    count: Any, each: int, world: int, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks.distributed, "get_world_size", lambda: world)
    monkeypatch.setattr(ranks, "_Own", lambda cfg, make: None)
    cfg = ShardsConfig(engine="accelerate", count=count, ranks=each)
    if room is not None:
        assert ranks.Ranks(cfg, print).room == room
        return
    with pytest.raises(
        ParamsError, match=rf"count: {count}, of {each} processes each, but {world} processes were launch"
    ):
        ranks.Ranks(cfg, print)


def test_ranks_of_a_shard_stop_together_and_the_first_says_what_went_wrong(tmp_path: Path) -> None:
    """Only the first of them knows of a signal; one that fails where another leads has nobody to answer to."""
    cfg = ShardsConfig(engine="accelerate", ranks=2)

    def made(about: Mapping[str, Any], together: Together) -> Any:
        def play(cohorts: object, seeds: np.ndarray, stopped: Callable[[], bool]) -> Episodes:
            if stopped():
                raise Stopped
            if seeds[0] == 7:
                raise ParamsError("the seed is 7")
            return Episodes(np.array([seeds]), np.array([seeds]), 1)

        return None, HeldOut(play), Clock(1, 1, 1, 1)

    def work(rank: int) -> list[str]:
        own, said = ranks._Own(cfg, made), []
        own.answer(pack({"do": "begin"}))
        for seed, stop in ((5, False), (6, True), (7, False), (8, False)):
            try:
                about, tensors = unpack(own.answer(message(seed), lambda stop=stop: stop and rank == 0))
                said.append(about.get("text") or str(tensors["returns"].tolist()))
            except (Stopped, ResourceError) as error:
                said.append(f"{type(error).__name__} {error}")
        own.close()
        return said

    first, second = together(tmp_path, 2, work)
    assert first == ["[[5]]", "Stopped ", "the seed is 7", "[[8]]"]
    assert second == ["[[5]]", "Stopped ", "ResourceError the seed is 7", "[[8]]"]


def test_a_rank_serves_until_the_driver_ends_or_is_gone(tmp_path: Path) -> None:
    """It leaves signals to the driver, which alone goes on; where one of them is gone, the other says so."""
    cfg, gone = ShardsConfig(engine="accelerate"), ShardsConfig(engine="accelerate", count=3)

    def work(rank: int) -> Any:
        os.environ["RANK"] = str(rank)
        ranks._by_command, ranks._join = lambda: True, lambda: None
        made = partial(make, rank, together=Together())
        if rank == 2:  # it ends after its first answer
            ranks._receive(0)
            ranks._send(pack({"seconds": 0.0}), 0)
            ranks._receive(0)
            distributed.destroy_process_group()
            return []
        if rank == 1:
            served = ranks.served(cfg, made)
            ignored = [
                signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            ]
            return [served, *ignored, distributed.is_initialized()]
        served, driver = ranks.served(cfg, made), ranks.Ranks(gone, made)
        found: list[Any] = [served, signal.getsignal(signal.SIGTERM) is signal.SIG_IGN]
        for shard in (1, 2):
            driver.send(shard, pack({"do": "begin"}))
            answer = driver.receive(shard, 0.0, lambda: False)
            assert answer is not None
            found.append(unpack(answer)[0]["seconds"])
        driver.send(2, b"")
        for turn in ("receive", "send"):
            try:
                driver.receive(2, 0.0, lambda: False) if turn == "receive" else driver.send(2, b"x")
            except ResourceError as error:
                found.append(str(error).partition(" (")[0])
        driver.close()
        return [*found, distributed.is_initialized()]

    driver, first, _ = together(tmp_path, 3, work)
    assert driver == [False, False, 0.0, 0.0, "rank 2 is gone", "rank 2 is gone", False]
    assert first == [True, True, True, True, False]


def test_a_rank_whose_driver_is_gone_says_so(tmp_path: Path) -> None:
    def work(rank: int) -> str:
        if rank == 0:
            return ""
        os.environ["RANK"] = "1"
        ranks._by_command, ranks._join = lambda: True, lambda: None
        try:
            return str(ranks.served(ShardsConfig(engine="accelerate"), partial(make, 1, together=Together())))
        except ResourceError as error:
            return str(error).partition(" (")[0] + str(distributed.is_initialized())

    assert together(tmp_path, 2, work)[1] == "rank 0, which drives the training, is goneFalse"


@pytest.mark.parametrize(("unheard", "told"), [({}, [1, 2, 3, 4, 5]), ({1: 1}, [1, 4, 5]), ({1: 1, 2: 1}, [1])])
def test_who_still_has_an_answer_to_send_is_not_told_of_the_end(
    unheard: dict[int, int], told: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three shards of two ranks: nothing can be sent to a rank that sends. One that is gone holds up no other."""
    made, heard = object.__new__(ranks.Ranks), []
    made.room, made._ranks, made._unheard = 3, 2, Counter(unheard)
    made._own = SimpleNamespace(close=lambda: heard.append("closed"))  # type: ignore[assignment]

    def send(data: bytes, rank: int) -> None:
        heard.append(rank)
        assert data == b""
        if rank == 4:
            raise RuntimeError("gone")

    monkeypatch.setattr(ranks, "_send", send)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "destroy_process_group", lambda: heard.append("destroyed"))
    made.close()
    assert heard == ["closed", *told, "destroyed"]
    monkeypatch.setattr(distributed, "is_initialized", lambda: False)
    made.close()
    assert heard[len(told) + 2 :] == ["closed"]


def test_a_rank_that_computes_other_bits_says_so_and_the_first_does_not(tmp_path: Path) -> None:
    cfg = ShardsConfig(engine="accelerate", ranks=2)

    def work(rank: int) -> list[str]:
        own, said = ranks._Own(cfg, partial(make, rank)), []
        for other in (0.0, 1.0):
            try:
                own._compare({"losses": torch.ones(2) * 3, "values": torch.arange(3) + other * rank})
                said.append("")
            except ResourceError as error:
                said.append(str(error))
        return said

    first, second = together(tmp_path, 2, work)
    assert first == ["", ""]
    assert second[0] == ""
    assert second[1].startswith("rank 1 computes other bits than rank 0: ")


def test_processes_that_make_up_no_whole_shards_are_refused(tmp_path: Path) -> None:
    def work(rank: int) -> list[str]:
        said = []
        for cfg in (ShardsConfig(engine="accelerate", ranks=2), ShardsConfig(engine="accelerate", count=2)):
            try:
                ranks.Ranks(cfg, partial(make, rank))
            except ParamsError as error:
                said.append(str(error))
        return said

    found = together(tmp_path, 3, work)
    assert [len(said) for said in found] == [2, 2, 2]
    assert found[0][0].startswith("runtime.shards.count: auto, of 2 processes each, but 3 processes were launched")


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"count": 3}, 3), ({"count": 3, "ranks": 2}, 6), ({}, 7), ({"ranks": 2}, 6), ({"ranks": 9}, 9),
        ({"resources": {"cpu": 2.0}}, 3), ({"resources": {"cpu": 0.5}}, 7), ({"resources": {"cpu": 20.0}}, 1),
    ],
)  # fmt: skip
def test_as_many_processes_are_launched_as_make_up_the_shards(
    settings: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On seven CPUs, where their number is to be found: of whole shards, one at least. The command is the same."""
    program = tmp_path / "evopipe"
    program.write_text("")
    launched: list[Any] = []
    monkeypatch.setattr(ranks, "available_cpus", lambda: 7)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(ranks.sys, "argv", [str(program), "train", "--params", "own.yaml"])
    monkeypatch.setattr(ranks.os, "execv", lambda *words: launched.append(words))
    monkeypatch.setattr(ranks, "_join", lambda: (_ for _ in ()).throw(Stopped))
    monkeypatch.delenv("RANK", raising=False)
    cfg = ShardsConfig(engine="accelerate", **settings)
    with pytest.raises(Stopped):
        ranks.served(cfg, make)
    ((python, words),) = launched
    assert python == words[0]
    assert words[words.index("--num_processes") + 1] == str(count)
    assert words[-5:] == ["-m", "evopipe", "train", "--params", "own.yaml"]
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(Stopped):
        ranks.served(cfg, make)
    assert len(launched) == 1, "who was launched launches nobody"
    monkeypatch.setattr(ranks.sys, "argv", [str(tmp_path / "script.py")])
    (tmp_path / "script.py").write_text("")
    with pytest.raises(UsageError, match="in Python take ray"):
        ranks.served(cfg, make)
