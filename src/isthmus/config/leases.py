"""``leases.toml``: which islands are leased, and where; a site's own, never shared with islands, not hashed."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from isthmus.config.load import load_shared
from isthmus.config.paths import RunPaths
from isthmus.config.problems import Problem, raise_problems, read_table
from isthmus.config.tables import Table

LEASES_TITLE = "Which islands are leased, and where (isthmus train RUN_DIR --lease); a site's own."


class LeasesConfig(Table):
    """All of ``leases.toml``; paths are from the run directory."""

    servers: tuple[Annotated[str, Field(pattern=r"^(tls|nats)://[^/\s]+:\d+$")], ...] = Field(
        min_length=1, description="NATS servers with JetStream, 2.11 or newer, as tls://HOST:PORT; any that answers."
    )
    islands: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        min_length=1, description="Islands that are leased, by name; * stands for anything."
    )
    lease_s: float = Field(
        default=30.0,
        ge=2.0,
        description="Seconds after which an island that is not heard of is leased to another machine.",
    )
    connect_s: float = Field(default=30.0, gt=0, description="Seconds to wait for a server at the start.")
    replicas: int = Field(default=1, ge=1, le=5, description="Servers of a cluster that keep each lease: 1, 3 or 5.")
    certificate: str = Field(default="leases/client.crt", description="What this site shows to the servers (PEM).")
    key: str = Field(default="leases/client.key", description="Its private key (PEM).")
    authority: str = Field(
        default="leases/server.crt", description="The servers' certificate, or that of who issued theirs (PEM)."
    )
    check_names: bool = Field(
        default=True, description="Whether the servers' certificates must be made out to the hosts above."
    )

    def covers(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that are leased."""
        return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in self.islands))


def load_leases(paths: RunPaths) -> LeasesConfig | None:
    """What ``leases.toml`` says; None if there is none.

    Raises:
        ConfigError: It has mistakes, or no island of the roster is leased by it.
    """
    if not paths.leases.exists():
        return None
    problems: list[Problem] = []
    config = read_table(paths.leases, LeasesConfig, problems)
    raise_problems(problems)
    assert config is not None
    names = [island.name for island in load_shared(paths.root).roster.islands]
    if not config.covers(names):
        what = f"got {list(config.islands)}; wanted a name or a pattern of an island in the roster: {', '.join(names)}"
        raise_problems([Problem(paths.leases, "islands", what)])
    for key in ("certificate", "key", "authority"):
        if not (file := paths.root / getattr(config, key)).is_file():
            problems.append(Problem(paths.leases, key, f"there is no file {file}", "Copy it from where it was made."))
    raise_problems(problems)
    return config
