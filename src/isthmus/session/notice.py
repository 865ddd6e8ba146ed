"""Whether the capacity that an island runs on is about to end: a file, or an address that a cloud answers at."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path

POLL_S = 2.0
_TIMEOUT_S = 2.0
_MOST_BYTES = 1 << 16


class Notice:
    """Looks for a notice in a thread of its own, every ``poll_s``, so that no file system or network holds up training.

    Args:
        file: There when the island is to leave.
        url: Answers with status 200 when it is.
        contains: What must be in the answer.
        headers: To ask with.
        poll_s: Between two looks.
    """

    def __init__(
        self,
        file: Path | None,
        url: str | None,
        *,
        contains: str = "",
        headers: Mapping[str, str] | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._file, self._url, self._contains, self._headers = file, url, contains, dict(headers or {})
        self._closed, self._poll_s = threading.Event(), poll_s
        self.reason: str | None = None
        if file is not None or url is not None:
            threading.Thread(target=self._watch, name="isthmus-notice", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        while self.reason is None:
            self.reason = self._look()
            if self._closed.wait(self._poll_s):
                return

    def _look(self) -> str | None:
        if self._file is not None and self._file.exists():
            return f"notice at {self._file}"
        if self._url is not None and self._answers(self._url):
            return f"notice at {self._url}"
        return None

    def _answers(self, url: str) -> bool:
        request = urllib.request.Request(url, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                return answer.status == 200 and self._contains in answer.read(_MOST_BYTES).decode(errors="replace")
        except (OSError, ValueError):  # no notice, or nobody there
            return False
