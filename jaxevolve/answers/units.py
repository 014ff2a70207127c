r"""Which unit stands behind a number?

A unit is looked for only behind a value: \text{} or \mathrm{} with words, a known unit in bare
letters, any word of three letters or more that a space sets off, signs of degree and percent; with
powers, products and quotients of these. Units are not converted: 1 m and 100 cm are different.
"""

import re
from fractions import Fraction

from jaxevolve.answers.tokens import Token
from jaxevolve.answers.vocabulary import TRIGONOMETRIC, is_known_word

_SPELLINGS = {
    "deg": "degree degrees degs 度", "%": "percent percentage pct",
    "$": "dollar dollars usd", "cent": "cents ¢",
    "mm": "millimeter millimeters millimetre millimetres 毫米",
    "cm": "centimeter centimeters centimetre centimetres cms 厘米",
    "m": "meter meters metre metres 米", "dm": "decimeter decimeters 分米",
    "km": "kilometer kilometers kilometre kilometres 千米 公里",
    "in": "inch inches", "ft": "foot feet", "yd": "yard yards", "mi": "mile miles",
    "g": "gram grams 克", "kg": "kilogram kilograms 千克", "mg": "milligram milligrams",
    "lb": "pound pounds lbs", "oz": "ounce ounces",
    "L": "liter liters litre litres l 升", "mL": "milliliter milliliters ml",
    "s": "second seconds sec secs 秒", "min": "minute minutes mins 分钟",
    "h": "hour hours hr hrs 小时", "day": "days 天", "week": "weeks", "month": "months",
    "year": "years yr yrs", "mph": "", "rad": "radian radians", "N": "newton newtons",
    "J": "joule joules", "W": "watt watts", "V": "volt volts", "Hz": "hertz", "kPa": "",
    "ohm": "ohms Omega", "yuan": "元 rmb cny", "": "unit units",
}  # fmt: skip
_CANONICAL = {word: unit for unit, words in _SPELLINGS.items() for word in words.split()}
_CANONICAL |= {unit: unit for unit in _SPELLINGS if unit.isalpha()}
_CHINESE_POWERS = {"平方": 2, "立方": 3}
_WORD_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_MULTIPLIERS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PIECE = re.compile(r"[A-Za-z]+|[^\W\d_]+|\d+|[\^/*%°$·-]")
_CURRENCIES = {"\\$": "$", "€": "eur", "£": "gbp", "¥": "yuan"}


def take_currency(tokens: list[Token]) -> tuple[list[Token], str | None]:
    """Takes a sign of currency off the front (behind a minus sign or before)."""
    for index, token in enumerate(tokens[:2]):
        if token.text in _CURRENCIES and all(before.text == "-" for before in tokens[:index]):
            return tokens[:index] + tokens[index + 1 :], _CURRENCIES[token.text]
    return tokens, None


def take_unit(tokens: list[Token]) -> tuple[list[Token], str | None, Fraction]:
    """Takes the unit off the end of a value.

    Returns:
        (the tokens of the value, the unit or None, what a word such as "million" multiplies by).
    """
    functions = (t for t in tokens[:-1] if t.kind in ("cmd", "word", "name"))
    if any(token.text.lstrip("\\") in TRIGONOMETRIC for token in functions):
        return tokens, None, Fraction(1)  # sin 30 degrees: the sign belongs to the argument
    for start in range(1, len(tokens)):
        if _begins_unit(tokens[start - 1], tokens[start], tokens[start + 1 :]):
            text = _unit_text(tokens[start:])
            if text is not None:
                unit, multiplier = _canonical(text)
                return tokens[:start], unit or None, multiplier
    return tokens, None, Fraction(1)


def _begins_unit(before: Token, token: Token, after: list[Token]) -> bool:
    if before.kind == "op" and before.text not in (")", "}", "]", "!"):
        return False
    if token.kind == "text":
        return True
    if token.kind == "name":
        return token.text in _CANONICAL or (len(token.text) > 1 and not is_known_word(token.text))
    if token.kind == "word":
        if not (before.kind == "num" or before.text == "}" or before.text == "\\pi"):
            return False
        if len(token.text) == 1 or not token.text.isascii():
            goes_on = after and after[0].text not in ("/", "^")
            alone = token.text in _CANONICAL and token.spaced and not goes_on
            return not token.text.isascii() or alone
        return token.text in _CANONICAL or _is_unknown_word(token)
    if token.text in ("°", "\\degree", "%", "\\%"):
        return True
    if token.text == "\\Omega":
        return before.kind == "num" and not after
    follows = [piece.text for piece in after[:3]]
    return token.text == "^" and (
        follows[:1] in (["\\circ"], ["°"]) or follows[:2] == ["{", "\\circ"]
    )


def _is_unknown_word(token: Token) -> bool:
    return token.spaced and len(token.text) > 2 and not is_known_word(token.text)


def _unit_text(tokens: list[Token]) -> str | None:
    """The unit as plain text, or None when something else is among it."""
    text = ""
    for token in tokens:
        if token.kind in ("text", "name", "word"):
            known = token.text in _CANONICAL or text.endswith("° ")  # °C
            if token.kind == "word" and len(token.text) < 3 and not known:
                return None
            text += f" {token.text} "
        elif token.kind == "num" and text.rstrip(" {-").endswith("^"):
            text += token.text
        elif token.text in ("\\circ", "\\degree", "°"):
            text = text.rstrip("^{ ") + " ° "
        elif token.text == "\\Omega":
            text += " Omega "
        elif token.text in ("%", "\\%"):
            text += " % "
        elif token.text in ("\\cdot", "*", "\\times"):
            text += "*"
        elif token.text in ("^", "/", "-") or token.text in "{}":
            text += token.text if token.text in "^/-" else ""
        else:
            return None
    return text


def _canonical(text: str) -> tuple[str, Fraction]:
    """A unit's one spelling, its factors in order with their exponents, and its multiplier.

    What follows a stroke or "per" is below it: J/kg K is J/(kg K).
    """
    pieces = _PIECE.findall(text.replace("\\", ""))
    powers: dict[str, int] = {}
    multiplier = Fraction(1)
    pending, below, last = 1, 1, ""
    for index, piece in enumerate(pieces):
        word = piece if len(piece) == 1 else piece.lower()
        for sign, degree in _CHINESE_POWERS.items():
            if word.startswith(sign):
                word, pending = word.removeprefix(sign), degree
        if word in _MULTIPLIERS:
            multiplier *= 10 ** _MULTIPLIERS[word]
        elif word in ("squared", "cubed"):
            powers[last] = powers.get(last, 0) * _WORD_POWERS[word]
        elif word in _WORD_POWERS:
            pending = _WORD_POWERS[word]
        elif word in ("per", "/"):
            below = -1
        elif word.isdigit():
            sign = -1 if pieces[index - 1] == "-" else 1
            powers[last] = powers.get(last, 0) * sign * int(word)
        elif word not in ("*", "·", "^", "-"):
            singular = word[:-1] if len(word) > 3 and word.endswith("s") else word
            names = {"°": "deg"} | _CANONICAL
            last = names.get(piece, names.get(word, singular))
            powers[last] = powers.get(last, 0) + below * pending
            pending = 1
    powers.pop("", None)  # "units" and the power of nothing ("units^2") are no unit
    factors = (f"{n}^{p}" if p != 1 else n for n, p in sorted(powers.items()) if p)
    return " ".join(factors), multiplier
