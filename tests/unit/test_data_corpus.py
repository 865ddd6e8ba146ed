from __future__ import annotations

import shutil
from itertools import chain

import pytest
import torch

from isthmus.data import (
    DEFAULT_HELD_OUT,
    PYTHON_CODE,
    TECHNICAL_ENGLISH,
    HeldOutSpec,
    TrainSpec,
    describe,
    open_held_out,
    open_part,
    open_train,
    part_documents,
)
from isthmus.data.held_out_sources import held_out_digests
from isthmus.errors import DataError


@pytest.fixture
def tree(tmp_path):
    for number in range(40):
        folder = tmp_path / "texts" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.txt").write_text(f"text number {number}, and some more words of it all\n" * 3)
    return tmp_path


def spec(tree, slot=0, **changed):
    options = {"seed": 1, "sequence_length": 16, "batch_size": 4, "held_out": (), **changed}
    return TrainSpec(slot=slot, globs=(f"{tree}/texts/**/*.txt",), **options)


def texts(*args, **changed):
    return [each.text for each in part_documents(spec(*args, **changed))]


def test_every_text_belongs_to_exactly_one_island(tree):
    parts = [texts(tree, slot, shares=(2, 1, 1)) for slot in range(3)]
    assert all(parts)
    assert sorted(chain.from_iterable(parts)) == sorted(texts(tree))
    assert len(texts(tree)) == 40


def test_a_copy_of_a_file_is_nobodys_second_text(tree):
    shutil.copy(tree / "texts/0/0.txt", tree / "texts/2/copy.txt")
    assert len(texts(tree)) == 40


def test_held_out_files_are_never_trained_on_under_any_name(tree):
    kept_out = tree / "held" / "renamed.md"
    kept_out.parent.mkdir()
    shutil.copy(tree / "texts/1/7.txt", kept_out)
    left = texts(tree, held_out=(HeldOutSpec("notes", (str(kept_out),)),))
    assert len(left) == 39
    assert kept_out.read_bytes() not in left


def test_a_moved_copy_gives_the_same_part_and_manifest(tree, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(tree / "texts", moved / "texts")
    first, second = spec(tree, shares=(1, 1)), spec(moved, shares=(1, 1))
    assert open_part(first).summary == open_part(second).summary
    assert describe(first, {}) == describe(second, {})


def test_the_stream_is_the_same_with_and_without_a_cache(tree):
    plain = open_train(spec(tree))
    written = open_train(spec(tree, cache_dir=tree / "cache"))
    mapped = open_train(spec(tree, cache_dir=tree / "cache"))
    batch = plain.next_batch()
    assert torch.equal(batch, written.next_batch())
    assert torch.equal(batch, mapped.next_batch())
    assert plain.state_dict() == mapped.state_dict()


def test_each_part_has_a_cache_of_its_own(tree):
    options = {"shares": (1, 1), "cache_dir": tree / "cache"}
    sizes = [open_train(spec(tree, slot, **options)).num_tokens for slot in (0, 1, 0)]
    assert sizes[0] == sizes[2]
    assert sizes[0] + sizes[1] == open_train(spec(tree, cache_dir=tree / "cache")).num_tokens


def test_a_changed_file_is_read_anew_despite_the_cache(tree):
    before = open_train(spec(tree, cache_dir=tree / "cache"))
    (tree / "texts/0/0.txt").write_text("rewritten\n")
    assert open_train(spec(tree, cache_dir=tree / "cache")).part != before.part


def test_a_manifest_names_what_was_trained_and_measured_on_and_is_kept_in_the_cache(tree):
    line = "text number 5, and some more words of it all"
    (tree / "notes.md").write_text(f"    {line}\nshort\n{'z' * len(line)}\n")
    held_out = (HeldOutSpec("notes", (f"{tree}/notes.md",)),)
    asked = spec(tree, held_out=held_out, cache_dir=tree / "cache")
    manifest = describe(asked, open_held_out(held_out))
    assert len(list((tree / "cache").glob("*.json"))) == 1
    assert describe(asked, open_held_out(held_out)) == manifest
    (source,) = manifest.sources
    (entry,) = manifest.held_out
    assert (source.documents, source.num_bytes) == (40, sum(map(len, texts(tree))))
    assert (entry.name, entry.documents, entry.overlap) == ("notes", 1, 0.5)
    assert manifest.tokenizer == "bytes"
    assert len(manifest.digest) == 12


def test_the_manifest_changes_with_train_text_held_out_text_and_tokenizer_not_with_the_slot(tree):
    (tree / "notes.md").write_text("notes\n")
    held_out = (HeldOutSpec("notes", (f"{tree}/notes.md",)),)
    sets = open_held_out(held_out)
    base = describe(spec(tree, shares=(1, 1)), sets)
    assert describe(spec(tree, slot=1, shares=(1, 1)), sets).digest == base.digest
    assert describe(spec(tree), {}).digest != base.digest
    (tree / "texts/0/0.txt").write_text("rewritten\n")
    changed = describe(spec(tree), sets)
    assert changed.train != base.train
    assert changed.digest != base.digest


@pytest.mark.parametrize(("slot", "shares"), [(2, (1, 1)), (0, (0, 1)), (0, (1, -1)), (-1, (1, 1))])
def test_shares_that_do_not_fit_the_slot_are_refused(tree, slot, shares):
    with pytest.raises(DataError, match="do not fit this island"):
        open_train(spec(tree, slot, shares=shares))


def test_an_unknown_domain_is_refused_with_the_known_ones(tree):
    with pytest.raises(DataError, match=r"got pandas; wanted some of torch, sympy, numpy, stdlib"):
        open_train(spec(tree, domains=("torch", "pandas")))


@pytest.mark.slow
def test_the_default_text_is_cut_without_overlap_and_held_out_text_is_not_in_it(tmp_path):
    def default(slot, **options):
        return TrainSpec(slot=slot, seed=1, sequence_length=128, batch_size=2, **options)

    parts = [list(part_documents(default(slot, shares=(3, 1)))) for slot in (0, 1)]
    digests = [{each.digest for each in part} for part in parts]
    assert all(len(part) == len(held) for part, held in zip(parts, digests, strict=True))
    assert not digests[0] & digests[1]
    assert not (digests[0] | digests[1]) & held_out_digests(DEFAULT_HELD_OUT)
    names = {(each.project, each.name) for part in parts for each in part}
    assert {project for project, _ in names} == {"torch", "sympy", "numpy", "stdlib"}
    assert not any(name.startswith(("pydoc_data", "test/", "_vendor")) for _, name in names)

    sets = open_held_out(DEFAULT_HELD_OUT, cache_dir=tmp_path)
    assert open_held_out(DEFAULT_HELD_OUT, cache_dir=tmp_path) == sets
    manifests = [describe(default(slot, shares=(3, 1), cache_dir=tmp_path), sets) for slot in (0, 1)]
    assert manifests[0] == manifests[1]
    assert sum(source.documents for source in manifests[0].sources) == len(names)
    assert {entry.name for entry in manifests[0].held_out} == {PYTHON_CODE, TECHNICAL_ENGLISH}
    assert all(entry.overlap < 0.02 and entry.num_bytes > 500_000 for entry in manifests[0].held_out)
