"""Multi-agent proximal policy optimisation: PPO for teams, with values of what all agents observe.

Yu et al., "The surprising effectiveness of PPO in cooperative multi-agent games", NeurIPS 2022; the equations are those
of Schulman et al., "Proximal policy optimization algorithms", 2017.

Every agent k has a policy π(aₖ|oₖ) of its own observation, and a value Vₖ(o) of all observations o, which only learning
needs. Agents of a group share both networks, which read a one-hot agent index too. With ρ = π / π_old and the
generalised advantage estimates Â of each agent's own rewards, a member's loss is the sum over groups of the mean over
their agents' steps of

    −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)  +  c_v ½ (Vₖ(o) − V̂)²  −  c_h H(π(·|oₖ)),   V̂ = Â + V_old,

where Â is normalised over the group's steps in the minibatch. `target_kl` and LSTM encoders work as in PPO.

Steps of absent agents do not count, and their observations are zeros. V(o′) reads the agents that act next, and zeros
for the others. Only if agent k was truncated at this step does it read other agents: those that were truncated together
with it. If observations have images, an agent's value reads its own images, and everything but the images of the
others.
"""

from __future__ import annotations

from functools import partial

from evopipe.algos import Answers, _ppo, _team_ppo
from evopipe.core.groups import AgentGroups, agent_groups
from evopipe.core.structure import Widths
from evopipe.types import Spaces, Tensor

PAPER = "https://arxiv.org/abs/2103.01955"
REGIME = "on_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous", "multidiscrete", "multibinary")
COMPILED = True
ACTS_WITH = ("log_std",)
RECURRENT = True
TEAM = True


class Config(_team_ppo.Config):
    """Hyper-parameters of MAPPO, PPO for teams with values of all agents' observations (Yu et al., 2022).

    The fields are those of `_team_ppo.Config`.
    """


State = _team_ppo.State
init, schedule, greedy, learn = _team_ppo.init, _ppo.schedule, _team_ppo.greedy, _team_ppo.learn


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return _team_ppo.networks(cfg, spaces, agent_groups(cfg, spaces).joint(actions=False))


def _seen(of: AgentGroups, obs: Tensor, next_alive: Tensor | None = None) -> Tensor:
    """Return what critics read, everyone's observations: `[P, K, B, O]` → `[P, K, B, inputs]`; in a target those alone
    who are there, see `AgentGroups.there`: next_alive `[P, K, B]`."""
    every = obs.transpose(1, 2)
    if next_alive is not None:
        every = every[:, None].masked_fill(~of.there(next_alive.transpose(1, 2))[..., None], 0.0)
    return of.together(every)


_own = (_team_ppo.step, _team_ppo.value, _team_ppo.evaluate, _team_ppo.loss, _team_ppo.update)
step, value, _evaluate, loss, update = (partial(each, _seen) for each in _own)


def answers(cfg: Config) -> Answers:
    return _team_ppo.answers(_seen)
