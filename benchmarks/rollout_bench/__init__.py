"""The parts of ``benchmarks/rollout.py``.

Keys of ``rollout.json``. Times are in the unit that the key ends with.

``schema``
    1.
``machine``
    As in ``grading.json``.
``options``
    What the run was asked for: ``quick``, ``concurrency``, ``problems``, ``n`` (attempts at each), ``seed``,
    ``tokenizer``, ``protocol``, and ``scale``: a turn takes this part of the time that a server would.
``rollout``
    ``attempts``, ``correct``, ``faults``, ``turns``, ``tokens`` (sampled), ``elapsed_s``;
    ``turn_tokens`` and ``trajectory_tokens`` (``p50``, ``p99``, ``max``);
    ``own_cpu_ms``: CPU time of the event loop's thread for a turn, without the engine's; it holds the sandbox's and the
    grader's callers and the writing of the files, not the sandbox's own thread and processes, nor the ticks below;
    ``process_cpu_ms``: that of the whole process for a turn, without the engine's;
    ``engine_wait_cpu_ms``: what a wait of the engine costs by itself, which is not in ``own_cpu_ms``;
    ``store_cpu_ms``: what of ``own_cpu_ms`` went into writing the files;
    ``lag_ms``: how late the event loop came to a tick that was due every 20 ms: ``n``, ``p50``, ``p99``, ``max``;
    ``idle_lag_ms``: the same before the run, when nothing was to be done: what the machine alone makes of it;
    ``stretch_ms``: the CPU time that the loop's thread took between two ticks: the part of the lag that is ours and not
    the machine's; the same keys;
    ``sandbox_wait_share``: share of the attempts' time that code waited for a place in the sandbox;
    ``work_share``: share of it that code ran, waited or was graded; the rest was waiting for the engine;
    ``sandbox_run_ms``: median time of a program.
``growth``
    Own CPU time of a turn, in ms, at attempts of ``short`` and of ``long`` (four times as many) turns of equal length,
    and ``ratio``: 1 where a turn costs the same however long the attempt is.
``calls``
    A list of ``prompt_tokens``, ``in_flight`` and ``cpu_ms``: CPU time of the loop's thread for a call of a vLLM server
    that answers 300 tokens at once. It is not in the figures above, whose engine is in the process.
``targets``
    As in ``grading.json``.
"""
