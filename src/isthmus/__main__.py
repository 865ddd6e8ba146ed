"""``python -m isthmus`` is the command ``isthmus``; torchrun needs a module."""

from __future__ import annotations

import sys

from isthmus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
