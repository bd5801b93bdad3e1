"""`schema/params.py`: what a params file may say, and the sentence for everything else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evopipe import algos
from evopipe.errors import MissingInputError, ParamsError
from evopipe.params.load import Params, json_schema, load_params, parse_params
from evopipe.problems.env import neighbours_of
from evopipe.schema.declare import MAX_PROBLEMS
from evopipe.schema.write import block

ROOT = Path(__file__).parents[3]
ROOT_TEXT = (ROOT / "params.yaml").read_text()
Edit = Callable[..., str]


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edit:
    """Loads the root params.yaml after replacements, and returns the error's message."""

    def load(*replacements: tuple[str, str]) -> str:
        monkeypatch.chdir(tmp_path)
        text = ROOT_TEXT
        for old, new in replacements:
            assert re.search(old, text, flags=re.MULTILINE), old
            text = re.sub(old, new, text, count=1, flags=re.MULTILINE)
        (tmp_path / "params.yaml").write_text(text)
        with pytest.raises(ParamsError) as caught:
            load_params()
        assert caught.value.exit_code == 65
        return str(caught.value)

    return load


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ParamsError) as caught:
        parse_params(data)
    return str(caught.value)


def line_of(pattern: str, text: str = ROOT_TEXT) -> int:
    """Line (from 1) of the first line that matches."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if re.match(pattern, line))


def test_the_root_params_file_is_complete_and_valid() -> None:
    params = load_params(ROOT / "params.yaml")
    assert params.algo_config is params.algos[params.train.algo]
    assert isinstance(params.algo_config, algos.get(params.train.algo).Config)


def test_the_blocks_load_without_torch() -> None:
    blocks = ", ".join(
        f"evopipe.schema.{name}" for name in ("env", "evolution", "fetch", "network", "runtime", "train")
    )
    program = (
        f"import sys, {blocks}, evopipe.schema.tracking, evopipe.storage.keys; "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src", timeout=60).returncode == 0


def test_a_mapping_takes_defaults_for_what_it_does_not_give() -> None:
    params = parse_params({"seed": 7, "algos": {"dqn": {"lr": 0.01}}})
    assert params.seed == 7
    assert params.population.size == Params.model_fields["population"].get_default(call_default_factory=True).size
    assert params.algo_config.lr == 0.01
    assert parse_params({}).algo_config == algos.get("dqn").Config()


def test_params_can_be_made_from_parsed_blocks() -> None:
    config = algos.get("dqn").Config(gamma=0.5)
    assert Params(algos={"dqn": config}).algo_config is config
    assert parse_params(Params(seed=3).model_dump()) == Params(seed=3)
    assert parse_params(Params().model_dump(mode="json")) == Params()


def test_an_unknown_key_of_an_algorithm(edited: Edit) -> None:
    message = edited(("^    gamma: 0.99", "    gamma: 0.99\n    lrr: 0.1"))
    line = line_of("    gamma:") + 1
    assert message == f"params.yaml:{line}:5: algos.dqn.lrr: unknown key, did you mean 'lr'?"


@pytest.mark.parametrize(
    ("old", "new", "place", "sentence"),
    [
        ("^seed: .*", "seed: abc", "seed:", "seed: must be a whole number, got 'abc'"),
        ("^seed: .*", "seed: 1.5", "seed:", "seed: must be a whole number, got 1.5"),
        ("^seed: .*", "seed: -1", "seed:", "seed: must be at least 0, got -1"),
        ("^seed: .*", "seed: true", "seed:", "seed: must be a whole number, got true"),
        ("^seed: .*", "seed: [1]", "seed:", "seed: must be a whole number, got [1]"),
        ("^seed: .*", "seed:", "seed:", "seed: must be a whole number, got null"),
        (
            "max_steps: 1\\d*  # env",
            "max_steps: 1e5  # env",
            "  max_steps:",
            "train.max_steps: must be a whole number, got 100000.0: ",
        ),
        ("  size: .*  # number of members$", "  size: 0", "  size:", "population.size: must be at least 1, got 0"),
        ("  target: auto", "  target: atuo", "  target:", "train.target: must be a number or 'auto' or null, got "),
        (
            "  device: auto",
            "  device: gpu",
            "  device:",
            "runtime.device: must be 'auto', 'cpu' or 'cuda', got 'gpu'",
        ),
        (
            "  source: collect",
            "  source: colect",
            "  source:",
            "fetch.source: must be 'collect', 'minari', 'hdf5', 'rlds' or 'table'",
        ),
        (
            "activation: ReLU",
            "activation: relu",
            "      activation:",
            "algos.dqn.network.activation: must be 'ReLU', ",
        ),
        ("    gamma: .*", "    gamma: 1.5", "    gamma:", "algos.dqn.gamma: must be at most 1, got 1.5"),
        ("    lr: .*", "    lr: 0", "    lr:", "algos.dqn.lr: must be above 0, got 0"),
        ("encoder: .*", "encoder: [64, 0]", "      encoder:", "algos.dqn.network.encoder.1: must be at least 1, got 0"),
        ("encoder: .*", "encoder: 64", "      encoder:", "algos.dqn.network.encoder: must be a list, got 64"),
        ("node_steps: .*", "node_steps: []", "      node_steps:", "evolution.mutation.architecture.node_steps: must "),
        ("^export:\n.*\n.*\n.*", "export: [1]", "export:", "export: must be a block of keys, got [1]"),
        ("  id: LunarLander-v3", "  id: ''", "  id:", "env.id: must have at least 1 character, got ''"),
        ("algo: dqn", "algo: dqm", "  algo:", "train.algo: unknown algorithm 'dqm', did you mean 'dqn'?"),
        ("algo: dqn", "algo: zzz", "  algo:", "train.algo: unknown algorithm 'zzz', known are: "),
        ("evo_steps: .*", "evo_steps: 15", "  evo_steps:", "train.evo_steps: must be at least env.num_envs (16), for "),
        ("min_layers: 1", "min_layers: 4", "    architecture:", "evolution.mutation.architecture: min_layers (4) is "),
        ("lr: {min: [^,]*", "lr: {min: 1.0", "      lr:", "algos.dqn.evolve.lr: min (1.0) is above max (0.01)"),
        (
            "      lr: {",
            "      lrr: {",
            "      lr:",
            "algos.dqn.evolve.lrr: no hyper-parameter of that name can evolve, ",
        ),
    ],
)
def test_a_wrong_value_names_its_place_and_what_is_allowed(
    edited: Edit, old: str, new: str, place: str, sentence: str
) -> None:
    message = edited((old, new))
    line, column, text = re.fullmatch(r"params\.yaml:(\d+):(\d+): (.*)", message).groups()  # type: ignore[union-attr]
    assert text.startswith(sentence)
    # The list item's column is its own; keys stand at their indent.
    assert int(line) in {number for number, row in enumerate(ROOT_TEXT.splitlines(), 1) if re.match(place, row)}
    assert int(column) >= len(place) - len(place.lstrip()) + 1


def test_what_a_run_could_not_use_is_refused_with_its_line(edited: Edit) -> None:
    places = {name: line_of(f"    {name}: ") for name in ("n_step", "batch_size", "learn_step")}
    many = edited(("  num_envs: .*", "  num_envs: 4096"), ("    updates: .*", "    updates: 3"))
    assert many.endswith("train.replay.updates: must be at most 2 with 4096 environments (env.num_envs), got 3")
    small, holds = ("    capacity: .*", "    capacity: 10"), "a memory of 10 transitions (train.replay.capacity)"
    raised = "lower it, or raise train.replay.capacity; got 11"
    assert edited(small, ("    n_step: 1 ", "    n_step: 11 ")) == (
        f"params.yaml:{places['n_step']}:5: train.replay.n_step: {holds} never holds one that long; {raised}"
    )
    short = ("max_steps: 1\\d*  # env", "max_steps: 6000  # env")
    changes = ("    batch_size: .*", "    batch_size: 11"), ("    learn_step: .*", "    learn_step: 6001")
    assert edited(small, short, *changes).splitlines() == [
        f"params.yaml:{places['batch_size']}:5: algos.dqn.batch_size: {holds} cannot hold so many; {raised}",
        f"params.yaml:{places['learn_step']}:5: algos.dqn.learn_step: it would never learn in a run of 6000 steps "
        "(train.max_steps); lower it to at most that, or raise train.max_steps; got 6001",
    ]


@pytest.mark.parametrize("train", [
    {"algo": "dqn", "replay": {"capacity": 128, "n_step": 100}},  # the least that holds a batch
    {"algo": "dqn", "mode": "offline", "replay": {"capacity": 1}},  # the dataset is the memory
    {"algo": "ppo", "max_steps": 5000, "replay": {"capacity": 1}},  # there is none
    {"algo": "ppo", "max_steps": 5000, "replay": {"capacity": 1, "n_step": 2}},
])  # fmt: skip
def test_a_memory_counts_where_there_is_one(train: dict[str, Any]) -> None:
    parse_params({"train": train})
    assert "ppo.learn_step: it would never learn" in refusal({"train": {"algo": "ppo", "max_steps": 2047}})


def test_what_just_fits_is_taken() -> None:
    """A bound is itself allowed: the one rollout of a run, the one transition that a memory holds, one slice."""
    parse_params({"train": {"algo": "ppo", "max_steps": 2048}, "algos": {"ppo": {"learn_step": 2048}}})
    parse_params({"train": {"replay": {"capacity": 100, "n_step": 100}}, "algos": {"dqn": {"batch_size": 100}}})
    parse_params({"train": {"evo_steps": 5_000}, "search": {"budget": 5_000}})
    parse_params({"env": {"num_envs": 16}, "train": {"evo_steps": 16}})


@pytest.mark.parametrize(("train", "reads"), [
    ({"algo": "ppo", "warm_start": 20}, False),  # it begins no memory
    ({"algo": "dqn", "warm_start": 20}, True),
    ({"algo": "dqn", "warm_start": 0}, False),
    ({"algo": "dqn", "warm_start": 0, "mode": "offline"}, True),
])  # fmt: skip
def test_only_who_learns_from_a_dataset_reads_one(train: dict[str, Any], reads: bool) -> None:
    assert parse_params({"train": train}).needs_dataset == reads


def test_a_memory_is_shared_by_as_many_as_divide_the_population() -> None:
    parse_params({"population": {"size": 8}, "train": {"replay": {"sharing": 2}}})
    parse_params({"population": {"size": 8}, "train": {"replay": {"sharing": 8}}})
    assert "8 members (population.size) cannot be divided among memories of 3 each" in refusal(
        {"population": {"size": 8}, "train": {"replay": {"sharing": 3}}}
    )


@pytest.mark.parametrize(("train", "neighbours"), [
    ({}, 6), ({"replay": {"sharing": "own"}}, 1), ({"replay": {"sharing": 3}}, 3),
    ({"mode": "offline"}, 1), ({"algo": "ppo"}, 1),  # these have no memory that they fill
])  # fmt: skip
def test_how_many_share_a_memory(train: dict[str, Any], neighbours: int) -> None:
    params = parse_params({"population": {"size": 6}, "train": train})
    assert neighbours_of(params.train, 6) == neighbours


def test_nulls_are_offered_where_they_are_allowed(edited: Edit) -> None:
    message = edited(("  eval_steps: null", "  eval_steps: many"))
    assert message.endswith("train.eval_steps: must be a whole number or null, got 'many'")
    message = edited(("  target: auto", "  target: .5e"))
    assert message.endswith("train.target: must be a number or 'auto' or null, got '.5e'")


def test_suggestions_for_values(edited: Edit) -> None:
    assert edited(("activation: ReLU", "activation: relu")).endswith("got 'relu', did you mean 'ReLU'?")
    assert edited(("  source: collect", "  source: colect")).endswith("got 'colect', did you mean 'collect'?")
    assert edited(("max_steps: 1\\d*  # env", "max_steps: 1e5  # env")).endswith("got 100000.0: write 100000")


def test_a_wrapper_is_found_where_it_stands(edited: Edit) -> None:
    message = edited(("^  wrappers: .*", "  wrappers: [FlattenObservation, {name: FlattenObs}]"))
    assert (
        ":35: env.wrappers.1.name: gymnasium.wrappers has no 'FlattenObs', did you mean 'FlattenObservation'?"
        in message
    )


def test_an_unknown_key_without_a_near_one_lists_the_known(edited: Edit) -> None:
    message = edited(("^  backend:", "  zzz: 1\n  backend:"))
    assert message.endswith(
        ": env.zzz: unknown key, known are: id, kwargs, wrappers, num_envs, backend, source, step_limit, step_seconds"
    )


def test_a_missing_key_names_its_default(edited: Edit) -> None:
    line = line_of("train:")
    assert (
        edited(("^  evo_steps:.*\n", ""))
        == f"params.yaml:{line}:1: train.evo_steps: missing key (default 5000): add it"
    )
    message = edited(("^  target: auto.*\n", ""))
    assert message == f"params.yaml:{line}:1: train.target: missing key (default auto): add it"
    message = edited(("^    lr: .*\n", ""))
    assert message == f"params.yaml:{line_of('  dqn:')}:3: algos.dqn.lr: missing key (default 0.0005): add it"
    message = edited(("^      conv: .*\n", ""))  # a list of blocks
    assert 'algos.dqn.network.conv: missing key (default [{"channels": 16, "kernel": 3, "stride": 2}, ' in message


def test_a_missing_key_inside_a_free_mapping_of_blocks(edited: Edit) -> None:
    line = line_of("      lr: {")
    assert edited(("      lr: {min: [^,]*, ", "      lr: {")) == (
        f"params.yaml:{line}:7: algos.dqn.evolve.lr.min: missing key: add it"
    )
    assert edited((", grow: 1.2", "")).endswith(".evolve.lr.grow: missing key (default 1.2): add it")


def test_a_missing_block_shows_its_defaults(edited: Edit) -> None:
    message = edited(("^export:\n.*\n.*\n.*\n", ""))
    defaults = '{"program": true, "critic": true, "film": true}'
    assert message == f"params.yaml:1:1: export: missing block: add it, the defaults are {defaults}"


def test_the_chosen_algorithms_block_must_be_there(edited: Edit) -> None:
    message = edited(("^algos:\n(.*\n)*", "algos: {}\n"))
    remedy = "algos.dqn: missing block: put what `evopipe params block dqn` prints below `algos:`"
    assert message == f"params.yaml:{line_of('algos:')}:1: {remedy}"
    message = edited(("^algos:\n(.*\n)*", ""))
    assert message == f"params.yaml:1:1: {remedy}"
    message = edited(("^  dqn:\n(.*\n)*", "  dqn:\n"))
    assert message.endswith(": algos.dqn: must be a block of keys, got null")


def test_all_problems_are_listed_by_line(edited: Edit) -> None:
    message = edited(
        ("^seed: .*", "seed: abc"),
        ("    lr: .*", "    lr: 0"),
        ("  evo_steps: .*", "  evo_steps: 1"),
        ("  algo: dqn", "  algo: dqn\n  alog: x"),
        ("^  backend: .*\n", ""),
    )
    lines = [int(row.split(":")[1]) for row in message.splitlines()]
    assert lines == sorted(lines)
    assert [row.split(": ")[1] for row in message.splitlines()] == [
        "seed",
        "env.backend",
        "train.alog",
        "algos.dqn.lr",
    ]


def test_a_broken_file_lists_a_bounded_number_of_problems() -> None:
    rows = refusal({f"x{number}": 1 for number in range(500)}).splitlines()
    assert len(rows) == MAX_PROBLEMS + 1
    assert rows[-1] == "… and 450 more"


def test_behaviour_policies() -> None:
    def collect(**block: Any) -> str:
        return refusal({"fetch": {"collect": block}})

    assert collect(policies={"heuristc": 1.0}) == (
        "fetch.collect.policies.heuristc: unknown policy, did you mean 'heuristic'?"
    )
    assert collect(policies={"zzz": 1.0}).endswith("unknown policy, known are: heuristic, medium, random, policy")
    assert collect(policies={"random": 0.0}) == (
        "fetch.collect.policies: all weights are 0: give at least one policy a positive weight"
    )
    assert collect(policies={"random": -1.0}) == "fetch.collect.policies.random: must be at least 0, got -1.0"
    assert collect(policies={"policy": 1.0}) == (
        "fetch.collect.policy_path: the policy `policy` has a weight: name the exported folder it is loaded from"
    )
    given = {"fetch": {"collect": {"policies": {"policy": 1.0}, "policy_path": "models/elite"}}}
    assert parse_params(given).fetch.collect.policy_path == "models/elite"


def test_policies_in_a_file_have_their_line(edited: Edit) -> None:
    message = edited(("^      random: 0.5", "      randm: 0.5"))
    assert message == (
        f"params.yaml:{line_of('      random:')}:7: "
        "fetch.collect.policies.randm: unknown policy, did you mean 'random'?"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": {"evo_steps": 0}}, "train.evo_steps: must be at least 1, got 0"),
        ({"train": {"target": float("nan")}}, "train.target: must be a finite number or 'auto' or null, got NaN"),
        (
            {"train": {"target": "x" * 99}},
            f"train.target: must be a number or 'auto' or null, got '{'x' * 39}…",
        ),
        ({"seed": 10**5000}, "seed: must be at most 2147483647, got a value of type int"),
        ({"algos": 3}, "algos: must be a block of keys, got 3"),
        ({"algos": {"dqm": {}}}, "algos.dqm: unknown key, did you mean 'dqn'?"),
        ({"train": {"algo": "trpo"}, "algos": {"trpo": {}}}, None),
        ({"env": {"kwargs": {1: 2}}}, "env.kwargs.1: must be a text, got 1"),
        ({"env": {"num_envs": 20}, "train": {"evo_steps": 19}}, None),
        ({"seed": object()}, "seed: must be a whole number, got a value of type object"),
    ],
)
def test_mappings_get_the_same_sentences_without_lines(data: dict[str, Any], message: str | None) -> None:
    text = refusal(data)
    assert not text.startswith("params.yaml")
    if message is not None:
        assert text == message


def test_every_problem_of_an_unknown_algorithm_is_named() -> None:
    assert refusal({"train": {"algo": "trpo"}, "algos": {"trpo": {}}}).splitlines() == [
        f"train.algo: unknown algorithm 'trpo', known are: {', '.join(algos.names())}",
        f"algos.trpo: unknown key, known are: {', '.join(algos.names())}",
    ]


def test_a_missing_file_and_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInputError, match=r"^params\.yaml: there is no such file \("):
        load_params()
    (tmp_path / "params.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ParamsError, match=r"^params\.yaml:2:1: seed: key given twice, first on line 1"):
        load_params()


@pytest.mark.parametrize("algo", algos.names())
def test_an_algorithms_block_can_be_put_at_the_end_of_a_file(algo: str, tmp_path: Path) -> None:
    config = algos.get(algo).Config()
    text = block(algo, config)
    path = tmp_path / "params.yaml"
    others = re.sub(r"^algos:\n(.*\n)*", "algos:\n", ROOT_TEXT, flags=re.MULTILINE)
    mode = "offline" if getattr(algos.get(algo), "OFFLINE_ONLY", False) else "online"
    path.write_text(others.replace("algo: dqn", f"algo: {algo}").replace("mode: online", f"mode: {mode}") + text)
    assert load_params(path).algo_config == config
    assert max(map(len, text.splitlines())) <= 120
    for name, field in type(config).model_fields.items():
        assert field.description is None or " ".join(field.description.split())[:20] in text, name


def test_an_algorithms_block_has_its_comments_and_choices() -> None:
    lines = block("dqn", algos.get("dqn").Config()).splitlines()
    assert lines[0] == "  dqn:"
    assert "    loss: huber  # huber | mse: regression loss of the temporal-difference error" in lines
    assert "      layer_norm: false  # whether there is layer normalisation before every activation" in lines
    assert "      lr: {min: 6.25e-05, max: 0.01, grow: 1.2, shrink: 0.8}" in lines
    above = lines[lines.index("      encoder_kind: mlp") - 1]
    assert above.startswith("      # "), "what is too long for one line stands above"


@pytest.mark.parametrize(
    ("algo", "block", "sentence"),
    [
        (
            "dqn",
            {"network": {"encoder_kind": "lstm"}},
            "algos.dqn.network.encoder_kind: dqn keeps no memory between steps; take mlp, simba or resnet, or "
            "train.algo: ppo",
        ),
        (
            "td3",
            {"share_encoder": True},
            "algos.td3.network.head: with share_encoder the critics read the action behind the encoder, and need a "
            "hidden layer there; give at least one width",
        ),
        ("sac", {"share_encoder": True}, None),  # its critics of discrete actions read no action
        ("ppo", {"share_encoder": True, "network": {"encoder_kind": "lstm"}}, None),
    ],
)
def test_a_network_that_the_algorithm_never_serves_is_refused_without_an_environment(
    algo: str, block: dict[str, Any], sentence: str | None
) -> None:
    data = {"env": {"id": "NotThere-v0"}, "train": {"algo": algo}, "algos": {algo: block}}
    if sentence is None:
        parse_params(data)
    else:
        assert refusal(data) == sentence


def test_an_on_policy_algorithm_has_no_warm_start_unless_it_is_asked_for() -> None:
    assert parse_params({"train": {"algo": "ppo"}}).train.warm_start == 0
    assert parse_params({"train": {"algo": "ppo", "warm_start": 7}}).train.warm_start == 7
    assert parse_params({"train": {"algo": "dqn"}}).train.warm_start == 20_000


def test_what_an_algorithm_for_teams_has_no_use_for_is_refused() -> None:
    assert parse_params({"train": {"algo": "matd3"}}).train.warm_start == 0
    of_one = "matd3 is for teams, and datasets are of one agent: set it to"
    for data, said in (({"train": {"algo": "matd3", "mode": "offline"}}, f"train.mode: {of_one} online"),):
        assert refusal(data) == said


def test_the_json_schema_has_every_algorithms_block() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Params.model_fields)
    blocks = schema["$defs"]["Algos"]["properties"]
    assert set(blocks) == set(algos.names())
    assert all("default" not in block for block in blocks.values())
    config = schema["$defs"][blocks["dqn"]["$ref"].rpartition("/")[2]]
    assert config["properties"]["lr"]["exclusiveMinimum"] == 0
    assert config["additionalProperties"] is False


@pytest.mark.parametrize(
    ("name", "ends", "said"),
    [
        (
            "learn_step",
            "{min: 0, max: 8, grow: 1.2, shrink: 0.8}",
            "evolve.learn_step.min: learn_step cannot",
        ),
        ("batch_size", "{min: 32.5, max: 64, grow: 1.2, shrink: 0.8}", "batch_size.min: batch_size is a whole number"),
        ("lr", "{min: 1.0e-4, max: 50, grow: 1.2, shrink: 0.8}", "algos.dqn.evolve.lr.max: lr cannot be 50"),
    ],
)
def test_a_range_stays_within_what_could_be_set_by_hand(edited: Edit, name: str, ends: str, said: str) -> None:
    assert said in edited((f"^      {name}: .*", f"      {name}: {ends}"))


def test_arguments_that_dvc_would_overlook_are_refused() -> None:
    for name in ("size", "nfiles"):
        with pytest.raises(ParamsError, match="run cache overlooks"):
            parse_params({"env": {"kwargs": {"map": [{name: 5}]}}})


def test_numbers_out_of_all_proportion() -> None:
    for data in (
        {"population": {"size": 4096}, "env": {"num_envs": 4096}},
        {"train": {"replay": {"capacity": 10**18}}},
        {"train": {"eval_episodes": 10**30}},
        {"algos": {"dqn": {"target_interval": 10**30}}},
        {"evolution": {"tournament": {"size": 10**12}}},
        {"evolution": {"mutation": {"activations": ["ReLU", "ReLU"]}}},
    ):
        with pytest.raises(ParamsError):
            parse_params(data)
