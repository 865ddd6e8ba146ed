from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from isthmus.config.faults import Fault, FaultEvent, FaultScript, read_faults
from isthmus.config.problems import Problem

EXAMPLE = Path(__file__).parents[2] / "examples" / "faults.toml"


def script_of(*faults: dict[str, object]) -> FaultScript:
    return FaultScript.model_validate({"fault": faults})


def mistakes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "faults.toml"
    path.write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    assert read_faults(path, problems) is None
    return [str(problem).removeprefix(f"{path}: ") for problem in problems]


def fault(**keys: object) -> str:
    values = {key: f'"{value}"' if isinstance(value, str) else value for key, value in keys.items()}
    return "[[fault]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())


def test_events_come_in_time_whatever_their_order_in_the_file() -> None:
    script = script_of(
        {"at_s": 90, "kind": "restart", "island": "b"},
        {"at_s": 10.5, "kind": "cut", "between": ("b", "a"), "for_s": 20},
        {"at_s": 20, "kind": "crash", "island": "b"},
    )
    assert script.events() == (
        (10.5, "cut", ("a", "b")),
        (20.0, "crash", ("b",)),
        (30.5, "heal", ("a", "b")),
        (90.0, "restart", ("b",)),
    )


def test_what_ends_by_itself_comes_before_what_begins_at_that_instant() -> None:
    script = script_of(
        {"at_s": 30, "kind": "hang", "island": "a", "for_s": 5},
        {"at_s": 10, "kind": "hang", "island": "a", "for_s": 20},
    )
    assert [event.kind for event in script.events()] == ["hang", "resume", "hang", "resume"]


def test_faults_of_one_instant_happen_in_the_order_of_the_file() -> None:
    script = script_of(
        {"at_s": 10, "kind": "crash", "island": "b"},
        {"at_s": 10, "kind": "restart", "island": "b"},
    )
    assert [event.kind for event in script.events()] == ["crash", "restart"]


def test_a_crash_ends_a_hang_and_a_fault_may_last_for_good() -> None:
    script = script_of(
        {"at_s": 10, "kind": "hang", "island": "a"},
        {"at_s": 20, "kind": "crash", "island": "a"},
        {"at_s": 30, "kind": "cut", "between": ("a", "c")},
    )
    assert script.events()[-1] == FaultEvent(30.0, "cut", ("a", "c"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kind": "crash"}, "fault[0].island: got none; wanted an island, for a crash"),
        ({"kind": "cut", "island": "a"}, "fault[0].between: got none; wanted two islands, for a cut"),
        (
            {"kind": "hang", "island": "a", "between": ["a", "b"]},
            "fault[0].between: got ['a', 'b']; wanted none, for a hang",
        ),
        ({"kind": "cut", "between": ["a", "a"]}, "fault[0].between: got ['a', 'a']; wanted two different islands"),
        ({"kind": "heal", "between": ["a", "b"], "for_s": 3}, "fault[0].for_s: got 3; wanted none: a heal has no end"),
        ({"kind": "crash", "island": "a", "for_s": 0}, "fault[0].for_s: got 0; wanted greater than 0"),
        ({"kind": "crash", "island": "a", "fors": 1}, "fault[0].fors: the key is unknown. Did you mean for_s?"),
        (
            {"kind": "crash", "island": "No Name"},
            "fault[0].island: got 'No Name'; wanted text that matches ^[a-z0-9-]{1,32}$",
        ),
    ],
)
def test_a_fault_that_says_too_little_or_too_much_is_refused(
    tmp_path: Path, keys: dict[str, object], told: str
) -> None:
    assert told in mistakes(tmp_path, fault(at_s=5, **keys))


def test_an_unknown_kind_is_refused_with_those_there_are(tmp_path: Path) -> None:
    (told,) = mistakes(tmp_path, fault(at_s=5, kind="crush", island="a"))
    assert told.startswith("fault[0].kind: got 'crush'; wanted 'crash', 'restart'")


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        (
            [{"at_s": 5, "kind": "heal", "between": ["a", "b"]}],
            "fault[0].kind: got heal at 5 s, when a - b is whole; wanted it cut",
        ),
        (
            [{"at_s": 5, "kind": "restart", "island": "a"}],
            "fault[0].kind: got restart at 5 s, when a is running; wanted it down",
        ),
        (
            [{"at_s": 5, "kind": "crash", "island": "a"}, {"at_s": 9, "kind": "hang", "island": "a"}],
            "fault[1].kind: got hang at 9 s, when a is down; wanted it running",
        ),
        (
            [
                {"at_s": 5, "kind": "cut", "between": ["a", "b"], "for_s": 10},
                {"at_s": 9, "kind": "heal", "between": ["b", "a"]},
            ],
            "fault[0].for_s: got heal at 15 s, when a - b is whole; wanted it cut",
        ),
        (
            [
                {"at_s": 5, "kind": "hang", "island": "a", "for_s": 10},
                {"at_s": 9, "kind": "crash", "island": "a"},
            ],
            "fault[0].for_s: got resume at 15 s, when a is down; wanted it hanging",
        ),
    ],
)
def test_faults_that_contradict_each_other_are_refused(
    tmp_path: Path, faults: list[dict[str, object]], told: str
) -> None:
    assert mistakes(tmp_path, "".join(fault(**each) for each in faults)) == [told]


def test_all_contradictions_are_told_at_once(tmp_path: Path) -> None:
    text = fault(at_s=1, kind="resume", island="a") + fault(at_s=2, kind="heal", between=["a", "b"])
    assert len(mistakes(tmp_path, text)) == 2


def test_islands_that_the_run_has_not_are_told_with_the_nearest_name() -> None:
    script = script_of(
        {"at_s": 1, "kind": "crash", "island": "asai"},
        {"at_s": 2, "kind": "cut", "between": ("asia", "europe")},
    )
    path = Path("faults.toml")
    assert [str(problem) for problem in script.unknown_islands(path, ["asia", "us-east"])] == [
        "faults.toml: fault[0].island: the run has no island 'asai'. Did you mean asia?",
        "faults.toml: fault[1].between: the run has no island 'europe'. Known: asia, us-east.",
    ]


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    problems: list[Problem] = []
    assert read_faults(tmp_path / "none.toml", problems, mend="An arm names it.") is None
    assert [problem.what for problem in problems] == ["the file is missing"]
    assert problems[0].mend == "An arm names it."


def test_no_faults_are_a_script_too() -> None:
    assert FaultScript().events() == ()


def test_the_example_is_right_and_has_every_kind_at_least_as_an_end() -> None:
    problems: list[Problem] = []
    script = read_faults(EXAMPLE, problems)
    assert problems == []
    assert script is not None
    assert {event.kind for event in script.events()} == {"crash", "restart", "hang", "resume", "cut", "heal"}
    assert script.unknown_islands(EXAMPLE, ["a", "b"]) == []


def test_every_key_says_what_it_means() -> None:
    assert all(field.description for model in (Fault, FaultScript) for field in model.model_fields.values())


def test_a_script_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        FaultScript().fault = ()  # type: ignore[misc]
