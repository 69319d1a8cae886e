"""The child: runs one program, or the programs of one session, and reports how each ended.

Runs inside the sandbox with the standard library only. Once a program has started nothing here can be trusted any
more, the host included in its reading of what this file sends. This module has its own copy of the builtins, and
binds beforehand what else a program may replace, so that one that breaks them is still reported properly.
"""

import __future__

import _sitebuiltins
import ast
import atexit
import builtins
import contextlib
import gc
import importlib
import io
import linecache
import math
import os
import random
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import IO, NoReturn

from retool_env.sandbox import kernel, wire
from retool_env.sandbox.streams import Output, flush_on_signal, pipe_file
from retool_env.sandbox.typical import TYPICAL, USUAL_NAMES, WARM_UP

FILENAME = "main.py"
_CELL = "cell_"

_exit = os._exit
_main_thread = threading.main_thread()
_TracebackException, _StackSummary = traceback.TracebackException, traceback.StackSummary
_NO_EXPRESSION = ("", *" \t)]}#@")
_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


def preload(modules: list[str]) -> None:
    """Imports what every child should find ready, and readies the interpreter for programs."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    sys.argv[:] = [FILENAME]
    for name in modules:
        importlib.import_module(name)
    warm_up()


def warm_up() -> None:
    """Does in the zygote what programs often do, so that no program has to pay for the first time."""
    for symbol in USUAL_NAMES:
        for name, source in WARM_UP.items():
            if name in sys.modules:
                exec(compile(source, FILENAME, "exec"), {"__name__": "__main__", "name": symbol})
        source = "print(1)\ntry:\n    1/0\nexcept ZeroDivisionError as e:\n    f'{e!r}'"
        run(source, True, io.StringIO(), _new_main(), FILENAME)


def rehearse(more: tuple[tuple[str, str], ...] = ()) -> None:
    """Runs typical programs, their output going nowhere, so that the memory they use is there and our own.

    A program that follows finds an interpreter like any other: modules were all imported before, ``random`` is seeded
    again, ``__main__`` is made anew.
    """
    gc.enable()
    before = sys.stdout, sys.stderr
    files = [io.TextIOWrapper(io.BufferedWriter(io.BytesIO()), encoding="utf-8") for _ in range(2)]
    sys.stdout, sys.stderr = files
    for name, source in (*TYPICAL, *more):
        if name in sys.modules:
            run(source, True, files[1], _new_main(), FILENAME)
            _finish(files[1])
    for file in files:
        file.flush()
    sys.stdout, sys.stderr = before


def serve(
    control: socket.socket,
    pages: kernel.Pages,
    interpreter: "Interpreter",
    fds: tuple[int, ...] = (),
    branch: Callable[[], int] | None = None,
    files: int = 64,
) -> NoReturn:
    """Says that it is ready, runs what comes, reports, and waits to be killed. Does not return.

    Args:
        control: The socket to the host.
        pages: What to copy in advance if the host says so.
        interpreter: What programs run in, as the zygote has made it.
        fds: Sent with READY and closed.
        branch: Makes a branch of this process, where it is forkable; returns 0 in the branch.
        files: Descriptors that a forkable one may have. Those in flight are counted for the user and held against this
            limit, so that a neighbour's could keep it from sending its own: it takes the limit afterwards.
    """
    interpreter.move_in()
    if fds:
        socket.send_fds(control, [wire.READY], fds)
        for fd in fds:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    else:
        control.send(wire.READY)
    packet, file = wire.recv_packet(control)
    if packet == wire.WARM:
        kernel.populate(pages)
        rehearse()
        interpreter.rehearse()
        gc.collect()
        gc.freeze()
        control.send(wire.WARM)
        packet, file = wire.recv_packet(control)
    while True:
        if packet == wire.FORK and branch is not None:
            control.send(interpreter.fork(branch))
            packet, file = wire.recv_packet(control)
            continue
        if len(packet) < wire.RUN_HEAD.size:
            _exit(0)
        call, seed, limit_s, echo = wire.RUN_HEAD.unpack_from(packet)
        code, error_class = interpreter.run(packet, file, call, seed, limit_s, echo)
        try:
            interpreter.report(control, wire.CLAIM_HEAD.pack(wire.CLAIM, call, code), error_class)
            # After the only program the host kills this process: exiting here would only delay it.
            packet, file = wire.recv_packet(control)
        except BaseException:  # the program closed the socket: the exit status has to say it
            _exit(code & 255)
        if not call:
            _exit(code & 255)


class Interpreter:
    """The state that a program finds: one program's, or a session's.

    Made in the zygote, so that a child has it without making it: on the way of a program, cold, each line counts.
    """

    def __init__(self, seed: int) -> None:
        self.started = False
        self.seed = seed
        self.main = ModuleType("__main__")
        self.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
        self.out_file, self.err_file = Output(1, "w", closefd=False), Output(2, "w", closefd=False)
        self.out: IO[str] = pipe_file(self.out_file, "strict")
        self.err: IO[str] = pipe_file(self.err_file, "backslashreplace")
        flush_on_signal(self.out)
        _seed(seed)

    def move_in(self) -> None:
        """Does in the child, before there is a program, what cannot be done in the zygote."""
        sys.stdin, sys.stdout, sys.stderr = self.stdin, self.out, self.err
        # What the zygote has made since it froze: else the first collection would go through it, in each child.
        gc.freeze()
        gc.enable()

    def rehearse(self) -> None:
        """Uses what ``_start`` uses, and seeds again: typical programs have run."""
        resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))
        _seed(self.seed)

    def run(self, packet: bytes, file: int, call: int, seed: int, limit_s: float, echo: bool) -> tuple[int, str]:
        """Runs a program; returns its exit code and the class name of what ended it, or an empty string."""
        if not self.started:
            self._start(call, seed, limit_s)
        try:
            source = _read_program(packet, file)
        except MemoryError:
            self.err.write("MemoryError: the program itself is larger than the memory it may use\n")
            ended = 1, "MemoryError"
        else:
            ended = run(source, echo, self.err, self.main, f"{_CELL}{call}.py" if call else FILENAME)
        if not call:
            _finish(self.err)
        self.out_file.keeps = self.err_file.keeps = True
        self._flush()
        self.out_file.keeps = self.err_file.keeps = False
        return ended

    def report(self, control: socket.socket, head: bytes, error_class: str) -> None:
        """Sends a claim: its head, the exception's class, and output that was not written before.

        What is there at the end goes with the claim, which wakes the host once instead of twice.

        Raises:
            OSError: The program has closed the socket. Its output is written all the same.
        """
        name = error_class.encode("utf-8", "replace")[: wire.CLAIM_NAME]
        out, err = self.out_file.take(), self.err_file.take()
        if len(out) + len(err) <= wire.CLAIM_KEPT:
            try:
                control.send(head + name + wire.CLAIM_OUTPUT.pack(len(out)) + out + err)
            except BaseException:  # closed by the program, or an alarm that the program has set
                self._write(out, err)
                raise
        else:
            self._write(out, err)
            control.send(head + name)

    def _write(self, out: bytes, err: bytes) -> None:
        for file, data in ((self.out_file, out), (self.err_file, err)):
            with contextlib.suppress(OSError):
                file.write_all(data)

    def fork(self, branch: Callable[[], int]) -> bytes:
        """Makes a branch; returns what the trunk, or the branch, has to tell the host."""
        if self.started:
            self._flush()
        try:
            if branch():
                return wire.FORKED
        except OSError as error:
            return wire.FORK_FAILED_HEAD.pack(wire.FORK_FAILED, error.errno or 0)
        _main_thread._set_native_id()  # type: ignore[attr-defined]
        return wire.READY

    def _flush(self) -> None:
        for stream in (sys.stdout, self.out, sys.stderr, self.err):
            try:
                stream.flush()
            except BaseException:  # closed, replaced or broken by the program: its own loss
                continue

    def _start(self, call: int, seed: int, limit_s: float) -> None:
        self.started = True
        if not call:  # a session's CPU time is the host's to limit, call by call: the kernel only knows a total
            _limit_cpu(limit_s)
        if seed != self.seed:
            _seed(seed)
        self.main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = self.main


def _read_program(packet: bytes, file: int) -> str:
    """Returns the program that came in a packet or in a memory file."""
    if file < 0:
        return packet[wire.RUN_HEAD.size :].decode("utf-8", "surrogatepass")
    try:
        size = os.fstat(file).st_size
        program = b""
        while len(program) < size:
            program += os.pread(file, size, len(program))
        return program.decode("utf-8", "surrogatepass")
    finally:
        os.close(file)


def run(source: str, echo: bool, err: IO[str], main: ModuleType, filename: str) -> tuple[int, str]:
    """Runs a program in ``main``; returns its exit code and the class name of what ended it, or ''."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    try:
        if not echo:
            exec(compile(source, filename, "exec", dont_inherit=True), main.__dict__)
        elif (quick := _split_lines(source, filename)) is not None:
            exec(quick[0], main.__dict__)
            sys.displayhook(eval(quick[1], main.__dict__))
        else:
            body, last = _split(source, filename)
            exec(body, main.__dict__)
            if last is not None:
                exec(last, main.__dict__)
        return 0, ""
    except SystemExit as stop:
        return _exit_code(stop, err)
    except BaseException as error:  # whatever the program raises is its own
        _report(error, err)
        return 1, type(error).__name__


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def _split_lines(source: str, filename: str) -> tuple[CodeType, CodeType] | None:
    """Does what ``_split`` does in a fraction of its time, where the last line is an expression of its own; else None.

    It is one if it is an expression by itself and all before it is a program by itself: then no bracket, string or
    backslash goes from one to the other. Without a backslash, no warning comes twice when ``_split`` has to do it.
    """
    source = source.rstrip(" \t\n")
    rest, _, last = source.rpartition("\n")
    if last[:1] in _NO_EXPRESSION or "\\" in source or "\r" in source or "\f" in source:
        return None
    try:
        shown = compile("\n" * source.count("\n") + last, filename, "eval", dont_inherit=True)
        body = compile(rest, filename, "exec", dont_inherit=True)
        if body.co_flags & _FUTURE_FLAGS:
            return None
    except (SyntaxError, ValueError):
        return None
    return body, shown


def _split(source: str, filename: str) -> tuple[CodeType, CodeType | None]:
    """Compiles a program in two: all but a last expression, and that expression so that its value is shown."""
    tree = ast.parse(source, filename)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return compile(tree, filename, "exec", dont_inherit=True), None
    shown = ast.Interactive([tree.body.pop()])
    body = compile(tree, filename, "exec", dont_inherit=True)
    return body, compile(shown, filename, "single", flags=body.co_flags & _FUTURE_FLAGS, dont_inherit=True)


def _finish(err: IO[str]) -> None:
    """What an interpreter does at its end: waits for threads, then runs what atexit holds."""
    try:
        if threading.active_count() > 1:
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:  # reported, as an interpreter does; the exit code stays
        _report(error, err)


def _exit_code(stop: SystemExit, err: IO[str]) -> tuple[int, str]:
    code = stop.code
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code & 0xFF, "SystemExit" if code & 0xFF else ""
    with contextlib.suppress(BaseException):  # an exit message that cannot be printed changes nothing
        err.write(f"{code}\n")
    return 1, "SystemExit"


def _report(error: BaseException, err: IO[str]) -> None:
    """Writes the traceback of an uncaught exception with the program's own frames only."""
    try:
        report = _TracebackException(type(error), error, error.__traceback__, compact=True)
        _keep_own_frames(report, set())
        text = "".join(report.format())
    except BaseException:  # a hostile __str__ or a broken traceback module
        text = f"{type(error).__name__}\n"
    with contextlib.suppress(BaseException):  # the program closed it
        err.write(text)


def _keep_own_frames(report: traceback.TracebackException | None, seen: set[int]) -> None:
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    own = [frame for frame in report.stack if frame.filename == FILENAME or frame.filename.startswith(_CELL)]
    report.stack = _StackSummary.from_list(own)
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _keep_own_frames(other, seen)


def _limit_cpu(limit_s: float) -> None:
    """Limits CPU time as well: threads must not turn one program's seconds into many. The kernel kills at the limit."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = math.ceil(used + limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed & 0xFFFFFFFF)
