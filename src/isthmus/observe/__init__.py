"""What a run writes down and shows: typed records in a file per island, and all that is built from them alone.

The live view, ``summary.json`` and ``report.html`` read nothing but records, so they work the same for a run
that is going on, was killed, or was copied from another machine.
"""

from __future__ import annotations

from isthmus.observe.journal import RecordDecoder, RecordTail, RecordWriter, read_records
from isthmus.observe.live import View
from isthmus.observe.records import SCHEMA_VERSION, Record, Stamp
from isthmus.observe.report import write_report
from isthmus.observe.summary import summarise, write_summary

__all__ = [
    "SCHEMA_VERSION",
    "Record",
    "RecordDecoder",
    "RecordTail",
    "RecordWriter",
    "Stamp",
    "View",
    "read_records",
    "summarise",
    "write_report",
    "write_summary",
]
