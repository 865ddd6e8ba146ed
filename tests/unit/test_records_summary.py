from __future__ import annotations

import json
import math

import pytest

from isthmus.errors import DataError
from isthmus.observe import summarise, write_summary
from isthmus.observe.records import Evaluation, Finished, LinkRate, Meeting, Published
from synthetic_run import BATCH_TOKENS, PARAMETERS, H, Island, P, joint_islands, standard_island, write_run


def ordered(island: Island):
    return sorted(island.records, key=lambda record: record.wall_s)


def summary_of(*islands: Island, standard: Island | None = None):
    baseline = {standard.name: ordered(standard)} if standard else None
    return summarise({island.name: ordered(island) for island in islands}, baseline)


def test_a_whole_run_is_summed_up(tmp_path):
    found = json.loads(write_summary(write_run(tmp_path)).read_text())
    assert found["run"] == "7f3a91c2d4e5"
    assert found["complete"]
    assert found["tokens"] == found["token_budget"]
    assert found["manifest_digests"] == ["c0ffee1234567890"]
    east = found["islands"]["us-east"]
    assert east["steps"] == 40 * H
    assert east["rounds"] == 40
    assert east["tokens"] == 40 * H * BATCH_TOKENS["us-east"]
    assert east["versions"] == {"isthmus": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}
    assert 0 < east["blocked_seconds"] < east["sync_seconds"] < east["training_seconds"]
    assert 0 < east["link"]["mean_sent_bytes_per_second"] < east["link"]["peak_sent_bytes_per_second"]
    assert set(found["standard"]) == {"standard"}


def test_scores_are_compared_with_the_baseline():
    found = summary_of(*joint_islands(), standard=standard_island())["bits_per_byte"]
    assert set(found) == {"python code", "technical english"}
    code = found["python code"]
    joint, standard, ratio = code["joint"], code["standard"], code["ratio"]
    assert ratio["value"] == joint["bits_per_byte"] / standard["bits_per_byte"]
    relative = math.hypot(0.006 / joint["bits_per_byte"], 0.006 / standard["bits_per_byte"])
    assert ratio["standard_error"] == pytest.approx(ratio["value"] * relative)
    assert ratio["same_bytes"]
    assert code["xz_bits_per_byte"] == 1.29


def test_without_a_baseline_or_evaluations_the_summary_says_so():
    islands = joint_islands(4, restart=False)
    assert summary_of(*islands)["bits_per_byte"]["python code"]["ratio"] is None
    for island in islands:
        island.records = [r for r in island.records if not isinstance(r, Evaluation)]
    assert summary_of(*islands)["bits_per_byte"] == {}


def test_a_restart_spends_time_and_bytes_but_counts_tokens_once():
    east, asia = joint_islands()
    found = summary_of(east, asia)["islands"]["asia"]
    assert found["restarts"] == 1
    assert found["tokens"] == asia.steps * BATCH_TOKENS["asia"]
    assert found["lost_tokens"] == 10 * BATCH_TOKENS["asia"]
    assert found["trained_tokens"] == found["tokens"] + found["lost_tokens"]
    assert found["link"]["mean_sent_bytes_per_second"] < found["link"]["peak_sent_bytes_per_second"]


def test_a_meeting_counts_once_per_run_and_once_per_end_even_if_told_again():
    east, asia = joint_islands(6, restart=False)
    before = summary_of(east, asia)
    meeting = next(r for r in east.records if isinstance(r, Meeting))
    east.records.append(meeting)
    assert summary_of(east, asia)["meetings"] == before["meetings"]
    ends = {(m.fragment, m.version) for i in (east, asia) for m in i.records if isinstance(m, Meeting)}
    assert before["meetings"]["completed"] == len(ends)


def test_a_publication_is_open_until_its_answer_comes():
    east, _ = joint_islands(3, restart=False)
    meetings = [r for r in east.records if isinstance(r, Meeting)]
    last = max(meetings, key=lambda m: m.publication)
    open_before = summary_of(east)["islands"]["us-east"]["meetings"]["open"]
    east.records.remove(last)
    assert summary_of(east)["islands"]["us-east"]["meetings"]["open"] == open_before + 1


def test_an_answer_that_is_sent_after_its_meeting_is_not_open():
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    island.exchange(1.0, 3, 1)
    meeting = next(r for r in island.records if isinstance(r, Meeting))
    late = next(r for r in island.records if isinstance(r, Published))
    island.records.remove(late)
    found = summarise({"us-east": [*ordered(island), late]})["islands"]["us-east"]["meetings"]
    assert meeting.publication == late.publication
    assert found == {"completed": 1, "late": int(meeting.late), "open": 0}


def test_bytes_per_parameter_and_round_leave_out_the_final_meetings():
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    stamp = island.at(1.0, 1)
    parameters = PARAMETERS // P
    shared = {"fragment": 0, "peer": "asia", "epoch": 0, "version": 0, "seconds": 1.0, "num_parameters": parameters}
    island.records += [
        Published(**stamp, **shared, publication=1, codec="int4", payload_bytes=70, wire_bytes=parameters // 2),
        Published(**stamp, **shared, publication=2, codec="fp32", payload_bytes=70, wire_bytes=999, final=True),
        LinkRate(**stamp, window_s=0.1, at_s=(0.5,), sent_bytes=(parameters // 2 + 999,), received_bytes=(0,)),
    ]
    found = summary_of(island)["islands"]["us-east"]
    assert found["bytes_per_parameter_and_round"] == 0.5
    assert found["final_wire_bytes"] == 999


def test_the_peak_is_that_of_one_window_and_the_mean_counts_silence():
    island = Island("us-east", "asia", 1, 0)
    island.start(0.0, 0)
    island.records.append(
        LinkRate(**island.at(2.0, 1), window_s=0.1, at_s=(0.0, 0.9), sent_bytes=(10, 40), received_bytes=(0, 5))
    )
    link = summary_of(island)["islands"]["us-east"]["link"]
    assert link["peak_sent_bytes_per_second"] == 400.0
    assert link["mean_sent_bytes_per_second"] == pytest.approx(50.0)


def test_a_killed_run_is_not_complete():
    east, asia = joint_islands(4, restart=False)
    asia.records = [r for r in asia.records if not isinstance(r, Finished)]
    found = summary_of(east, asia)
    assert not found["complete"]
    assert found["islands"]["asia"]["state"] == "finishing"


def test_an_island_without_a_single_record_does_not_upset_the_summary(tmp_path):
    write_run(tmp_path, 2, restart=False, baseline=False)
    (tmp_path / "islands" / "late").mkdir()
    (tmp_path / "islands" / "late" / "records.jsonl").write_text("")
    found = json.loads(write_summary(tmp_path).read_text())
    assert found["islands"]["late"]["state"] == "not started"
    assert not found["complete"]


@pytest.mark.parametrize("make", [False, True])
def test_a_directory_without_records_is_refused(tmp_path, make):
    run_dir = tmp_path / "run"
    if make:
        (run_dir / "islands" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="no records in"):
        write_summary(run_dir)
