"""The child: runs one program and reports how it ended.

Runs inside the sandbox with the standard library only. Once the program has started nothing here can be trusted any
more, the host included in its reading of what this file sends. This module has its own copy of the builtins, and
binds beforehand what else a program may replace, so that one that breaks them is still reported properly.
"""

import __future__

import _sitebuiltins
import ast
import atexit
import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import linecache
import math
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
from types import CodeType, FrameType, ModuleType
from typing import IO, NoReturn

from retool_env.sandbox import wire

FILENAME = "main.py"

_exit = os._exit
_TracebackException, _StackSummary = traceback.TracebackException, traceback.StackSummary
_FUTURE_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class AllowedPackages:
    """A meta path finder for the allow-listed distributions, whose parent folder may not be listed or read.

    Attributes:
        modules: Top-level module name -> path of its package folder or of its single file.
    """

    def __init__(self, modules: dict[str, str]):
        self.modules = modules

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a top-level module; submodules are found by Python's own finder in the package's folder."""
        location = self.modules.get(name)
        if location is None or path is not None:
            return None
        if os.path.isdir(location):
            start = os.path.join(location, "__init__.py")
            if os.path.exists(start):
                return importlib.util.spec_from_file_location(name, start, submodule_search_locations=[location])
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [location]
            return spec
        return importlib.util.spec_from_file_location(name, location)


def preload(modules: list[str]) -> None:
    """Imports what every child should find ready, and readies the interpreter for programs."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    sys.argv[:] = [FILENAME]
    for name in modules:
        importlib.import_module(name)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")


def serve(control: socket.socket) -> NoReturn:
    """Says that it is ready, waits for a program, runs it, reports, and waits to be killed. Does not return."""
    control.send(wire.READY)
    header = control.recv(wire.RUN_HEAD.size)
    if len(header) != wire.RUN_HEAD.size:
        _exit(0)
    size, seed, limit_s, echo = wire.RUN_HEAD.unpack(header)
    source = wire.recv_body(control, size)
    _limit_cpu(limit_s)
    _seed(seed)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")
    sys.stdout = out = _text_file(1, "strict")
    sys.stderr = err = _text_file(2, "backslashreplace")
    _flush_before_the_deadline(limit_s, out)
    code, error_class = run(source.decode("utf-8", "surrogatepass"), echo, err)
    for stream in (sys.stdout, out, sys.stderr, err):
        try:
            stream.flush()
        except BaseException:  # closed, replaced or broken by the program: its own loss
            continue
    try:
        control.send(wire.CLAIM_HEAD.pack(wire.CLAIM, code) + error_class.encode("utf-8", "replace")[:256])
        # The host kills this process when it has read the claim: exiting here would only delay it.
        control.recv(1)
    except BaseException:  # the program closed the socket: the exit status has to say it
        pass
    _exit(code & 255)


def run(source: str, echo: bool, err: IO[str]) -> tuple[int, str]:
    """Runs a program as ``__main__``; returns its exit code and the class name of what ended it, or ''."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    linecache.cache[FILENAME] = (len(source), None, source.splitlines(True), FILENAME)
    try:
        body, last = _split(source) if echo else (compile(source, FILENAME, "exec", dont_inherit=True), None)
        exec(body, main.__dict__)
        if last is not None:
            exec(last, main.__dict__)
        _finish()
    except SystemExit as stop:
        return _exit_code(stop, err)
    except BaseException as error:
        _report(error, err)
        return 1, type(error).__name__
    return 0, ""


def _split(source: str) -> tuple[CodeType, CodeType | None]:
    """Compiles a program in two: all but a last expression, and that expression so that its value is shown."""
    tree = ast.parse(source, FILENAME)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return compile(tree, FILENAME, "exec", dont_inherit=True), None
    shown = ast.Interactive([tree.body.pop()])
    body = compile(tree, FILENAME, "exec", dont_inherit=True)
    return body, compile(shown, FILENAME, "single", flags=body.co_flags & _FUTURE_FLAGS, dont_inherit=True)


def _finish() -> None:
    """What an interpreter does at its end: waits for threads, then runs what atexit holds."""
    if threading.active_count() > 1:
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _exit_code(stop: SystemExit, err: IO[str]) -> tuple[int, str]:
    code = stop.code
    if code is None:
        return 0, ""
    if isinstance(code, int):
        return code & 0x7FFFFFFF, "SystemExit" if code else ""
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
    own = [frame for frame in report.stack if frame.filename == FILENAME]
    report.stack = _StackSummary.from_list(own)
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _keep_own_frames(other, seen)


def _text_file(fd: int, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(fd, "w", closefd=False)), encoding="utf-8", errors=errors)


def _limit_cpu(limit_s: float) -> None:
    """Limits CPU time as well: threads must not turn one program's seconds into many. The kernel kills at the limit."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = math.ceil(used + limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(seed & 0xFFFFFFFF)


def _flush_before_the_deadline(limit_s: float, out: IO[str]) -> None:
    """Has buffered output written a few times before the limit, so that a time-out shows what was printed so far.

    Writing each line at once would do it too, at the price of a wake-up of the host for every line.
    """

    def flush(signum: int, frame: FrameType | None) -> None:
        try:
            out.flush()
        except BaseException:  # the signal came in the middle of a write, or the program closed it
            return

    signal.signal(signal.SIGALRM, flush)
    signal.setitimer(signal.ITIMER_REAL, limit_s * 0.5, limit_s * 0.2)
