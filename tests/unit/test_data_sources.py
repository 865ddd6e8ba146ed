from __future__ import annotations

import os

import pytest

from isthmus.data.sources import (
    STANDARD_LIBRARY,
    Project,
    find_project,
    fingerprint,
    glob_files,
    project_files,
)
from isthmus.errors import DataError


def write(path, text="text\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_project_that_is_not_installed_is_named_with_the_way_to_install_it():
    with pytest.raises(DataError, match=r"no_such_project_here.*pip install no_such_project_here"):
        find_project("no_such_project_here")


def test_a_projects_files_come_by_name_without_vendored_directories_and_other_kinds(tmp_path):
    for name in ("b.py", "a/z.py", "a/data.txt", "_vendor/lib.py", "a/third_party/lib.py", "__init__.py"):
        write(tmp_path / name)
    files = project_files(Project("mine", "1", tmp_path))
    assert [file.name for file in files] == ["__init__.py", "a/z.py", "b.py"]


def test_the_standard_library_comes_without_installed_packages_tests_and_held_out_text(tmp_path):
    for name in ("os.py", "site-packages/x.py", "test/t.py", "unittest/test/t.py", "pydoc_data/topics.py"):
        write(tmp_path / name)
    files = project_files(Project(STANDARD_LIBRARY, "3", tmp_path))
    assert [file.name for file in files] == ["os.py"]


def test_a_project_installed_without_source_is_refused(tmp_path):
    with pytest.raises(DataError, match="without its source"):
        project_files(Project("mine", "1", tmp_path))


def test_globs_go_down_and_give_each_file_once_named_from_the_shared_directory(tmp_path):
    write(tmp_path / "a/one.txt")
    write(tmp_path / "a/b/two.md")
    files = glob_files([f"{tmp_path}/**/*.*", f"{tmp_path}/a/one.txt"])
    assert [file.name for file in files] == ["b/two.md", "one.txt"]


def test_a_glob_that_matches_nothing_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"no file matches.*nothing\*"):
        glob_files([f"{tmp_path}/nothing*.txt"])


def test_a_file_of_unknown_kind_is_refused(tmp_path):
    write(tmp_path / "weights.bin")
    with pytest.raises(DataError, match=r"unknown kind.*weights\.bin.*\.jsonl"):
        glob_files([f"{tmp_path}/*"])


def test_a_fingerprint_changes_with_a_files_size_and_time_and_with_nothing_else(tmp_path):
    path = write(tmp_path / "a.txt")
    os.utime(path, ns=(1, 1))
    before = fingerprint(glob_files([str(path)]))
    assert fingerprint(glob_files([str(path)])) == before
    os.utime(path, ns=(2, 2))
    later = fingerprint(glob_files([str(path)]))
    path.write_text("longer text\n")
    os.utime(path, ns=(2, 2))
    assert len({before, later, fingerprint(glob_files([str(path)]))}) == 3
