"""The files of a run: read and checked whole before anything starts, written with comments, signed.

``run.toml`` is what all islands share and its hash names the run, ``roster.toml`` lists the islands and is signed by
the owner, ``island.toml`` is an island's own. ``load_run`` reads them all and says everything that is wrong at once.
"""

from isthmus.config.island import DEFAULT_SOURCES, IslandConfig
from isthmus.config.leases import LeasesConfig, load_leases
from isthmus.config.load import LoadedRun, SharedFiles, load_run, load_shared
from isthmus.config.membership import add_island, remove_island, set_windows, sign_again, write_roster
from isthmus.config.paths import IslandPaths, RunPaths
from isthmus.config.rooms import resolve_model
from isthmus.config.run import BYTE_TOKENS, OWN_MODEL, RunConfig
from isthmus.config.write import NewIsland, write_example, write_run

__all__ = [
    "BYTE_TOKENS",
    "DEFAULT_SOURCES",
    "OWN_MODEL",
    "IslandConfig",
    "IslandPaths",
    "LeasesConfig",
    "LoadedRun",
    "NewIsland",
    "RunConfig",
    "RunPaths",
    "SharedFiles",
    "add_island",
    "load_leases",
    "load_run",
    "load_shared",
    "remove_island",
    "resolve_model",
    "set_windows",
    "sign_again",
    "write_example",
    "write_roster",
    "write_run",
]
