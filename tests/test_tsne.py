"""The map against its own definition: perplexity, slope, and neighbors that stay neighbors."""

import numpy as np
import pytest

from jaxevolve.tsne import affinities, divergence, gradient, tsne


def clusters(count=20, groups=3, width=8):
    numbers = np.random.default_rng(0)
    centers = 3 * np.eye(width)[:groups]
    return np.concatenate([c + 0.3 * numbers.normal(size=(count, width)) for c in centers])


def test_every_point_has_neighbors_of_the_wanted_perplexity():
    points = clusters()
    wanted = affinities(points, 10.0)
    np.testing.assert_allclose(wanted.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(wanted, wanted.T)
    # One point of an even ring knows all others alike: so many as the perplexity.
    angle = 2 * np.pi * np.arange(12) / 12
    ring = affinities(np.stack([np.cos(angle), np.sin(angle)], -1), 5.0) * 12
    entropy = -(ring * np.log(ring)).sum(1)
    np.testing.assert_allclose(np.exp(entropy), 5.0, rtol=1e-3)


def test_the_slope_is_that_of_the_divergence():
    numbers = np.random.default_rng(1)
    wanted = affinities(numbers.normal(size=(7, 3)), 2.0)
    wanted /= wanted[~np.eye(7, dtype=bool)].sum()
    placed = numbers.normal(size=(7, 2))
    slope, small = gradient(placed, wanted), 1e-6
    for i, j in ((0, 0), (3, 1), (6, 0)):
        moved = np.zeros_like(placed)
        moved[i, j] = small
        change = divergence(placed + moved, wanted) - divergence(placed - moved, wanted)
        assert slope[i, j] == pytest.approx(change / (2 * small), rel=1e-4, abs=1e-8)


def test_clusters_stay_together_and_apart_the_same_every_time():
    points = clusters()
    placed = tsne(points)
    np.testing.assert_array_equal(placed, tsne(points))
    distance = np.linalg.norm(placed[:, None] - placed, axis=-1)
    np.fill_diagonal(distance, np.inf)
    group = np.arange(60) // 20
    assert (group[distance.argmin(1)] == group).all()
    wanted = affinities(points, 59 / 3)
    start = np.random.default_rng(2).normal(size=placed.shape)
    assert divergence(placed, wanted) < divergence(start, wanted) / 2


def test_points_that_coincide_are_placed_too():
    placed = tsne(np.repeat(np.eye(3), 5, axis=0))
    assert np.isfinite(placed).all()
    with pytest.raises(ValueError, match="at least 4 points"):
        tsne(np.eye(3))
