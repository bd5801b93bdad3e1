"""Gymnasium's and PettingZoo's own environments, stepped one by one, in this process or in workers: by the pool."""

TEAMS = True
