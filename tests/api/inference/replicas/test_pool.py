"""The replica pool's rules: the replica for a model, the replicas that may get requests, and their addresses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference.replicas.pool import (
    FIRST_BACKOFF_SECONDS,
    FORGET_SECONDS,
    LATE_STREAMS,
    LONGEST_BACKOFF_SECONDS,
    ModelPopularity,
    Replica,
    ReplicaPool,
    ReplicaState,
    in_flight_limit,
    in_order,
)
from api.inference.replicas.served_models import ServedModel
from shared.errors import Unavailable
from shared.replicas import Fit, ReplicaCapabilities, ServedBaseName, TrainedWeights, discover

DIGEST = "a" * 64
TINY = ReplicaCapabilities(base="tiny", base_digest=DIGEST, served_digest=DIGEST, max_lora_rank=16)
TWIN = ReplicaCapabilities(
    base="tiny-twin", base_digest=DIGEST, served_digest="b" * 64, twin_of="tiny", double_quant=True, max_lora_rank=16
)
OTHER = ReplicaCapabilities(base="other", served_digest="c" * 64, max_lora_rank=16)
MODEL = ServedModel("helper@1", "tiny", DIGEST)
URLS = [f"http://10.0.0.{number}:8001" for number in range(1, 9)]
MODELS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=50, unique=True)
SOME_URLS = st.lists(st.sampled_from(URLS), min_size=2, unique=True)


def up(urls: list[str]) -> ReplicaPool:
    replicas = ReplicaPool(urls)
    for replica in replicas.all:
        replica.state = ReplicaState.UP
    return replicas


def taken(replicas: ReplicaPool, model: str, tried: Any = ()) -> Replica:
    replica = replicas.take(ServedModel(model), tried)
    assert replica
    return replica


def test_errors_before_the_first_healthy_check_are_dropped() -> None:
    replica = Replica("http://10.0.0.1:8001")
    replica.failed_check("health check: connection refused")
    assert replica.last_error, "for as long as it was never healthy"
    replica.passed_check(0.0)
    assert (replica.last_error, replica.last_error_at) == (None, None)
    replica.failed_check("health check: status 503")
    replica.passed_check(0.0)
    assert replica.last_error == "health check: status 503"


@given(SOME_URLS, MODELS, st.randoms())
def test_removed_replica_moves_only_its_own_models(urls: list[str], models: list[str], random: Any) -> None:
    gone, order = random.choice(urls), random.sample(urls, len(urls))
    for model in models:
        before = in_order(up(urls).all, model)
        after = in_order([replica for replica in up(order).all if replica.url != gone], model)
        assert [r.url for r in after] == [r.url for r in before if r.url != gone], "in whatever order they are listed"


@pytest.mark.parametrize("count", range(2, 9))
def test_models_are_spread_over_all_replicas(count: int) -> None:
    firsts = [in_order(up(URLS[:count]).all, f"helper@{number:064x}")[0].url for number in range(1000)]
    share = 1000 / count
    assert all(0.75 * share < firsts.count(url) < 1.25 * share for url in URLS[:count])


@given(SOME_URLS, st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=200))
def test_no_replica_exceeds_the_in_flight_limit(urls: list[str], requests: list[tuple[str, int]]) -> None:
    replicas, in_flight = up(urls), []
    for model, ends in requests:
        limit, before = in_flight_limit(replicas.all), {replica.url: replica.in_flight for replica in replicas.all}
        replica = taken(replicas, model)
        in_flight.append(replica)
        assert replica.in_flight <= limit
        earlier = in_order(replicas.all, model)[: in_order(replicas.all, model).index(replica)]
        assert all(before[other.url] >= limit for other in earlier), "only replicas at the limit are passed over"
        for _ in range(min(ends, len(in_flight))):
            replicas.release(in_flight.pop(0))
    assert sum(replica.in_flight for replica in replicas.all) == len(in_flight)


def test_candidates_are_the_best_available_states() -> None:
    replicas = ReplicaPool(URLS[:5])
    for replica, state in zip(replicas.all, ReplicaState, strict=True):
        replica.state = state
    (best,) = replicas.candidates(MODEL)
    assert best.state is ReplicaState.UP
    assert {replica.state for replica in replicas.candidates(MODEL, [best])} == {
        ReplicaState.NEW,
        ReplicaState.WARMING,
        ReplicaState.SLOW,
    }
    (worst,) = replicas.candidates(
        MODEL, [replica for replica in replicas.all if replica.state is not ReplicaState.DOWN]
    )
    assert worst.state is ReplicaState.DOWN
    assert replicas.take(MODEL, replicas.all) is None
    assert ReplicaPool().take(MODEL) is None


def test_replica_that_stays_keeps_its_state() -> None:
    replicas = up(URLS[:3])
    kept, urls = replicas.all[1], replicas.urls
    added, removed = replicas.update([URLS[5], URLS[1], URLS[1]])
    assert ([r.url for r in added], {r.url for r in removed}) == ([URLS[5]], {URLS[0], URLS[2]})
    assert (replicas.all[1], replicas.all[1].state, replicas.all[0].state) == (kept, ReplicaState.UP, ReplicaState.NEW)
    assert replicas.urls is urls
    assert urls == [URLS[5], URLS[1]]


def test_slow_replica_is_out_for_longer_each_time() -> None:
    replica, now, waits = Replica("u", ReplicaState.UP), 1000.0, []
    for _ in range(8):
        while replica.state is ReplicaState.UP:
            replica.stream_began(30.0, 30.0, now)
        waits.append(replica.back_at - now)
        replica.passed_check(replica.back_at - 0.1)
        assert replica.state is ReplicaState.SLOW
        now = replica.back_at
        replica.passed_check(now)
        assert replica.state is ReplicaState.UP
    assert waits == [min(FIRST_BACKOFF_SECONDS * 2**n, LONGEST_BACKOFF_SECONDS) for n in range(8)]
    replica.stream_began(30.0, 30.0, now + FORGET_SECONDS + 1)
    assert replica.back_at == now + FORGET_SECONDS + 1 + FIRST_BACKOFF_SECONDS, (
        "one late stream is enough, and the back-off starts again"
    )


def test_stream_in_time_resets_the_count_of_late_ones() -> None:
    replica = Replica("u", ReplicaState.UP)
    for seconds in ([30.0] * (LATE_STREAMS - 1) + [0.1]) * 3:
        replica.stream_began(seconds, 30.0, 0.0)
    assert replica.state is ReplicaState.UP


def test_popularity_counts_the_last_minutes_only() -> None:
    popularity = ModelPopularity()
    for model, times, now in [("old", 9, 0), ("a", 2, 250), ("b", 3, 301), ("a", 2, 330)]:
        for _ in range(times):
            popularity.count(ServedModel(model, "tiny", DIGEST), now)
    replica = Replica("u")
    assert popularity.top(2, 310, replica) == ["a", "b"]
    assert popularity.top(8, 299, replica) == ["old", "a", "b"]
    assert popularity.top(8, 10_000, replica) == []
    replica.serves = OTHER
    assert popularity.top(8, 299, replica) == [], "what it does not have is not loaded on it"


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (ServedModel("helper@1", "tiny", DIGEST), (True, True, False)),
        (ServedModel("tiny", "tiny", DIGEST), (True, False, False)),
        (ServedModel("tiny-twin", "tiny-twin", "b" * 64), (False, True, False)),
        (ServedModel("other", "other", DIGEST), (False, False, False)),
        (ServedModel("helper@2"), (True, True, True)),
    ],
    ids=["adapter", "base", "twin", "base of other bytes", "not known"],
)
def test_replica_has_the_models_of_its_base_by_digest(model: ServedModel, has: tuple[bool, ...]) -> None:
    assert tuple(map(model.is_served_by, (TINY, TWIN, OTHER))) == has


def test_replica_that_has_not_said_what_it_serves_may_have_anything() -> None:
    replicas = up(URLS[:2])
    assert (replicas.having(MODEL), replicas.serves(MODEL)) == (replicas.all, None)
    replicas.all[0].serves = OTHER
    assert (replicas.having(MODEL), replicas.serves(MODEL)) == (replicas.all[1:], None)
    replicas.all[1].serves = OTHER
    assert (replicas.having(MODEL), replicas.serves(MODEL), replicas.take(MODEL)) == ([], False, None)
    replicas.all[1].serves = TINY
    assert (replicas.having(MODEL), replicas.serves(MODEL)) == (replicas.all[1:], True)
    assert ReplicaPool().serves(MODEL) is None


def test_largest_rank_is_the_least_of_a_bases_replicas_that_answer() -> None:
    replicas = up(URLS[:3])
    assert replicas.max_lora_rank(DIGEST) is None
    ranks = zip(replicas.all, (64, 32, 8), (TWIN, TWIN, OTHER), strict=True)
    for replica, rank, serves in ranks:
        replica.serves = serves.model_copy(update={"max_lora_rank": rank})
    assert replicas.max_lora_rank(DIGEST) == 32
    replicas.all[1].state = ReplicaState.DOWN
    assert replicas.max_lora_rank(DIGEST) == 64


def test_only_replicas_that_answer_deny_that_adapters_are_served() -> None:
    replicas = up(URLS[:2])
    assert replicas.serves_adapters_of(DIGEST) is None
    replicas.all[0].serves = replicas.all[1].serves = OTHER
    assert (replicas.serves_adapters_of(DIGEST), replicas.served_bases()) == (False, {ServedBaseName("other")})
    replicas.all[1].state = ReplicaState.DOWN
    assert replicas.serves_adapters_of(DIGEST) is None
    replicas.all[0].serves = TWIN
    assert replicas.serves_adapters_of(DIGEST), "a twin has its original's adapters"
    assert ReplicaPool().serves_adapters_of(DIGEST) is None


@pytest.mark.parametrize(
    ("manifest", "fits"),
    [
        ({"quant": {"base_quant": "none"}, "trained_dtype": "float32"}, (Fit.EXACT, Fit.NONE, Fit.NONE)),
        ({"quant": {"base_quant": "nf4", "double_quant": True}}, (Fit.SHIFTED, Fit.EXACT, Fit.SHIFTED)),
        ({"quant": {"base_quant": "nf4", "double_quant": False}}, (Fit.SHIFTED, Fit.SHIFTED, Fit.EXACT)),
        ({"quant": {"base_quant": "none"}}, (Fit.EXACT, Fit.EXACT, Fit.EXACT)),
        ({}, (Fit.EXACT, Fit.EXACT, Fit.EXACT)),
    ],
    ids=["full precision", "nf4", "nf4 of plain scales", "import", "no manifest"],
)
def test_weights_that_an_adapter_belongs_on(manifest: dict[str, Any], fits: tuple[Fit, ...]) -> None:
    plain_twin = TWIN.model_copy(update={"double_quant": False})
    trained = TrainedWeights.of(manifest)
    assert tuple(each.fit_of(trained) for each in (TINY, TWIN, plain_twin)) == fits
    earlier = TWIN.model_copy(update={"double_quant": None})
    assert earlier.fit_of(TrainedWeights("nf4", False)) is Fit.EXACT, "a replica of an earlier release does not say it"


def test_adapter_over_nf4_goes_to_the_twin_and_without_it_to_the_original() -> None:
    replicas = up(URLS[:3])
    original, twin, unknown = replicas.all
    original.serves, twin.serves = TINY, TWIN
    model = ServedModel("helper@1", "tiny", DIGEST, trained=TrainedWeights("nf4"))
    assert replicas.candidates(model) == [twin]
    twin.state = ReplicaState.SLOW
    assert replicas.candidates(model) == [twin], "a late answer of the right weights is better"
    assert replicas.candidates(model, [twin]) == [original, unknown]
    twin.state = ReplicaState.DOWN
    assert replicas.candidates(model) == [original, unknown]


def test_adapter_of_the_unquantised_base_never_goes_to_the_twin() -> None:
    replicas = up(URLS[:2])
    original, twin = replicas.all
    original.serves, twin.serves = TINY, TWIN
    model = ServedModel("helper@1", "tiny", DIGEST, trained=TrainedWeights("none"))
    assert replicas.candidates(model) == [original]
    original.state = ReplicaState.DOWN
    assert replicas.candidates(model) == [original]
    assert replicas.candidates(MODEL) == [twin], "of an import nothing is known"
    original.serves = OTHER
    assert (replicas.having(model), replicas.serves(model)) == ([], False)


def test_static_urls_come_first_and_once() -> None:
    found = discover(["http://a:1/", "http://127.0.0.1:9", "http://a:1"], "localhost:9")
    assert found == ["http://a:1", "http://127.0.0.1:9"]
    assert discover([], "[::1]:9") == ["http://[::1]:9"]


def test_name_without_addresses_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"nobody\.invalid"):
        discover(["http://a:1"], "nobody.invalid:8001")
