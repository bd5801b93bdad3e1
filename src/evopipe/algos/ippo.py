"""Independent proximal policy optimisation: PPO for teams, each agent by what it sees itself.

de Witt et al., "Is independent learning all you need in the StarCraft multi-agent challenge?", 2020; the equations are
those of Schulman et al., "Proximal policy optimization algorithms", 2017.

Every agent k has a policy π(aₖ|oₖ) and a value V(oₖ) of its own observation; agents of a group share both, and are told
apart by a one-hot number. With ρ = π / π_old and the generalised advantage estimates Â of each agent's own rewards, a
member's loss is the sum over groups of the mean over their agents' steps of

    −min(ρ Â, clip(ρ, 1 − ε, 1 + ε) Â)  +  c_v ½ (V(oₖ) − V̂)²  −  c_h H(π(·|oₖ)),   V̂ = Â + V_old(oₖ),

Â normalised over the group's steps in the minibatch. A step of an agent that is gone is none. What was said of PPO's
rest, `target_kl`, and of LSTM encoders goes for teams too.
"""

from __future__ import annotations

from functools import partial

from evopipe.algos import Answers, _hyper, _ppo, _team, _team_ppo
from evopipe.algos._team import Crew
from evopipe.core.structure import Widths
from evopipe.schema.declare import AlgoConfig, hyper
from evopipe.types import Spaces, Tensor

PAPER = "https://arxiv.org/abs/2011.09533"
REGIME = "on_policy"
POLICY = "actor"
ACTIONS = ("discrete", "continuous", "multidiscrete", "multibinary")
ACTS_WITH = ("log_std",)
RECURRENT = True
TEAM = True


class Config(AlgoConfig):
    """Hyper-parameters of IPPO."""

    lr: _hyper.Rate = 1e-3
    batch_size: _ppo.BatchSize = 256
    learn_step: _ppo.LearnStep = 2048
    epochs: _ppo.Epochs = 8
    gamma: _hyper.Discount = 0.95
    gae_lambda: _ppo.Lambda = 0.95
    clip: _ppo.Clip = 0.2
    clip_value: _ppo.ClipValue = False
    vf_coef: _ppo.ValueWeight = 0.5
    ent_coef: _ppo.EntropyWeight = 0.01
    grad_clip: _ppo.GradientClip = 0.5
    target_kl: _ppo.TargetDistance = 0.0
    normalise_advantage: bool = hyper(True, doc="whether advantages are normalised over each group's minibatch")
    decay_steps: _ppo.DecaySteps = 0
    lr_end: _ppo.RateEnd = 0.0
    clip_end: _ppo.ClipEnd = 1.0
    std: _ppo.Deviation = 0.6
    squash: _ppo.Squash = False
    max_seq_len: _ppo.Longest = 16
    sequences: _ppo.Cut = "chunked"
    share: _team.Share = "group"
    groups: _team.Groups = _team.BY_NAME
    score: _team.Score = "sum"
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _ppo.RANGES


State = _team_ppo.State
init, schedule, greedy, learn = _team_ppo.init, _ppo.schedule, _team_ppo.greedy, _team_ppo.learn


def networks(cfg: Config, spaces: Spaces) -> dict[str, Widths]:
    return _team_ppo.networks(cfg, spaces, _team.crew(cfg, spaces).observed)


def _seen(of: Crew, obs: Tensor) -> Tensor:
    """Return what critics read, an agent's own observation: `[P, K, B, O]` → `[P, K, B, inputs]`."""
    return of.named(obs)


_own = (_team_ppo.step, _team_ppo.value, _team_ppo.evaluate, _team_ppo.loss, _team_ppo.update)
step, value, _evaluate, loss, update = (partial(each, _seen) for each in _own)


def answers(cfg: Config) -> Answers:
    return _team_ppo.answers(_seen)
