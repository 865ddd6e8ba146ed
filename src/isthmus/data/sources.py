"""Where text comes from: installed projects found through the running interpreter, or globs of files."""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isthmus.data.rules import is_foreign
from isthmus.errors import DataError

STANDARD_LIBRARY = "stdlib"
TRAIN_PROJECTS = ("torch", "sympy", "numpy", STANDARD_LIBRARY)
"""The default train corpus; text that stands in several of these belongs to the first."""

SUFFIXES = tuple(f"{suffix}{packing}" for suffix in (".py", ".txt", ".md", ".jsonl") for packing in ("", ".gz", ".zst"))

_SKIPPED_IN_STANDARD_LIBRARY = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"}
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a corpus: its project (``files`` for a user's own), its name there, and its state on disk."""

    project: str
    name: str
    path: Path
    num_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Project:
    """An installed project: the directory of its source, and its version."""

    name: str
    version: str
    root: Path


def find_project(name: str) -> Project:
    """The installed project ``name``; the standard library is called ``stdlib``.

    Raises:
        DataError: It is not installed.
    """
    if name == STANDARD_LIBRARY:
        return Project(name, platform.python_version(), Path(sysconfig.get_path("stdlib")))
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"the source of {name} is part of the default text and is not installed",
            mend=f"Run: pip install {name} (or name your own files instead).",
        )
    return Project(name, importlib.metadata.version(name), Path(next(iter(spec.submodule_search_locations))))


def project_files(project: Project) -> list[SourceFile]:
    """The .py files of a project by name, without vendored and generated directories.

    The standard library comes without installed packages, its test suites (some distributions do not ship
    them), idlelib, lib2to3 and pydoc_data (which is held out).

    Raises:
        DataError: There is no .py file.
    """
    skipped = _SKIPPED_IN_STANDARD_LIBRARY if project.name == STANDARD_LIBRARY else frozenset()
    files = [
        _source_file(project.name, path.relative_to(project.root).as_posix(), path)
        for path in _python_files(project.root, skipped)
    ]
    if not files:
        raise DataError(
            f"{project.name} is installed without its source",
            got=f"no .py file under {project.root}",
            mend="Install it with its source, or name your own files instead.",
        )
    return sorted(files, key=lambda file: file.name)


def glob_files(patterns: Sequence[str]) -> list[SourceFile]:
    """The files that any of ``patterns`` matches (``**`` goes down, ``~`` is home), each once, by path.

    They are named from the directory that they share, so that a moved copy has the same names.

    Raises:
        DataError: A pattern matches no file, or a file has an unknown suffix.
    """
    paths: set[str] = set()
    for pattern in patterns:
        matches = glob.glob(os.path.expanduser(pattern), recursive=True)
        found = {os.path.abspath(match) for match in matches if os.path.isfile(match)}
        if not found:
            raise DataError("no file matches", got=repr(pattern), mend="Correct the pattern or the paths.")
        paths |= found
    for path in sorted(paths):
        if not path.endswith(SUFFIXES):
            raise DataError("a file of unknown kind", got=path, wanted="one of " + " ".join(SUFFIXES))
    base = os.path.commonpath([os.path.dirname(path) for path in paths])
    return [_source_file("files", os.path.relpath(path, base), Path(path)) for path in sorted(paths)]


def fingerprint(files: Iterable[SourceFile]) -> str:
    """A digest of which files there are, their sizes and times; changes when a file does, reads none."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.project}\0{file.path}\0{file.num_bytes}\0{file.mtime_ns}\n".encode())
    return digest.hexdigest()


def one_file(project: str, path: Path) -> SourceFile:
    """The file at ``path`` as part of ``project``."""
    return _source_file(project, path.name, path)


def _source_file(project: str, name: str, path: Path) -> SourceFile:
    status = path.stat()
    return SourceFile(project, name, path, status.st_size, status.st_mtime_ns)


def _python_files(directory: Path, skipped: frozenset[str]) -> Iterator[Path]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skipped and not is_foreign(entry.name):
                    yield from _python_files(Path(entry.path), skipped)
            elif entry.name.endswith(".py") and entry.is_file():
                yield Path(entry.path)
