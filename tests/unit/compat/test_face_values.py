"""What the functions and objects of scripts give, against plain code: which rows, seeds, members, numbers they are."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import evopipe
from evopipe.compat import agilerl
from evopipe.compat.agilerl import older
from evopipe.compat.agilerl.datasets import transitions_from
from evopipe.compat.agilerl.environments import config_of, evaluation_pool
from evopipe.compat.agilerl.functions import _epsilon_of
from evopipe.compat.agilerl.learning import rollout_of
from evopipe.compat.agilerl.train import entering
from evopipe.rng import Purpose, member_keys
from evopipe.run.evaluate import evaluate
from populations import same

NET = {"arch": "mlp", "hidden_size": [16, 16]}
KEEP = {"max_steps": 80, "evo_steps": 40, "eval_steps": 20, "verbose": False}


class Counting(gymnasium.Env[Any, Any]):
    """Observations that name episode and step; one action in two pays; ends after 3, 4, 3, 4 … steps, by turns for
    good and by a limit."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == 3 + self.episode % 2
        return self._obs(), self.t + 10.0 * action, over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def _obs(self) -> Any:
        return np.array([self.episode, self.t], np.float32)


def agents(algo: str = "DQN", size: int = 1, hp: Any = None, env: Any = "CartPole-v1", **more: Any) -> list[Any]:
    made = gymnasium.make(env) if isinstance(env, str) else env
    spaces = made.observation_space, made.action_space
    hp = {"BATCH_SIZE": 16} if hp is None else hp
    return agilerl.create_population(algo, *spaces, more.pop("net", NET), hp, population_size=size, **more)


# --- environments -----------------------------------------------------------------------------------------------------


def first_obs(seed: int) -> Any:
    return gymnasium.make("CartPole-v1").reset(seed=seed)[0]


def test_the_first_reset_has_the_seed_and_later_ones_go_on_from_there() -> None:
    env, again, other = (agilerl.make_vect_envs("CartPole-v1", 3, seed=seed) for seed in (5, 5, 6))
    resets = [[each.reset()[0] for _ in range(3)] for each in (env, again, other)]
    assert all(np.array_equal(one, two) for one, two in zip(resets[0], resets[1], strict=True))
    assert np.array_equal(resets[0][0], [first_obs(5 + place) for place in range(3)])
    assert len({obs.tobytes() for each in (resets[0], resets[2]) for obs in each}) == 6
    rows = np.concatenate(resets[0])
    assert len(np.unique(rows, axis=0)) == 9, "no two episodes are the same"
    assert np.array_equal(env.reset(seed=9)[0], [first_obs(9 + place) for place in range(3)])
    late = agilerl.make_vect_envs("CartPole-v1", 2, seed=5)
    assert np.array_equal(late.reset(seed=9)[0][0], first_obs(9))
    assert not np.array_equal(late.reset()[0][0], first_obs(5)), "the seed was for the first reset alone"


def test_observations_know_what_led_to_them() -> None:
    env = agilerl.make_vect_envs(make_env=Counting, num_envs=2)
    obs, _ = env.reset()
    found = [obs.marks]
    for _ in range(10):
        obs, _, terminated, truncated, _ = env.step(np.zeros(2, np.int64))
        assert np.array_equal(obs.marks.terminated, terminated)
        assert np.array_equal(obs.marks.truncated, truncated)
        found.append(obs.marks)
    assert [bool(marks.began[0]) for marks in found] == [t in (0, 5, 9) for t in range(11)]
    assert [bool(marks.truncated[0]) for marks in found] == [t == 4 for t in range(11)]
    assert [bool(marks.terminated[1]) for marks in found] == [t == 8 for t in range(11)]


# --- tests of agents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "loop", "cap"), [(1, 3, None), (3, 2, 12), (20, 1, 9)])
def test_a_test_is_the_mean_return_of_whole_greedy_episodes(num_envs: int, loop: int, cap: int | None) -> None:
    """By Gymnasium alone, also where there are more episodes than environments that play at once."""
    (agent,), env = agents("DDPG", env="Pendulum-v1"), agilerl.make_vect_envs("Pendulum-v1", num_envs)
    before = env.reset()[0]
    seeds = agent.breed.spec.seeds(Purpose.EVALUATE, loop * num_envs)
    assert len({*seeds.tolist()}) == loop * num_envs
    cap = cap or 200
    found = [agent.test(env, max_steps=cap, loop=loop) for _ in range(2)]
    greedy = agent.clone()
    greedy.set_training_mode(False)
    returns = []
    for seed in seeds.tolist():
        alone = gymnasium.make("Pendulum-v1")
        obs, total = alone.reset(seed=seed)[0], 0.0
        for _ in range(cap):
            obs, reward, *_ = alone.step(greedy.get_action(obs))
            total += float(reward)
        returns.append(total)
    assert found == pytest.approx([np.mean(returns)] * 2, rel=1e-4)
    assert agent.fitness == found
    assert np.array_equal(env.step(np.zeros((num_envs, 1), np.float32))[0].shape, before.shape)
    assert agent.training


def test_what_a_test_counts_is_told_by_the_runs_own_evaluation() -> None:
    (agent,), env = agents(), agilerl.make_vect_envs("CartPole-v1", 2)
    spec = agent.breed.spec
    pool = agilerl.environments.evaluation_pool(env, 4)
    played = evaluate(spec, [agent.live()], pool, spec.seeds(Purpose.EVALUATE, 4), None)
    assert agent.test(env, loop=2) == played.returns[0].mean()


# --- learning ---------------------------------------------------------------------------------------------------------


def test_learning_returns_the_loss_of_the_batch() -> None:
    """Huber's, of the rewards alone where all is terminated."""
    (agent,), g = agents(hp={"BATCH_SIZE": 8, "LR": 1e-3}), np.random.default_rng(3)
    state, reward, action = g.normal(size=(8, 4)).astype(np.float32), g.normal(size=8), g.integers(2, size=8)
    q = agent.breed.spec.algo.values(agent.breed.spec.algo_config, agent.live().state, torch.from_numpy(state)[None])
    error = reward - q[0].detach().numpy()[np.arange(8), action]
    found = agent.learn((state, action, reward, state, np.ones(8)))
    huber = np.where(np.abs(error) < 1.0, error**2 / 2, np.abs(error) - 0.5)
    assert found == pytest.approx(huber.mean(), rel=1e-4)
    assert agent.learn((state, action, reward, state, np.ones(8))) != found


def test_hyper_parameters_are_the_members_own() -> None:
    (agent,) = agents(hp={"BATCH_SIZE": 32, "LR": 2e-3, "LEARN_STEP": 7})
    assert (agent.batch_size, agent.learn_step, agent.hp["lr"]) == (32, 7, 2e-3)
    only = agilerl.Mutations(no_mutation=0, architecture=0, parameters=0, rl_hp=1)
    seen = set()
    for _ in range(12):
        before, (agent,) = dict(agent.hp), only.mutation([agent])
        changed = [name for name, value in agent.hp.items() if value != before[name]]
        assert len(changed) == 1
        assert changed[0] in agent.mutation.what
        assert (agent.mutation.before, agent.mutation.after) == pytest.approx(
            (before[changed[0]], agent.hp[changed[0]])
        )
        seen |= {*changed}
    assert agent.batch_size == int(agent.hp["batch_size"])
    assert agent.learn_step == int(agent.hp["learn_step"])
    assert seen == {"lr", "batch_size", "learn_step"}


# --- evolution --------------------------------------------------------------------------------------------------------


def of_fitness(*histories: list[float]) -> list[Any]:
    pop = agents(size=len(histories))
    for place, (agent, history) in enumerate(zip(pop, histories, strict=True)):
        agent.fitness, agent.scores, agent.steps = [*history], [100.0 + place], [0, 10 + place]
    return pop


def test_the_fittest_goes_on_at_index_0_and_children_are_of_winners() -> None:
    """With as many draws as make it certain that the fittest is among them."""
    pop = of_fitness([1.0], [5.0], [3.0], [4.0])
    selection = agilerl.TournamentSelection(200, True, 4)
    elite, children = selection.select(pop)
    assert (elite.index, elite.fitness, elite.member.id) == (1, [5.0], 1)
    assert [child.member.id for child in selection.select(children)[1]] == [1, 9, 10, 11], "nobody's id comes again"
    assert [child.index for child in children] == [0, 1, 2, 3]
    assert [child.member.id for child in children] == [1, 5, 6, 7], "who survives keeps its id"
    assert [child.member.parent for child in children] == [None, 1, 1, 1]
    assert [child.member.key for child in children] == [agent.member.key for agent in pop]
    assert all((child.fitness, child.scores, child.steps) == ([5.0], [101.0], [0, 11]) for child in children)
    assert all(same(child.member, pop[1].member) for child in children)
    children[1].fitness.append(9.0)
    children[2].steps[-1] = 0
    children[3].scores.clear()
    assert (pop[1].fitness, pop[1].steps, pop[1].scores, elite.fitness) == ([5.0], [0, 11], [101.0], [5.0])


def test_without_elitism_no_place_is_reserved_and_a_tournament_of_one_is_a_draw() -> None:
    found = Counter()
    selection = agilerl.TournamentSelection(1, False, 4)
    pop = of_fitness([1.0], [5.0], [3.0], [4.0])
    for _ in range(100):
        found.update(child.scores[0] - 100 for child in selection.select(pop)[1])
    assert all(abs(found[place] - 100) < 4 * math.sqrt(400 * 0.25 * 0.75) for place in range(4)), found


def test_larger_tournaments_choose_as_often_as_they_should() -> None:
    """Of two draws the best of four wins with 1 - (3/4)², the worst with (1/4)²."""
    selection, pop, found = agilerl.TournamentSelection(2, True, 4), of_fitness([1.0], [5.0], [3.0], [4.0]), Counter()
    for _ in range(150):
        found.update(child.scores[0] - 100 for child in selection.select(pop)[1][1:])
    for place, rank in enumerate((1, 4, 2, 3)):
        chance = (rank**2 - (rank - 1) ** 2) / 16
        assert abs(found[place] - 450 * chance) < 4 * math.sqrt(450 * chance * (1 - chance)), (place, found)


@pytest.mark.parametrize("name", ["eval_loop", "evo_step"])
def test_fitness_is_the_mean_of_the_last_tests(name: str) -> None:
    histories = [9.0, 0.0, 10.0], [0.0, 7.0, 7.0]
    assert agilerl.TournamentSelection(99, True, 2).select(of_fitness(*histories))[0].index == 0
    assert agilerl.TournamentSelection(99, True, 2, **{name: 2}).select(of_fitness(*histories))[0].index == 1
    assert agilerl.TournamentSelection(99, True, 2, **{name: 3}).select(of_fitness(*histories))[0].index == 0


def test_who_diverged_is_no_parent() -> None:
    pop = of_fitness([1.0], [50.0], [3.0], [math.nan])
    pop[1].live().healthy[:] = False
    selection = agilerl.TournamentSelection(1, False, 4)
    chosen = {child.scores[0] - 100 for _ in range(20) for child in selection.select(pop)[1]}
    assert chosen == {0.0, 2.0}
    assert selection.select(pop)[0].index == 2


WEIGHTS = {"no_mutation": 0.1, "architecture": 0.2, "parameters": 0.3, "activation": 0.15, "rl_hp": 0.25}


@pytest.mark.parametrize("ill", [1, 3])
def test_the_elite_is_spared_though_others_diverged(ill: int) -> None:
    """But where all have, nobody is."""
    pop = agents(size=3)
    for place, agent in enumerate(pop):
        agent.fitness.append(10.0 - place)
        if place >= 3 - ill:
            agent.live().healthy[:] = False
    _, children = agilerl.TournamentSelection(2, True, 3).select(pop)
    mutated = agilerl.Mutations(0.0, 0.0, parameters=1.0, rl_hp=0.0).mutation(children)
    assert [agent.mut == "None" for agent in mutated] == [ill == 1, False, False]


def test_mutations_come_as_often_as_they_should() -> None:
    mutations, pop = agilerl.Mutations(**WEIGHTS, new_layer_prob=0.5), agents(size=20)
    found: Counter[str] = Counter()
    layers = 0
    for _ in range(20):
        children = mutations.mutation(pop)
        found.update(child.mutation.kind for child in children)
        layers += sum("layer" in child.mutation.what for child in children if child.mutation.kind == "architecture")
    kinds = {"no_mutation": "none", **{name: name for name in WEIGHTS if name != "no_mutation"}}
    for name, chance in WEIGHTS.items():
        assert abs(found[kinds[name]] - 400 * chance) < 4 * math.sqrt(400 * chance * (1 - chance)), found
    assert 0.3 < layers / found["architecture"] < 0.7


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_is_of_its_own_kind(name: str) -> None:
    only = agilerl.Mutations(**{each: float(each == name) for each in WEIGHTS}, activation_selection=["ELU"])
    for child in only.mutation(agents(size=4)):
        assert child.mutation.kind == ("none" if name == "no_mutation" else name)
        assert (child.mut == "None") == (name == "no_mutation")
        assert name != "activation" or child.member.arch.activation == "ELU"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_share_of_layers_is_of_layers(share: float) -> None:
    only = agilerl.Mutations(0.0, 1.0, share, 0.0, 0.0, 0.0)
    pop = agents(size=6, net={"arch": "mlp", "hidden_size": [16, 16, 16]})
    assert {"layer" in child.mutation.what for child in only.mutation(pop)} == {share == 1.0}


def test_noise_has_the_standard_deviation_that_was_asked_for() -> None:
    """Of what a mutation touches 95 % move by `mutation_sd` times their size, 5 % are drawn anew."""
    (agent,) = agents(net={"arch": "mlp", "hidden_size": [128, 128]})
    only = agilerl.Mutations(0.0, 0.0, parameters=1.0, rl_hp=0.0, mutation_sd=0.03)
    before = agent.member.tensors
    moved = []
    for _ in range(10):
        after = only.mutation([agent])[0].member.tensors
        (name,) = (name for name in before if not torch.equal(before[name], after[name]))
        touched = before[name] != after[name]
        moved.append(((after[name] - before[name]) / before[name].abs())[touched])
    share = torch.cat(moved).numpy()
    assert np.quantile(np.abs(share), 0.5) == pytest.approx(0.03 * 0.6745 * 1.05, rel=0.1)


def test_the_elite_is_spared_unless_it_is_not_to_be() -> None:
    pop = of_fitness([1.0], [5.0], [3.0])
    changed = {"no_mutation": 0.0, "architecture": 1.0, "parameters": 0.0, "rl_hp": 0.0}
    _, children = agilerl.TournamentSelection(2, True, 3).select(pop)
    assert [child.mut == "None" for child in agilerl.Mutations(**changed).mutation(children)] == [True, False, False]
    assert all(child.mut != "None" for child in agilerl.Mutations(**changed, mutate_elite=True).mutation(children))
    assert all(child.mut != "None" for child in agilerl.Mutations(**changed).mutation(children, pre_training_mut=True))
    still = agilerl.Mutations(no_mutation=1.0, architecture=0.001, parameters=0.0, rl_hp=0.0)
    assert all(child.mut != "None" for child in still.mutation(children, pre_training_mut=True))
    _, open_to_all = agilerl.TournamentSelection(2, False, 3).select(pop)
    assert all(child.mut != "None" for child in agilerl.Mutations(**changed).mutation(open_to_all))


def test_generations_mutate_by_draws_of_their_own() -> None:
    (agent,), mutations = agents(), agilerl.Mutations(0.0, 1.0, 0.5, 0.0, 0.0, 0.0)
    first = [mutations.mutation([agent])[0].mut for _ in range(8)]
    again = agilerl.Mutations(0.0, 1.0, 0.5, 0.0, 0.0, 0.0)
    assert [again.mutation([agent])[0].mut for _ in range(8)] == first
    assert len({*first}) > 2


# --- memories ---------------------------------------------------------------------------------------------------------


def saved(memory: Any, steps: range, order: Any = None) -> None:
    """Transition `k`: (k, 10 k), action k mod 2, reward k / 2, (k + 1, 10 k + 1), over at every fifth."""
    for k in steps:
        parts = {"state": np.array([k, 10.0 * k], np.float32), "action": k % 2, "reward": k / 2,
                 "next_state": np.array([k + 1, 10.0 * k + 1], np.float32), "done": k % 5 == 4}  # fmt: skip
        memory.save_to_memory(*(parts[name] for name in order or parts))


def assert_whole(batch: Any, kept: range) -> None:
    state, action, reward, following, done = batch
    k = state[:, 0].astype(int)
    assert {*k.tolist()} <= {*kept}
    assert state[:, 1].tolist() == (10.0 * k).tolist()
    assert action.tolist() == (k % 2).tolist()
    assert reward.tolist() == (k / 2).tolist()
    assert following.tolist() == np.stack((k + 1, 10.0 * k + 1), axis=1).tolist()
    assert done.tolist() == (k % 5 == 4).astype(float).tolist()


@pytest.mark.parametrize("order", [None, ("done", "next_state", "action", "reward", "state")])
def test_a_ring_holds_the_last_transitions_and_draws_each_as_often(order: Any) -> None:
    memory = agilerl.ReplayBuffer(6, **({} if order is None else {"field_names": order}))
    saved(memory, range(4), order)
    assert (len(memory), memory.counter) == (4, 4)
    assert_whole(memory.sample(100), range(4))
    saved(memory, range(4, 15), order)
    assert (len(memory), memory.counter) == (6, 15)
    batch = memory.sample(3000)
    assert_whole(batch, range(9, 15))
    counts = Counter(batch[0][:, 0].astype(int).tolist())
    assert all(abs(counts[k] - 500) < 4 * math.sqrt(3000 * 5 / 36) for k in range(9, 15)), counts


def test_draws_follow_the_seed_and_go_on() -> None:
    memories = [agilerl.ReplayBuffer(100, seed=seed) for seed in (1, 1, 2)]
    for memory in memories:
        saved(memory, range(100))
    draws = [[memory.sample(20)[0][:, 0].tolist() for _ in range(2)] for memory in memories]
    assert draws[0] == draws[1]
    assert len({tuple(each) for pair in (draws[0], draws[2]) for each in pair}) == 4
    sampler = agilerl.Sampler(memory=memories[0])
    spread = agilerl.Sampler(distributed=True, dataset=agilerl.buffers.ReplayDataset(memories[1], 4))
    assert sampler.sample(9)[0].tolist() == spread.sample(9)[0].tolist()
    for batch, _ in zip(agilerl.buffers.ReplayDataset(memories[2], 7), range(3), strict=False):
        assert_whole(batch, range(100))
        assert len(batch[0]) == 7


def test_a_memory_of_vectors_leaves_resets_out_and_keeps_limits_apart_from_ends() -> None:
    """Every row as `Counting` has it: action 1 in the second environment alone."""
    env, memory = agilerl.make_vect_envs(make_env=Counting, num_envs=2), agilerl.ReplayBuffer(100)
    state, _ = env.reset()
    actions = np.array([0, 1])
    for _ in range(11):
        following, reward, terminated, truncated, _ = env.step(actions)
        memory.save_to_memory_vect_envs(state, actions, reward, following, terminated | truncated)
        state = following
    rows = {(int(s[0]), int(s[1]), int(a)): (float(r), n.tolist(), float(d))
            for s, a, r, n, d in zip(*memory.sample(2000), strict=True)}  # fmt: skip
    # The first episode is 4 steps and cut, the second 3 and over, the third begins: a reset comes after each.
    steps = [(1, t) for t in range(4)] + [(2, t) for t in range(3)] + [(3, t) for t in range(2)]
    assert rows == {
        (e, t, a): (t + 1 + 10.0 * a, [e, t + 1], float((e, t) == (2, 2))) for e, t in steps for a in (0, 1)
    }
    assert len(memory) == memory.counter == 18


def test_transitions_of_several_steps_by_hand() -> None:
    """Windows of three of an episode of four steps that a limit cut, and one of three that ended."""
    env, memory = (
        agilerl.make_vect_envs(make_env=Counting, num_envs=1),
        agilerl.MultiStepReplayBuffer(100, num_envs=1, n_step=3),
    )
    state, _ = env.reset()
    for _ in range(9):
        following, reward, terminated, _, _ = env.step(np.zeros(1, np.int64))
        memory.save_to_memory_vect_envs(state, np.zeros(1, np.int64), reward, following, terminated)
        state = following
    layout = memory.replay.layout
    batch = layout.unpack(memory.replay.rows[:1, : len(memory)], torch.ones(1, len(memory)), torch.tensor([0.5]))
    found = {(int(s[0]), int(s[1])): (float(r), n.tolist(), float(d)) for s, r, n, d in zip(
        batch.obs[0], batch.reward[0], batch.next_obs[0], batch.discount[0], strict=True)}  # fmt: skip
    assert found == {
        (1, 0): (1 + 2 / 2 + 3 / 4, [1.0, 3.0], 0.125), (1, 1): (2 + 3 / 2 + 4 / 4, [1.0, 4.0], 0.125),
        (1, 2): (3 + 4 / 2, [1.0, 4.0], 0.25), (1, 3): (4.0, [1.0, 4.0], 0.5),
        (2, 0): (1 + 2 / 2 + 3 / 4, [2.0, 3.0], 0.0), (2, 1): (2 + 3 / 2, [2.0, 3.0], 0.0),
        (2, 2): (3.0, [2.0, 3.0], 0.0),
    }  # fmt: skip


def test_priorities_say_how_often_and_how_much() -> None:
    memory = agilerl.PrioritizedReplayBuffer(8, alpha=0.5)
    saved(memory, range(4))
    memory.update_priorities(np.arange(4), np.array([0.0, 1.0, 4.0, 9.0]))
    batch = memory.sample(6000, beta=0.7)
    assert_whole(batch, range(4))
    k = batch[0][:, 0].astype(int)
    assert batch.places is not None
    assert batch.weight is not None
    assert batch.places[0].tolist() == k.tolist()
    priority = np.sqrt(np.array([0.0, 1.0, 4.0, 9.0]) + 1e-6)
    chance = priority / priority.sum()
    counts = np.bincount(k, minlength=4)
    assert (np.abs(counts - 6000 * chance) < 4 * np.sqrt(6000 * chance * (1 - chance)) + 10).all(), counts
    weight = (4 * chance) ** -0.7
    shown = batch.weight[0].numpy()
    ratio = shown[k == 1][0] / shown[k == 3][0]
    assert ratio == pytest.approx(weight[1] / weight[3], rel=1e-3)
    assert shown.max() == pytest.approx(1.0)
    saved(memory, range(4, 5))
    assert memory.replay.priorities.levels[0][0, 4] == pytest.approx(3.0, rel=1e-3), "new ones have the largest so far"


def test_a_teams_ring_by_hand() -> None:
    """Rows of both agents belong together, the oldest go first, and who is gone did not act."""
    memory = agilerl.MultiAgentReplayBuffer(3, agent_ids=["a", "b"], seed=4)
    for k in range(5):
        here = ["a", "b"] if k != 3 else ["a"]
        state = {agent: np.array([k, len(agent) * 100 + k], np.float32) for agent in here}
        memory.save_to_memory(
            state, {agent: k + 10 * (agent == "b") for agent in here}, dict.fromkeys(here, k / 4),
            {agent: obs + 1 for agent, obs in state.items()}, {agent: k == 4 and agent == "b" for agent in here},
        )  # fmt: skip
    assert (len(memory), memory.counter) == (3, 5)
    batch = memory.sample(600)
    state, action, reward, following, done = batch
    k = state["a"][:, 0].astype(int)
    counts = Counter(k.tolist())
    assert {*counts} == {2, 3, 4}
    assert all(abs(count - 200) < 4 * math.sqrt(600 * 2 / 9) for count in counts.values())
    assert action["a"].tolist() == k.tolist()
    assert reward["a"].tolist() == (k / 4).tolist()
    assert (following["a"] == state["a"] + 1).all()
    assert batch.alive["a"].all()
    assert batch.alive["b"].tolist() == (k != 3).tolist()
    there = batch.alive["b"]
    assert state["b"][there, 0].astype(int).tolist() == k[there].tolist()
    assert action["b"][there].tolist() == (k[there] + 10).tolist()
    assert done["b"][there].tolist() == (k[there] == 4).tolist()
    assert not done["a"].any()
    draws = []
    for seed in (4, 4, 5):
        other = agilerl.MultiAgentReplayBuffer(3, agent_ids=["a", "b"], seed=seed)
        other._held, other.counter = memory._held, memory.counter
        draws.append(other.sample(600)[0]["a"].tolist())
    assert draws[0] == draws[1] == state["a"].tolist() != draws[2]


def test_whoever_of_a_team_is_there_is_kept_in_the_places_of_the_step() -> None:
    """Be it only the last one of them; who never was has no place."""
    memory = agilerl.MultiAgentReplayBuffer(4, agent_ids=["a", "b", "c"])
    for step, agents in enumerate((["b", "c"], ["b"], ["a", "b"])):
        part = {agent: np.full((2, 1), 10.0 * step + ord(agent), np.float32) for agent in agents}
        done = dict.fromkeys(agents, np.zeros(2, bool))
        memory.save_to_memory_vect_envs(part, dict.fromkeys(agents, np.zeros(2, int)), part, part, done)
    assert len(memory) == 4
    batch = memory.sample(64)
    assert {key: sorted({*value.flatten().tolist()}) for key, value in batch[0].items()} == {
        "a": [0.0, 117.0], "b": [108.0, 118.0], "c": [0.0, 99.0],
    }  # fmt: skip
    assert {key: sorted({*value.tolist()}) for key, value in batch.alive.items()} == {
        "a": [False, True], "b": [True], "c": [False],
    }  # fmt: skip
    assert np.array_equal(batch.alive["a"], batch[0]["a"][:, 0] == 117.0)
    for empty in (agilerl.MultiAgentReplayBuffer(4), agilerl.ReplayBuffer(4)):
        with pytest.raises(evopipe.errors.UsageError, match="nothing can be sampled, it is empty"):
            empty.sample(1)


def test_a_memory_has_one_size() -> None:
    for sizes in ({}, {"memory_size": 3, "max_size": 3}):
        with pytest.raises(evopipe.errors.UsageError, match="how many transitions it keeps"):
            agilerl.ReplayBuffer(**sizes)
    assert [agilerl.ReplayBuffer(**{name: 3}).memory_size for name in ("memory_size", "max_size")] == [3, 3]


def test_a_teams_ring_of_several_environments() -> None:
    memory = agilerl.MultiAgentReplayBuffer(5)
    for k in range(3):
        state = {agent: np.array([[10.0 * k + i] for i in range(2)]) for agent in ("a", "b")}
        flags = {agent: np.array([k == 2, False]) for agent in state}
        memory.save_to_memory_vect_envs(state, {agent: np.array([0, 1]) for agent in state},
                                        {agent: np.array([k, -k]) for agent in state}, state, flags)  # fmt: skip
    assert (len(memory), memory.counter) == (5, 6)
    state, action, reward, _, done = memory.sample(300)
    assert {*state["b"][:, 0].tolist()} == {1.0, 10.0, 11.0, 20.0, 21.0}
    assert action["a"].tolist() == (state["a"][:, 0] % 10).tolist()
    assert reward["a"].tolist() == ((state["a"][:, 0] // 10) * (1 - 2 * action["a"])).tolist()
    assert done["b"].tolist() == (state["b"][:, 0] == 20.0).tolist()


def test_a_rollout_buffer_takes_as_many_steps_as_it_has_room_for() -> None:
    buffer, agent = agilerl.RolloutBuffer(capacity=3), agents("PPO")[0]
    agent.rollout_buffer = buffer
    env = agilerl.make_vect_envs("CartPole-v1", 2)
    _, obs, done, scores, info = agilerl.collect_rollouts(agent, env, 3)
    assert len(buffer) == 3
    with pytest.raises(evopipe.errors.UsageError, match=r"it is full \(3 steps\)"):
        agilerl.collect_rollouts(agent, env, 1, last_obs=obs, last_done=done, last_scores=scores, last_info=info)
    buffer.reset()
    assert len(buffer) == 0


# --- rollouts ---------------------------------------------------------------------------------------------------------


def rolled(mode: AutoresetMode | None, second: int, net: Any = NET, hp: Any = None) -> tuple[list[Any], list[Any], Any]:
    """Steps of `Counting` in two environments, collected by three calls: 3, so many, and 7. What each returned, too."""
    hp = {"LEARN_STEP": 14, "BATCH_SIZE": 4, **(hp or {})}
    (agent,) = agilerl.create_population("PPO", Counting.observation_space, Counting.action_space, net, hp, num_envs=2)
    env = agilerl.make_vect_envs(make_env=Counting, num_envs=2) if mode is None else SyncVectorEnv(
        [Counting] * 2, autoreset_mode=mode
    )  # fmt: skip
    collect = agilerl.collect_rollouts_recurrent if agent.recurrent else agilerl.collect_rollouts
    given: dict[str, Any] = {}
    returned = []
    for steps in (3, second, None):
        found, obs, done, scores, info = collect(agent, env, steps, **given)
        given = {"last_obs": obs, "last_done": done, "last_scores": scores, "last_info": info}
        returned.append((found, obs, done, scores))
    return agent.rollout_buffer.taken, returned, agent


CALLS = [(mode, second) for mode in (None, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP) for second in (1, 2)]


@pytest.mark.parametrize(("mode", "second"), CALLS)
def test_rollouts_by_hand_over_several_calls(mode: AutoresetMode | None, second: int) -> None:
    """An episode of 4 steps, cut, one of 3, over, and the next; a reset is a step of its own but in the last mode."""
    taken, returned, agent = rolled(mode, second)
    plan, same_step = [], mode == AutoresetMode.SAME_STEP
    for episode, length in ((1, 4), (2, 3), (3, 4), (4, 3)):
        plan += [(episode, t, False) for t in range(length)]
        plan += [] if same_step else [(episode, length, True)]
    plan = plan[: 3 + second + 7]
    assert len(taken) == 10 + second
    running = 0.0
    for step, (episode, t, idle) in zip(taken, plan, strict=True):
        for i in range(2):
            assert step.obs[i].tolist() == [episode, t]
            assert bool(step.begins[i]) == (t == 0)
            assert bool(step.idle[i]) == idle
            if idle:
                continue
            over = t + 1 == 3 + episode % 2
            assert step.next_obs[i].tolist() == [episode, t + 1], "the true next observation"
            assert step.reward[i] == t + 1 + 10.0 * float(step.action[i])
            assert (bool(step.terminated[i]), bool(step.truncated[i])) == (over and episode == 2, over and episode != 2)
    for i in range(2):
        finished, running = [], 0.0
        for step, (_, _, idle) in zip(taken, plan, strict=True):
            running += 0.0 if idle else float(step.reward[i])
            if step.terminated[i] or step.truncated[i]:
                finished.append(running)
                running = 0.0
        assert returned[-1][3][i] == pytest.approx(running)
        assert {*finished} <= {*agent.scores}
    assert agent.scores == [score for found, *_ in returned for score in found]
    assert [len(found) for found, *_ in returned] == [0, 2, 4 if same_step else 2]
    assert returned[1][2].tolist() == [second == 1] * 2
    assert second == 2 or returned[1][3].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("mode", "second"), CALLS)
def test_a_memory_goes_on_from_call_to_call_and_is_empty_where_episodes_begin(
    mode: AutoresetMode | None, second: int
) -> None:
    net = {"encoder_config": {"hidden_state_size": 4}, "latent_dim": 8}
    taken, _, _ = rolled(mode, second, net, {"RECURRENT": True})
    for t, step in enumerate(taken):
        for i in range(2):
            if step.idle[i]:
                continue
            assert step.memory is not None
            empty = step.begins[i] or bool((step.memory[i] == 0.0).all())
            assert empty == (int(step.obs[i, 1]) == 0), (t, i)


@pytest.mark.parametrize(("mode", "second"), CALLS)
def test_what_follows_a_step_is_valued_with_what_is_remembered_after_it(
    mode: AutoresetMode | None, second: int
) -> None:
    """The last one's of a rollout too, and where an episode was cut and the next one begins with nothing."""
    net = {"encoder_config": {"hidden_state_size": 4}, "latent_dim": 8}
    taken, _, agent = rolled(mode, second, net, {"RECURRENT": True})
    spec, cohort = agent.breed.spec, agent.live()
    _, memory = rollout_of(spec, cohort, taken).following(len(taken))
    memory, held = memory.view(len(taken), 2, -1), torch.zeros(1, 2, cohort.memory)
    assert cohort.memory
    for step, found in zip(taken, memory, strict=True):
        held = held.masked_fill(torch.from_numpy(step.begins)[None, :, None], 0.0)
        held = spec.algo.step(spec.algo_config, cohort.state, torch.from_numpy(step.obs)[None], None, held, None).memory
        torch.testing.assert_close(found, held[0])


def test_a_rollout_that_begins_anew_ends_the_episodes_before() -> None:
    """They were left where they were: what comes next is none of theirs."""
    (agent,) = agents("PPO", hp={"LEARN_STEP": 4, "BATCH_SIZE": 4})
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    for _ in range(2):
        agilerl.collect_rollouts(agent, env, 3)
    taken = agent.rollout_buffer.taken
    assert [step.truncated.tolist() for step in taken] == [[t == 2] * 2 for t in range(6)]
    assert taken[3].begins.all()
    taken[-1] = replace(taken[-1], terminated=np.array([True, False]), idle=np.array([False, True]))
    agent.rollout_buffer.cut()
    assert not agent.rollout_buffer.taken[-1].truncated.any(), "one has ended, the other is no step"


def test_drawn_actions_are_in_the_environments_units() -> None:
    box = gymnasium.spaces.Box(np.array([-1.0, 0.0, 2.0], np.float32), np.array([1.0, 8.0, 3.0], np.float32))
    (agent,) = agilerl.create_population("PPO", Counting.observation_space, box, NET, {"BATCH_SIZE": 4})
    drawn = torch.tensor([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [2.0, -3.0, 0.5]])
    own = [[-1.0, 0.0, 2.0], [0.0, 4.0, 2.5], [1.0, 8.0, 3.0], [2.0, -8.0, 2.75]]
    assert agent.breed.undrawn(drawn).tolist() == own
    torch.testing.assert_close(agent.breed.drawn(own, 4), drawn)


@pytest.mark.parametrize(("learn_step", "steps"), [(16, 8), (17, 9)])
def test_a_rollout_has_a_learn_step_in_all(learn_step: int, steps: int) -> None:
    (agent,) = agents("PPO", hp={"LEARN_STEP": learn_step, "BATCH_SIZE": 4})
    agilerl.collect_rollouts(agent, agilerl.make_vect_envs("CartPole-v1", 2))
    assert len(agent.rollout_buffer) == steps


def test_a_rollout_goes_on_from_observations_alone() -> None:
    (agent,) = agents("PPO", hp={"LEARN_STEP": 4, "BATCH_SIZE": 4})
    env = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    obs, _ = env.reset(seed=1)
    found, *_ = agilerl.collect_rollouts(agent, env, 2, last_obs=obs)
    assert found == []
    assert np.array_equal(agent.rollout_buffer.taken[0].obs, obs)


# --- whole runs -------------------------------------------------------------------------------------------------------


def trained(pop: list[Any], **more: Any) -> tuple[list[Any], list[list[float]]]:
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    return agilerl.train_off_policy(env, "CartPole-v1", "DQN", pop, agilerl.ReplayBuffer(100), **{**KEEP, **more})


def test_training_returns_who_was_trained_and_each_generations_fitness_by_index(tmp_path: Path) -> None:
    pop = agents(size=3, num_envs=2)
    pop, fitnesses = trained(pop, max_steps=120, save_elite=True, elite_path=str(tmp_path / "elite"))
    assert [len(each) for each in fitnesses] == [3, 3, 3]
    assert [agent.index for agent in pop] == [0, 1, 2]
    for place, agent in enumerate(pop):
        assert agent.fitness == [scores[place] for scores in fitnesses], "nobody was selected"
        assert agent.steps == [120]
    assert len({tuple(agent.fitness) for agent in pop}) > 1
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    again = [agent.test(env, max_steps=20) for agent in pop]
    assert again == pytest.approx(fitnesses[-1]), "a test is what the run's last evaluation was"
    for place, agent in enumerate(pop):
        agent.steps = [1, 120 + 7 * place]
    pop, later = trained(pop)
    assert [agent.steps for agent in pop] == [[200], [207], [214]], "each goes on from its own"
    assert [agent.fitness[-2:] for agent in pop] == [[scores[place] for scores in later] for place in range(3)]
    assert [len(agent.fitness) for agent in pop] == [6, 6, 6]


def test_the_elite_that_is_saved_is_the_best_of_the_run(tmp_path: Path) -> None:
    saved = {"save_elite": True, "elite_path": str(tmp_path / "elite"), "eval_steps": None}
    pop, fitnesses = trained(agents(size=3, num_envs=2), **saved)
    told = json.loads((tmp_path / "elite/policy.json").read_text())["training"]
    card = (tmp_path / "elite/README.md").read_text()
    assert f"best of generation {told['generation']}: mean return {told['score']:.4g}" in card
    assert f"(standard error {told['standard_error']:.4g})" in card
    elite, spec = evopipe.load(tmp_path / "elite"), pop[0].breed.spec
    assert told["confirmed"]
    scores: dict[Purpose, list[float]] = {}
    for purpose, episodes in ((Purpose.CONFIRM, spec.train.confirm_episodes), (Purpose.EVALUATE, 2)):
        for seed in spec.seeds(purpose, episodes).tolist():
            alone, total = gymnasium.make("CartPole-v1"), 0.0
            obs, over = alone.reset(seed=seed)[0], False
            while not over:
                obs, reward, over, *_ = alone.step(int(elite.act(obs)))
                total += float(reward)
            scores.setdefault(purpose, []).append(total)
    confirmed = np.array(scores[Purpose.CONFIRM])
    assert told["score"] == confirmed.mean()
    assert told["standard_error"] == pytest.approx(confirmed.std(ddof=1) / len(confirmed) ** 0.5)
    assert np.mean(scores[Purpose.EVALUATE]) == max(fitnesses[told["generation"] - 1])
    assert len({tuple(each) for each in fitnesses}) > 1


def test_a_runs_memory_begins_with_the_callers_transitions_and_ends_with_its_own() -> None:
    """Every row as `Counting` has it, of two environments of each of two members."""
    env, memory = agilerl.make_vect_envs(make_env=Counting, num_envs=2), agilerl.ReplayBuffer(60)
    pop = agents(size=2, num_envs=2, env=env.envs[0])
    state, _ = env.reset()
    for _ in range(9):
        following, reward, terminated, _, _ = env.step(np.array([0, 1]))
        memory.save_to_memory_vect_envs(state, np.array([0, 1]), reward, following, terminated)
        state = following
    saved = agilerl.functions._held(memory, pop[0])
    assert saved.obs.tolist() == [[e, t] for e, n in ((1, 4), (2, 3)) for t in range(n) for _ in range(2)]
    assert saved.next_obs.tolist() == (saved.obs + np.array([0, 1])).tolist()
    assert saved.action.tolist() == [0, 1] * 7
    assert saved.reward.tolist() == [t + 1 + 10.0 * a for (_, t), a in zip(saved.obs, saved.action, strict=True)]
    assert saved.terminated.tolist() == [(e, t) == (2, 2) for e, t in saved.obs.tolist()]
    agilerl.train_off_policy(env, "counting", "DQN", pop, memory, **{**KEEP, "max_steps": 20, "evo_steps": 20})
    assert (len(memory), memory.counter) == (54, 54)
    batch = memory.sample(3000)
    rows = {(*s.tolist(), int(a), float(r), *n.tolist(), float(d)) for s, a, r, n, d in zip(*batch, strict=True)}
    for e, t, action, reward, e_next, t_next, done in rows:
        assert (e_next, t_next, reward) == (e, t + 1, t + 1 + 10.0 * action)
        assert done == float(e % 2 == 0 and t + 1 == 3)
    assert {row[0] for row in rows} == {1.0, 2.0, 3.0}
    assert {row[2] for row in rows} == {0, 1}


def test_selection_goes_by_the_fitness_that_is_returned() -> None:
    evolve = {"tournament": agilerl.TournamentSelection(99, True, 3), "mutation": agilerl.Mutations(1.0, 0, 0, 0, 0, 0)}
    pop, fitnesses = trained(agents(size=3, num_envs=2), **evolve)
    best = max(fitnesses[0])
    assert [agent.fitness[0] for agent in pop] == [best] * 3
    assert [agent.fitness[1] for agent in pop] == fitnesses[1]


def test_environments_of_a_test_are_as_many_as_were_ever_asked_for_and_no_others_stay_open() -> None:
    """And what members live in is called what it is."""
    opened: list[Counting] = []

    class Open(Counting):
        def __init__(self) -> None:
            self.here = True
            opened.append(self)

        def close(self) -> None:
            self.here = False

    env = SyncVectorEnv([Open] * 2)
    few = evaluation_pool(env, 2)
    many = evaluation_pool(env, 5)
    assert (few.rows, many.rows) == (2, 5)
    assert evaluation_pool(env, 3) is many
    assert sum(each.here for each in opened) == 2 + 5
    assert config_of(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")).num_envs == 3
    named = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    assert config_of(named).id.partition(":")[2].startswith("CartPole_v1-")


def test_members_enter_in_the_order_given_with_draws_of_their_places() -> None:
    pop = agents(size=3)
    pop = [pop[2], pop[0], pop[1]]
    entered = entering(pop, seed=9)
    assert [member.slot for member in entered] == [0, 1, 2]
    assert [member.id for member in entered] == [2, 0, 1]
    assert [member.key for member in entered] == [int(key) for key in member_keys(9, range(3))]
    assert all(same(member, agent.member) for member, agent in zip(entered, pop, strict=True))
    assert [member.id for member in entering([pop[0], pop[0].clone()], 9)] == [0, 1]


def test_a_run_has_the_mutations_seed_or_the_populations() -> None:
    def weights(population: int, mutation: int | None) -> Any:
        pop = agents(size=1, num_envs=2, seed=population)
        found, _ = trained(pop, max_steps=40, mutation=agilerl.Mutations(rand_seed=mutation))
        return found[0].breed.params.seed, next(iter(found[0].member.tensors.values())).numpy().tobytes()

    assert weights(3, None)[0] == 3
    assert weights(3, 8)[0] == 8
    assert weights(3, 8)[1] != weights(3, None)[1]
    assert agents(seed=3)[0].member.key == int(member_keys(3, [0])[0])
    assert not same(agents(seed=3)[0].member, agents(seed=4)[0].member)


@pytest.mark.parametrize(
    ("start", "end", "decay"), [(1.0, 0.1, 0.995), (0.8, 0.05, 0.9), (0.5, 0.5, 0.9), (0.7, 0.1, 1.0)]
)
def test_exploration_fades_as_the_script_has_it(start: float, end: float, decay: float) -> None:
    """Multiplied at every step of the vector: step t of a member's, of 4 environments, is the vector's t / 4."""
    pop, env = agents(num_envs=4), agilerl.make_vect_envs("CartPole-v1", num_envs=4)
    config = pop[0].breed.params.algo_config
    block = _epsilon_of("dqn", config, config_of(env).num_envs, start, end, decay)
    algo = pop[0].breed.spec.algo
    told = config.model_copy(update=block)
    for vector_step in (0, 1, 5, 20, 100, 1000):
        expected = max(end, start * decay**vector_step)
        found = float(algo.explore(told, 4 * vector_step))
        assert found == pytest.approx(expected, rel=0.02)


# --- copies and files -------------------------------------------------------------------------------------------------


def test_a_clone_goes_on_with_the_same_draws_and_another_index_with_its_own() -> None:
    (agent,), obs = agents(seed=5), np.random.default_rng(0).normal(size=(64, 4))
    agent.fitness, agent.scores, agent.steps = [1.0], [2.0], [0, 3]
    agent.get_action(obs, 1.0)
    agent.learn((obs[:16], np.zeros(16, np.int64), np.ones(16), obs[:16], np.zeros(16)))
    twin, moved = agent.clone(), agent.clone(3)
    for other in (twin, moved):
        assert (other.fitness, other.scores, other.steps) == ([1.0], [2.0], [0, 3])
        assert same(other.member, agent.member)
    assert (twin.index, moved.index) == (0, 3)
    assert moved.member.key == int(member_keys(5, [3])[0])
    first = agent.get_action(obs, 1.0)
    assert np.array_equal(first, twin.get_action(obs, 1.0))
    assert not np.array_equal(first, moved.get_action(obs, 1.0))
    assert not np.array_equal(first, agent.get_action(obs, 1.0)), "every choice draws anew"
    twin.steps[-1], twin.scores[0], twin.fitness[0] = 9, 9.0, 9.0
    assert (agent.fitness, agent.scores, agent.steps) == ([1.0], [2.0], [0, 3])


def continuous() -> tuple[list[Any], Any, Any]:
    """Agents whose updates draw, and come by turns; observations, and a batch to learn from."""
    obs = np.random.default_rng(0).normal(size=(64, 3))
    batch = obs[:16], np.zeros((16, 1)), np.linspace(-1, 1, 16), obs[16:32], np.zeros(16)
    return agents("TD3", size=3, env="Pendulum-v1"), obs, batch


def test_updates_come_by_turns_and_by_draws_of_their_own() -> None:
    """The actor learns at every second one."""
    (agent, *_), _, batch = continuous()
    assert agent.breed.spec.period == 2
    moved, losses = [], []
    for _ in range(6):
        before = agent.member.tensors["actor"]
        losses.append(agent.learn(batch))
        moved.append(not torch.equal(agent.member.tensors["actor"], before))
    assert moved in ([True, False] * 3, [False, True] * 3)
    assert len({*losses}) == 6


def test_a_checkpoint_is_the_whole_agent(tmp_path: Path) -> None:
    """It acts, learns and is tested as the one that was saved, which goes on for itself."""
    pop, obs, batch = continuous()
    agent = pop[2]
    agent.learn(batch)
    agent.get_action(obs, 1.0)
    agent.fitness, agent.scores, agent.steps = [4.0, 1.0], [2.0, 7.0], [0, 3, 8]
    agent.save_checkpoint(tmp_path / "agent")
    before, (fresh,) = agent.member, agents("TD3", env="Pendulum-v1", seed=8)
    agent.learn(batch)
    loaded = agilerl.Agent.load(tmp_path / "agent")
    fresh.load_checkpoint(tmp_path / "agent")
    for other in (loaded, fresh):
        assert (other.index, other.fitness, other.scores, other.steps) == (2, [4.0, 1.0], [2.0, 7.0], [0, 3, 8])
        assert (same(other.member, before), same(other.member, agent.member)) == (True, False)
        assert dict(other.hp) == dict(agent.hp)
    acted = agent.get_action(obs, 1.0)
    for other in (loaded, fresh):
        other.learn(batch)
        assert same(other.member, agent.member)
        assert np.array_equal(other.get_action(obs, 1.0), acted)


# --- datasets ---------------------------------------------------------------------------------------------------------


def columns(n: int = 12) -> dict[str, Any]:
    return {
        "observations": np.arange(4.0 * n).reshape(n, 4), "actions": np.arange(n) % 2, "rewards": np.arange(n) / 4,
        "terminals": np.arange(n) == 4, "timeouts": np.arange(n) == 8,
    }  # fmt: skip


def test_a_datasets_last_transitions_are_learned_from() -> None:
    """Ends at row 4, is cut at row 8, and stops at row 11: what the last two led to is not known."""
    config = config_of(agilerl.make_vect_envs("CartPole-v1", 1))
    whole = transitions_from(config, columns(), None, False, 100)
    assert whole.reward.tolist() == [k / 4 for k in (0, 1, 2, 3, 4, 5, 6, 7, 9, 10)]
    assert whole.terminated.tolist() == [k == 4 for k in (0, 1, 2, 3, 4, 5, 6, 7, 9, 10)]
    assert whole.episode.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert whole.next_obs[:4].tolist() == whole.obs[1:5].tolist()
    few = transitions_from(config, columns(), None, False, 3)
    assert few.reward.tolist() == [7 / 4, 9 / 4, 10 / 4]
    assert few.obs[:, 0].tolist() == [28.0, 36.0, 40.0]
    following = {**columns(), "next_observations": columns()["observations"] + 1.0}
    assert len(transitions_from(config, following, None, False, 100)) == 12


# --- older spellings --------------------------------------------------------------------------------------------------


def test_episodes_of_older_scripts_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of ten steps in two environments, evolved after each second one."""
    pop = agents(size=2, num_envs=2)
    env = agilerl.make_vect_envs("CartPole-v1", num_envs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pop, fitnesses = older.train(env, "CartPole-v1", "DQN", pop, agilerl.ReplayBuffer(100), n_episodes=4,
                                     max_steps=10, evo_epochs=2, evo_loop=2, verbose=False)  # fmt: skip
    assert [agent.steps for agent in pop] == [[80], [80]]
    assert len(fitnesses) == 2
    told = pop[0].breed.params.train
    assert (told.eval_steps, told.eval_episodes, told.evo_steps, told.max_steps) == (10, 4, 40, 80)
