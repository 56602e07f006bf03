"""GET /v1/files/{id}/rows and /report: rows as the trainer encodes them, pages by line, bad lines, limits, processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.tokenization.supervision import supervise_file
from shared.tokenization.tokenizer import Tokenizer
from tests.support.builders import BASE

GOOD = [
    {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"answer {n}"}]}
    for n in range(1, 8)
]
BAD = b'{"messages": [\n'
HOSTILE = {"prompt": "<img src=x onerror=alert(1)>\u202e", "response": "</script>"}
LONG = {"prompt": "many words " * 40, "response": "short"}


def upload(client: TestClient, *rows: Any) -> str:
    content = b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
    answer = client.post("/v1/files", data={"purpose": "fine-tune"}, files={"file": ("rows.jsonl", content)})
    return str(answer.json()["id"])


def rows(client: TestClient, file_id: str, **query: Any) -> Any:
    answer = client.get(f"/v1/files/{file_id}/rows", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def report(client: TestClient, file_id: str, **query: Any) -> Any:
    for _ in range(300):
        answer = client.get(f"/v1/files/{file_id}/report", params=query)
        if answer.status_code != 202:
            assert answer.status_code == 200, answer.text
            return answer.json()
        assert answer.headers["retry-after"] == "2"
        assert answer.json() == {"object": "file.report.pending", "file_id": file_id}
        time.sleep(0.1)
    raise AssertionError("no report")


def test_rows_are_what_the_trainer_learns(client: TestClient, base_folder: Path, tmp_path: Path) -> None:
    file_id = upload(client, *GOOD, HOSTILE)
    page = rows(client, file_id, base_model=BASE)
    assert (page["object"], page["method"], page["base_model"], page["has_more"], page["next_after"]) == (
        "list", "supervised", BASE, False, 8,
    )  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*GOOD, HOSTILE]))
    expected = supervise_file(path, base_folder, seq_len=page["seq_len"])
    tokenizer = Tokenizer.load(base_folder)
    for row, counted in zip(page["data"], expected.row_table, strict=True):
        trained = row["trained"]
        assert (row["line"], trained["tokens"], trained["supervised_tokens"]) == (
            counted.line, counted.tokens, counted.supervised,
        )  # fmt: skip
        learnt = [piece for piece in trained["pieces"] if piece["kind"] in ("supervised", "end")]
        assert sum(len(piece["ids"]) for piece in learnt) == counted.supervised
        ids = [id_ for piece in trained["pieces"] for id_ in piece["ids"]]
        assert tokenizer.decode(ids) == "".join(piece["text"] for piece in trained["pieces"])
    learnt = [piece["text"] for piece in page["data"][0]["trained"]["pieces"] if piece["kind"] == "supervised"]
    assert "".join(learnt).strip() == "answer 1"


def test_pages_follow_each_other_by_line(client: TestClient) -> None:
    file_id = upload(client, *GOOD)
    first = rows(client, file_id, limit=3)
    assert ([row["line"] for row in first["data"]], first["has_more"], first["next_after"]) == ([1, 2, 3], True, 3)
    second = rows(client, file_id, limit=50, after=first["next_after"])
    assert ([row["line"] for row in second["data"]], second["has_more"]) == ([4, 5, 6, 7], False)
    assert rows(client, file_id, after=7) | {"data": []} == rows(client, file_id, after=900) | {"next_after": 7}
    assert first["data"][0]["trained"] is None
    assert json.loads(first["data"][0]["text"]) == GOOD[0]


def test_bad_lines_have_number_and_reason(client: TestClient) -> None:
    file_id = upload(client, GOOD[0], BAD, GOOD[1], b"\xff\x00\n", LONG)
    found = rows(client, file_id, only="errors", base_model=BASE)["data"]
    assert [(row["line"], row["error"]["code"], row["trainable"]) for row in found] == [
        (2, "ROW_NOT_JSON", False),
        (4, "ROW_NOT_UTF8", False),
    ]
    assert found[1]["text"] == "\ufffd\x00"
    [cut] = rows(client, file_id, only="cut", base_model=BASE, seq_len=64)["data"]
    assert (cut["line"], cut["trained"]["tokens"]) == (5, 64)
    first = cut["trained"]["pieces"][0]
    assert (first["kind"], len(first["ids"])) == ("cut", cut["trained"]["truncated_tokens"])
    assert [note["name"] for note in cut["notes"]] == ["cut"]


def test_pair_has_both_answers(client: TestClient) -> None:
    pair = {"prompt": "q", "chosen": "good answer", "rejected": "bad answer"}
    page = rows(client, upload(client, pair, GOOD[0]), base_model=BASE)
    assert page["method"] == "dpo"
    texts = ["".join(p["text"] for p in page["data"][0][side]["pieces"]) for side in ("trained", "rejected")]
    assert "good answer" in texts[0]
    assert "bad answer" in texts[1]
    assert page["data"][1]["error"]["code"] == "ROW_METHOD_MISMATCH"
    assert rows(client, page["file_id"], base_model=BASE, method="supervised")["data"][1]["error"] is None


def test_report_is_what_the_check_finds_and_what_a_job_would_say(client: TestClient, base_folder: Path) -> None:
    file_id = upload(client, *GOOD, GOOD[0], BAD)
    told = report(client, file_id, base_model=BASE)
    assert (told["data"]["rows"], told["data"]["error_count"], told["data"]["errors"][0]["line"]) == (8, 1, 9)
    assert told["data"]["duplicates"]["exact_pairs"] == [{"first": 1, "second": 8, "similarity": 1.0}]
    assert told["supervision"]["rows"] == 8
    assert 0 < told["supervision"]["supervised_tokens"] < told["supervision"]["tokens"]
    assert told["refusal"]["code"] == "DATASET_LINE_INVALID"
    assert told["notes"] == ["Rows that repeat an earlier row exactly, and count twice: 1."]  # a refused job skips none
    assert report(client, upload(client, *GOOD), base_model=BASE)["refusal"] is None
    alone = report(client, file_id)
    assert (alone["supervision"], alone["seq_len"], alone["data"]) == (None, None, told["data"])


def test_report_is_made_once(client: TestClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    file_id = upload(client, *GOOD)
    first = report(client, file_id)

    def no_second(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(app.state.services.file_readers, "report", no_second)
    assert report(client, file_id) == first


def test_unknown_base_and_parameters_are_refused(client: TestClient) -> None:
    file_id = upload(client, *GOOD)
    for path in ("rows", "report"):
        answer = client.get(f"/v1/files/{file_id}/{path}", params={"base_model": "nobody"})
        assert (answer.status_code, answer.json()["error"]["mens"]["code"]) == (404, "MODEL_NOT_FOUND")
    for wrong in ({"limit": 51}, {"after": -1}, {"only": "some"}, {"seq_len": 7}):
        assert client.get(f"/v1/files/{file_id}/rows", params=wrong).status_code == 400
