"""A child's standard streams: how its output gets to the host with few wake-ups, and none is lost at a deadline.

Standard library only: this file is shipped into the sandbox.
"""

import io
import os
import signal
from types import FrameType
from typing import IO, Any


class Output(io.FileIO):
    """A standard stream that can keep what is written to it.

    Attributes:
        keeps: Whether it does so now, for ``take``.
    """

    keeps = False
    _kept: tuple[bytes, ...] = ()

    def write(self, data: Any, /) -> int:
        """Writes data, or keeps it."""
        if not self.keeps:
            return super().write(data)
        self._kept = (*self._kept, bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Returns what was kept."""
        kept, self._kept = self._kept, ()
        return b"".join(kept)

    def write_all(self, data: bytes) -> None:
        """Writes all of it."""
        while data:
            data = data[super().write(data) :]


def pipe_file(file: Output, errors: str) -> io.TextIOWrapper:
    """Makes the text file of a descriptor that is going to be a pipe: files ask theirs whether it can be rewound."""
    fd = file.fileno()
    before, pipe = os.dup(fd), os.pipe()
    os.dup2(pipe[1], fd)
    try:
        return io.TextIOWrapper(io.BufferedWriter(file), encoding="utf-8", errors=errors)
    finally:
        os.dup2(before, fd)
        for other in (before, *pipe):
            os.close(other)


def flush_on_signal(out: IO[str]) -> None:
    """Has a signal write buffered output: the host sends it, so that a time-out shows what was printed so far.

    Writing each line at once would do it too, at the price of a wake-up of the host for every line.
    """

    def flush(signum: int, frame: FrameType | None) -> None:
        try:
            out.flush()
        except BaseException:  # the signal came in the middle of a write, or the program closed it
            return

    # Not SIGALRM: that one belongs to the program.
    signal.signal(signal.SIGRTMAX, flush)
