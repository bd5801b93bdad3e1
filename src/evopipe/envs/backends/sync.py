"""Gymnasium's and PettingZoo's own environments. The pool steps them one by one, in this process or in workers."""

TEAMS = True
