"""A load on a clock: by hand, and by the theory of queues."""

import statistics

import pytest

from course_pkg.data.requests import Request, trace
from course_pkg.engine.requests import EngineConfig
from course_pkg.inference.load import Cost, Served, serve
from course_pkg.serving import PreemptingScheduler, Scheduler, SwappingScheduler

COST = Cost(weights=10.0, token=1.0, key=0.25, slot=2.0, block=3.0)


def test_a_step_reads_the_weights_or_computes():
    assert COST.step(3, 4) == 10 + 1
    assert COST.step(30, 40) == 30 + 10
    assert COST.step(0, 0, blocks=2, block_size=4) == 2 * (3 + 8)
    assert Cost().weights == pytest.approx(16.7, abs=0.05)
    assert Cost().token == pytest.approx(1 / 6, abs=1e-9)


def test_what_is_measured_of_a_request():
    one = Served(5.0, [12.0, 14.0, 20.0])
    assert (one.first, one.gaps, one.normalised) == (7.0, [2.0, 6.0], 5.0)


def test_two_requests_by_hand():
    load = [Request(arrival=3, prompt=20, output=3), Request(arrival=8, prompt=4, output=2)]
    first, second = serve(Scheduler(EngineConfig(20, 4)), load, COST)
    # a prompt of 20 reads 20 keys; then 21 and 4 keys with 1 + 4 tokens; then 22 and 5
    assert first.times == [3 + 25, 28 + 16.25, 44.25 + 16.75]
    assert second.times == [44.25, 61.0]


def test_an_idle_server_waits_for_its_next_request():
    served = serve(Scheduler(EngineConfig(20, 4)), [Request(0, 4, 1), Request(500, 4, 1)], COST)
    assert [each.first for each in served] == [11.0, 11.0]


def test_a_text_that_is_found_is_not_computed():
    load = [Request(0, 40, 1), Request(100, 40, 1)]
    served = serve(
        PreemptingScheduler(EngineConfig(20, 4)), load, COST, prompts=[[1] * 40, [1] * 36 + [2] * 4]
    )
    assert [each.first for each in served] == [40 + 10, 10 + 10]


def test_swaps_take_their_time():
    load = [Request(0, 4, 4), Request(0, 5, 4)]
    again = serve(PreemptingScheduler(EngineConfig(5, 2)), load, COST)
    swapped = serve(SwappingScheduler(EngineConfig(5, 2, num_cpu_blocks=9)), load, COST)
    # the second loses its three blocks; step 3 brings them back, in place of computing five tokens
    assert swapped[0].times[1] - again[0].times[1] == 3 * (3 + 2 * 2)
    assert swapped[1].times[-1] > again[1].times[-1]


@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_one_place_is_a_queue_of_poisson_arrivals_and_equal_times(busy):
    """Waits are those of M/D/1: ρ s / (2 (1 - ρ)) for a share ρ of the time that is busy."""
    service = 1000.0
    load = trace(20_000, 0, prompt=(1, 0.0), output=(1, 0.0), rate=busy / service)
    served = serve(Scheduler(EngineConfig(1, 2, max_num_seqs=1)), load, Cost(service, 0.0, 0.0))
    wait = statistics.mean(each.first for each in served) - service
    assert wait == pytest.approx(busy * service / (2 * (1 - busy)), rel=0.05)


def test_who_can_never_run_is_told():
    with pytest.raises(RuntimeError, match="1 requests wait"):
        serve(PreemptingScheduler(EngineConfig(2, 2)), [Request(0, 9, 1)])
