"""Typical programs: what the zygote, its learners and its idle children run ahead of time.

This file is shipped into the sandbox.
"""

WARM_UP = {
    "numpy": """
import numpy as np, numpy.random, numpy.linalg
m = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
np.linalg.eigvals(m), np.linalg.solve(m, np.ones(3)), np.linalg.det(m), m @ m
np.random.rand(3), np.random.default_rng(1)
np.arange(6).reshape(2, 3).sum(axis=0).mean(), np.sort(np.array([3, 1, 2])), np.where(m > 1, m, 0), repr(m), str(m)
""",
    "sympy": """
import sympy as sp
a, n = sp.symbols(name), sp.symbols('n', integer=True)
for e in (sp.expand((2*a - 3)**4), sp.factor(a**3 - 8), sp.integrate(a*sp.exp(a), a), sp.diff(sp.sin(a)**2, a)):
    str(e)
for e in (2*a**2 - 7*a + 3, a**3 - 2*a - 4, sp.Eq(3*a, 7)):
    str(sp.solve(e, a))
str(sp.simplify(sp.cos(a)**2 + sp.sin(a)**2)), sp.Rational(2, 7) + 1, sp.sqrt(12), sp.N(sp.pi, 20), sp.binomial(9, 4)
sp.factorint(360), sp.isprime(97), sp.prime(7), sp.divisors(28), sp.gcd(24, 36), sp.totient(10), sp.nsimplify(0.25)
str(sp.Sum(n**2, (n, 1, 9)).doit()), sp.Matrix([[2, 1], [1, 3]]).inv(), str(sp.limit(sp.sin(a)/a, a, 0))
str(sp.solve([a + n - 5, a - n - 1], [a, n])), sp.sympify('a**2 + 1'), sp.series(sp.exp(a), a, 0, 4)
""",
}
USUAL_NAMES = ("t", "m", "k", "c", "b", "a", "y", "x")
"""One for each round: sympy keeps what it finds out about a symbol, the latest longest. CPython specialises bytecode as
it runs; after this many rounds it has settled."""

TYPICAL = (
    (
        "math",
        """
import math, random
values = [k * k for k in range(20)]
table = {str(v): v for v in values}
def f(n):
    return n if n < 2 else f(n - 1) + f(n - 2)
class Point:
    def __init__(self, x): self.x = x
print(f(10), sum(values), sorted(table), f"{math.pi:.4f}", Point(3).x)
try:
    1/0
except ZeroDivisionError as e:
    print(repr(e))
""",
    ),
    (
        "numpy",
        """
import numpy as np
m = np.array([[2, 1, 0], [1, 5, -2], [7, 1, 3]])
print(np.linalg.eigvals(m), m.sum(), np.linalg.det(m), np.linalg.inv(m) @ m, np.linalg.solve(m, [1, 2, 3]))
print(np.arange(4).reshape(2, 2) * 0.5, np.mean([1, 2, 4]), np.sqrt(2.0))
""",
    ),
    (
        "sympy",
        """
import sympy as sp
x = sp.symbols('x')
print(sp.expand((x + 2)**3), sp.solve(x**2 - 9*x + 14, x), sp.Rational(1, 3))
""",
    ),
)
"""Few and ordinary: each child that waits runs them."""

LEARNT_ONLY = (
    (
        "sympy",
        """
import sympy as sp
x, y = sp.symbols('x y')
print(sp.factor(x**2 - 9), sp.simplify((x**2 - 1)/(x - 1)), sp.solve(sp.Eq(2*x + 1, 7), x))
print(sp.solve([sp.Eq(x + y, 5), sp.Eq(x - y, 1)], [x, y]), sp.integrate(x**2, (x, 0, 1)))
print(sp.diff(x**3, x), sp.sqrt(8), sp.factorint(36))
""",
    ),
)
"""Run by a learner only: a child that waits copies the memory they write to, which takes a fraction of the time."""
