from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from isthmus.config import (
    IslandConfig,
    RunConfig,
    add_island,
    load_run,
    load_shared,
    remove_island,
    resolve_model,
    sign_again,
    write_example,
)
from isthmus.config.problems import Problem, nearest, read_table, validated
from isthmus.config.render import render_toml, toml_value
from isthmus.config.run import MixingTable, ModelTable
from isthmus.errors import ConfigError
from isthmus.identity import create_identity, create_owner_key

MINIMAL = '[run]\nname = "a"\ntoken_budget = 1_000\nowner = "key"\n'


def run_config(text: str = MINIMAL) -> RunConfig:
    problems: list[Problem] = []
    run = validated(Path("run.toml"), RunConfig, tomllib.loads(text), problems)
    assert run is not None, problems
    return run


def mistakes(path: Path, text: str, model: type[RunConfig] | type[IslandConfig] = RunConfig) -> list[str]:
    path.write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    assert read_table(path, model, problems) is None
    return [str(problem).removeprefix(f"{path}: ") for problem in problems]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_example(tmp_path / "pair")
    return tmp_path / "pair"


def refusal(run_dir: Path, name: str = "asia") -> str:
    with pytest.raises(ConfigError) as caught:
        load_run(run_dir, name)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_all_mistakes_of_a_file_are_told_at_once_with_their_paths(tmp_path: Path) -> None:
    text = """
    [run]
    name = "No Name"
    token_budget = "many"
    [mixing]
    window_step = 50
    fragments = 0
    codec = 4
    [trian]
    """
    found = mistakes(tmp_path / "run.toml", text)
    assert found == [
        "run.name: got 'No Name'; wanted text that matches ^[a-z0-9-]{1,32}$",
        "run.token_budget: got 'many'; wanted a valid integer",
        "run.owner: the key is missing",
        "mixing.fragments: got 0; wanted greater than or equal to 1",
        "mixing.codec: got 4; wanted a valid string",
        "mixing.window_step: the key is unknown. Did you mean window_steps?",
        "trian: the key is unknown. Did you mean train?",
    ]


def test_broken_relations_of_a_table_are_told_together(tmp_path: Path) -> None:
    text = MINIMAL + "[mixing]\nwindow_steps = 3\nouter_lr = 0.5\nouter_momentum = 0.9\n"
    found = mistakes(tmp_path / "run.toml", text)
    assert [line.split(":")[0] for line in found] == ["mixing.window_steps", "mixing.window_steps", "mixing.outer_lr"]
    assert "wanted at least mixing.fragments = 4" in found[0]
    assert "wanted more than mixing.flight_steps = 5" in found[1]
    assert "= 5; wanted at most 4" in found[2]


@pytest.mark.parametrize(
    ("outer_lr", "outer_momentum", "allowed"), [(2.0, 0.5, True), (2.01, 0.5, False), (4.1, 0.0, False)]
)
def test_an_outer_gain_above_four_is_refused(outer_lr: float, outer_momentum: float, allowed: bool) -> None:
    if allowed:
        assert MixingTable(outer_lr=outer_lr, outer_momentum=outer_momentum).outer_lr == outer_lr
    else:
        with pytest.raises(ValidationError, match="islands diverge"):
            MixingTable(outer_lr=outer_lr, outer_momentum=outer_momentum)


@pytest.mark.parametrize(
    "values",
    [
        {"flight_steps": 50},
        {"fragments": 51},
        {"outer_momentum": 1.0},
        {"outer_lr": float("nan")},
        {"calm_share": 1.1},
        {"rule": "ring"},
        {"window_steps": True},
        {"window_steps": 50.0},
    ],
)
def test_mixing_that_cannot_work_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MixingTable.model_validate(values)


def test_an_island_files_mistakes_have_paths_into_lists_and_tables(tmp_path: Path) -> None:
    text = """
    [island]
    name = "asia"
    batch_size = 16
    precision = "fp16"
    [data]
    shares = [1, -2.0]
    [link]
    listen = "everywhere"
    [link.dial]
    us-east = ["10.0.0.1"]
    """
    found = mistakes(tmp_path / "island.toml", text, IslandConfig)
    assert found == [
        "island.precision: got 'fp16'; wanted 'auto', 'fp32', 'bf16-autocast' or 'bf16-weights'",
        "data.shares[1]: got -2.0; wanted greater than or equal to 0",
        "link.listen: got 'everywhere'; wanted host:port or [v6]:port",
        "link.dial.us-east[0]: got '10.0.0.1'; wanted host:port or [v6]:port",
    ]


def test_default_sources_stand_alone(tmp_path: Path) -> None:
    text = '[island]\nname = "asia"\nbatch_size = 1\n[data]\nsources = ["default", "*.py"]\n'
    found = mistakes(tmp_path / "island.toml", text, IslandConfig)
    assert found == ["data.sources: got ['default', '*.py']; wanted \"default\" alone, or globs alone"]


def test_text_that_is_no_toml_is_told_with_its_line(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "run.toml", "[run]\nname = \n") == [
        "the file is not TOML: Invalid value (at line 2, column 8)"
    ]


def test_bytes_that_are_no_text_are_told(run_dir: Path) -> None:
    (run_dir / "run.toml").write_bytes(b"[run]\nname = '\xff'\n")
    assert "run.toml: the file is not UTF-8: byte 14" in refusal(run_dir)


def test_the_nearest_name_is_offered_or_all_are_listed() -> None:
    assert nearest("fragmnts", ["fragments", "codec"]) == "Did you mean fragments?"
    assert nearest("zzz", ["b", "a"]) == "Known: a, b."
    assert nearest("zzz", []) == "Known: none."


def test_the_hash_is_deaf_to_layout_comments_order_and_written_defaults() -> None:
    other = '# note\n[mixing]\nfragments = 4\n[run]\nowner="key"\nseed=0\nname="a"\ntoken_budget=1000\n'
    assert run_config(other).hash == run_config().hash
    assert len(run_config().hash) == 64
    assert run_config().hash.startswith(run_config().short_hash)
    assert (
        run_config(MINIMAL + "[mixing]\nouter_lr = 1\n").hash == run_config(MINIMAL + "[mixing]\nouter_lr = 1.0\n").hash
    )


@pytest.mark.parametrize(
    "change",
    [
        "[mixing]\nwindow_steps = 51",
        '[mixing]\ncodec = "int8"',
        "[train]\nlearning_rate = 0.0021",
        "[model]\nnum_layers = 4",
        '[model]\npreset = "micro"',
        '[data]\nevaluate = ["python code"]',
        "[eval]\nevery_tokens = 1",
    ],
)
def test_the_hash_changes_with_any_value(change: str) -> None:
    assert run_config(f"{MINIMAL}{change}\n").hash != run_config().hash


def test_every_value_of_a_run_is_part_of_its_hash() -> None:
    run = run_config(f'{MINIMAL}[data]\ntokenizer = "a.json"\ntokenizer_sha256 = "{"0" * 64}"\n')
    hashes = {run.hash}
    num_values = 0
    for table_name in RunConfig.model_fields:
        table = getattr(run, table_name)
        for key in type(table).model_fields:
            value = getattr(table, key)
            other = value + 1 if isinstance(value, int | float) else value + value
            changed = table.model_copy(update={key: other})
            hashes.add(run.model_copy(update={table_name: changed}).hash)
            num_values += 1
    assert len(hashes) == 1 + num_values


def test_configs_cannot_be_changed_after_loading() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        run_config().mixing.fragments = 5  # type: ignore[misc]


def test_a_models_fields_stand_in_for_the_presets() -> None:
    model = resolve_model(ModelTable(preset="nano", num_layers=5, rope_theta=1))
    assert (model.num_layers, model.rope_theta) == (5, 1.0)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"preset": "nanoo"}, "model.preset: there is no preset 'nanoo'. Did you mean nano?"),
        ({"num_layer": 4}, "model.num_layer: the key is unknown. Did you mean num_layers?"),
        ({"num_layers": 4.0}, "model.num_layers: got 4.0; wanted a value of type int"),
        ({"tie_embeddings": 1}, "model.tie_embeddings: got 1; wanted a value of type bool"),
        ({"num_heads": 3, "num_kv_heads": 2}, "does not divide"),
        ({"preset": "own"}, "its own training loop"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused(values: dict[str, object], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted.replace(".", r"\.").replace("?", r"\?")):
        resolve_model(ModelTable.model_validate(values))


def test_rooms_are_asked_about_models_codecs_and_lengths(run_dir: Path) -> None:
    edit(run_dir / "run.toml", 'codec = "int4"', 'codec = "int5"')
    edit(run_dir / "run.toml", "sequence_length = 256", "sequence_length = 257")
    edit(run_dir / "run.toml", 'optimizer = "shampoo"', 'optimizer = "sgd"')
    edit(run_dir / "run.toml", 'preset = "nano"', 'preset = "nano"\nnum_layer = 2')
    text = refusal(run_dir)
    assert "mixing.codec: there is no codec 'int5'. Did you mean int" in text
    assert "model.num_layer: the key is unknown" in text
    assert "train.optimizer: there is no optimizer 'sgd'" in text
    edit(run_dir / "run.toml", "num_layer = 2", "num_layers = 2")
    assert "train.sequence_length: got 257; wanted at most the model's max_seq_len, 256" in refusal(run_dir)


def test_a_model_of_ones_own_has_no_fields(run_dir: Path) -> None:
    edit(run_dir / "run.toml", 'preset = "nano"', 'preset = "own"')
    sign_again(run_dir)
    assert load_run(run_dir, "asia").run.model.preset == "own"
    edit(run_dir / "run.toml", 'preset = "own"', 'preset = "own"\nnum_layers = 2')
    assert 'model.num_layers: the preset "own" has no fields' in refusal(run_dir)


def test_mistakes_of_all_files_are_told_at_once(run_dir: Path) -> None:
    edit(run_dir / "run.toml", "fragments = 4", "fragments = 0")
    edit(run_dir / "roster.toml", "slot = 1", "slot = 0")
    edit(run_dir / "islands/asia/island.toml", "keep = 2", "kep = 2")
    (run_dir / "islands/asia/identity.key").unlink()
    text = refusal(run_dir)
    assert text.startswith("4 mistakes in the files of the run:\n")
    assert f"{run_dir}/run.toml: mixing.fragments: got 0" in text
    assert "roster.toml: islands: got" in text
    assert "island.toml: checkpoint.kep: the key is unknown. Did you mean keep?" in text
    assert "identity.key: the file is missing" in text


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml: the file is missing\. .*isthmus init DIR"):
        load_shared(tmp_path)


def test_a_changed_run_file_asks_for_a_new_signature_and_gets_it(run_dir: Path) -> None:
    edit(run_dir / "run.toml", "window_steps = 50", "window_steps = 40")
    text = refusal(run_dir)
    assert "roster.toml: run: got the run" in text
    assert f"isthmus roster sign {run_dir}" in text
    assert sign_again(run_dir).version == 2
    loaded = load_run(run_dir, "asia")
    assert (loaded.window_steps, loaded.roster.version) == (40, 2)


def test_a_roster_changed_by_another_hand_is_refused(run_dir: Path) -> None:
    edit(run_dir / "roster.toml", "127.0.0.1:47111", "127.0.0.1:47119")
    assert "roster.toml: signature: a signature is not the owner's" in refusal(run_dir)


def test_only_the_owners_key_signs_again(run_dir: Path) -> None:
    (run_dir / "owner.key").write_bytes(create_owner_key().key_pem)
    with pytest.raises(ConfigError, match=r"run\.toml: run\.owner: got"):
        sign_again(run_dir)
    (run_dir / "owner.key").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="a private key does not parse"):
        sign_again(run_dir)
    (run_dir / "owner.key").unlink()
    with pytest.raises(ConfigError, match=r"owner\.key: the file is missing"):
        sign_again(run_dir)


def test_an_island_that_is_not_here_is_refused_with_the_nearest_name(run_dir: Path) -> None:
    assert "no such island here. Did you mean asia?" in refusal(run_dir, "asa")
    assert "no such island here" in refusal(run_dir, "../asia/../europe")


def test_an_island_outside_the_roster_is_refused(run_dir: Path) -> None:
    (run_dir / "islands/asia").rename(run_dir / "islands/africa")
    text = refusal(run_dir, "africa")
    assert "roster.toml: islands: africa is not in it" in text
    assert "island.name: got 'asia'; wanted 'africa'" in text
    assert "certificate is another island's" in text


def test_a_key_that_is_not_the_certificates_is_refused(run_dir: Path) -> None:
    (run_dir / "islands/asia/identity.key").write_bytes(create_identity("asia").key_pem)
    assert "does not belong to its certificate" in refusal(run_dir)


def test_a_certificate_that_is_not_the_rosters_is_refused(run_dir: Path) -> None:
    other = create_identity("asia")
    (run_dir / "islands/asia/identity.key").write_bytes(other.key_pem)
    (run_dir / "islands/asia/identity.crt").write_bytes(other.certificate_pem)
    assert "another certificate in the roster" in refusal(run_dir)


def test_an_islands_own_settings_must_go_with_the_runs(run_dir: Path) -> None:
    path = run_dir / "islands/asia/island.toml"
    edit(path, "# window_steps = 50", "window_steps = 5")
    edit(path, "# shares = [3.0, 1.0]", "shares = [3.0, 0]")
    edit(path, '# optimizer = "adamw"', 'optimizer = "adam"')
    edit(path, "# [link.dial]\n# asia", "[link.dial]\nus-wast")
    text = refusal(run_dir)
    assert "island.toml: island.window_steps: got 5; wanted more than mixing.flight_steps = 5" in text
    assert "link.dial.us-wast: it is no other island of the roster. Did you mean us-east?" in text
    assert "island.optimizer: there is no optimizer 'adam'. Did you mean adamw?" in text
    assert "data.shares: got [3.0, 0.0]; wanted a share above 0 for slot 1, this island's" in text
    edit(path, "[3.0, 0]", "[3.0, 0.5]")
    edit(path, '"adam"', '"adamw"')
    edit(path, "window_steps = 5", "window_steps = 20")
    edit(path, "us-wast", "us-east")
    loaded = load_run(run_dir, "asia")
    assert loaded.window_steps == 20
    assert loaded.island.data.shares == (3.0, 0.5)
    assert loaded.island.link.dial == {"us-east": ("10.0.0.2:47111",)}


def test_a_tokenizer_file_is_pinned_by_its_hash(run_dir: Path) -> None:
    edit(run_dir / "run.toml", 'tokenizer = "bytes"', 'tokenizer = "tokens.json"')
    assert "data.tokenizer_sha256: got ''; wanted the tokenizer file's SHA-256" in refusal(run_dir)
    edit(run_dir / "run.toml", 'tokenizer_sha256 = ""', f'tokenizer_sha256 = "{"0" * 64}"')
    assert "tokens.json cannot be read: No such file" in refusal(run_dir)
    (run_dir / "tokens.json").write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    assert f"wanted {digest}" in refusal(run_dir)
    edit(run_dir / "run.toml", "0" * 64, digest)
    sign_again(run_dir)
    assert load_run(run_dir, "asia").run.data.tokenizer == "tokens.json"


@given(st.text())
def test_any_text_survives_rendering(text: str) -> None:
    assert tomllib.loads(f"key = {toml_value(text)}")["key"] == text


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_survives_rendering(whole: int, real: float) -> None:
    document = tomllib.loads(f"whole = {toml_value(whole)}\nreal = {toml_value(real)}\nyes = {toml_value(True)}")
    assert document == {"whole": whole, "real": real, "yes": True}


def test_a_rendered_config_is_read_back_equal_with_a_comment_above_every_key() -> None:
    run = run_config(MINIMAL + "[model]\nnum_layers = 4\n")
    text = render_toml(run, "Title.")
    assert run_config(text) == run
    lines = text.splitlines()
    keys = [number for number, line in enumerate(lines) if " = " in line and not line.startswith("#")]
    bare = [lines[number] for number in keys if not lines[number - 1].startswith("#")]
    assert bare == ["num_layers = 4"]


# -- islands that join and leave the roster ----------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path: Path) -> Path:
    write_example(tmp_path / "run", ("a", "b", "c"))
    return tmp_path / "run"


def test_an_added_island_has_a_slot_of_its_own_and_files_that_work(three: Path) -> None:
    roster = add_island(three, "d")
    assert [(island.name, island.slot) for island in roster.islands] == [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
    assert roster.version == 2
    loaded = load_run(three, "d")
    assert loaded.member.slot == 3
    assert loaded.island.link.listen == loaded.member.addresses[0] == "127.0.0.1:47113"


def test_an_island_with_an_address_is_reached_there_and_one_without_only_dials(tmp_path: Path) -> None:
    write_example(tmp_path / "run", ("a", "b"), addresses={"a": "203.0.113.7:47110"})
    add_island(tmp_path / "run", "c", address="203.0.113.9:47110")
    roster = add_island(tmp_path / "run", "d")
    assert [island.addresses for island in roster.islands[2:]] == [("203.0.113.9:47110",), ()]
    assert load_run(tmp_path / "run", "c").island.link.listen == "0.0.0.0:47110"


def test_an_island_whose_site_has_made_its_keys_is_added_by_its_certificate(three: Path, tmp_path: Path) -> None:
    identity = create_identity("d")
    (tmp_path / "d.crt").write_bytes(identity.certificate_pem)
    roster = add_island(three, "d", certificate=tmp_path / "d.crt")
    assert roster.find("d").certificate_pem == identity.certificate_pem
    assert not (three / "islands" / "d").exists()
    with pytest.raises(ConfigError, match="the certificate is another island's; got d; wanted e"):
        add_island(three, "e", certificate=tmp_path / "d.crt")


def test_the_slot_of_a_removed_island_is_given_to_no_other(three: Path) -> None:
    roster = remove_island(three, "b")
    assert (roster.slots, roster.retired) == ((0, 2), (1,))
    assert add_island(three, "d").find("d").slot == 3
    assert load_shared(three).roster.retired == (1,)
    with pytest.raises(ConfigError, match="b is not in it"):
        load_run(three, "b")


def test_what_cannot_be_added_or_removed_is_said(three: Path) -> None:
    with pytest.raises(ConfigError, match="there is an island called a"):
        add_island(three, "a")
    with pytest.raises(ConfigError, match=r"no such island in the roster; got bb\. Did you mean b"):
        remove_island(three, "bb")
    with pytest.raises(ConfigError, match="name"):
        add_island(three, "No Name")
    remove_island(three, "b")
    remove_island(three, "c")
    with pytest.raises(ConfigError, match="a run has at least one island"):
        remove_island(three, "a")
    with pytest.raises(ConfigError, match="there are files of an island called b"):
        add_island(three, "b")
