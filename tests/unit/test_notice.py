"""Notices that an island's capacity is about to end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from isthmus.config import RunPaths
from isthmus.observe import records
from isthmus.session.notice import Notice
from small_runs import Loop, change_file, in_memory, records_of, train, until, write_small_run


class Cloud(HTTPServer):
    """Answers as a cloud's metadata service does; what it was asked with is in ``asked``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.status, self.body = 404, b""
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/preempted"


class Answer(BaseHTTPRequestHandler):
    server: Cloud

    def do_GET(self) -> None:
        self.server.asked.append(self.headers.get("Metadata-Flavor"))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Notice]]:
    opened = []

    def open_notice(file: Path | None, url: str | None, **settings: object) -> Notice:
        opened.append(Notice(file, url, poll_s=0.01, **settings))
        return opened[-1]

    yield open_notice
    for notice in opened:
        notice.close()


def test_a_file_is_a_notice_once_it_is_there(tmp_path: Path, watch: Callable[..., Notice]):
    notice = watch(tmp_path / "leave", None)
    assert notice.reason is None
    (tmp_path / "leave").touch()
    until(lambda: notice.reason is not None, "the notice")
    assert notice.reason == f"notice at {tmp_path / 'leave'}"


def test_an_address_gives_notice_by_status_200(cloud: Cloud, watch: Callable[..., Notice]):
    notice = watch(None, cloud.url)
    until(lambda: len(cloud.asked) > 1, "two looks")
    assert notice.reason is None
    cloud.status = 200
    until(lambda: notice.reason is not None, "the notice")
    assert notice.reason == f"notice at {cloud.url}"


def test_of_an_answer_that_is_always_there_the_words_count(cloud: Cloud, watch: Callable[..., Notice]):
    cloud.status, cloud.body = 200, b"FALSE"
    notice = watch(None, cloud.url, contains="TRUE", headers={"Metadata-Flavor": "Google"})
    until(lambda: len(cloud.asked) > 1, "two looks")
    assert notice.reason is None
    assert set(cloud.asked) == {"Google"}
    cloud.body = b"TRUE"
    until(lambda: notice.reason is not None, "the notice")


def test_an_address_where_nobody_is_gives_no_notice(tmp_path: Path, cloud: Cloud, watch: Callable[..., Notice]):
    nobody = f"http://127.0.0.1:{cloud.server_port}:0/"
    notice = watch(tmp_path / "leave", nobody)
    (tmp_path / "leave").touch()
    until(lambda: notice.reason is not None, "the file")
    assert notice.reason.endswith("leave")


def test_an_island_leaves_by_notice_saved_and_says_why(tmp_path: Path):
    paths: RunPaths = write_small_run(tmp_path / "run", "solo", tokens=10**6)
    change_file(paths.island("solo").config, ("grace_s = 20.0", 'grace_s = 20.0\nnotice_file = "stop"'))
    (paths.root / "stop").touch()
    loop = Loop()
    with loop.join(paths, "solo", open_link=in_memory(paths)) as island:
        until(lambda: train(island, loop) or island.done, "the end")
        steps = island.step_count
    (finished,) = records_of(paths, "solo", records.Finished)
    assert (finished.reason, finished.detail) == ("interrupted", f"notice at {paths.root / 'stop'}")
    (saved,) = records_of(paths, "solo", records.Checkpoint)
    assert saved.step == steps
