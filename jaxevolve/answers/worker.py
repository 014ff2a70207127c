"""The processes that do algebra for `pool`: sympy and math-verify, under hard limits.

This file is started by name and imports nothing of jaxevolve. The first process loads the
libraries once and then only forks: a worker is there in milliseconds, in a process group of its
own. It listens on a socket for commands of five bytes, a letter and a number: "f" with a socket
forks a worker that serves it, and answers with the worker's process id; "k" ends a worker, and
answers when it is gone. It ends itself with all workers when the other side is gone.

A worker reads questions {"kind", "left", "right"} as JSON by lines and writes {"reply",
"recycle"}. The kinds are "expression" (are both the same?), "equation" (are left = 0 and right = 0
the same?) and "value" (what is this LaTeX, as an expression?). An expression is `algebra`'s tree
written as lists, a number as ["num", "3/4"].
"""

import gc
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
from typing import Any

import sympy
from math_verify import parse

_DIGITS = 50
_TOLERANCE = sympy.Float("1e-40")
_TINY = sympy.Float("1e-5")
_RECYCLE_KB = 64 * 1024
_SOFT = 0.85  # of the time a question has: when a worker gives it up by itself
_COMMAND = struct.Struct("!ci")
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
    # what sums and integrals come to
    "erf": sympy.erf,
    "gamma": sympy.gamma,
    "zeta": sympy.zeta,
    "Si": sympy.Si,
    "Ci": sympy.Ci,
    "Ei": sympy.Ei,
    "asinh": sympy.asinh,
    "harmonic": sympy.harmonic,
}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}
_LETTERS = {value: name for name, value in _CONSTANTS.items()}


class _TimeUp(BaseException):
    """Not an Exception, so that no library takes it for one of its own."""


def build(tree: Any) -> sympy.Basic:
    """Builds a sympy object from a tree."""
    if isinstance(tree, str):
        return _CONSTANTS.get(tree) or sympy.Symbol(tree, real=True)
    operator, *arguments = tree
    if operator == "num":
        return sympy.Rational(arguments[0])
    values = [build(argument) for argument in arguments]
    if operator == "+":
        return sympy.Add(*values)
    if operator == "*":
        return sympy.Mul(*values)
    if operator == "^":
        return sympy.Pow(*values)
    return _FUNCTIONS[operator](*values)


def tree_of(value: sympy.Basic) -> Any:
    """The tree of a sympy object; the inverse of `build`.

    Raises:
        ValueError: there is something in it that a tree cannot say, such as a sum left as it was.
    """
    if value in _LETTERS:
        return _LETTERS[value]
    if value is sympy.S.NegativeInfinity:
        return ["*", ["num", "-1"], "oo"]
    if isinstance(value, sympy.Float):
        value = sympy.Rational(str(value))
    if isinstance(value, sympy.Rational):
        return ["num", f"{value.p}/{value.q}"]
    if isinstance(value, sympy.Symbol):
        return value.name.translate(str.maketrans("", "", "\\{}"))
    operators = {sympy.Add: "+", sympy.Mul: "*", sympy.Pow: "^", sympy.exp: "exp", **_NAMES}
    if value.func not in operators:
        raise ValueError(f"no tree for {value.func}")
    return [operators[value.func], *map(tree_of, value.args)]


def value_of(latex: str) -> Any:
    """The tree of what LaTeX comes to, sums and integrals carried out."""
    parsed = parse(f"\\boxed{{{latex}}}", parsing_timeout=None)
    value = next(found for found in parsed if isinstance(found, sympy.Expr))
    names = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in value.free_symbols}
    return tree_of(value.subs(names).doit())


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
    for scale in (1, 1, 31, 1000) if names else (1,):
        point = {name: sympy.Rational(source.randint(50, 200) * scale, 97) for name in names}
        first, second = left.subs(point), right.subs(point)
        gap = abs((first - second).evalf(_DIGITS))
        size = abs(first.evalf(_DIGITS)) + abs(second.evalf(_DIGITS))
        if gap.is_Float and size.is_Float and gap > max(size, _TINY) * _TOLERANCE:
            return True
    return False


def equal_expressions(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Compares two values exactly."""
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


def reply_to(question: dict[str, Any]) -> Any:
    """Answers a question; None where sympy cannot."""
    try:
        if question["kind"] == "value":
            return value_of(question["left"])
        left, right = build(question["left"]), build(question["right"])
        compare = equal_equations if question["kind"] == "equation" else equal_expressions
        return bool(compare(left, right))
    except (Exception, _TimeUp):  # whatever sympy raises on strange input, it has shown nothing
        return None


def _peak_kb() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def _time_up(*_: Any) -> None:
    raise _TimeUp


def serve(connection: socket.socket, seconds: float, memory_mb: int) -> None:
    """Answers questions until the other side is gone."""
    if sys.platform == "linux":  # elsewhere kernels do not enforce it; the time limit remains
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limit = used + memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _time_up)
    start_kb = _peak_kb()
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            question = json.loads(line)
            reply = None
            try:
                # Again and again: a library may catch even this one.
                signal.setitimer(signal.ITIMER_REAL, _SOFT * seconds, 0.05)
                reply = reply_to(question)
            except _TimeUp:  # between the last line of the answer and the next one here
                pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            recycle = _peak_kb() - start_kb > _RECYCLE_KB
            stream.write(json.dumps({"reply": reply, "recycle": recycle}) + "\n")
            stream.flush()


def _end(worker: int) -> None:
    try:
        os.killpg(worker, signal.SIGKILL)
    except ProcessLookupError:  # it has not come to its own group yet
        os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def _obey(control: socket.socket, seconds: float, memory_mb: int) -> None:
    """Forks and ends workers as it is told to."""
    workers: set[int] = set()
    while True:
        message, files, *_ = socket.recv_fds(control, _COMMAND.size, 1)
        if not message:
            break
        command, number = _COMMAND.unpack(message)
        if command == b"f":
            number = os.fork()
            if number == 0:
                control.close()
                os.setsid()
                try:
                    serve(socket.socket(fileno=files[0]), seconds, memory_mb)
                finally:
                    os._exit(0)
            os.close(files[0])
            workers.add(number)
        elif number in workers:
            workers.remove(number)
            _end(number)
        control.sendall(_COMMAND.pack(command, number))
    for worker in workers:
        _end(worker)


def main(seconds: float, memory_mb: int, file: int) -> None:
    """Loads what is needed, says so, and obeys."""
    sys.set_int_max_str_digits(20_000)
    # What sympy loads and works out only when it is first needed, it does here once for all.
    squares = [["^", [name, "x"], ["num", "2"]] for name in ("sin", "cos")]
    one = ["num", "1"]
    reply_to({"kind": "expression", "left": ["+", *squares], "right": one})
    floors = {"left": ["floor", ["+", "x", one]], "right": ["+", ["floor", "x"], one]}
    reply_to({"kind": "expression", **floors})
    reply_to({"kind": "equation", "left": ["+", "x", "y"], "right": ["^", "x", "y"]})
    for latex in (r"\sum_{k=1}^{n} k", r"\int_0^1 \sqrt{x}\,dx", r"\lim_{x \to 0} x"):
        reply_to({"kind": "value", "left": latex})
    gc.collect()
    gc.freeze()  # what is loaded stays in pages that all workers share
    with socket.socket(fileno=file) as control:
        control.sendall(_COMMAND.pack(b"r", 0))
        _obey(control, seconds, memory_mb)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
