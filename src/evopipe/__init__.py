"""evopipe: train populations of reinforcement-learning agents that tune themselves while they learn."""

__version__ = "0.1.0"
