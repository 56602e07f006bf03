"""Evaluation of a training file, in the fields of the original's ``eval_results.json``, and its judgement by the gates of a policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from corpus.filters.row_texts import texts_of
from corpus.filters.secrets import texts_with_secrets
from corpus.measures.answer_code import CheckedCode, checked_codes
from corpus.measures.validation import valid_rows
from shared.checkers.anti_stub import measure_substance
from shared.checkers.contained import ContainedCheckers
from shared.checkers.languages import construct_kinds, require_language
from shared.datasets.rows import Record
from shared.errors import Code, InvalidRequest
from shared.gates.evaluate import judge
from shared.gates.evidence import AdapterRef, AnswerPair, Evidence, RunScores, ScoredAnswer, TrainingReport
from shared.gates.policy import GatePolicy, RunGate, RunTemplate
from shared.gates.receipt import GateRow
from shared.gates.training_gates import NOT_SAID, is_spoken, voice_fraction
from shared.hashing import digest_file, digest_json

UNLABELLED = "(none)"
ITSELF = "file"
"""Run that stands in for gates without one: a file is its own evidence."""
OF_FILES = frozenset({"eval_local", "per_context", "anti_stub", "modal_mix"})
"""Gates that read only answers with code, or the labels of rows."""


class ContextEvaluation(msgspec.Struct):
    """Answers of one category.

    Attributes:
        parse_rate: share of the answers with code that can be parsed; None without any.
    """

    total_samples: int
    parse_rate: float | None


class CorpusEvaluation(msgspec.Struct):
    """Evaluation of a training file; equal files give equal values.

    Attributes:
        run_id: first digits of a digest of the file and the languages.
        total_samples: lines of the file.
        format_validity: share of the lines that are training rows.
        safety_rejection_rate: share of the training rows that contain a secret; a mix with filters would leave them
            out.
        vox_parse_rate: share of the answers with code that can be parsed; None without any.
        construct_coverage: number of kinds of construct that these answers use.
        construct_total: number of kinds that the checkers distinguish; None if a checker does not list them.
        construct_coverage_pct: percentage of the kinds that are used.
        quality_proxy: share of the answers with code that can be parsed and are not stubs; None without any.
        context_breakdown: measures by category.
        modal_breakdown: spoken and other rows, by lane or category.
    """

    run_id: str
    total_samples: int
    format_validity: float
    safety_rejection_rate: float
    vox_parse_rate: float | None
    construct_coverage: int
    construct_total: int | None
    construct_coverage_pct: float | None
    quality_proxy: float | None
    context_breakdown: dict[str, ContextEvaluation]
    modal_breakdown: dict[str, int]


@dataclass(frozen=True, slots=True)
class CodeScore:
    """Scores of one answer with code: whether it can be parsed, and which constructs it uses.

    Attributes:
        context: the row's category.
        anti_stub: the grader's result: it can be parsed, and is more than a stub.
        placeholder, trivial: why it may be a stub.
    """

    context: str
    parses: bool
    anti_stub: bool
    placeholder: bool
    trivial: bool
    richness: float


@dataclass
class MeasuredRows:
    """Measures of a training file, before they get the original's names.

    Attributes:
        total: number of lines.
        rows: number of these that are training rows.
        unsafe: number of rows with a secret.
        lanes, categories: number of rows by label.
        scores: scores of the answers with code.
        used: kinds of construct that these use, with their language.
        constructs: all kinds of construct; None if a checker does not list them.
    """

    sha256: str
    languages: tuple[str, ...]
    total: int = 0
    rows: int = 0
    unsafe: int = 0
    lanes: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    scores: list[CodeScore] = field(default_factory=list)
    used: set[tuple[str, str]] = field(default_factory=set)
    constructs: frozenset[tuple[str, str]] | None = None

    @property
    def coverage(self) -> float | None:
        """Share of the known kinds that answers use, 0 to 1."""
        return len(self.used & self.constructs) / len(self.constructs) if self.constructs else None

    def add(self, record: Record, checkers: ContainedCheckers) -> None:
        """Add a row."""
        self.rows += 1
        self.lanes[record.lane or UNLABELLED] += 1
        context = record.category or UNLABELLED
        self.categories[context] += 1
        self.unsafe += bool(texts_with_secrets(texts_of(msgspec.to_builtins(record.conversation()))))
        if answers := list(checked_codes(record, self.languages, checkers)):
            self.scores.append(_score(context, answers))
            self.used.update(
                (code.language, kind) for code in answers if not code.faults for kind in code.check.constructs
            )

    def evaluation(self) -> CorpusEvaluation:
        """Return the measures in the original's fields."""
        coverage = self.coverage
        by_context: dict[str, list[CodeScore]] = defaultdict(list)
        for score in self.scores:
            by_context[score.context].append(score)
        spoken = self._spoken_rows()
        used = self.used if self.constructs is None else self.used & self.constructs
        return CorpusEvaluation(
            run_id=f"corpus-{digest_json([self.sha256, self.languages])[:16]}",
            total_samples=self.total,
            format_validity=round(self.rows / self.total, 6) if self.total else 0.0,
            safety_rejection_rate=round(self.unsafe / self.rows, 6) if self.rows else 0.0,
            vox_parse_rate=_mean([score.parses for score in self.scores]),
            construct_coverage=len(used),
            construct_total=None if self.constructs is None else len(self.constructs),
            construct_coverage_pct=None if coverage is None else round(100 * coverage, 4),
            quality_proxy=_mean([score.anti_stub for score in self.scores]),
            context_breakdown={
                name: ContextEvaluation(rows, _mean([score.parses for score in by_context[name]]))
                for name, rows in sorted(self.categories.items())
            },
            modal_breakdown={"text": self.rows - spoken, "voice": spoken},
        )

    def _spoken_rows(self) -> int:
        labels = self.categories if self.lanes.keys() & NOT_SAID else self.lanes
        return sum(count for label, count in labels.items() if is_spoken(label))


def measure_file(path: Path, languages: Sequence[str]) -> MeasuredRows:
    """Read a training file, and check the code in its answers."""
    for language in languages:
        require_language(language)
    kinds = {language: construct_kinds(language) for language in languages}
    all_constructs = frozenset((language, kind) for language in languages for kind in kinds[language])
    measured = MeasuredRows(
        digest_file(path), tuple(languages), constructs=all_constructs if all(kinds.values()) and kinds else None
    )
    dropped = Counter[str]()
    with ContainedCheckers() as checkers:
        for _, _, _, record in valid_rows(path, None, dropped):
            measured.add(record, checkers)
    measured.total = measured.rows + dropped.total()
    return measured


def judge_file(measured: MeasuredRows, policy: GatePolicy, name: str) -> list[GateRow]:
    """Judge a training file by the gates of a policy that read answers with code, or labels of rows.

    These gates normally judge a model's answers; here they read the file's own.

    Raises:
        InvalidRequest: ``POLICY_INVALID``: the policy has no such gate.
    """
    kept = {
        part: getattr(policy.gates, part) if part in OF_FILES else None
        for part in ("eval_local", "anti_stub", "modal_mix")
    }
    contexts = {context: _of_file(gate) for context, gate in policy.gates.per_context.items()}
    if not contexts and not any(kept.values()):
        raise InvalidRequest(
            Code.POLICY_INVALID,
            f"The policy {name} has no gate on a training file.",
            remedy=f"Name a policy with one of {', '.join(sorted(OF_FILES))}; the other gates judge adapters.",
            param="policy",
        )
    others: dict[str, Any] = {
        part: {} if isinstance(getattr(policy.gates, part), dict) else None for part in type(policy.gates).model_fields
    }
    gates = policy.gates.model_copy(
        update={
            **others,
            **{part: _of_file(gate) if gate else None for part, gate in kept.items()},
            "per_context": contexts,
        }
    )
    run = RunTemplate(eval=ITSELF, file=ITSELF)
    own = policy.model_copy(update={"gates": gates, "runs": {ITSELF: run}})
    return list(judge(own, _evidence(measured), name).gates)


def _of_file(gate: Any) -> Any:
    """Return a gate that reads the file instead of a run, with its own criteria instead of those of an eval."""
    if not isinstance(gate, RunGate):
        return gate
    own = {name: field.default for name, field in type(gate).model_fields.items() if name.endswith("_criterion")}
    return gate.model_copy(update={"run": ITSELF, **own})


def _evidence(measured: MeasuredRows) -> Evidence:
    now, name = datetime.now(UTC), f"file:{measured.sha256[:16]}"
    # For a file, coverage is one number for all answers together, as in the original; the gate takes the mean of equal
    # numbers.
    coverage = {} if measured.coverage is None else {"construct_coverage": measured.coverage}
    pairs = tuple(
        AnswerPair(
            item_index=number,
            context=score.context,
            candidate=(
                ScoredAnswer(
                    scores={
                        "parses": float(score.parses),
                        "anti_stub": float(score.anti_stub),
                        "placeholder": float(score.placeholder),
                        "trivial": float(score.trivial),
                        "construct_richness": score.richness,
                        **coverage,
                    },
                    passed=score.anti_stub,
                ),
            ),
        )
        for number, score in enumerate(measured.scores)
    )
    labels = {
        "rows": measured.rows,
        "trainable_rows": measured.rows,
        "lanes": measured.lanes,
        "categories": measured.categories,
    }
    return Evidence(
        adapter=AdapterRef(id=name, digest=measured.sha256),
        incumbent=None,
        compared_with=None,
        serving_base=None,
        judged_at=now,
        training=TrainingReport(
            job_id="", device="", tokens=0, supervised_tokens=0, voice_fraction=voice_fraction(labels)
        ),
        runs={
            ITSELF: RunScores(
                eval_id=ITSELF, run_id=name, measured_at=now, candidate=name, incumbent=None, pairs=pairs, sandbox=None
            )
        },
    )


def _score(context: str, answers: Sequence[CheckedCode]) -> CodeScore:
    """Return the scores of an answer; all its pieces of code count together."""
    substances = [measure_substance(measured.code, measured.check) for measured in answers]
    parses = not any(measured.faults for measured in answers)
    return CodeScore(
        context,
        parses,
        anti_stub=parses and all(measured.passes for measured in substances),
        placeholder=any(measured.markers for measured in substances),
        trivial=all(measured.is_trivial for measured in substances),
        richness=max(measured.richness for measured in substances),
    )


def _mean(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None
