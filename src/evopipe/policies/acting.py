"""Policies of one agent: a trained member that chooses actions and computes values, for one observation or a batch."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from evopipe.algos import Algorithm, Answers, on_policy
from evopipe.core import numpy_policy
from evopipe.core.cohort import Cohort, Pace, dissolve, form
from evopipe.core.frozen import arrays_of
from evopipe.core.member import Member, names_of, tensor_kinds
from evopipe.core.normalise import SHOWN
from evopipe.core.structure import Widths, acting_networks
from evopipe.envs import mixed
from evopipe.envs.spaces import ActionSpace, ObservationSpace
from evopipe.envs.team import TeamEnv
from evopipe.errors import UsageError
from evopipe.ops.policy import best_legal
from evopipe.ops.value import pick
from evopipe.rng import Purpose, Stream
from evopipe.storage.tensors import dump_arrays

PROGRAM = "policy.pt2"
Moment: TypeAlias = tuple[float, bool]
"""After a step: the reward, and whether an end state is reached."""
Explained: TypeAlias = Callable[[], AbstractContextManager[None]]
"""What the code of an environment runs in, so that its errors say whose they are."""


class Policy:
    """One trained member by itself, which chooses actions and computes values.

    Args:
        algo: the member's algorithm.
        cfg: the algorithm's configuration.
        member: the architecture, and the tensors that acting needs. Tensors of other networks, such as critics, may be
            missing.
        about: the content of `policy.json`: spaces, scores, provenance.

    Attributes:
        action_space: the environment's action space, which converts the algorithm's actions to the environment's.
        observation_space: the environment's observation space, which converts observations to flat rows of numbers.
        memory: the number of recurrent state values that the policy carries from step to step; 0 if the networks
            are not recurrent.
        team: None, because the policy is for one agent.

    Examples:
        >>> import evopipe
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> policy = evopipe.train({**small, "evaluate": {"episodes": 4}}).policy
        >>> policy.act([[0.0, 0.1, 0.0, -0.1], [0.0, -0.1, 0.0, 0.1]]).shape  # an action for each observation
        (2,)
    """

    team: None = None

    def __init__(self, algo: Algorithm, cfg: Any, member: Member, about: Mapping[str, Any]) -> None:
        self.about, self._algo = dict(about), algo
        self.arch = member.arch
        self.action_space, self.observation_space = ActionSpace.from_json(about), ObservationSpace.from_json(about)
        spaces = self.action_space.spaces(self.observation_space)
        self._cfg = cfg.at(spaces)
        self.observations, self.actions = spaces.observations, spaces.actions
        self.widths: Mapping[str, Widths] = algo.networks(cfg, spaces)
        online = online_networks(algo, self.widths)
        acting = acting_networks(algo.POLICY, self.widths)
        self._blind = not all(online[name] in member.tensors for name in online if name not in acting)
        members = [for_acting(algo, member, self.widths)]
        (self._cohort,) = form(members, algo.State, self.widths, torch.device("cpu"), lambda _: Pace())
        self.memory = self._cohort.memory

    def act(self, obs: Any, mask: Any = None, epsilon: float = 0.0, seed: int = 0) -> Any:
        """Return the action for one observation, or the actions for a batch of B observations.

        The actions are deterministic unless `epsilon` is above 0.

        Args:
            obs: an observation as the environment gives it (a vector, an image, an index, or a dict or tuple of these),
                or a batch, in which every array has one dimension more; NumPy or torch.
            mask: legal actions, `[A]` (the same for all observations) or `[B, A]`; None if all are legal. For a
                multi-discrete action space it may be a tuple with an array for each choice.
            epsilon: the probability of a random legal action. If it is above 0, the policy explores as in training:
                with the algorithm's own noise if it has any; an on-policy algorithm samples from its policy.
            seed: the seed of exploration.

        Returns:
            Discrete actions are int64 `[]`, or `[B]` for a batch. Multi-discrete and multi-binary actions are int64
            `[*shape]` or `[B, *shape]`, with the shape of the action space. Continuous actions have that shape too;
            they are float32, within the environment's bounds. Mixed actions are a dict or tuple of such arrays, as the
            action space is one. The result is NumPy or torch, as `obs` is. For one NumPy
            observation it is a NumPy scalar or array, ready for `env.step`.

        Raises:
            UsageError: a shape does not fit, no action is legal, a value is NaN, or the policy is recurrent (use
                `step`).
        """
        if self.memory:
            raise UsageError("this policy keeps a memory: call step(obs, memory), and hand on the memory it returns")
        return self.step(obs, None, mask, epsilon, seed)[0]

    def step(
        self, obs: Any, memory: Any = None, mask: Any = None, epsilon: float = 0.0, seed: int = 0
    ) -> tuple[Any, Any]:
        """Return the actions, as `act` does, and the new recurrent state of a recurrent policy.

        Args:
            obs, mask, epsilon: observations, legal actions and the probability of exploration, as in `act`.
            memory: the recurrent state `[B, memory]` that the previous step of these episodes returned; None at the
                beginning. To begin a new episode in a row, set the row to zeros. NumPy or torch.
            seed: the seed of the random draws of exploration. Equal seeds give equal draws, so pass another seed at
                each step.

        Returns:
            The actions in the form that `act` returns, and the recurrent state after the step, float32 `[B, memory]`,
            of the type of `obs`.

        Raises:
            UsageError: a shape does not fit, no action is legal, a value is NaN, or the recurrent state has another
                shape.
        """
        batch, single, legal, memory = self._situation(obs, mask, memory)
        state, draw = self._cohort.state, None
        if epsilon > 0.0:
            draw = Stream(torch.tensor([seed]), Purpose.ACT, torch.zeros(1, dtype=torch.int64))
        if on_policy(self._algo):
            actions, _, _, memory = self._algo.step(self._cfg, state, batch, legal, memory, draw)
        elif draw is None:
            actions = self._algo.greedy(self._cfg, state, batch, legal)
        else:
            actions = self._algo.act(self._cfg, state, batch, legal, torch.tensor([epsilon]), draw)
        return self._own(obs, single, actions[0].numpy()), self._like(obs, False, memory[0])

    def _own(self, obs: Any, single: bool, actions: npt.NDArray[Any]) -> Any:
        """Return actions as the environment takes them, NumPy or torch, as `obs` is."""
        space = self.action_space
        if space.parts:
            arrays = mixed.own(space.parts, actions)
            return mixed.nested(space.parts, [self._like(obs, single, torch.from_numpy(x)) for x in arrays])
        return self._like(obs, single, torch.from_numpy(space.own(actions)))

    def __repr__(self) -> str:
        env, space = self.about.get("env"), self.action_space
        place = f", {env['id']}" if isinstance(env, dict) and "id" in env else ""
        sizes = f"{self.observations} observations → {space.size} {space.kind} actions"
        return f"<Policy {self._name}{place}: {sizes}, network {self.arch.describe()}>"

    @property
    def _name(self) -> str:
        return str(self.about.get("algo", self._algo.POLICY))

    def value(self, obs: Any, mask: Any = None, memory: Any = None) -> Any:
        """Return the state values V(s), float32 `[]` or `[B]`, for one observation or a batch; NumPy or torch, as `obs`
        is.

        V(s) is the output of a value network (PPO, IQL), the maximum of Q(s, a) over legal actions (DQN, Rainbow, CQN),
        or Q(s, μ(s)) of a deterministic actor μ (DDPG, TD3, TD3+BC). `mask` holds the legal actions, as in `act`, and
        `memory` the recurrent state, as in `step`.

        Raises:
            UsageError: the algorithm has no values, the critic was not exported, or an argument does not fit.
        """
        found = self._answer("value", self._answers.value)
        batch, single, legal, before = self._situation(obs, mask, memory)
        return self._like(obs, single, found(self._cfg, self._cohort.state, batch, legal, before)[0])

    def q_values(self, obs: Any, action: Any = None) -> Any:
        """Return the action values Q(s, a), NumPy or torch, as `obs` is. Of twin critics, the smaller value is
        returned.

        Args:
            obs: one observation of the environment, or a batch, as in `act`.
            action: one action of the environment, or a batch; the result is then `[]` or `[B]`. None gives the values
                of all discrete actions, `[A]` or `[B, A]`.

        Raises:
            UsageError: the algorithm has no action values, the critic was not exported, or an argument does not fit.
        """
        found = self._answer("q_values", self._answers.q_values)
        batch, single, *_ = self._situation(obs)
        if action is None and self.action_space.continuous:
            raise UsageError("these actions are continuous, and cannot be listed: call q_values(obs, action)")
        taken = None if action is None else self._taken(action, batch.shape[1])
        return self._like(obs, single, found(self._cfg, self._cohort.state, batch, taken)[0])

    def probabilities(self, obs: Any, mask: Any = None, memory: Any = None) -> Any:
        """Return the probabilities π(a|s) of all actions, float32 `[A]` or `[B, A]`; NumPy or torch, as `obs` is.

        For multi-discrete actions, these are the probabilities of the first choice's values, then of the second's, and
        so on; for multi-binary actions, the probability that each bit is 1. `mask` holds the legal actions, as in
        `act`, and `memory` the recurrent state, as in `step`.

        Raises:
            UsageError: the policy is deterministic or its actions are continuous, or an argument does not fit.
        """
        found = self._answer("probabilities", self._answers.chances if self._listed else None)
        batch, single, legal, before = self._situation(obs, mask, memory)
        return self._like(obs, single, found(self._cfg, self._cohort.state, batch, legal, before).probabilities()[0])

    def log_prob(self, obs: Any, action: Any, mask: Any = None, memory: Any = None) -> Any:
        """Return the log-probabilities log π(a|s) of actions, float32 `[]` or `[B]`; NumPy or torch, as `obs` is.

        For continuous actions, the result is the log-density of the action in the algorithm's units, in which the
        environment's bounds are [−1, 1]. `action` is one action of the environment, or a batch; `mask` holds the legal
        actions, as in `act`, and `memory` the recurrent state, as in `step`.

        Raises:
            UsageError: the policy is deterministic, or an argument does not fit.
        """
        found = self._answer("log_prob", self._answers.chances)
        batch, single, legal, before = self._situation(obs, mask, memory)
        taken = self._taken(action, batch.shape[1])
        chances = found(self._cfg, self._cohort.state, batch, legal, before)
        return self._like(obs, single, chances.log_prob(taken)[0])

    @property
    def _listed(self) -> bool:
        """Whether all actions can be listed, or all values of each choice."""
        return not self.action_space.numbers and not self.action_space.parts

    @property
    def _answers(self) -> Answers:
        """What this policy can be asked."""
        algo, values = self._algo, self._algo.values
        if algo.answers is not None:
            return algo.answers(self._cfg)
        if values is None:
            return Answers()

        def q_values(cfg: Any, state: Any, obs: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
            q: torch.Tensor = values(cfg, state, obs)
            return q if action is None else pick(q, action)

        def value(cfg: Any, state: Any, obs: torch.Tensor, legal: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
            q = q_values(cfg, state, obs, None)
            return pick(q, best_legal(q, legal))

        return Answers(value, q_values)

    def _answer(self, name: str, found: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return how a question is answered; UsageError where it is not."""
        if found is None:
            has, continuous = self._answers, not self._listed
            able = {
                "value(obs)": has.value,
                "q_values(obs, action)" if continuous else "q_values(obs)": has.q_values,
                "probabilities(obs)": not continuous and has.chances,
                "log_prob(obs, action)": has.chances,
            }
            known = " and ".join(["act(obs)", *(call for call, answer in able.items() if answer)])
            raise UsageError(
                f"a policy of {self._name} with {self.action_space.kind} actions has no {name}: it has {known}"
            )
        if self._blind and name in ("value", "q_values"):
            raise UsageError(
                f"{name}: this policy was exported without its critic; set export.critic to true and export it again, "
                'or load a trained member: evopipe.load("models/trained", member=0)'
            )
        return found

    def _situation(
        self, obs: Any, mask: Any = None, memory: Any = None
    ) -> tuple[torch.Tensor, bool, torch.Tensor, torch.Tensor]:
        """Return observations as networks read them `[1, B, O]`, whether it is one, legal actions, and the memory."""
        batch, single = self._batch(obs)
        count = batch.shape[1]
        before = torch.zeros(count, self.memory) if memory is None else _tensor(memory, "memory").float()
        if before.shape != (count, self.memory):
            raise UsageError(f"memory has shape {tuple(before.shape)}; expected [{count}, {self.memory}]")
        return self._cohort.normalised(batch), single, self._legal(mask, count), before[None]

    def _taken(self, action: Any, batch: int) -> torch.Tensor:
        """Return the environment's own actions, one or a batch, in the algorithm's terms, see `Batch.action`."""
        space = self.action_space
        if space.parts:
            return torch.from_numpy(mixed.encoded(space.parts, action, batch))[None]
        own = _tensor(action, "action")
        if tuple(own.shape) not in (space.shape, (batch, *space.shape)):
            one, many = list(space.shape), [batch, *space.shape]
            raise UsageError(f"action has shape {tuple(own.shape)}; expected {one} or {many}")
        relative = torch.from_numpy(space.relative(own.double().numpy().reshape(-1, *space.shape)))
        again = space.own(relative.numpy()).reshape(own.shape)
        inside = bool(own.isfinite().all()) if space.continuous else bool((own.double().numpy() == again).all())
        choices = torch.tensor(space.choices) if not space.continuous else None
        if not inside or (
            choices is not None and not ((relative >= 0) & (relative < choices.view(relative[0].shape))).all()
        ):
            raise UsageError("action holds a value that is not in the environment's action space")
        return relative.expand(1, batch, *relative.shape[1:])

    def _batch(self, obs: Any) -> tuple[torch.Tensor, bool]:
        """`[1, B, O]` float32, and whether it is one observation."""
        if not self.observation_space.plain:
            try:
                rows, single = self.observation_space.read(obs)
            except ValueError as error:
                raise UsageError(f"obs holds {error}; pass what the environment gives, or a batch of it") from error
            return torch.from_numpy(rows)[None], single
        x = _tensor(obs, "obs").float()
        if x.ndim not in (1, 2) or x.shape[-1] != self.observations:
            found, expected = tuple(x.shape), f"[{self.observations}] or [B, {self.observations}]"
            raise UsageError(f"obs has shape {found}; expected {expected}")
        return x.reshape(1, -1, self.observations), x.ndim == 1

    def _legal(self, mask: Any, batch: int) -> torch.Tensor:
        if mask is None:
            return torch.ones(1, batch, self.actions, dtype=torch.bool)
        try:
            legal = _tensor(self.action_space.flat_mask(mask), "mask").bool()
        except ValueError as error:
            raise UsageError(f"mask is {error}") from error
        if legal.shape not in ((self.actions,), (batch, self.actions)):
            found, expected = tuple(legal.shape), f"[{self.actions}] or [{batch}, {self.actions}]"
            raise UsageError(f"mask has shape {found}; expected {expected}")
        if not self.action_space.possible(legal.view(-1, self.actions).numpy()).all():
            raise UsageError("mask leaves no legal action: allow at least one for every observation")
        return legal.expand(1, batch, self.actions)

    @staticmethod
    def _like(obs: Any, single: bool, result: torch.Tensor) -> Any:
        if isinstance(obs, torch.Tensor):
            return (result[0] if single else result).to(obs.device)
        array = result.numpy()
        return array[0] if single else array

    def on_rows(self) -> Policy:
        """Return a copy of the policy for observations that are flat already: n rows `[n, O]` float32.

        `EnvPool.obs` holds such rows. The policy itself takes observations in the environment's own form.
        """
        policy = copy(self)
        policy.observation_space = ObservationSpace.vector(self.observations)
        return policy

    def module(self) -> torch.nn.Module:
        """Return the greedy policy as a `torch.nn.Module`: obs `[B, O]` → (actions `[B]`, action values `[B, A]`).

        If the algorithm has no action values, the module returns actions alone. Continuous, multi-discrete and
        multi-binary actions are `[B, *shape]`; mixed ones are `[B, D + C]` float32: D choices, then C numbers, each in
        the order of the space's parts. A recurrent policy's module maps (obs `[B, O]`, memory `[B, M]`) to
        (actions, new memory); memory, the recurrent state, is zeros at first.
        """
        return _Greedy(self._algo, self._cfg, self._cohort, self.action_space)

    def modules(self) -> dict[str, tuple[torch.nn.Module, int]]:
        """Return the modules to export as `torch.export` programs, as a dict: file name → (module, O).

        O is the width of the module's flat observations.
        """
        return {PROGRAM: (self.module(), self.observations)}

    def misfit(self, env: Any) -> str | None:
        """Return why the policy cannot act in the environment `env`; None if it can.

        The reason is a phrase that can follow the environment's name in a sentence.
        """
        if isinstance(env, TeamEnv):
            return "is for a team, the policy is not; play it where it was trained"
        found, own = ActionSpace.of(env.action_space), self.action_space
        has = f"{ObservationSpace.of(env.observation_space).size} observations and {found.size} {found.kind} actions"
        wanted = f"{self.observations} observations and {self.actions} {own.kind} actions"
        return unlike(has, wanted)

    def episode(self, env: Any, explained: Explained, begun: tuple[Any, Any], limit: int) -> Iterator[Moment]:
        """Play one greedy episode of at most `limit` steps.

        After each step, yield a pair: the reward, and whether the episode terminated.

        Args:
            env: the environment, which has been reset.
            explained: a function without arguments that returns a context manager. `env.step` is called inside it. The
                context manager turns errors of the environment into evopipe's errors.
            begun: the observation and the info that `env.reset` returned.
            limit: the largest number of steps.
        """
        (obs, info), memory = begun, None
        for _ in range(limit):
            action, memory = self.step(obs, memory, info.get("action_mask"))
            action = int(action) if self.action_space.kind == "discrete" else action
            with explained():
                obs, reward, terminated, truncated, info = env.step(action)
                moment = float(reward), bool(terminated)
            yield moment
            if terminated or truncated:
                return

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the greedy policy as arrays by name, in the form that `core.numpy_policy` reads.

        Raises:
            ValueError: the policy is of a kind that NumPy policies do not support; the message says why.
        """
        (member,) = dissolve([self._cohort])
        made = arrays_of(self._algo, self._cfg, member, self.widths, self.action_space)
        rows = np.random.default_rng(0).normal(size=(64, self.observations)).astype(np.float32)
        other = numpy_policy.Policy(io.BytesIO(dump_arrays(made))).act(rows)
        if np.isclose(self.on_rows().act(rows), other, rtol=1e-3, atol=1e-3).mean() < 0.9:  # two may be worth the same
            raise ValueError("its algorithm reads the network's outputs in a way of its own")
        return made


def unlike(has: str, wanted: str) -> str | None:
    """Compare an environment with what a policy needs. Return why the policy cannot act in it; None if it can.

    The policy can act if both descriptions are equal. The reason is a phrase that can follow the environment's name in
    a sentence.

    Args:
        has: a description of the environment, such as `4 observations and 2 discrete actions`.
        wanted: a description in the same form of what the policy needs.
    """
    if has == wanted:
        return None
    return f"has {has}, the policy {wanted}; play it in the environment that it was trained in"


def _tensor(value: Any, name: str) -> torch.Tensor:
    """Return numbers of any kind as a tensor on the CPU."""
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is not an array of numbers ({error}); pass NumPy or torch") from error


class _Greedy(torch.nn.Module):
    """The greedy policy without the population axis, for `torch.export`."""

    def __init__(self, algo: Algorithm, cfg: Any, cohort: Cohort, space: ActionSpace) -> None:
        super().__init__()
        self._algo, self._cfg, self._state, self._space = algo, cfg, cohort.state, space
        self._normalised = cohort.normalised
        self.register_buffer("weights", getattr(cohort.state, algo.POLICY).values)
        hold_bounds(self, space)

    def forward(self, obs: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        """See `Policy.module`."""
        seen = self._normalised(obs[None])
        if memory is not None:
            actions, _, _, after = self._algo.step(self._cfg, self._state, seen, None, memory[None], None)
            return own_actions(self, self._space, actions[0]), after[0]
        if self._algo.values is not None:
            values = self._algo.values(self._cfg, self._state, seen)[0]
            return values.argmax(dim=-1) + self._space.start, values
        return own_actions(self, self._space, self._algo.greedy(self._cfg, self._state, seen, None)[0])


def hold_bounds(module: torch.nn.Module, space: ActionSpace) -> None:
    """Register the constants of an action space as buffers of a module, where `own_actions` reads them.

    The constants are the bounds of continuous actions, or the first values of multi-discrete choices.
    """
    bounds = mixed.bounds(space.parts) if space.parts else space.bounds
    if bounds is not None:
        for name, bound in zip(("low", "high"), bounds, strict=True):
            module.register_buffer(name, torch.as_tensor(bound, dtype=torch.float32))
    if space.parts:
        module.register_buffer("starts", torch.tensor(space.starts, dtype=torch.float32))
    elif bounds is None and space.kind != "discrete":
        module.register_buffer("starts", torch.tensor(space.starts))


def own_actions(module: Any, space: ActionSpace, actions: torch.Tensor) -> torch.Tensor:
    """Convert a policy's actions to values of the environment's action space.

    Continuous actions are scaled from [−1, 1] to the bounds. Discrete actions are shifted by the space's first value.
    The result equals that of the method `ActionSpace.own`, but `torch.export` can trace this function.

    Args:
        module: a module with the bounds or first values of the space as buffers, which `hold_bounds` registered.
        space: the environment's action space.
        actions: the policy's actions.
    """
    if space.kind == "discrete":
        return actions + space.start
    if space.parts:  # one row: the choices, then the numbers
        count = len(space.choices)
        stretched = module.low + (actions[:, count:] + 1.0) / 2.0 * (module.high - module.low)
        numbers = torch.minimum(torch.maximum(stretched, module.low), module.high)
        return torch.cat((actions[:, :count] + module.starts, numbers), dim=-1)
    if not space.continuous:
        own: torch.Tensor = (actions + module.starts).view(-1, *space.shape)
        return own
    stretched = module.low + (actions + 1.0) / 2.0 * (module.high - module.low)
    clamped: torch.Tensor = stretched.clamp(module.low, module.high).view(-1, *space.shape)
    return clamped


def online_networks(algo: Algorithm, widths: Mapping[str, Widths]) -> dict[str, str]:
    """Return a dict of the networks that gradients train: the keys are the networks' names in `widths`, the values are
    their names in `Member.tensors`.

    Target networks are left out. `widths` holds the input and output width of every network by name.
    """
    return {
        network: name
        for f in dataclasses.fields(algo.State)
        if f.metadata["kind"] == "parameters" and f.metadata["trainable"]
        for network, name in zip(f.metadata["networks"], names_of(f), strict=True)
        if network in widths
    }


def other_networks(algo: Algorithm, widths: Mapping[str, Widths]) -> dict[str, str]:
    """Return the networks of an algorithm that gradients train but acting does not need, such as critics.

    The result is a dict: network → its name in `Member.tensors`. `widths` holds the input and output width of every
    network by name.
    """
    acting = acting_networks(algo.POLICY, widths)
    return {network: name for network, name in online_networks(algo, widths).items() if network not in acting}


def rows_for_acting(algo: Algorithm, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors that acting needs in addition to the networks, by name.

    The result has the tensors of the observation normaliser, if the member has one, and the tensors that the
    algorithm's `ACTS_WITH` names.

    Args:
        algo: the algorithm.
        tensors: all tensors of the member, by name.
    """
    seen = SHOWN if set(SHOWN) <= set(tensors) else ()
    return {name: tensors[name] for name in (*seen, *algo.ACTS_WITH)}


def for_acting(algo: Algorithm, member: Member, widths: Mapping[str, Widths]) -> Member:
    """Return a copy of a member with zeros in place of all tensors that a policy does not need.

    The copy keeps the networks that gradients train, except those that the member does not have. It also keeps the
    tensors that `rows_for_acting` names.

    `widths` holds the input and output width of every network of the algorithm by name.
    """
    online, tensors = {*online_networks(algo, widths).values()}, rows_for_acting(algo, member.tensors)
    for name, (kind, network) in tensor_kinds(algo.State, widths).items():
        if kind == "parameters" and name in online and name in member.tensors:
            tensors[name] = member.tensors[name]
        elif kind == "row":
            tensors.setdefault(name, torch.zeros(()))
        else:
            tensors[name] = torch.zeros(member.arch.size(widths[network]))
    return replace(member, tensors=tensors)
