from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from isthmus.lab.grid import Cell, choose, comparison_cells, tuning_cells
from isthmus.lab.study import Study
from isthmus.lab.table import Outcome, RunRow, Score
from small_studies import BASE, PLAIN, TOP, TWO, VARY, study_of

RATES = 'tune."run.train.learning_rate" = [1e-3, 2e-3, 4e-3]\n'
LIKE = '[[arm]]\nname = "like"\nislands = 2\ntuned_like = "two"\n'
PLAIN_ARM = '[[arm]]\nname = "plain"\nislands = 1\n'


def row_of(cell: Cell, *bits_per_byte: float | None, outcome: Outcome = "done", **changes: object) -> RunRow:
    scores = tuple(
        Score(
            set_name=f"set {index}",
            subject="joint",
            run_tokens=2000,
            bits_per_byte=bits,
            standard_error=0.01,
            final=True,
        )
        for index, bits in enumerate(bits_per_byte)
    )
    row = RunRow(
        study=cell.study,
        stage=cell.stage,
        arm=cell.arm,
        case=cell.case,
        seed=cell.seed,
        values=cell.values,
        digest=cell.digest,
        outcome=outcome,
        islands=2,
        tokens=2000,
        steps={},
        scores=scores,
        cpu_s=1.0,
        train_cpu_s=1.0,
        virtual_s=1.0,
        sent_bytes=1,
        meetings=1,
        late=0,
        versions={},
    )
    return msgspec.structs.replace(row, **changes)


def rows_of(study: Study, bits: Callable[[Cell], float]) -> list[RunRow]:
    return [row_of(cell, bits(cell)) for cell in tuning_cells(study)]


def rate(cell: Cell) -> float:
    return float(cell.values["run.train.learning_rate"])


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return study_of(tmp_path, PLAIN, VARY, BASE, TWO, RATES, LIKE, PLAIN_ARM)


def test_tuning_runs_are_all_combinations_on_the_tuning_seeds_in_one_case(study: Study) -> None:
    cells = tuning_cells(study)
    assert [(cell.arm, rate(cell), cell.seed) for cell in cells] == [
        ("two", learning_rate, seed) for learning_rate in (1e-3, 2e-3, 4e-3) for seed in (1, 2)
    ]
    assert {cell.stage for cell in cells} == {"tune"}
    assert all(cell.case == {"run.run.token_budget": 2000} for cell in cells)
    assert [cell.setup.run["train"]["learning_rate"] for cell in cells[::2]] == [1e-3, 2e-3, 4e-3]
    assert [cell.setup.run["run"]["seed"] for cell in cells[:2]] == [1, 2]


def test_arms_are_compared_as_soon_as_their_values_are_known(study: Study) -> None:
    assert {cell.arm for cell in comparison_cells(study, {})} == {"plain"}
    cells = comparison_cells(study, {"two": {"run.train.learning_rate": 2e-3}})
    assert {cell.arm for cell in cells} == {"two", "plain"}
    assert [(cell.seed, cell.case["run.run.token_budget"], cell.arm) for cell in cells] == [
        (seed, budget, arm) for seed in (11, 12) for budget in (1000, 2000) for arm in ("two", "plain")
    ]
    two = next(cell for cell in cells if cell.arm == "two")
    assert two.setup.run["train"]["learning_rate"] == 2e-3
    assert two.values == {"run.train.learning_rate": 2e-3}
    assert {cell.stage for cell in cells} == {"compare"}


def test_names_tell_runs_apart_and_can_be_directories(tmp_path: Path) -> None:
    vary = VARY + '"run.data.tokenizer" = ["bytes"]\n"link.rtt_ms" = [0.5, 5]\n'
    study = study_of(tmp_path, TOP, vary, BASE, TWO, RATES)
    chosen = {arm.name: study.combinations(arm)[0] for arm in study.arms}
    cells = [*tuning_cells(study), *comparison_cells(study, chosen)]
    names = {cell.name for cell in cells}
    assert len({name.lower() for name in names}) == len(cells) == len({cell.digest for cell in cells})
    assert all(re.fullmatch("[A-Za-z0-9._=+-]{1,140}", name) for name in names)
    assert any(name.startswith("compare-two-s11-token_budget=1000-tokenizer=bytes-rtt_ms=0.5-") for name in names)


def test_odd_values_make_no_odd_names(tmp_path: Path) -> None:
    texts = [*("../x", "a b"), "y" * 300]
    vary = VARY + f'"run.data.tokenizer_sha256" = [""]\n"island.data.cache" = {texts}\n'
    cells = comparison_cells(study_of(tmp_path, PLAIN, vary, BASE, TWO), {})
    assert len({cell.name for cell in cells}) == len(cells)
    assert all("/" not in cell.name and " " not in cell.name and len(cell.name) < 200 for cell in cells)


def digests(tmp_path: Path, *parts: str) -> list[str]:
    return [cell.digest for cell in comparison_cells(study_of(tmp_path, *parts), {})]


def test_the_digest_is_deaf_to_notes_other_seeds_other_arms_layout_and_written_defaults(tmp_path: Path) -> None:
    known = digests(tmp_path, PLAIN, VARY, BASE, TWO)
    assert len(set(known)) == 4
    assert digests(tmp_path, PLAIN, VARY, BASE, TWO, 'note = "two of them"\n') == known
    assert digests(tmp_path, PLAIN.replace("[11, 12]", "[11, 12, 13]"), VARY, BASE, TWO)[:4] == known
    assert digests(tmp_path, PLAIN, VARY, BASE, TWO, PLAIN_ARM)[::2] == known
    assert digests(tmp_path, PLAIN, VARY, BASE, "[base.run.train]\nclip_norm = 1\n", TWO) == known
    assert digests(tmp_path, PLAIN.replace('name = "small"', 'name = "other"'), VARY, BASE, TWO) == known
    assert digests(tmp_path, PLAIN, VARY, BASE, '[base.island.data]\ncache = "elsewhere"\n', TWO) == known
    moved = tmp_path / "moved"
    moved.mkdir()
    source = '[base.island.data]\nsources = ["texts/*.txt"]\n'
    assert digests(moved, PLAIN, VARY, BASE, source, TWO) == digests(tmp_path, PLAIN, VARY, BASE, source, TWO)


@pytest.mark.parametrize(
    "change",
    [
        "run.mixing.window_steps = 21\n",
        "run.model.num_layers = 3\n",
        "island.island.batch_size = 9\n",
        "island.checkpoint.every_steps = 7\n",
        'island.data.sources = ["texts/*.txt"]\n',
        "link.rtt_ms = 181\n",
        "step_s = 2.5\n",
        "[arm.own.b]\nstep_s = 2.5\n",
        '[[arm.links]]\nbetween = ["a", "b"]\nrate_mbit = 10\n',
        '[[arm.links]]\nbetween = ["a", "b"]\noutages = [[1, 2]]\n',
        "[arm.uneven]\nrtt_ms = [20, 250]\n",
        'faults = "faults.toml"\n',
    ],
)
def test_the_digest_changes_with_everything_that_changes_a_result(tmp_path: Path, change: str) -> None:
    (tmp_path / "faults.toml").write_text('[[fault]]\nat_s = 3\nkind = "crash"\nisland = "b"\n')
    known = digests(tmp_path, PLAIN, VARY, BASE, TWO)
    assert not {*digests(tmp_path, PLAIN, VARY, BASE, TWO, change)} & {*known}


def test_the_lowest_mean_over_seeds_and_sets_is_chosen(study: Study) -> None:
    bits = {(1e-3, 1): (3.0, 2.0), (1e-3, 2): (3.0, 2.0), (2e-3, 1): (1.0, 2.0), (2e-3, 2): (3.0, 3.0)}
    rows = [row_of(cell, *bits.get((rate(cell), cell.seed), (2.6, 2.4))) for cell in tuning_cells(study)]
    choices = choose(study, rows)
    assert choices.values == {
        "two": {"run.train.learning_rate": 2e-3},
        "like": {"run.train.learning_rate": 2e-3},
        "plain": {},
    }
    assert choices.edges == {"two": ()}
    assert {cell.arm for cell in comparison_cells(study, choices.values)} == {"two", "like", "plain"}


def test_only_final_scores_of_the_joint_weights_count(study: Study) -> None:
    rows = rows_of(study, lambda cell: 2.0 + (rate(cell) != 2e-3))
    noise = [
        Score(set_name="set 0", subject="first", run_tokens=1, bits_per_byte=0.1, standard_error=None, final=True),
        Score(set_name="set 0", subject="joint", run_tokens=1, bits_per_byte=0.1, standard_error=None, final=False),
    ]
    rows = [
        msgspec.structs.replace(row, scores=(*noise, *row.scores))
        if row.values["run.train.learning_rate"] == 4e-3
        else row
        for row in rows
    ]
    assert choose(study, rows).values["two"] == {"run.train.learning_rate": 2e-3}


def test_nothing_is_chosen_while_a_row_is_missing_failed_or_of_other_settings(study: Study) -> None:
    rows = rows_of(study, rate)
    assert "two" in choose(study, rows).values
    for broken in (
        rows[1:],
        [*rows[1:], msgspec.structs.replace(rows[0], outcome="failed")],
        [*rows[1:], msgspec.structs.replace(rows[0], digest="0" * 64)],
    ):
        choices = choose(study, broken)
        assert choices.values == {"plain": {}}
        assert choices.edges == {}


def test_a_run_that_diverged_loses_however_low_it_was(study: Study) -> None:
    rows = rows_of(study, rate)
    rows[0] = msgspec.structs.replace(rows[0], outcome="diverged", scores=())
    assert choose(study, rows).values["two"] == {"run.train.learning_rate": 2e-3}
    rows[2] = row_of(tuning_cells(study)[2], 0.001, None)
    assert choose(study, rows).values["two"] == {"run.train.learning_rate": 4e-3}


def test_where_all_diverged_the_first_combination_stands(study: Study) -> None:
    rows = [row_of(cell, outcome="diverged") for cell in tuning_cells(study)]
    assert choose(study, rows).values["two"] == {"run.train.learning_rate": 1e-3}


def test_a_best_value_at_the_edge_of_its_grid_is_told(study: Study) -> None:
    assert choose(study, rows_of(study, rate)).edges == {"two": ("run.train.learning_rate",)}
    assert choose(study, rows_of(study, lambda cell: -rate(cell))).edges == {"two": ("run.train.learning_rate",)}


def test_words_and_single_values_have_no_edge(tmp_path: Path) -> None:
    tune = 'tune."run.mixing.codec" = ["int4", "int8"]\ntune."run.train.clip_norm" = [1.0]\n'
    study = study_of(tmp_path, PLAIN, VARY, BASE, TWO, tune)
    assert choose(study, rows_of(study, lambda cell: 2.0)).edges == {"two": ()}


def test_all_tuned_values_are_chosen_together(tmp_path: Path) -> None:
    tune = RATES + 'tune."island.island.batch_size" = [4, 8]\n'
    study = study_of(tmp_path, PLAIN, VARY, BASE, TWO, tune)
    assert len(tuning_cells(study)) == 12
    best = {"run.train.learning_rate": 4e-3, "island.island.batch_size": 4}
    assert choose(study, rows_of(study, lambda cell: 2.0 - (cell.values == best))).values["two"] == best


def test_a_study_without_tuning_knows_all_its_runs_at_once(tmp_path: Path) -> None:
    study = study_of(tmp_path, PLAIN.replace("tuning_seeds = [1, 2]", ""), VARY, BASE, TWO, PLAIN_ARM)
    assert tuning_cells(study) == ()
    assert len(comparison_cells(study, choose(study, []).values)) == 8
