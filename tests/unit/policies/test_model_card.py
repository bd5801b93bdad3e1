"""The model card says what the exported program's rows hold: rows made by its table are those of the policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from evopipe.envs.spaces import ObservationSpace
from evopipe.params.load import parse_params
from evopipe.policies.card import card
from evopipe.policies.policy import CARD, Policy
from evopipe.problems.env_export import spec_of, write
from evopipe.run.spec import first_members
from populations import problem

SCORE = {"mean": 1.23, "interval": [-1.0, 2.5], "std": 0.2, "median": 1.0, "iqm": 1.1}
NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
        "planes": spaces.Box(-1.0, 1.0, (1, 4, 5), np.float32),
        "goal": spaces.Discrete(3, start=2),
        "many": spaces.MultiDiscrete([2, 4]),
        "grid": spaces.Box(-9.0, 9.0, (2, 3), np.float32),
        "keys": spaces.MultiBinary(2),
    }
)


def written(space: spaces.Space[Any]) -> str:
    """The card of a policy that sees this space."""
    p = problem()
    about = {"algo": "dqn", "env": {"id": "My-v0"}, "hyper": {"lr": 0.001, "gamma": 0.5}, "evaluation": SCORE}
    made = Policy(p.algo, p.algo_config, first_members(p, 1)[0][0], {**p.spaces.to_json(), "action_start": 0, **about})
    made.observation_space = ObservationSpace.of(space)
    return card(made, episodes=7)


def table(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows, without its head."""
    rows = [re.findall(r"(?<=\| )[^|]*(?= \|)", line) for line in text.splitlines() if line.startswith("| ")]
    return rows[rows.index(["part", "shape", "columns", "what they are"]) + 1 :]


def test_the_table_names_every_part_in_the_rows_order() -> None:
    assert table(written(NESTED)) == [
        ["observation['goal']", "[]", "3", "one-hot, 3 values from 2 on"],
        ["observation['grid']", "[2, 3]", "6", "its numbers"],
        ["observation['image']", "[6, 5, 3]", "90", "its channels moved to the front, x / 255"],
        ["observation['keys']", "[2]", "2", "its numbers"],
        ["observation['many']", "[2]", "6", "one-hot each, 2, 4 values from 0 on"],
        ["observation['planes']", "[1, 4, 5]", "20", "channels first, (x + 1) / 2"],
    ]


def test_rows_made_as_the_table_says_are_the_policys() -> None:
    NESTED.seed(3)
    obs = NESTED.sample()
    by_hand = [
        np.eye(3)[obs["goal"] - 2],
        obs["grid"].ravel(),
        np.moveaxis(obs["image"], 2, 0).ravel() / np.float32(255),
        obs["keys"],
        np.eye(2)[obs["many"][0]],
        np.eye(4)[obs["many"][1]],
        (obs["planes"].ravel() + 1) / 2,
    ]
    np.testing.assert_allclose(ObservationSpace.of(NESTED).row(obs), np.concatenate(by_hand), rtol=1e-6)


def test_a_vector_needs_no_table() -> None:
    assert "what they are" not in written(gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32))


def test_the_card_says_how_good_it_is_and_with_which_hyper_parameters() -> None:
    lines = written(NESTED).splitlines()
    assert lines[:3] == ["---", "library_name: evopipe", "tags: [reinforcement-learning, dqn, My-v0]"]
    assert lines[5] == "# DQN on My-v0"
    at = lines.index("| held-out episodes | mean | 95 % interval | std | median | IQM |")
    assert lines[at + 2 : at + 8] == [
        "| 7 | 1.23 | [-1.0, 2.5] | 0.2 | 1.0 | 1.1 |",
        "",
        "| hyper-parameter | value |",
        "|---|---|",
        "| gamma | 0.5 |",
        "| lr | 0.001 |",
    ]
    assert "actions, values = program(obs)" in lines


def test_the_card_of_an_export_names_the_held_out_episodes(tmp_path: Path) -> None:
    """Not those by which members were chosen."""
    cfg = {
        "env": {"id": "CartPole-v1"}, "train": {"eval_episodes": 3}, "evaluate": {"episodes": 23},
        "export": {"program": False},
    }  # fmt: skip
    params = parse_params(cfg)
    spec = spec_of(params)
    (elite,), _ = first_members(spec, 1)
    write(tmp_path / "elite", params, spec, elite, {"hyper": dict(elite.hyper)}, {"elite": SCORE})
    text = (tmp_path / "elite" / CARD).read_text(encoding="utf-8")
    assert re.search(r"^\| 23 \| 1\.23 ", text, re.MULTILINE)
