"""Immortal objects: what was preloaded is shared for good, because its reference counts no longer move.

A forked child shares the zygote's memory page by page until somebody writes to a page, and CPython writes to an
object whenever it takes or drops a reference to it. Since CPython 3.12 an object may be *immortal* (PEP 683): it has a
marked count that nothing changes any more. The interpreter marks a few objects of its own like that; here the same
mark goes to everything that has been loaded. How it is stored is an internal matter of each CPython version, hence
the list of those that this was tested with.

Standard library only: this file is also shipped into the sandbox.
"""

import ctypes
import gc
import sys
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any

_VERSIONS = ((3, 12), (3, 13))
_MARK = 0xFFFFFFFF
"""The count of an immortal object in a 64-bit build of these versions; 3.14 has another."""

_SKIPPED = frozenset((FrameType, GeneratorType, CoroutineType, AsyncGeneratorType))
"""An interpreter frame belongs to one of these until its count says that nobody else wants it."""


def supports(version: str) -> bool:
    """Whether a version of CPython, as in "3.12.1", is one of those that ``immortalize`` was written for."""
    return tuple(version.split(".")[:2]) in [(str(major), str(minor)) for major, minor in _VERSIONS]


def supported() -> bool:
    """Whether this interpreter is one of those that ``immortalize`` was written for.

    These are CPython 3.12 and 3.13, 64-bit, neither free-threaded nor a debug build.
    """
    return (
        sys.implementation.name == "cpython"
        and sys.version_info[:2] in _VERSIONS
        and sys.maxsize == (1 << 63) - 1
        and not set(sys.abiflags) & {"t", "d"}
    )


def immortalize() -> int:
    """Makes immortal whatever can be reached from an object that the garbage collector tracks.

    Left out are frames, generators and coroutines, and atoms (numbers, texts) that nothing else refers to. Objects made
    later live and die as always. The memory of an immortal object is never freed, so call this once, when all is
    loaded, in a process that only forks from then on. Takes about a microsecond for each object.

    Returns:
        Number of objects that were made immortal; 0 when called again with nothing new.

    Raises:
        RuntimeError: This interpreter is not ``supported``.
    """
    if not supported():
        raise RuntimeError(
            f"objects can be made immortal in 64-bit CPython 3.12 and 3.13 only, this is {sys.version.split()[0]} "
            f"of {sys.implementation.name} (abiflags {sys.abiflags!r})"
        )
    collecting, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    gc.unfreeze()  # frozen objects are in no list
    try:
        return _mark_all(gc.get_objects())
    finally:
        if frozen:
            gc.freeze()
        if collecting:
            gc.enable()


def _mark_all(waiting: list[Any]) -> int:
    """Marks the objects in a list of the caller's own and what they refer to; empties the list."""
    count_of, referents, at, skipped = sys.getrefcount, gc.get_referents, ctypes.c_uint64.from_address, _SKIPPED
    marked = 0
    while waiting:
        thing = waiting.pop()
        kind = type(thing)
        # The mark is also what says that an object has been here before.
        if kind in skipped or count_of(thing) >= _MARK:
            continue
        at(id(thing)).value = _MARK
        marked += 1
        waiting.append(kind)
        if kind is CodeType:  # not a container to the collector
            waiting += (
                thing.co_consts, thing.co_names, thing.co_filename, thing.co_name, thing.co_qualname,
                thing.co_linetable, thing.co_exceptiontable,
            )  # fmt: skip
        else:
            waiting += referents(thing)
    return marked
