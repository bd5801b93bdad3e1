"""Environments in C on the CPU: Gymnasium's classic control and grid worlds, MinAtar's games, and a user's
own (`env.source`)."""

from evopipe.envs.compiled import CompiledPool

tensors = CompiledPool
