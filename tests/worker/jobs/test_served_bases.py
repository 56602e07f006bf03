"""The bases that a receipt may name: those that replicas of the adapter's base serve."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

from shared.replicas import TrainedWeights
from tests.support.http_stub import http_stub
from worker.jobs.attempt import Attempt
from worker.jobs.judge import served_bases
from worker.settings import WorkerSettings

BASE = {"base": "tiny", "served_digest": "b" * 64, "max_lora_rank": 64}
TWIN = BASE | {"base": "twin", "base_digest": "b" * 64, "served_digest": "d" * 64, "twin_of": "tiny"}
OTHER = BASE | {"base": "other", "served_digest": "c" * 64}


def test_receipt_is_of_a_base_that_serves_the_adapter() -> None:
    with ExitStack() as replicas:
        urls = [replicas.enter_context(http_stub(lambda *_, said=said: (200, said))) for said in (BASE, TWIN, OTHER)]
        attempt = cast(Attempt, SimpleNamespace(settings=WorkerSettings(serving_urls=urls)))
        assert [base.name for base in served_bases(attempt)] == ["tiny", "twin", "other"]
        assert [base.name for base in served_bases(attempt, "b" * 64)] == ["tiny", "twin"]
        assert [base.name for base in served_bases(attempt, "c" * 64)] == ["other"]
        for quant, name in (("none", "tiny"), ("nf4", "twin")):
            assert [base.name for base in served_bases(attempt, "b" * 64, TrainedWeights(quant))] == [name]
