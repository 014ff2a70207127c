"""Are answers right by `jaxevolve.answers`? For benchmarks whose own rule is a language model."""

from collections.abc import Callable, Sequence

from jaxevolve.answers import choose_many, judge_many
from jaxevolve.benchmarks.verdicts import Marked, Row, Texts, flat, grouped, marked, said

Right = Callable[[Row, str], bool]


def grade(rows: Sequence[Row], texts: Texts, also: Right = lambda row, answer: False) -> Marked:
    """Option letters where a row has options, equality in value where it has none.

    Args:
        rows: P rows with "answer" and "options", letter to text and empty for an open question.
        texts: [P][N] responses.
        also: what makes an answer of an open question right as well.
    """
    lettered = [(p, text) for p, text in flat(texts) if rows[p]["options"]]
    letters = iter(choose_many([(text, rows[p]["options"]) for p, text in lettered]))
    answers = [
        next(letters) if rows[p]["options"] else _open(rows[p], text) for p, text in flat(texts)
    ]
    places = [p for p, _ in flat(texts)]
    verdicts = judge_many(
        [(rows[p]["answer"], answer) for p, answer in zip(places, answers)],
        [rows[p]["options"] or None for p in places],
    )
    right = [
        verdict.state == "right"
        or (answer is not None and not rows[p]["options"] and also(rows[p], answer))
        for p, answer, verdict in zip(places, answers, verdicts)
    ]
    return marked(grouped(answers, texts), grouped(right, texts), by_value=True)


def _open(row: Row, text: str) -> str | None:
    """What a response answers; a response that is the label to the letter is an answer as well."""
    bare = text.strip()
    return bare if bare and bare.casefold() == row["answer"].casefold() else said(text)
