r"""Other spellings of what a number, a time or a comparison is, into the one that is read.

All of it is by fixed rules on a cleaned text: number words and Chinese numerals that are a whole
answer, hexadecimal and binary literals, names of code modules, repeated decimals, degrees with
minutes and seconds, hours with minutes, dates, clock times, ratios and bounds in words.
"""

import re
from collections.abc import Callable

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: n for n, word in enumerate(_ONES.split())}
_WORDS |= {word: 10 * n for n, word in enumerate(_TENS.split(), 2)}
_HUNDREDS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2}
_PLACES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
_CHINESE = "[" + "".join([*_DIGITS, *_PLACES]) + "]+"
_YEAR = "january february march april may june july august september october november december"
_MONTHS = _YEAR.split()
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS) + "|sept"
_NUMBER = r"\d+(?:\.\d+)?"
_MINUTE = r"\s*(?:'|\^\{?\s*\\prime\s*\}?)"
_SECOND = rf"\s*(?:''|\"|\^\{{?\s*\\prime\s*\\prime\s*\}}?|{_MINUTE}{_MINUTE})"
_SMALLER = {
    ("h", "min"): 60, ("min", "s"): 60, ("ft", "in"): 12, ("lb", "oz"): 16, ("yd", "ft"): 3,
    ("week", "day"): 7, ("year", "month"): 12, ("m", "cm"): 100, ("km", "m"): 1000,
}  # fmt: skip
_SPELLED = {
    "h": "h|hrs?|hours?", "min": "min|mins|minutes?", "s": "s|secs?|seconds?", "ft": "ft|foot|feet",
    "in": "in|inch|inches", "lb": "lbs?|pounds?", "oz": "oz|ounces?", "yd": "yds?|yards?",
    "week": "weeks?", "day": "days?", "year": "years?", "month": "months?", "m": "m|meters?",
    "cm": "cm|centimeters?", "km": "km|kilometers?",
}  # fmt: skip
_BOUND = {
    ">=": "at least|no less than|not less than|greater than or equal to|no fewer than",
    "<=": "at most|no more than|not more than|less than or equal to|no greater than|up to",
    ">": "greater than|more than|larger than|bigger than",
    "<": "less than|fewer than|smaller than",
}


def number_word(word: str) -> int | None:
    """The number that English words or Chinese numerals say; None where they say none."""
    if re.fullmatch(_CHINESE, word):
        return _chinese(word)
    total = group = 0
    words = [w for w in re.split(r"[\s-]+", word.lower()) if w != "and"]
    if not words or words[0] in _HUNDREDS:
        return None
    for w in words:
        if w in _WORDS:
            group += _WORDS[w]
        elif w == "hundred":
            group *= 100
        elif w in _HUNDREDS:
            total, group = total + group * _HUNDREDS[w], 0
        else:
            return None
    return total + group


def _chinese(word: str) -> int | None:
    if not any(sign in _PLACES for sign in word):  # digit by digit: 二〇二四
        return int("".join(str(_DIGITS[sign]) for sign in word))
    total = section = digit = 0
    for sign in word:
        if sign in _DIGITS:
            digit = _DIGITS[sign]
        elif _PLACES[sign] < 10**4:
            section, digit = section + (digit or 1) * _PLACES[sign], 0
        else:
            total, section, digit = (total + section + digit) * _PLACES[sign], 0, 0
    return total + section + digit


def _date(day: str, month: str, year: str | None) -> str:
    number = next(n for n, m in enumerate(_MONTHS, 1) if m.startswith(month.lower()[:3]))
    return rf"\text{{date {year or ''}-{number}-{int(day)}}}"


def _clock(match: re.Match) -> str:
    hour = int(match[1]) % 12 + 12 * (match[3].lower() == "p")
    return rf"\text{{clock {hour} {match[2] or '00'}}}"


def _bounded(sign: str) -> Callable[[re.Match], str]:
    def write(match: re.Match) -> str:
        name, bound = match[1], match[2]
        if name:
            return f"{name} {sign} {bound}"
        ends = {"<": rf"(-\infty, {bound})", "<=": rf"(-\infty, {bound}]"}
        return (ends | {">": rf"({bound}, \infty)", ">=": rf"[{bound}, \infty)"})[sign]

    return write


# Of whole answers.
_WHOLE: list[tuple[re.Pattern, Callable[[re.Match], str]]] = [
    (
        re.compile(rf"({_CHINESE})分之({_CHINESE})"),
        lambda m: rf"\frac{{{_chinese(m[2])}}}{{{_chinese(m[1])}}}",
    ),
    (
        re.compile(r"(\d{1,2})(?::(\d{2}))?\s*([ap])\.?\s?m\.?", re.IGNORECASE),
        _clock,
    ),
    (
        re.compile(rf"({_MONTH})\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(\d{{4}}))?", re.I),
        lambda m: _date(m[2], m[1], m[3]),
    ),
    (
        re.compile(rf"(\d{{1,2}})(?:st|nd|rd|th)?\s+({_MONTH})\.?(?:,?\s+(\d{{4}}))?", re.I),
        lambda m: _date(m[1], m[2], m[3]),
    ),
    (
        re.compile(rf"({_NUMBER})\s+to\s+({_NUMBER})(?:\s+to\s+({_NUMBER}))?", re.I),
        lambda m: ":".join(part for part in m.groups() if part),
    ),
    (
        re.compile(rf"([-+]?\s*{_NUMBER}\s*[-+]\s*(?:{_NUMBER})?)j"),
        lambda m: m[1] + "i",
    ),
    *(
        (
            re.compile(rf"(?:([A-Za-z])\s+(?:is|must be)\s+)?(?:{words})\s+(.*\d.*)", re.I),
            _bounded(sign),
        )
        for sign, words in _BOUND.items()
    ),
    *(
        (
            re.compile(
                rf"({_NUMBER})\s*(?:{_SPELLED[large]})\.?,?\s*(?:and\s+)?({_NUMBER})\s*(?:{_SPELLED[small]})"
            ),
            lambda m, large=large, size=size: rf"({m[1]}+{m[2]}/{size})\text{{ {large}}}",
        )
        for (large, small), size in _SMALLER.items()
    ),
]  # fmt: skip

# Of parts of an answer.
_PARTS: list[tuple[re.Pattern, str | Callable[[re.Match], str]]] = [
    (re.compile(r"(?<![A-Za-z.\\])(?:math|cmath|np|numpy|sympy|sp|torch)\.(?=[A-Za-z])"), ""),
    (re.compile(r"(?<![\w.])\d{1,3}(?:_\d{3})+(?![\w{])"), lambda m: m[0].replace("_", "")),
    (
        re.compile(r"(?<![\w.])0(?:[xX][0-9a-fA-F]{1,16}|[bB][01]{1,64}|[oO][0-7]{1,22})(?!\w)"),
        lambda m: str(int(m[0], 0)),
    ),
    (re.compile(r"\+\s*/\s*-|^\s*\+\s*-(?=\s*[\d\\(A-Za-z])"), r"\\pm "),
    (re.compile(r"percent(?:age)?[\s-]+points?"), "percent"),
    (
        re.compile(r"(?<![\d.])(\d+\.\d*?)(?:(\d)\2\2+|(\d{2,6}?)\3+)\d*\s*\\ldots(?![\s,;]*\S)"),
        lambda m: rf"{m[1]}\overline{{{m[2] or m[3]}}}",
    ),
    (
        re.compile(
            rf"({_NUMBER})\s*(?:°|\^\{{?\s*\\circ\s*\}}?)\s*({_NUMBER}){_MINUTE}(?!')"
            rf"(?:\s*({_NUMBER}){_SECOND})?"
        ),
        lambda m: rf"({m[1]}+{m[2]}/60+{m[3] or 0}/3600)^\circ",
    ),
    (
        re.compile(r"(?:\{\s*\}\s*)?[_^]\s*\{?\s*(\d+)\s*\}?\s*(?:C|\\mathrm\{C\})_\s*\{?\s*(\d+)\s*\}?"),
        r"\\binom{\1}{\2}",
    ),
]  # fmt: skip


def respell(text: str) -> str:
    """Writes a cleaned answer in the spelling that is read."""
    if text.isdigit():
        return text
    for pattern, write in _PARTS:
        text = pattern.sub(write, text)
    for pattern, write in _WHOLE:
        if match := pattern.fullmatch(text):
            return write(match)
    number = number_word(text)
    return text if number is None else str(number)
