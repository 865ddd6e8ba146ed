from __future__ import annotations

import gzip
import sys

import pytest

from isthmus.data.documents import distinct, document, owner, read_files, read_project
from isthmus.data.sources import Project, glob_files, project_files
from isthmus.errors import DataError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

JSON_LINES = b'{"text": "one", "id": 7}\n\n{"text": "tw\xc3\xb6"}\n'


def texts(tmp_path):
    return [each.text for each in read_files(glob_files([f"{tmp_path}/*"]))]


@pytest.mark.parametrize("suffix", [".py", ".txt", ".md"])
def test_a_plain_file_is_one_document(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_text("hello\n")
    assert texts(tmp_path) == [b"hello\n"]


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".zst", zstd.compress)], ids=["plain", "gz", "zst"]
)
def test_every_line_of_json_lines_is_a_document_packed_or_not(tmp_path, suffix, pack):
    (tmp_path / f"a.jsonl{suffix}").write_bytes(pack(JSON_LINES))
    assert texts(tmp_path) == [b"one", "twö".encode()]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd.compress)])
def test_a_packed_text_file_is_unpacked(tmp_path, suffix, pack):
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(b"hello\n"))
    assert texts(tmp_path) == [b"hello\n"]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd.compress)])
def test_a_truncated_packed_file_is_refused_by_name(tmp_path, suffix, pack):
    (tmp_path / f"a.txt{suffix}").write_bytes(pack(bytes(range(1, 128)) * 50)[:-9])
    with pytest.raises(DataError, match=r"cannot be read.*a\.txt"):
        texts(tmp_path)


@pytest.mark.parametrize("line", [b"not json", b'{"body": "x"}', b'{"text": 3}', b'{"text": "cut'])
def test_a_line_that_is_no_document_is_refused_with_its_number(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(DataError, match=r"a\.jsonl:2: "):
        texts(tmp_path)


@pytest.mark.parametrize("content", [b"caf\xe9", b"nul\0nul"])
def test_a_users_file_that_is_not_text_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"not text.*a\.txt"):
        texts(tmp_path)


def test_blank_files_hold_no_document(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    assert texts(tmp_path) == []


def test_a_projects_near_empty_file_is_left_out_and_the_other_kept(tmp_path):
    (tmp_path / "__init__.py").write_text("from .a import *\n")
    (tmp_path / "a.py").write_text("value = compute(something)\n" * 20)
    read = list(read_project(project_files(Project("mine", "1", tmp_path))))
    assert [(each.project, each.name) for each in read] == [("mine", "a.py")]


def test_the_same_content_is_kept_once_and_excluded_content_never():
    documents = [document("p", name, text) for name, text in [("a", b"x"), ("b", b"y"), ("c", b"x"), ("d", b"z")]]
    kept = distinct(documents, frozenset({document("q", "other name", b"y").digest}))
    assert [each.name for each in kept] == ["a", "d"]


def test_shares_divide_contents_in_their_proportion_and_a_zero_share_gets_none():
    digests = [document("p", str(number), str(number).encode()).digest for number in range(4000)]
    counts = [0, 0, 0, 0]
    for digest in digests:
        counts[owner(digest, (3, 0, 1, 0))] += 1
    assert counts[1] == counts[3] == 0
    assert counts[0] == pytest.approx(3000, abs=120)


@pytest.mark.parametrize(("digest", "slot"), [(b"\0" * 32, 1), (b"\xff" * 32, 2)])
def test_the_ends_of_the_hash_range_fall_to_slots_that_have_a_share(digest, slot):
    assert owner(digest, (0.0, 0.1, 0.2, 0.0)) == slot
