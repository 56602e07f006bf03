"""Receipts of gates are read as they were written, in the format shown in docs/migration.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from openai_migration.receipts import MigrationReceipt, read_receipt, receipt_file, write_receipt
from shared.errors import ArtifactInvalid
from shared.statistics.paired import Status
from tests.support.fake_openai import TUNED

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"


def documented() -> MigrationReceipt:
    """The receipt of the documentation; a field that it has and that the type does not is an error."""
    example = re.findall(r"```json\n(\{\n  \"foreign_model.*?)```", PAGE.read_text(), re.DOTALL)[0]
    receipt = msgspec.json.decode(example.encode(), type=MigrationReceipt)
    assert json.loads(msgspec.json.encode(receipt)) == json.loads(example)
    return receipt


def test_a_receipt_is_read_as_it_was_written_and_private(tmp_path: Path) -> None:
    receipt = documented()
    path = write_receipt(tmp_path, receipt)
    assert path == tmp_path / receipt_file(TUNED)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert read_receipt(tmp_path, TUNED) == receipt
    assert [gate.passed for gate in receipt.gates] == [True, False]
    assert receipt.verdict is Status.MISSING_EVIDENCE


def test_missing_receipt_is_not_an_error_and_a_broken_one_is(tmp_path: Path) -> None:
    assert read_receipt(tmp_path, TUNED) is None
    path = write_receipt(tmp_path, documented())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactInvalid, match=re.escape(str(path))):
        read_receipt(tmp_path, TUNED)


def test_a_verdict_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write_receipt(tmp_path, documented())
    path.write_text(path.read_text().replace('"verdict": "missing_evidence"', '"verdict": "probably"'))
    with pytest.raises(ArtifactInvalid):
        read_receipt(tmp_path, TUNED)
