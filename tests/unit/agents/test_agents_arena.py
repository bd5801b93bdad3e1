"""Games of textarena and questions of reasoning-gym: the packages themselves where they are installed, and games that
are written to textarena's published interface everywhere."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")

import evopipe
from evopipe.agents import adapters
from evopipe.errors import MissingInputError, ParamsError

SMALL = {
    "data.train_batch_size": 2, "data.max_response_length": 4, "actor_rollout_ref.rollout.n": 4,
    "language.tiny.hidden": 16, "language.tiny.layers": 1, "language.tiny.heads": 2, "language.full": True,
    "language.max_prompt": 4000, "trainer.total_training_steps": 1, "train.eval_episodes": 4,
    "train.confirm_episodes": 4, "evaluate.bootstrap": 100, "agents.retries": 0,
}  # fmt: skip

REGISTRY = """
from types import SimpleNamespace

ENV_REGISTRY = {
    name: SimpleNamespace(entry_point=f"textarena.envs.{place}:Game")
    for name, place in {"Dice-v0": "Dice.env", "Duel-v0": "Duel.env", "Words-v0": "Words.env"}.items()
}
"""
GAME = """
import random


class Game:
    env_id = "Dice-v0"
    players = 1

    def reset(self, num_players, seed=None):
        assert num_players == self.players, f"The number of players has to be {self.players}, received {num_players}"
        random.seed(seed)
        self.turns = 0
        self.roll()

    def roll(self):
        self.dice = random.randint(1, 6)

    def get_observation(self):
        return 0, f"You rolled {self.dice}."

    def step(self, action):
        self.turns += 1
        self.right = action == f"[{self.dice}]"
        self.roll()
        return self.turns == 2, {"turn": self.turns}

    def close(self):
        return {0: 1 if self.right else -1}, {0: {"invalid_move": False}}
"""


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package like textarena, with one game for one player, one for two, and one with words of nltk's."""
    made = {
        "__init__.py": "import importlib\n\n\ndef make(env_id, **kwargs):\n"
        "    from textarena.envs.registration import ENV_REGISTRY\n"
        "    module, _, name = ENV_REGISTRY[env_id].entry_point.partition(':')\n"
        "    return getattr(importlib.import_module(module), name)(**kwargs)\n",
        "envs/__init__.py": "", "envs/registration.py": REGISTRY, "envs/Dice/__init__.py": "", "envs/Dice/env.py": GAME,
        "envs/Duel/__init__.py": "", "envs/Duel/env.py": GAME.replace("players = 1", "players = 2"),
        "envs/Words/__init__.py": "", "envs/Words/env.py": "import nltk\n\nnltk.download('words')\n",
    }  # fmt: skip
    for name, text in made.items():
        path = tmp_path / "textarena" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "textarena"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "textarena"]:
        del sys.modules[name]


def made(name: str, seed: int) -> Any:
    found = adapters.find(name)
    assert found is not None
    return found.env_class.from_dict({**found.env_args, "seed": seed})


def played(name: str, seed: int, *actions: str) -> list[Any]:
    env = made(name, seed)
    return [env.reset(), *(env.step(action) for action in actions)]


@pytest.mark.usefixtures("arena")
def test_a_game_is_played_to_its_end_by_its_seed() -> None:
    games = [played("textarena:Dice-v0", seed, "[1]", "[2]") for seed in range(6)]
    assert games == [played("textarena:Dice-v0", seed, "[1]", "[2]") for seed in range(6)]
    assert len({game[0][0] for game in games}) > 1
    for game in games:
        assert game[1][1:] == (0.0, False, {"turn": 1})
        assert game[2][1] == (1.0 if game[1][0] == "You rolled 2." else -1.0)
        assert game[2][2:] == (True, {"turn": 2, "invalid_move": False})


@pytest.mark.usefixtures("arena")
def test_games_beside_each_other_do_not_share_their_chance_nor_take_ours() -> None:
    alone = [played("textarena:Dice-v0", seed, "[1]", "[1]") for seed in (1, 2)]
    random.seed(5)
    before = random.getstate()
    envs = [made("textarena:Dice-v0", seed) for seed in (1, 2)]
    turns = [[env.reset() for env in envs], *([env.step("[1]") for env in envs] for _ in range(2))]
    assert [list(game) for game in zip(*turns, strict=True)] == alone
    assert random.getstate() == before


@pytest.mark.usefixtures("arena")
def test_games_that_cannot_be_are_refused() -> None:
    with pytest.raises(ParamsError, match="Words-v0 asks for what textarena does not bring \\(nltk\\)"):
        adapters.find("textarena:Words-v0")
    with pytest.raises(ParamsError, match="textarena has no game 'Dyce-v0', did you mean 'Dice-v0'"):
        adapters.find("textarena:Dyce-v0")
    with pytest.raises(ValueError, match="is no game for one player: The number of players has to be 2, received 1"):
        made("textarena:Duel-v0", 1).reset()


@pytest.mark.thorough
@pytest.mark.usefixtures("arena")
def test_equal_trainings_in_a_game_are_equal() -> None:
    def trained() -> Any:
        return evopipe.AgentTrainer(config={**SMALL, "agents.environment": "textarena:Dice-v0"}).train().measures

    first = trained()
    assert first == trained()
    assert first[-1]["failed"] == 0.0


@pytest.mark.parametrize(
    ("kind", "package"), [("textarena:Dice-v0", "textarena"), ("reasoning-gym:chain_sum", "reasoning_gym")]
)
def test_a_package_that_is_not_there_is_one_sentence(kind: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingInputError, match=f"needs {package}, which is not installed: pip install 'evopipe"):
        adapters.find(kind)


@pytest.mark.parametrize("game", ["GuessTheNumber-v0-train", "FrozenLake-v0-random-train", "Mastermind-v0-train"])
def test_real_games_are_equal_by_seed(game: str) -> None:
    pytest.importorskip("textarena.agents", reason="an extra of its own: pip install 'evopipe[textarena]'")
    actions = ("[5]", "[up]", "[1 2 3 4]")
    assert played(f"textarena:{game}", 3, *actions) == played(f"textarena:{game}", 3, *actions)
    with pytest.raises(ParamsError, match="nltk"):
        adapters.find("textarena:Wordle-v0")
    with pytest.raises(ValueError, match="no game for one player"):
        made("textarena:TicTacToe-v0", 1).reset()


def test_a_question_of_reasoning_gym_is_scored() -> None:
    pytest.importorskip("reasoning_gym", reason="an extra of its own: pip install 'evopipe[reasoning]'")
    env = made("reasoning-gym:chain_sum", 3)
    question, _ = env.reset()
    assert question == made("reasoning-gym:chain_sum", 3).reset()[0] != made("reasoning-gym:chain_sum", 4).reset()[0]
    assert env.step(env.row["answer"])[1:3] == (1.0, True)
    assert made("reasoning-gym:chain_sum", 3).step("nothing")[1] < 1.0
    with pytest.raises(ParamsError, match="no generator 'chain', did you mean 'chain_sum'"):
        adapters.find("reasoning-gym:chain")
