"""Which memory a program is going to write to, learnt once from a trial run.

A forked child shares the zygote's pages; each first write to one is a fault and a copy, a couple of microseconds, and
a program that uses sympy makes hundreds of them. The zygote forks trusted *learners*, which run typical programs; here
their page maps say which pages they have copied. Children then copy the same pages in advance, and run the same
programs once for what cannot be copied that way, but only when the machine has nothing better to do: it costs as much
then as later.
"""

from __future__ import annotations

import struct
from pathlib import Path

PAGE = 4096
_OWN = 1 << 63 | 1 << 56  # present, and mapped by nobody else: see the kernel's pagemap documentation


def dirtied_pages(learner: int, zygote: int) -> set[int]:
    """Returns the addresses of the zygote's pages that the learner has to itself, because one of the two wrote to them.

    Args:
        learner: Its pid on the host.
        zygote: The zygote's pid on the host.

    Returns:
        Addresses. Empty where the kernel does not let us look: children are slower then, and no different.
    """
    pages: set[int] = set()
    try:
        with open(f"/proc/{learner}/pagemap", "rb", buffering=0) as file:
            for start, end in _writable_areas(zygote):
                file.seek(start // PAGE * 8)
                data = file.read((end - start) // PAGE * 8)
                entries = struct.unpack(f"{len(data) // 8}Q", data)
                pages.update(start + i * PAGE for i, entry in enumerate(entries) if entry & _OWN == _OWN)
    except (OSError, struct.error):
        return set()
    return pages


def _writable_areas(pid: int) -> list[tuple[int, int]]:
    areas = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split(None, 5)
        if rights == "rw-p":
            start, end = (int(part, 16) for part in span.split("-"))
            areas.append((start, end))
    return areas


_HUGE = 2 << 20


def huge_areas(zygote: int) -> list[tuple[int, int]]:
    """Returns the (address, bytes) of the zygote's own memory that huge pages can hold.

    A fork copies one entry of the page table for a huge page where it copies 512 for small ones, and an exit has as
    many less to drop. What a child writes to is still copied in small pages.
    """
    areas = [(-(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE) for start, end in _writable_areas(zygote)]
    return [(start, end - start) for start, end in areas if end > start]


def ranges(pages: set[int]) -> list[tuple[int, int]]:
    """Returns pages as (address, bytes), neighbours joined."""
    joined: list[tuple[int, int]] = []
    for page in sorted(pages):
        if joined and sum(joined[-1]) == page:
            joined[-1] = (joined[-1][0], joined[-1][1] + PAGE)
        else:
            joined.append((page, PAGE))
    return joined
