"""Positions and starts of queued jobs: in the rule's order, with times that follow from the durations."""

from __future__ import annotations

from hypothesis import given, settings

from shared.scheduling.forecast import Place, Reason, forecast, start_error, typical_seconds
from shared.scheduling.types import Allowance, QueuedJob, QueueState, RunningJob, Share
from tests.support.queue_states import NOW, drain, states


def job(name: str, tenant: str = "a", at: float = 0.0, **more: object) -> QueuedJob:
    return QueuedJob(name, tenant, NOW + at, **({"seconds": 100.0} | more))


@settings(max_examples=25, deadline=None)
@given(states())
def test_every_job_has_one_place(state: QueueState) -> None:
    for workers in (0, 1, 3):
        places = forecast(state, workers)
        assert sorted(place.position for place in places.values()) == list(range(1, len(state.queued) + 1))
        assert places.keys() == {job.id for job in state.queued}


@settings(max_examples=25, deadline=None)
@given(states())
def test_with_enough_workers_the_order_is_the_rules(state: QueueState) -> None:
    taken = drain(state)
    places = forecast(state, len(state.queued) + len(state.running))
    now = [name for name, place in sorted(places.items(), key=lambda item: item[1].position) if place.starts_at == NOW]
    assert now[: len(taken)] == taken


def test_jobs_start_when_those_before_them_have_ended() -> None:
    state = QueueState(NOW, [job("one", at=-2), job("two", at=-1)], running=[RunningJob("a", 30.0)])
    assert forecast(state, 1) == {
        "one": Place(1, Reason.NEXT, NOW + 30),
        "two": Place(2, Reason.SUBMIT_ORDER, NOW + 130),
    }


def test_two_workers_start_two_jobs_at_once() -> None:
    places = forecast(QueueState(NOW, [job("one", at=-3), job("two", at=-2), job("three", at=-1)]), 2)
    assert [place.starts_at for place in places.values()] == [NOW, NOW, NOW + 100]


def test_an_unknown_duration_makes_the_starts_behind_it_unknown() -> None:
    state = QueueState(NOW, [job("one", at=-2, seconds=None), job("two", at=-1)])
    places = forecast(state, 1)
    assert (places["one"].starts_at, places["two"].starts_at) == (NOW, None)


def test_without_a_worker_only_the_order_is_known() -> None:
    places = forecast(QueueState(NOW, [job("one", at=-2), job("two", at=-1)]), 0)
    assert [(place.position, place.reason, place.starts_at) for place in places.values()] == [
        (1, Reason.NO_WORKER, None),
        (2, Reason.NO_WORKER, None),
    ]


def test_reasons_say_what_put_the_job_before_there() -> None:
    queued = [job("mine", at=-5), job("light", "b", at=-1), job("urgent", "c", at=-1, priority=2)]
    state = QueueState(NOW, queued, {"a": Share(500.0), "b": Share(1.0)}, running=[RunningJob("d", 10.0)])
    places = forecast(state, 1)
    assert [places[name].reason for name in ("urgent", "light", "mine")] == [
        Reason.NEXT,
        Reason.PRIORITY,
        Reason.FAIR_SHARE,
    ]


def test_a_tenant_at_its_limit_waits_for_its_own_job() -> None:
    state = QueueState(NOW, [job("mine")], {"a": Share(running=1)}, {"a": Allowance(1)}, [RunningJob("a", 50.0)])
    place = forecast(state, 4)["mine"]
    assert place.reason is Reason.RUNNING_JOBS
    assert place.starts_at is not None
    assert abs(place.starts_at - (NOW + 50)) < 1


def test_what_is_too_large_for_the_month_comes_last() -> None:
    state = QueueState(NOW, [job("large", at=-9, hold=99.0), job("other", "b")], {}, {"a": Allowance(None, 9.0)})
    assert forecast(state, 1)["large"] == Place(2, Reason.GPU_MINUTES, None)


def test_a_retry_waits_for_its_time() -> None:
    place = forecast(QueueState(NOW, [job("mine", ready_at=NOW + 15)]), 1)["mine"]
    assert place.reason is Reason.RETRY
    assert place.starts_at is not None
    assert abs(place.starts_at - (NOW + 15)) < 1


def test_errors_of_past_estimates() -> None:
    error = start_error([-10.0, 1.0, 2.0, 3.0, 50.0])
    assert error is not None
    assert (error.jobs, error.p50_seconds, error.p90_seconds) == (5, 3.0, 50.0)
    assert (start_error([]), typical_seconds([]), typical_seconds([1.0, 9.0])) == (None, None, 5.0)
