from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from isthmus.errors import ConfigError
from isthmus.lab.keys import known_keys
from isthmus.lab.study import load_study
from isthmus.lab.study_file import Arm, OwnTable, PairLink, SharedTable, StudyFile, StudyTable, UnevenTable
from small_studies import BASE, PLAIN, TOP, TWO, VARY, refusal, setup_of, study_of, write

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.toml"

PAIR = '[[arm.links]]\nbetween = ["a", "b"]\n'


def test_the_example_is_a_study() -> None:
    study = load_study(EXAMPLE)
    assert [arm.name for arm in study.arms] == ["two", "in-trouble", "four", "four-mesh", "standard", "one-outer"]
    assert study.scripts.keys() == {"in-trouble"}
    assert len(study.cases) == 2


def test_cases_are_all_combinations_and_tuning_is_done_in_the_last(tmp_path: Path) -> None:
    vary = VARY + '"link.rtt_ms" = [20, 200]\n'
    study = study_of(tmp_path, PLAIN, vary, BASE, TWO)
    assert study.cases == (
        {"run.run.token_budget": 1000, "link.rtt_ms": 20},
        {"run.run.token_budget": 1000, "link.rtt_ms": 200},
        {"run.run.token_budget": 2000, "link.rtt_ms": 20},
        {"run.run.token_budget": 2000, "link.rtt_ms": 200},
    )
    assert study.tune_case == {"run.run.token_budget": 2000, "link.rtt_ms": 200}


def test_the_case_of_tuning_can_be_named_in_part_and_lie_elsewhere(tmp_path: Path) -> None:
    top = PLAIN + 'tune_case = { "run.run.token_budget" = 500 }\n'
    study = study_of(tmp_path, top, VARY + '"link.rtt_ms" = [20, 200]\n', BASE, TWO)
    assert study.tune_case == {"run.run.token_budget": 500, "link.rtt_ms": 200}


def test_without_anything_varied_there_is_one_case(tmp_path: Path) -> None:
    base = BASE + "[base.run.run]\ntoken_budget = 1000\n"
    assert study_of(tmp_path, PLAIN, base, TWO).cases == ({},)


def test_dotted_keys_need_no_quotes(tmp_path: Path) -> None:
    vary = "[vary]\nrun.run.token_budget = [1000, 2000]\nlink.rtt_ms = [20]\n"
    study = study_of(tmp_path, PLAIN, vary, BASE, TWO, "tune.run.train.learning_rate = [1e-3, 2e-3]\n")
    assert study.vary == {"run.run.token_budget": (1000, 2000), "link.rtt_ms": (20,)}
    assert study.arms[0].tune == {"run.train.learning_rate": (1e-3, 2e-3)}


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ("2", ("a", "b")),
        ("28", (*"abcdefghijklmnopqrstuvwxyz", "aa", "ab")),
        ('["us-east", "asia"]', ("us-east", "asia")),
    ],
)
def test_islands_are_a_count_or_names(tmp_path: Path, written: str, names: tuple[str, ...]) -> None:
    arm = TWO.replace("islands = 2", f"islands = {written}")
    assert study_of(tmp_path, PLAIN, VARY, BASE, arm).arms[0].islands == names


def test_sixty_four_islands_have_different_names(tmp_path: Path) -> None:
    islands = study_of(tmp_path, PLAIN, VARY, BASE, TWO.replace("2", "64")).arms[0].islands
    assert len(set(islands)) == 64
    assert islands[51:54] == ("az", "ba", "bb")


# -- merging -----------------------------------------------------------------------------------------------------------


def test_what_is_nearer_wins_base_case_arm_tuned_own(tmp_path: Path) -> None:
    layers = {
        "base": "[base.run.train]\nweight_decay = 0.1\nlearning_rate = 0.1\nclip_norm = 0.1\nwarmup_share = 0.1\n",
        "vary": '[vary]\n"run.train.learning_rate" = [0.2]\n"run.train.clip_norm" = [0.2]\n'
        '"run.train.warmup_share" = [0.2]\n"run.run.token_budget" = [1000]\n"island.island.batch_size" = [2]\n',
        "arm": "run.train.clip_norm = 0.3\nrun.train.warmup_share = 0.3\nisland.island.batch_size = 3\n"
        'tune."run.train.warmup_share" = [0.4]\ntune."island.island.batch_size" = [4]\n',
        "own": "[arm.own.b]\nstep_s = 5\nisland.island.batch_size = 6\n",
    }
    setup = setup_of(tmp_path, PLAIN, layers["vary"], BASE, layers["base"], TWO, layers["arm"], layers["own"])
    train = setup.run["train"]
    assert (train["weight_decay"], train["learning_rate"], train["clip_norm"], train["warmup_share"]) == (
        0.1,
        0.2,
        0.3,
        0.4,
    )
    assert [place.tables["island"]["batch_size"] for place in setup.islands] == [4, 6]
    assert [place.step_s for place in setup.islands] == [2.0, 5.0]


def test_the_lab_names_the_run_and_gives_it_its_seed(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, PLAIN, VARY, BASE, TWO, seed=12)
    assert setup.run["run"] == {"token_budget": 1000, "name": "two", "seed": 12}
    assert setup.run["model"] == {"preset": "micro"}
    assert [place.name for place in setup.islands] == ["a", "b"]


def test_step_and_link_can_be_varied(tmp_path: Path) -> None:
    setup = setup_of(tmp_path, PLAIN, VARY, "step_s = [7.0]\nlink.loss = [0.5]\n", BASE, TWO)
    assert {place.step_s for place in setup.islands} == {7.0}
    assert setup.links.shared["loss"] == 0.5
    assert setup.links.shared["rtt_ms"] == 180.0


def test_paths_count_from_the_study_and_names_are_no_paths(tmp_path: Path) -> None:
    base = (
        BASE
        + '[base.island.data]\nsources = ["texts/*.txt"]\n[base.run.data]\nevaluate = ["python code", "held/*.md"]\n'
    )
    setup = setup_of(tmp_path, PLAIN, VARY, base, TWO)
    assert setup.islands[0].tables["data"]["sources"] == (f"{tmp_path}/texts/*.txt",)
    assert setup.run["data"]["evaluate"] == ("python code", f"{tmp_path}/held/*.md")
    default = setup_of(tmp_path, PLAIN, VARY, BASE + '[base.island.data]\nsources = ["default"]\n', TWO)
    assert default.islands[0].tables["data"]["sources"] == ("default",)


def test_a_fault_script_is_found_beside_the_study(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text('[[fault]]\nat_s = 3\nkind = "crash"\nisland = "b"\n')
    setup = setup_of(tmp_path, PLAIN, VARY, BASE, TWO, 'faults = "faults.toml"\n')
    assert setup.faults.events() == ((3.0, "crash", ("b",)),)
    assert setup_of(tmp_path, PLAIN, VARY, BASE, TWO).faults.events() == ()


# -- controls ----------------------------------------------------------------------------------------------------------


def test_fair_controls_are_added(tmp_path: Path) -> None:
    arm = TWO + "[arm.own.b]\nisland.island.batch_size = 4\n"
    study = study_of(tmp_path, TOP, VARY, BASE + "[base.run.train]\nlearning_rate = 4e-3\n", arm)
    standard, one_outer = study.find("standard"), study.find("one-outer")
    assert standard is not None
    assert one_outer is not None
    assert standard.islands == one_outer.islands == ("a",)
    assert standard.run["mixing"] == {"outer_lr": 1.0, "outer_momentum": 0.0}
    assert one_outer.run == {}
    assert standard.tune == {"run.train.learning_rate": (2e-3, 4e-3, 8e-3), "island.island.batch_size": (6, 12, 24)}
    assert one_outer.tune == {"run.train.learning_rate": (2e-3, 4e-3, 8e-3)}
    assert one_outer.island["island"]["batch_size"] == 12
    assert "added" in standard.note


def test_controls_read_all_of_the_text_whatever_the_shares(tmp_path: Path) -> None:
    study = study_of(tmp_path, TOP, VARY, BASE + "[base.island.data]\nshares = [3.0, 1.0]\n", TWO)
    standard = study.find("standard")
    assert standard is not None
    assert standard.island["data"] == {"shares": (1.0,)}


def test_controls_are_made_in_the_case_of_tuning(tmp_path: Path) -> None:
    vary = VARY + '"island.island.batch_size" = [3, 5]\n"run.train.learning_rate" = [1e-3, 3e-3]\n'
    standard = study_of(tmp_path, TOP, vary, BASE, TWO).find("standard")
    assert standard is not None
    assert standard.tune == {
        "run.train.learning_rate": (1.5e-3, 3e-3, 6e-3),
        "island.island.batch_size": (5, 10, 20),
    }


def test_controls_tune_the_rate_that_counts(tmp_path: Path) -> None:
    study = study_of(tmp_path, TOP, VARY, BASE.replace("batch_size = 8", "batch_size = 8\nlearning_rate = 1e-3"), TWO)
    one_outer = study.find("one-outer")
    assert one_outer is not None
    assert one_outer.tune == {"island.island.learning_rate": (5e-4, 1e-3, 2e-3)}


def test_an_arm_takes_a_controls_place(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "standard"\nislands = 1\nrun.mixing.outer_lr = 1\n'
    study = study_of(tmp_path, TOP, VARY, BASE, arm, TWO)
    assert [each.name for each in study.arms] == ["standard", "two", "one-outer"]
    assert study.arms[0].tune == {}


def test_controls_can_be_left_out(tmp_path: Path) -> None:
    assert [arm.name for arm in study_of(tmp_path, PLAIN, VARY, BASE, TWO).arms] == ["two"]


def test_an_arm_can_be_tuned_like_a_control(tmp_path: Path) -> None:
    study = study_of(tmp_path, TOP, VARY, BASE, TWO, 'tuned_like = "one-outer"\n')
    assert len(study.combinations(study.arms[0])) == 3


def test_a_control_that_cannot_be_made_is_told_as_an_added_one(tmp_path: Path) -> None:
    base = BASE.replace("[base.run.mixing]\nwindow_steps = 20", "[base.run.mixing]\nwindow_steps = 20\nouter_lr = 4.5")
    (told,) = refusal(tmp_path, TOP, VARY, base, TWO, "run.mixing.outer_lr = 0.7\n")
    assert told.startswith("arm one-outer: run.mixing.outer_lr: got outer_lr 4.5")
    assert told.endswith("The lab has added standard, one-outer: write arms of these names, or controls = false.")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_all_mistakes_of_form_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    text = """
    [study]
    name = "No Name"
    sedes = [1]
    seeds = []
    margin = 1.5
    [vary]
    "run.run.token_budget" = [1000, 1000]
    "link.rtt_ms" = [[1]]
    [base.link]
    rtt_ms = -1
    [base.run.mixing]
    windw_steps = 4
    [[arm]]
    name = "two"
    islands = 0
    run.mixing.rulle = "pair"
    [arm.own.b]
    stepp_s = 3.0
    [[arm.links]]
    form = "a"
    [[arm]]
    islands = 1
    """
    assert refusal(tmp_path, text) == [
        "study.name: got 'No Name'; wanted text that matches ^[a-z0-9-]{1,32}$",
        "study.seeds: got []; wanted at least one",
        "study.margin: got 1.5; wanted less than 1",
        "study.sedes: the key is unknown. Did you mean seeds?",
        "vary.run.run.token_budget: got [1000, 1000]; wanted nothing twice",
        "vary.link.rtt_ms[0]: got [1]; wanted a number, a text, true or false",
        "base.link.rtt_ms: got -1; wanted greater than or equal to 0",
        "arm two: islands: got 0; wanted a count from 1 to 64, or as many different names of a-z, 0-9 and -",
        "arm two: own.b.stepp_s: the key is unknown. Did you mean step_s?",
        "arm two: links[0].form: the key is unknown. Did you mean from?",
        "arm[1].name: the key is missing",
        "base.run.mixing.windw_steps: the key is unknown. Did you mean window_steps?",
        "arm two: run.mixing.rulle: the key is unknown. Did you mean rule?",
    ]


def test_all_mistakes_of_the_grid_are_told_at_once_where_they_are_written(tmp_path: Path) -> None:
    text = """
    [study]
    name = "wrong"
    control = "tow"
    controls = false
    seeds = [1]
    tune_case = { "run.run.token_budgets" = 5 }
    [vary]
    "run.run.token_budget" = [0, 1000]
    "run.train.learning_rat" = [1e-3]
    [base.run.mixing]
    window_steps = 20
    windw_steps = 20
    [base.island.island]
    batch_size = 8
    precision = "fp16"
    [[arm]]
    name = "two"
    islands = 2
    run.mixing.fragments = 30
    tune."run.train.learning_rate" = [2e-3, -1.0]
    [arm.own.b]
    island.island.window_steps = 3
    [arm.own.c]
    island.island.optimzer = "adamw"
    [[arm]]
    name = "like"
    islands = 2
    tuned_like = "twos"
    """
    assert refusal(tmp_path, text) == [
        "study.control: there is no arm 'tow'. Did you mean two?",
        "study.tune_case.run.run.token_budgets: the study does not vary it. Did you mean run.run.token_budget?",
        "study.tuning_seeds: got none; wanted seeds on which values of two are chosen. "
        "controls = false adds no arms that are tuned.",
        "base.run.mixing.windw_steps: the key is unknown. Did you mean window_steps?",
        "vary.run.train.learning_rat: the key is unknown. Did you mean learning_rate?",
        "arm two: own.c.island.island.optimzer: the key is unknown. Did you mean optimizer?",
        "arm two: own.c: the arm has no island 'c'. Known: a, b.",
        "arm like: tuned_like: there is no other arm 'twos'. Did you mean two?",
        "vary.run.run.token_budget: got 0; wanted greater than or equal to 1",
        "arm two: run.mixing.window_steps: got 20; wanted at least mixing.fragments = 30: one departure a step at most",
        "base.island.island.precision: got 'fp16'; wanted 'auto', 'fp32', 'bf16-autocast' or 'bf16-weights'",
        "arm two: tune.run.train.learning_rate: got -1.0; wanted greater than 0",
    ]


def test_what_the_rooms_refuse_is_told_too(tmp_path: Path) -> None:
    base = BASE.replace("micro", "mikro") + '[base.run.train]\noptimizer = "sgd"\n'
    own = '[arm.own.b]\nisland.island.optimizer = "adam"\nisland.island.window_steps = 3\n'
    place = "arm two: own.b.island.island"
    assert refusal(tmp_path, PLAIN, VARY, base, TWO, own) == [
        "base.run.train.optimizer: there is no optimizer 'sgd'. Known: adamw, muon, shampoo.",
        "base.run.model.preset: there is no preset 'mikro'. Did you mean micro?",
        f"{place}.optimizer: there is no optimizer 'adam'. Did you mean adamw?",
        f"{place}.window_steps: got 3; wanted at least mixing.fragments = 4: one departure a step at most",
        f"{place}.window_steps: got 3; wanted more than mixing.flight_steps = 5",
    ]


def test_a_mistake_of_some_cases_says_in_which(tmp_path: Path) -> None:
    vary = VARY + '"run.mixing.flight_steps" = [2, 25]\n'
    assert refusal(tmp_path, PLAIN, vary, BASE, TWO) == [
        "base.run.mixing.window_steps: got 20; wanted more than mixing.flight_steps = 25 "
        "(where run.run.token_budget = 1000, run.mixing.flight_steps = 25)"
    ]


def test_only_the_combination_that_is_wrong_is_told(tmp_path: Path) -> None:
    tune = 'tune."run.mixing.outer_lr" = [0.5, 2.5]\ntune."run.mixing.outer_momentum" = [0.0, 0.5]\n'
    (told,) = refusal(tmp_path, PLAIN, VARY, BASE, TWO, tune)
    assert told.startswith("arm two: tune.run.mixing.outer_lr: got outer_lr 2.5 / (1 - outer_momentum 0.5) = 5; wanted")


def test_a_missing_key_is_told_once_where_it_could_stand(tmp_path: Path) -> None:
    other = TWO.replace('"two"', '"other"')
    assert refusal(tmp_path, PLAIN, BASE.replace("batch_size = 8", ""), TWO, other) == [
        "base.run.run.token_budget: the key is missing",
        "base.island.island.batch_size: the key is missing",
    ]


def test_a_key_that_every_island_has_of_its_own_is_not_missing(tmp_path: Path) -> None:
    own = "[arm.own.a]\nisland.island.batch_size = 1\n[arm.own.b]\nisland.island.batch_size = 2\n"
    setup = setup_of(tmp_path, PLAIN, VARY, BASE.replace("batch_size = 8", ""), TWO, own)
    assert [place.tables["island"]["batch_size"] for place in setup.islands] == [1, 2]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("run.run.name", "the lab sets it itself"),
        ("run.run.owner", "the lab sets it itself"),
        ("run.run.seed", "the lab sets it itself"),
        ("island.island.name", "the lab sets it itself"),
        ("island.link.listen", "an island's own link is for live runs"),
    ],
)
def test_what_is_not_a_studys_to_set_is_refused(tmp_path: Path, key: str, told: str) -> None:
    (line,) = refusal(tmp_path, PLAIN, VARY, BASE, TWO, f'{key} = "x"\n')
    assert line.startswith(f"arm two: {key}: {told}. ")
    (line,) = refusal(tmp_path, PLAIN, VARY, f'"{key}" = ["x"]\n', BASE, TWO)
    assert line.startswith(f"vary.{key}: {told}. ")


@pytest.mark.parametrize(
    ("key", "mend"),
    [
        ("mixing.rule", "Did you mean run.mixing.rule?"),
        ("learning_rate", "Did you mean island.island.learning_rate or run.train.learning_rate?"),
        ("run.mixng.rule", "Did you mean run.mixing.rule?"),
        ("link.rtt", "Did you mean rtt_ms?"),
        ("stepps", "Did you mean step_s?"),
    ],
)
def test_an_unknown_dotted_key_is_told_with_the_nearest(tmp_path: Path, key: str, mend: str) -> None:
    assert refusal(tmp_path, PLAIN, VARY, f'"{key}" = [1]\n', BASE, TWO) == [f"vary.{key}: the key is unknown. {mend}"]


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        ('tuned_like = "one"\n', "arm two: tuned_like: one is not tuned. Name an arm that has a tune of its own."),
        ('tuned_like = "two"\n', "arm two: tuned_like: there is no other arm 'two'. Known: one."),
        (
            'tuned_like = "one"\ntune.step_s = [1.0, 2.0]\n',
            "arm two: tuned_like: got 'one'; wanted either it or tune",
        ),
        (
            PAIR.replace("b", "c").replace("cetween", "between"),
            "arm two: links[0]: the arm has no island 'c'. Known: a, b.",
        ),
        (PAIR + PAIR, "arm two: links[1]: a - b has its own link already. Put all of it in one."),
        (
            PAIR + 'from = "a"\n',
            "arm two: links[0].between: got between and from; wanted between alone, or from and to",
        ),
        ('[[arm.links]]\nfrom = "a"\n', "arm two: links[0].between: got from; wanted between alone, or from and to"),
        ('[[arm.links]]\nfrom = "a"\nto = "a"\n', "arm two: links[0].to: got a; wanted another island than the first"),
        (PAIR + "loss = 1.1\n", "arm two: links[0].loss: got 1.1; wanted less than or equal to 1"),
        (
            PAIR + "outages = [[9, 3]]\n",
            "arm two: links[0].outages[0]: got [9, 3]; wanted two numbers, the lower first",
        ),
        (
            PAIR + "outages = [[5, 9], [1, 6]]\n",
            "arm two: links[0].outages: got [5.0, 9.0]; wanted it after [1.0, 6.0]",
        ),
        (
            '[[arm.links]]\nfrom = "a"\nto = "b"\noutages = [[1, 2]]\n',
            "arm two: links[0].outages: got from and to; wanted between: an outage cuts both directions",
        ),
        (
            "[arm.uneven]\nrtt_ms = [250, 20]\n",
            "arm two: uneven.rtt_ms: got [250, 20]; wanted two numbers, the lower first",
        ),
        (
            "[arm.own.a]\nisland.data.shares = [0.0, 1.0]\n",
            "arm two: own.a.island.data.shares: got [0.0, 1.0]; wanted a share above 0 for slot 0, that of a",
        ),
        (
            'run.model.preset = "own"\n',
            'arm two: run.model.preset: got "own"; wanted a preset: the lab builds its models itself',
        ),
        ("step_s = 0\n", "arm two: step_s: got 0; wanted greater than 0"),
        (
            'run.data.tokenizer = "t.json"\n',
            "arm two: run.data.tokenizer_sha256: got ''; wanted the tokenizer file's SHA-256",
        ),
    ],
)
def test_arms_that_cannot_be_run_are_refused(tmp_path: Path, arm: str, told: str) -> None:
    one = '[[arm]]\nname = "one"\nislands = 1\n'
    (line,) = refusal(tmp_path, PLAIN, VARY, BASE, one, TWO, arm)
    assert line.startswith(told)


def test_seeds_of_comparisons_are_not_tuned_on(tmp_path: Path) -> None:
    (told,) = refusal(tmp_path, PLAIN.replace("[1, 2]", "[1, 12, 11]"), VARY, BASE, TWO)
    assert told.startswith("study.tuning_seeds: got [11, 12]; wanted none of study.seeds")


def test_added_controls_need_tuning_seeds(tmp_path: Path) -> None:
    (told,) = refusal(tmp_path, TOP.replace("tuning_seeds = [1, 2]", ""), VARY, BASE, TWO)
    assert told.startswith(
        "study.tuning_seeds: got none; wanted seeds on which values of standard, one-outer are chosen"
    )


def test_arms_have_different_names(tmp_path: Path) -> None:
    assert refusal(tmp_path, PLAIN, VARY, BASE, TWO, TWO) == [
        "arm two: name: got 'two'; wanted a name that no other arm has"
    ]


def test_mistakes_in_fault_scripts_are_told_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text('[[fault]]\nat_s = 3\nkind = "crash"\nisland = "bb"\n')
    other = TWO.replace('"two"', '"other"') + 'faults = "none.toml"\n'
    found = refusal(tmp_path, PLAIN, VARY, BASE, TWO, 'faults = "faults.toml"\n', other, "run.mixing.rulle = 1\n")
    assert found == [
        f"{tmp_path}/faults.toml: fault[0].island: the arm two has no island 'bb'. Did you mean b?",
        f"{tmp_path}/none.toml: the file is missing. The arm other has it as its faults.",
        "arm other: run.mixing.rulle: the key is unknown. Did you mean rule?",
    ]


def test_an_outage_and_a_scripted_cut_of_one_pair_may_not_overlap(tmp_path: Path) -> None:
    (tmp_path / "faults.toml").write_text('[[fault]]\nat_s = 30\nkind = "cut"\nbetween = ["b", "a"]\n')
    arm = 'faults = "faults.toml"\n' + PAIR + "outages = [[5, 10], [50, 60]]\n"
    assert refusal(tmp_path, PLAIN, VARY, BASE, TWO, arm) == [
        "arm two: links[0].outages: [50.0, 60.0] and a cut of faults.toml at 30 s overlap. Leave one of them out."
    ]


def test_a_tokenizer_file_is_looked_for_beside_the_study(tmp_path: Path) -> None:
    data = f'[base.run.data]\ntokenizer = "t.json"\ntokenizer_sha256 = "{"0" * 64}"\n'
    assert f"{tmp_path}/t.json cannot be read" in refusal(tmp_path, PLAIN, VARY, BASE, data, TWO)[0]


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the file is missing\. .*examples/study\.toml"):
        load_study(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="the file is not TOML"):
        load_study(write(tmp_path, "[study\n"))


def test_a_study_cannot_be_changed(tmp_path: Path) -> None:
    study = study_of(tmp_path, PLAIN, VARY, BASE, TWO)
    with pytest.raises(ValidationError, match="frozen"):
        study.arms[0].note = "other"  # type: ignore[misc]


def test_every_key_says_what_it_means() -> None:
    models = (StudyTable, SharedTable, Arm, OwnTable, PairLink, UnevenTable)
    described = {name: bool(field.description) for model in models for name, field in model.model_fields.items()}
    assert all(described.values())
    assert StudyFile.model_fields.keys() == {"study", "vary", "base", "arm"}


def test_settable_keys_are_those_of_the_files_of_a_run() -> None:
    keys = known_keys()
    assert {
        "run.mixing.window_steps",
        "run.model.num_layers",
        "island.island.batch_size",
        "link.loss",
        "step_s",
    } <= keys
    assert not {"run.run.name", "run.run.owner", "run.run.seed", "island.island.name"} & keys
