"""The few types that all packages share. Shapes in docstrings and comments use these letters:

`P` members · `E` environments per member · `T` time · `B` batch · `U` updates · `O` observation · `A` actions · `H`
hidden units · `N` parameters of one network · `R` rows of an environment pool (`P × E`) · `K` agents of a team
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

Tensor: TypeAlias = "torch.Tensor"  # for annotations in algorithm files, of which `params check` reads `Config` alone


class Image(NamedTuple):
    """The place of an image inside a flat observation vector.

    The image `[channels, height, width]` is stored as the `channels · height · width` columns that begin at `start`.

    Attributes:
        start: the index of the image's first column.
        channels, height, width: the shape of the image.
    """

    start: int
    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """The number of columns that the image occupies: `channels · height · width`."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Team:
    """A team of `K` agents that act at once in one environment.

    The sizes in `Spaces` are those of the widest agent. A narrower agent's observation is padded with zeros, and its
    surplus actions are illegal or without effect.

    Attributes:
        agents: the agents' names, in a fixed order.
        observations: the number of values in each agent's own observation.
        actions: the number of each agent's own discrete actions, or of the values in its own continuous action.
    """

    agents: tuple[str, ...]
    observations: tuple[int, ...]
    actions: tuple[int, ...]

    @property
    def unlike(self) -> bool:
        """Whether the agents differ in their numbers of actions."""
        return len(set(self.actions)) > 1

    def groups(self, named: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        """Return the indices of the agents in each group, by the group's name.

        `named` maps each group to its agents' names. If it is empty, agents whose names are equal up to the last `_`
        form a group.

        Raises:
            ValueError: a group is empty or names an unknown agent, or an agent is not in exactly one group.
        """
        if not named:
            prefixes = [name.rpartition("_")[0] or name for name in self.agents]
            return {p: tuple(i for i, q in enumerate(prefixes) if q == p) for p in dict.fromkeys(prefixes)}
        listed = [agent for agents in named.values() for agent in agents]
        for group, agents in named.items():
            if not agents:
                raise ValueError(f"the group {group!r} names no agent; the agents are {', '.join(self.agents)}")
        for agent in listed:
            if agent not in self.agents:
                raise ValueError(f"there is no agent {agent!r}; the agents are {', '.join(self.agents)}")
        for agent in self.agents:
            if listed.count(agent) != 1:
                times = "in no group" if agent not in listed else "in more than one group"
                raise ValueError(f"the agent {agent!r} stands {times}; name each agent once")
        return {group: tuple(self.agents.index(agent) for agent in agents) for group, agents in named.items()}

    def to_json(self) -> dict[str, Any]:
        return {name: list(getattr(self, name)) for name in ("agents", "observations", "actions")}


@dataclass(frozen=True, slots=True)
class Spaces:
    """A description of an environment's observation and action spaces, as far as an algorithm needs them.

    For a team, sizes are those of the widest agent.

    Attributes:
        observations: O, the number of values in an observation.
        actions: A, the width of a policy's outputs and of a mask of legal actions. It is the number of choices (summed
            over all indices), of bits, or of values in a continuous action.
        continuous: whether an action is a vector in [-1, 1]^A.
        images: the columns of an observation that are images.
        kind: the kind of an action. `discrete` is an index below A; `multidiscrete` is D indices, each below a number
            of its own; `multibinary` is D bits; `continuous` is a vector; `mixed` is D indices, then `numbers` values
            of a vector, in one row of float32 numbers. If it is empty, it becomes `continuous` or
            `discrete`.
        choices: the number of choices of each index of an action; it must be given for `multidiscrete` and `mixed`.
        one_hot: ranges (first, end) of columns of an observation that hold a one-hot code; `end` is not included.
        team: the team; None for a single agent.
        numbers: the count of values in [-1, 1] in an action; it must be given for `mixed`.
    """

    observations: int
    actions: int
    continuous: bool = False
    images: tuple[Image, ...] = ()
    kind: str = ""
    choices: tuple[int, ...] = ()
    one_hot: tuple[tuple[int, int], ...] = ()
    team: Team | None = None
    numbers: int = 0

    @property
    def agents(self) -> int:
        """`K`, the number of agents in one environment; 1 for a single agent."""
        return len(self.team.agents) if self.team else 1

    @property
    def by_agent(self) -> tuple[int, ...]:
        """The extra axis that a team adds to observations, actions and rewards: `(K,)`, or `()` for a single agent."""
        return (len(self.team.agents),) if self.team else ()

    @property
    def who(self) -> Team:
        """The team, or for a single agent a team that consists of that agent alone."""
        return self.team or Team(("agent",), (self.observations,), (self.actions,))

    def __post_init__(self) -> None:
        implied = {"discrete": (self.actions,), "multibinary": (2,) * self.actions}
        object.__setattr__(self, "kind", self.kind or ("continuous" if self.continuous else "discrete"))
        object.__setattr__(self, "choices", tuple(self.choices) or implied.get(self.kind, ()))
        if self.kind == "continuous":
            object.__setattr__(self, "numbers", self.actions)

    @property
    def real(self) -> bool:
        """Whether an encoded action is float32 numbers, and not int64 indices."""
        return self.kind in ("continuous", "mixed")

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action as algorithms encode it: `()` for one index, `(D,)` for a list of D indices or bits,
        `(A,)` for a continuous action of A numbers, `(D + C,)` for a mixed one of D indices and C numbers."""
        return () if self.kind == "discrete" else (len(self.choices) + self.numbers,)

    @property
    def action_size(self) -> int:
        """The number of values in one action: 1 for one index, D for a list of D indices or bits, A for a continuous
        action of A numbers."""
        return self.action_shape[0] if self.action_shape else 1

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in ("observations", "actions", "continuous")}
        if self.images:
            found["images"] = [list(image) for image in self.images]
        if self.kind not in ("discrete", "continuous"):
            found |= {"kind": self.kind, "choices": list(self.choices)}
        if self.kind == "mixed":
            found["numbers"] = self.numbers
        if self.team is not None:
            found["team"] = self.team.to_json()
        return found


GONE, ACTS, CUT = 0, 1, 2
"""Where a step leaves each agent of a team, `next_alive`: it takes no part in the next one, because it terminated or
was away; it acts next, whether it acted before or comes; it was truncated, and has a last observation. A target of
agent k is a value of the situation in which those stand that act next and, where k itself was truncated, those that
were truncated with it; all others are zeros."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A minibatch of B transitions for each of P members, each transition over one environment step or over n steps.

    O is the length of an observation. A is the number of discrete actions, or the length of a continuous action.

    For a team of K agents, every tensor except `weight` has an axis `K` after `B`. Each agent has its own reward and
    discount. They cover only its steps until it terminates or is truncated.

    Attributes:
        obs: `[P, B, O]` float32, the observations before the first step.
        action: `[P, B]` int64, or `[P, B, A]` float32 in [-1, 1] for continuous actions.
        reward: `[P, B]` float32, the sum Σ γᵏ r of the rewards over the steps; γ is the member's own.
        discount: `[P, B]` float32, the factor γⁿ of the value of `next_obs`; 0 if the episode terminated in these
            steps.
        next_obs: `[P, B, O]` float32, the true observations after the last step.
        next_legal: `[P, B, A]` bool, whether each action is legal in `next_obs`; None if all actions are always legal.
        weight: `[P, B]` float32, the weight of each transition in the loss. With uniform sampling, the b transitions of
            a member with batch size b ≤ B have weight 1 / b, the others 0.
        legal: `[P, B, A]` bool, whether each action is legal in `obs`; None if all actions are always legal, or if the
            algorithm's loss does not need this mask.
        alive: for a team, `[P, B, K]` float32, 1 if the agent acted in `obs`, 0 if it was absent.
        learns: for a team, `[P, B, K]` float32, 1 if the agent learns from this transition, 0 if only other agents
            learn from it.
        next_alive: for a team, `[P, B, K]` float32, each agent's status after the step: `GONE` (takes no part in the
            next step), `ACTS` (acts next) or `CUT` (was truncated).
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_legal: Tensor | None
    weight: Tensor
    legal: Tensor | None = None
    alive: Tensor | None = None
    learns: Tensor | None = None
    next_alive: Tensor | None = None


class Chosen(NamedTuple):
    """The result of an on-policy algorithm's `step` for P members with E environments each.

    Attributes:
        action: `[P, E, …]`, the actions: int64 `[P, E]`, or `[P, E, D]` for actions of D indices; float32 `[P, E, A]`
            for continuous actions of A numbers.
        log_prob: `[P, E]`, the log-probabilities of the actions.
        value: `[P, E]`, the state values of the observations.
        memory: `[P, E, M]`, the recurrent state after the step; M is 0 without a recurrent network.
    """

    action: Tensor
    log_prob: Tensor
    value: Tensor
    memory: Tensor


@dataclass(frozen=True, slots=True)
class Sequences:
    """A minibatch of B sequences of L consecutive steps for each of P members; without a recurrent network L is 1.

    For a team, the sequences of all agents over the same steps of the same environment are adjacent in the axis B.

    Attributes:
        obs: `[P, B, L, O]` float32, the observations of O numbers each.
        action: `[P, B, L]` int64 for discrete actions; otherwise `[P, B, L, D]`, for D indices (int64) or D numbers
            (float32).
        legal: `[P, B, L, A]` bool, whether each of the A actions is legal; None if all are always legal.
        log_prob: `[P, B, L]`, the log-probabilities of the actions when they were taken.
        value: `[P, B, L]`, the state values of the observations when the actions were taken.
        advantage: `[P, B, L]`, the advantages of the actions.
        target: `[P, B, L]`, the targets of the state values.
        begins: `[P, B, L]` bool, True at the first step of an episode.
        memory: `[P, B, M]`, the recurrent state of M numbers before the first step of each sequence.
        weight: `[P, B, L]`, the weight of each step in the loss. A member's weights sum to 1. Padding, and all steps of
            a member that has no minibatch, have weight 0.
    """

    obs: Tensor
    action: Tensor
    legal: Tensor | None
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    begins: Tensor
    memory: Tensor
    weight: Tensor


Hyper: TypeAlias = "Mapping[str, torch.Tensor]"  # a cohort's hyper-parameters by name, [P] each


class Learned(NamedTuple):
    """The result of an algorithm's `update` for P members.

    The new weights are not in the result, because `update` writes them into the state's tensors.

    Attributes:
        losses: `[P]`, the members' losses.
        healthy: `[P]` bool, False for members whose loss, gradients or weights are not finite.
        errors: `[P, B]`, the TD error of each of the B transitions, for prioritised sampling; None if there are no such
            errors.
    """

    losses: Tensor
    healthy: Tensor
    errors: Tensor | None = None


# --- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """The two sizes of a base language model on which the networks of a language algorithm depend.

    Attributes:
        vocabulary: the number of tokens in the vocabulary.
        hidden: the width of the hidden states.
    """

    vocabulary: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Text:
    """A minibatch of B rows of text for each of P members: a prompt and the completion after it.

    A row has L columns. Prompts are padded on the left, completions on the right. Tensors `[P, B, T]` describe the last
    T columns only, in which the completions are.

    Attributes:
        ids: `[P, B, L]` int64, the tokens.
        real: `[P, B, L]` bool, False for padding.
        mask: `[P, B, T]` bool, the tokens to learn from: those that the member wrote, or those of the dataset's
            completion.
        turn: `[P, B, T]` int64, the index of the turn in which each token was written, for episodes of several turns;
            else 0.
        log_prob: `[P, B, T]`, the log-probability of each token when it was generated, at temperature 1.
        reference: `[P, B, T]`, the log-probability of each token under the base model.
        value: `[P, B, T]`, the state value before each token when it was generated.
        reward: `[P, B]`, the reward of each row.
        advantage: `[P, B, T]`, the advantage of each token.
        target: `[P, B, T]`, the target of each value.
        keep: `[P, B]` bool, the rows to learn from; None for all.
    """

    ids: Tensor
    real: Tensor
    mask: Tensor
    turn: Tensor
    log_prob: Tensor | None = None
    reference: Tensor | None = None
    value: Tensor | None = None
    reward: Tensor | None = None
    advantage: Tensor | None = None
    target: Tensor | None = None
    keep: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Games:
    """A minibatch of B games for each of P members, each game a sequence of `L` tokens.

    Tensors with `L - 1` columns describe states: column j is the state after token j, and token j + 1 is the action in
    it. The player writes some of these tokens, the environment the others. `ops.language.games` makes the tensors.

    Attributes:
        ids: `[P, B, L]` int64, the tokens.
        acts: `[P, B, L - 1]` bool, True if the player writes the next token.
        reward: `[P, B, L - 1]` float32, the sum of the rewards from this state until the player writes again.
        after: `[P, B, L - 1]` int64, the column of the next state in which the player writes; the column of the game's
            last token if there is none.
        over: `[P, B, L - 1]` bool, True if the game ends before the player writes again.
    """

    ids: Tensor
    acts: Tensor
    reward: Tensor
    after: Tensor
    over: Tensor


class TokenScores(NamedTuple):
    """The outputs of a network for the tokens of a `Text`: B rows of T tokens for each of P members.

    Entries of tokens that `Text.mask` excludes are arbitrary finite numbers.

    Attributes:
        log_prob: `[P, B, T]`, the log-probability of each token, given all tokens before it.
        entropy: `[P, B, T]`, the entropy of the distribution of each token; 0 if the caller did not ask for entropies.
        value: `[P, B, T]`, the state value before each token; None for a network without a value head.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor | None
