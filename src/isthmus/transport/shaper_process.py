"""The shaper as a subprocess, for demonstrations and tests."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any

from isthmus.errors import LinkError
from isthmus.transport.relay import ShaperOptions

_EXIT_GRACE_S = 5.0


class ShaperProcess:
    """A running shaper; listens on ``address``, ends with ``close`` or with this process.

    Every command has taken effect when its method returns, or raises ``LinkError`` if the shaper has ended.

    Raises:
        LinkError: it cannot start.
    """

    def __init__(self, options: ShaperOptions) -> None:
        command = [sys.executable, "-m", "isthmus.transport.shaper", "--listen", options.listen]
        command += ["--to", options.target, "--rtt-ms", f"{options.rtt_s * 1000:.6f}"]
        command += ["--rate-mbit", f"{(options.rate_bits_per_s or 0.0) / 1e6:.6f}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            started = self._answer()
        except LinkError:
            self.close()
            raise
        self.address: str = started["listen"]
        self.port: int = started["port"]

    def cut(self) -> None:
        """Stop forwarding without a word, and turn new connections away."""
        self._command("cut")

    def heal(self) -> None:
        """Forward again, what was held up first."""
        self._command("heal")

    def reset(self) -> None:
        """Break all connections there are."""
        self._command("reset")

    def set_rate(self, rate_bits_per_s: float | None) -> None:
        """Change the rate of both directions; None for no limit."""
        self._command(f"rate {(rate_bits_per_s or 0.0) / 1e6:.6f}")

    def set_rtt(self, rtt_s: float) -> None:
        """Change the round trip."""
        self._command(f"rtt {rtt_s * 1000:.6f}")

    def take_windows(self) -> list[tuple[float, int, int]]:
        """Windows of 100 ms since the last call: start (its own seconds), bytes forward, bytes backward."""
        return [(start_s, ahead, back) for start_s, ahead, back in self._command("stats")["windows"]]

    def close(self) -> None:
        """End it; idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ShaperProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command(self, line: str) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise LinkError("the shaper has ended") from error
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise LinkError("the shaper did not answer", mend="Its last words are on stderr.")
        return json.loads(line)
