"""The few types that every room shares. Shapes in docstrings and comments use these letters:

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

    The image `[channels, height, width]` occupies `channels · height · width` columns from the column `start` on.
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
    """A team of `K` agents that act at once in one environment: their names and each agent's observation and action
    sizes.

    The sizes in `Spaces` are those of the widest agent. A narrower agent's observation is padded with zeros, and its
    surplus actions are illegal or without effect.
    """

    agents: tuple[str, ...]  # their names, in a fixed order
    observations: tuple[int, ...]  # each agent's own O; the rest of its row is 0
    actions: tuple[int, ...]  # each agent's own A; the rest is illegal, or without effect where actions are vectors

    @property
    def unlike(self) -> bool:
        """Whether some agents have more actions than others."""
        return len(set(self.actions)) > 1

    def groups(self, named: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        """Return the indices of the agents in each group, by the group's name.

        `named` maps each group to its agents' names. If it is empty, agents whose names are equal up to the last `_`
        form a group.

        Raises:
            ValueError: a group names no agent or an unknown one, or an agent is in no group or in two.
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

    An action is one of four kinds: `discrete`, an index below A; `multidiscrete`, D indices, each below a number of
    choices of its own; `multibinary`, D bits; `continuous`, a vector in [-1, 1]^A. For a team, sizes are those of the
    widest agent.
    """

    observations: int  # O, length of an observation
    actions: int  # A, width of a mask and of a policy's logits: all choices together, bits, or dimensions
    continuous: bool = False
    images: tuple[Image, ...] = ()  # which columns of an observation are images; what lies in none is a vector
    kind: str = ""  # of an action; by default as `continuous` says, else `discrete`
    choices: tuple[int, ...] = ()  # of each index of an action; they must be given where multidiscrete
    one_hot: tuple[tuple[int, int], ...] = ()  # stretches (first, end) of columns that are one-hot
    team: Team | None = None  # who acts, where several do; the rest is then what one of them sees and does

    @property
    def agents(self) -> int:
        """`K`, the number of agents in one environment; 1 without a team."""
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

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action as algorithms encode it: `()` for one index, `(D,)` for D indices or bits, `(A,)` for
        a vector."""
        return () if self.kind == "discrete" else (self.actions if self.continuous else len(self.choices),)

    @property
    def action_size(self) -> int:
        """`D`, the number of values in one action."""
        return self.action_shape[0] if self.action_shape else 1

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: getattr(self, name) for name in ("observations", "actions", "continuous")}
        if self.images:
            found["images"] = [list(image) for image in self.images]
        if self.kind not in ("discrete", "continuous"):
            found |= {"kind": self.kind, "choices": list(self.choices)}
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

    For a team, everything except the weight has an axis `K` (agents) after `B`. Each agent's reward and discount count
    the agent's own steps, until the agent terminates or is truncated.
    """

    obs: Tensor  # [P, B, O] float32
    action: Tensor  # [P, B] int64, or [P, B, A] float32 in [-1, 1] where the space is continuous
    reward: Tensor  # [P, B] float32, Σ γᵏ r over the steps, γ the member's own
    discount: Tensor  # [P, B] float32, what `next_obs` counts: γⁿ, 0 where the episode terminated on the way
    next_obs: Tensor  # [P, B, O] float32, the true observation after the last step
    next_legal: Tensor | None  # [P, B, A] bool, legal actions there; None where all always are
    weight: Tensor  # [P, B] float32, how much a transition counts; sampled uniformly (j < b_p) / b_p, which sums to 1
    legal: Tensor | None = None  # [P, B, A] bool, legal actions in `obs`; None also where no loss reads it
    # Of a team, [P, B, K] float32 each:
    alive: Tensor | None = None  # 1 where an agent acted in `obs`, 0 where it was gone
    learns: Tensor | None = None  # 1 where the transition is one of the agent's own, 0 where others' alone
    next_alive: Tensor | None = None  # GONE, ACTS or CUT in `next_obs`


class Chosen(NamedTuple):
    """The result of an on-policy algorithm's `step`: actions, their log-probabilities, values, and recurrent memory.

    Every tensor begins with the axes `[P, E]`: P members, E environments of each.
    """

    action: Tensor  # [P, E, …], as in `Batch`
    log_prob: Tensor  # [P, E], of the action
    value: Tensor  # [P, E], of the observation
    memory: Tensor  # [P, E, M], what recurrent networks carry to the next step


@dataclass(frozen=True, slots=True)
class Sequences:
    """A minibatch of B sequences of L consecutive steps for each of P members; without a recurrent network L is 1.

    The agents of a team are adjacent in the axis B, at the same ticks of the same environment.
    """

    obs: Tensor  # [P, B, L, O] float32
    action: Tensor  # [P, B, L] int64; [P, B, L, D] int64 or float32 of other spaces
    legal: Tensor | None  # [P, B, L, A] bool, None where all actions always are
    log_prob: Tensor  # [P, B, L], of the action when it was taken
    value: Tensor  # [P, B, L], of the observation then
    advantage: Tensor  # [P, B, L]
    target: Tensor  # [P, B, L], what the value should have been
    begins: Tensor  # [P, B, L] bool, an episode begins here
    memory: Tensor  # [P, B, M], before the first step
    weight: Tensor  # [P, B, L], how much a step counts: they sum to 1; pads and members without a minibatch count 0


Hyper: TypeAlias = "Mapping[str, torch.Tensor]"  # a cohort's hyper-parameters by name, [P] each


class Learned(NamedTuple):
    """The result of an algorithm's `update`: losses `[P]`, whether each member is healthy `[P]`, and TD errors `[P, B]`
    or None.

    The new weights are not in the result, because `update` writes them into the state's tensors.
    """

    losses: Tensor  # [P]
    healthy: Tensor  # [P] bool
    errors: Tensor | None = None  # [P, B], temporal-difference errors for prioritised sampling


# --- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """The sizes of a base language model that a language algorithm needs: of its vocabulary and of its hidden
    states."""

    vocabulary: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Text:
    """A minibatch of B rows of text for each of P members, `L` columns long: a prompt and the completion after it.

    Prompts are padded on the left, completions on the right. `ids` and `real` have all `L` columns; tensors with an
    axis `T` have the last `T` columns.
    """

    ids: Tensor  # [P, B, L] int64
    real: Tensor  # [P, B, L] bool, false in pads
    mask: Tensor  # [P, B, T] bool, tokens that count: written by the member, or to be learned
    turn: Tensor  # [P, B, T] int64, which turn a token belongs to
    log_prob: Tensor | None = None  # [P, B, T] of the token when it was written, by the untempered model
    reference: Tensor | None = None  # [P, B, T] of the token by the base
    value: Tensor | None = None  # [P, B, T] before the token, as it was then
    reward: Tensor | None = None  # [P, B] of the whole row
    advantage: Tensor | None = None  # [P, B, T]
    target: Tensor | None = None  # [P, B, T], what the value should have been
    keep: Tensor | None = None  # [P, B] bool, rows that count; None where all do


@dataclass(frozen=True, slots=True)
class Games:
    """A minibatch of B games for each of P members, each game a sequence of `L` tokens.

    A value at a token belongs to the state after that token, in which the next token is the action. All tensors except
    `ids` have `L - 1` columns, without the last token. See `ops.language.games`.
    """

    ids: Tensor  # [P, B, L] int64
    acts: Tensor  # [P, B, L - 1] bool, the player writes the next token
    reward: Tensor  # [P, B, L - 1] float32, received from then on until the player writes again
    after: Tensor  # [P, B, L - 1] int64, the column of the state in which it does, or of the last token
    over: Tensor  # [P, B, L - 1] bool, the game is over by then


class TokenScores(NamedTuple):
    """The outputs of a network for a `Text`: log-probability, entropy and value of every token `[P, B, T]`.

    Entries of tokens that `Text.mask` excludes are arbitrary finite numbers. The value is None for a network without a
    value head.
    """

    log_prob: Tensor  # [P, B, T] of the token, given all before it
    entropy: Tensor  # [P, B, T] of the distribution that it was one of; 0 where nobody asked
    value: Tensor | None  # [P, B, T] before the token
