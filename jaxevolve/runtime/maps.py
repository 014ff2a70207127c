"""Where do re-inferences go? Maps of the embedded responses of some steps (CSRS Figure 4).

They ask for scikit-learn, of the extra `embeddings`, and import it when a map is drawn.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from jaxevolve.runtime.charts import HEIGHT, WIDTH, Axis, figure, number
from jaxevolve.runtime.errors import UserError
from jaxevolve.runtime.sentences import embed, spread

MOST = 2000  # points of a map
PERPLEXITY = 30.0  # how many neighbors a point has, roughly: scikit-learn's default

Records = Sequence[Mapping[str, Any]]


def require() -> None:
    """Raises a UserError where scikit-learn is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise UserError(
            "--embeddings needs scikit-learn, which is not installed: "
            'run python -m pip install -c constraints.txt -e ".[embeddings]"'
        )


def section(samples: Mapping[int, Records], encoder: str | None) -> dict[str, Any]:
    """A heading with a map a step, all of one t-SNE.

    Args:
        samples: step -> records of questions (recipes/records.py) with re-inferences.
        encoder: as `embed` takes it.

    Returns:
        As `figures.sections` has it.
    """
    texts, places = [], []  # a place is (step, question, whether it is a re-inference)
    for step, records in samples.items():
        for question, record in enumerate(records):
            for response in record["responses"]:
                kept = response["text"][: response["kept"]]
                group = [response["text"], *(kept + text for text in response["continued"])]
                texts += group
                places += [(step, question, i > 0) for i in range(len(group))]
    texts, places = texts[:MOST], np.array(places[:MOST])
    points, name = embed(texts, encoder)
    mapped = neighbors(points)
    wide, high = zip(mapped.min(0).tolist(), mapped.max(0).tolist())
    charts = []
    for step in samples:
        groups, found = [], []
        for title, again in (("maternal", 0), ("re-inference", 1)):
            own = (places[:, 0] == step) & (places[:, 2] == again)
            parts = [own & (places[:, 1] == question) for question in np.unique(places[own, 1])]
            found.append(np.mean([spread(points[part]) for part in parts if part.sum() > 1]))
            groups.append((title, number(found[-1]), [tuple(p) for p in mapped[own].tolist()]))
        charts.append(
            scatter_chart(
                f"Responses at step {step}",
                groups,
                wide=wide,
                high=high,
                at=f"ratio {number(found[1] / found[0])}" if found[0] > 0 else "no ratio",
                note="Beside the names, the spread: mean distance from the centroid of a "
                "question's responses, over its questions.",
            )
        )
    return {
        "id": "maps",
        "title": "Where do re-inferences go?",
        "text": "",
        "note": f"t-SNE of the responses to the recorded questions, of all these steps together, "
        f"embedded by {name}. A re-inference shares its parent's text up to the anchor. The ratio "
        "is the spread of re-inferences over that of maternal responses.",
        "charts": charts,
    }


def neighbors(points: np.ndarray) -> np.ndarray:
    """A map on which neighbors stay neighbors: t-SNE (van der Maaten & Hinton 2008).

    Args:
        points: f32[N, D], N and D at least 2.

    Returns:
        f32[N, 2], the same every time.
    """
    from sklearn.manifold import TSNE

    if (points == points[0]).all():  # the first step divides by their standard deviation
        return np.zeros((len(points), 2), np.float32)
    # Barnes-Hut's approximation scatters points that coincide, which a collapse has many of.
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        init="pca",
        method="exact",
        random_state=0,
    )
    return tsne.fit_transform(points)


def scatter_chart(
    title: str,
    groups: Sequence[tuple[str, str, Sequence[tuple[float, float]]]],
    *,
    wide: tuple[float, float],
    high: tuple[float, float],
    at: str,
    note: str = "",
) -> Markup:
    """Points of a map whose axes mean nothing.

    Args:
        title: of the figure.
        groups: (name, figure beside it, points), at most three, each with a sign of its own.
        wide: the range from left to right.
        high: the range from the bottom up.
        at: said beside the title.
        note: one sentence under the drawing.
    """
    edge = 8
    across = Axis(*wide, edge, WIDTH - edge)
    up = Axis(*high, HEIGHT - edge, edge)
    parts = [f'<rect class="map" width="{WIDTH}" height="{HEIGHT}"/>']
    # The largest group first, so that it hides none of the others.
    order = sorted(range(len(groups)), key=lambda i: -len(groups[i][2]))
    parts += [
        f'<path class="point p{i}" d="{_sign(i, across(x), up(y))}"/>'
        for i in order
        for x, y in groups[i][2]
    ]
    legend = [(_sample(i), name, told) for i, (name, told, _) in enumerate(groups)]
    spoken = "; ".join(f"{name}: {told}" for name, told, _ in groups)
    return figure(title, at, legend, parts, spoken, note)


def _sign(group: int, x: float, y: float) -> str:
    """A path around a point: a triangle, a ring, a cross."""
    return (
        f"M{x:.1f},{y - 4:.1f} l4,7 h-8 z",
        f"M{x - 2:.1f},{y:.1f} a2,2 0 1 0 4,0 a2,2 0 1 0 -4,0",
        f"M{x - 3:.1f},{y - 3:.1f} l6,6 m0,-6 l-6,6",
    )[group]


def _sample(group: int) -> Markup:
    """A point as the legend has it."""
    return Markup(
        '<svg class="swatch" width="16" height="12" viewBox="0 0 16 12" aria-hidden="true">'
        f'<path class="point p{group}" d="{_sign(group, 8, 6)}"/></svg>'
    )
