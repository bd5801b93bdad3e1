"""Independent proximal policy optimisation: PPO for teams, in which each agent uses its own observation only.

de Witt et al., "Is independent learning all you need in the StarCraft multi-agent challenge?", 2020; the equations are
those of Schulman et al., "Proximal policy optimization algorithms", 2017.

Every agent k has a policy π(aₖ|oₖ) and a value V(oₖ) of its own observation. Agents of a group share both networks,
which read a one-hot agent index too. With ρ = π / π_old and the generalised advantage estimates Â of each agent's own
rewards, a member's loss is the sum over groups of the mean over their agents' steps of

    −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)  +  c_v ½ (V(oₖ) − V̂)²  −  c_h H(π(·|oₖ)),   V̂ = Â + V_old(oₖ),

where Â is normalised over the group's steps in the minibatch. Steps of absent agents do not count. `target_kl` and LSTM
encoders work as in PPO.
"""

from __future__ import annotations

from functools import partial

from evopipe.algos import Answers, _ppo, _team_ppo
from evopipe.core.groups import AgentGroups, agent_groups
from evopipe.core.structure import Widths
from evopipe.types import Spaces, Tensor

PAPER = "https://arxiv.org/abs/2011.09533"
REGIME = "on_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous", "multidiscrete", "multibinary")
COMPILED = True
ACTS_WITH = ("log_std",)
RECURRENT = True
TEAM = True


class Config(_team_ppo.Config):
    """Hyper-parameters of IPPO, independent PPO for teams (de Witt et al., 2020).

    The fields are those of `_team_ppo.Config`.
    """


State = _team_ppo.State
init, schedule, greedy, learn = _team_ppo.init, _ppo.schedule, _team_ppo.greedy, _team_ppo.learn


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return _team_ppo.networks(cfg, spaces, agent_groups(cfg, spaces).observed)


def _seen(of: AgentGroups, obs: Tensor, next_alive: Tensor | None = None) -> Tensor:
    """Return what critics read, an agent's own observation: `[P, K, B, O]` → `[P, K, B, inputs]`."""
    return of.named(obs)


_own = (_team_ppo.step, _team_ppo.value, _team_ppo.evaluate, _team_ppo.loss, _team_ppo.update)
step, value, _evaluate, loss, update = (partial(each, _seen) for each in _own)


def answers(cfg: Config) -> Answers:
    return _team_ppo.answers(_seen)
