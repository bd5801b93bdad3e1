"""Every public name has an example in its docstring, and it runs."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest

import evopipe

NAMES = [name for name in evopipe.__all__ if name != "__version__"]
ONE_KIND = {"GRPO", "LLMPPO", "LLMREINFORCE", "DPO"}  # instances of `LanguageAlgorithm`, which has the examples
LANGUAGE = ONE_KIND | {"AgentTrainer", "LanguageAgent", "PreferenceGym", "ReasoningGym"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def documented(name: str) -> Any:
    found = getattr(evopipe, name)
    return type(found) if name in ONE_KIND else found


def example(name: str) -> doctest.DocTest:
    thing = documented(name)
    # A reader has what the page says, `import evopipe`, and none of the names of the module that it stands in.
    return doctest.DocTestParser().get_doctest(thing.__doc__ or "", {"evopipe": evopipe}, name, None, None)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example(name: str) -> None:
    assert example(name).examples


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_KIND - {"GRPO"}])
@pytest.mark.filterwarnings("ignore:.*old spelling:DeprecationWarning")
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LANGUAGE or "llm" in name:
        pytest.importorskip("transformers", reason="an extra of its own: pip install 'evopipe[language]'")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    found = doctest.DocTestRunner(optionflags=FLAGS).run(example(name), out=told.append)
    assert not found.failed, "".join(told)
