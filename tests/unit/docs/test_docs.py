"""The documentation says what is: generated pages are fresh, links resolve, keys and tests exist, examples run."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from evopipe import algos, problems, searchers
from evopipe.envs.check import check
from evopipe.params.load import Params, any_params, parse_params
from evopipe.params.text import LanguageParams
from evopipe.problems.specs import make_spec
from evopipe.schema.read import parse_yaml
from outside import EXAMPLE
from pages import blocks, in_order
from tiny import ROOT, write_params

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]

TRAIN_OFF_POLICY = (
    "env", "env_name", "algo", "pop", "memory", "INIT_HP", "MUT_P", "swap_channels", "max_steps", "evo_steps",
    "eval_steps", "eval_loop", "learning_delay", "eps_start", "eps_end", "eps_decay", "target", "n_step", "per",
    "n_step_memory", "tournament", "mutation", "checkpoint", "checkpoint_path", "overwrite_checkpoints", "save_elite",
    "elite_path", "wb", "verbose", "accelerator", "wandb_api_key", "wandb_kwargs",
)  # fmt: skip


def prose(page: Path) -> str:
    """A page without its fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


# --- generated pages --------------------------------------------------------------------------------------------------


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_algorithms
    import make_examples
    import make_parameters
    import make_zoo

    return [make_parameters, make_algorithms, make_examples, make_zoo]


def test_generated_pages_are_fresh(scripts: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    stale = [script.__name__ for script in scripts if script.main(["--check"])]
    assert not stale, f"run `python docs/<name>.py`: {capsys.readouterr().err}"


def test_a_stale_page_is_told_and_made_anew(
    scripts: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "folder/page.md"
    publish = scripts[0].publish
    assert publish({page: "new"}, "", ["--check"]) == 1
    assert capsys.readouterr().err == f"{page}: stale, run `python docs/make_parameters.py`\n"
    assert (ROOT / "docs/make_parameters.py").is_file()
    assert publish({page: "new"}, "", []) == 0
    assert page.read_text() == "new"
    assert publish({page: "new"}, "", ["--check"]) == 0


@pytest.mark.parametrize("name", algos.names(None))
def test_the_page_of_an_algorithm_begins_with_its_name_and_a_call_that_is_valid(name: str) -> None:
    page = DOCS / f"algorithms/{name}.md"
    first, call = page.read_text().partition("\n")[0], blocks(page, "python")[0]
    short = re.sub("[^a-z]", "", name.partition("_")[0])
    assert re.sub("[^a-z]", "", first.lower()).startswith(short), first
    (params,) = (ast.parse(call.partition("evopipe.train(")[2].rstrip()[:-1].strip(), mode="eval").body,)
    settled = any_params(ast.literal_eval(params))
    assert settled.train.algo == name
    problems.check(settled)


@pytest.mark.thorough
@pytest.mark.parametrize("name", algos.names())
def test_the_call_on_the_page_of_an_algorithm_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(DOCS / f"algorithms/{name}.md", "python")[0].replace("evopipe.train(", "evopipe.Population(")
    short = '"max_steps": 2048, "evo_steps": 2048, "eval_episodes": 2, "confirm_episodes": 2, "target": None, "algo"'
    names: dict[str, Any] = {}
    exec(code.replace('"algo"', short), names)
    with names["result"] as population:
        assert len(population.train()) == 1


# --- what pages refer to ----------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that a renderer makes of headings."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    page = ROOT / name
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def known(key: str) -> bool:
    """Whether a dotted key names a parameter or a block, of either kind of params file."""
    return any(_known(key, schema) for schema in (Params, LanguageParams))


def _known(key: str, schema: Any) -> bool:
    here: Any = schema
    for number, step in enumerate(steps := key.split(".")):
        if get_origin(here) is dict:  # names are free: policies, hyper-parameters that evolve
            here = get_args(here)[1]
        elif step in getattr(here, "model_fields", {}):
            here = here.model_fields[step].annotation
        else:
            return False
        if steps[: number + 1] == ["algos"] and number + 1 < len(steps):
            name = steps[1]
            return name in algos.names(schema.PROBLEM) and (
                len(steps) == 2 or _below(algos.get(name).Config, steps[2:])
            )
        if steps[: number + 1] == ["search"] and steps[1:2] and steps[1] in searchers.OWN:
            return _below(searchers.get(steps[1]).Config, steps[2:])
    return True


def _below(config: Any, steps: list[str]) -> bool:
    here: Any = config
    for step in steps:
        if get_origin(here) is dict:
            here = get_args(here)[1]
        elif step in getattr(here, "model_fields", {}):
            here = here.model_fields[step].annotation
        else:
            return False
    return True


def keys(page: Path) -> Iterator[str]:
    """Dotted words in backticks whose first part is a block of `params.yaml`; `: value` and `=value` are cut off."""
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        word = re.match(r"[a-z_]+(\.[a-z_0-9]+)+(?=$|:|=)", code)
        if word and word[0].partition(".")[0] in {*Params.model_fields, *LanguageParams.model_fields}:
            yield word[0]


def test_what_counts_as_a_known_key() -> None:
    good = (
        "language.tiny.layers",
        "algos.grpo.beta",
        "train.replay.capacity",
        "algos.dqn.network.encoder",
        "algos.dqn.evolve.lr.max",
        "fetch.collect",
        "env.id",
        "search.budget",
        "search.halving.eta",
    )
    bad = (
        "search.halvin",
        "search.halving.etas",
        "train.replay.size",
        "algos.foo",
        "algos.dqn.lrr",
        "algos.dqn.evolve.lr.step",
        "env.idd",
        "train.algo.x",
    )
    assert [known(key) for key in good + bad] == [True] * len(good) + [False] * len(bad)


@pytest.mark.parametrize("name", NAMES)
def test_keys_exist(name: str) -> None:
    assert [key for key in keys(ROOT / name) if not known(key)] == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.thorough
def test_named_tests_exist(name: str) -> None:
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", prose(ROOT / name)):
        tree = ast.parse((ROOT / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"


def test_every_key_has_its_line() -> None:
    page = (DOCS / "parameters.md").read_text()

    def leaves(model: Any, path: str) -> Iterator[str]:
        for name, field in model.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                yield from leaves(field.annotation, f"{path}{name}.")
            elif path + name != "algos":
                yield path + name

    algo = type(parse_params({}).algo_config)
    for key in (*leaves(Params, ""), *leaves(algo, "algos.dqn.")):
        assert f"| `{key}` |" in page, key


# --- the page for newcomers from AgileRL ------------------------------------------------------------------------------

NEWCOMERS = DOCS / "coming-from-agilerl.md"


def test_every_argument_of_train_off_policy_has_its_line() -> None:
    section = NEWCOMERS.read_text().partition("## `train_off_policy`")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE)
    assert [argument for argument, _ in rows] == list(TRAIN_OFF_POLICY)
    for argument, home in rows:
        assert "`" in home or home.startswith("not yet: comes with "), argument


def test_the_whole_example_is_valid() -> None:
    (example,) = blocks(NEWCOMERS, "yaml")
    params = parse_params(parse_yaml(example, "example").data)
    assert params.train.max_steps == 200_000
    assert params.algo_config.network.encoder == (32,)


def test_the_exponential_schedule_is_the_one_of_the_formula() -> None:
    """ε after k steps of E environments, multiplied by the decay at every step."""
    from evopipe.algos import dqn

    cfg = dqn.Config(eps_start=1.0, eps_end=0.1, eps_schedule="exponential", eps_steps=7350)
    for k in (0, 1, 100, 459):
        assert dqn.explore(cfg, 16 * k) == pytest.approx(0.995**k, rel=1e-3)
    assert dqn.explore(cfg, 16 * 460) == pytest.approx(0.1)


# --- examples run -----------------------------------------------------------------------------------------------------


# torch says so once a process; evopipe.core.optim hushes it, and pytest undoes that for every test.
@pytest.mark.thorough
def test_the_python_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_params(tmp_path, {"train.max_steps": 800, "export.program": True})
    monkeypatch.chdir(tmp_path)
    page = DOCS / "python.md"
    names: dict[str, Any] = {"__name__": "python_page"}
    exec(compile(in_order(page), str(page), "exec"), names)
    assert "2 generations" in capsys.readouterr().out
    assert names["chosen"].tolist() == [names["action"]], "torch alone chooses as the policy does"
    assert names["fitness"].shape == (2,)
    assert len(names["born"].members) == 2


@pytest.mark.thorough
def test_the_page_of_scripts_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "scripts.md"
    names: dict[str, Any] = {"__name__": "scripts_page"}
    exec(compile(in_order(page), str(page), "exec"), names)
    assert len(names["fitnesses"]) == len(names["pop"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"agent", "dqn", "elite", "elite-model"}


@pytest.mark.slow
def test_the_page_on_teams_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "teams.md"
    names: dict[str, Any] = {"__name__": "teams_page"}
    exec(compile(in_order(page), str(page), "exec"), names)
    assert "{'listener': " in capsys.readouterr().out
    assert not names["env"].agents


@pytest.mark.thorough
def test_the_page_of_callbacks_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, call = blocks(DOCS / "callbacks.md", "python")[:2]
    (tmp_path / "watch.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(call, "callbacks.md", "exec"), {"__name__": "callbacks_page"})
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("a new elite, ")
    assert second.startswith("generation 1, 832 steps: {0: ")
    named = parse_params(parse_yaml(blocks(DOCS / "callbacks.md", "yaml")[0], "example").data).train.callbacks
    assert named.functions().keys() == {"on_generation", "on_best"}


def test_the_environment_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "environments.md"
    (module,) = blocks(page, "python")
    (tmp_path / "corridor.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    env = parse_params(parse_yaml(blocks(page, "yaml")[0], "example").data).env
    assert env.id == "corridor:Corridor-v0"
    assert check(env.id, env.kwargs) == []


def test_the_section_on_packages_of_ones_own_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points are those of the example, and the network is one that its params name."""
    page, example = DOCS / "your-own-project.md", tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    assert tomllib.loads(blocks(page, "toml")[0])["project"] == {"entry-points": example["project"]["entry-points"]}
    (module,) = (text for text in blocks(page, "python") if "class Gated" in text)
    (tmp_path / "gated.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    (text,) = (text for text in blocks(page, "yaml") if "gated:Gated" in text)
    spec = make_spec(parse_params(parse_yaml(text, "example").data))
    assert spec.architecture().size(spec.widths["q"]) == 2 * (4 * 16 + 16) + 16 * 2 + 2
    monkeypatch.delitem(sys.modules, "gated")


def test_the_examples_of_the_language_page_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both params files are valid, and the task of one's own is one."""
    from evopipe.language import tasks
    from evopipe.language.data import generate

    page = DOCS / "language-models.md"
    first, folder, other = (parse_params(parse_yaml(example, "example").data) for example in blocks(page, "yaml"))
    assert (first.train.algo, first.algo_config.rows) == ("grpo", 256)
    assert (folder.language.rank, folder.runtime.rows_at_once) == (16, 4)
    assert other.fetch.datasets.subset == "main"
    (tmp_path / "vowels.py").write_text(blocks(page, "python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = tasks.get("vowels:Vowels", {"most": 3})
    (row, *_) = generate(task, "vowels:Vowels", 1, 5, "reasoning")
    assert task.score(row, "a" * int(row["answer"])) == 1.0


def test_experiments_of_the_readme_leave_the_workspace_as_it_is() -> None:
    """Without `--temp` an experiment rewrites params.yaml, and what a reader tries next begins from that."""
    pages = (ROOT / "README.md", ROOT / "src/evopipe/new/template/README.md")
    lines = [line for page in pages for line in page.read_text().splitlines() if line.startswith("dvc exp run")]
    assert len(lines) >= 4
    assert [line for line in lines if not line.startswith(("dvc exp run --temp", "dvc exp run --queue"))] == []
