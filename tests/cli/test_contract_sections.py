"""Files of contracts: sections alone, and as the console writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.contract_sections import read_beside, read_sections
from shared.errors import ContractRejected

SECTIONS = {"exec": {"epochs": 2}}


def test_contract_in_a_request_is_read_with_what_stands_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", "preset": "small", "domain": None, "contract": SECTIONS}))
    assert (read_sections(path), read_beside(path)) == (SECTIONS, {"name": "mine", "preset": "small"})


def test_sections_alone_have_nothing_next_to_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SECTIONS))
    assert (read_sections(path), read_beside(path), read_beside(None)) == (SECTIONS, {}, {})


def test_name_next_to_bare_sections_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine"} | SECTIONS))
    with pytest.raises(ContractRejected, match="does not contain a JSON object of sections"):
        read_sections(path)
