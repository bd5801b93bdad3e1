"""Loading of trained policies from their folders, for environments, teams, language models and games."""

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
    """Load the policy in a folder such as `models/elite`, or one of the trained members in `models/trained`.

    No module that the folder names is imported, and no code in it is run, unless `trust` is True.

    Args:
        path: the folder.
        member: which trained member of `models/trained` to load, by its number in `reports/members.json`. None if the
            folder holds a single policy.
        trust: whether to import the module of a user-defined network (`network.module`), if the folder names one.

    Raises:
        MissingInputError: there is no such folder. Or its network is user-defined, `trust` is False, and the script
            has not imported the network's module itself.
        DataError: the folder is damaged, of a newer format, or not a policy.
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
