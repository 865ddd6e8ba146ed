from __future__ import annotations

import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from isthmus.data.documents import document
from isthmus.data.held_out import make_held_out
from isthmus.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer
from isthmus.errors import DataError


def save_tokenizer(path, *, lowercase=False, end_of_text=False):
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["th"] = 256
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    if end_of_text:
        tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return path


def test_bytes_are_their_own_ids():
    tokenizer = load_tokenizer(None)
    text = "naïve\n".encode()
    assert tokenizer.encode(text).tolist() == list(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert isinstance(tokenizer, ByteTokenizer)


def test_a_file_merges_bytes_and_gives_every_byte_back(tmp_path):
    tokenizer = load_tokenizer(save_tokenizer(tmp_path / "t.json"))
    text = "the path → 道\n".encode()
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text) - 2
    assert tokens.dtype == np.uint16
    assert tokenizer.decode(tokens) == text


def test_the_separator_is_the_files_end_of_text_or_one_id_more(tmp_path):
    with_end = FileTokenizer(save_tokenizer(tmp_path / "a.json", end_of_text=True))
    without = FileTokenizer(save_tokenizer(tmp_path / "b.json"))
    assert (with_end.separator, with_end.vocab_size) == (257, 258)
    assert (without.separator, without.vocab_size) == (257, 258)
    assert with_end.name != without.name


def test_bytes_of_a_held_out_set_are_those_of_utf8_whatever_the_tokenizer(tmp_path):
    tokenizer = FileTokenizer(save_tokenizer(tmp_path / "t.json"))
    held_out = make_held_out("notes", "", [document("p", "", "the thé".encode())])
    (ids,) = held_out.encode(tokenizer)
    assert held_out.num_bytes == 8
    assert len(ids) - 1 == 6
    assert ids[0] == tokenizer.separator


def test_a_tokenizer_that_loses_text_cannot_encode_a_held_out_set(tmp_path):
    lossy = FileTokenizer(save_tokenizer(tmp_path / "t.json", lowercase=True))
    assert len(make_held_out("notes", "", [document("p", "", b"lower")]).encode(lossy)) == 1
    with pytest.raises(DataError, match="loses text of 'notes'"):
        make_held_out("notes", "", [document("p", "", b"Upper")]).encode(lossy)


def test_a_missing_or_broken_file_is_refused_by_name(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    for name in ("absent.json", "broken.json"):
        with pytest.raises(DataError, match=rf"cannot be read.*{name}"):
            load_tokenizer(tmp_path / name)


def test_without_the_optional_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install 'isthmus\[tokenizers\]'"):
        load_tokenizer(tmp_path / "t.json")
