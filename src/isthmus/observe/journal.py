"""The file of an island's records: appended line by line, read whole or as it grows."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from isthmus.clock import Clock
from isthmus.errors import ConfigError
from isthmus.observe.records import Common, Note, Record, Stamp

RECORDS_NAME = "records.jsonl"
_BACKLOG_RECORDS = 4096
_KNOWN_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in Common.__subclasses__())


class RecordWriter:
    """Appends records to a file, one ``write`` each; a full disk costs records, never the training.

    Records that cannot be written wait in memory (at most 4096, then the oldest is lost) and are tried again
    with each later one. An existing file is continued, also behind a line that a crash tore.

    Args:
        path: The file; its directory is made.
        clock: Gives the times of ``stamp``.
        write: ``os.write``, or a stand-in that fails.
        warn: Told once when records cannot be written; standard error by default.

    Raises:
        ConfigError: The file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        write: Callable[[int, bytes], int] = os.write,
        warn: Callable[[str], object] = lambda text: sys.stderr.write(f"{text}\n"),
    ) -> None:
        self.path = path
        self.lost = 0
        self._clock, self._write, self._warn = clock, write, warn
        self._start_s = clock.now_s()
        self._encoder = msgspec.json.Encoder()
        self._backlog: deque[bytes] = deque()
        self._lost_unreported = 0
        self._warned = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if _ends_torn(self._file):
                self._backlog.append(b"\n")
        except OSError as error:
            raise ConfigError(
                f"cannot write records to {path}",
                got=error.strerror,
                mend="Give the island a directory it may write to.",
            ) from error

    def stamp(self, *, island: str, step: int, tokens: int) -> Stamp:
        """The shared fields of a record that happens now."""
        return Stamp(
            t_s=round(self._clock.now_s() - self._start_s, 6),
            wall_s=round(self._clock.wall_s(), 6),
            island=island,
            step=step,
            tokens=tokens,
        )

    def since_start_s(self, now_s: float) -> float:
        """A time on the monotonic clock as ``t_s``."""
        return round(now_s - self._start_s, 6)

    def write(self, record: Record) -> None:
        """Append one record; never raises for want of space."""
        self._queue(self._encoder.encode(record) + b"\n")
        if self._drain() and self._lost_unreported:
            text = f"{self._lost_unreported} records were lost because {self.path.name} could not be written"
            self._lost_unreported = 0
            stamp = self.stamp(island=record.island, step=record.step, tokens=record.tokens)
            self._queue(self._encoder.encode(Note(**stamp, text=text)) + b"\n")
            self._drain()

    def flush(self) -> None:
        """Write what waits and make it durable, as far as the disk lets."""
        if self._drain():
            try:
                os.fsync(self._file)
            except OSError as error:
                self._complain(error)

    def close(self) -> None:
        """Flush and close; idempotent."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _queue(self, line: bytes) -> None:
        if len(self._backlog) == _BACKLOG_RECORDS:
            del self._backlog[1]  # the first may be the rest of a line that the disk took in part
            self.lost += 1
            self._lost_unreported += 1
        self._backlog.append(line)

    def _drain(self) -> bool:
        try:
            while self._backlog:
                line = self._backlog[0]
                taken = self._write(self._file, line)
                if taken == len(line):
                    self._backlog.popleft()
                else:
                    self._backlog[0] = line[taken:]
        except OSError as error:
            self._complain(error)
            return False
        return True

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"cannot write records to {self.path}: {error.strerror}; training goes on, "
                f"the last {_BACKLOG_RECORDS} records are kept in memory and tried again"
            )


class RecordDecoder:
    """Turns lines into records, and counts those it cannot.

    ``unknown`` counts records of kinds that a newer version wrote, ``broken`` lines that are no record.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self.broken = 0
        self._decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
        self._kinds = msgspec.json.Decoder(_Kind)

    def decode(self, line: bytes) -> Record | None:
        """The record of one line, or ``None``; blank lines count as nothing."""
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if line.strip():
                self._count(line)
            return None

    def _count(self, line: bytes) -> None:
        try:
            known = self._kinds.decode(line).kind in _KNOWN_KINDS
        except (msgspec.DecodeError, UnicodeDecodeError):
            known = True
        self.broken += known
        self.unknown += not known


class _Kind(msgspec.Struct):
    kind: str


def read_records(path: Path, decoder: RecordDecoder | None = None) -> Iterator[Record]:
    """All records of a file, in the order written; a last line that a crash tore is left out without a count.

    Args:
        path: A ``records.jsonl``.
        decoder: Hand one in to read its counts of skipped lines afterwards.
    """
    decoder = decoder or RecordDecoder()
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and (record := decoder.decode(line)) is not None:
                yield record


class RecordTail:
    """A file of records that grows; the file need not exist yet.

    ``decoder`` counts what was skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decoder = RecordDecoder()
        self._offset = 0

    def new(self) -> list[Record]:
        """The records written whole since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        decoded = (self.decoder.decode(line) for line in whole.splitlines())
        return [record for record in decoded if record is not None]


def _ends_torn(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"
