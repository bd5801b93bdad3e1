"""What others read of checked parameters: single values, what a result depends on, the mutation of language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evopipe.errors import UsageError
from evopipe.params.env import Params
from evopipe.params.load import any_params, env_params
from evopipe.params.text import LanguageParams
from evopipe.schema.declare import MAX_PROBLEMS, refusal, value_at
from evopipe.schema.write import dump_yaml


def params(**blocks: Any) -> Params:
    return Params.model_validate({"train": {"algo": "ppo"}, **blocks})


def test_a_value_is_found_by_its_dotted_key() -> None:
    given = params(seed=7, env={"id": "CartPole-v1", "wrappers": ["a:B", {"name": "c:D", "kwargs": {"x": [1, 2]}}]})
    assert value_at(given, "seed") == 7
    assert value_at(given, "env.wrappers.1.kwargs.x") == [1, 2]
    assert value_at(given, "env.wrappers.1.kwargs.x.1") == 2
    assert value_at(given, "algos.ppo.lr") == given.algo_config.lr
    for key, said in (
        ("sed", "no key 'sed' in sed, did you mean 'seed'?"),
        ("env.idd", "no key 'idd' in env.idd, did you mean 'id'?"),
        ("env.wrappers.2", "no key '2' in env.wrappers.2"),
        ("seed.x", "no key 'x' in seed.x, there are no keys there"),
    ):
        with pytest.raises(UsageError) as caught:
            value_at(given, key)
        assert str(caught.value).startswith(f"params show: {said}"), key


def test_a_result_depends_on_all_but_what_changes_none() -> None:
    given = params(train={"algo": "ppo", "callbacks": {"on_best": "own:save"}})
    found = given.tracked()
    assert set(found) == {*type(given).model_fields} - {"algos", "tracking"} | {"algo"}
    assert found["algo"] == given.algo_config.model_dump(mode="json")
    whole = given.model_dump(mode="json")
    left_out = {
        block: sorted(whole[block].keys() - found[block].keys())
        for block in found.keys() - {"algo"} if isinstance(whole[block], dict)
    }  # fmt: skip
    assert {block: keys for block, keys in left_out.items() if keys} == {
        "env": ["step_seconds"],
        "runtime": ["checkpoint_seconds", "env_workers", "learners", "shards"],
        "train": ["callbacks"],
    }
    assert given.tracked("env", "seed") == {"env": found["env"], "seed": found["seed"], "algo": found["algo"]}
    assert (given.points(), given.outside()) == ([None] * 3, ([], []))


def test_code_of_ones_own_counts_with_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_rooms.py").write_text("def course(progress): return {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = params(train={"algo": "ppo", "curriculum": "own_rooms:course"})
    named, files = given.outside()
    assert (named, files) == (["own_rooms"], [tmp_path / "own_rooms.py"])


def test_parameters_are_read_from_wherever_they_are(tmp_path: Path) -> None:
    given = params(seed=9)
    data = given.model_dump(mode="json")
    (tmp_path / "p.yaml").write_text(dump_yaml(data))
    assert any_params(given) is given
    for source in (data, tmp_path / "p.yaml", str(tmp_path / "p.yaml")):
        assert any_params(source) == given
        assert env_params(source, KeyError()) == given
    with pytest.raises(KeyError, match="no words"):
        env_params(LanguageParams.model_validate({}), KeyError("no words"))


def mutation(model: str, algo: str, **block: Any) -> Any:
    """The mutation of language models as members of environments know it."""
    language: dict[str, Any] = {"model": model}
    if model == "gpt":
        language["task"] = "wordle"
    given = {"language": language, "train": {"algo": algo}, "evolution": {"mutation": block}}
    return LanguageParams.model_validate(given).mutation


def test_an_adapter_s_rank_is_what_its_architecture_is() -> None:
    chances = {"none": 0.1, "rank": 0.2, "rl_hp": 0.7}
    found = mutation("tiny", "grpo", probabilities=chances, max_rank=24, mutate_elite=True, before_training=True)
    assert found.probabilities.model_dump() == {
        "none": 0.1, "architecture": 0.2, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.7,
    }  # fmt: skip
    assert (found.architecture.min_nodes, found.architecture.max_nodes, found.new_layer_prob) == (1, 24, 0.0)
    assert (found.mutate_elite, found.before_training) == (True, True)


def test_a_small_gpt_s_heads_are_its_channels() -> None:
    gpt = {"min_layers": 2, "max_layers": 3, "min_heads": 4, "max_heads": 5, "min_nodes": 32, "max_nodes": 64}
    found = mutation("gpt", "bc_language", probabilities={"none": 0.3, "architecture": 0.6, "rl_hp": 0.1}, gpt=gpt)
    assert found.probabilities.model_dump() == {
        "none": 0.3, "architecture": 0.6, "parameters": 0.0, "activation": 0.0, "rl_hp": 0.1,
    }  # fmt: skip
    bounds = found.architecture
    assert (bounds.min_layers, bounds.max_layers, bounds.min_channels, bounds.max_channels) == (2, 3, 4, 5)
    assert (bounds.min_nodes, bounds.max_nodes, bounds.channel_steps, found.new_layer_prob) == (32, 64, (1,), 0.2)
    assert (found.mutate_elite, found.before_training) == (False, False)


@pytest.mark.parametrize(("hidden", "heads", "fits"), [(24, 6, True), (24, 8, False), (24, 5, False), (32, 16, True)])
def test_a_tiny_base_s_heads_have_pairs_of_numbers(hidden: int, heads: int, fits: bool) -> None:
    """As rotary embeddings need them: two and two are turned."""
    block = {"language": {"tiny": {"hidden": hidden, "heads": heads}}}
    if fits:
        LanguageParams.model_validate(block)
    else:
        with pytest.raises(ValueError, match=rf"hidden \({hidden}\) must be a multiple of 2 · heads \({2 * heads}\)"):
            LanguageParams.model_validate(block)


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    for count, said in ((MAX_PROBLEMS, []), (MAX_PROBLEMS + 3, ["… and 3 more"])):
        lines = str(refusal(f"problem {n}" for n in range(count))).splitlines()
        assert lines == [*(f"problem {n}" for n in range(MAX_PROBLEMS)), *said]
