"""Some prompts of a step with all their responses, for people to read."""

import base64
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxevolve.answers.grading import Graded
from jaxevolve.hf.images import open_image
from jaxevolve.recipes.self_judge import Judgement
from jaxevolve.rollout.generate import Responses

PROMPTS = 4  # a step
LARGEST_SIDE = 512  # pixels of a stored image
LONGEST = 2000  # characters of a re-inference that are kept, behind its anchor


def samples(
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    again: Sequence[Sequence[str]],
    graded: Graded,
    rewards: np.ndarray,
    advantages: np.ndarray,
    maternal: Responses,
    anchor: np.ndarray,
    decode: Callable[[np.ndarray], str],
    judgement: Judgement | None = None,
) -> list[dict[str, Any]]:
    """Records of the first prompts of a batch, as samples/STEP.jsonl holds them.

    Counts are those of an answer's class among the maternal responses and among all
    re-inferences; `reinference` lists the answers that followed a response's anchor, which stands
    behind `anchor` tokens and `kept` characters; `continued` are the texts from there on.
    The reward of a response that is left out is null. Where there is a judge, `score` is what it
    gave, null where that cannot be read, and `judgements` what it said.

    Args:
        rows: P rows.
        texts: [P][G] maternal responses.
        again: [P][G * M] re-inferences, from their parent's first character on.
        graded: the answers of both.
        rewards: f32[P, G].
        advantages: f32[P, G].
        maternal: the responses.
        anchor: i32[P, G].
        decode: tokens to text.
        judgement: of the maternal responses, or None without a judge.
    """
    group = rewards.shape[1]
    written = []
    for p, row in enumerate(rows[:PROMPTS]):
        own, after = graded.classes[p, :group], graded.classes[p, group:]
        counts, recounts = Counter(own.tolist()), Counter(after.tolist())
        answered = np.array(graded.answers[p][group:], object).reshape(group, -1)
        continued = np.array(again[p], object).reshape(group, -1)
        kept = [
            common(texts[p][g], decode(maternal.tokens[p, g, : anchor[p, g]])) for g in range(group)
        ]
        responses = [
            {
                "text": texts[p][g],
                "answer": graded.answers[p][g],
                "class": int(own[g]),
                "count": counts[int(own[g])] if own[g] >= 0 else 0,
                "recount": recounts[int(own[g])] if own[g] >= 0 else 0,
                "reward": None if np.isnan(rewards[p, g]) else float(rewards[p, g]),
                "advantage": float(advantages[p, g]),
                "tokens": int(maternal.lengths[p, g]),
                "stopped": bool(maternal.stopped[p, g]),
                "anchor": int(anchor[p, g]),
                "kept": kept[g],
                "reinference": answered[g].tolist(),
                "continued": [text[kept[g] :][:LONGEST] for text in continued[g]],
                "correct": bool(graded.correct[p, g]) if graded.labeled[p] else None,
                "reason": graded.verdicts[p][g].reason if graded.verdicts[p] else None,
            }
            for g in range(group)
        ]
        if judgement is not None:
            for response, score, said in zip(responses, judgement.scores[p], judgement.texts[p]):
                response["score"] = None if np.isnan(score) else float(score)
                response["judgements"] = said
        written.append(
            {
                "id": row["id"],
                "family": row.get("family"),
                "question": row["question"],
                "label": row.get("answer"),
                "images": [data_uri(image) for image in row.get("images") or []],
                "responses": responses,
            }
        )
    return written


def common(text: str, prefix: str) -> int:
    """How many characters of a text its decoded prefix has: an anchor may cut one in two."""
    pairs = zip(text, prefix)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(prefix)))


def data_uri(image: Any) -> str:
    """An image as a PNG inside a URI, no side longer than 512 pixels."""
    small = open_image(image).copy()
    small.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    buffer = io.BytesIO()
    small.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
