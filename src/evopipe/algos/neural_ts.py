"""Neural contextual bandits with Thompson sampling.

Zhang, Zhou, Li & Gu, "Neural Thompson sampling", ICLR 2021.

In training a member draws every arm's reward from N(f(x; θ), ν² λ σ²(x)) and chooses the arm with the largest;
otherwise that with the largest f(x; θ). Its loss is the weighted mean of ½ (f(x; θ) − r)², and ½ d |θ − θ₀|². Each step
of an environment is taken for itself: neither next observations nor discounts are read.

σ²(x) = Σⱼ gⱼ(x)² / (λ + Sⱼ), where g(x) is the gradient of f(x; θ) by every parameter, and Sⱼ the sum of gⱼ² over the
arms chosen so far: the diagonal of the paper's matrix, as in its experiments, with its factor m in λ.
"""

from __future__ import annotations

from evopipe.algos import _hyper, _neural_bandit
from evopipe.ops.policy import epsilon_greedy
from evopipe.rng import Stream
from evopipe.schema.declare import AlgoConfig
from evopipe.types import Tensor

PAPER = "https://arxiv.org/abs/2010.00827"
REGIME = "off_policy"
POLICY = "q"
ACTIONS = ("discrete",)


class Config(AlgoConfig):
    """Hyper-parameters of neural Thompson sampling, a contextual bandit (Zhang et al., 2021).

    Annotations such as `_hyper.Rate` hold the description, unit and bounds of a field.
    """

    lr: _hyper.Rate = 1e-3
    batch_size: _hyper.BatchSize = 64
    learn_step: _hyper.LearnStep = 1
    contexts: _neural_bandit.Contexts = "shared"
    exploration: _neural_bandit.Exploration = 0.1
    ridge: _neural_bandit.Ridge = 1.0
    decay: _neural_bandit.Decay = 6.25e-4
    grad_clip: _hyper.GradientClip = 10.0
    network: _hyper.Network = _hyper.NETWORK
    evolve: _hyper.Evolving = _hyper.ranges(lr=(6.25e-5, 1e-2), batch_size=(8, 512))


State = _neural_bandit.State
networks, init, values = _neural_bandit.networks, _neural_bandit.init, _neural_bandit.values
explore, greedy = _neural_bandit.explore, _neural_bandit.greedy
loss, update = _neural_bandit.loss, _neural_bandit.update


def act(cfg: Config, state: State, obs: Tensor, legal: Tensor, epsilon: Tensor, draw: Stream) -> Tensor:
    """Choose a legal arm for every observation; return the arms' indices, `[P, E]` int64.

    A reward is drawn for each arm, from a Gaussian whose mean is the arm's expected reward. The arm with the highest
    drawn reward is chosen. With probability ε, the arm is uniformly random instead.

    Args:
        cfg, state: the algorithm's configuration and state.
        obs: `[P, E, O]`, the observations of P members with E environments each.
        legal: `[P, E, A]` bool, the legal arms (actions).
        epsilon: `[P]`, ε.
        draw: the stream of random numbers.
    """
    mean = values(cfg, state, obs)
    deviation = cfg.exploration * cfg.ridge**0.5 * _neural_bandit.width(cfg, state, obs)
    noise = draw.part(1).normal(mean[0].numel()).view_as(mean)
    return epsilon_greedy(mean + deviation * noise, legal, epsilon, draw)
