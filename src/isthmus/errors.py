"""Every error a user can meet. A message says what happened, what was got, what was wanted, how to mend it.

IsthmusError
  ConfigError     a file or argument of a run is wrong
  ShapeError      a model or tensor does not fit the run
  CodecError      bytes that do not decode, or values that must not be encoded
  CheckpointError a checkpoint cannot be written, read or trusted
  DataError       training or evaluation text is missing or unusable
  IdentityError   a key, certificate or signature is wrong
  LockError       another process holds this island
  ProtocolError   what a peer sent breaks the protocol (theirs, never ours)
  LinkError       the link cannot be opened or was lost for good
  RankError       another process of the same island was lost
"""

from __future__ import annotations


class IsthmusError(Exception):
    """Base of all errors isthmus raises on purpose; the CLI prints it without a traceback.

    Args:
        what: What went wrong, one sentence without a full stop.
        got: What was found.
        wanted: What was expected.
        mend: What the reader can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, got: object = None, wanted: object = None, mend: str = "") -> None:
        self.what, self.got, self.wanted, self.mend = what, got, wanted, mend
        parts = [what]
        if got is not None:
            parts.append(f"got {got}")
        if wanted is not None:
            parts.append(f"wanted {wanted}")
        text = "; ".join(parts)
        super().__init__(f"{text}. {mend}" if mend else text)


class ConfigError(IsthmusError):
    """A file or an argument of a run is wrong."""

    exit_code = 2


class ShapeError(IsthmusError):
    """A model or a tensor does not fit the run."""


class CodecError(IsthmusError):
    """Bytes that do not decode, or values that must not be encoded."""


class CheckpointError(IsthmusError):
    """A checkpoint cannot be written, read or trusted."""


class DataError(IsthmusError):
    """Training or evaluation text is missing or unusable."""


class IdentityError(IsthmusError):
    """A key, certificate or signature is wrong."""


class LockError(IsthmusError):
    """Another process holds this island."""


class ProtocolError(IsthmusError):
    """What a peer sent breaks the protocol."""


class RankError(IsthmusError):
    """Another process of the same island was lost."""


class LinkError(IsthmusError):
    """The link cannot be opened, or was lost for good."""
