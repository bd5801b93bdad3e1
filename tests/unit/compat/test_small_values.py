"""Small functions and objects that scripts put around a population, by hand: what they print, draw, save, count."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from evopipe.compat import agilerl
from evopipe.compat.agilerl import older
from evopipe.compat.agilerl.bandits import _Episodes
from evopipe.compat.agilerl.forms import form_of
from evopipe.compat.agilerl.population import _actions, _of_all, _space_from
from evopipe.errors import UsageError

NET = {"arch": "mlp", "hidden_size": [16, 8]}


def agents(algo: str = "DQN", size: int = 1, env: str = "CartPole-v1", hp: Any = None, **more: Any) -> list[Any]:
    made = gymnasium.make(env)
    spaces = made.observation_space, made.action_space
    return agilerl.create_population(algo, *spaces, NET, {"BATCH_SIZE": 16, **(hp or {})}, population_size=size, **more)


# --- around a population ----------------------------------------------------------------------------------------------


def test_a_line_for_each_agent_has_the_mean_of_its_last_five_tests(capsys: pytest.CaptureFixture[str]) -> None:
    pop = agents(size=2, hp={"LR": 0.002, "LEARN_STEP": 3, "TAU": 0.5})
    pop[0].fitness += [100.0, 1.0, 2.0, 3.0, 4.0, 7.5]
    agilerl.print_hyperparams(pop)
    hyper = "batch_size 16, gamma 0.99, grad_clip 10, learn_step 3, lr 0.002, tau 0.5"
    assert capsys.readouterr().out.splitlines() == [
        f"agent 0: fitness 3.5, mutation None, 16|8, {hyper}",
        f"agent 1: fitness none, mutation None, 16|8, {hyper}",
    ]


@pytest.mark.thorough
def test_scores_are_drawn_over_the_steps_of_their_tests_or_by_number() -> None:
    pop = agents(size=2)
    pop[0].fitness += [5.0, 8.0]
    pop[0].steps = [100, 200, 300]
    pop[1].fitness += [1.0, 2.0, 4.0]
    pop[1].steps = [100, 200]
    (axes,) = agilerl.plot_population_score(pop).axes
    found = {str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()] for line in axes.lines}
    assert found == {"agent 0": [(100, 5), (200, 8)], "agent 1": [(1, 1), (2, 2), (3, 4)]}
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "fitness")


def test_folders_of_a_population_name_index_and_last_steps(tmp_path: Path) -> None:
    pop = agents(size=2)
    pop[0].steps, pop[1].steps = [10, 40], [10, 50]
    agilerl.save_population_checkpoint(pop, str(tmp_path / "a"), overwrite_checkpoints=False)
    agilerl.save_population_checkpoint(pop, str(tmp_path / "b"), overwrite_checkpoints=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_0_40", "a_1_50", "b_0", "b_1"]
    assert agilerl.Agent.load(tmp_path / "a_1_50").steps == [10, 50]


def test_the_elite_is_saved_by_the_environments_and_the_algorithms_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pop = agents(size=2)
    for agent, fitness in zip(pop, (3.0, 9.0), strict=True):
        agent.fitness.append(fitness)
    how = agilerl.TournamentSelection(2, True, 2), agilerl.Mutations(0, 0, 0, 0, 0, 1)
    for names in ({"env_name": "a/b"}, {"env_name": "c", "algo": "MINE"}, {"env_name": "d", "elite_path": "here"}):
        children = agilerl.tournament_selection_and_mutation(pop, *how, **names, save_elite=True)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_b-elite_dqn", "c-elite_MINE", "here"]
    assert agilerl.Agent.load(tmp_path / "here").fitness == [9.0]
    assert [child.index for child in children] == [0, 1]
    assert (children[0].mut, children[1].mut == "None") == ("None", False), "the fittest alone is spared"
    with pytest.raises(UsageError, match="elite_path: it would be without effect: give save_elite too"):
        agilerl.tournament_selection_and_mutation(pop, *how, "d", elite_path="x")


# --- what older scripts say of spaces ---------------------------------------------------------------------------------


def test_dimensions_are_vectors_images_or_choices() -> None:
    spaces = gymnasium.spaces
    assert _space_from((3, 12, 14), False) == spaces.Box(0, 255, (3, 12, 14), np.uint8)
    assert _space_from((4, 12, 14), False).dtype == np.uint8
    assert _space_from((2, 12, 14), False) == spaces.Box(-np.inf, np.inf, (2, 12, 14), np.float32)
    assert _space_from(5, False) == _space_from([5], False) == spaces.Box(-np.inf, np.inf, (5,), np.float32)
    assert _space_from((6,), True) == _space_from(6, True) == spaces.Discrete(6)


def test_actions_are_discrete_where_they_can_be_unless_they_have_bounds() -> None:
    spaces = gymnasium.spaces
    assert _actions("dqn", 3, {}, False) == spaces.Discrete(3)
    assert _actions("ddpg", 2, {}, False) == spaces.Box(-1, 1, (2,), np.float32)
    bounds = {"MIN_ACTION": [-3.0, -2.0], "MAX_ACTION": [4.0, 5.0]}
    low, high = (np.array(bound, np.float32) for bound in bounds.values())
    assert _actions("ddpg", 2, bounds, False) == spaces.Box(low, high)
    assert _actions("ddpg", 1, {"MIN_ACTION": None, "MAX_ACTION": 7.0}, False) == spaces.Box(-1, 7, (1,), np.float32)
    assert _actions("ppo", 2, {}, False) == spaces.Discrete(2)
    assert _actions("ppo", 2, {"DISCRETE_ACTIONS": False}, False) == spaces.Box(-1, 1, (2,), np.float32)
    assert _actions("maddpg", [2, 3], {}, True) == [spaces.Discrete(2), spaces.Discrete(3)]
    team = _actions("maddpg", [1, 2], {"MAX_ACTION": [[2.0], [3.0, 4.0]]}, True)
    assert [(each.low.tolist(), each.high.tolist()) for each in team] == [([-1], [2]), ([-1, -1], [3, 4])]


def test_one_network_may_be_given_by_agent_or_by_group() -> None:
    spaces, net = dict.fromkeys(("red_0", "red_1", "blue_0")), {"latent_dim": 8}
    assert _of_all(net, spaces) == net
    assert _of_all({"red": net, "blue": net}, spaces) == net
    assert _of_all({"red_0": net, "red_1": net, "blue_0": net}, spaces) == net
    assert _of_all({}, spaces) == {}
    with pytest.raises(UsageError, match="all agents of a team have networks of one architecture"):
        _of_all({"red": net, "blue": {"latent_dim": 9}}, spaces)


def test_channels_are_moved_only_where_they_are_last() -> None:
    spaces, move = gymnasium.spaces, agilerl.observation_space_channels_to_first
    low = np.arange(5 * 4 * 2, dtype=np.float32).reshape(5, 4, 2)
    moved = move(spaces.Tuple([spaces.Box(low, low + 1), spaces.Discrete(3)]))
    assert isinstance(moved[0], spaces.Box)
    assert np.array_equal(moved[0].low, np.moveaxis(low, 2, 0))
    assert np.array_equal(moved[0].high, np.moveaxis(low, 2, 0) + 1)
    for kept in (spaces.Box(0, 1, (3, 4, 3)), spaces.Box(0, 1, (2, 5, 4)), spaces.Box(0, 1, (5, 2)), moved[1]):
        assert move(kept) == kept


def test_a_form_keeps_the_order_of_its_own_parts() -> None:
    first = {"b": np.array([1, 2], np.int64), "a": (np.float32(0.5), np.ones((2, 2), np.float32))}
    form = form_of(first, np.array([0.25, 0.5], np.float32), several=False)
    assert (form.size, form.width, form.vectors) == (7, 2, True)
    other = {"a": (np.float32(9.5), np.arange(4, dtype=np.float32).reshape(2, 2)), "b": np.array([7, 8])}
    rows = form.rows(other, several=False)
    assert rows.tolist() == [[7, 8, 9.5, 0, 1, 2, 3]]
    back = form.back(np.repeat(rows, 2, axis=0))
    assert (back["b"].tolist(), back["b"].dtype) == ([[7, 8]] * 2, np.int64)
    assert back["a"][0].tolist() == [9.5] * 2
    assert back["a"][1].tolist() == [[[0, 1], [2, 3]]] * 2
    assert form.own(np.array([[1.0, 2.0]])).dtype == np.float32
    choices = form_of(np.zeros((3, 4)), np.array([1, 0, 1]), several=True)
    assert (choices.size, choices.width, choices.vectors) == (4, 1, False)
    assert choices.actions(np.array([[1], [2], [3]]), 3).tolist() == [1, 2, 3]
    with pytest.raises(UsageError, match=r"of shape \(3,\) was saved, the first one had \(4,\)"):
        choices.rows(np.zeros((2, 3)), several=True)


# --- episodes and learn steps of older scripts ------------------------------------------------------------------------


def test_older_rollouts_have_their_default_length() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        (ppo,) = older.initialPopulation("PPO", {"LEARN_STEP": 5}, state_dim=(4,), action_dim=2, net_config=NET)
        (dqn,) = older.initialPopulation("DQN", {"LEARN_STEP": 5}, state_dim=(4,), action_dim=2, net_config=NET)
    assert (ppo.learn_step, dqn.learn_step) == (agents("PPO")[0].learn_step, 5)
    assert ppo.learn_step != 5


def test_an_older_offline_episode_is_as_many_updates_as_it_has_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def called(*args: Any, **kwargs: Any) -> None:
        asked.append(kwargs)

    env = agilerl.make_vect_envs("CartPole-v1", num_envs=3)
    monkeypatch.setattr(older.functions, "train_offline", called)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        older._by_episodes("old", called)(env, "name", n_episodes=7, max_steps=10, evo_epochs=2, evo_loop=4)
        older._by_episodes("old", lambda *args, **kwargs: called(**kwargs))(env, "name")
    assert asked == [
        {"max_steps": 70, "evo_steps": 20, "eval_steps": 10, "eval_loop": 4},
        {"max_steps": 2000 * 1500, "evo_steps": 5 * 1500, "eval_steps": 500, "eval_loop": 1},
    ]


# --- bandits ----------------------------------------------------------------------------------------------------------

FEATURES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def test_each_arm_has_the_row_in_its_own_block_and_the_right_one_is_paid() -> None:
    env = agilerl.BanditEnv(FEATURES, ["no", "yes", "maybe"], seed=3)
    right = {1.0: 1, 3.0: 2, 5.0: 0}  # labels in their order: maybe, no, yes
    assert (env.arms, env.context_dim) == (3, (6,))
    shown, seen = env.reset(), set()
    for t in range(30):
        row = shown[0, :2].tolist()
        expected = np.zeros((3, 6))
        for arm in range(3):
            expected[arm, 2 * arm : 2 * arm + 2] = row
        assert shown.tolist() == expected.tolist()
        arm = t % 3
        shown, reward = env.step(arm)
        assert reward == float(arm == right[row[0]])
        seen.add(row[0])
    assert seen == {*right}
    one, two = (env.reset(seed=8).tolist() for _ in range(2))
    assert one == two == agilerl.BanditEnv(FEATURES, ["no", "yes", "maybe"], seed=8).reset().tolist()
    for rows, labels in ((FEATURES, [1, 2]), (FEATURES[0], [1, 2]), (FEATURES[:0], [])):
        with pytest.raises(UsageError, match=r"must be \[N, d\] and \[N\]"):
            agilerl.BanditEnv(rows, labels)
    with pytest.raises(UsageError, match="all targets are one label"):
        agilerl.BanditEnv(FEATURES, [4, 4, 4])


def test_an_episode_of_a_bandit_is_cut_after_its_steps_and_leaves_the_scripts_own_alone() -> None:
    env = agilerl.BanditEnv(FEATURES, [0, 1, 2], seed=3)
    before = env._random.bit_generator.state
    episodes = _Episodes(env, 3)
    for _ in range(2):
        episodes.reset(seed=1)
        assert [episodes.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    assert env._random.bit_generator.state == before


def test_a_bandits_agent_counts_the_arms_that_it_chose_since_it_learned() -> None:
    env = agilerl.BanditEnv(FEATURES, [0, 1, 2])
    spaces = gymnasium.spaces.Box(0, 1, env.context_dim), gymnasium.spaces.Discrete(env.arms)
    agent = agilerl.NeuralUCB(*spaces, net_config={"encoder_config": {"hidden_size": [8]}})
    context = env.reset()
    assert agent.get_action(context) in (0, 1, 2)
    assert agent.get_action(np.stack([context] * 4)).shape == (4,)
    agent.set_training_mode(False)
    agent.get_action(context)
    assert [float(agent._hyper()["learn_step"]) for _ in range(2)] == [5.0, 0.0]
    batch = agent._batch((context, np.array([[0.5], [0.0], [1.0]])), torch.ones(1))
    rows = batch.obs[0].reshape(3, 3, 6)
    assert rows[:, 0].tolist() == context.tolist()
    assert not rows[:, 1:].any()
    assert batch.reward[0].tolist() == [0.5, 0.0, 1.0]
    assert not batch.discount.any()
