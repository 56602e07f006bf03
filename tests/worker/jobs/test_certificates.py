"""Certificates: verdicts computed from numbers."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import Code, JobFailed
from worker.jobs.certificates import (
    ENGINE_ERROR_LIMITS,
    LOW_PRECISION_LIMIT,
    CertificateLimits,
    Measurements,
    ServedBase,
    certificate,
    differences,
    largest,
    refuse_failed,
    rms,
    stop_report,
    template_report,
)
from worker.probe_chats import CHATS, EncodedChats

BASE = ServedBase("tiny", "d" * 64, None, "float32")
EQUAL = template_report(EncodedChats([(CHATS[0], [1, 2])]), [[1, 2]])
ENDED = stop_report({7: "<|im_end|>"}, {7: True})
numbers = st.integers(-50_000, 0).map(lambda thousandths: thousandths / 1000)


def measure(**changes):
    """One probe of two positions: no noise, an effect of 1, no engine error, a shift of 0.1."""
    values = {
        "base": [[-2.0, -2.0]],
        "base_again": [[-2.0, -2.0]],
        "served": [[-1.0, -1.0]],
        "trained": [[-1.1, -0.9]],
        "reference": [[-1.0, -1.0]],
    }
    return Measurements(**{**values, **changes})


def judge(on=BASE, template=EQUAL, stop=ENDED, floor=1e-3, base_shift=None, **changes):
    return certificate(on, measure(**changes), template, stop, CertificateLimits(floor, base_shift))


def test_passed_certificate_is_json_with_every_number():
    found = judge()
    assert json.loads(json.dumps(found)) == found
    assert (found["passed"], found["failed"], found["probes"], found["positions"]) == (True, [], 1, 2)
    assert (found["effect_rms_nats"], found["effect_max_nats"], found["noise_rms_nats"]) == (1.0, 1.0, 0.0)
    assert found["parity"] == {
        "reference_dtype": "float32",
        "engine_error_rms_nats": 0.0,
        "engine_error_max_nats": 0.0,
        "engine_error_limit_nats": 1e-4,
        "base_shift_rms_nats": pytest.approx(0.1),
        "base_shift_max_nats": pytest.approx(0.1),
        "base_shift_limit_nats": None,
        "shift_share": pytest.approx(0.1),
    }


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"served": [[-2.0, -2.0]], "reference": [[-2.0, -2.0]]}, ["effect"]),
        ({"served": [[math.nan, -1.0]], "reference": None}, ["effect"]),
        ({"base_again": [[-2.5, -2.5]]}, ["effect"]),
        ({"floor": 2.0}, ["effect"]),
        ({"reference": [[-1.0, -1.001]]}, ["engine_error"]),
        ({"reference": [[-1.0, math.nan]]}, ["engine_error"]),
        ({"reference": [[-1.0, -1.00001]]}, []),
        ({"reference": None}, []),
        ({"trained": None}, []),
        ({"base_shift": 0.01}, ["base_shift"]),
        ({"base_shift": 0.2}, []),
        ({"base_shift": 0.2, "trained": None}, ["base_shift"]),
        ({"template": template_report(EncodedChats([(CHATS[0], [1, 2])]), [[1, 3]])}, ["template"]),
        ({"template": template_report(EncodedChats([(CHATS[0], [1, 2])]), [None])}, ["template"]),
        ({"template": template_report(EncodedChats([], ["plain"]), [])}, ["template"]),
        ({"stop": stop_report({7: "<|im_end|>", 9: "</s>"}, {7: False, 9: True})}, ["stop"]),
        ({"stop": stop_report({7: "<|im_end|>"}, {})}, []),
    ],
)
def test_verdicts(changes, failed):
    found = judge(**changes)
    assert (found["failed"], found["passed"]) == (failed, not failed)


def test_empty_measurements_fail_the_effect():
    empty = Measurements([], [], [], [], [])
    assert certificate(BASE, empty, EQUAL, ENDED, CertificateLimits(1e-3))["failed"] == ["effect"]


def test_low_precision_has_its_own_limit():
    for dtype in ("bfloat16", "float16"):
        on = ServedBase("tiny", "d" * 64, None, dtype)
        assert judge(on, reference=[[-1.0, -1.04]])["passed"]
        assert judge(on, reference=[[-1.0, -1.2]])["failed"] == ["engine_error"]
    assert max(ENGINE_ERROR_LIMITS.values()) < LOW_PRECISION_LIMIT


@pytest.mark.parametrize(
    ("changes", "code", "parts"),
    [
        ({"served": [[-2.0, -2.0]], "reference": None}, Code.ADAPTER_NO_EFFECT, ["0.00e+00 nats", "noise"]),
        ({"reference": [[-1.0, -1.1]]}, Code.ADAPTER_PARITY_FAILED, ["7.07e-02 nats", "float32", "1e-04"]),
        ({"base_shift": 0.01}, Code.ADAPTER_PARITY_FAILED, ["1.00e-01 nats", "1.00e-02"]),
        ({"base_shift": 0.01, "trained": None}, Code.ADAPTER_PARITY_FAILED, ["unknown distance"]),
        (
            {"template": template_report(EncodedChats([(CHATS[0], [1, 2])]), [[1, 3]])},
            Code.ADAPTER_TEMPLATE_MISMATCH,
            ["'plain'", "token 3", "position 1", "has 2"],
        ),
        (
            {"template": template_report(EncodedChats([(CHATS[0], [1, 2])]), [None])},
            Code.ADAPTER_TEMPLATE_MISMATCH,
            ["refuses", "'plain'"],
        ),
        (
            {"template": template_report(EncodedChats([], ["plain"]), [])},
            Code.ADAPTER_TEMPLATE_MISMATCH,
            ["no probe chat"],
        ),
        (
            {"stop": stop_report({7: "<|im_end|>", 9: "</s>"}, {7: False, 9: True})},
            Code.ADAPTER_STOP_MISMATCH,
            ["continue after <|im_end|> (7)", "ends a turn"],
        ),
    ],
)
def test_refusal_states_numbers_and_carries_every_certificate(changes, code, parts):
    certificates = {"http://one": judge(), "http://two": judge(**changes)}
    with pytest.raises(JobFailed) as failed:
        refuse_failed("a@b", certificates)
    assert failed.value.code == code
    assert "http://two" in failed.value.message
    assert all(part in failed.value.message for part in parts), failed.value.message
    assert failed.value.details == {"certificates": certificates}
    assert failed.value.remedy
    assert not failed.value.retryable


def test_passed_certificates_are_not_refused():
    refuse_failed("a@b", {"http://one": judge(), "http://two": judge()})


@given(st.lists(st.lists(st.tuples(numbers, numbers), max_size=4), max_size=4))
def test_rms_is_between_zero_and_the_largest(pairs):
    one, other = ([[pair[side] for pair in probe] for probe in pairs] for side in (0, 1))
    found = differences(one, other)
    assert len(found) == sum(map(len, pairs))
    assert 0 <= rms(found) <= largest(found) * (1 + 1e-9)
    assert rms(found) * math.sqrt(max(len(found), 1)) >= largest(found) * (1 - 1e-9)
    assert rms(differences(one, one)) == 0


@given(numbers, st.floats(1e-6, 10))
def test_engine_error_fails_above_its_limit_only(start, error):
    probe = {"base": [[start + 1]], "base_again": [[start + 1]], "served": [[start]], "trained": None}
    found = judge(reference=[[start - error]], **probe)
    assert ("engine_error" in found["failed"]) == (found["parity"]["engine_error_rms_nats"] > 1e-4)


@pytest.mark.parametrize(("shift", "is_warned"), [(0.05, False), (0.1, True), (0.4, True)])
def test_a_shift_that_is_a_tenth_of_the_effect_is_warned_of(shift: float, is_warned: bool) -> None:
    found = judge(trained=[[-1.0 - shift, -1.0 + shift]])
    assert found["parity"]["shift_share"] == pytest.approx(shift)
    assert bool(found["warnings"]) is is_warned
    assert found["passed"], "it fails nothing"
    assert all("quant.base none" in warning for warning in found["warnings"])


def test_no_shift_share_without_scores_of_the_training() -> None:
    found = judge(trained=None)
    assert (found["parity"]["shift_share"], found["warnings"]) == (None, [])


DEEP = [[100 + at for at in range(20)], [300 + at for at in range(20)]]


def deep(error, **changes):
    """Two probes of twenty positions, of which those from 300 on have an engine error."""
    served = [[-1.0] * 20, [-1.0 + error] * 20]
    same = {"base": [[-2.0] * 20] * 2, "base_again": [[-2.0] * 20] * 2, "reference": [[-1.0] * 20] * 2}
    return judge(**same | {"served": served, "trained": None, "positions": DEEP} | changes)


def test_each_range_of_depths_has_its_numbers():
    first, second = deep(0.0)["depth"]
    assert (first["from"], first["to"], first["positions"]) == (0, 256, 20)
    assert (second["from"], second["to"], second["positions"]) == (256, 1024, 20)
    assert (second["engine_error_rms_nats"], second["base_shift_rms_nats"]) == (0.0, None)
    assert second["effect_rms_nats"] == pytest.approx(1.0)


def test_an_error_of_long_contexts_alone_fails():
    """Over all positions it is within the limit."""
    found = deep(1.2e-4)
    assert found["parity"]["engine_error_rms_nats"] < 1e-4
    assert found["failed"] == ["depth"]
    with pytest.raises(JobFailed, match="from position 256 to 1023") as refused:
        refuse_failed("tiny@1", {"replica-1": found})
    assert refused.value.code == Code.ADAPTER_PARITY_FAILED
    assert deep(1.2e-4, positions=None)["passed"], "as before there were ranges"


def test_few_positions_decide_nothing():
    assert deep(1.2e-4, positions=[DEEP[0], [300] * 5 + [200] * 15])["passed"]


def test_deep_positions_do_not_hide_an_error_of_short_answers():
    """Over all positions it is within the limit."""
    served, same = [[-1.0 + 3e-4] * 3, [-1.0] * 60], [[-1.0] * 3, [-1.0] * 60]
    positions = [[5, 6, 7], list(range(300, 360))]
    before = [[-2.0] * 3, [-2.0] * 60]
    found = judge(base=before, base_again=before, reference=same, served=served, trained=None, positions=positions)
    assert found["parity"]["engine_error_rms_nats"] < 1e-4
    assert found["failed"] == ["depth"]


def test_a_growing_error_within_the_limit_is_warned_of():
    assert not deep(1e-5)["warnings"]
    (warning,) = deep(5e-5)["warnings"]
    assert "grows with the context" in warning
    assert deep(5e-5)["passed"]


def test_without_a_reference_the_depth_is_reported_and_not_judged():
    found = deep(1.0, reference=None)
    assert found["passed"]
    assert [one["engine_error_rms_nats"] for one in found["depth"]] == [None, None]
