"""One publication over TLS on loopback, through a shaper if asked: seconds, rate, CPU seconds, smoothness.

python bench/link_smoke.py --megabytes 256
python bench/link_smoke.py --megabytes 2 --rtt-ms 180 --rate-mbit 5 --spread-s 4
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from contextlib import ExitStack

from isthmus.identity import create_identity
from isthmus.terms import Header, LinkEvent, LinkSample, PeerUp, PublicationReceived, PublicationSent
from isthmus.transport import LinkSettings, PeerAddress, TcpLink
from isthmus.transport.relay import ShaperOptions
from isthmus.transport.shaper_process import ShaperProcess

RUN = "00" * 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=64.0)
    parser.add_argument("--spread-s", type=float, default=0.0)
    parser.add_argument("--rtt-ms", type=float, default=0.0)
    parser.add_argument("--rate-mbit", type=float, default=0.0)
    options = parser.parse_args()
    num_bytes, rate = int(options.megabytes * 1e6), options.rate_mbit * 1e6 or None
    names = ("asia", "us-east")
    identities = {name: create_identity(name) for name in names}

    def open_link(name: str, peer: str, address: str | None) -> TcpLink:
        return TcpLink(
            LinkSettings(
                name=name,
                run=RUN,
                incarnation=1,
                key_pem=identities[name].key_pem,
                certificate_pem=identities[name].certificate_pem,
                peers=(PeerAddress(peer, identities[peer].certificate_pem, (address,) if address else ()),),
                listen="127.0.0.1:0",
                rate_bits_per_s=rate,
            )
        )

    with ExitStack() as stack:
        east = open_link("us-east", "asia", None)
        stack.callback(east.close, timeout_s=1.0)
        address = east.listen_address or ""
        if options.rtt_ms or rate:
            shaped = ShaperOptions("127.0.0.1:0", address, options.rtt_ms / 1000, None if rate is None else rate * 1.04)
            address = stack.enter_context(ShaperProcess(shaped)).address
        asia = open_link("asia", "us-east", address)
        stack.callback(asia.close, timeout_s=1.0)
        until(asia, PeerUp)
        payload = asia.buffer(num_bytes)
        noise = os.urandom(min(num_bytes, 1 << 20))
        for start in range(0, num_bytes, len(noise)):
            payload[start : start + len(noise)] = noise[: num_bytes - start]
        start_s = time.monotonic()
        asia.publish("us-east", header(num_bytes), payload, spread_s=options.spread_s)
        until(east, PublicationReceived)
        seconds = time.monotonic() - start_s
        events = until(asia, PublicationSent)
        sent = next(event for event in events if isinstance(event, PublicationSent))
        rates = [e.sent_bytes * 8 / e.window_s for e in events if isinstance(e, LinkSample)]
        stack.close()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "megabytes": num_bytes / 1e6,
        "seconds": round(seconds, 3),
        "megabytes_per_s": round(num_bytes / 1e6 / seconds, 1),
        "wire_bytes_per_byte": round(sent.wire_bytes / num_bytes, 4),
        "cpu_s_both_ends": round(children.ru_utime + children.ru_stime, 2),
        "peak_window_mbit": round(max(rates, default=0.0) / 1e6, 2),
    }
    print(json.dumps(result))


def until(link: TcpLink, kind: type[LinkEvent]) -> list[LinkEvent]:
    events: list[LinkEvent] = []
    while not any(isinstance(event, kind) for event in events):
        link.wait(60.0)
        events += link.poll()
    return events


def header(num_bytes: int) -> Header:
    return Header(
        run=RUN,
        sender="asia",
        receiver="us-east",
        fragment=0,
        epoch=0,
        version=0,
        sender_incarnation=1,
        receiver_incarnation=1,
        publication=1,
        step=1,
        tokens=1,
        weight_tokens=1,
        run_tokens=1,
        cursor=0,
        reference=b"",
        codec="fp32",
        num_bytes=num_bytes,
    )


if __name__ == "__main__":
    main()
