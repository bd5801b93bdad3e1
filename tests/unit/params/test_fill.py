"""A params file with few keys: how it is completed, and the names that other libraries give to ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evopipe.errors import ParamsError
from evopipe.params.load import filled, json_schema, load_params, parse_params
from evopipe.schema import spellings
from evopipe.schema.read import read_yaml
from tiny import ROOT, call

FEW = """# mine
env: {id: Acrobot-v1}  # the pole

train:
  algo: ppo  # policy gradients
  max_steps: 20000
algos:
  ppo:
    lr: 0.002
"""
# Those of agents are read by `evopipe agent`.
COMPLETE = [
    ROOT / "params.yaml",
    *(path for path in sorted(ROOT.glob("pipelines/*/params.yaml")) if not path.parent.name.startswith("agent-")),
]


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(FEW)
    return path


def test_many_missing_keys_are_one_sentence_that_says_how_to_add_them(few: Path) -> None:
    with pytest.raises(ParamsError) as caught:
        load_params(few)
    (line,) = str(caught.value).splitlines()
    assert re.fullmatch(
        rf"{few}: \d\d keys are missing \(seed, fetch, population, …\), and DVC sees no defaults in code: "
        rf"`evopipe --params {few} params fill` adds them",
        line,
    )


@pytest.mark.parametrize("size", [True, False])
def test_three_missing_keys_have_a_line_each_and_four_are_counted(size: bool, few: Path) -> None:
    text = re.sub(r"^seed:.*\n", "", filled(few)[0], flags=re.MULTILINE)
    for name in ("evaluate.episodes", "evaluate.bootstrap", *["population.size"] * (not size)):
        block, key = name.split(".")
        text, removed = re.subn(rf"^({block}:\n(?:  .*\n)*?)  {key}:.*\n", r"\1", text, flags=re.MULTILINE)
        assert removed == 1
    few.write_text(text)
    with pytest.raises(ParamsError) as caught:
        load_params(few)
    told = str(caught.value).splitlines()
    if size:
        assert [line.split(": ")[1] for line in told] == ["seed", "evaluate.bootstrap", "evaluate.episodes"]
    else:
        (line,) = told
        assert line.startswith(f"{few}: 4 keys are missing (seed, population.size, evaluate.episodes, …), and DVC")


def test_other_mistakes_are_told_beside_the_missing_keys(few: Path) -> None:
    few.write_text(FEW.replace("lr: 0.002", "lr: -1"))
    with pytest.raises(ParamsError) as caught:
        load_params(few)
    first, _ = sorted(str(caught.value).splitlines(), key=len)
    assert first.startswith(f"{few}:9:5: algos.ppo.lr: must be")


def test_fill_makes_a_file_that_stages_take(few: Path) -> None:
    answer = call(few.parent, "params", "fill")
    assert (answer.code, answer.err) == (0, "")
    assert re.fullmatch(r"params.yaml: seed, env.kwargs, .* added\n", answer.out)
    assert load_params(few) == parse_params(
        {"env": {"id": "Acrobot-v1"}, "train": {"algo": "ppo", "max_steps": 20000}, "algos": {"ppo": {"lr": 0.002}}}
    )
    text = few.read_text()
    assert text.startswith("# mine\n")
    assert re.search("# the pole\n(.*\n)*  algo: ppo  # policy gradients\n", text)
    assert "gamma: 0.99  # discount factor γ\n" in text, "keys come with what they mean"
    assert call(few.parent, "params", "fill").out == "params.yaml: complete\n"
    assert few.read_text() == text


def test_fill_says_what_is_wrong_and_writes_nothing(few: Path) -> None:
    few.write_text(FEW.replace("lr:", "learning_rate:"))
    before = few.read_text()
    answer = call(few.parent, "params", "fill")
    assert (answer.code, answer.err) == (
        65,
        "error: params.yaml:9:5: algos.ppo.learning_rate: unknown key: it is named `lr` here\n",
    )
    assert few.read_text() == before


@pytest.mark.thorough
@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.parent.name)
def test_a_complete_file_lacks_nothing(path: Path) -> None:
    assert filled(path)[1] == []


@pytest.mark.thorough
@pytest.mark.parametrize("path", COMPLETE, ids=lambda path: path.parent.name)
def test_a_file_from_which_a_block_was_cut_comes_back(path: Path, tmp_path: Path) -> None:
    """With the block's defaults, whatever kind of file it is."""
    cut = re.sub(r"^evaluate:\n(  .*\n)+", "", path.read_text(), flags=re.MULTILINE)
    (tmp_path / "params.yaml").write_text(cut)
    text, added = filled(tmp_path / "params.yaml")
    assert added == ["evaluate"]
    (tmp_path / "params.yaml").write_text(text)
    there, was = read_yaml(tmp_path / "params.yaml").data, read_yaml(path).data
    assert list(there["evaluate"]) == list(was["evaluate"])
    assert {**there, "evaluate": 0} == {**was, "evaluate": 0}


@pytest.mark.parametrize("search", ["strategy: pbt", "{strategy: pbt, pbt: {fraction: 0.5}}"])
def test_the_block_of_the_search_strategy_is_added(few: Path, search: str) -> None:
    """`params check` wants it, so `params fill` brings it, and leaves what the file says of it."""
    few.write_text(FEW + ("search:\n  " if search[0] != "{" else "search: ") + search + "\n")
    text, added = filled(few)
    assert any(name.startswith("search.pbt") for name in added)
    few.write_text(text)
    found = load_params(few).search.config(None)
    assert found.fraction == (0.5 if "fraction" in search else 0.2)
    assert found.resample == 0.25
    assert filled(few)[1] == []


# --- names of other libraries -----------------------------------------------------------------------------------------


def test_a_name_of_another_library_is_answered_with_ours() -> None:
    for data, sentence in (
        ({"algos": {"ppo": {"n_steps": 1}}}, "algos.ppo.n_steps: unknown key: it is named `learn_step` here"),
        ({"algos": {"sac": {"learning_rate": 1}}}, "algos.sac.learning_rate: unknown key: it is named `lr_actor` here"),
        ({"train": {"total_timesteps": 1}}, "train.total_timesteps: unknown key: it is named `max_steps` here"),
        ({"algorithm": "ppo"}, "algorithm: unknown key: it is named `train.algo` here"),
        ({"algos": {"PPO": {}}}, "algos.PPO: unknown key, did you mean 'ppo'?"),
        ({"train": {"algo": "PPO"}}, "train.algo: unknown algorithm 'PPO', did you mean 'ppo'?"),
    ):
        with pytest.raises(ParamsError) as caught:
            parse_params(data)
        assert str(caught.value) == sentence


def test_every_name_that_is_given_in_answer_is_one_of_ours() -> None:
    schema = json_schema()
    keys = {key for block in schema["$defs"].values() for key in block.get("properties", ())}
    blocks = {name: set(_properties(schema, field)) for name, field in schema["properties"].items()}
    for names in spellings._OURS.values():
        for name in names:
            first, _, rest = name.partition(".")
            assert (rest.partition(".")[0] in blocks.get(first, keys)) if rest else name in keys, name


def _properties(schema: dict[str, object], field: dict[str, str]) -> dict[str, object]:
    found = schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else {}  # type: ignore[index]
    return found.get("properties", {})


def test_files_of_agents_need_none(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("agents:\n  tasks: 4\n")
    answer = call(tmp_path, "params", "fill")
    assert answer.code == 65
    assert answer.err.startswith("error: params.yaml: has a block `agents`: `evopipe agent train` reads it")
    assert (tmp_path / "params.yaml").read_text() == "agents:\n  tasks: 4\n"
