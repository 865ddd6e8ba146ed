"""Islands by lease: whoever comes takes a name that is free, and keeps it while it is heard of.

A lease says who is to be which island, and nothing more: that two processes never count as one island is what
incarnations are for. So servers that are away, or a lease that ran out unnoticed, cost nothing but new machines.
"""

from isthmus.leases.book import Book, Holder, choose, say_holders
from isthmus.leases.desk import LeaseDesk, LeaseSettings
from isthmus.leases.reading import lease_settings, leased_names, nothing_leased, read_leases
from isthmus.leases.servers import find_server, write_leases

__all__ = [
    "Book",
    "Holder",
    "LeaseDesk",
    "LeaseSettings",
    "choose",
    "find_server",
    "lease_settings",
    "leased_names",
    "nothing_leased",
    "read_leases",
    "say_holders",
    "write_leases",
]
