"""Teams as folders: every agent's action for one observation or many, against networks by plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import evopipe
import populations
from evopipe.envs.make import opened
from evopipe.envs.team import read_spaces
from evopipe.errors import DataError, UsageError
from evopipe.policies import policy
from evopipe.policies.card import card
from evopipe.policies.play import play
from evopipe.policies.policy import TeamPolicy
from evopipe.run.spec import EnvSpec, first_members
from evopipe.storage import members as stored
from evopipe.storage.folders import read_folder
from populations import TEAM
from reference import function
from tiny import call

LSTM = {"network": {"encoder": [8], "latent": 8, "encoder_kind": "lstm"}, "learn_step": 64}
AGENTS, SIZES, CHOICES = ("red_0", "blue_0", "red_1"), (3, 2, 3), (2, 3, 4)


def described(p: EnvSpec) -> dict[str, Any]:
    with opened(p.env) as env:
        _, spaces = read_spaces(env)
    about = {"algo": p.train.algo, "config": p.algo_config.model_dump(mode="json"), **spaces}
    return {**about, "env": {"id": p.env.id, "kwargs": p.env.kwargs}}


def team(
    folder: Path, algo: str = "maddpg", env: str = TEAM, program: bool = False, critic: bool = False, **config: Any
) -> TeamPolicy:
    """A first member as a policy, saved and loaded."""
    p = populations.problem(env, algo, config=config)
    policy.save(folder, p.train.algo, first_members(p, 1)[0][0], described(p), program, "card\n", critic)
    found = policy.load(folder)
    assert isinstance(found, TeamPolicy)
    return found


def seen(n: int | None = 5, seed: int = 1) -> dict[Any, np.ndarray]:
    """Observations of `Relay`'s agents."""
    g = np.random.default_rng(seed)
    return {
        a: g.normal(size=(*([] if n is None else [n]), o)).astype(np.float32)
        for a, o in zip(AGENTS, SIZES, strict=True)
    }


def outputs(of: TeamPolicy, agent: int, obs: np.ndarray) -> torch.Tensor:
    """What one agent's own network says, where nobody shares: `[n, A]`, those of its actions."""
    p = populations.problem(TEAM, str(of.about["algo"]), config={"share": "none"}, kwargs=of.about["env"]["kwargs"])
    member, widths = first_members(p, 1)[0][0], p.widths["actor"]
    x = torch.zeros(len(obs), 3)
    x[:, : obs.shape[1]] = torch.from_numpy(obs)
    row = member.tensors["actor"].chunk(3)[agent]
    return function(member.arch, widths._replace(copies=1), row, x)[:, : of.team.actions[agent].size]


# ------------------------------------------------------------------------------------------------------- acting


def test_every_agent_takes_its_own_networks_likeliest_action(tmp_path: Path) -> None:
    made, obs = team(tmp_path / "elite", share="none"), seen(40)
    actions = made.act(obs)
    assert [*actions] == [*AGENTS]
    for i, agent in enumerate(AGENTS):
        assert (actions[agent] == outputs(made, i, obs[agent]).argmax(dim=1).numpy()).all()
        assert set(actions[agent]) <= set(range(CHOICES[i]))
        one = made.act({name: rows[3] for name, rows in obs.items()})[agent]
        assert type(one) is int
        assert one == actions[agent][3]


def test_continuous_actions_have_the_agents_own_bounds(tmp_path: Path) -> None:
    made, obs = team(tmp_path / "elite", "maddpg:continuous", share="none"), seen()
    actions = made.act(obs)
    for i, agent in enumerate(AGENTS):
        assert (actions[agent].shape, actions[agent].dtype) == ((5, 1 + i % 2), np.float32)
        np.testing.assert_allclose(actions[agent], torch.tanh(outputs(made, i, obs[agent])).numpy(), atol=1e-6)
    assert made.act(seen(None))["blue_0"].shape == (2,)


def test_who_is_named_by_the_environments_id_or_its_text(tmp_path: Path) -> None:
    made = team(tmp_path / "elite", env="teams_for_tests:Numbers")
    assert made.agents == (7, 3)
    rows = {7: np.zeros((4, 3), np.float32), 3: np.ones((4, 3), np.float32)}
    actions = made.act(rows)
    text = made.act({"3": rows[3], "7": rows[7]}, mask={"7": [True, True, True]})
    assert [*actions] == [7, 3]
    assert [*text] == ["3", "7"]
    assert all((actions[i] == text[str(i)]).all() for i in (7, 3))


def test_masks_are_obeyed_wherever_they_stand(tmp_path: Path) -> None:
    made, obs = team(tmp_path / "elite"), seen(30)
    mask = np.random.default_rng(3).random((30, 4)) < 0.5
    mask[~mask.any(axis=1), 2] = True
    free, bound = made.act(obs), made.act(obs, {"red_1": mask, "red_0": [False, True]})
    assert mask[np.arange(30), bound["red_1"]].all()
    assert (bound["red_0"] == 1).all()
    assert (bound["blue_0"] == free["blue_0"]).all()
    agrees = mask[np.arange(30), free["red_1"]]
    assert (bound["red_1"] == free["red_1"])[agrees].all()
    assert not agrees.all()
    explored = made.act(obs, {"red_1": mask}, epsilon=1.0, seed=4)
    assert mask[np.arange(30), explored["red_1"]].all()
    assert any((explored[agent] != free[agent]).any() for agent in AGENTS)

    within = team(tmp_path / "within", env="teams_for_tests:Sees")
    only = np.array([0, 0, 1], np.int8)
    both = {agent: {"observation": np.zeros(3, np.float32), "action_mask": only} for agent in within.agents}
    assert within.act(both) == {"ant_0": 2, "ant_1": 2}
    assert within.act(both, {"ant_0": [1, 0, 0]}) == {"ant_0": 0, "ant_1": 2}


def test_who_is_gone_gets_no_action_and_the_others_act_as_before(tmp_path: Path) -> None:
    for algo in ("maddpg", "ippo"):
        made, obs = team(tmp_path / algo, algo), seen()
        everyone, few = made.act(obs), made.act({agent: obs[agent] for agent in ("red_1", "blue_0")})
        assert [*few] == ["red_1", "blue_0"]
        assert all((few[agent] == everyone[agent]).all() for agent in few)


@pytest.mark.parametrize(
    ("obs", "mask", "said"),
    [
        ({}, {}, "obs is no dictionary of observations by agent"),
        ([1.0], {}, "obs is no dictionary of observations by agent"),
        ({"red_2": np.zeros(3)}, {}, "there is no agent 'red_2'.*red_1"),
        ({"red_0": np.zeros(4)}, {}, r"obs\['red_0'\] holds an observation of shape \(4,\)"),
        ({"red_0": np.zeros((2, 3)), "red_1": np.zeros((3, 3))}, {}, r"obs holds batches of unlike lengths \(2, 3\)"),
        (seen(None), {"red_0": [1, 1, 1]}, r"the mask of 'red_0' has shape \(3,\); expected \[2\] or \[1, 2\]"),
        (seen(None), {"red_0": [0, 0]}, "the mask of 'red_0' leaves no legal action: allow at least one"),
        (seen(None), {"nobody": [1]}, "there is no agent 'nobody'"),
    ],
)
def test_what_cannot_be_acted_on_is_refused(obs: Any, mask: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        team(tmp_path / "elite").act(obs, mask)


# ------------------------------------------------------------------------------------------------------- memory


def test_every_agent_remembers_and_who_is_gone_forgets(tmp_path: Path) -> None:
    made, rng = team(tmp_path / "elite", "ippo:continuous", **LSTM), np.random.default_rng(0)
    obs = [
        {a: rng.normal(size=(2, o)).astype(np.float32) for a, o in zip(AGENTS, SIZES, strict=True)} for _ in range(4)
    ]
    memory, kept = None, []
    for now in obs:
        kept.append(made.step(now, memory))
        memory = kept[-1][1]
    assert memory is not None
    assert memory.shape == (2, 3, made.memory)
    assert not np.array_equal(made.step(obs[-1])[0]["red_0"], kept[-1][0]["red_0"]), "what was seen before counts"
    # The second one comes at the third step.
    late, memory = [{a: rows for a, rows in now.items() if a != "blue_0" or t >= 2} for t, now in enumerate(obs)], None
    for t, now in enumerate(late):
        actions, memory = made.step(now, memory)
        assert np.array_equal(actions["red_0"], kept[t][0]["red_0"]), "no one hears of the others"
        assert memory[:, 1].any() == (t >= 2)
    fresh = made.step(obs[3], made.step(obs[2])[1])[0]
    assert np.array_equal(actions["blue_0"], fresh["blue_0"])
    with pytest.raises(UsageError, match="keeps a memory: call step"):
        made.act(obs[0])
    with pytest.raises(UsageError, match=r"memory has shape \(1, 3, \d+\); expected \[2, 3, \d+\]"):
        made.step(obs[0], memory[:1])


# ------------------------------------------------------------------------------------------- values, probabilities


def test_values_need_the_critic_and_know_everyone(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"exported without its critic; set export\.critic to true"):
        team(tmp_path / "bare").value(seen())
    made, obs = team(tmp_path / "elite", critic=True), seen()
    values = made.value(obs)
    assert [(rows.shape, rows.dtype) for rows in values.values()] == [((5,), np.float32)] * 3
    assert made.value(seen(None))["red_0"].shape == ()
    moved = made.value({**obs, "blue_0": obs["blue_0"] + 1.0})
    assert not np.allclose(moved["red_0"], values["red_0"]), "its critic reads what the other sees"
    own = team(tmp_path / "own", "ippo", critic=True)
    before, after = own.value(obs), own.value({**obs, "blue_0": obs["blue_0"] + 1.0})
    assert np.array_equal(before["red_0"], after["red_0"])
    assert not np.allclose(before["blue_0"], after["blue_0"])


@pytest.mark.parametrize("algo", ["maddpg", "ippo"])
def test_probabilities_are_those_of_each_agents_own_actions(algo: str, tmp_path: Path) -> None:
    made, obs = team(tmp_path / "elite", algo, share="none"), seen()
    found = made.probabilities(obs)
    for i, agent in enumerate(AGENTS):
        expected = outputs(made, i, obs[agent]).softmax(dim=1).numpy()
        np.testing.assert_allclose(found[agent], expected, atol=1e-6)
    masked = made.probabilities({agent: rows[0] for agent, rows in obs.items()}, {"red_1": [1, 0, 0, 1]})["red_1"]
    assert (masked[1:3] == 0).all()
    assert masked.sum() == pytest.approx(1.0)
    with pytest.raises(UsageError, match=f"a team of {algo} with continuous actions has no probabilities"):
        team(tmp_path / "vector", f"{algo}:continuous").probabilities(obs)


# ------------------------------------------------------------------------------------------------------- programs


@pytest.mark.parametrize(
    ("algo", "env", "config"),
    [
        ("maddpg", "teams_for_tests:Bees", {"share": "all"}),
        pytest.param("ippo:continuous", "teams_for_tests:Bees", LSTM, marks=pytest.mark.slow),
        pytest.param("mappo:multidiscrete", "teams_for_tests:Crew", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_each_agents_program_acts_as_the_team(algo: str, env: str, config: Any, tmp_path: Path) -> None:
    made = team(tmp_path / "elite", algo, env, program=True, **config)
    names = sorted(path.name for path in (tmp_path / "elite").glob("*.pt2"))
    assert names == [f"policy.{agent}.pt2" for agent in sorted(made.team.agents)]
    g, memory, kept = np.random.default_rng(0), None, {agent: torch.zeros(6, made.memory) for agent in made.agents}
    for _ in range(2):
        obs = {
            agent: g.normal(size=(6, space.size)).astype(np.float32)
            for agent, space in zip(made.agents, made.team.observations, strict=True)
        }
        actions, memory = made.step(obs, memory)
        for place, agent in enumerate(made.agents):
            program = torch.export.load(tmp_path / "elite" / f"policy.{agent}.pt2").module()
            if made.memory:
                mine, kept[agent] = program(torch.from_numpy(obs[agent]), kept[agent])
                np.testing.assert_allclose(kept[agent].numpy(), memory[:, place], atol=1e-6)
            else:
                mine = program(torch.from_numpy(obs[agent]))
            np.testing.assert_allclose(mine.numpy(), actions[agent], atol=1e-6)


def test_the_card_tells_each_agents_return_and_how_to_act(tmp_path: Path) -> None:
    made = team(tmp_path / "elite")
    score = {"mean": -3.0, "interval": [-4.0, -2.0], "std": 1.0, "median": -3.0, "iqm": -3.0}
    made.about |= {"hyper": {}, "evaluation": {**score, "agents": {"blue_0": -2.5, "red_0": 1.0, "red_1": -1.5}}}
    text = card(made, episodes=9)
    assert "| red_0 | 1.0 | 3 | 2 discrete |\n| blue_0 | -2.5 | 2 | 3 discrete |\n" in text
    assert "actions = policy.act({agent: obs, ...})" in text
    assert "policy.AGENT.pt2" in text


# ------------------------------------------------------------------------------------------------------- at play


def test_a_trained_member_is_a_team_too(tmp_path: Path) -> None:
    p = populations.problem(algo="ippo")
    members = first_members(p, 3)[0]
    stored.write(tmp_path / "trained", members, {"policy": described(p)})
    found = [evopipe.load(tmp_path / "trained", member=i) for i in range(3)]
    policy.save(tmp_path / "second", "ippo", members[1], described(p), False, "card")
    obs = seen(20)
    same = policy.load(tmp_path / "second").act(obs)
    for i, made in enumerate(found):
        assert isinstance(made, TeamPolicy)
        assert all(np.array_equal(made.act(obs)[a], same[a]) for a in AGENTS) == (i == 1)
    assert repr(found[0]).startswith("<TeamPolicy ippo, teams_for_tests:Relay: 3 agents with discrete actions")


@pytest.mark.parametrize("env", ["Drawn", "DrawnTurns", "DrawnSets"])
def test_a_team_at_play_obeys_turns_and_what_the_environment_sets(env: str, tmp_path: Path) -> None:
    """Two of them raise where an action is another one than they allow."""
    made = team(tmp_path / "elite", "ippo:continuous" if env == "DrawnSets" else "maddpg", f"teams_for_tests:{env}")
    played = play(made, seed=3, trust=True)
    assert len(played.frames) == len(played.rewards) + 1
    assert [frame[0, 0, 0] for frame in played.frames] == [*range(len(played.frames))]
    assert len(played.rewards) == {"Drawn": 9, "DrawnTurns": 4, "DrawnSets": 4}[env]


def test_the_command_draws_a_team_and_tells_what_it_counts(tmp_path: Path) -> None:
    made = team(tmp_path / "sum", env="teams_for_tests:Drawn")
    mean = team(tmp_path / "mean", env="teams_for_tests:Drawn", score="mean")
    total = play(made, seed=2, trust=True).total
    assert play(mean, seed=2, trust=True).total == pytest.approx(total / 3)
    answer = call(tmp_path, "play", "sum", "--seed", "2", "--gif", "a.gif", "--trust")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"seed 2: return {total:.4g}, 9 steps\n")
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames > 1
    answer = call(tmp_path, "play", "sum", "--gif", "a.gif")
    assert answer.code == 64
    assert "add --trust (trust=True) if this policy is your own or from someone you trust" in answer.err
    answer = call(tmp_path, "play", "sum", "--gif", "a.gif", "--env", "CartPole-v1")
    assert answer.err == (
        "error: environment 'CartPole-v1' is for one agent, the policy is not; play it where it was trained\n"
    )
    made.about["env"] = {"id": "teams_for_tests:DrawnSets", "kwargs": {}}
    with pytest.raises(DataError) as refused:
        play(made, trust=True)
    assert str(refused.value) == (
        "environment 'teams_for_tests:DrawnSets' has the agents ant_0 (3 observations, 3 discrete actions), ant_1 "
        "(3 observations, 3 discrete actions), the policy the agents red_0 (3 observations, 2 discrete actions), "
        "blue_0 (2 observations, 3 discrete actions), red_1 (3 observations, 4 discrete actions); play it in the "
        "environment that it was trained in"
    )


# ------------------------------------------------------------------------------------------------- folders


def test_a_team_in_another_teams_place_is_refused(tmp_path: Path) -> None:
    """By one sentence each: fewer agents, other groups, agents of one name, one agent's algorithm."""
    team(tmp_path / "elite", share="group")
    files = read_folder(tmp_path / "elite")
    about = policy.parse_json(files[policy.POLICY], "policy.json")
    changes: list[tuple[dict[str, Any], str]] = [
        ({"team": about["team"][:2]}, "the tensor .* is"),
        ({"team": []}, "team"),
        ({"team": [about["team"][0]] * 3}, "which need a name each"),
        ({"config": {**about["config"], "groups": {"red": ["red_0"]}}}, "the agent 'blue_0' stands in no group"),
        ({"algo": "dqn", "config": {}}, "dqn serves one agent, this is a team"),
    ]
    for change, said in changes:
        write(tmp_path / "elite", files, about | change)
        with pytest.raises(DataError, match=f"do not fit: .*{said}.*; export it again"):
            policy.load(tmp_path / "elite")
    single = {"observations": 3, "actions": 2, **{k: v for k, v in about.items() if k != "team"}}
    write(tmp_path / "elite", files, single)
    with pytest.raises(DataError, match="maddpg serves teams, this is one agent"):
        policy.load(tmp_path / "elite")


def write(folder: Path, files: dict[str, bytes], about: dict[str, Any]) -> None:
    policy.write_folder(folder, files | {policy.POLICY: policy.dump_json(about, "policy.json")})


def test_each_agents_module_reads_what_that_agent_sees(tmp_path: Path) -> None:
    """Agents that see unlike many numbers, of whom each acts as among the others."""
    made, obs = team(tmp_path / "elite", share="none"), seen(4)
    acts = made.act(obs)
    for place, agent in enumerate(AGENTS):
        assert made.module(place)(torch.from_numpy(obs[agent])).tolist() == acts[agent].tolist()
