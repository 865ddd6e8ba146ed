"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.addresses import split_address

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def positive_int(text: str) -> int:
    """A whole number above 0; underscores may group digits."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def positive_float(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def dialled(text: str) -> tuple[str, str]:
    """A peer's name and the address where it is found."""
    name, equals, address = text.partition("=")
    if not (name and equals):
        raise ValueError(text)
    split_address(address)
    return name, address


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """The argument RUN_DIR."""
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="directory of the run: run.toml, roster.toml, islands/"
    )
