"""Trained policies from their folders: of environments, teams, language models, games."""

from __future__ import annotations

from pathlib import Path

from evopipe.algos import get
from evopipe.language import player
from evopipe.language import policy as language
from evopipe.language.player import GamePolicy
from evopipe.language.policy import LanguagePolicy
from evopipe.policies import policy
from evopipe.policies.policy import Policy
from evopipe.policies.team import TeamPolicy


def load(
    path: str | Path, member: int | None = None, trust: bool = False
) -> Policy | TeamPolicy | LanguagePolicy | GamePolicy:
    """Return the policy that lies in a folder such as `models/elite`, or one of the trained members in
    `models/trained`.

    No module is imported that a folder names, and nothing in it is run.

    Args:
        path: the folder.
        member: which of the trained members, as `reports/members.json` numbers them; None of a policy folder.
        trust: import the module of a network of its author's own (`network.module`), if it names one.

    Raises:
        MissingInputError: it is not there, or its network is of a module that was not imported.
        DataError: it is damaged, of a newer format, or not a policy.
        UsageError: there is no such member.

    Examples:
        >>> import evopipe, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> small = {"env": {"id": "CartPole-v1"}, "train": {"max_steps": 200, "evo_steps": 100, "eval_episodes": 2}}
        >>> quiet = {"evaluate": {"episodes": 4}, "tracking": {"backends": []}}
        >>> _ = evopipe.train({**small, **quiet}, folder)
        >>> policy = evopipe.load(f"{folder}/models/elite")
        >>> policy.act([0.0, 0.1, 0.0, -0.1]) in (0, 1)
        True
    """
    if member is None and (about := language.described(Path(path))) is not None:
        if about["kind"] == "games":
            return player.load(Path(path), about, get(str(about.get("algo"))))
        return language.load(Path(path), about)
    return policy.load(path, member, trust)
