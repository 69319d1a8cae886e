"""Full or light: which zygote's child a program gets, and how many children each zygote is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from retool_env.sandbox import inventory
from retool_env.sandbox.config import SandboxConfig
from retool_env.sandbox.contained import Child
from retool_env.sandbox.execution import Job
from retool_env.sandbox.nursery import Nursery

_LONGEST_SCAN = 1 << 20


def third_party(config: SandboxConfig) -> tuple[bytes, ...]:
    """Returns the names of third-party modules, which send a program to a full zygote; none if none are preloaded."""
    world = inventory.take(config.packages, config.python)
    preload = inventory.default_preload(world) if config.preload is None else config.preload
    tops = {name.split(".")[0] for name in world.modules}
    if not any(name.split(".")[0] in tops for name in preload):
        return ()
    return tuple(sorted(name.encode() for name in {*tops, *(name.split(".")[0] for name in preload)}))


def is_light(program: bytes, libraries: tuple[bytes, ...]) -> bool:
    """Whether a program names none of the libraries; never if there are none.

    Looks for the names in the text, so it is quick, needs no parser (which hostile text could exhaust) and errs on the
    safe side: a name in a comment counts. Programs of more than 1 MiB are not looked at.
    """
    return bool(libraries) and len(program) <= _LONGEST_SCAN and not any(name in program for name in libraries)


def take_child(job: Job, nurseries: Sequence[Nursery]) -> Child | None:
    """Takes the child a job is to run in, or an idle one of its kind; None if there is none."""
    seat = job.seat
    if seat is not None:
        if seat.child is None and not seat.forkable:
            seat.child = _take_idle(nurseries, light=False, cold=True)
            if seat.child is not None:
                seat.child.seat = seat
        return seat.child
    if job.light:
        child = _take_idle(nurseries, light=True)
        if child is not None or any(nursery.light and nursery.zygote for nursery in nurseries):
            return child
    return _take_idle(nurseries, light=False)


def supply(due: Sequence[Job], nurseries: Sequence[Nursery], standby: int) -> None:
    """Asks for the children that are missing.

    Args:
        due: Jobs that could start at once, had they children.
        nurseries: Whom to ask.
        standby: Children that each is to keep ready beside.
    """
    wanted = [job.light for job in due if job.seat is None]
    for job in due:
        if job.seat is not None and not job.seat.asked:
            any(nursery.supply_seat(job.seat) for nursery in nurseries if not nursery.light)
    for light in (False, True):
        living = [nursery for nursery in nurseries if nursery.light is light and nursery.zygote is not None]
        if not living:
            if light:
                continue
            wanted = [False] * len(wanted)
        demand = sum(kind is light for kind in wanted)
        for i, nursery in enumerate(living):
            nursery.supply(standby + (demand + i) // len(living))


def _take_idle(nurseries: Sequence[Nursery], light: bool, cold: bool = False) -> Child | None:
    fullest_first = sorted(
        (nursery for nursery in nurseries if nursery.light is light), key=lambda nursery: -len(nursery.idle)
    )
    for nursery in fullest_first:
        child = nursery.take(cold)
        if child is not None:
            return child
    return None
