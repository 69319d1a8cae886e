"""The parts of ``retool bench env``: one module for each topic, and the ways to show it.

The topics: our own time for a turn, beside the sandbox (``own``); how that grows with the length of the text
(``length``); turns a second (``rates``); memory (``memory``). All of them use fixed actions: sampling long text from a
space takes longer than the step that is measured.

Keys of ``env.json``. Times are in the unit that the key ends with.

``schema``
    1.
``machine``
    ``cpu``, ``cores``, ``memory_gb``, ``kernel``, ``load_1min``, ``root``, ``tier``, ``python``, ``packages``.
``options``
    What the run was asked for: ``quick``, ``topics``, ``num_envs``.
``own``
    Protocol -> shape of the turn -> ``n``, ``chars`` (of the action) and, for one step each: ``own_p50_us`` and
    ``own_best_us`` (outside the call of the sandbox), ``cpu_p50_us`` (the same in CPU time of the thread),
    ``beside_program_p50_us`` (the step without the program's ``wall_s`` and ``queue_s``: with what the sandbox itself
    takes to hand a program over), ``step_p50_us`` (all of it), ``reset_p50_us``. Shapes: ``prose`` (text, then a short
    program), ``program`` (a long program), ``answer`` (text, then the answer, which is graded), ``output`` (a short
    program that prints as many characters).
``length``
    Protocol -> shape -> ``chars`` (a list; of the output where that is the shape), ``own_best_us`` (for each),
    ``ratios`` (t(2n) / t(n) for each but the first).
``rates``
    Face (``single``, ``vector``, ``group``) -> protocol -> ``code`` (three calls, then an answer) or ``no_code`` (an
    answer) -> ``turns_per_s`` (the median of a few runs, resets included) and ``host_cpu_us`` (CPU time of this process
    for a turn, its threads included and programs not); or face -> ``unsupported``. Beside the protocols a face has
    ``what`` (its class) and ``envs``. ``single`` is measured with gymnasium's ``benchmark_step``; ``group`` also has
    ``pettingzoo_turns_per_s``, of PettingZoo's ``performance_benchmark``, or null in a quick run.
``memory``
    Face -> ``envs`` and, in KiB of Python objects for each environment or agent, ``made_kb``, ``reset_kb`` (in an
    episode), ``ended_kb`` (after one with a call of 10 kB); or ``unsupported``.
``targets``
    A list of ``{"topic", "name", "unit", "measured", "target", "verdict"}``; verdicts are "met" and "not met".
"""
