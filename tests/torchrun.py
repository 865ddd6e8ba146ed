"""Several ranks of one island, started as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def command(ranks: int, script: Path, *args: str) -> list[str]:
    """A torchrun on this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*torchrun, str(script), *args]


def environment() -> dict[str, str]:
    """One thread a rank, and the tests' helpers to import."""
    return os.environ | {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}


def torchrun(ranks: int, script: Path, *args: str) -> str:
    """Run a script on so many ranks until all have ended well; what they said."""
    run = command(ranks, script, *args)
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
