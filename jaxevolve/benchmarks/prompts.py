r"""How is a benchmark's question put? The instructions of the papers that report it, in our words.

The question itself, its choices and their letters are put as the authors of each benchmark do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxevolve.hf.rows import IMAGE

# CSRS (appendix A.6) trains and evaluates with the Geometry3K prompt of verl and EasyR1.
THINK_THEN_BOX = (
    "First think the problem through, step by step, inside <think> and </think>; "
    "then write the final answer inside \\boxed{}."
)
# Self-Judge: the same, and nothing else is accepted.
THINK_ONLY_THEN_BOX = (
    "Put all of your reasoning inside one pair of <think> and </think>, and nothing but the answer "
    "after it, as \\boxed{ANSWER} with the bare value in it: no words, no units, no steps."
)
# MM-UPT, and Qwen2.5-Math for the text benchmarks of rStar-Math, whose own prompt asks for code.
STEP_BY_STEP = "Reason step by step, and put your final answer within \\boxed{}."
# Guided Verifier, its single-model solver.
RESTATE_THEN_SOLVE = (
    "Begin by restating the problem in your own words, then derive the solution step by step, "
    "with what you see in the image; give the final answer once, as <answer>\\boxed{}</answer>."
)

LETTER = "Answer with the letter of the right option."


def ask(row: Mapping[str, Any], *parts: str, images: bool = True) -> dict[str, Any]:
    """A row for the processor: the images first, then the parts that are not empty, line by line.

    Args:
        row: a benchmark's row, with "id", "images" and "answer".
        parts: of the question.
        images: False where the parts mark the images' places themselves.
    """
    marks = IMAGE * len(row["images"]) if images else ""
    # What a data set writes as a mark is not the place of one of our images.
    kept = [part.strip().replace(IMAGE, "") if images else part.strip() for part in parts]
    return {
        "id": row["id"],
        "question": marks + "\n".join(part for part in kept if part),
        "images": row["images"],
        "answer": row["answer"],
        "family": row.get("family"),
    }


def bracketed(options: Mapping[str, str] | Sequence[str], separator: str = "\n") -> str:
    """Choices as "(A) 12", one a line."""
    if not isinstance(options, Mapping):
        options = {chr(ord("A") + i): text for i, text in enumerate(options)}
    return separator.join(f"({letter}) {text}".strip() for letter, text in options.items())
