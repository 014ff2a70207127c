"""Maps: neighbors stay neighbors, the same every time, whatever coincides."""

import numpy as np
import pytest

from jaxevolve.runtime.maps import neighbors, section


def test_clusters_stay_together_and_apart_the_same_every_time():
    numbers = np.random.default_rng(0)
    points = np.concatenate([c + 0.3 * numbers.normal(size=(12, 8)) for c in 3 * np.eye(8)[:3]])
    placed = neighbors(points)
    np.testing.assert_array_equal(placed, neighbors(points))
    distance = np.linalg.norm(placed[:, None] - placed, axis=-1)
    np.fill_diagonal(distance, np.inf)
    group = np.arange(36) // 12
    assert (group[distance.argmin(1)] == group).all()


@pytest.mark.parametrize(("count", "times"), [(20, 5), (2, 8), (1, 5), (2, 1), (3, 1)])
def test_points_that_coincide_are_placed_together_and_few_points_too(count, times):
    points = np.random.default_rng(1).normal(size=(count, 8)).astype(np.float32)
    placed = neighbors(np.repeat(points, times, axis=0))
    assert placed.shape == (count * times, 2)
    assert np.isfinite(placed).all()
    assert np.ptp(placed.reshape(count, times, 2), 1).max() <= 1e-3 * np.ptp(placed)


def test_responses_that_are_all_the_same_have_a_map():
    response = {"text": "x = 40", "kept": 2, "continued": ["= 40"]}
    made = section({1: [{"responses": [response] * 2}]}, "ngrams")
    (chart,) = made["charts"]
    assert "maternal: 0; re-inference: 0" in chart
    assert "no ratio" in chart
    assert chart.count("point p0") == 2 + 1  # and one in the legend
    assert "nan" not in chart
