"""The former place of `evopipe.compat.agilerl.older`."""

from __future__ import annotations

from evopipe.compat.agilerl.older import train, train_multi_agent, train_offline, train_on_policy

__all__ = ["train", "train_multi_agent", "train_offline", "train_on_policy"]
