"""The parts of ``benchmarks/grading.py``: one module for each topic, the graders it compares, and the ways to show it.

Keys of ``grading.json``. Times are in the unit that the key ends with. What a grader says of an answer is "correct",
"wrong", "timed out" (it says so itself), "raised", "hung" (killed at the limit) or "died" (it ended its process).

``schema``
    1.
``machine``
    ``cpu``, ``cores``, ``memory_gb``, ``kernel``, ``load_1min``, ``root``, ``python``, ``packages`` (name to version).
``options``
    What the run was asked for: ``quick``, ``sections``, ``limit_s``, ``many_limit_s``.
``graders``
    Grader -> ``what`` is called, or ``unsupported``: the reason why it is not compared.
``latency``
    Kind of answer -> grader -> ``n``, ``p50_us``, ``p99_us``, ``right`` (verdicts that were right, of ``n``). Kinds are
    ``integer`` and ``latex``, where the text is the box alone, and ``integer_turn`` and ``latex_turn``, where it ends a
    turn of 300 characters. Each gold has eight answers, as in a group of rollouts. The first few of a block, for which
    the processor is cold, are not counted.
``corpus``
    Grader -> ``n``, ``right``, ``false_positives`` and ``false_negatives`` (lists of ids), ``policy_free`` (``n``, and
    how many of each are not a matter of policy), and how many were ``timed_out``, ``raised``, ``hung`` and ``died``.
    Without a verdict an answer counts as not correct.
``pairs``
    The same for math-verify's own test pairs, ids being their line numbers in ``file:line``, with ``plain`` (``n`` and
    ``right`` of the pairs of which neither side is longer than 100 characters or has several boxes); in place of all
    this ``unsupported`` where the run was not given them.
``many``
    ``n``, ``hanging``, ``hungry``, ``malformed``, ``limit_s``; ``plain_s`` (without the hanging and hungry answers),
    ``restart_s`` (an expression's time after a kill, in the median, less its time in a warm worker); ``serial`` and
    ``threads``: ``workers``, ``total_s``, ``kills``, ``missed`` (correct answers that were not scored 1),
    ``paid`` (others that were), ``explained_s`` (``plain_s`` and, for each kill, ``limit_s`` and ``restart_s`` over the
    number of workers), ``alive`` (the grader still works), ``left_behind`` (processes after its shutdown).
``targets``
    A list of ``{"topic", "name", "unit", "measured", "target", "verdict"}``; verdicts are "met", "not met" and
    "not measured".
"""
