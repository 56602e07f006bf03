"""The verdict on a trial: the outcome of its jobs, the responses to users, and how soon work continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NEVER = ("INTERNAL_ERROR", "TRAINER_CRASHED", "None")
"""Codes that no fault of an installation may have."""
SUCCESS = "Job succeeded"


@dataclass
class Verdict:
    """Verdict on one trial.

    Attributes:
        name: name of the trial.
        fault: description of the fault.
        answers: by what users asked for: their answers, counted.
        jobs: by state, or by the code with which a job was rightly refused: how many.
        attempts: number of attempts of each job.
        codes: codes of all errors that a user could see, sorted.
        recovery_seconds: time from the fault's end until work continues and `/ready` says so; None: it never did.
        bad: everything that should not have been; empty: passed.
        untried: why the fault could not be made here; None: it was.
    """

    name: str
    fault: str
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    attempts: list[int] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    recovery_seconds: float | None = None
    bad: list[str] = field(default_factory=list)
    untried: str | None = None

    @property
    def passed(self) -> bool:
        return not self.bad and self.untried is None

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"pass": self.passed}

    def as_row(self) -> str:
        """Row of the table."""
        if self.untried:
            outcome = f"not tried: {self.untried}"
        else:
            parts = [self._jobs_text(), self._recovery_text(), self._answers_text()]
            outcome = "; ".join(part for part in parts if part)
        verdict = "" if self.passed or self.untried else " **Bad:** " + "; ".join(self.bad)
        return f"| {self.fault} | {outcome}{verdict} | trial `{self.name}` |"

    def _jobs_text(self) -> str:
        texts = [f"{number} {'job' if number == 1 else 'jobs'} {outcome}" for outcome, number in self.jobs.items()]
        last = max(self.attempts, default=1)
        return f"{', '.join(texts)} in {'the first attempt' if last == 1 else f'attempt {last}'}"

    def _recovery_text(self) -> str:
        return "" if self.recovery_seconds is None else f"work continued {self.recovery_seconds:.0f} s after the end"

    def _answers_text(self) -> str:
        """Return the callers' answers that differ from the usual ones."""
        unusual = {what: [each for each in answers if each != "200"] for what, answers in self.answers.items()}
        texts = [f"{what}: {', '.join(outcomes)}" for what, outcomes in unusual.items() if outcomes]
        return "; ".join(texts) or "callers noticed nothing"


def errors_of(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The coded errors in a job's events; what is not coded, such as why a checkpoint is skipped, is a string."""
    return [error for event in job["events"] if isinstance(error := event["data"].get("error"), dict)]


def job_faults(job: Mapping[str, Any], results: int, refusals: Sequence[str] = ()) -> list[str]:
    """Faults in how a job has ended: lost, failed, done twice, or not refused as it should be.

    Args:
        job: with its events.
        results: how many final adapters are registered for it.
        refusals: codes of which it has to fail with one; none: it has to succeed.
    """
    kind, state, bad = job["kind"], job["state"], []
    errors = errors_of(job)
    successes = sum(event["message"].startswith(SUCCESS) for event in job["events"])
    if state not in ("succeeded", "failed", "cancelled"):
        bad.append(f"{kind} lost: it is {state}")
    elif not refusals and state != "succeeded":
        bad.append(f"{kind} {state}: {(job['error'] or {}).get('code')}")
    elif refusals and not (state == "failed" and job["error"]["code"] in refusals and job["attempt"] == 1):
        bad.append(
            f"{kind} not refused with {' or '.join(refusals)} at once: {state}, {job['error']}, attempt {job['attempt']}"
        )
    if successes > 1 or results > 1:
        bad.append(f"{kind} done {max(successes, results)} times")
    bad += [f"{kind}: {error['code']}: {error['message']}" for error in errors if error["code"] in NEVER]
    bad += [
        f"{kind}: {error['code']} discloses details of the server: {error['message']}"
        for error in errors
        if "/tmp/" in error["message"]
    ]
    return bad


def count_outcomes(jobs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many jobs ended in which way, for people."""
    return dict(
        Counter(f"refused with `{job['error']['code']}`" if job["state"] == "failed" else job["state"] for job in jobs)
    )


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as a table of Markdown."""
    return "\n".join(["| fault | outcome | test |", "|---|---|---|", *[verdict.as_row() for verdict in verdicts]])
