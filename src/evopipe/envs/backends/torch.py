"""Environments as tensors on a device: Gymnasium's classic control, teams of mpe2, and a user's own."""

from evopipe.envs.tensors import TensorPool

TEAMS = True
tensors = TensorPool
