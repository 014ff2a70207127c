r"""Multiple choice: which of a question's options does a reply name?

Options are a mapping from capital letters to texts, in order; a text may be empty where only the
image shows it. A reply is a bare answer or a whole response. Policies, each of them a choice:

- Where a reply has a box or an answer tag, only what is in it counts. Else the last announcement
  ("the answer is ...", "I choose ...") that names an option does, else the last line.
- A letter counts where it stands alone, in brackets, before a delimiter ("C. 52", "C) 52"),
  behind the word option, or in brackets behind the text; never as a part or as the first word of a
  sentence. A small one counts as well, unless it is the text of an option. A letter beside a text
  decides, also where the text is another option's.
- Else the text decides, by `equal`: it must equal the text of one option, or be a sentence without
  a negation that holds the words of one option alone.
- Several letters ("A, C", "A and C", "(A)(C)", "AC" in ascending order) are several options.
- What names no option is no answer: never a guess, never the nearest option. "None of the above"
  and its like are one text, an answer only where an option says so.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from jaxevolve.answers.equality import equal_many
from jaxevolve.answers.extraction import extract, is_marked

Options = Mapping[str, str]

_LABEL = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\{)?(?P<open>[(（\[【]|(?<![^\s;,.:：，；。、?？)）}$]))(?P<letter>[A-Za-z])(?P<close>[)）\]】.．:：、])\}?"
)
_EDGES = re.compile(
    r"^(?:\s|\\[ ,;:])+|(?:\s|\\q?quad(?![A-Za-z])|\\\\|\\[ ,;:]|[;,，；、])+$|^\s*[.。]\s*$"
)
_MOST_OF_TWO = 60  # characters of an option where there are only two: steps (A) and (B) are longer
_BRACKETS = {"(": ")", "（": ")", "[": "]", "【": "]", "": ""}
_WRAPPERS = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|rm|bf)(?![A-Za-z])|"
    r"\\(?:left|right|[,;:! ()\[\]])|\\boxed|[{}$*`\"“”~]|(?<![A-Za-z])'|'(?![A-Za-z])"
)
_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore)\b,?\s*)?(?:the\s+)?(?:(?:correct|final|right|best)\s+)*"
    r"(?:answer|option|choice|选项|答案)s?\s*(?:is|are|:|：|为|是)?\s*(?:option|choice|选项)?\s*",
    re.IGNORECASE,
)
_ONE = re.compile(r"[(（\[【]?\s*([A-Za-z])\s*[)）\]】]?")
_CORRECT = r"(?:is|must\s+be)\s+(?:the\s+)?(?:correct|right|true|answer|best)"
# "(A) is too small" says nothing of what is right.
_WITH_TEXT = re.compile(
    r"(?:[(（\[【]\s*([A-Za-z])\s*[)）\]】]|([A-Z])\s*[.．:：、)）])\s*(?=\S)"
    rf"(?:(?={_CORRECT})|(?!(?:is|are|was|were|can|cannot|does|has|gives|fails|seems|looks)\b))"
)
_WITH_REASON = re.compile(
    rf"([A-Z])\s*(?:[,;]?\s*(?:because|since|as|for|which|so)\b|[-–—]\s+(?=\w\w|\d|\\)|{_CORRECT})"
)
_SPACED = re.compile(r"([A-Z])\s+(\S.*)", re.DOTALL)
_BEHIND_TEXT = re.compile(r"[(（\[【]\s*([A-Z])\s*[)）\]】]$")
_OPTION_WORD = re.compile(r"(?:\b(?:option|choice)\b|选项?)\s*[(（\[]?\s*([A-Z])(?![A-Za-z])")
_SEVERAL = re.compile(
    r"\s*(?:[,;/&，；、+]|\band\b|\bor\b|和|与|及)\s*|\s+|(?<=[)）\]])(?=[(（\[])"
)
_ANNOUNCED = re.compile(
    r"(?:\b(?:answer|option|choice)s?\b[^.\n:：]{0,40}?(?:\bis\b|\bare\b|\bbe\b|[:：=])"
    r"|\b(?:choose|select|pick)\b|答案(?:是|为|[:：])?|故?选(?:择|项)?)\s*:?(?P<rest>[^\n]*)",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"none\s*(?:of\s+(?:the\s+)?(?:above|these|those|options|choices|answers)(?:\s+\w+)?)?"
    r"|no\s+correct\s+(?:answer|option|choice)|以上(?:都|均)(?:不对|不是|错误)",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"\b(?:not|no|nor|never|neither|except|without|cannot)\b|n't\b|不|非", re.IGNORECASE
)
_ARTICLE = re.compile(r"(?:the|an?)\s+", re.IGNORECASE)
_SENTENCE = re.compile(r"[.。!](?:\s|$)")


def options_in(question: str) -> dict[str, str]:
    """Finds the options that a question lists, as "(A) 12 (B) 48", "A. 12; B. 48", "A: 12" lines.

    The longest run of labels A, B, C, ... in one style counts, of equally long ones the last.
    Without brackets a label has to begin its line, unless there are three or more with a full stop,
    bracket or comma behind them.

    Returns:
        Letter to text, in order; texts are empty where letters alone are listed. Empty where no
        options are found.
    """
    styles: dict[tuple[str, str, bool], list[re.Match]] = {}
    for label in _LABEL.finditer(question):
        opening, closing = (
            label["open"],
            label["close"].translate(str.maketrans("）】．：", ")].:")),
        )
        if _BRACKETS[opening] in ("", closing):
            key = ("[" if opening else "", closing, label["letter"].isupper())
            styles.setdefault(key, []).append(label)
    best: dict[str, str] = {}
    for (opening, closing, _), labels in styles.items():
        for start, label in enumerate(labels):
            if label["letter"] not in "Aa":
                continue
            run = [label]
            for following in labels[start + 1 :]:
                if ord(following["letter"]) == ord(run[-1]["letter"]) + 1:
                    run.append(following)
            lines = all(label.start() == _line_start(question, label) for label in run)
            glued = [question[max(at.start() - 1, 0) : at.start()].isalnum() for at in run]
            alone = not any(glued) or (len(run) > 2 and not glued[0])  # f(A) is no label
            if len(run) < 2 or not (opening or lines or (closing != ":" and len(run) > 2)):
                continue
            found = _texts(question, run)
            short = len(run) > 2 or max(map(len, found.values())) <= _MOST_OF_TWO
            uniform = len({bool(text) for text in found.values()}) == 1
            if alone and short and uniform and len(found) >= len(best):
                best = found
    return best


def _line_start(question: str, label: re.Match) -> int:
    start = question.rfind("\n", 0, label.start()) + 1
    return start + len(question[start:]) - len(question[start:].lstrip(" *-"))


def _texts(question: str, run: Sequence[re.Match]) -> dict[str, str]:
    end = question.find("\n", run[-1].end())
    ends = [following.start() for following in run[1:]]
    ends.append(len(question) if end < 0 else end)
    texts = [_EDGES.sub("", question[label.end() : stop]) for label, stop in zip(run, ends)]
    return {
        label["letter"].upper(): text.replace("$", "") if text.count("$") % 2 else text
        for label, text in zip(run, texts)
    }


def options_of(choices: Sequence[str]) -> dict[str, str]:
    """Letters a list of choices; labels that the texts have themselves ("A:12", "(A) 12") go.

    Raises:
        ValueError: there are more than 26.
    """
    if len(choices) > 26:
        raise ValueError(f"{len(choices)} choices; options have one capital letter each")
    letters = [chr(ord("A") + i) for i in range(len(choices))]
    texts = [str(choice).strip() for choice in choices]
    labels = [re.match(rf"[(（]?{a}[)）.．:：、]\s*", t) for a, t in zip(letters, texts)]
    if len(texts) > 1 and all(labels):
        texts = [text[label.end() :] for text, label in zip(texts, labels)]
    return dict(zip(letters, texts))


def options_for(question: str, choices: Sequence[str] | None = None) -> dict[str, str] | None:
    """A question's options: of its list of choices, else those that its text lists, else None."""
    return (options_of(choices) if choices else options_in(question)) or None


def choose(reply: str | None, options: Options) -> str | None:
    """Finds which options a reply names.

    Args:
        reply: an answer, as `extract` gives it, or a whole response; None for no answer.
        options: letter to text, as `options_in` and `options_of` give them.

    Returns:
        The letter, or of several options the letters in ascending order ("AC"); None where it
        names none.

    Raises:
        GraderError: a text needs algebra and no worker process can be started.
    """
    return choose_many([(reply, options)])[0]


def choose_many(replies: Sequence[tuple[str | None, Options]]) -> list[str | None]:
    """`choose` for many (reply, options); all texts that need algebra are compared at once."""
    found: list[list[str | None]] = []
    pairs: dict[tuple[str, str], None] = {}
    for reply, options in replies:
        contents = list(_contents(reply or ""))
        letters = [_letters(content, options) for content in contents]
        found.append(letters)
        for content, letter in zip(contents, letters):
            if letter is None:
                pairs |= dict.fromkeys((text, content) for text in options.values() if text)
            else:
                break
    verdicts = dict(zip(pairs, equal_many(list(pairs))))
    results = []
    for (reply, options), letters in zip(replies, found):
        named = (
            letter or _by_text(content, options, verdicts)
            for content, letter in zip(_contents(reply or ""), letters)
        )
        results.append(next((letter for letter in named if letter), None))
    return results


def _contents(reply: str) -> Iterator[str]:
    """What may name an option, the most telling first."""
    if is_marked(reply):
        content = extract(reply)
        if content is not None:
            yield content
        return
    for announced in reversed(list(_ANNOUNCED.finditer(reply))):
        rest = announced["rest"].strip()
        yield rest
        if (sentence := _SENTENCE.search(rest)) and sentence.start() > 1:
            yield rest[: sentence.start()]
    lines = reply.strip().splitlines()
    if lines:
        yield lines[-1].strip()


def _bare(text: str) -> str:
    """Without what wraps it: LaTeX, markdown, quotes, a closing full stop."""
    return " ".join(_WRAPPERS.sub(" ", text).split()).strip(" .,;:!。，；：")


def _folded(text: str) -> str:
    folded = _ARTICLE.sub("", _bare(text).casefold(), count=1)
    return "none of the above" if _NONE.fullmatch(folded) else folded


def _letters(content: str, options: Options) -> str | None:
    """The letters that a content names by themselves; None where its text has to decide."""
    plain = _bare(content)
    texts = {_bare(text) for text in options.values()}
    if (lead := _LEAD.match(plain)) and lead.end() < len(plain):
        plain = plain[lead.end() :]
    if one := _ONE.fullmatch(plain):
        small = one[1].islower() and plain in texts
        return None if small else _known(one[1], options)
    if plain in texts:
        return None
    pieces = [piece for piece in _SEVERAL.split(plain) if piece]
    ones = [_ONE.fullmatch(piece) for piece in pieces]
    if len(ones) > 1 and all(ones):
        return _known("".join(one[1] for one in ones), options)
    if 1 < len(plain) <= len(options) and list(plain) == sorted(set(plain)) and plain.isupper():
        return _known(plain, options)
    match = _WITH_TEXT.match(plain) or _WITH_REASON.match(plain)
    if match and (letter := _known(match[match.lastindex], options)):
        return letter
    if (match := _SPACED.fullmatch(plain)) and _folded(options.get(match[1], "")) == _folded(
        match[2]
    ):
        return match[1]
    named = {match[1] for match in _OPTION_WORD.finditer(plain)}
    if len(named) == 1 and not _NEGATION.search(plain):
        return _known(*named, options)
    if (match := _BEHIND_TEXT.search(plain)) and not _NEGATION.search(plain):
        return _known(match[1], options)
    return None


def _known(letters: str, options: Options) -> str | None:
    wanted = sorted(set(letters.upper()))
    return "".join(wanted) if all(letter in options for letter in wanted) else None


def _by_text(
    content: str, options: Options, verdicts: Mapping[tuple[str, str], bool]
) -> str | None:
    """The one option whose text a content gives: by its letters, else by `equal`, else within."""
    folded = _folded(content)
    texts = {letter: text for letter, text in options.items() if text}
    exact = [letter for letter, text in texts.items() if _folded(text) == folded]
    if exact:
        return exact[0] if len(exact) == 1 else None
    same = [letter for letter, text in texts.items() if verdicts.get((text, content))]
    if same:
        return same[0] if len(same) == 1 else None
    if _NEGATION.search(folded):
        return None
    words = {letter: _folded(text) for letter, text in texts.items()}
    held = [
        letter
        for letter, text in words.items()
        if re.search(r"[^\W\d_]{3}", text) and re.search(rf"\b{re.escape(text)}\b", folded)
    ]
    longest = [
        a for a in held if not any(words[a] != words[b] and words[a] in words[b] for b in held)
    ]
    return longest[0] if len(longest) == 1 else None
