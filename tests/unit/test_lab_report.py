from __future__ import annotations

import json
import math
import random

import msgspec
import pytest

from isthmus.clock import VirtualClock
from isthmus.lab.curves import difference_lines, score_curves
from isthmus.lab.findings import ArmInfo, StudyInfo, Tuning, find
from isthmus.lab.report import write_study_report
from isthmus.lab.standings import stand
from isthmus.lab.wording import interval_text, p_text, percent_text, settings_text, value_text
from pages import Page
from study_rows import KEY, LENGTHS, RATE, SETS, row, rows_by_seed, score, whole_info, whole_study

CLOCK = VirtualClock(1_750_000_000.0)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}|&amp;\"'"


def info(*arms: str, **changes) -> StudyInfo:
    fields = {"name": "small", "control": "standard", "margin": 0.005, "expected_runs": 0}
    return StudyInfo(**fields | {"arms": tuple(ArmInfo(name=arm) for arm in arms)} | changes)


def page_of(out_dir, study, rows) -> Page:
    return Page(write_study_report(out_dir, study, rows, CLOCK).read_text(encoding="utf-8"))


def warnings(study, rows) -> str:
    return "\n".join(find(study, rows).warnings)


def pair(first=(2.0, 2.1, 2.05), second=(2.02, 2.11, 2.08), **changes):
    return [*rows_by_seed("standard", first, **changes), *rows_by_seed("other", second, **changes)]


def test_a_whole_study_is_told_on_one_page(tmp_path):
    page = page_of(tmp_path, whole_info(), whole_study())
    page.assert_closed()
    told = ("complete", "training length", *SETS, "30 comparisons", "margin 0.5 %", "equivalent within 0.5 %", "worse",
            "better", "run.token_budget = 2,000,000", "lowest slot's own", "isthmus lab studies/training-length.toml",
            "tuned on seeds 100, 101")  # fmt: skip
    for words in told:
        assert words in page.text
    assert [each["name"] for each in page.data["sets"]] == list(SETS)
    for drawn in page.data["sets"]:
        assert len(drawn["curves"]) == 6
        assert drawn["case"] == "run.token_budget = 8,000,000"
        assert [line["values"] for line in drawn["differences"]["lines"]] == [list(LENGTHS)] * 5


def test_markdown_and_json_say_the_same_as_the_page(tmp_path):
    page = page_of(tmp_path, whole_info(), whole_study())
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    figures = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    entries = figures["standings"]["entries"]
    assert len(entries) == 2 * 3 * 8
    for entry in entries:
        mean = f"{entry['bits_per_byte']['mean']:.4f}"
        assert mean in page.text
        assert mean in text
        if entry["difference"] is not None:
            assert percent_text(entry["difference"]["mean"]) in page.text
            assert percent_text(entry["difference"]["mean"]) in text
    assert all(
        line.count("|") == 10 for line in text.splitlines() if line.startswith(("| pair", "| mesh")) and "±" in line
    )
    assert "    isthmus lab studies/training-length.toml" in text.splitlines()


def test_the_order_of_rows_does_not_change_a_report(tmp_path):
    rows = whole_study(seeds=range(2))
    for name, table in (("one", rows), ("other", random.Random(3).sample(rows, len(rows)))):
        page_of(tmp_path / name, whole_info(), table)
    for file in ("report.html", "report.md", "report.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()


def test_nothing_in_a_study_becomes_markup(tmp_path):
    def study(word):
        rows = [
            *rows_by_seed("standard", [2.0, 2.1]),
            *(row(word, seed, scores=(score(2.0, set_name=word),), case={word: word}) for seed in range(2)),
            row(word, 2, outcome="failed", detail=word, scores=()),
            row(word, 9, stage="tune", values={word: word}),
        ]
        tuned = (Tuning(grid={word: (word,)}, chosen={word: word}, at_edge=(word,), case={word: word}),)
        arms = (ArmInfo(name=word, note=word, tuned=tuned), ArmInfo(name="standard", values={word: word}))
        return info(name=word, arms=arms, note=word, commands=(word,)), rows

    harmless = page_of(tmp_path / "harmless", *study("plain"))
    page = page_of(tmp_path / "hostile", *study(HOSTILE))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in harmless.elements]
    assert not page.attribute("onerror")
    assert page.text.count(HOSTILE) >= 10
    for line in (tmp_path / "hostile" / "report.md").read_text(encoding="utf-8").splitlines():
        assert line.startswith("    ") or "<img" not in line.replace("\\<", "")


def test_an_unfinished_study_says_what_is_missing(tmp_path):
    rows = [each for each in whole_study() if each.arm != "adamw" and (each.seed < 3 or each.arm != "mesh 8")]
    page = page_of(tmp_path, whole_info(), rows)
    missing = len(whole_study()) - len(rows)
    assert f"{missing} of {len(whole_study())} runs missing" in page.text
    assert "3 of 5, 2 missing" in page.text
    assert "0 of 5, 5 missing" in page.text
    assert f"{missing} of {len(whole_study())} runs are missing" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_study_without_a_run_gives_a_page(tmp_path):
    page = page_of(tmp_path, info("standard", "other", expected_runs=4), [])
    assert "No run has been compared yet" in page.text
    assert "4 of 4 runs missing" in page.text
    assert page.data["sets"] == []


def test_a_study_that_has_only_tuned_yet_shows_its_tries(tmp_path):
    tries = [row("standard", 9, stage="tune", values={RATE: rate}, case={}) for rate in (0.1, 0.2)]
    page = page_of(tmp_path, info("standard"), tries)
    assert f"{RATE} = 0.1" in page.text
    assert "No run has been compared yet" in page.text


def test_a_diverged_run_is_marked_everywhere(tmp_path):
    rows = [*pair(), row("other", 3, outcome="diverged", scores=(), detail="the loss is not finite")]
    page = page_of(tmp_path, info("standard", "other"), rows)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for told in (page.text, text):
        assert "undecided (1 of 4 diverged)" in told
        assert "the loss is not finite" in told
        assert "1 of 7 comparing runs did not end" in told
    (line,) = [line for line in text.splitlines() if line.startswith("| other | 3 of 4, 1 diverged")]
    assert "| – | – | – | – | – | – | undecided" in line


def test_figures_are_never_not_a_number(tmp_path):
    rows = [
        *pair(),
        row("other", 3, math.nan),
        row("third", 0, 2.0),
        row("fourth", 0, outcome="failed", cpu_s=0.0, train_cpu_s=0.0),
    ]
    page = page_of(tmp_path, info("standard", "other"), rows)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    json.loads((tmp_path / "report.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert "nan" not in page.text.lower()
    assert "nan" not in text.lower()
    assert "undecided (one seed)" in text


def test_an_untuned_control_is_warned_of():
    assert "The control, standard, was not tuned" in warnings(info("standard", "other"), pair())
    assert "was not tuned" not in warnings(whole_info(), whole_study())


def test_a_chosen_value_at_the_edge_of_its_grid_is_warned_of(tmp_path):
    text = warnings(whole_info(), whole_study())
    assert f"adamw: the chosen {RATE} = 0.01 lies at the edge of its grid (0.001, 0.003, 0.01)" in text
    assert "standard: the chosen" not in text
    assert "at the edge" in page_of(tmp_path, whole_info(), whole_study()).text


def test_tuning_on_seeds_that_are_compared_is_warned_of():
    def tuned_on(seed):
        return warnings(info("standard", "other"), [*pair(), row("other", seed, stage="tune", values={RATE: 0.1})])

    assert "Seeds 1 served both" in tuned_on(1)
    assert "served both" not in tuned_on(100)


def test_a_finished_and_fair_study_warns_of_nothing():
    tuned = (Tuning(grid={RATE: (1, 2, 3)}, chosen={RATE: 2}),)
    study = info(arms=(ArmInfo(name="standard", tuned=tuned), ArmInfo(name="other")), expected_runs=6)
    assert warnings(study, pair()) == ""


def test_the_tuning_table_has_every_try_and_marks_the_chosen():
    trials = find(whole_info(), whole_study()).trials
    assert [(trial.arm, trial.values[RATE], trial.chosen) for trial in trials] == [
        ("standard", 0.001, False), ("standard", 0.003, True), ("standard", 0.01, False),
        ("adamw", 0.001, False), ("adamw", 0.003, False), ("adamw", 0.01, True),
    ]  # fmt: skip
    assert all(trial.runs.done == 2 and set(trial.scores) == set(SETS) for trial in trials)
    assert trials[1].scores[SETS[0]].mean == pytest.approx(2.2)


def test_a_try_that_diverged_once_has_no_mean():
    tries = [
        row("standard", seed, value, stage="tune", values={RATE: rate})
        for rate, values in ((0.1, (2.0, 2.1)), (9.0, (1.9, None)))
        for seed, value in enumerate(values)
    ]
    calm, wild = find(info("standard"), tries).trials
    assert calm.scores[SETS[0]].mean == pytest.approx(2.05)
    assert wild.scores[SETS[0]].mean is None
    assert (wild.runs.done, wild.runs.diverged) == (1, 1)


def test_values_tuned_by_case_are_chosen_in_their_case_only():
    tuned = tuple(
        Tuning(grid={RATE: (1, 2)}, chosen={RATE: rate}, case={KEY: length}) for length, rate in ((10, 1), (20, 2))
    )
    tries = [
        row("standard", 9, stage="tune", values={RATE: rate}, case={KEY: length})
        for length in (10, 20)
        for rate in (1, 2)
    ]
    trials = find(info(arms=(ArmInfo(name="standard", tuned=tuned),)), tries).trials
    assert [(trial.case[KEY], trial.values[RATE]) for trial in trials if trial.chosen] == [(10, 1), (20, 2)]


def test_costs_are_of_a_run_and_of_those_that_ended():
    rows = [
        row("standard", 0, cpu_s=100.0, train_cpu_s=90.0, sent_bytes=10, meetings=8, late=1),
        row("standard", 1, cpu_s=300.0, train_cpu_s=290.0, sent_bytes=30, meetings=8, late=3),
        row("standard", 2, outcome="failed", cpu_s=9999.0),
        row("other", 0),
    ]
    cost, alone = find(info("standard", "other"), rows).costs
    assert (cost.runs, cost.cpu_s, cost.sent_bytes, cost.meetings) == (2, 200.0, 20.0, 8.0)
    assert cost.train_share == pytest.approx(0.95)
    assert cost.late_share == pytest.approx(0.25)
    assert alone.late_share is None


def curves_of(rows):
    return score_curves(rows, stand(rows, arms=["standard"], control="standard", margin=0.005))


def scored_at(seed, points, **changes):
    last = max(tokens for tokens, _ in points)
    scores = [score(value, tokens=tokens, final=tokens == last) for tokens, value in points]
    return row("standard", seed, scores=tuple(scores), tokens=last, **changes)


def test_a_curve_is_the_mean_over_seeds_with_its_error():
    ((line,),) = [
        each.curves for each in curves_of([scored_at(0, [(10, 4.0), (20, 2.0)]), scored_at(1, [(10, 5.0), (20, 3.0)])])
    ]
    assert (line.tokens, line.mean) == ([10, 20], [4.5, 2.5])
    assert line.standard_error == [0.5, 0.5]


def test_runs_scored_at_different_tokens_are_read_off_between_their_scores():
    rows = [scored_at(0, [(10, 4.0), (20, 3.0), (30, 2.0)]), scored_at(1, [(12, 3.8), (22, 2.8), (32, 1.8)])]
    ((line,),) = [each.curves for each in curves_of(rows)]
    assert line.tokens == [12, 20, 30]
    assert line.mean == pytest.approx([3.8, 3.0, 2.0])
    assert line.standard_error == pytest.approx([0, 0, 0])


def test_curves_are_of_the_longest_case_and_say_over_how_many_seeds():
    rows = [scored_at(0, [(5, 9.0), (10, 8.0)], case={KEY: 10})]
    rows += [scored_at(seed, [(5, 9.0), (100, 2.0)], case={KEY: 100}) for seed in range(2)]
    rows.append(scored_at(2, [(5, 9.0), (100, None)], case={KEY: 100}, outcome="diverged"))
    (found,) = curves_of(rows)
    assert found.case == {KEY: 100}
    assert [(curve.seeds, curve.runs) for curve in found.curves] == [(2, 3)]


def lines_of(*cases):
    rows = [each for case in cases for each in pair(case=case)]
    return difference_lines(stand(rows, arms=[], control="standard", margin=0.005))


def test_differences_are_drawn_over_one_numeric_key_only():
    ((line,),) = [each.lines for each in lines_of({KEY: 20}, {KEY: 10})]
    assert (line.arm, line.values) == ("other", [10, 20])
    assert all(low < mean < high for low, mean, high in zip(line.low, line.mean, line.high, strict=True))
    assert lines_of({KEY: 10}) == []
    assert lines_of({KEY: "int4"}, {KEY: "int8"}) == []
    assert lines_of({KEY: True}, {KEY: False}) == []
    assert lines_of({KEY: 10, "a": 1}, {KEY: 20, "a": 2}) == []


def test_numbers_are_told_with_the_digits_they_deserve():
    assert [percent_text(share) for share in (0.00314, -0.0120, -0.00001, None)] == [
        "+0.31 %",
        "−1.20 %",
        "0.00 %",
        "–",
    ]
    assert interval_text(-0.012, 0.0031) == "−1.20 to +0.31 %"
    assert [p_text(p) for p in (0.0002, 0.0123, 0.34, None)] == ["<0.001", "0.012", "0.34", "–"]
    assert [value_text(value) for value in (True, 8, 2_000_000, 0.0003, "int4")] == [
        "true",
        "8",
        "2,000,000",
        "0.0003",
        "int4",
    ]
    assert settings_text({"b": 2, "a": 1}) == "a = 1, b = 2"


def test_a_report_replaces_the_one_before_it(tmp_path):
    page_of(tmp_path, info("standard", "other"), pair()[:3])
    page_of(tmp_path, info("standard", "other"), pair())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]
    entries = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["standings"]["entries"]
    assert [entry["arm"] for entry in entries] == ["standard", "other"]


def test_a_study_info_does_not_change():
    with pytest.raises(AttributeError):
        info("standard").name = "another"
    assert msgspec.json.decode(msgspec.json.encode(whole_info()), type=StudyInfo) == whole_info()
