"""Where held-out text comes from: a project that is never trained on, Python's reference, or globs."""

from __future__ import annotations

import ast
import gc
import importlib
import platform
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType

from isthmus.data.cache import cache_key, cached
from isthmus.data.documents import Document, document, read_files, read_project, read_whole
from isthmus.data.held_out import HeldOut, make_held_out
from isthmus.data.sources import SourceFile, find_project, fingerprint, glob_files, one_file, project_files
from isthmus.errors import DataError

PYTHON_CODE = "python code"
TECHNICAL_ENGLISH = "technical english"

HELD_OUT_PROJECT = "networkx"
MIN_DOCSTRING_CHARACTERS = 200

_TOPICS = "pydoc_data.topics"


@dataclass(frozen=True, slots=True)
class HeldOutSpec:
    """Which held-out set to open.

    Without ``globs``, ``name`` is one of the two that come with any installation: ``python code`` (networkx's
    source) or ``technical english`` (Python's reference as in ``pydoc_data.topics``, and networkx's
    docstrings of at least 200 characters). ``max_bytes`` limits it to whole documents chosen by hash.
    """

    name: str
    globs: tuple[str, ...] = ()
    max_bytes: int | None = None


DEFAULT_HELD_OUT = (HeldOutSpec(PYTHON_CODE), HeldOutSpec(TECHNICAL_ENGLISH))


def open_held_out(specs: Iterable[HeldOutSpec] = DEFAULT_HELD_OUT, cache_dir: Path | None = None) -> dict[str, HeldOut]:
    """The held-out sets by name; those that come with an installation are kept in ``cache_dir``, if given.

    Raises:
        DataError: A name is unknown, a package or file is missing, or a set is empty.
    """
    return {spec.name: _open(spec, cache_dir) for spec in specs}


def held_out_files(specs: Iterable[HeldOutSpec]) -> list[SourceFile]:
    """The files that the sets are made of: none of them may be trained on.

    Raises:
        DataError: As ``open_held_out``.
    """
    return [file for spec in specs for file in _files(spec)]


def held_out_digests(specs: Iterable[HeldOutSpec]) -> frozenset[bytes]:
    """The content digests of all documents in ``held_out_files``, whatever their rules and limits.

    Raises:
        DataError: As ``open_held_out``.
    """
    specs = list(specs)
    own = [file for spec in specs if spec.globs for file in _files(spec)]
    installed = dict.fromkeys(file for spec in specs if not spec.globs for file in _files(spec))
    whole = (document(file.project, file.name, read_whole(file)) for file in installed)
    return frozenset(each.digest for each in chain(read_files(own), whole))


def _open(spec: HeldOutSpec, cache_dir: Path | None) -> HeldOut:
    files = _files(spec)
    if spec.globs:
        return make_held_out(spec.name, f"{len(files)} files", read_files(files), spec.max_bytes)
    if cache_dir is None:
        return _make_installed(spec, files)
    key = cache_key("held out", spec.name, str(spec.max_bytes), fingerprint(files))
    return cached(cache_dir / f"{key}.json", HeldOut, lambda: _make_installed(spec, files))


def _make_installed(spec: HeldOutSpec, files: Iterable[SourceFile]) -> HeldOut:
    project = find_project(HELD_OUT_PROJECT)
    code = read_project(file for file in files if file.project == HELD_OUT_PROJECT)
    if spec.name == PYTHON_CODE:
        return make_held_out(spec.name, f"{project.name} {project.version}", code, spec.max_bytes)
    source = f"Python {platform.python_version()} reference, {project.name} {project.version} docstrings"
    with _collection_paused():
        docstrings = [each for item in code for each in _docstrings(item)]
    return make_held_out(spec.name, source, chain(_reference(), docstrings), spec.max_bytes)


def _files(spec: HeldOutSpec) -> list[SourceFile]:
    if spec.globs:
        return glob_files(spec.globs)
    if spec.name == PYTHON_CODE:
        return project_files(find_project(HELD_OUT_PROJECT))
    if spec.name == TECHNICAL_ENGLISH:
        topics = one_file("pydoc_data", Path(str(_topics_module().__file__)))
        return [topics, *project_files(find_project(HELD_OUT_PROJECT))]
    raise DataError(
        "no held-out set of this name comes with an installation",
        got=repr(spec.name),
        wanted=f"{PYTHON_CODE!r}, {TECHNICAL_ENGLISH!r}, or globs",
    )


def _topics_module() -> ModuleType:
    try:
        return importlib.import_module(_TOPICS)
    except ImportError as error:
        raise DataError(
            f"Python's reference text ({_TOPICS}) is not installed",
            mend="Install the whole standard library (Debian: apt install libpython3-stdlib).",
        ) from error


def _reference() -> Iterator[Document]:
    topics: dict[str, str] = _topics_module().topics
    for name, text in topics.items():
        yield document("pydoc_data", name, text.encode())


def _docstrings(source: Document) -> Iterator[Document]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parsed file's invalid escapes are not ours to report
        tree = ast.parse(source.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if len(text) >= MIN_DOCSTRING_CHARACTERS:
                yield document(source.project, source.name, text.encode())


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Syntax trees hold no cycles; looking for some takes twice as long as parsing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
