"""The leases of a run, as its files say: which names, at which servers, and who holds them now."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

from isthmus.config import LeasesConfig, RunPaths, SharedFiles, load_leases, load_shared
from isthmus.errors import ConfigError
from isthmus.leases.book import Book, Holder
from isthmus.leases.desk import LeaseDesk, LeaseSettings
from isthmus.transport.here import host_name

_GLANCE_S = 5.0
"""How long one who only looks waits for a server."""


def read_leases(run_dir: Path) -> tuple[tuple[str, ...], Book]:
    """The leased names by slot, and who holds them.

    Raises:
        ConfigError: ``leases.toml`` is wrong or missing.
        LinkError: The lease servers cannot be reached, or used.
    """
    paths = RunPaths(run_dir)
    config = load_leases(paths)
    if config is None:
        raise nothing_leased(paths)
    shared = load_shared(paths.root)
    settings = replace(lease_settings(paths, config, shared.run.hash), connect_s=min(config.connect_s, _GLANCE_S))
    desk = LeaseDesk(settings, Holder("", "", host_name()))
    try:
        desk.open()
        return leased_names(config, shared), desk.book
    finally:
        desk.close()


def nothing_leased(paths: RunPaths) -> ConfigError:
    """What is wrong where a name is to be leased and there is no ``leases.toml``."""
    mend = f"Write it with `isthmus leases init {paths.root}`, or give a name."
    return ConfigError("there is nothing to lease a name by", got=f"no file {paths.leases}", mend=mend)


def leased_names(config: LeasesConfig, shared: SharedFiles) -> tuple[str, ...]:
    """The islands of the roster that are leased, by slot."""
    return config.covers(island.name for island in sorted(shared.roster.islands, key=lambda island: island.slot))


def lease_settings(paths: RunPaths, config: LeasesConfig, run: str) -> LeaseSettings:
    """Where a run's leases are kept; ConfigError if the keys cannot be used."""
    try:
        tls = ssl.create_default_context(cafile=str(paths.root / config.authority))
        tls.load_cert_chain(paths.root / config.certificate, paths.root / config.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("the keys for the lease servers cannot be used", got=error) from error
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    tls.check_hostname = config.check_names
    bucket = f"isthmus-{run[:16]}"
    return LeaseSettings(config.servers, bucket, config.lease_s, config.connect_s, config.replicas, tls)
