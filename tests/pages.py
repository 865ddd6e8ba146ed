"""Reads self-contained pages."""

from __future__ import annotations

import base64
import hashlib
import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """A page as a browser's parser sees it: its elements, its scripts, its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        elif self.inside != "style":
            self.text += data

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def attribute(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements for key, value in attributes.items() if key == name]

    def assert_closed(self) -> None:
        """Nothing is fetched, and nothing runs but the page's own scripts."""
        assert not self.attribute("src")
        assert not [tag for tag, _ in self.elements if tag in ("link", "img", "iframe")]
        (policy,) = [text for text in self.attribute("content") if "default-src" in text]
        assert "default-src 'none'" in policy
        assert self.scripts[1:]
        for script in self.scripts[1:]:
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
