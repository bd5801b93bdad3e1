"""Games of one seat: what an episode is, who plays the other seats, games of OpenSpiel, and what is refused."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evopipe.envs import from_openspiel, from_pettingzoo
from evopipe.envs.games import GameEnv, digest, league_player
from evopipe.envs.make import make_env, source_of
from evopipe.errors import DataError, EnvironmentFailed, EvopipeError, MissingInputError, ParamsError
from evopipe.schema.env import EnvConfig
from evopipe.storage.tensors import dump_arrays
from games_for_tests import Nim, nim

OPENSPIEL = "evopipe.envs.games:OpenSpiel-v0"


def arrays(folder: Path, bias: list[float], observations: int = 8, values: bool = False) -> str:
    """Write the arrays of a policy whose outputs are always `bias`; return their path."""
    made = {
        "output.weight": np.zeros((observations, len(bias)), np.float32), "output.bias": np.array(bias, np.float32),
        "observations": observations, "choices": [len(bias)], "starts": [0], "kind": "discrete", "values": values,
        "shape": np.array([], np.int64), "layers": np.array([], str), "activation": "ReLU",
    }  # fmt: skip
    data = dump_arrays({name: np.asarray(value) for name, value in made.items()})
    path = folder / f"{digest(data)}.npz"
    path.write_bytes(data)
    return str(path)


def play(env: Any, seed: int, choose: Callable[[np.ndarray], int]) -> list[Any]:
    """Play an episode; return what it showed."""
    obs, info = env.reset(seed=seed)
    shown = [obs.tolist(), info["action_mask"].tolist()]
    while True:
        obs, reward, terminated, truncated, info = env.step(choose(info["action_mask"]))
        shown += [obs.tolist(), info["action_mask"].tolist(), reward]
        if terminated or truncated:
            return shown


def test_a_step_lasts_until_the_seat_acts_again() -> None:
    env = nim(6, seat=0, opponent="games_for_tests:first")
    obs, info = env.reset(seed=0)
    assert obs.tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert info["action_mask"].tolist() == [1, 1, 1]
    obs, reward, terminated, truncated, info = env.step(2)  # three are left, then two
    assert (obs.tolist(), reward, terminated, truncated) == ([0, 0, 1, 0, 0, 0, 0], 0.0, False, False)
    assert info["action_mask"].tolist() == [1, 1, 0]
    obs, reward, terminated, truncated, info = env.step(1)
    assert (obs.argmax(), reward, terminated, truncated) == (0, 1.0, True, False)
    assert info["action_mask"].tolist() == [1, 1, 1]


def test_the_other_seat_begins_where_it_is_first() -> None:
    env = nim(2, seat=1, opponent="games_for_tests:first")
    obs, _ = env.reset(seed=0)
    assert obs.argmax() == 1
    assert env.step(0)[1:3] == (1.0, True)
    lost = nim(3, seat=0, opponent="games_for_tests:first")
    lost.reset(seed=0)
    assert lost.step(1)[1:3] == (-1.0, True)


def test_a_loss_weighs_more_and_a_win_does_not() -> None:
    kwargs: dict[str, Any] = {"seat": 0, "opponent": "games_for_tests:first", "loss_weight": 4}
    lost, won = nim(3, **kwargs), nim(1, **kwargs)
    lost.reset(seed=0)
    won.reset(seed=0)
    assert lost.step(1)[1:3] == (-4.0, True)
    assert won.step(0)[1:3] == (1.0, True)


class Paid:
    """Three seats in turn; every move pays seat s its number plus 1, and what a seat sees is its own."""

    seats, observations, actions, cut = 3, 2, 2, False

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, seed: int) -> None:
        self.moves: list[int] = []

    @property
    def turn(self) -> int | None:
        return len(self.moves) % 3 if len(self.moves) < 9 else None

    @property
    def returns(self) -> list[float]:
        return [float(len(self.moves) * (seat + 1)) for seat in range(3)]

    def look(self, seat: int) -> np.ndarray:
        return np.array([seat, len(self.moves)], np.float32)

    def legal(self, seat: int) -> list[int]:
        return [0, 1]

    def play(self, action: int) -> None:
        self.moves.append(action)

    def shown(self) -> str:
        return str(self.moves)

    def close(self) -> None:
        pass


def test_each_seat_is_played_by_its_own_player_who_sees_its_own_side() -> None:
    """A reward is what the seat gained since it acted last: not what it had before, nor what others gained."""
    env, asked = GameEnv(Paid(), seat=1), list[Any]()

    def player(of: int) -> Callable[..., int]:
        return lambda obs, legal, draw: (asked.append((of, obs.tolist())), of // 2)[1]

    obs, _ = env.reset(seed=0)
    assert obs.tolist() == [1, 1], "seat 0 has moved"
    env.players = [player(0), player(1), player(2)]
    first, second, last = (env.step(0) for _ in range(3))
    assert [step[1] for step in (first, second, last)] == [6.0, 6.0, 4.0]
    assert [step[2] for step in (first, second, last)] == [False, False, True]
    assert asked == [(2, [2, 2]), (0, [0, 3]), (2, [2, 5]), (0, [0, 6]), (2, [2, 8])]
    assert env.game.moves[1:] == [0, 1, 0, 0, 1, 0, 0, 1]


def test_an_episode_follows_from_its_seed_and_a_seat_is_drawn() -> None:
    def first(mask: np.ndarray) -> int:
        return int(mask.argmax())

    env, again = nim(), nim()
    shown = [play(env, seed, first) for seed in range(20)]
    assert [play(again, seed, first) for seed in reversed(range(20))][::-1] == shown
    assert {env.seat for seed in range(20) if env.reset(seed=seed)} == {0, 1}
    assert len({str(each) for each in shown}) > 5


def test_opponents_are_drawn_by_their_chances_and_what_is_missing_is_the_fixed_one(tmp_path: Path) -> None:
    one, two = arrays(tmp_path, [9.0, 0.0, 0.0]), arrays(tmp_path, [0.0, 9.0, 0.0])
    env = nim(seat=0, opponents=[{"arrays": one, "chance": 0.5}, {"arrays": two, "chance": 0.2}])
    met: Counter[Any] = Counter()
    for seed in range(1000):
        env.reset(seed=seed)
        met[env.players[1]] += 1
    known = [env._league[0], env._league[1], env._fixed]
    assert set(met) == set(known)
    assert [met[each] / 1000 for each in known] == pytest.approx([0.5, 0.2, 0.3], abs=0.05)


def test_a_league_player_draws_from_its_policy_among_what_is_legal(tmp_path: Path) -> None:
    logits = np.array([0.0, 1.0, 5.0, 2.0])
    act = league_player(arrays(tmp_path, logits.tolist(), 8), type("Of", (Nim,), {"actions": 4})())
    legal, draw = np.array([True, True, False, True]), np.random.default_rng(0)
    found = Counter(act(np.zeros(8, np.float32), legal, draw) for _ in range(4000))
    chances = np.exp(logits) * legal / (np.exp(logits) * legal).sum()
    assert [found[action] / 4000 for action in range(4)] == pytest.approx(chances, abs=0.03)
    half = league_player(arrays(tmp_path, [0.0, 9.0, 9.0, 0.0], 8), type("Of", (Nim,), {"actions": 4})(), explore=0.6)
    found = Counter(half(np.zeros(8, np.float32), legal, draw) for _ in range(2000))
    assert [found[action] / 2000 for action in range(4)] == pytest.approx([0.2, 0.6, 0, 0.2], abs=0.04)
    best = league_player(arrays(tmp_path, logits.tolist(), 8, values=True), type("Of", (Nim,), {"actions": 4})())
    assert {best(np.zeros(8, np.float32), legal, draw) for _ in range(20)} == {3}


def test_an_elite_by_its_folder_acts_greedily_and_is_an_input_of_the_run(tmp_path: Path) -> None:
    Path(arrays(tmp_path, [0.0, 0.1, 0.0])).rename(tmp_path / "policy.npz")
    env = nim(7, seat=0, opponent=str(tmp_path))
    env.reset(seed=0)
    assert env.step(0)[0].argmax() == 4  # one, then two
    assert env.step(2)[1:3] == (-1.0, True)  # three, and of the last one it may not take two
    kwargs = {"opponent": str(tmp_path)}
    assert tmp_path / "policy.npz" in source_of(EnvConfig(id="games_for_tests:Nim-v0", kwargs=kwargs))


def test_tic_tac_toe() -> None:
    env = from_openspiel("tic_tac_toe", seat=0, opponent="games_for_tests:first", render_mode="ansi")
    obs, _ = env.reset(seed=0)
    assert obs.shape == env.observation_space.shape == (27,)
    env.step(4)
    _, _, _, _, info = env.step(2)
    assert info["action_mask"].tolist() == [0, 0, 0, 1, 0, 1, 1, 1, 1]
    assert env.render() == "oox\n.x.\n..."
    with pytest.raises(ValueError, match=r"^action 0 is not legal here; info\['action_mask'\] says which actions are$"):
        env.step(0)
    assert env.step(6)[1:4] == (1.0, True, False)


def test_chance_follows_from_the_seed() -> None:
    env = from_openspiel("kuhn_poker", seat=0, opponent="games_for_tests:first")
    cards = [env.reset(seed=seed)[0][2:5].argmax() for seed in range(300)]
    assert cards == [env.reset(seed=seed)[0][2:5].argmax() for seed in range(300)]
    assert np.bincount(cards) / 300 == pytest.approx(np.full(3, 1 / 3), abs=0.08)
    rewards = set()
    for seed in range(30):
        env.reset(seed=seed)
        rewards.add(env.step(0)[1])  # both pass: the higher card wins the ante
    assert rewards == {-1.0, 1.0}


def test_players_who_act_at_the_same_time() -> None:
    for seat in (0, 1):
        env = from_openspiel("matrix_rps", seat=seat, opponent="games_for_tests:first")  # rock
        rewards = []
        for action in range(3):
            env.reset(seed=0)
            rewards.append(env.step(action)[1])
        assert rewards == [0.0, 1.0, -1.0]


def test_the_same_games_by_pettingzoo() -> None:
    env = from_pettingzoo("tictactoe_v3", seat=1, opponent="games_for_tests:first")
    obs, info = env.reset(seed=0)
    assert (obs.shape, info["action_mask"].tolist()) == ((18,), [0, 1, 1, 1, 1, 1, 1, 1, 1])
    for action in (4, 2):
        assert env.step(action)[1:4] == (0.0, False, False)
    obs, reward, terminated, truncated, info = env.step(6)
    assert (reward, terminated, truncated, info["action_mask"].sum()) == (1.0, True, False, 9)
    assert obs.sum() == 6  # three of each
    cut = from_pettingzoo("rps_v2", seat=0, opponent="games_for_tests:first", max_cycles=2)  # rock
    cut.reset(seed=0)
    assert [cut.step(action)[1:4] for action in (1, 2)] == [(1.0, False, False), (-1.0, False, True)]


def test_parameters_of_a_game_by_its_id() -> None:
    kwargs = {"game": "connect_four", "rows": 4, "columns": 5}
    env = make_env(EnvConfig(id=OPENSPIEL, kwargs=kwargs))
    assert (env.observation_space.shape, env.action_space.n) == ((60,), 5)  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[dict[str, Any], type[EvopipeError], str]] = {
    "game": ({"game": "tic_tac_to"}, ParamsError, "env.kwargs: game: OpenSpiel has no game 'tic_tac_to', did you mean"),
    "parameter": (
        {"rowz": 3}, ParamsError, "env.kwargs: 'connect_four' of OpenSpiel takes no parameter 'rowz', did you mean 'row"
    ),
    "value": ({"rows": "x"}, ParamsError, "OpenSpiel cannot make 'connect_four' with {'rows': 'x'}: Wrong type for pa"),
    "field": ({"game": "mfg_crowd_modelling"}, ParamsError, "is a mean-field game, which has no players to take turns"),
    "seat": ({"seat": 2}, ParamsError, "env.kwargs: seat: 2 is none of 0 to 1; null draws one"),
    "weight": ({"loss_weight": 0}, ParamsError, "env.kwargs: loss_weight: 0 is no positive number; 1 changes nothing"),
    "opponent": ({"opponent": 3}, ParamsError, "opponent: 3 is no text: name random, the folder of an elite, or modul"),
    "nobody": ({"opponent": "nowhere"}, MissingInputError, "nowhere/policy.npz: not there; name random, the folder of"),
    "function": ({"opponent": "games_for_tests:frst"}, ParamsError, "has no 'frst', did you mean 'first'"),
    "missing": ({"opponents": [{"arrays": "a.npz", "chance": 1.0}]}, MissingInputError, "a.npz: this opponent is not "),
}  # fmt: skip


ELSEWHERE = {
    "nothing": ({"game": "tictacto_v3"}, "env.kwargs: game: 'tictacto_v3' names no environment of PettingZoo"),
    "arguments": ({"game": "tictactoe_v3", "rows": 4}, "env.kwargs: 'tictactoe_v3' does not take {'rows': 4}: "),
    "unlike": ({"game": "simple_speaker_listener_v4"}, "has agents of unlike spaces, and one network plays every seat"),
    "continuous": ({"game": "simple_spread_v3", "continuous_actions": True}, "a game has discrete ones from 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_is_no_game_of_pettingzoo_is_refused(case: str) -> None:
    given, sentence = ELSEWHERE[case]
    with pytest.raises(ParamsError) as raised:
        make_env(EnvConfig(id="evopipe.envs.games:PettingZoo-v0", kwargs=given))
    assert sentence in str(raised.value)


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    given, error, sentence = REFUSED[case]
    with pytest.raises(error) as raised:
        make_env(EnvConfig(id=OPENSPIEL, kwargs={"game": "connect_four", **given}))
    assert sentence in str(raised.value)


def test_files_that_are_not_what_they_are_named_are_refused(tmp_path: Path) -> None:
    path = Path(arrays(tmp_path, [1.0, 2.0, 3.0]))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"!")
    with pytest.raises(
        DataError, match=r"\.npz: this opponent's bytes have the hash [0-9a-f]{32}, not the one that it "
    ):
        nim(opponents=[{"arrays": str(path), "chance": 1.0}])
    path = tmp_path / f"{digest(b'no archive')}.npz"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"is no policy\.npz of an elite"):
        nim(opponents=[{"arrays": str(path), "chance": 1.0}])
    other = arrays(tmp_path, [1.0, 2.0])
    with pytest.raises(
        ParamsError, match="takes 8 observations and 2 discrete actions, this game has 8 and 3 discrete"
    ):
        nim(opponents=[{"arrays": other, "chance": 1.0}])
    both = [{"arrays": arrays(tmp_path, [1.0, 0.0, 0.0]), "chance": 0.7}] * 2
    with pytest.raises(ParamsError, match=r"their chances add up to 1\.4, at most 1 can be"):
        nim(opponents=both)


def test_players_of_ones_own_that_fail_are_told_of() -> None:
    with pytest.raises(EnvironmentFailed, match="opponent: games_for_tests:broken raised ValueError: no idea"):
        nim(seat=1, opponent="games_for_tests:broken").reset(seed=0)
    with pytest.raises(ValueError, match="the opponent in seat 0 chose 7, which is not legal there"):
        nim(seat=1, opponent="games_for_tests:wrong").reset(seed=0)


def test_a_seat_that_never_acts_is_told_of() -> None:
    env = GameEnv(Nim(1), seat=1, opponent="games_for_tests:first")
    with pytest.raises(RuntimeError, match="seat 1 was never to act in 1000 games"):
        env.reset(seed=0)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingInputError, match=r"from_openspiel needs pyspiel, which is not installed: pip install 'evopipe\[opens"
    ):
        from_openspiel("tic_tac_toe")
