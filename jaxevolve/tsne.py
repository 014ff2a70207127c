"""Which points are neighbors? A map in two dimensions by t-SNE (van der Maaten & Hinton 2008).

Exact, for some thousand points, and without randomness: it starts from the principal components.
"""

import numpy as np

EXAGGERATION, EARLY, ITERATIONS = 12.0, 250, 750  # the usual schedule
NARROWEST = 1e-12


def tsne(points: np.ndarray, perplexity: float = 30.0) -> np.ndarray:
    """Maps points so that neighbors stay neighbors.

    Args:
        points: f[N, D].
        perplexity: how many neighbors a point has, roughly; at most (N - 1) / 3.

    Returns:
        f64[N, 2], centered.
    """
    points = np.asarray(points, np.float64)
    count = len(points)
    if count < 4:
        raise ValueError(f"a map needs at least 4 points, not {count}")
    wanted = affinities(points, min(perplexity, (count - 1) / 3))
    placed = _principal(points)
    speed, gain = np.zeros_like(placed), np.ones_like(placed)
    rate = max(count / EXAGGERATION / 4, 50.0)
    for step in range(ITERATIONS):
        early = step < EARLY
        slope = gradient(placed, wanted * (EXAGGERATION if early else 1.0))
        gain = np.where(np.sign(slope) == np.sign(speed), gain * 0.8, gain + 0.2).clip(0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gain * slope
        placed = placed + speed
    return placed - placed.mean(0)


def affinities(points: np.ndarray, perplexity: float) -> np.ndarray:
    """f64[N, N] that sums to 1: how likely two points pick each other as neighbors.

    The width of each point's Gaussian is found by bisection, so that its neighbors have the wanted
    perplexity; then both directions are averaged.
    """
    distance = _squared_distances(points)
    count = len(points)
    low, high = np.zeros(count), np.full(count, np.inf)
    precision = np.full(count, 1.0 / max(np.median(distance), NARROWEST))
    for _ in range(64):
        exponent = -distance * precision[:, None]
        np.fill_diagonal(exponent, -np.inf)
        chance = np.exp(exponent - exponent.max(1, keepdims=True))
        chance /= chance.sum(1, keepdims=True)
        entropy = -(chance * np.log(np.maximum(chance, NARROWEST))).sum(1)
        wide = entropy > np.log(perplexity)
        low, high = np.where(wide, precision, low), np.where(wide, high, precision)
        # No width is narrow enough for points that coincide: the doubling has to end.
        precision = np.where(np.isinf(high), precision * 2, (low + high) / 2).clip(max=1e12)
    return np.maximum((chance + chance.T) / (2 * count), NARROWEST)


def gradient(placed: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The slope of KL(wanted || the map's own affinities) at f64[N, 2], of the same shape."""
    near = 1 / (1 + _squared_distances(placed))
    np.fill_diagonal(near, 0)
    pull = (wanted - near / near.sum()) * near
    return 4 * (pull.sum(1, keepdims=True) * placed - pull @ placed)


def divergence(placed: np.ndarray, wanted: np.ndarray) -> float:
    """KL(wanted || the map's own affinities), over pairs of different points."""
    near = 1 / (1 + _squared_distances(placed))
    np.fill_diagonal(near, 0)
    own, apart = near / near.sum(), ~np.eye(len(placed), dtype=bool)
    return float((wanted[apart] * np.log(wanted[apart] / own[apart])).sum())


def _squared_distances(points: np.ndarray) -> np.ndarray:
    squares = (points * points).sum(1)
    return np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0)


def _principal(points: np.ndarray) -> np.ndarray:
    """f64[N, 2], the first two principal components, tiny; their signs follow from the points."""
    centered = points - points.mean(0)
    left, size, _ = np.linalg.svd(centered, full_matrices=False)
    left = np.pad(left * size, ((0, 0), (0, 2)))[:, :2]
    largest = np.take_along_axis(left, np.abs(left).argmax(0)[None], 0)
    left = left * np.where(largest < 0, -1, 1)
    # Points that coincide would stay on top of each other: a tiny step apart, always the same.
    left += 1e-3 * max(left.std(), NARROWEST) * np.sin(np.arange(left.size)).reshape(left.shape)
    return 1e-4 * left / max(left[:, 0].std(), NARROWEST)
