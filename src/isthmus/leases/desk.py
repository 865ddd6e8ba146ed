"""The lease servers as one process uses them: a bucket of NATS JetStream, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from isthmus.errors import ConfigError, LinkError
from isthmus.leases.book import Book, Entry, Holder, read_holder
from isthmus.terms import LinkAlarm, LinkEvent

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.kv import KeyValue

log = logging.getLogger("isthmus")

_RENEWALS = 3
"""How often a lease is renewed in its time."""

_ANSWER_S = 5.0
"""How long one question to a server may take."""

_LEAVE_S = 2.0
_LOOK_S = 1.0

_MEND_EXTRA = "Install it: pip install 'isthmus[leases]'"

_T = TypeVar("_T")


@dataclass(frozen=True)
class LeaseSettings:
    """Where the leases of a run are kept; times in seconds, as in ``leases.toml``."""

    servers: tuple[str, ...]
    bucket: str
    lease_s: float
    connect_s: float
    replicas: int
    tls: SSLContext


class LeaseDesk:
    """Takes, keeps and gives back one name, and knows who holds the others.

    A name is taken and renewed by compare-and-set on the revision that was last seen, so that of two that ask for it
    one gets it. A lease that is not renewed runs out at the servers, by their clock; what happens to any is heard.
    Servers that cannot be reached change nothing for who holds a name.

    Args:
        settings: Where.
        own: This process.
        addresses: Where others reach it as each of the names; one that is not there only dials.
    """

    def __init__(self, settings: LeaseSettings, own: Holder, addresses: Mapping[str, str] | None = None) -> None:
        self._settings, self._own, self._addresses = settings, own, addresses or {}
        self.book = Book()
        self.lost: str | None = None
        self._name: str | None = None
        self._revision, self._document = 0, b""
        self._found: LinkEvent | None = None
        self._trouble = ""
        self._away = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="isthmus-leases", daemon=True)
        self._nats: Client
        self._kv: KeyValue

    # -- what the island's thread calls --------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and read who holds what.

        Raises:
            ConfigError: nats-py is missing, or the run's leases are kept for another time than ``lease_s``.
            LinkError: No server can be reached in time, or it cannot keep leases.
        """
        try:
            import nats  # noqa: F401
        except ImportError:
            raise ConfigError("leases need the package nats-py", mend=_MEND_EXTRA) from None
        logging.getLogger("asyncio").addFilter(_is_news)
        self._thread.start()
        servers = ", ".join(self._settings.servers)
        try:
            self._call(self._open(), self._settings.connect_s)
        except TimeoutError:
            got = self._trouble or f"no answer in {self._settings.connect_s:g} s"
            raise LinkError("no lease server can be used", got=got, wanted=f"one of {servers}") from None
        except (ConfigError, LinkError):
            raise
        except Exception as error:  # whatever a client raises
            raise LinkError("no lease server can be used", got=_say(error), wanted=f"one of {servers}") from error

    def take(self, choose: Callable[[Book], str | None], waiting: Callable[[Book], str]) -> str:
        """Take a name and keep it from now on; waits until there is one.

        Args:
            choose: The name to take; None to wait.
            waiting: What is waited for, which is said once.
        """
        said = ""
        while True:
            name = choose(self.book)
            try:
                if name is not None and self._call(self._claim(name), _ANSWER_S):
                    self._loop.call_soon_threadsafe(lambda: self._start(self._renew()))
                    return name
                wait = "" if name is not None else waiting(self.book)
            except Exception as error:  # whatever a client raises, what is free is asked for again
                wait = f"waiting for the lease servers: {_say(error)}"
            if wait and wait != said:
                log.info("%s", wait)
                said = wait
            threading.Event().wait(_LOOK_S)

    def take_event(self) -> LinkEvent | None:
        """That the servers cannot be reached, once each time."""
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Give the name back, and leave."""
        if not self._thread.is_alive():
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LEAVE_S)
        except Exception as error:
            log.info("the lease is not given back, and runs out in %g s: %s", self._settings.lease_s, _say(error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LEAVE_S)
        if not self._loop.is_running():
            self._loop.close()

    # -- what its own thread does --------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, _T], at_most_s: float | None) -> _T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, at_most_s), self._loop).result()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self) -> None:
        import nats

        self._nats = await nats.connect(
            list(self._settings.servers),
            tls=self._settings.tls,
            name=f"isthmus {self._own.host}",
            error_cb=self._hear_error,
            reconnected_cb=self._watch_again,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=max(1, int(self._settings.lease_s / _RENEWALS)),
        )
        while True:
            try:
                self._kv = await self._bucket()
                return await self._watch()
            except (ConfigError, LinkError):
                raise
            except Exception as error:  # a cluster that has just been started has no leader yet
                self._trouble = _say(error)
                await asyncio.sleep(_LOOK_S)

    async def _hear_error(self, error: Exception) -> None:
        self._trouble = _say(error)

    async def _bucket(self) -> KeyValue:
        """The run's bucket, made if there is none."""
        from nats.js import errors
        from nats.js.api import KeyValueConfig

        own, stream = self._settings, self._nats.jetstream(timeout=_ANSWER_S)
        wanted = KeyValueConfig(
            bucket=own.bucket, ttl=own.lease_s, limit_marker_ttl=own.lease_s, replicas=own.replicas, history=1
        )
        try:
            return await stream.create_key_value(wanted)
        except errors.KeyValueLimitMarkerTTLNotSupportedError:
            raise LinkError("the lease server is too old", wanted="nats-server 2.11 or newer") from None
        except errors.BadRequestError as error:
            found = await stream.key_value(own.bucket)
            lease_s = (await found.status()).ttl
            if lease_s != own.lease_s:
                got, kept = f"lease_s = {own.lease_s:g}", f"{lease_s or 0:g}, by which the leases of this run are kept"
                mend = "Set it to that, or stop all servers and remove their leases/data-*."
                raise ConfigError(
                    "leases.toml does not go with the servers", got=got, wanted=kept, mend=mend
                ) from error
            return found

    async def _watch(self) -> None:
        """Hear of all leases, from the start; again after every connection, as servers forget who listens."""
        if self._reading is not None:
            self._reading.cancel()
        watcher = await self._kv.watch(">")
        book, ready = Book(), asyncio.Event()

        async def read() -> None:
            try:
                async for entry in watcher:
                    if entry is None:
                        self.book = book
                        ready.set()
                    else:
                        book.note(entry.key, entry.revision, entry.value if entry.operation is None else None)
            finally:
                await watcher.stop()  # type: ignore[no-untyped-call]  # as nats-py has it

        self._reading = self._start(read())
        await asyncio.wait_for(ready.wait(), _ANSWER_S)

    async def _watch_again(self) -> None:
        while True:
            try:
                return await self._watch()
            except Exception as error:  # it may be gone again already
                self._trouble = _say(error)
                await asyncio.sleep(_LOOK_S)

    async def _claim(self, name: str) -> bool:
        """Whether the name is this process's now."""
        entry = self.book.at(name)
        if entry.holder is not None and entry.holder.token == self._own.token:
            self._name, self._revision = name, entry.revision
            return True
        return await self._set(name, entry) or await self._set(name, await self._look(name, unless=entry))

    async def _set(self, name: str, entry: Entry | None) -> bool:
        """Compare and set: whether a name's lease is this process's, if it still is as ``entry`` says."""
        from nats.js import errors

        if entry is None:
            return False
        if self._name != name:
            address = self._addresses.get(name, "")
            self._document = structs.replace(self._own, address=address, since_s=time.time()).encode()
        try:
            revision = await self._kv.update(name, self._document, last=entry.revision)
        except errors.KeyWrongLastSequenceError:
            return False
        self._name, self._revision = name, revision
        self.book.note(name, revision, self._document)
        return True

    async def _look(self, name: str, *, unless: Entry | None = None) -> Entry | None:
        """What the servers now say of a name; None if that is a holder, and is not what ``unless`` says."""
        from nats.js import errors

        try:
            found = await self._kv.get(name)
            entry = Entry(found.revision or 0, read_holder(found.value))
        except errors.KeyDeletedError as error:
            entry = Entry(error.entry.revision or 0, None)
        except errors.KeyNotFoundError:
            entry = Entry(0, None)
        return None if unless is not None and entry.holder not in (None, unless.holder) else entry

    async def _renew(self) -> None:
        assert self._name is not None
        while self.lost is None:
            await asyncio.sleep(self._settings.lease_s / _RENEWALS)
            try:
                if not await self._set(self._name, Entry(self._revision, None)):
                    await self._contest(self._name)
            except Exception as error:  # whatever a client raises, training goes on
                self._hear_away(_say(error))
            else:
                self._hear_back()

    async def _contest(self, name: str) -> None:
        """A renewal was refused: the lease ran out, or another has it, or an answer was lost."""
        entry = await self._look(name)
        assert entry is not None
        if entry.holder is None:
            await self._set(name, entry)
        elif entry.holder.token == self._own.token:
            self._revision = entry.revision
        else:
            self.lost = f"its lease ran out, and {entry.holder.host} has taken the name {name}"

    def _hear_away(self, why: str) -> None:
        if not self._away:
            what = f"the lease of {self._name} cannot be renewed ({why or 'no answer'}); training goes on"
            self._found = LinkAlarm(None, what)
        self._away = True

    def _hear_back(self) -> None:
        if self._away:
            log.info("the lease of %s is renewed again", self._name)
        self._away = False

    async def _close(self) -> None:
        await _end(self._tasks)
        if self._name is not None and self.lost is None:
            await self._kv.delete(self._name, last=self._revision)
        await self._nats.close()
        await _end(asyncio.all_tasks() - {asyncio.current_task()})


async def _end(tasks: Collection[asyncio.Task[Any] | None]) -> None:
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether asyncio says something else than what it says of every end of a connection that turned to TLS."""
    return "eof_received" not in record.getMessage()


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__
