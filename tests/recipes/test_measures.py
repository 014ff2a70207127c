from jaxevolve.recipes.measures import speed
from jaxevolve.rollout.jobs import Stats


def test_the_speed_of_several_processes_is_that_of_their_sum_in_the_time_of_the_slowest():
    quick = Stats({0: 2.0, 1: 2.0}, 1.0, row_steps=400, tokens=300, read_tokens=50)
    slow = Stats({0: 5.0}, 2.0, row_steps=400, tokens=300, read_tokens=10, reused_tokens=40)
    assert speed([quick, slow]) == {
        "throughput/slot_utilization": 0.75,
        "throughput/sampled_tokens_per_second": 200.0,
        "throughput/forced_tokens_per_second": 50.0,
    }


def test_a_step_in_which_nothing_was_sampled_has_no_speed():
    assert set(speed([Stats()]).values()) == {0.0}
