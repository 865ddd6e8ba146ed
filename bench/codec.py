"""Codec speed as a fraction of memcpy of the same fp32 input, on one core: ``python bench/codec.py [--json FILE]``.

As islands do, it codes as many rows at once as a processor's cache holds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from isthmus.codec import CODECS, rows_at_once

ROW_LENGTHS = (1024, 1000, 64)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(num_elements: int, row_length: int, repeats: int) -> list[dict[str, object]]:
    torch.manual_seed(0)
    rows = torch.randn(num_elements // row_length, row_length)
    copy = torch.empty_like(rows)
    at_once = rows_at_once(row_length, rows.device)
    jobs: dict[tuple[str, str], Callable[[], object]] = {("memcpy", "copy"): lambda: copy.copy_(rows)}
    for name, codec in CODECS.items():
        packed = torch.empty(rows.shape[0], codec.row_bytes(row_length), dtype=torch.uint8)
        parts = list(zip(rows.split(at_once), packed.split(at_once), copy.split(at_once), strict=True))
        jobs[name, "encode"] = lambda codec=codec, parts=parts: [codec.encode(own, out) for own, out, _ in parts]
        jobs[name, "decode"] = lambda codec=codec, parts=parts: [codec.decode(data, out) for _, data, out in parts]
    times: dict[tuple[str, str], list[float]] = {job: [] for job in jobs}
    for turn in range(repeats + 2):
        for job, work in jobs.items():
            took = seconds(work)
            if turn >= 2:
                times[job].append(took)
    gigabytes = rows.nbytes / 1e9
    results = []
    for (name, direction), taken in times.items():
        shares = [base / took for base, took in zip(times["memcpy", "copy"], taken, strict=True)]
        results.append(
            {
                "codec": name,
                "direction": direction,
                "row_length": row_length,
                "gigabytes_per_s": gigabytes / statistics.median(taken),
                "share_of_memcpy": statistics.median(shares),
            }
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1 << 24, help="elements of the input")
    parser.add_argument("--repeats", type=int, default=20, help="interleaved turns after two warm-up turns")
    parser.add_argument("--json", help="also write the JSON to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        result for row_length in ROW_LENGTHS for result in measure(arguments.elements, row_length, arguments.repeats)
    ]
    report = {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "elements": arguments.elements,
        "repeats": arguments.repeats,
        "results": results,
    }
    print(json.dumps(report))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    print(f"{'codec':8}{'':8}{'row':>6}{'GB/s of fp32':>14}{'of memcpy':>11}")
    for result in results:
        print(
            f"{result['codec']:8}{result['direction']:8}{result['row_length']:>6}"
            f"{result['gigabytes_per_s']:>14.2f}{result['share_of_memcpy']:>11.1%}"
        )


if __name__ == "__main__":
    main()
