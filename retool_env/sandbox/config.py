"""The sandbox's configuration: one frozen model, checked when it is made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

TierName = Literal["auto", "nsjail", "landlock", "none"]

DEFAULT_PACKAGES = ("numpy", "sympy", "mpmath", "scipy", "pandas")


class SandboxConfig(BaseModel):
    """Everything a sandbox can be told.

    Attributes:
        tier: ``auto`` takes nsjail where it runs, else landlock. ``none`` is a plain subprocess with resource limits,
            for throw-away containers; it is never chosen by ``auto`` and warns.
        timeout_s: Wall-clock limit of one program in seconds, from its start. Time in which the program was ready to
            run but had no core is not counted. (ReTool's evaluation uses 5 s.)
        memory_mb: MiB that a program may use above what the preloaded libraries take.
        max_output_bytes: Bytes of standard output and error kept together; a program that writes more is stopped.
        tmp_mb: MiB of the program's private /tmp (nsjail tier; the landlock tier has no writable folder).
        packages: Distributions that a program can import, with what they depend on. Those that are not installed are
            left out. Anything else that is installed is out of reach.
        preload: Modules imported once, ahead of all programs. None means numpy and sympy, where allowed.
        python: Interpreter of another virtual environment to run programs in, or None for this one.
        max_concurrency: Programs that run at the same time; more wait in a queue. None means four a core.
        standby: Children of each zygote kept ready ahead of demand. None means two a core.
        max_queue: Programs given to ``submit`` that may wait; the next ``submit`` blocks until one has started.
        max_sessions: Sessions open at the same time; None means 512. Fewer, as with ``max_concurrency`` and
            ``standby``, where this process's limit on open files leaves less room (six for a session).
        session_idle_s: Seconds without a call after which a session is evicted, so that a forgotten one does not hold
            its memory for ever.
        zygotes: Zygotes of each kind. None means one for every four cores: one zygote forks about as fast as four cores
            run the shortest programs.
        light: Whether there is also a light zygote, with the standard library only, which forks faster. It gets the
            programs whose text holds no name of a third-party module; one that imports such a module anyway (by a
            computed name) works there too, and waits for the import.
        immortal: Make all that is preloaded immortal, so that reference counts do not make children copy its memory.
            A trick that depends on the version of CPython: 3.12 and 3.13 only.
        seed: Seed of ``random`` and ``numpy.random`` in every program.
        echo: Whether the value of a last expression is shown, as in a notebook.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tier: TierName = "auto"
    timeout_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 5.0
    memory_mb: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    max_output_bytes: Annotated[int, Field(ge=1024, le=1 << 28)] = 1 << 20
    tmp_mb: Annotated[int, Field(ge=1, le=4096)] = 32
    packages: tuple[str, ...] = DEFAULT_PACKAGES
    preload: tuple[str, ...] | None = None
    python: str | None = None
    max_concurrency: Annotated[int, Field(ge=1, le=900)] | None = None
    standby: Annotated[int, Field(ge=0, le=900)] | None = None
    max_queue: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    max_sessions: Annotated[int, Field(ge=0, le=2048)] | None = None
    session_idle_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 3600.0
    zygotes: Annotated[int, Field(ge=1, le=64)] | None = None
    light: bool = True
    immortal: bool = False
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    echo: bool = True
