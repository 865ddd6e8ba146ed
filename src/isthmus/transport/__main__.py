"""``python -m isthmus.transport FD``: the link process; started by ``TcpLink``, of no use by itself."""

from __future__ import annotations

import os
import sys

from isthmus.transport.agent import run_agent

if __name__ == "__main__":
    os._exit(run_agent(int(sys.argv[1])))
