"""Everything that is wrong in a run's files, said at once: where, what was got and wanted, how to mend it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from isthmus.config.tables import RELATIONS, Relation
from isthmus.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Problem:
    """One mistake. ``key`` is its TOML path, or empty where it is about the whole file."""

    file: Path
    key: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        place = f"{self.file}: {self.key}: " if self.key else f"{self.file}: "
        return f"{place}{self.what}. {self.mend}" if self.mend else f"{place}{self.what}"


def raise_problems(problems: Sequence[Problem], *, where: str = "the files of the run") -> None:
    """Raise one ConfigError that lists all problems, if there is any."""
    if problems:
        count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise ConfigError(f"{count} in {where}:{lines}")


def read_table(path: Path, model: type[_Model], problems: list[Problem], *, mend: str = "") -> _Model | None:
    """The validated contents of a TOML file; None if it has mistakes, which are then added to ``problems``.

    Args:
        path: The file.
        model: What it has to hold.
        problems: Where mistakes are added.
        mend: What to do if the file is missing.
    """
    try:
        return validated(path, model, tomllib.loads(path.read_text(encoding="utf-8")), problems)
    except FileNotFoundError:
        problems.append(Problem(path, "", "the file is missing", mend))
    except OSError as error:
        problems.append(Problem(path, "", f"the file cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        problems.append(Problem(path, "", f"the file is not UTF-8: byte {error.start}"))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(path, "", f"the file is not TOML: {error}"))
    return None


def validated(path: Path, model: type[_Model], document: Mapping[str, Any], problems: list[Problem]) -> _Model | None:
    """``document`` as the contents of the file at ``path``; None if it has mistakes, added to ``problems``."""
    try:
        return model.model_validate(_with_tuples(document))
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.extend(_explain(path, model, details))
        return None


def nearest(name: str, known: Collection[str]) -> str:
    """A sentence that names the known name closest to ``name``, or all of them if none is close."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Known: {', '.join(sorted(known)) or 'none'}."


def shown(value: object) -> str:
    """A value as it is shown in a message: short, on one line."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _explain(path: Path, model: type[BaseModel], details: ErrorDetails) -> Iterator[Problem]:
    loc = tuple(part for part in details["loc"] if part != "[key]")
    key = toml_path(loc)
    if details["type"] == "missing":
        yield Problem(path, key, "the key is missing")
    elif details["type"] == "extra_forbidden":
        yield Problem(path, key, "the key is unknown", nearest(str(loc[-1]), _known_keys(model, loc[:-1])))
    elif details["type"] == RELATIONS:
        yield from relation_problems(path, loc, details["ctx"]["broken"])
    else:
        yield Problem(path, key, f"got {shown(details['input'])}; wanted {_wanted(details)}")


def _wanted(details: ErrorDetails) -> str:
    if details["type"] == "string_pattern_mismatch":
        return f"text that matches {details['ctx']['pattern']}"
    return re.sub(r"^(Value error, )?(Input|String|Tuple) should (be |have )?", "", details["msg"])


def relation_problems(path: Path, loc: Sequence[int | str], broken: Iterable[Relation]) -> list[Problem]:
    """Broken relations of the table at ``loc`` as problems."""
    return [Problem(path, toml_path((*loc, key)), f"got {got}; wanted {wanted}") for key, got, wanted in broken]


def toml_path(loc: Sequence[int | str]) -> str:
    """A place in a TOML document as people write it: ``islands[0].slot``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _known_keys(model: type[BaseModel], loc: Sequence[int | str]) -> Collection[str]:
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _with_tuples(value: Any) -> Any:
    """TOML's arrays as tuples, so that what was read is frozen."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
