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
        standby: Children kept ready ahead of demand. None means two a core.
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
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    echo: bool = True
