"""The process of one run: it is told to stop by the end of its input, and says how far it is on its output."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from isthmus.errors import ConfigError
from isthmus.files import write_file_atomic
from isthmus.lab.grid import Cell
from isthmus.lab.run import LabRun
from isthmus.lab.table import RunRow

ROW_NAME = "row.json"


def work(cell: Cell, folder: Path, cache: Path) -> int:
    """Run a cell until it is over or standard input ends; its row is the last thing that is written.

    Returns:
        The exit code; without a row the run was stopped, and goes on when it is started again.
    """
    torch.set_num_threads(1)
    stop = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), name="stop", daemon=True).start()
    run = LabRun(cell, folder, cache)
    row = run.run(stop.is_set, _say)
    if row is not None:
        write_file_atomic(folder / ROW_NAME, [msgspec.json.encode(row)])
        shutil.rmtree(folder / "snapshots", ignore_errors=True)
    return 0


def read_row(folder: Path, cell: Cell) -> RunRow | None:
    """What a cell's run came to; None if it is not over.

    Raises:
        ConfigError: The file is no row.
    """
    try:
        row = msgspec.json.decode((folder / ROW_NAME).read_bytes(), type=RunRow)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        mend = "Remove the directory; the run is then done again."
        raise ConfigError(f"{folder / ROW_NAME} cannot be used", got=error, mend=mend) from error
    return row if row.digest == cell.digest else None


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()


def _say(progress: float) -> None:
    with suppress(BrokenPipeError):  # nobody listens any more: the input has ended too, and the run is saved
        os.write(sys.stdout.fileno(), json.dumps({"progress": progress}).encode() + b"\n")
