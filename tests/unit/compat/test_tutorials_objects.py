"""What scripts of newer tutorials build on: classes by algorithm, named transitions, vectors of teams, wrappers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from pettingzoo import ParallelEnv

from evopipe.compat import agilerl
from evopipe.compat.agilerl.functions import _all_of
from evopipe.compat.agilerl.learning import batch_of, steps_of
from evopipe.compat.agilerl.team_vect import ends_of
from evopipe.compat.agilerl.view import StepList
from evopipe.errors import DataError, UsageError
from evopipe.memory.replay import Replay, RowLayout
from evopipe.types import ACTS, CUT, GONE
from populations import same

BOX, TWO = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
NET = {"latent_dim": 16, "encoder_config": {"hidden_size": [16]}}
SINGLE = {"DQN": TWO, "RainbowDQN": TWO, "CQN": TWO, "DDPG": BOX, "TD3": BOX, "PPO": TWO}
TEAMS = ("MADDPG", "MATD3", "IPPO")


def agent_of(name: str, **more: Any) -> Any:
    kind = getattr(agilerl, name)
    if name in TEAMS:
        return kind([BOX, BOX], [TWO, TWO], ["a_0", "a_1"], net_config=NET, **more)
    return kind(BOX, SINGLE[name], net_config=NET, **more)


# --- classes by algorithm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SINGLE, *TEAMS])
def test_every_class_makes_saves_loads_and_clones_its_own(name: str, tmp_path: Path) -> None:
    kind = getattr(agilerl, name)
    agent = agent_of(name, batch_size=32, gamma=0.9)
    assert (type(agent), agent.algo, agent.batch_size, agent.gamma) == (kind, kind.ALGO, 32, pytest.approx(0.9))
    agent.steps += 7
    agent.save_checkpoint(tmp_path / "agent")
    for other in (kind.load(tmp_path / "agent"), agilerl.Agent.load(tmp_path / "agent"), agent.clone()):
        assert type(other) is kind
        assert same(other.member, agent.member)
        assert other.steps == [7]
    wrong = agilerl.TD3 if name != "TD3" else agilerl.DQN
    with pytest.raises(DataError, match=f"is an agent of {kind.ALGO}, not of {wrong.ALGO}"):
        wrong.load(tmp_path / "agent")


def test_an_agent_of_an_index_is_that_one_of_a_population() -> None:
    pop = agilerl.DQN.population(3, BOX, TWO, net_config=NET)
    assert [same(agilerl.DQN(BOX, TWO, index=i, net_config=NET).member, each.member) for i, each in enumerate(pop)] == [
        True
    ] * 3


def test_create_population_makes_the_same() -> None:
    (one,) = agilerl.create_population("DQN", BOX, TWO, NET, {"BATCH_SIZE": 32, "LR": 1e-3, "GAMMA": 0.9, "TAU": 0.1,
                                                               "LEARN_STEP": 2, "DOUBLE": True})  # fmt: skip
    two = agilerl.DQN(BOX, TWO, net_config=NET, batch_size=32, lr=1e-3, gamma=0.9, tau=0.1, learn_step=2, double=True)
    assert type(one) is type(two)
    assert same(one.member, two.member)
    assert one.breed.params.algo_config == two.breed.params.algo_config


def test_what_would_do_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="nobody reads 'learning_rate'"):
        agilerl.DQN(BOX, TWO, learning_rate=1e-3)
    with pytest.raises(UsageError, match="DQN: it has no 'clip_coef'"):
        agilerl.DQN(BOX, TWO, clip_coef=0.2)
    with pytest.raises(UsageError, match=r"MEAN_NOISE is 0\.5"):
        agilerl.DDPG(BOX, BOX, mean_noise=0.5)
    with pytest.raises(UsageError, match="give observation_space and action_space"):
        agilerl.DQN(BOX)
    with pytest.raises(UsageError, match="all agents of a team have networks of one architecture"):
        agilerl.IPPO([BOX, BOX], [TWO, TWO], ["a_0", "a_1"], net_config={"a_0": NET, "a_1": {"latent_dim": 8}})
    with pytest.raises(UsageError, match="there is no 'halves'"):
        agilerl.PPO(BOX, TWO, recurrent=True, bptt_sequence_type="halves")
    with pytest.raises(AttributeError, match="DQN has no attribute 'clip_coef'"):
        _ = agent_of("DQN").clip_coef


def test_networks_of_ones_own() -> None:
    linear = torch.nn.Linear(4, 2)
    agent = agilerl.DQN(BOX, TWO, actor_network=linear)
    assert torch.equal(agent.member.tensors["q"], torch.cat([p.detach().flatten() for p in linear.parameters()]))
    critic = torch.nn.Linear(4, 1)
    ppo = agilerl.PPO(BOX, TWO, actor_network=linear, critic_network=critic)
    assert ppo.member.tensors["critic"].shape == (5,)
    for kind, own, sentence in (
        (agilerl.TD3, {"actor_network": linear}, "td3 has more networks"),
        (agilerl.DQN, {"actor_network": linear, "net_config": NET}, "without effect beside networks"),
        (agilerl.PPO, {"actor_network": linear}, "critic_network: ppo has actor and critic: give it too"),
        (agilerl.DQN, {"actor_network": linear, "critic_network": critic}, "critic_network: dqn has actor: leave"),
        (agilerl.DQN, {"actor_network": "linear"}, "give a torch.nn.Module"),
    ):
        with pytest.raises(UsageError, match=sentence):
            kind(BOX, BOX if kind is agilerl.TD3 else TWO, **own)


def test_steps_are_a_list_and_a_number() -> None:
    steps = StepList([3, 5])
    steps += 2
    steps += [9]
    assert steps == [3, 7, 9]
    assert (steps // 2, steps < 10, steps >= 10, int(steps)) == (4, True, False, 9)
    assert np.less([StepList([1]), StepList([2])], 2).tolist() == [[True], [False]]


# --- transitions ------------------------------------------------------------------------------------------------------


def step(value: float, n: int = 2, done: bool = False) -> agilerl.Transition:
    return agilerl.Transition(
        obs=np.full((n, 3), value), action=np.ones(n, int), reward=np.full(n, value),
        next_obs=np.full((n, 3), value + 1), done=np.full(n, done), batch_size=[n],
    )  # fmt: skip


def test_named_transitions_are_saved_as_positions_are() -> None:
    one, two = agilerl.ReplayBuffer(10), agilerl.ReplayBuffer(max_size=10)
    for value in range(3):
        one.add(step(value).to_tensordict())
        two.save_to_memory_vect_envs(*step(value).values())
    assert torch.equal(one.replay.rows, two.replay.rows)
    assert (one.size, one.counter) == (6, 6)
    single = agilerl.ReplayBuffer(10)
    names = ("obs", "next_obs", "reward", "weights", "idxs")
    parts = {"obs": np.zeros(3), "action": 1, "reward": 0.5, "next_obs": np.ones(3), "done": False}
    single.add(parts)
    single.add(agilerl.TensorDict(parts).unsqueeze(0))
    assert torch.equal(single.replay.rows[0, 0], single.replay.rows[0, 1])
    batch = single.sample(4)
    assert [batch[name].shape for name in names] == [(4, 3), (4, 3)] + [(4,)] * 3
    for wrong, sentence in (
        ({"obs": np.zeros(3), "action": 1}, "lacks done, next_state, reward"),
        ({**parts, "when": 1}, "has no part 'when'"),
        (np.zeros(3), "not a ndarray"),
    ):
        with pytest.raises(UsageError, match=sentence):
            single.add(wrong)
    with pytest.raises(UsageError, match="take a MultiAgentReplayBuffer"):
        single.add(agilerl.MultiAgentTransition({"a": [0.0]}, {"a": 0}, {"a": 0.0}, {"a": [0.0]}, {"a": False}))


def test_a_memory_with_priorities_keeps_the_rows_of_several_steps_at_the_same_places() -> None:
    several, memory = agilerl.MultiStepReplayBuffer(8, n_step=3), agilerl.PrioritizedReplayBuffer(8)
    for value in range(9):
        completed = several.add(step(value, done=value == 5))
        assert (completed is None) == (value in (0, 1, 6, 7))
        if completed:
            memory.add(completed)
    assert torch.equal(memory.replay.rows, several.replay.rows)
    batch = memory.sample(5, 0.7)
    again = several.sample_from_indices(batch["idxs"])
    assert np.array_equal(batch["obs"], again["obs"])
    assert batch.weight is not None
    agent = agilerl.RainbowDQN(gymnasium.spaces.Box(-9, 9, (3,)), TWO, net_config=NET, v_max=50.0)
    twin = agent.clone()
    loss, idxs, priorities = agent.learn(batch, n_experiences=again, per=True)
    assert np.isfinite(loss)
    assert np.array_equal(idxs, batch["idxs"])
    assert priorities.shape == (5,)
    assert twin.learn(batch)[0] == loss, "one memory of several steps would be learned from alike"
    with pytest.raises(UsageError, match="it keeps 9 transitions, and the memory of several steps 8"):
        agilerl.PrioritizedReplayBuffer(9).add(several.add(step(3.0, done=True)))


# --- teams ------------------------------------------------------------------------------------------------------------


class Two(ParallelEnv):  # type: ignore[misc]
    """Agent `a_0` counts to 2 and terminates; `a_1` counts on, and is cut after `last` steps."""

    metadata = {"name": "two"}  # noqa: RUF012
    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self, last: int = 3) -> None:
        self.last = last

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-9, 9, (1,))

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def seen(self) -> Any:
        return {agent: np.array([self.count], np.float32) for agent in self.acted}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.acted, self.count = [*self.possible_agents], [*self.possible_agents], 0
        return self.seen(), {"a_1": {"env_defined_actions": 2}}

    def step(self, actions: Any) -> Any:
        assert {*actions} == {*self.agents}
        self.acted = self.agents
        self.count += 1
        terminated = {agent: agent == "a_0" and self.count == 2 for agent in self.acted}
        truncated = dict.fromkeys(self.acted, self.count == self.last)
        self.agents = [agent for agent in self.acted if not (terminated[agent] or truncated[agent])]
        info = {agent: {"action_mask": np.array([1, 0, 0])} for agent in self.acted}
        return self.seen(), dict.fromkeys(self.acted, 1.0), terminated, truncated, info


def test_a_vector_of_teams_knows_what_each_step_led_to() -> None:
    env = agilerl.AsyncPettingZooVecEnv([lambda: Two(last=3)] * 2)
    obs, info = env.reset()
    assert ends_of(obs) is None
    assert np.array_equal(info["a_1"]["env_defined_actions"], [2, 2])
    agent = agilerl.MADDPG([env.observation_space(each) for each in env.agents],
                           [env.action_space(each) for each in env.agents], env.agents, net_config=NET)  # fmt: skip
    assert np.array_equal(agent.get_action(obs, info)[0]["a_1"], [2, 2]), "what the environment sets is taken"
    memory = agilerl.MultiAgentReplayBuffer(50)
    told = []
    for _ in range(4):
        action, saved = agent.get_action(obs=obs, infos=info)
        following, reward, terminated, truncated, info = env.step(action)
        memory.add(agilerl.MultiAgentTransition(obs, saved, reward, following, terminated))
        told.append((following["a_1"][0, 0], ends_of(following).obs["a_1"][0, 0], bool(truncated["a_1"][0])))
        obs = following
        assert (agent.get_action(obs, info)[0]["a_1"] == 0).all() or told[-1][2], "masks hold"
    assert told == [(1, 1, False), (2, 2, False), (0, 3, True), (1, 1, False)]
    experiences = memory.sample(500)
    batch = batch_of(agent.breed, experiences, torch.tensor([0.9]))
    seen = {}
    for row in range(500):
        key = int(batch.obs[0, row, 1, 0])
        leaves = batch.next_alive[0, row].tolist()  # type: ignore[index]
        seen[key] = (batch.alive[0, row].tolist(), leaves, batch.next_obs[0, row, 1, 0].item())  # type: ignore[index]
        assert batch.discount[0, row].tolist()[1] == pytest.approx(0.9), "whoever is cut is bootstrapped from"
    assert seen == {
        0: ([1, 1], [ACTS, ACTS], 1),
        1: ([1, 1], [GONE, ACTS], 2),
        2: ([0, 1], [GONE, CUT], 3),
    }


def test_rollouts_of_a_vector_of_teams_know_their_ends() -> None:
    env = agilerl.make_multi_agent_vect_envs(Two, num_envs=2, last=3)
    obs, _ = env.reset()
    agent = agilerl.IPPO(*[{each: of(each) for each in env.agents} for of in (env.observation_space, env.action_space)],
                         net_config=NET)  # fmt: skip
    kept: list[list[Any]] = [[] for _ in range(6)]
    nobody = dict.fromkeys(env.agents, np.zeros(2, bool))
    for _ in range(4):
        action, log_prob, _, value = agent.get_action(obs)
        following, reward, _, _, _ = env.step(action)
        for part, each in zip(kept, (obs, action, log_prob, reward, nobody, value), strict=True):
            part.append(each)
        obs = following
    steps = steps_of(agent.breed, (*kept, obs))
    told = [
        (each.begins[1], each.terminated[:2].tolist(), each.truncated[:2].tolist(), each.idle[:2].tolist())
        for each in steps
    ]
    assert told == [
        (True, [False, False], [False, False], [False, False]),
        (False, [True, False], [False, False], [False, False]),
        (False, [True, False], [False, True], [True, False]),
        (True, [False, False], [False, False], [False, False]),
    ]
    assert [each.next_obs[1, 0] for each in steps] == [1, 2, 3, 1]
    assert np.isfinite(agent.learn((*kept, obs)))


def test_functions_that_make_no_team_are_refused() -> None:
    for call in (
        lambda: agilerl.make_multi_agent_vect_envs(lambda: gymnasium.make("CartPole-v1")),
        lambda: agilerl.AsyncPettingZooVecEnv([lambda: gymnasium.make("CartPole-v1")]),
        lambda: agilerl.AsyncPettingZooVecEnv([]),
    ):
        with pytest.raises(UsageError, match=r"one agent|is empty"):
            call()


# --- wrappers ---------------------------------------------------------------------------------------------------------


def test_statistics_are_a_members_own_and_are_what_networks_read(tmp_path: Path) -> None:
    plain = agent_of("DQN", batch_size=8)
    agent, g = agilerl.RSNorm(plain), np.random.default_rng(1)
    assert agilerl.RSNorm(agent) is agent
    seen = g.normal(3.0, 2.0, (50, 4)).astype(np.float32)
    agent.get_action(seen)
    agent.set_training_mode(False)
    agent.get_action(seen + 100)
    tensors = agent.member.tensors
    assert tensors["normaliser.count"] == 50
    np.testing.assert_allclose(tensors["normaliser.mean"], seen.mean(axis=0), rtol=1e-5)
    by_hand = ((seen - seen.mean(axis=0)) / seen.std(axis=0)).clip(-10, 10)
    np.testing.assert_allclose(agent.normalised(seen), by_hand, atol=1e-5)
    same_weights = replace(plain.member, slot=0)
    reads = type(plain).viewing(plain.breed, same_weights)
    reads.set_training_mode(False)
    assert np.array_equal(agent.get_action(seen), reads.get_action(by_hand.astype(np.float32)))
    batch = (seen[:8], g.integers(2, size=8), np.ones(8), seen[8:16], np.zeros(8))
    agent.learn(batch)
    reads.learn((by_hand[:8], batch[1], batch[2], by_hand[8:16], batch[4]))
    np.testing.assert_allclose(agent.member.tensors["q"], reads.member.tensors["q"], atol=1e-5)
    agent.save_checkpoint(tmp_path / "agent")
    again = agilerl.DQN.load(tmp_path / "agent")
    assert again.breed.params.train.normalise.observations
    assert same(again.member, agent.member)
    (child,) = agilerl.Mutations().mutation([agent.clone()])
    assert child.member.tensors["normaliser.count"] == 50
    with pytest.raises(UsageError, match="norm_obs_keys"):
        agilerl.RSNorm(plain, norm_obs_keys=["a"])


class Contrary(agilerl.AgentWrapper):
    """Does the other thing."""

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        return 1 - self.agent.get_action(obs, *args, **kwargs)


def test_a_wrapper_acts_in_tests_and_outlives_selection() -> None:
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    agent = agent_of("DQN")
    wrapped = Contrary(agent)
    assert wrapped.batch_size == 64
    wrapped.batch_sized = 3  # one of its own
    wrapped.scores = [1.0]  # the agent's
    assert (agent.scores, wrapped.batch_sized) == ([1.0], 3)
    alone = gymnasium.make("CartPole-v1")
    agent.set_training_mode(False)
    returns = []
    for seed in agent.breed.spec.seeds(agilerl.wrappers.Purpose.EVALUATE, 2):
        obs, _ = alone.reset(seed=int(seed))
        over, gained = False, 0.0
        while not over:
            obs, reward, terminated, truncated, _ = alone.step(int(wrapped.get_action(obs)))
            gained, over = gained + float(reward), terminated or truncated
        returns.append(gained)
    assert wrapped.test(env) == np.mean(returns) == agent.fitness[-1]
    elite, (child,) = agilerl.TournamentSelection(2, True, 1).select([wrapped])
    (child,) = agilerl.Mutations().mutation([child])
    assert (type(elite), type(child), child.batch_sized) == (Contrary, Contrary, 3)
    assert child.agent is not agent
    with pytest.raises(UsageError, match="without wrappers of your own"):
        agilerl.train_off_policy(env, "CartPole-v1", "DQN", [wrapped], agilerl.ReplayBuffer(10))
    with pytest.raises(UsageError, match="put it around the agent first"):
        agilerl.RSNorm(wrapped)


def test_each_number_of_an_action_is_scaled_between_its_own_bounds() -> None:
    """One action, or several at once."""
    bounds = gymnasium.spaces.Box(np.array([-1, 0, 10], np.float32), np.array([1, 4, 20], np.float32))
    scale = agilerl.DDPG(BOX, bounds, net_config=NET).actor.scale_action
    assert scale([[-1, 0, 1], [1, -1, 0.5]]).tolist() == [[-1, 2, 20], [1, 0, 17.5]]
    assert scale([0, 1, -3]).tolist() == [[0, 4, 10]]


@pytest.mark.parametrize("added", [3, 4, 6])
def test_what_a_memory_holds_is_read_the_oldest_first(added: int) -> None:
    """Also where the ring went round."""
    layout = RowLayout(obs=1, actions=2, masked=False)
    replay = Replay(layout, 1, 4, torch.device("cpu"))
    number = np.arange(added, dtype=np.float32)
    rows = layout.pack(number[:, None], np.zeros(added), number + 10, number % 2 == 1, number[:, None] + 1)
    for row in rows:
        replay.add(row[None, None], np.ones((1, 1), bool))
    batch, kept = _all_of(replay), [*range(max(0, added - 4), added)]
    assert batch.obs[0, :, 0].tolist() == kept
    assert batch.reward[0].tolist() == [each + 10 for each in kept]
    assert batch.discount[0].tolist() == [1 - each % 2 for each in kept]
