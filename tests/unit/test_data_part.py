from __future__ import annotations

import threading

import numpy as np
import pytest

from isthmus.data.documents import document
from isthmus.data.part import build_part, cached_part
from isthmus.data.tokenizer import ByteTokenizer
from isthmus.errors import DataError

DOCUMENTS = [document("p", "a", b"first"), document("p", "b", b"second")]


def never():
    raise AssertionError("the cache should have been used")


def test_each_document_is_followed_by_the_separator():
    part = build_part(DOCUMENTS, ByteTokenizer())
    assert part.tokens.tobytes() == b"first\0second\0"
    assert (part.summary.documents, part.summary.num_bytes, part.summary.num_tokens) == (2, 11, 13)


def test_the_digest_depends_on_the_documents_and_their_order():
    digests = {build_part(each, ByteTokenizer()).summary.digest for each in (DOCUMENTS, DOCUMENTS[::-1], DOCUMENTS[:1])}
    assert len(digests) == 3


def test_no_document_at_all_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(DataError, match="no text for this island"):
        cached_part(tmp_path, "key", lambda: [], ByteTokenizer())
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_once_is_mapped_and_not_read_again(tmp_path):
    first = cached_part(tmp_path, "key", lambda: DOCUMENTS, ByteTokenizer())
    again = cached_part(tmp_path, "key", never, ByteTokenizer())
    assert again.summary == first.summary == build_part(DOCUMENTS, ByteTokenizer()).summary
    assert isinstance(again.tokens, np.memmap)
    assert again.tokens.tobytes() == b"first\0second\0"


@pytest.mark.parametrize(("name", "content"), [("key.json", b"{"), ("key.bin", b"fir"), ("key.json", b'{"a": 1}')])
def test_a_damaged_cache_is_written_anew(tmp_path, name, content):
    cached_part(tmp_path, "key", lambda: DOCUMENTS, ByteTokenizer())
    (tmp_path / name).write_bytes(content)
    again = cached_part(tmp_path, "key", lambda: DOCUMENTS, ByteTokenizer())
    assert again.tokens.tobytes() == b"first\0second\0"
    cached_part(tmp_path, "key", never, ByteTokenizer())


def test_a_writer_that_dies_midway_leaves_nothing_behind(tmp_path):
    def dying():
        yield DOCUMENTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_part(tmp_path, "key", dying, ByteTokenizer())
    assert list(tmp_path.iterdir()) == []


def test_writers_that_start_at_once_all_get_the_whole_part(tmp_path):
    barrier = threading.Barrier(4)
    results = []

    def documents():
        barrier.wait(timeout=30)  # all four are writing before any has finished
        yield from DOCUMENTS

    def run():
        results.append(cached_part(tmp_path, "key", documents, ByteTokenizer()).tokens.tobytes())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"first\0second\0"] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.bin", "key.json"]


def test_a_cache_that_cannot_be_written_is_refused_with_its_path(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cache cannot be written.*file"):
        cached_part(tmp_path / "file", "key", lambda: DOCUMENTS, ByteTokenizer())
