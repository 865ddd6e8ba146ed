"""Names by lease, at real servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.config import RunPaths, load_leases, load_shared, write_example
from isthmus.errors import ConfigError, LinkError
from isthmus.identity import create_identity
from isthmus.leases import Book, Holder, LeaseDesk, choose, lease_settings, read_leases, say_holders, write_leases
from isthmus.terms import LinkAlarm
from isthmus.transport.ports import free_address
from lease_servers import Servers, serving
from small_runs import change_file, until

POOL = ("spot-0", "spot-1", "spot-2")


def holder(token: str, place: str = "here") -> Holder:
    return Holder(token, place, f"host-{token}")


# -- decisions ---------------------------------------------------------------------------------------------------------


def chosen(book: Book, *, lives: tuple[str, ...] = (), kept: tuple[str, ...] = (), place: str = "here") -> str | None:
    return choose(POOL, book, place=place, lives=lambda name: name in lives, kept=lambda name: name in kept)


def test_a_free_name_is_chosen_and_one_with_a_checkpoint_before_others():
    book = Book()
    assert chosen(book) == "spot-0"
    assert chosen(book, kept=("spot-2",)) == "spot-2"
    book.note("spot-0", 1, holder("a", "elsewhere").encode())
    assert chosen(book) == "spot-1"


def test_what_a_dead_process_of_this_place_holds_is_taken_before_its_lease_runs_out():
    book = Book()
    book.note("spot-1", 1, holder("a").encode())
    assert chosen(book) == "spot-1"
    assert chosen(book, lives=("spot-1",)) == "spot-0"
    assert chosen(book, place="elsewhere") == "spot-0"


def test_no_name_is_chosen_that_another_machine_holds_or_that_lives_here():
    book = Book()
    for name in POOL:
        book.note(name, 1, holder(name, "elsewhere").encode())
    assert chosen(book) is None
    assert chosen(Book(), lives=POOL) is None


def test_a_book_goes_by_the_newest_revision_and_takes_nonsense_for_nobody():
    book = Book()
    book.note("spot-0", 3, holder("a").encode())
    book.note("spot-0", 2, None)
    assert book.holder("spot-0") == holder("a")
    for number, nonsense in enumerate((b"", b"}{", b"[]", b"{}", b'{"token": 1}', b"\xff"), 4):
        book.note("spot-0", number, nonsense)
        assert book.at("spot-0") == (number, None)
        assert book.free(POOL) == set(POOL)


def test_every_name_is_said_with_who_holds_it():
    book = Book()
    book.note("spot-1", 1, Holder("a", "here", "machine-7", "10.0.0.7:47111", 0.0).encode())
    assert say_holders(POOL[:2], book) == [
        "spot-0  free",
        "spot-1  machine-7 at 10.0.0.7:47111 since 1970-01-01 00:00:00 UTC",
    ]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    write_example(tmp_path / "run", ("us-east", *POOL))
    return RunPaths(tmp_path / "run")


@pytest.mark.parametrize(
    ("islands", "servers", "what"),
    [
        (("asia",), ("127.0.0.1:1",), "no island is leased; got asia; wanted some of us-east, spot-0"),
        (("spot-*",), ("127.0.0.1:1", "127.0.0.1:2"), "got 2 servers; wanted 1, 3 or 5"),
        ((), ("127.0.0.1:1",), "islands"),
        (("spot-*",), ("127.0.0.1",), "servers"),
    ],
)
def test_leases_that_cannot_be_are_refused_and_nothing_is_written(paths: RunPaths, islands, servers, what: str):
    with pytest.raises((ConfigError, ValueError), match=what):
        write_leases(paths.root, islands, servers)
    assert not paths.leases.exists() and not paths.leases_dir.exists()


def test_leases_are_written_once_with_keys_for_their_owners_alone(paths: RunPaths):
    config = write_leases(paths.root, ("spot-*",), ("127.0.0.1:1",))
    assert load_leases(paths) == config
    assert config.covers(("us-east", *POOL)) == POOL
    for key in ("server.key", "client.key"):
        assert (paths.leases_dir / key).stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="would overwrite"):
        write_leases(paths.root, ("spot-*",), ("127.0.0.1:1",))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (('"spot-*"', '"asia-*"'), "wanted a name or a pattern of an island in the roster: us-east"),
        (("lease_s = 30.0", "lease_s = 0.5"), "leases.toml: lease_s"),
        (('"leases/client.key"', '"leases/other.key"'), "leases.toml: key: there is no file"),
        (('"tls://', '"http://'), "leases.toml: servers"),
    ],
)
def test_what_is_wrong_in_leases_toml_is_said(paths: RunPaths, change: tuple[str, str], what: str):
    write_leases(paths.root, ("spot-*",), ("127.0.0.1:1",))
    change_file(paths.leases, change)
    with pytest.raises(ConfigError) as caught:
        load_leases(paths)
    assert what in str(caught.value).replace(str(paths.root) + "/", "")


# -- servers -----------------------------------------------------------------------------------------------------------


class World:
    """A run with leased names, its servers, and processes that hold names or wait for one."""

    def __init__(self, paths: RunPaths, servers: Servers, addresses: tuple[str, ...]) -> None:
        self.paths, self.servers, self.addresses = paths, servers, addresses
        config = load_leases(paths)
        assert config is not None
        self.config, self.run = config, load_shared(paths.root).run.hash
        self._open = ExitStack()

    def desk(self, token: str, *, connect_s: float = 30.0) -> LeaseDesk:
        settings = replace(lease_settings(self.paths, self.config, self.run), connect_s=connect_s)
        desk = LeaseDesk(settings, holder(token, token))
        self._open.callback(desk.close)
        return desk

    def open(self, token: str) -> LeaseDesk:
        desk = self.desk(token)
        desk.open()
        return desk

    def close(self) -> None:
        self._open.close()


@pytest.fixture
def start(paths: RunPaths) -> Iterator[Callable[..., World]]:
    with ExitStack() as stack:

        def start(num_servers: int = 1, lease_s: float = 2.0) -> World:
            addresses = tuple(free_address() for _ in range(num_servers))
            write_leases(paths.root, ("spot-*",), addresses)
            change_file(paths.leases, ("lease_s = 30.0", f"lease_s = {lease_s}"))
            servers = stack.enter_context(serving(paths.leases_dir, addresses))
            world = World(paths, servers, addresses)
            stack.callback(world.close)
            return world

        yield start


def take(desk: LeaseDesk, *, place: str = "nowhere", pool: tuple[str, ...] = POOL) -> str:
    def pick(book: Book) -> str | None:
        return choose(pool, book, place=place, lives=lambda name: False, kept=lambda name: False)

    return desk.take(pick, lambda book: "waiting")


@pytest.mark.slow
def test_of_many_that_ask_at_once_each_gets_a_name_of_its_own_and_the_rest_wait_until_one_is_given_back(start):
    world, got = start(), dict[str, str]()
    desks = {token: world.open(token) for token in "abcde"}
    threads = [threading.Thread(target=lambda t=t: got.update({t: take(desks[t])}), daemon=True) for t in desks]
    for thread in threads:
        thread.start()
    until(lambda: len(got) == 3, "three names")
    assert sorted(got.values()) == sorted(POOL)
    first = next(iter(got))
    desks[first].close()
    until(lambda: len(got) == 4, "the one that is free again")
    assert list(got.values()).count(got[first]) == 2
    until(lambda: not next(iter(desks.values())).book.free(POOL) or first == "a", "news of it")
    for token in got:
        desks[token].close()
    until(lambda: len(got) == 5, "the last one")


@pytest.mark.slow
def test_who_hangs_for_longer_than_a_lease_loses_its_name_and_learns_it(start):
    world, hangs = start(), threading.Event()
    first, second = world.open("a"), world.open("b")
    only = ("spot-1",)
    assert take(first, pool=only) == "spot-1"
    first._loop.call_soon_threadsafe(hangs.wait)
    assert take(second, pool=only) == "spot-1"
    hangs.set()
    until(lambda: first.lost, "word of it")
    assert first.lost == "its lease ran out, and host-b has taken the name spot-1"
    first.close()
    assert read_leases(world.paths.root)[1].holder("spot-1").token == "b"


@pytest.mark.slow
def test_who_hangs_while_nobody_asks_takes_its_name_again(start):
    world, hangs = start(), threading.Event()
    first, second = world.open("a"), world.open("b")
    assert take(first) == "spot-0"
    first._loop.call_soon_threadsafe(hangs.wait)
    until(lambda: second.book.holder("spot-0") is None, "its lease to run out")
    hangs.set()
    until(lambda: second.book.holder("spot-0") is not None, "its name")
    assert second.book.holder("spot-0").token == "a" and first.lost is None


@pytest.mark.slow
def test_servers_that_go_and_come_back_cost_nobody_a_name_and_are_told_of_once(start):
    world = start()
    first, second = world.open("a"), world.open("b")
    assert take(first) == "spot-0"
    world.servers.kill()
    events: list[object] = []
    until(lambda: events.append(first.take_event()) or any(events), "an alarm")
    (alarm,) = filter(None, events)
    assert isinstance(alarm, LinkAlarm) and alarm.what.startswith("the lease of spot-0 cannot be renewed")
    world.servers.start()
    until(lambda: not first._away, "a renewal")
    assert first.lost is None and first.take_event() is None
    third = world.open("c")
    assert take(third) == "spot-1"
    for desk in (first, second):
        until(lambda desk=desk: desk.book.free(POOL) == {"spot-2"}, "news after the servers came back")


@pytest.mark.slow
def test_in_a_cluster_a_lost_server_costs_nobody_anything(start):
    world = start(num_servers=3)
    first = world.open("a")
    assert take(first) == "spot-0"
    port = first._nats.connected_url.port
    world.servers.kill(next(node for node, address in enumerate(world.addresses) if address.endswith(f":{port}")))
    other = world.open("b")
    assert take(other) == "spot-1"
    until(lambda: first.book.free(POOL) == {"spot-2"}, "news from another server")
    until(lambda: first.book.at("spot-0").revision > other.book.at("spot-1").revision, "a renewal at another server")
    assert first.lost is None


@pytest.mark.slow
def test_who_has_no_key_of_the_servers_is_refused(start):
    world, stranger = start(), create_identity("client")
    (world.paths.leases_dir / "client.crt").write_bytes(stranger.certificate_pem)
    (world.paths.leases_dir / "client.key").write_bytes(stranger.key_pem)
    with pytest.raises(LinkError, match=r"no lease server can be used; got .*; wanted one of tls://127"):
        world.desk("a", connect_s=2.0).open()


@pytest.mark.slow
def test_servers_that_are_not_the_runs_own_are_refused(start):
    world = start()
    (world.paths.leases_dir / "server.crt").write_bytes(create_identity("server").certificate_pem)
    with pytest.raises(LinkError, match=r"(?i)certificate"):
        world.desk("a", connect_s=2.0).open()


@pytest.mark.slow
def test_a_lease_time_that_is_not_the_servers_is_refused(start):
    world = start(lease_s=4.0)
    world.open("a")
    change_file(world.paths.leases, ("lease_s = 4.0", "lease_s = 5.0"))
    with pytest.raises(ConfigError, match=r"lease_s = 5; wanted 4, by which the leases of this run are kept"):
        read_leases(world.paths.root)


def test_where_nobody_answers_that_is_said(paths: RunPaths):
    address = free_address()
    write_leases(paths.root, ("spot-*",), (address,))
    change_file(paths.leases, ("connect_s = 30.0", "connect_s = 0.3"))
    with pytest.raises(LinkError, match=rf"no lease server can be used; got .*; wanted one of tls://{address}"):
        read_leases(paths.root)
