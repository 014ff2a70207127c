"""Scores small response files, with the verdict that was worked out by hand beside each response.

    figures = scoring.check("chartqa", [(scoring.row(0, "100"), "105", "1"), ...])

1 is right, 0 wrong, and - no answer (which is wrong as well).
"""

from typing import Any

from jaxevolve.benchmarks import table


def row(number: int | str, answer: Any, **more: Any) -> dict[str, Any]:
    """A benchmark's row."""
    return {"id": str(number), "question": "q", "images": [], "answer": answer, **more}


def check(name: str, cases: list[tuple[dict[str, Any], str, str]]) -> dict[str, Any]:
    """Holds the verdicts of (row, response, verdict) against the rule, and gives the figures."""
    rows, responses, expected = map(list, zip(*cases))
    benchmark = table.find(name)
    made = benchmark.grade(rows, [[text] for text in responses])
    found = [
        "-" if answers == [None] else str(int(right[0]))
        for answers, right in zip(made.answers, made.correct)
    ]
    assert list(zip(found, responses)) == list(zip(expected, responses))
    return benchmark.score(rows, responses)
