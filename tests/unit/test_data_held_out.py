from __future__ import annotations

import lzma
import sys

import pytest

from isthmus.data.documents import document
from isthmus.data.held_out import make_held_out, overlaps
from isthmus.data.held_out_sources import TECHNICAL_ENGLISH, HeldOutSpec, held_out_digests, open_held_out
from isthmus.data.tokenizer import ByteTokenizer
from isthmus.errors import DataError


def held_out(*texts, **options):
    return make_held_out("notes", "tests", [document("p", str(n), text) for n, text in enumerate(texts)], **options)


TEXTS = [bytes([65 + number]) * (10 + number) for number in range(20)]


def test_documents_come_in_the_order_of_their_hashes_whatever_order_they_were_found_in():
    assert held_out(*TEXTS) == held_out(*reversed(TEXTS))
    assert held_out(*TEXTS).documents != tuple(TEXTS)


def test_the_same_text_counts_once():
    assert held_out(b"one", b"one", b"two").num_bytes == 6


def test_a_limit_keeps_whole_documents_and_stays_within_it():
    few = held_out(*TEXTS, max_bytes=100)
    assert 70 < few.num_bytes <= 100
    assert set(few.documents) < set(TEXTS)
    assert few == held_out(*reversed(TEXTS), max_bytes=100)
    assert few.digest != held_out(*TEXTS).digest


def test_an_empty_set_is_refused_by_name():
    with pytest.raises(DataError, match="'notes' is empty"):
        held_out()
    with pytest.raises(DataError, match=r"'notes' is empty.*within 2 bytes"):
        held_out(b"long", max_bytes=2)


def test_documents_are_encoded_after_one_separator():
    (ids,) = held_out(b"ab").encode(ByteTokenizer())
    assert ids.tolist() == [0, 97, 98]


def test_the_yardstick_is_xz_6_over_all_documents():
    texts = held_out(b"hello " * 50, b"world " * 70)
    packed = lzma.compress(b"".join(texts.documents), preset=6)
    assert texts.xz_bits_per_byte() == 8 * len(packed) / 720


def test_overlap_is_the_share_of_bytes_in_long_lines_that_train_has_too():
    shared, own = b"a" * 40, b"b" * 120
    texts = held_out(b"    " + shared + b"\nshort\n" + own + b"\n")
    assert texts.overlap([b"x\n\t" + shared + b"  \n", b"short\n"]) == 40 / 160
    assert texts.overlap([b"short\n" + own[:-1]]) == 0
    assert held_out(b"short\n").overlap([b"short\n"]) == 0


def test_several_sets_are_measured_in_one_pass():
    train = iter([b"a" * 50, b"b" * 50])
    first = make_held_out("first", "", [document("p", "", b"a" * 50)])
    second = make_held_out("second", "", [document("p", "", b"c" * 50)])
    assert overlaps([first, second], train) == {"first": 1.0, "second": 0.0}


def test_own_files_make_a_set_of_their_own_name(tmp_path):
    (tmp_path / "a.md").write_text("# Title\n")
    (tmp_path / "b.jsonl").write_text('{"text": "line"}\n')
    spec = HeldOutSpec("manual", (f"{tmp_path}/*",))
    opened = open_held_out([spec])["manual"]
    assert sorted(opened.documents) == [b"# Title\n", b"line"]
    assert held_out_digests([spec]) == {document("", "", text).digest for text in opened.documents}


def test_an_unknown_name_without_files_is_refused_with_the_known_ones():
    with pytest.raises(DataError, match=r"'poetry'.*'python code', 'technical english'"):
        open_held_out([HeldOutSpec("poetry")])


def test_without_pythons_reference_text_the_error_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(DataError, match=r"pydoc_data\.topics.*not installed"):
        open_held_out([HeldOutSpec(TECHNICAL_ENGLISH)])
