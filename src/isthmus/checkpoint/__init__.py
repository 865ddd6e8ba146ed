"""What survives the process: checkpoints saved whole or not at all, the lock, the incarnation, and exports.

Everything is written through a ``Storage``, so that tests and the lab can use one in memory or one that fails
on schedule. No file is ever unpickled; whatever is damaged is a ``CheckpointError``.
"""

from isthmus.checkpoint.checkpoint import LoadedInfo, Reader, SavedInfo, Skipped, load_latest, prune, save
from isthmus.checkpoint.export import export_safetensors, load_exported
from isthmus.checkpoint.faults import CrashError, FaultPlan, FaultyStorage
from isthmus.checkpoint.incarnation import incarnation_at, raise_incarnation
from isthmus.checkpoint.lock import IslandLock
from isthmus.checkpoint.packed import pack, unpack
from isthmus.checkpoint.rng import accelerator_in_use, rng_state, set_rng_state
from isthmus.checkpoint.safetensors_file import file_order
from isthmus.checkpoint.shared import Draft, Team, commit, draft
from isthmus.checkpoint.storage import LocalStorage, MemoryStorage, Storage

__all__ = [
    "CrashError",
    "Draft",
    "FaultPlan",
    "FaultyStorage",
    "IslandLock",
    "LoadedInfo",
    "LocalStorage",
    "MemoryStorage",
    "Reader",
    "SavedInfo",
    "Skipped",
    "Storage",
    "Team",
    "accelerator_in_use",
    "commit",
    "draft",
    "export_safetensors",
    "file_order",
    "incarnation_at",
    "load_exported",
    "load_latest",
    "pack",
    "prune",
    "raise_incarnation",
    "rng_state",
    "save",
    "set_rng_state",
    "unpack",
]
