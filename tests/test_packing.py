"""Packing: nothing lost, nothing twice, few rows, few shapes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxevolve.packing import (
    first_fit,
    make_layout,
    pack,
    row_counts,
    rows_needed,
    segments,
    unpack,
)

L = 8


def batches(count, groups):
    """Lengths i32[P, G]: of all mixes, those with many short, many long or all equal ones too."""

    def draw(group, seed, most, least):
        rng = np.random.default_rng(seed)
        return rng.integers(min(least, most), most + 1, (count, group)).astype(np.int32)

    return st.builds(draw, groups, st.integers(0, 1000), st.integers(0, L), st.integers(0, L))


@jax.jit
def there_and_back(layout, values):
    packed = pack(layout, values)
    return packed, unpack(layout, packed, L), segments(layout, L)


@given(batches(2, st.just(5)))
@settings(max_examples=40)
def test_every_token_stands_once_in_one_piece_and_comes_back(lengths):
    layout = make_layout(lengths, L, rows_needed(lengths, L))
    count, group = lengths.shape
    values = 1 + np.arange(count * group * L, dtype=np.float32).reshape(count, group, L)
    values *= np.arange(L) < lengths[..., None]
    packed, back, numbers = map(np.asarray, there_and_back(layout, values))
    assert sorted(packed[packed > 0]) == sorted(values[values > 0])
    np.testing.assert_array_equal(back, values)
    assert packed.shape == numbers.shape
    for p, g in np.argwhere(lengths):
        where = np.argwhere(numbers[p] == g + 1)
        assert len(set(where[:, 0])) == 1
        assert where[:, 1].tolist() == list(range(where[0, 1], where[0, 1] + lengths[p, g]))


@given(batches(3, st.integers(1, 48)))
def test_rows_hold_no_more_than_they_can_and_are_few(lengths):
    for of_prompt in lengths:
        row, _ = first_fit(of_prompt, L)
        filled = [of_prompt[row == r].sum() for r in range(row.max() + 1)]
        assert max(filled) <= L
        # Any two rows together hold more than one could: else the second had not been begun.
        assert all(a + b > L for a, b in itertools.pairwise(filled) if b)
    rows = make_layout(lengths, L, rows_needed(lengths, L)).source.shape[1]
    assert rows in row_counts(lengths.shape[1])


def test_first_fit_by_hand():
    row, place = first_fit([3, 8, 2, 5, 5], 8)
    assert row.tolist() == [1, 0, 2, 1, 2]
    assert place.tolist() == [5, 0, 5, 0, 0]


@pytest.mark.parametrize(
    ("group", "counts"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 3, 4, 5]), (8, [1, 2, 3, 4, 6, 8])]
)
def test_six_numbers_of_rows_at_most(group, counts):
    assert row_counts(group) == counts
    assert row_counts(48) == [6, 12, 18, 24, 36, 48]


@given(batches(2, st.just(5)))
@settings(max_examples=10)
def test_gradients_go_back_to_where_values_came_from(lengths):
    layout = jax.tree.map(jnp.asarray, make_layout(lengths, L, rows_needed(lengths, L)))
    shape = layout.source.shape
    values, weights = jax.random.normal(jax.random.key(0), (2, *shape))
    weights = unpack(layout, weights, L)
    gradient = jax.grad(lambda x: (unpack(layout, x, L) * weights).sum())(values)
    flat = np.concatenate([np.ravel(weights), [0.0]])
    base = np.arange(len(lengths))[:, None, None] * weights[0].size
    wanted = flat[np.where(layout.source >= 0, base + layout.source, -1)]
    np.testing.assert_array_equal(gradient, wanted)
