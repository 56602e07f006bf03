"""`scan` finds calls of OpenAI in source code, and ignores all other code."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_migration.scan import ADVICE, MAX_FILE_BYTES, FindingKind, scan, source_files
from tests.support.fake_openai import KEY, TUNED

FOUND = [
    (f'model="{TUNED}"', {FindingKind.TUNED_MODEL}),
    ('model="gpt-4o-mini-2024-07-18"', {FindingKind.MODEL}),
    ("MODEL=gpt-4.1", {FindingKind.MODEL}),
    ('"o4-mini"', {FindingKind.MODEL}),
    ("model: 'davinci-002'", {FindingKind.MODEL}),
    ('base_url="https://api.openai.com/v1"', {FindingKind.BASE_URL}),
    ("client.moderations.create(input=text)", {FindingKind.MODERATION}),
    ("await openai.batches.create({", {FindingKind.BATCHES}),
    ("client.beta.threads.create()", {FindingKind.ASSISTANTS}),
    ("client.vector_stores.create()", {FindingKind.VECTOR_STORES}),
    ("openai.vectorStores.create()", {FindingKind.VECTOR_STORES}),
    ("client.evals.runs.create(", {FindingKind.EVALS}),
    ('files.create(file=f, purpose="batch")', {FindingKind.FILE_PURPOSE}),
    ("purpose: 'assistants'", {FindingKind.FILE_PURPOSE}),
    ("previous_response_id=response.id", {FindingKind.STORED}),
    ("store=True", {FindingKind.STORED}),
    ('{"store": true}', {FindingKind.STORED}),
    ('prompt={"id": "pmpt_abc"}', {FindingKind.PROMPT_ID}),
    ('{"type": "image_url"}', {FindingKind.IMAGE_OR_AUDIO}),
    ("client.audio.transcriptions.create(", {FindingKind.IMAGE_OR_AUDIO}),
    ("client.realtime.connect(", {FindingKind.REALTIME}),
    ("client.embeddings.create(input=text)", {FindingKind.EMBEDDINGS}),
    ('functions=[{"name": "f"}]', {FindingKind.LEGACY_FUNCTIONS}),
    ('function_call="auto"', {FindingKind.LEGACY_FUNCTIONS}),
    ('tools=[{"type": "web_search"}]', {FindingKind.HOSTED_TOOL}),
    ("max_tokens=256", {FindingKind.TOKEN_BOUND}),
    ('"max_completion_tokens": 100', {FindingKind.TOKEN_BOUND}),
    ('files.create(file=f, purpose="fine-tune")', set()),
    ("client.chat.completions.create(model=MODEL, messages=messages)", set()),
    ("store=False", set()),
    ("def functions(self): ...", set()),
    ("max_tokens=limit", set()),
    ("left:right:other:thing", set()),
]


@pytest.mark.parametrize(("line", "kinds"), FOUND, ids=[line for line, _ in FOUND])
def test_what_is_found(tmp_path: Path, line: str, kinds: set[FindingKind]) -> None:
    source = tmp_path / "program.py"
    source.write_text(f"# first\n{line}\n")
    findings = list(scan([source]))
    assert {finding.kind for finding in findings} == kinds
    assert all((finding.line, finding.text) == (2, line) for finding in findings)


def test_every_kind_has_a_case_and_an_advice() -> None:
    assert set(FindingKind) == set(ADVICE) == set().union(*(kinds for _, kinds in FOUND))


def test_a_key_in_the_source_is_not_shown(tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text(f'OpenAI(api_key="{KEY}", base_url="https://api.openai.com/v1")')
    assert [finding.text for finding in scan([source])] == [
        'OpenAI(api_key="(key)", base_url="https://api.openai.com/v1")'
    ]


def test_other_peoples_code_binaries_and_data_are_passed_over(tmp_path: Path) -> None:
    line = b"model = 'gpt-4o'\n"
    for folder in ("node_modules/x", ".git", "src/deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.py").write_bytes(line)
    (tmp_path / "binary").write_bytes(b"\0" + line)
    (tmp_path / "large.json").write_bytes(line + b" " * MAX_FILE_BYTES)
    (tmp_path / "latin.txt").write_bytes(b"\xe9 " + line)
    (tmp_path / "link").symlink_to(tmp_path)
    found = {str(finding.path.relative_to(tmp_path)) for finding in scan(source_files(tmp_path))}
    assert found == {"src/deep/a.py", "latin.txt"}


def test_one_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x")
    assert list(source_files(tmp_path / "a.py")) == [tmp_path / "a.py"]
