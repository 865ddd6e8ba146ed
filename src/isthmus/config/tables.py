"""What all tables of a run's files have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

RELATIONS = "relations"
"""The type of the validation error that carries a table's broken relations between keys."""

Relation = tuple[str, object, str]
"""A key whose value does not go with the others: (key, what was got, what was wanted)."""


class Table(BaseModel):
    """A frozen table of a TOML file: strict types, no unknown keys, no NaN, lists as tuples."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def refuse_relations(broken: list[Relation]) -> None:
    """Raise one validation error that carries every broken relation of a table, if there is any."""
    if broken:
        text = "; ".join(f"{key}: got {got}, wanted {wanted}" for key, got, wanted in broken)
        raise PydanticCustomError(RELATIONS, "{text}", {"text": text, "broken": tuple(broken)})
