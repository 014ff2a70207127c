import json

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from jaxevolve.data.pipeline import eval_batches, schedule, train_batches
from jaxevolve.data.sources import Subset, load_rows
from jaxevolve.runtime.errors import UserError


@pytest.fixture(scope="module")
def rows():
    return load_rows("geometry:length=22")


def ids(batch):
    return [row["id"] for row in batch.rows]


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_an_epoch_is_whole_batches_of_different_rows_and_the_next_is_another_order(rows, processor):
    batches = train_batches(rows, processor, batch=5, seed=0)
    epochs = [[ids(next(batches)) for _ in range(4)] for _ in range(2)]
    for epoch in epochs:
        assert all(len(batch) == 5 for batch in epoch)
        assert len({identity for batch in epoch for identity in batch}) == 20
    assert epochs[0] != epochs[1]


def test_arrays_belong_to_their_rows(rows, processor):
    batch = next(train_batches(rows, processor, batch=3, seed=0))
    assert_same(batch.prompts, processor.prompts(batch.rows))
    with_text = next(train_batches(rows, processor, batch=3, seed=0, instruction="Think."))
    assert_same(with_text.prompts, processor.prompts(batch.rows, "Think."))


def test_the_order_is_that_of_the_seed(rows, processor):
    def first(seed):
        return ids(next(train_batches(rows, processor, batch=11, seed=seed)))

    assert first(0) == first(0)
    assert first(0) != first(1)


@pytest.mark.parametrize("taken", [0, 1, 3, 6])
def test_a_saved_position_goes_on_exactly_also_over_an_epochs_end(rows, processor, taken):
    straight = train_batches(rows, processor, batch=5, seed=3)
    for _ in range(taken):
        next(straight)
    state = json.loads(json.dumps(straight.get_state()))
    resumed = train_batches(rows, processor, batch=5, seed=3, ahead=4)
    resumed.set_state(state)
    for _ in range(3):
        left, right = next(straight), next(resumed)
        assert ids(left) == ids(right)
        assert_same(left.prompts, right.prompts)


def test_processes_share_a_batch_as_one_would_make_it(processor, real_rows):
    # Images of different sizes: the shares alone would have other shapes than the whole.
    rows = load_rows(str(real_rows / "parquet_layout@test"))
    whole = next(train_batches(rows, processor, batch=6, seed=0))
    shares = [
        next(train_batches(rows, processor, batch=6, seed=0, process_index=i, process_count=3))
        for i in range(3)
    ]
    assert [identity for share in shares for identity in ids(share)] == ids(whole)
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *(s.prompts for s in shares))
    assert_same(joined, whole.prompts)


def test_every_minibatch_is_shared_so_that_it_is_the_same_for_any_number_of_processes(
    rows, processor
):
    def minibatches(count):
        """Ids of each half of a batch, in the order of the processes."""
        options = {"batch": 8, "seed": 0, "process_count": count, "minibatches": 2}
        shares = [
            ids(next(train_batches(rows, processor, process_index=i, **options)))
            for i in range(count)
        ]
        half = 4 // count
        return [[name for s in shares for name in s[i * half :][:half]] for i in range(2)]

    assert minibatches(1) == minibatches(2) == minibatches(4)
    with pytest.raises(UserError, match="in each of 3 minibatches; use a batch that 6 divides"):
        train_batches(rows, processor, batch=8, seed=0, process_count=2, minibatches=3)


def test_a_batch_that_processes_do_not_divide_is_refused(rows, processor):
    with pytest.raises(UserError, match="batch=5 cannot be split over 2 processes"):
        train_batches(rows, processor, batch=5, seed=0, process_count=2)


@pytest.mark.parametrize(("batch", "questions"), [(4, 5), (256, 5), (5, 5), (1, 5), (4, 0)])
def test_an_evaluation_sees_every_row_once_also_in_a_partial_batch(
    rows, processor, batch, questions
):
    seen = list(eval_batches(rows, processor, batch=batch, questions=questions))
    total = questions or 22
    expected = [rows[i]["id"] for i in range(total)]
    assert [identity for part in seen for identity in ids(part)] == expected
    assert all(len(part.prompts.length) == batch for part in seen)
    assert_same(
        jax.tree.map(lambda array: array[:1], seen[0].prompts.tokens),
        processor.prompts([rows[0]]).tokens,
    )


def test_processes_share_an_evaluation(rows, processor):
    parts = [
        list(eval_batches(rows, processor, batch=4, questions=5, process_index=i, process_count=2))
        for i in range(2)
    ]
    assert [[len(batch.rows) for batch in part] for part in parts] == [[2, 1], [2, 0]]


def run_config(**changes):
    config = ConfigDict(
        {
            "steps": None,
            "batch": 256,
            "data": {"epochs": 15, "path": "geometry3k"},
            "eval": {"every": 20, "every_epochs": 5},
        }
    )
    config.update_from_flattened_dict(changes)
    return config


def test_fifteen_epochs_of_geometry3k_are_120_steps():
    assert schedule(run_config(), 2101) == (120, 8, 40)


def test_steps_win_over_epochs():
    assert schedule(run_config(**{"steps": 7, "eval.every_epochs": None}), 2101) == (7, 8, 20)
    assert schedule(run_config(steps=0), 2101).steps == 120


def test_a_run_without_length_or_with_too_few_rows_is_refused():
    with pytest.raises(UserError, match="no length"):
        schedule(run_config(**{"data.epochs": 0}), 2101)
    with pytest.raises(UserError, match="batch=256 is more than the 24 usable rows of geometry3k"):
        schedule(run_config(), 24)


def test_rows_left_out_do_not_come(rows, processor):
    some = Subset(rows, list(range(0, 22, 2)))
    batches = train_batches(some, processor, batch=11, seed=0)
    assert sorted(ids(next(batches))) == sorted(rows[i]["id"] for i in range(0, 22, 2))


def test_images_are_kept_encoded(processor, real_rows):
    rows = load_rows(str(real_rows / "parquet_layout@train"))
    batch = next(train_batches(rows, processor, batch=24, seed=0))
    assert all(isinstance(row["images"][0], bytes) for row in batch.rows)
    assert batch.prompts.pixels.dtype == np.uint8
    assert batch.prompts.segment.any(axis=(1, 2)).all()
