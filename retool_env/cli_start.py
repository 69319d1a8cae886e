"""Where the console script ``retool`` begins, so small that a Ctrl-C finds it loaded.

The imports of the command take a good part of a second. Here they are inside the ``try``: an early Ctrl-C ends the
command with exit code 130 and not with a traceback through somebody's import statements.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Runs ``retool``. For the console script only: afterwards a Ctrl-C ends the process without a word."""
    try:
        from retool_env.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        # All is said and done: an impatient Ctrl-C while the interpreter shuts down (it waits for threads) must not
        # print a traceback from in there. A process ended by the signal is 130 in the shell, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
