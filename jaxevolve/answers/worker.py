"""The process that does algebra for `pool`: sympy and math-verify, under hard limits.

It is started by file name, imports nothing of jaxevolve, and speaks JSON by lines: a question
{"kind", "left", "right"} in, an answer {"verdict", "recycle"} out. An expression comes as
`algebra`'s tree, written as lists, a number as ["num", "3/4"], and LaTeX as ["latex", "..."].
"""

import json
import os
import random
import resource
import signal
import sys
from typing import Any

import sympy
from math_verify import parse, verify
from sympy.core.relational import Relational

_DIGITS = 50
_TOLERANCE = sympy.Float("1e-40")
_TINY = sympy.Float("1e-5")
_RECYCLE_KB = 64 * 1024
_FUNCTIONS = {
    "sin": sympy.sin,
    "cos": sympy.cos,
    "tan": sympy.tan,
    "cot": sympy.cot,
    "sec": sympy.sec,
    "csc": sympy.csc,
    "asin": sympy.asin,
    "acos": sympy.acos,
    "atan": sympy.atan,
    "sinh": sympy.sinh,
    "cosh": sympy.cosh,
    "tanh": sympy.tanh,
    "ln": sympy.log,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceil": sympy.ceiling,
    "fact": sympy.factorial,
    "binom": sympy.binomial,
}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}


def build(tree: Any) -> sympy.Basic:
    """Builds a sympy object from a tree."""
    if isinstance(tree, str):
        return _CONSTANTS.get(tree) or sympy.Symbol(tree, real=True)
    operator, *arguments = tree
    if operator == "num":
        return sympy.Rational(arguments[0])
    if operator == "latex":
        return _from_latex(arguments[0])
    values = [build(argument) for argument in arguments]
    if operator == "+":
        return sympy.Add(*values)
    if operator == "*":
        return sympy.Mul(*values)
    if operator == "^":
        return sympy.Pow(*values)
    return _FUNCTIONS[operator](*values)


def _from_latex(latex: str) -> sympy.Basic:
    found = [
        x for x in parse(f"\\boxed{{{latex}}}", parsing_timeout=None) if not isinstance(x, str)
    ]
    if not found:
        raise ValueError("not a formula")
    names = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in found[0].free_symbols}
    value = found[0].subs(names)
    return value.doit() if isinstance(value, sympy.Expr) else value


def _under_root(value: sympy.Basic) -> bool:
    """Whether a symbol's sign matters to a root, a logarithm or a power with a symbol in it."""
    powers = any(
        power.base.free_symbols and not power.exp.is_integer for power in value.atoms(sympy.Pow)
    )
    return powers or any(log.free_symbols for log in value.atoms(sympy.log))


def _clearly_different(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Whether two values differ at some point, to many more digits than rounding touches."""
    names = sorted(left.free_symbols | right.free_symbols, key=str)
    source = random.Random(0)
    for _ in range(3 if names else 1):
        point = {name: sympy.Rational(source.randint(50, 200), 97) for name in names}
        first, second = left.subs(point), right.subs(point)
        gap = abs((first - second).evalf(_DIGITS))
        size = abs(first.evalf(_DIGITS)) + abs(second.evalf(_DIGITS))
        if gap.is_Float and size.is_Float and gap > max(size, _TINY) * _TOLERANCE:
            return True
    return False


def equal_expressions(left: sympy.Basic, right: sympy.Basic) -> bool:
    """Compares two values exactly."""
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return verify(left, right, timeout_seconds=None) and verify(
            right, left, timeout_seconds=None
        )
    if _under_root(left) or _under_root(right):
        free = left.free_symbols | right.free_symbols
        positive = {name: sympy.Symbol(name.name, positive=True) for name in free}
        left, right = left.subs(positive), right.subs(positive)
    difference = left - right
    if difference == 0:
        return True
    if _clearly_different(left, right):
        return False
    for simplify in (sympy.expand, sympy.radsimp, sympy.simplify):
        if simplify(difference) == 0:
            return True
    return difference.equals(0) is not False


def equal_equations(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Compares left = 0 and right = 0: their numerators must be the same up to a number."""
    first, second = (sympy.expand(sympy.together(x).as_numer_denom()[0]) for x in (left, right))
    if first == 0 or second == 0:
        return first == second
    ratio = sympy.cancel(first / second)
    return bool(ratio.is_number) and ratio not in (sympy.zoo, sympy.nan)


def verdict(question: dict[str, Any]) -> bool | None:
    """Answers a question; None where sympy cannot."""
    try:
        left, right = build(question["left"]), build(question["right"])
        if isinstance(left, Relational) or isinstance(right, Relational):
            return verify(left, right, timeout_seconds=None) and verify(
                right, left, timeout_seconds=None
            )
        compare = equal_equations if question["kind"] == "equation" else equal_expressions
        return bool(compare(left, right))
    except Exception:  # whatever sympy raises on strange input, it has shown nothing
        return None


def _peak_kb() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def main(seconds: float, memory_mb: int) -> None:
    """Serves until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing that a library prints may look like a reply
    sys.set_int_max_str_digits(20_000)
    for warm in ("expression", "equation"):
        verdict({"kind": warm, "left": ["latex", r"\sqrt{x^2+1}"], "right": ["^", "x", "e"]})
    if sys.platform == "linux":  # elsewhere kernels do not enforce it; the time limit remains
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limit = used + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start_kb = _peak_kb()
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        # Should the parent be gone when the time is up, the alarm ends this process.
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 1)
        answer = verdict(json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply = {"verdict": answer, "recycle": _peak_kb() - start_kb > _RECYCLE_KB}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
