r"""Is an answer right, wrong, or no answer, and why?

Neither is said where the label itself is broken: its sample has to be left out, or a label that
nobody can match would punish everybody, and one that reads as nothing would reward everybody.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxevolve.answers.choices import Options, choose_many
from jaxevolve.answers.equality import compare_many
from jaxevolve.answers.forms import Text
from jaxevolve.answers.reading import read

State = Literal["right", "wrong", "no answer"]

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_OPEN_END = re.compile(r"\\(?:[dtc]?frac|sqrt|text|mathrm|boxed)\s*$|[\^_=+*/<(]\s*$")
# Of whole labels: what points to another place, says that there is no label, or leaves it open.
_ELSEWHERE = re.compile(
    r"(?:(?:please\s+)?(?:see|refer\s+to|look\s+at|check|as\s+(?:shown|seen|given|described))\b.*"
    r"|(?:shown|given|described|explained)\s+(?:in|on|above|below|by)\b.*"
    r"|(?:the\s+)?(?:answers?|results?|solutions?)\s+(?:may\s+|will\s+|can\s+)?(?:var(?:y|ies)|depends?)\b.*"
    r"|n\s*/?\s*a|nan|null|none|nil|unknown|undetermined|tbd|todo|missing|unavailable"
    r"|not\s+(?:available|applicable|given|provided)|no\s+(?:answer|label|solution\s+given)"
    r"|proof|prove|omitted|open[\s-]ended|(?:答案)?(?:略|见.*|如图.*|证明略|无|不唯一))",
    re.IGNORECASE | re.DOTALL,
)
_LETTER = re.compile(r"[(（]?([A-Z])[)）.]?")
_LETTERS = dict.fromkeys("ABCDEFGHIJ", "")


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth.

    Attributes:
        state: "right", "wrong" or "no answer"; None where the label is broken and nothing can be
            said, so that the sample has to be left out and counted.
        reason: "equal", "different", "undecided" (algebra came to no result within its limits),
            "none found", "names no option", or what is the matter with the label.
    """

    state: State | None
    reason: str

    @property
    def reward(self) -> float | None:
        """1 for right, 0 for wrong and for no answer, None for a sample to leave out."""
        return None if self.state is None else float(self.state == "right")


def label_fault(gold: str | None, options: Options | None = None) -> str | None:
    r"""Says what is the matter with a label, or None for one that answers can be compared with.

    A label is broken when it is empty or missing, when nothing of it can be seen or its box is cut
    off, when its braces do not match or it ends within a formula, when it points elsewhere ("see
    figure", "answers vary", "N/A"), and when it is a letter that is none of the options'.
    """
    form = None if gold is None else read(gold)
    if form is None:
        return "the label is empty"
    depth = 0
    for brace in _BRACE.finditer(gold):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth < 0:
            break
    if depth or _OPEN_END.search(gold):
        return "the label is cut off"
    if isinstance(form, Text) and not any(map(str.isalnum, form.words)):
        return "the label says nothing"
    if _ELSEWHERE.fullmatch(gold.strip(" .$()[]")) and not _is_text_of(gold, options):
        return "the label points elsewhere"
    letter = _LETTER.fullmatch(gold.strip())
    if options and letter and letter[1] not in options and not _is_text_of(gold, options):
        return "the label names no option"
    return None


def _is_text_of(gold: str, options: Options | None) -> bool:
    return gold.strip().casefold() in {text.casefold() for text in (options or {}).values()}


def judge(*, gold: str | None, pred: str | None, options: Options | None = None) -> Verdict:
    """Judges one answer; see `judge_many`."""
    return judge_many([(gold, pred)], [options])[0]


def judge_many(
    pairs: Sequence[tuple[str | None, str | None]],
    options: Sequence[Options | None] | None = None,
) -> list[Verdict]:
    r"""Judges answers by labels.

    With options an answer and a label are first taken for the options that they name, whether by
    letter or by text (`choices`); an answer that names none is no answer. A label that is no
    option's is compared by content. A label that is a lone capital letter, without options given,
    takes an answer of the kind "(C)" or "C. 52" too.

    Args:
        pairs: N of (label, answer); an answer as `extract` gives it, or a response with its box.
        options: N options of the questions, None where one has none; all without if None.

    Returns:
        N verdicts, in order.

    Raises:
        GraderError: algebra is needed and no worker process can be started.
    """
    listed = [None] * len(pairs) if options is None else list(options)
    if len(listed) != len(pairs):
        raise ValueError(f"{len(pairs)} answers but {len(listed)} sets of options")
    verdicts: list[Verdict | None] = [None] * len(pairs)
    open_ended: list[int] = []
    lettered: list[int] = []
    for i, (gold, pred) in enumerate(pairs):
        if fault := label_fault(gold, listed[i]):
            verdicts[i] = Verdict(None, fault)
        elif pred is None or read(pred) is None:
            verdicts[i] = Verdict("no answer", "none found")
        elif listed[i] or _LETTER.fullmatch(gold.strip()):
            lettered.append(i)
        else:
            open_ended.append(i)
    asked = [(text, listed[i] or _LETTERS) for i in lettered for text in pairs[i]]
    chosen = choose_many(asked)
    compared = [pairs[i] for i in open_ended]
    for i, wanted, named in zip(lettered, chosen[::2], chosen[1::2]):
        if wanted is None or (
            named is None and not listed[i]
        ):  # no option is meant, or can be told
            gold, pred = pairs[i]
            open_ended.append(i)
            compared.append((gold, (listed[i] or {}).get(named or "") or pred))
        elif named is None:
            verdicts[i] = Verdict("no answer", "names no option")
        else:
            verdicts[i] = _compared(wanted == named, False)
    for i, comparison in zip(open_ended, compare_many(compared)):
        verdicts[i] = _compared(*comparison)
    return verdicts


def _compared(same: bool, undecided: bool) -> Verdict:
    if same:
        return Verdict("right", "equal")
    return Verdict("wrong", "undecided" if undecided else "different")
