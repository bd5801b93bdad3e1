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
    """Where an image lies in an observation: `[channels, height, width]` from the column `start`."""

    start: int
    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """The number of columns."""
        return self.channels * self.height * self.width


@dataclass(frozen=True, slots=True)
class Team:
    """`K` agents that act at once in one environment. `Spaces` holds what they have in common, with the widest agent's
    sizes."""

    agents: tuple[str, ...]  # their names, in a fixed order
    observations: tuple[int, ...]  # each agent's own O; the rest of its row is 0
    actions: tuple[int, ...]  # each agent's own A; the rest is illegal, or without effect where actions are vectors

    @property
    def unlike(self) -> bool:
        """Whether agents have different numbers of actions."""
        return len(set(self.actions)) > 1

    def groups(self, named: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        """Return the indices of the agents in each group: the groups `named`, or those that agents' names have before
        the last `_`.

        Raises:
            ValueError: a group names no agent, or an agent is in no group or in two; the message is a sentence.
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
    """What an algorithm knows of an environment's spaces.

    An action is one of four kinds: `discrete`, an index below A; `multidiscrete`, D indices, each below its own number
    of choices; `multibinary`, D bits; `continuous`, a vector in [-1, 1]^A.
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
        """`K`, the number of agents in one environment."""
        return len(self.team.agents) if self.team else 1

    @property
    def by_agent(self) -> tuple[int, ...]:
        """The axis that agents have in what an environment takes and gives in a step: `(K,)`, `()` where one acts."""
        return (len(self.team.agents),) if self.team else ()

    @property
    def who(self) -> Team:
        """Those who act: the team, or the one agent by itself."""
        return self.team or Team(("agent",), (self.observations,), (self.actions,))

    def __post_init__(self) -> None:
        implied = {"discrete": (self.actions,), "multibinary": (2,) * self.actions}
        object.__setattr__(self, "kind", self.kind or ("continuous" if self.continuous else "discrete"))
        object.__setattr__(self, "choices", tuple(self.choices) or implied.get(self.kind, ()))

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action in the algorithm's encoding: `()` for an index, `(D,)` for several, `(A,)` for a
        vector."""
        return () if self.kind == "discrete" else (self.actions if self.continuous else len(self.choices),)

    @property
    def action_size(self) -> int:
        """`D`, how many numbers one action has."""
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
    """A minibatch of transitions for every member, each over one environment step or n.

    For a team, everything except the weight has an axis `K` after `B`. Each agent's reward and discount are those of
    its own steps, until it terminates or is truncated.
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
    """The result of an on-policy algorithm's `step`."""

    action: Tensor  # [P, E, …], as in `Batch`
    log_prob: Tensor  # [P, E], of the action
    value: Tensor  # [P, E], of the observation
    memory: Tensor  # [P, E, M], what recurrent networks carry to the next step


@dataclass(frozen=True, slots=True)
class Sequences:
    """A minibatch of sequences of L consecutive steps; without recurrence L is 1.

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
    """The result of an algorithm's `update`, which writes into the state's own tensors."""

    losses: Tensor  # [P]
    healthy: Tensor  # [P] bool
    errors: Tensor | None = None  # [P, B], temporal-difference errors for prioritised sampling


# --- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Words:
    """What a language algorithm knows of the base model: the sizes of its vocabulary and of its hidden states."""

    vocabulary: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Text:
    """Rows of text of every member: a prompt and what follows it, `L` columns.

    Prompts are padded on the left, what follows on the right. All tensors but `ids` and `real` have the last `T`
    columns.
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
    """Games of every member as tokens, `L` columns.

    Values at a token belong to the state after it, in which the next token is the action. All tensors but `ids` lack
    the last column. See `ops.language.games`.
    """

    ids: Tensor  # [P, B, L] int64
    acts: Tensor  # [P, B, L - 1] bool, the player writes the next token
    reward: Tensor  # [P, B, L - 1] float32, received from then on until the player writes again
    after: Tensor  # [P, B, L - 1] int64, the column of the state in which it does, or of the last token
    over: Tensor  # [P, B, L - 1] bool, the game is over by then


class TokenScores(NamedTuple):
    """A network's results for a `Text`. For tokens that do not count they are some finite number."""

    log_prob: Tensor  # [P, B, T] of the token, given all before it
    entropy: Tensor  # [P, B, T] of the distribution that it was one of; 0 where nobody asked
    value: Tensor | None  # [P, B, T] before the token
