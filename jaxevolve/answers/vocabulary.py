"""The names of mathematics: what letters and commands mean by themselves."""

from jaxevolve.answers.tokens import Token

TRIGONOMETRIC = {
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc", "tg": "tan",
    "cis": "cis",
}  # fmt: skip
INVERSE = {"sin": "asin", "cos": "acos", "tan": "atan"}
FUNCTIONS = TRIGONOMETRIC | {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "ln": "ln", "log": "log",
    "lg": "log", "exp": "exp", "abs": "abs", "floor": "floor", "ceil": "ceil",
}  # fmt: skip
CONSTANTS = {
    "pi": "pi", "e": "e", "i": "i", "infty": "oo", "infinity": "oo", "inf": "oo", "oo": "oo",
}  # fmt: skip
GREEK = frozenset({
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta",
    "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi",
    "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi",
    "Omega", "ell", "hbar",
})  # fmt: skip
FRACTIONS = frozenset({"frac", "dfrac", "tfrac", "cfrac"})
ROOTS = frozenset({"sqrt", "cbrt"})
FENCES = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}
BARS = frozenset({"|", "\\|", "\\vert", "\\lvert", "\\rvert"})
ACCENTS = frozenset({
    "overline", "bar", "vec", "hat", "widehat", "overrightarrow", "overleftrightarrow", "overarc",
    "mathbb", "mathcal",
})  # fmt: skip
PREFIXES = frozenset({"angle", "triangle", "odot", "measuredangle"})
KNOWN = FUNCTIONS.keys() | CONSTANTS.keys() | ROOTS


def is_known_word(word: str) -> bool:
    """Tells whether a word of letters has a mathematical meaning of its own."""
    return word in KNOWN or (word in GREEK and len(word) > 3)


def is_name(tokens: list[Token]) -> bool:
    """Tells whether tokens are a bare name, such as x, f(x), AB, S_{ABC} or the angle ABC."""
    texts = [token.text for token in tokens]
    kinds = [token.kind for token in tokens]
    while "_" in texts:  # what a subscript says does not matter
        start = texts.index("_")
        group = texts[start + 1 : start + 2] == ["{"] and "}" in texts[start:]
        end = texts.index("}", start) + 1 if group else start + 2
        del texts[start:end], kinds[start:end]
    for kind, text in zip(kinds, texts):
        if kind == "num" or text in CONSTANTS or (kind == "op" and text not in "{}()'"):
            return False
        if kind == "cmd" and text[1:] not in GREEK | ACCENTS | PREFIXES:
            return False
    return any(kind != "op" for kind in kinds)
