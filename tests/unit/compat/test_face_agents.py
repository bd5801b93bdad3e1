"""Agents one by one: what they see, learn from and leave to their children is what members do in a population."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
import torch

from evopipe import parse_params
from evopipe.algos import get
from evopipe.compat import agilerl
from evopipe.compat.agilerl.learning import batch_of, steps_of
from evopipe.compat.agilerl.settings import _network_of, block_of
from evopipe.compat.agilerl.vect import Marks, marked
from evopipe.errors import UsageError
from evopipe.problems.env import begin
from evopipe.problems.specs import make_spec
from evopipe.regimes.warm import read_warm
from evopipe.rng import Purpose, Stream
from evopipe.run.spec import first_members
from evopipe.searchers.apply import evolve
from evopipe.stages import buffer, fetch
from evopipe.types import ACTS, GONE, Batch
from populations import finish, same

NET = {"arch": "mlp", "hidden_size": [16, 16]}
COMMON = ("swap_channels", "max_steps", "evo_steps", "eval_steps", "eval_loop")
ENDS = ("tournament", "mutation", "checkpoint", "checkpoint_path", "overwrite_checkpoints", "save_elite", "elite_path",
        "wb", "verbose", "accelerator", "wandb_api_key")  # fmt: skip
FIRST, HPS = ("env", "env_name"), ("INIT_HP", "MUT_P")
DOCUMENTED = {
    "train_off_policy": (*FIRST, "algo", "pop", "memory", *HPS, *COMMON, "learning_delay", "eps_start", "eps_end",
                         "eps_decay", "target", "n_step", "per", "n_step_memory", *ENDS, "wandb_kwargs"),
    "train_on_policy": (*FIRST, "algo", "pop", *HPS, *COMMON, "target", *ENDS, "wandb_kwargs", "collect_rollouts_fn"),
    "train_offline": (*FIRST, "dataset", "algo", "pop", "memory", *HPS, *COMMON, "target", *ENDS[:-1],
                      "minari_dataset_id", "remote", "wandb_api_key"),
    "train_multi_agent_off_policy": (*FIRST, "algo", "pop", "memory", "sum_scores", *HPS, *COMMON, "learning_delay",
                                     "target", *ENDS),
}  # fmt: skip
DEFAULTS = {"max_steps": 1_000_000, "evo_steps": 10_000, "eval_loop": 1, "learning_delay": 0, "eps_start": 1.0,
            "eps_end": 0.1, "eps_decay": 0.995, "verbose": True, "sum_scores": True}  # fmt: skip


def agents(algo: str = "DQN", size: int = 1, hp: Any = None, env: str = "CartPole-v1", **more: Any) -> Any:
    made = gymnasium.make(env)
    return agilerl.create_population(
        algo, made.observation_space, made.action_space, NET, {"BATCH_SIZE": 16} if hp is None else hp,
        population_size=size, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_arguments_and_defaults_are_the_documented_ones(name: str) -> None:
    found = inspect.signature(getattr(agilerl, name)).parameters
    assert tuple(found) == DOCUMENTED[name]
    team = {"max_steps": 50_000, "evo_steps": 25} if "multi_agent" in name else {}
    for each, default in (DEFAULTS | team).items():
        assert each not in found or found[each].default == default


# --- acting -----------------------------------------------------------------------------------------------------------


def test_actions_are_the_environments_own() -> None:
    obs = np.zeros((3, 4), np.float32)
    (agent,) = agents()
    assert agent.get_action(obs).shape == (3,)
    assert agent.get_action(obs[0]).shape == ()
    agent.set_training_mode(False)
    assert len({agent.get_action(obs, epsilon=1.0).tobytes() for _ in range(5)}) == 1
    agent.set_training_mode(True)
    assert len({agent.get_action(np.zeros((32, 4)), epsilon=1.0).tobytes() for _ in range(5)}) == 5
    (agent,) = agents("DDPG", env="Pendulum-v1")
    assert agent.action_space.contains(agent.get_action(np.zeros(3, np.float32)))
    mask = np.array([0, 1])
    assert {int(agents()[0].get_action(obs[0], 1.0, mask)) for _ in range(5)} == {1}


def test_drawn_actions_come_back_as_they_were() -> None:
    """PPO's are in the environment's units, and unclipped, until the loop clips them."""
    (agent,) = agents("PPO", env="Pendulum-v1", hp={"ACTION_STD_INIT": 3.0})
    action, log_prob, entropy, value = agent.get_action(np.zeros((200, 3), np.float32))
    assert (action.shape, log_prob.shape, entropy.shape, value.shape) == ((200, 1), (200,), (200,), (200,))
    assert np.abs(action).max() > 2.0
    drawn = agent.breed.drawn(action, 200)
    assert torch.allclose(drawn, torch.from_numpy(action) / 2.0, atol=1e-6)  # bounds are ±2
    assert entropy == pytest.approx(0.5 * np.log(2 * np.pi * np.e) + np.log(3.0), abs=1e-5)
    expected = -0.5 * (drawn[:, 0] / 3.0) ** 2 - np.log(3.0) - 0.5 * np.log(2 * np.pi)
    mean = agent.breed.spec.algo.greedy(agent.breed.spec.algo_config, agent.live().state, torch.zeros(1, 1, 3), None)
    assert abs(float(mean)) < 0.5  # so that the mean's share is small
    assert log_prob == pytest.approx(expected.numpy(), abs=0.5)


# --- learning ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_learned_from_by_the_populations_own_update() -> None:
    (agent,), g = agents(), np.random.default_rng(0)
    state, following = g.normal(size=(2, 16, 4)).astype(np.float32)
    action, reward, done = g.integers(2, size=16), g.normal(size=16).astype(np.float32), g.random(16) < 0.3
    other = agent.clone()
    agent.learn((state, action, reward, following, done))
    spec, cohort = other.breed.spec, other.live()
    batch = Batch(
        torch.from_numpy(state)[None], torch.from_numpy(action)[None], torch.from_numpy(reward)[None],
        0.99 * (1.0 - torch.from_numpy(done).float()[None]), torch.from_numpy(following)[None], None,
        torch.full((1, 16), 1 / 16),
    )  # fmt: skip
    draw = Stream(cohort.keys, Purpose.UPDATE, torch.tensor([0]))
    spec.algo.update(spec.algo_config, cohort.state, cohort.hyper, batch, cohort.healthy, draw, 0)
    assert same(agent.member, other.member)
    memory = agilerl.ReplayBuffer(16)
    memory.save_to_memory_vect_envs(state, action, reward, following, done)
    before = agent.member
    agent.learn(memory.sample(64))
    assert not same(agent.member, before)


@pytest.mark.parametrize("algo", ["DQN", "Rainbow DQN", "DDPG", "TD3", "SAC", "CQN"])
def test_every_algorithm_learns_from_a_memory(algo: str) -> None:
    env = "CartPole-v1" if "discrete" in get(agilerl.settings.algorithm_of(algo)).ACTIONS else "Pendulum-v1"
    (agent,), vect = agents(algo, env=env), agilerl.make_vect_envs(env, num_envs=4)
    memory = agilerl.PrioritizedReplayBuffer(200, num_envs=4, n_step=3)
    state, _ = vect.reset()
    for _ in range(20):
        action = agent.get_action(state, 0.5)
        following, reward, terminated, _, _ = vect.step(action)
        memory.save_to_memory_vect_envs(state, action, reward, following, terminated)
        state = following
    before, trees = agent.member, memory.replay.priorities
    assert trees is not None
    assert set(trees.levels[0][0, : len(memory)].tolist()) == {1.0}
    for _ in range(3):
        told = agent.learn(memory.sample(agent.batch_size))
        assert np.isfinite(told[0] if algo == "Rainbow DQN" else told)
    assert not same(before, agent.member)
    assert len(set(trees.levels[0][0, : len(memory)].tolist())) > 2


def test_resets_are_no_transitions() -> None:
    """CartPole pays 1 a step, and the reset that follows an end pays 0."""
    env, memory = agilerl.make_vect_envs("CartPole-v1", 3, max_episode_steps=4), agilerl.ReplayBuffer(1000)
    longer = agilerl.MultiStepReplayBuffer(1000, num_envs=3, n_step=3)
    state, _ = env.reset()
    for _ in range(25):
        following, reward, terminated, _, _ = env.step(np.zeros(3, np.int64))
        for each in (memory, longer):
            each.save_to_memory_vect_envs(state, np.zeros(3, np.int64), reward, following, terminated)
        state = following
    assert len(memory) == memory.counter == 3 * 20  # of 25 steps every fifth is a reset
    _, _, reward, _, done = memory.sample(200)
    assert set(reward.tolist()) == {1.0}
    assert not done.any()  # the time limit cuts, and ends nothing
    assert {*longer.replay.rows[0, : len(longer), -1].tolist()} == {1.0, 2.0, 3.0}  # fewer where an episode ends


def test_a_rollout_knows_resets_and_ends() -> None:
    """By the observations' own knowledge; without it by the flags, before each step or after it."""
    (agent,) = agents("PPO")
    no, yes = np.array([False]), np.array([True])
    plain = [np.full((1, 4), t, np.float32) for t in range(5)]
    ends = [Marks(yes, no, no), Marks(no, no, no), Marks(no, yes, no), Marks(yes, no, no), Marks(no, no, yes)]
    seen = [marked(obs, marks) for obs, marks in zip(plain, ends, strict=True)]
    numbers = [np.zeros(1)] * 4
    actions: Any = [np.zeros(1, np.int64)] * 4
    dones: list[Any] = []
    dones.append(dones)
    taken = steps_of(agent.breed, (seen[:4], actions, numbers, numbers, dones * 4, numbers, seen[4]))
    assert [bool(each.begins[0]) for each in taken] == [True, False, False, True]
    assert [bool(each.idle[0]) for each in taken] == [False, False, True, False]
    assert [bool(each.terminated[0]) for each in taken] == [False, True, False, False]
    assert [bool(each.truncated[0]) for each in taken] == [False, False, False, True]
    after = [0, 1, 0, 0]
    taken = steps_of(
        agent.breed, (plain[:4], actions, numbers, numbers, [np.array([x]) for x in after], numbers, plain[4])
    )
    assert [bool(each.terminated[0]) for each in taken] == [False, True, False, False]
    assert [bool(each.begins[0]) for each in taken] == [True, False, True, False]
    before = [np.array([x]) for x in (0, 0, 1, 0)]
    taken = steps_of(agent.breed, (plain[:4], actions, numbers, numbers, before, numbers, plain[4], np.array([1])))
    assert [bool(each.terminated[0]) for each in taken] == [False, True, False, True]
    with pytest.raises(UsageError, match="dones holds what is no array of 1 flags"):
        steps_of(agent.breed, (plain[:4], actions, numbers, numbers, dones * 4, numbers, plain[4]))


def test_rollouts_of_any_vector_leave_resets_out() -> None:
    (agent,) = agents("PPO", hp={"LEARN_STEP": 30, "BATCH_SIZE": 8})
    with pytest.raises(UsageError, match="the agent has no memory: call collect_rollouts"):
        agilerl.collect_rollouts_recurrent(agent, None)
    for mode, idle in (("NextStep", 2), ("SameStep", 0)):
        mode = next(each for each in gymnasium.vector.AutoresetMode if each.value == mode)
        env = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)] * 3, autoreset_mode=mode
        )
        found, obs, done, scores, info = agilerl.collect_rollouts(agent, env)
        taken = agent.rollout_buffer.taken
        assert len(taken) == 10
        assert [int(sum(each.idle[i] for each in taken)) for i in range(3)] == [idle] * 3
        assert set(found) == {4.0}
        ended = [t for t, each in enumerate(taken) if each.truncated[0]]
        assert all(taken[t + 1 + bool(idle)].begins[0] for t in ended if t + 1 + bool(idle) < 10)
        for t in ended:  # the true last observation, and not the next episode's first
            assert np.abs(taken[t].next_obs[0, 0] - taken[t].obs[0, 0]) < 0.05
        agilerl.collect_rollouts(agent, env, last_obs=obs, last_done=done, last_scores=scores, last_info=info)
        assert np.isfinite(agent.learn())
        assert len(agent.rollout_buffer) == 0
        env.close()


@pytest.mark.parametrize("continuous", [True, False])
def test_a_team_learns_by_a_loop_of_ones_own(continuous: bool) -> None:
    """What it learns from is what a whole run would: each agent's own numbers in its row, pads, and legal choices."""
    from mpe2 import simple_speaker_listener_v4

    env = simple_speaker_listener_v4.parallel_env(continuous_actions=continuous, max_cycles=6)
    state, _ = env.reset(seed=1)
    ids = list(env.agents)
    (agent,) = agilerl.create_population(
        "MADDPG", {each: env.observation_space(each) for each in ids}, {each: env.action_space(each) for each in ids},
        NET, {"BATCH_SIZE": 8, "LEARN_STEP": 1},
    )  # fmt: skip
    memory = agilerl.MultiAgentReplayBuffer(20, agent_ids=ids)
    for _ in range(25):
        if not env.agents:
            state, _ = env.reset()
        action, saved = agent.get_action(state, epsilon=0.2)
        following, reward, terminated, _, _ = env.step(action)
        memory.save_to_memory(state, saved, reward, following, terminated)
        state = following
    assert (len(memory), memory.counter) == (20, 25)
    batch = batch_of(agent.breed, memory.sample(50), torch.tensor([0.9]))
    assert tuple(batch.obs.shape) == (1, 50, 2, 11)
    assert batch.obs[0, :, 0, 3:].abs().max() == 0.0  # the speaker sees three numbers
    assert batch.obs[0, :, 1, 3:].abs().max() > 0.0
    assert batch.discount.unique().tolist() == pytest.approx([0.9])
    if not continuous:  # the speaker has three words, the listener five ways
        assert batch.legal is not None
        assert batch.legal[0, 0].tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    before = agent.member
    assert np.isfinite(agent.learn(memory.sample(8)))
    assert not same(before, agent.member)
    assert np.isfinite(agent.test(env))
    with pytest.raises(UsageError, match="a team learns from what"):
        agent.learn((state, action, reward, following, terminated))


@pytest.mark.parametrize(("algo", "kwargs"), [("IPPO", {}), ("MAPPO", {"continuous_actions": True})])
def test_a_team_learns_from_its_own_steps_by_a_loop_of_ones_own(algo: str, kwargs: dict[str, Any]) -> None:
    """A rollout is what a whole run's would be: also where one agent leaves before the other, and comes back."""
    from mpe2 import simple_speaker_listener_v4

    env = simple_speaker_listener_v4.parallel_env(max_cycles=4, **kwargs)
    obs, _ = env.reset(seed=1)
    ids = list(env.agents)
    (agent,) = agilerl.create_population(
        algo, {each: env.observation_space(each) for each in ids}, {each: env.action_space(each) for each in ids},
        NET, {"BATCH_SIZE": 4, "LEARN_STEP": 8},
    )  # fmt: skip
    steps: list[list[Any]] = [[] for _ in range(6)]
    for t in range(8):
        if t == 2:
            del obs["speaker_0"]  # gone for one step
        action, log_prob, entropy, value = agent.get_action(obs)
        assert [*action] == [*log_prob] == [*entropy] == [*value] == [*obs]
        may = {each: np.clip(own, 0.0, 1.0) if kwargs else own for each, own in action.items()}
        following, reward, terminated, truncated, _ = env.step(
            {each: may.get(each, env.action_space(each).sample()) for each in ids}
        )
        done = {each: terminated[each] or truncated[each] for each in ids}
        for part, new in zip(steps, (obs, action, log_prob, reward, done, value), strict=True):
            part.append({each: new[each] for each in obs})
        obs = following if env.agents else env.reset()[0]
    found = steps_of(agent.breed, (*steps, obs))
    assert [each.obs.shape for each in found] == [(2, 11)] * 8
    assert [each.begins.tolist() for each in found] == [[t in (0, 2, 3, 4), t in (0, 4)] for t in range(8)]
    assert [each.idle.tolist() for each in found] == [[t == 2, False] for t in range(8)]
    assert [each.terminated.tolist() for each in found] == [[t in (1, 3, 7), t in (3, 7)] for t in range(8)]
    assert [each.reward[1] for each in found] == pytest.approx([each["listener_0"] for each in steps[3]])
    assert (found[2].obs[0] == 0.0).all()
    if not kwargs:
        assert found[0].legal is not None
        assert found[0].legal.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
        told = agent.breed.spec.algo.answers(agent.breed.spec.algo_config).chances(
            agent.breed.spec.algo_config, agent.live().state, torch.from_numpy(found[0].obs)[None],
            torch.from_numpy(found[0].legal)[None], torch.zeros(1, 2, 0),
        )  # fmt: skip
        np.testing.assert_allclose(told.log_prob(found[0].action[None])[0], found[0].log_prob, atol=1e-6)
    before = agent.member
    assert np.isfinite(agent.learn((*steps, obs)))
    assert not same(before, agent.member)
    whole = [{each: [step[each] for step in part[4:]] for each in ids} for part in steps]  # as each agent's own lists
    began = {each: [False, *whole[4][each][:-1]] for each in ids}
    last = {each: whole[4][each][-1] for each in ids}
    other = steps_of(agent.breed, (*whole[:4], began, whole[5], obs, last))
    for one, two in zip(found[4:], other, strict=True):
        assert all(
            np.array_equal(getattr(one, name), getattr(two, name)) for name in ("obs", "reward", "terminated", "idle")
        )
        assert torch.equal(one.action, two.action)
    with pytest.raises(UsageError, match="parts of a rollout have unlike lengths"):
        agent.learn((*steps[:5], steps[5][1:], obs))


def test_who_is_gone_from_the_next_state_has_ended_whatever_its_done_says() -> None:
    seen, done = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    spaces = {"a_0": seen, "a_1": seen}, {"a_0": done, "a_1": done}
    (agent,) = agilerl.create_population("MADDPG", *spaces, NET, {"BATCH_SIZE": 2, "LEARN_STEP": 2})
    obs, nobody = {each: np.full(3, 0.5, np.float32) for each in spaces[0]}, dict.fromkeys(spaces[0], False)
    for following, discounts in ((obs, [0.9, 0.9]), ({"a_1": obs["a_1"]}, [0.0, 0.9])):
        memory = agilerl.MultiAgentReplayBuffer(9, agent_ids=["a_0", "a_1"])
        memory.save_to_memory(obs, {"a_0": 0, "a_1": 1}, dict.fromkeys(obs, 1.0), following, nobody)
        batch = batch_of(agent.breed, memory.sample(2), torch.tensor([0.9]))
        assert batch.discount[0].tolist() == [pytest.approx(discounts)] * 2


def test_who_has_just_ended_stands_in_nobodys_target() -> None:
    """Its last observation, which environments give once more, is no part of a situation that others meet."""
    seen, done = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    spaces = {"a_0": seen, "a_1": seen}, {"a_0": done, "a_1": done}
    obs, nobody = {each: np.full(3, 0.5, np.float32) for each in spaces[0]}, dict.fromkeys(spaces[0], False)
    learned = []
    for following in (obs, {"a_1": obs["a_1"]}):
        (agent,) = agilerl.create_population("MAPPO", *spaces, NET, {"BATCH_SIZE": 2, "LEARN_STEP": 2})
        action, log_prob, _, value = agent.get_action(obs)
        rewards, dones = dict.fromkeys(obs, 1.0), [nobody, {"a_0": True, "a_1": False}]
        steps = [[each] * 2 for each in (obs, action, log_prob, rewards)]
        found = steps_of(agent.breed, (*steps, dones, [value] * 2, following))
        assert [each.next_alive.tolist() for each in found] == [[ACTS, ACTS], [GONE, ACTS]]
        agent.learn((*steps, dones, [value] * 2, following))
        learned.append(agent.member)
    assert same(*learned)


def test_a_team_with_a_memory_acts_by_it_and_is_trained_whole() -> None:
    seen, done = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
    (agent,) = agilerl.create_population(
        "IPPO", {"a_0": seen, "a_1": seen}, {"a_0": done, "a_1": done},
        {"encoder_config": {"hidden_state_size": 4}, "latent_dim": 8}, {"RECURRENT": True},
    )  # fmt: skip
    agent.set_training_mode(False)
    obs = {"a_0": np.ones((5, 3), np.float32), "a_1": np.zeros((5, 3), np.float32)}
    *_, value, memory = agent.get_action(obs)
    assert memory.shape[:2] == (5, 2)
    assert not np.allclose(agent.get_action(obs, hidden_state=memory)[3]["a_0"], value["a_0"])
    assert (agent.get_action({"a_0": obs["a_0"]})[4][:, 1] == 0.0).all(), "who is gone forgets"
    with pytest.raises(UsageError, match="a team with a memory is trained whole"):
        agent.learn(([obs], [], [], [], [], [], obs))


# --- evolution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elitism", [True, False])
def test_select_and_mutation_are_evolve(elitism: bool) -> None:
    pop = agents(size=4)
    for agent, fitness in zip(pop, (1.0, 4.0, 2.0, 3.0), strict=True):
        agent.fitness.append(fitness)
    tournament = agilerl.TournamentSelection(2, elitism, 4)
    mutations = agilerl.Mutations(no_mutation=0.1, architecture=0.3, parameters=0.3, rl_hp=0.3)
    spec, members = pop[0].breed.spec, [agent.member for agent in pop]
    born = evolve(
        tournament.config, mutations.config, spec.traits, members, np.array([1.0, 4.0, 2.0, 3.0]), spec.seed, 1, 4
    )
    elite, chosen = tournament.select(pop)
    children = mutations.mutation(chosen)
    assert same(elite.member, pop[1].member)
    assert [child.mutation for child in children] == [*born.mutations]
    for child, expected in zip(children, born.members, strict=True):
        assert same(child.member, expected)
        ours = child.member
        assert (ours.slot, ours.id, ours.parent, ours.key) == (
            expected.slot, expected.id, expected.parent, expected.key
        )  # fmt: skip
        assert (dict(child.hp), ours.arch) == (dict(expected.hyper), expected.arch)


def test_a_clone_shares_nothing() -> None:
    (agent,) = agents()
    child, before = agent.clone(), agent.member
    child.learn((np.ones((4, 4)), np.zeros(4, np.int64), np.ones(4), np.ones((4, 4)), np.zeros(4)))
    child.fitness.append(1.0)
    assert same(agent.member, before)
    assert agent.fitness == []
    assert not same(child.member, before)


def test_selection_without_a_test_is_refused() -> None:
    with pytest.raises(UsageError, match=r"call agent\.test\(env\) for each first"):
        agilerl.TournamentSelection(2, True, 1).select(agents())


# --- settings ---------------------------------------------------------------------------------------------------------


def test_dictionaries_become_a_block() -> None:
    block = block_of("maddpg", {"LR": 0.01, "LR_ACTOR": 0.02, "BATCH_SIZE": 8, "DOUBLE": True}, {}, None)
    assert (block["lr_actor"], block["lr_critic"], block["batch_size"]) == (0.02, 0.01, 8)
    assert "double" not in block
    flat = _network_of({"arch": "mlp", "h_size": [64, 48, 32]})
    assert (flat["encoder"], flat["latent"], flat["head"]) == ([64, 48], 32, [])
    parts = _network_of({"encoder_config": {"hidden_size": [32, 32], "activation": "GELU"}, "latent_dim": 24,
                        "head_config": {"hidden_size": [16]}})  # fmt: skip
    assert (parts["encoder"], parts["latent"], parts["head"], parts["activation"]) == ([32, 32], 24, [16], "GELU")
    memory = block_of("ppo", {"RECURRENT": True}, {"encoder_config": {"hidden_state_size": 8, "num_layers": 2,
                                                                      "max_seq_len": None}}, None)  # fmt: skip
    assert (memory["network"]["encoder_kind"], memory["network"]["encoder"]) == ("lstm", [8, 8])
    assert memory["sequences"] == "whole"
    convolutions = _network_of({"channel_size": [8, 4], "kernel_size": [3, 2], "stride_size": [2, 1]})["conv"]
    assert convolutions == [{"channels": 8, "kernel": 3, "stride": 2}, {"channels": 4, "kernel": 2, "stride": 1}]


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        ({"hidden": [32]}, "net_config: nobody reads 'hidden'"),
        ({"encoder_config": {"hiden_size": [32]}}, "did you mean 'hidden_size'"),
        ({"arch": "transformer"}, "no arch 'transformer'"),
        ({"encoder_config": {"activation": "ReLU"}, "head_config": {"activation": "ELU"}}, "one activation is for"),
        ({"channels": [8], "kernels": [3, 3]}, "1 channels, 2 kernels and 1 strides"),
    ],
)
def test_networks_that_are_none_are_refused(net: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        _network_of(net)


def test_ranges_are_those_that_the_script_gives() -> None:
    hp_config = agilerl.HyperparameterConfig(
        lr=agilerl.RLParameter(min=1e-4, max=1e-2), batch_size=agilerl.RLParameter(8, 64, dtype=int)
    )
    (agent,) = agents(hp_config=hp_config)
    assert set(agent.breed.spec.traits.evolve) == {"lr", "batch_size"}
    mutations = agilerl.Mutations(rl_hp_selection=["lr"], min_lr=1e-3, max_lr=2e-3)
    found = mutations.ranges("dqn", agent.breed.spec.traits.evolve)
    assert [(name, each.min, each.max) for name, each in found.items()] == [("lr", 1e-3, 2e-3)]
    both = agilerl.Mutations(rl_hp_selection=["lr"]).ranges(
        "ddpg", agents("DDPG", env="Pendulum-v1")[0].breed.spec.traits.evolve
    )
    assert set(both) == {"lr_actor", "lr_critic"}
    for wrong, sentence in (
        ({"lear_step": agilerl.RLParameter(1, 2)}, "dqn has no 'lear_step' that can mutate, did you mean 'learn_step'"),
        ({"batch_size": agilerl.RLParameter(1, 2, dtype=str)}, "batch_size of dqn is a int, not str"),
    ):
        with pytest.raises(UsageError, match=sentence):
            agents(hp_config=agilerl.HyperparameterConfig(**wrong))
    with pytest.raises(UsageError, match="dqn has no 'gama'"):
        agilerl.Mutations(rl_hp_selection=["gama"]).ranges("dqn", {})


def test_channels_go_first() -> None:
    image = gymnasium.spaces.Box(0, 255, (8, 9, 3), np.uint8)
    both = agilerl.observation_space_channels_to_first(
        gymnasium.spaces.Dict({"a": image, "b": gymnasium.spaces.Discrete(2)})
    )
    assert both["a"].shape == (3, 8, 9)
    assert both["a"].dtype == np.uint8
    assert both["b"] == gymnasium.spaces.Discrete(2)


def test_images_whose_channels_the_script_moves_are_the_same_rows() -> None:
    last = gymnasium.spaces.Box(0, 255, (12, 14, 3), np.uint8)
    image = np.random.default_rng(1).integers(256, size=(2, 12, 14, 3), dtype=np.uint8)
    moved = np.moveaxis(image, [-1], [-3])
    two = gymnasium.spaces.Discrete(2)
    (agent,) = agilerl.create_population("DQN", last, two, NET)
    (first,) = agilerl.create_population("DQN", agilerl.observation_space_channels_to_first(last), two, NET)
    (older,) = agilerl.create_population("DQN", state_dim=(3, 12, 14), action_dim=2, net_config=NET)
    rows = agent.breed.rows(image)[0]
    assert (rows.shape, rows.max()) == ((2, 3 * 12 * 14), 1.0)
    for other in (first, older):
        assert np.array_equal(other.breed.rows(moved)[0], rows)
        assert other.breed.spec.spaces == agent.breed.spec.spaces


# --- datasets ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_offline_is_the_same_run_as_by_params(tmp_path: Path) -> None:
    g, n = np.random.default_rng(1), 60
    columns = {
        "observations": g.normal(size=(n, 4)).astype(np.float32), "actions": g.integers(2, size=n),
        "rewards": g.normal(size=n).astype(np.float32), "terminals": np.arange(n) % 10 == 9,
    }  # fmt: skip
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
    steps = {"max_steps": 20, "evo_steps": 10, "eval_steps": 10}
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)

    def trained(dataset: Any, size: int = 1000) -> Any:
        memory = agilerl.ReplayBuffer(size)
        pop = agents("CQN", size=2, num_envs=2)
        return agilerl.train_offline(env, "CartPole-v1", dataset, "CQN", pop, memory, **steps, verbose=False,
                                  tournament=agilerl.TournamentSelection(), mutation=agilerl.Mutations())  # fmt: skip

    with h5py.File(path, "r") as file:
        pop, fitnesses = trained(file)
    block = {"batch_size": 16, "network": {"encoder": [16], "latent": 16, "layer_norm": True}}
    params = parse_params(
        {
            "env": {"id": "CartPole-v1", "num_envs": 2},
            "fetch": {"source": "hdf5", "hdf5": {"path": str(path)}},
            "train": {"algo": "cqn", "mode": "offline", "eval_episodes": 2, "target": None, **steps},
            "evolution": {"mutation": {"probabilities": {"none": 0.4, "architecture": 0.2, "parameters": 0.2,
                                                         "activation": 0.0, "rl_hp": 0.2}}},
            "algos": {"cqn": block},
        }
    )  # fmt: skip
    fetch.run(params, quiet=True, folder=tmp_path)
    buffer.run(params, quiet=True, folder=tmp_path)
    spec = make_spec(params)
    run = begin(spec, first_members(spec, 2)[0], read_warm(spec, tmp_path))
    finish(run)
    run.close()
    assert [same(a.member, b) for a, b in zip(pop, run.members, strict=True)] == [True, True]
    assert fitnesses == [[scored.fitness for scored in record.members] for record in run.lineage[1:]]
    by_name, _ = trained(columns)
    assert [same(a.member, b.member) for a, b in zip(pop, by_name, strict=True)] == [True, True]
    fewer, _ = trained(columns, size=20)  # the last ones that the memory has room for
    assert not same(fewer[0].member, pop[0].member)
    for dataset, sentence in ((None, "give one, or minari_dataset_id"), ({"actions": []}, "it has no 'observations'")):
        with pytest.raises(UsageError, match=sentence):
            trained(dataset)


def test_the_last_clone_of_a_member_keeps_its_draws() -> None:
    (agent,) = agents()
    moved = agent.clone(index=3)
    assert moved.member.slot == 3
    assert moved.member.key != agent.member.key
    assert replace(moved.member, slot=0, key=agent.member.key).hyper == agent.member.hyper
