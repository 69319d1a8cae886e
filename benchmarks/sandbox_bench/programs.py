"""The programs that are run. P1 to P4 are the ones that the targets are stated for."""

from __future__ import annotations

PROGRAMS = {
    "P1": "print(1+1)",
    "P2": "import sympy as sp; x=sp.symbols('x'); print(sp.expand((x+1)**5))",
    "P3": "import sympy as sp; x=sp.symbols('x'); print(sp.solve(x**2-5*x+6,x))",
    "P4": "import numpy as np; print(np.linalg.eigvals(np.arange(9).reshape(3,3)))",
}
_EXPECTED = {"P1": "2\n", "P2": "x**5 + 5*x**4", "P3": "[2, 3]\n", "P4": "["}

SIMILAR = """
import numpy as np, sympy as sp
a = sp.symbols('a')
for k in range(2, 12):
    str(sp.expand((a + k)**4)), str(sp.solve(a**2 - (k + 7)*a + 7*k, a)), str(np.linalg.eigvals(np.eye(4) * k))
"""
"""The same kind of work with other inputs, because sympy remembers results."""

_NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n"
"""Gives the process a name by which it is found in /proc (PR_SET_NAME)."""

RUNAWAY_NAME = "bench-runaway"
RUNAWAY = _NAMED.format(name=RUNAWAY_NAME) + "while True: pass"

FORK = "import os; os._exit(os.fork() == 0)"
FORK_BOMB_NAME = "bench-bomb"
FORK_BOMB = (
    _NAMED.format(name=FORK_BOMB_NAME)
    + """
import os, threading
def bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass
try:
    while True:
        threading.Thread(target=bomb).start()
except RuntimeError:
    bomb()
"""
)
"""Only for a sandbox in which ``FORK`` was seen to fail."""


def check(name: str, output: str) -> None:
    """Raises RuntimeError where a program's output is not what it prints."""
    if not output.startswith(_EXPECTED[name]):
        raise RuntimeError(f"{name} printed {output!r}")
