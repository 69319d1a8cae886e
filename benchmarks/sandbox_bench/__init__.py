"""The parts of ``benchmarks/sandbox.py``: one module for each topic, what they share, and the ways to show it.

Keys of ``sandbox.json``. Times are in the unit that the key ends with; a *summary* is
``{"n", "p50_ms", "p95_ms", "p99_ms", "mean_ms"}``; ``slowness`` is how many times longer a fresh Python takes for P1
beside that measurement than on the machine of the targets; a part that cannot be measured here is
``{"unsupported": reason}`` in place of its figures. Fresh Pythons start in a plain environment: the start-up hook of an
editable install would more than double their time, and flatter everything that is measured beside them.

``schema``
    1.
``machine``
    ``cpu``, ``cores``, ``memory_gb``, ``kernel``, ``load_1min``, ``root``, ``tier``, ``python``, ``packages`` (name to
    version).
``options``
    What the run was asked for: ``quick``, ``sections``, ``pause_ms``.
``latency``
    ``slowness``; ``ways``: way -> program -> summary and ``ratio`` (p50 of a fresh Python over this one's);
    ``fork_floor``: ``small`` and ``loaded``, summaries; ``unsupported``: way -> reason.
``throughput``
    ``slowness``; ``per_core``: way -> program -> concurrency (text) -> executions a second and core; the way
    ``subprocess`` has the single concurrency "cores"; ``unsupported``: way -> reason.
``sessions``
    ``slowness``; ``open`` (with the first turn), ``turn`` (after a pause), ``turn_at_once`` (right after the one
    before), ``bare`` (after a pause, a bare Python sends a byte back), ``fork``: summaries; ``memory_mb``:
    ``plain`` and ``immortal``, each with ``idle`` and ``after_sympy``, each ``{"n", "median", "largest"}``; ``many``:
    ``asked``, ``open``, ``answered``, ``kept`` (that still knew their state), ``open_s``, ``private_mb`` (median of
    one; None where the kernel does not say), ``page_tables_mb`` (the same), ``descriptors`` (of this process, for all)
    and, where fewer were open than asked for, ``refused`` (why).
``kill``
    ``slowness``; ``runaway`` and ``fork_bomb``: summaries of the time from the kill to the end of the last process;
    ``verdict``: of the time from the deadline to the result; ``owner``: of the time from SIGKILL of the owner to the
    end of the last program.
``overload``
    ``slowness``; ``program``; ``levels``: number queued at once (text) -> ``queue`` (summary of the time each waited),
    ``not_ok``, ``overtaken`` (places in line that the unluckiest one lost), ``total_s``; ``growth``: p99 at the
    largest level over p99 at half of it.
``profile``
    ``alone_ms``: program -> the computation by itself in a process that has done similar ones before; ``idle`` and
    ``busy``: program -> ``wall_ms``, ``program_cpu_ms``, ``program_faults``, and for each execution ``host_cpu_ms``,
    ``client_cpu_ms``, ``zygote_cpu_ms``, ``children_cpu_ms`` and ``children_faults`` (a child's whole life: fork,
    containment, readying, program); ``turn``: ``wall_ms``, ``program_cpu_ms``, ``host_cpu_ms`` and ``client_cpu_ms`` of
    the next turn of a live session.
``peers``
    Name -> ``version``, ``python``, ``what`` (what is called), or ``unsupported``. Their latencies are ways of
    ``latency``.
``targets``
    A list of ``{"topic", "name", "unit", "measured", "scaled", "target", "verdict"}``: ``scaled`` is the figure divided
    by (a rate: multiplied by) ``slowness``, or None where the machine's speed does not matter; verdicts are "met",
    "met, scaled", "not met" and "not measured".
"""
