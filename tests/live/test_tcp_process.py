"""The link process: what it loads, how it dies, how it is replaced, and how it paces."""

from __future__ import annotations

import hashlib
import os
import resource
import select
import signal
import statistics
import subprocess
import sys

import pytest

from isthmus.errors import LinkError
from isthmus.terms import (
    Goodbye,
    LinkAlarm,
    LinkSample,
    MessageReceived,
    PeerDown,
    PeerUp,
    PublicationReceived,
    PublicationSent,
)
from isthmus.transport.relay import ShaperOptions
from isthmus.transport.shaper_process import ShaperProcess
from isthmus.wire import CHUNK_BYTES
from link_ends import ASIA, EAST, Ends, collect, header, of, settings

pytestmark = pytest.mark.slow
linux_only = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd")


def noise(num_bytes: int) -> bytes:
    return hashlib.shake_128(b"noise").digest(num_bytes)


def test_the_link_process_starts_at_once_and_loads_no_torch():
    script = "import sys, isthmus.transport.agent; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 0.5


@linux_only
def test_the_link_process_ends_with_its_island():
    script = (
        "import sys, time; from link_ends import *; "
        "link = Ends().open(settings(EAST, (ASIA, None))); print(link.process_id, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(sys.modules["link_ends"].__file__ or "")}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as island:
        assert island.stdout is not None
        pidfd = os.pidfd_open(int(island.stdout.readline()))
        island.kill()
    ended, _, _ = select.select([pidfd], [], [], 10.0)
    os.close(pidfd)
    assert ended


def test_a_killed_link_process_is_replaced_once_and_then_given_up():
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, east.listen_address)))
        collect(east, PeerUp)
        collect(asia, PeerUp)
        address, first = east.listen_address, east.process_id
        os.kill(first, signal.SIGKILL)
        events = collect(east, PeerDown, LinkAlarm, PeerUp)
        assert "died" in of(events, LinkAlarm)[0].what
        assert east.process_id != first
        assert east.listen_address == address
        collect(asia, PeerDown, PeerUp)
        asia.send("us-east", Goodbye("still here"))
        collect(east, MessageReceived)
        os.kill(east.process_id, signal.SIGKILL)
        collect(east, PeerDown)
        with pytest.raises(LinkError, match="died again"):
            east.send("asia", Goodbye("x"))
        with pytest.raises(LinkError, match="died again"):
            east.poll()


def test_two_islands_that_dial_each_other_settle_without_flapping():
    with Ends() as ends:
        probe = ends.open(settings(EAST, (ASIA, None)))
        east_address = probe.listen_address
        probe.close(timeout_s=0.0)
        asia = ends.open(settings(ASIA, (EAST, east_address)))
        east = ends.open(settings(EAST, (ASIA, asia.listen_address), listen=east_address))
        for link in (asia, east):
            collect(link, PeerUp)
        for _ in range(2):
            asia.wait(0.3)
            assert not of(asia.poll() + east.poll(), PeerDown)


def test_after_a_break_only_the_missing_chunks_are_sent():
    payload = noise(6 * CHUNK_BYTES)
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        with ShaperProcess(ShaperOptions("127.0.0.1:0", east.listen_address, 0.0, 100e6)) as shaper:
            asia = ends.open(settings(ASIA, (EAST, shaper.address)))
            collect(asia, PeerUp)
            asia.publish("us-east", header(5, len(payload)), memoryview(payload), spread_s=3.0)
            received = 0
            while received < 1.5 * CHUNK_BYTES:
                received += sum(sample.received_bytes for sample in of(collect(east, LinkSample), LinkSample))
            shaper.reset()
            collect(asia, PeerDown, PeerUp)
            again = header(5, len(payload), receiver_incarnation=1, step=2)
            asia.publish("us-east", again, memoryview(payload), spread_s=0.1)
            (sent,) = of(collect(asia, PublicationSent), PublicationSent)
            (arrived,) = of(collect(east, PublicationReceived), PublicationReceived)
            assert arrived.payload == payload
            assert arrived.signed.header == again
            assert CHUNK_BYTES < sent.wire_bytes < 5.1 * CHUNK_BYTES


def test_a_publication_is_spread_evenly_over_its_time_and_all_bytes_are_counted():
    payload = noise(400_000)
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, east.listen_address)))
        collect(asia, PeerUp)
        asia.publish("us-east", header(5, len(payload)), memoryview(payload), spread_s=1.5)
        (sent,) = of(events := collect(asia, PublicationSent), PublicationSent)
        assert 1.2 < sent.seconds < 2.5
        while not any(sample.sent_bytes < 2000 for sample in of(events, LinkSample)[4:]):
            events += collect(asia, LinkSample)
        counts = [sample.sent_bytes for sample in of(events, LinkSample)]
        assert len(payload) < sent.wire_bytes < 1.02 * len(payload)
        assert sent.wire_bytes < sum(counts) < 1.06 * sent.wire_bytes
        rates = [sample.sent_bytes / sample.window_s for sample in of(events, LinkSample)]
        assert max(rates) < 3 * statistics.median(rates)


def test_the_rate_is_capped_whatever_a_publication_wants():
    payload = noise(120_000)
    with Ends() as ends:
        east = ends.open(settings(EAST, (ASIA, None)))
        asia = ends.open(settings(ASIA, (EAST, east.listen_address), rate_bits_per_s=2e6))
        collect(asia, PeerUp)
        asia.publish("us-east", header(5, len(payload)), memoryview(payload), spread_s=0.0)
        (sent,) = of(collect(asia, PublicationSent), PublicationSent)
        assert sent.wire_bytes * 8 / sent.seconds < 2.1e6
