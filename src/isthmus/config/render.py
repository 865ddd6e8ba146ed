"""Validated values as TOML that people read: above each key, as a comment, what it is for."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WIDTH = 100


def render_toml(values: BaseModel, title: str) -> str:
    """``values`` as TOML: ``title`` as a comment first, every key with its description above it.

    A key that is absent (None) and an empty table stand there as comments, with an example.
    """
    lines = [*_comment(title)]
    tables: list[str] = []
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, BaseModel):
            tables += ["", f"[{name}]", *_table(value, name)]
        elif isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
            for item in value:
                tables += ["", f"[[{name}]]", *_table(item, name)]
        else:
            lines += ["", *_key(name, field, value)]
    return "\n".join(lines + tables) + "\n"


def toml_value(value: Any) -> str:
    """A scalar, or a tuple or list of them, as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return repr(value)
    return f"[{', '.join(map(toml_value, value))}]"


def _table(table: BaseModel, path: str) -> Iterator[str]:
    subtables: list[str] = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if isinstance(value, Mapping):
            subtables += ["", *_comment(field.description or ""), *_subtable(f"{path}.{name}", field, value)]
        else:
            yield from _key(name, field, value)
    for name, value in (table.model_extra or {}).items():
        yield f"{name} = {toml_value(value)}"
    yield from subtables


def _key(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    yield from _comment(field.description or "")
    if value is None:
        yield f"# {name} = {toml_value((field.examples or [''])[0])}"
    else:
        yield f"{name} = {toml_value(value)}"


def _subtable(path: str, field: FieldInfo, value: Mapping[str, Any]) -> Iterator[str]:
    prefix, shown = ("", value) if value else ("# ", (field.examples or [{}])[0])
    yield f"{prefix}[{path}]"
    for name, inner in shown.items():
        yield f"{prefix}{name} = {toml_value(inner)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)]
