"""The classes of AgileRL's algorithms: each makes agents that are views of members of that algorithm.

They take the documented arguments, with the documented defaults of the hyper-parameters. An argument that would have no
effect is an error in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Self

from evopipe.compat.agilerl.agent import Agent
from evopipe.compat.agilerl.population import made
from evopipe.compat.agilerl.settings import HyperparameterConfig, refuse_foreign
from evopipe.errors import UsageError


class BPTTSequenceType(StrEnum):
    """The ways to cut the rollout of a recurrent `PPO` agent into the sequences of steps that the agent learns from.

    A sequence has `max_seq_len` steps. With `CHUNKED`, a sequence begins where the one before ends; with `MAXIMUM` and
    `FIFTY_PERCENT_OVERLAP`, which mean the same here, it begins in the middle of the one before.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import PPO, BPTTSequenceType
        >>> env = gymnasium.make("CartPole-v1")
        >>> agent = PPO(env.observation_space, env.action_space, recurrent=True,
        ...             bptt_sequence_type=BPTTSequenceType.FIFTY_PERCENT_OVERLAP)
        >>> agent.breed.params.algo_config.sequences
        'overlapping'
    """

    CHUNKED = "chunked"
    MAXIMUM = "maximum"
    FIFTY_PERCENT_OVERLAP = "fifty_percent_overlap"


class _Algorithm(Agent):
    """The base of the classes by algorithm."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}
    """Documented defaults of hyper-parameters, by their names in a call."""

    def __init__(
        self, observation_space: Any = None, action_space: Any = None, index: int = 0,
        hp_config: HyperparameterConfig | None = None, net_config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:  # fmt: skip
        """Make an agent.

        Args:
            observation_space, action_space: the spaces, of Gymnasium; for a team, dictionaries by agent, or lists with
                `agent_ids`.
            index: the agent's index, which fixes its random draws.
            hp_config: which hyper-parameters may mutate, with their ranges; None for the algorithm's own ranges.
            net_config: the network, see `create_population`.
            arguments: `seed`, `device`, `actor_network` as in `population`, and hyper-parameters.

        Raises:
            UsageError: an argument would have no effect.
            ParamsError: a value is out of its bounds, or the algorithm does not support the spaces.
        """
        found = self.population(index + 1, observation_space, action_space, hp_config, net_config, **arguments)[index]
        super().__init__(found.breed, found.member, found.mutation)
        self.go_on_from(found, found)

    @classmethod
    def population(
        cls, size: int, observation_space: Any = None, action_space: Any = None,
        hp_config: HyperparameterConfig | None = None, net_config: Mapping[str, Any] | None = None, *,
        agent_ids: Sequence[Any] | None = None, num_envs: int = 1, seed: int = 1, device: Any = None,
        accelerator: Any = None, actor_network: Any = None, critic_network: Any = None,
        wrapper_cls: Callable[..., Any] | None = None, wrapper_kwargs: Mapping[str, Any] | None = None,
        observation_spaces: Any = None, action_spaces: Any = None, wrap: bool = True, **settings: Any,
    ) -> list[Self]:  # fmt: skip
        """Return a new population of agents.

        Args:
            size: the number of agents.
            observation_space, action_space, hp_config, net_config: as for one agent.
            agent_ids: names of a team's agents, if spaces are lists.
            num_envs: the number of environments of each agent, as in `make_vect_envs`.
            seed: seed of the networks and of every draw.
            device: cpu or cuda; None for cuda if it is available.
            accelerator: has no effect, but one with several processes is refused.
            actor_network, critic_network: networks of one's own, see `DummyEvolvable`; of DQN, CQN and PPO.
            wrapper_cls, wrapper_kwargs: what is put around each agent, such as `RSNorm`.
            observation_spaces, action_spaces: other spellings of the two spaces.
            wrap: not needed.
            settings: hyper-parameters by their names, such as `lr`, `batch_size` (transitions), `learn_step`
                (environment steps), `gamma`. Those that are not given have the class's `DEFAULTS`.

        Raises:
            UsageError: an argument would have no effect.
            ParamsError: a value is out of its bounds, or the algorithm does not support the spaces.
        """
        refuse_foreign(cls.__name__, cls.ALGO, settings)
        seen, done = (one if one is not None else other for one, other in (
            (observation_space, observation_spaces), (action_space, action_spaces)))  # fmt: skip
        if seen is None or done is None:
            raise UsageError(f"{cls.__name__}: give observation_space and action_space")
        hp = {**cls.DEFAULTS, **settings}
        found = made(
            cls.ALGO, seen, done, net_config, hp, hp_config, size, num_envs, device, accelerator, agent_ids or (), seed,
            {"actor": actor_network, "critic": critic_network},
        )  # fmt: skip
        agents = [cls.viewing(agent.breed, agent.member, agent.mutation) for agent in found]
        for agent in agents:
            agent.begin(hp)
        return agents if wrapper_cls is None else [wrapper_cls(agent, **(wrapper_kwargs or {})) for agent in agents]

    def begin(self, hp: Mapping[str, Any]) -> None:
        """Take the settings that only a loop reads; most classes have none."""


_VALUES = {"batch_size": 64, "lr": 1e-4, "learn_step": 5, "gamma": 0.99, "tau": 1e-3}
_NOISE = {"O_U_noise": True, "expl_noise": 0.1, "theta": 0.15}
_ACTING = {"batch_size": 64, "lr_actor": 1e-4, "lr_critic": 1e-3, "learn_step": 5, "gamma": 0.99, "tau": 1e-3,
           "policy_freq": 2, **_NOISE}  # fmt: skip
_TEAM = {"batch_size": 64, "lr_actor": 1e-3, "lr_critic": 1e-2, "learn_step": 5, "gamma": 0.95, "tau": 1e-2, **_NOISE}
_ROLLOUTS = {"batch_size": 64, "lr": 1e-4, "learn_step": 2048, "gamma": 0.99, "gae_lambda": 0.95,
             "action_std_init": 0.6, "clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
             "update_epochs": 4}  # fmt: skip


class DQN(_Algorithm):
    """An agent of deep Q-learning, double by default.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DQN
        >>> env = gymnasium.make("CartPole-v1")
        >>> pop = DQN.population(size=2, observation_space=env.observation_space, action_space=env.action_space,
        ...                      net_config={"encoder_config": {"hidden_size": [32]}}, lr=1e-3, batch_size=16)
        >>> [agent.index for agent in pop], pop[0].lr, DQN(env.observation_space, env.action_space).learn_step
        ([0, 1], 0.001, 5)
    """

    ALGO = "dqn"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_VALUES, "double": True}


class RainbowDQN(_Algorithm):
    """An agent of Rainbow, a distributional, dueling, noisy deep Q-network.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Attributes:
        beta: the exponent of importance weights, which a script's own loop passes to `memory.sample`.
        n_step: the number of steps in a transition, for the script's own loop.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import RainbowDQN
        >>> env = gymnasium.make("CartPole-v1")
        >>> RainbowDQN(env.observation_space, env.action_space, v_min=0, v_max=200, n_step=4).n_step
        4
    """

    ALGO = "rainbow"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **_VALUES,
        "num_atoms": 51,
        "v_min": -10.0,
        "v_max": 10.0,
        "noise_std": 0.5,
    }
    beta: float = 0.4
    n_step: int = 3

    def begin(self, hp: Mapping[str, Any]) -> None:
        self.beta, self.n_step = float(hp.get("beta", self.beta)), int(hp.get("n_step", self.n_step))

    def go_on_from(self, parent: Self, slot: Self) -> None:
        super().go_on_from(parent, slot)
        self.beta, self.n_step = parent.beta, parent.n_step

    def learn(self, experiences: Any = None, **kwargs: Any) -> Any:
        """Learn from a batch of transitions, `experiences`, as `Agent.learn` does with the same arguments; return
        (loss, indices, errors).

        `indices` and `errors`, `[B]` each, are the buffer rows and the TD errors of the B transitions of the batch.
        `learn` updates the priorities of a prioritised buffer itself, so a script need not call `update_priorities`.
        `indices` is None for a buffer that is not prioritised.
        """
        loss = super().learn(experiences, **kwargs)
        return loss, None if getattr(experiences, "places", None) is None else experiences["idxs"], self.errors


class CQN(_Algorithm):
    """An agent of conservative Q-learning over discrete actions, which learns from a dataset.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import CQN
        >>> env = gymnasium.make("CartPole-v1")
        >>> CQN(env.observation_space, env.action_space).batch_size
        64
    """

    ALGO = "cqn"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_VALUES, "double": False}


class DDPG(_Algorithm):
    """An agent of deep deterministic policy gradient.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import DDPG, RSNorm
        >>> env = gymnasium.make("Pendulum-v1")
        >>> (agent,) = DDPG.population(1, env.observation_space, env.action_space, wrapper_cls=RSNorm, expl_noise=0.2)
        >>> agent.get_action(env.reset(seed=1)[0]).shape
        (1,)
    """

    ALGO = "ddpg"
    DEFAULTS = _ACTING


class TD3(_Algorithm):
    """An agent of twin delayed deep deterministic policy gradient.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> import gymnasium
        >>> from evopipe.compat.agilerl import TD3
        >>> env = gymnasium.make("Pendulum-v1")
        >>> TD3(env.observation_space, env.action_space, policy_freq=3).tau
        0.005
    """

    ALGO = "td3"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_ACTING, "tau": 5e-3}


class PPO(_Algorithm):
    """An agent of proximal policy optimisation; its network is recurrent with `recurrent=True`.

    The class makes one agent, and its method `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> from evopipe.compat.agilerl import PPO, collect_rollouts, make_vect_envs
        >>> env = make_vect_envs("CartPole-v1", num_envs=2)
        >>> agent = PPO(env.single_observation_space, env.single_action_space, learn_step=64, num_envs=2)
        >>> scores, *_ = collect_rollouts(agent, env)
        >>> agent.learn() < 100.0
        True
    """

    ALGO = "ppo"
    DEFAULTS = _ROLLOUTS


class _Team(_Algorithm):
    """The base of the classes whose agents are teams: `agent_ids` is their third argument."""

    def __init__(
        self, observation_spaces: Any = None, action_spaces: Any = None, agent_ids: Sequence[Any] | None = None,
        index: int = 0, hp_config: HyperparameterConfig | None = None, net_config: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:  # fmt: skip
        """Make a team. For the arguments see `population`."""
        seen, done = (arguments.pop(name, given) for name, given in (
            ("observation_space", observation_spaces), ("action_space", action_spaces)))  # fmt: skip
        super().__init__(seen, done, index, hp_config, net_config, agent_ids=agent_ids, **arguments)

    @property
    def agent_ids(self) -> list[Any]:
        """The names of the team's agents."""
        return [*self.observation_space]


class MADDPG(_Team):
    """A team of agents that learns by multi-agent deep deterministic policy gradient (MADDPG).

    The actor of an agent reads the observation of this agent only. A critic reads the observations and actions of all
    agents.

    A call makes one team as an `Agent`, and `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe.compat.agilerl import MADDPG, make_multi_agent_vect_envs
        >>> env = make_multi_agent_vect_envs(simple_spread_v3.parallel_env, num_envs=2)
        >>> spaces = [[of(agent) for agent in env.agents] for of in (env.observation_space, env.action_space)]
        >>> agent = MADDPG(*spaces, agent_ids=env.agents)
        >>> action, raw_action = agent.get_action(env.reset()[0])
        >>> len(action["agent_0"])
        2
    """

    ALGO = "maddpg"
    DEFAULTS = _TEAM


class MATD3(_Team):
    """A team of agents that learns by multi-agent twin delayed deep deterministic policy gradient (MATD3).

    A call makes one team as an `Agent`, and `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe.compat.agilerl import MATD3
        >>> env = simple_spread_v3.parallel_env()
        >>> spaces = [{agent: of(agent) for agent in env.possible_agents}
        ...           for of in (env.observation_space, env.action_space)]
        >>> MATD3(*spaces).agent_ids
        ['agent_0', 'agent_1', 'agent_2']
    """

    ALGO = "matd3"
    DEFAULTS: ClassVar[Mapping[str, Any]] = {**_TEAM, "policy_freq": 2}


class IPPO(_Team):
    """A team of agents that learns by independent proximal policy optimisation: each reads its own observations only.

    A call makes one team as an `Agent`, and `population` makes several. Hyper-parameters are arguments by name, and
    `DEFAULTS` has their defaults.

    Examples:
        >>> from mpe2 import simple_spread_v3
        >>> from evopipe.compat.agilerl import IPPO
        >>> env = simple_spread_v3.parallel_env()
        >>> spaces = [{agent: of(agent) for agent in env.possible_agents}
        ...           for of in (env.observation_space, env.action_space)]
        >>> len(IPPO.population(2, *spaces, batch_size=32))
        2
    """

    ALGO = "ippo"
    DEFAULTS = _ROLLOUTS
