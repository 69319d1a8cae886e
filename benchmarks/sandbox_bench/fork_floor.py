"""A process that forks: the least that any way of isolating an execution by a process of its own can cost.

    python -I -S fork_floor.py        a small interpreter with nothing imported
    python -I fork_floor.py loaded    one that has sympy and numpy loaded, as a zygote has

It has a single thread. For each line on its standard input it forks a child that exits at once, waits for it, and
answers with the seconds that took.
"""

import os
import sys
import time


def main() -> None:
    if sys.argv[1:] == ["loaded"]:
        import gc

        import numpy  # noqa: F401
        import sympy  # noqa: F401

        gc.freeze()
    for _ in sys.stdin:
        start = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
