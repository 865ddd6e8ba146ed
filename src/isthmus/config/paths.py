"""Where the files of a run are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class IslandPaths:
    """The files of one island, all under ``root``."""

    root: Path

    @property
    def config(self) -> Path:
        """``island.toml``, its own settings."""
        return self.root / "island.toml"

    @property
    def key(self) -> Path:
        """Its private identity key; mode 0600."""
        return self.root / "identity.key"

    @property
    def certificate(self) -> Path:
        """Its identity certificate, the one that the roster holds."""
        return self.root / "identity.crt"

    @property
    def records(self) -> Path:
        """Every metric, meeting and alarm as JSON lines."""
        return self.root / "records.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints."""
        return self.root / "checkpoints"

    @property
    def ledger(self) -> Path:
        """The directory of the signed record of meetings."""
        return self.root / "ledger"

    @property
    def lock(self) -> Path:
        """Held by the process that is this island."""
        return self.root / "lock"

    @property
    def incarnation(self) -> Path:
        """The number of this island's last start."""
        return self.root / "incarnation.json"

    @property
    def summary(self) -> Path:
        """What the island's part of the run came to; written at its end."""
        return self.root / "summary.json"


@dataclass(frozen=True)
class RunPaths:
    """The files of a run directory; every site has one, with the files of its own island alone."""

    root: Path

    @property
    def run(self) -> Path:
        """``run.toml``, what all islands share."""
        return self.root / "run.toml"

    @property
    def roster(self) -> Path:
        """``roster.toml``, the signed list of islands."""
        return self.root / "roster.toml"

    @property
    def owner_key(self) -> Path:
        """The owner's private key, which signs rosters; only at the owner's site; mode 0600."""
        return self.root / "owner.key"

    @property
    def leases(self) -> Path:
        """``leases.toml``, where islands are leased; only at sites that lease them."""
        return self.root / "leases.toml"

    @property
    def leases_dir(self) -> Path:
        """Keys and files of the lease servers, and a lock for each name that a process here holds."""
        return self.root / "leases"

    @property
    def islands(self) -> Path:
        """The directory of the islands' own directories."""
        return self.root / "islands"

    @property
    def summary(self) -> Path:
        """What the run came to, written by a command that ran all of it."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The run's report as one page."""
        return self.root / "report.html"

    def island(self, name: str) -> IslandPaths:
        """The files of the island called ``name``."""
        return IslandPaths(self.islands / name)

    def present(self) -> tuple[IslandPaths, ...]:
        """The islands whose directories are here, by name."""
        if not self.islands.is_dir():
            return ()
        return tuple(IslandPaths(path) for path in sorted(self.islands.iterdir()) if path.is_dir())
