"""``isthmus shape`` and ``python -m isthmus.transport.shaper``: the relay as a process that obeys lines of text."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from typing import TextIO

from isthmus.addresses import split_address
from isthmus.errors import ConfigError
from isthmus.transport.relay import Shaper, ShaperOptions


async def run_shaper(options: ShaperOptions, commands: AsyncIterator[str], output: TextIO) -> None:
    """Run a relay until ``quit`` or the end of ``commands``.

    Prints ``{"listen": "host:port", "port": ...}`` first. Commands, one a line: ``cut``, ``heal``, ``reset``,
    ``rate MBIT`` (0 for no limit), ``rtt MS``, ``stats`` (the windows since the last), ``quit``; each but
    ``quit`` is answered by a line of JSON when it is done.

    Raises:
        LinkError: the listen address cannot be had.
    """
    shaper = Shaper(options)
    where = await shaper.start(options.listen)
    _say(output, {"listen": where, "port": split_address(where)[1]})
    async for line in commands:
        if line.split()[:1] == ["quit"]:
            break
        _say(output, obey(shaper, line.split()))
    await shaper.close()


def obey(shaper: Shaper, words: list[str]) -> dict[str, object]:
    """Carry out one command; what to answer."""
    match words:
        case ["cut"]:
            shaper.cut()
        case ["heal"]:
            shaper.heal()
        case ["reset"]:
            shaper.reset()
        case ["rate", mbit] if _is_number(mbit):
            shaper.set_rate(float(mbit) * 1e6 or None)
        case ["rtt", milliseconds] if _is_number(milliseconds):
            shaper.set_rtt(float(milliseconds) / 1000)
        case ["stats"]:
            return {"windows": shaper.take_windows()}
        case _:
            return {"error": f"no such command: {' '.join(words)!r}"}
    return {"done": words[0]}


def serve_shaper(options: ShaperOptions, commands: Iterable[str], output: TextIO) -> None:
    """Run a relay, with commands from an iterable of lines such as a text file; see ``run_shaper``.

    Raises:
        LinkError: the listen address cannot be had.
    """
    asyncio.run(run_shaper(options, _lines(commands), output))


def main(options: ShaperOptions) -> int:
    """``isthmus shape``: commands from stdin, answers on stdout; ends when stdin does."""
    serve_shaper(options, sys.stdin, sys.stdout)
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``isthmus shape``."""
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port to listen on; port 0 takes any")
    parser.add_argument("--to", required=True, help="host:port to forward to")
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="round trip to add, in milliseconds")
    parser.add_argument("--rate-mbit", type=float, default=0.0, help="rate of each direction in Mbit/s; 0: no limit")


def options_from(arguments: argparse.Namespace) -> ShaperOptions:
    """The options that ``add_arguments`` describes.

    Raises:
        ConfigError: a number is negative, or there is nowhere to forward to.
    """
    if arguments.rtt_ms < 0 or arguments.rate_mbit < 0:
        raise ConfigError(
            "a link cannot be shaped so",
            got=f"--rtt-ms {arguments.rtt_ms:g} --rate-mbit {arguments.rate_mbit:g}",
            wanted="numbers that are not negative",
        )
    try:
        split_address(arguments.to)
    except ValueError as error:
        raise ConfigError("there is nowhere to forward to", got=f"--to {arguments.to}", mend=f"{error}.") from error
    return ShaperOptions(arguments.listen, arguments.to, arguments.rtt_ms / 1000, arguments.rate_mbit * 1e6 or None)


async def _lines(commands: Iterable[str]) -> AsyncIterator[str]:
    """Lines as they come; a thread reads them, because not every file can be waited for in an event loop."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def read() -> None:
        for line in commands:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, name="commands", daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def _say(output: TextIO, value: object) -> None:
    output.write(json.dumps(value) + "\n")
    output.flush()


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="isthmus shape", description=__doc__)
    add_arguments(_parser)
    sys.exit(main(options_from(_parser.parse_args())))
