"""Pulls of a table: each version once, a code for each invalid input, and no personal data on the disk, on both
databases.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corpus.filters.row_filters import SecretFilter
from corpus.provenance import read_provenance
from corpus.reading.deletions import GONE_NAME, compare_keys
from corpus.reading.newest import write_newest
from corpus.reading.pull import NULL_VALUE
from corpus.reading.pull_spec import PullSpec
from corpus.reading.pull_state import STATE_NAME, read_state
from corpus.shards import read_index
from shared.datasets.file_parts import NEW_OBJECTS
from shared.errors import Code, InvalidRequest, MensError
from tests.support.killed_renames import each_kill
from tests.support.source_tables import SourceTable

SECRET = "gh" + "p_" + "a1B2c3" * 6
PERSONAL = ("ann@example.org", "+49 30 901820", "DE89370400440532013000")


@contextmanager
def refused(code: Code, *words: str) -> Iterator[None]:
    with pytest.raises(MensError) as failed:
        yield
    assert failed.value.code == code, failed.value
    for word in words:
        assert word in str(failed.value), failed.value


def test_new_and_changed_rows_follow_once(table: SourceTable) -> None:
    table.add(range(1, 8))
    assert (table.pull().rows, table.pull().rows) == (7, 0)
    table.add(range(8, 10), age=1800)
    table.execute(f"UPDATE notes SET answer = 'new', changed = {table.ago(1700)} WHERE id = 3")
    report = table.pull()
    assert (report.rows, report.total) == (3, 10)
    assert sorted(table.answers()) == sorted([*(f"answer {number}" for number in range(1, 10)), "new"])
    assert table.pull().rows == 0
    assert read_index(table.folder)


def test_garbage_is_collected_seldom_during_a_pull(table: SourceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, thresholds = SecretFilter.judge, []

    def note(self: SecretFilter, rows: Any) -> Any:
        thresholds.append(gc.get_threshold()[0])
        return judge(self, rows)

    monkeypatch.setattr(SecretFilter, "judge", note)
    before = gc.get_threshold()
    table.add(range(3))
    table.pull()
    assert set(thresholds) == {NEW_OBJECTS}
    assert gc.get_threshold() == before


def test_row_has_its_origin(table: SourceTable) -> None:
    table.add([1])
    table.pull(license="proprietary-own")
    (row,) = table.rows()
    (provenance,) = read_provenance(table.folder / "part-00000.sources.jsonl")
    assert row == {"id": provenance.id, "prompt": "question 1", "response": "answer 1", "origin": "database"}
    assert provenance.source == "sql:desk"
    assert provenance.locator["key"] == [1]
    assert provenance.locator["watermark"][:3] == "20" + provenance.locator["watermark"][2]
    assert provenance.license == "proprietary-own"
    assert [stage.partition("@")[0] for stage in provenance.stages] == ["pull"]


def test_young_rows_wait_and_that_is_said(table: SourceTable) -> None:
    table.add([1])
    table.add([2], age=10)
    report = table.pull()
    assert report.rows == 1
    assert "Rows newer than 10m are left for the next pull." in report.notes
    assert table.pull(lag="2s").rows == 1


def test_rows_committed_late_within_the_lag_are_found(table: SourceTable) -> None:
    table.add([1], age=3600)
    table.add([9], age=1200)
    table.pull()
    table.add([5], age=1500)
    table.add([6], age=3000)  # later than the lag allows
    assert table.pull().rows == 1
    assert table.pull().rows == 0
    table.add([10], age=900)
    assert table.pull().rows == 1
    assert table.pull().rows == 0


def test_equal_watermarks_are_all_read_once(table: SourceTable) -> None:
    when = table.execute(f"SELECT {table.ago(3600)}")[0][0]
    for number in range(20):
        table.execute(f"INSERT INTO notes VALUES ({number}, 'q', 'a{number}', '{when}')")
    assert table.pull(limit=3, snapshot_seconds=0, shard_bytes=200).rows == 20
    table.execute(f"INSERT INTO notes VALUES (99, 'q', 'a99', '{when}')")
    assert table.pull(limit=3).rows == 1
    assert sorted(table.answers()) == sorted([*(f"a{number}" for number in range(20)), "a99"])


def test_long_pull_continues_in_new_snapshots(table: SourceTable) -> None:
    table.add(range(1, 10))
    report = table.pull(limit=2, snapshot_seconds=0)
    assert report.rows == 9
    assert report.snapshots >= 5
    state = read_state(table.folder)
    assert state
    assert state.complete
    assert state.snapshots == report.snapshots


def test_pull_without_a_watermark_is_whole_each_time(table: SourceTable) -> None:
    table.add(range(1, 6), age=0)
    assert table.pull(watermark=None, shard_bytes=100).rows == 5
    table.execute("DELETE FROM notes WHERE id < 3", "UPDATE notes SET answer = 'new' WHERE id = 5")
    assert table.pull(watermark=None, shard_bytes=100).rows == 3
    assert table.answers() == ["answer 3", "answer 4", "new"]


@pytest.mark.parametrize("watermark", ["changed", None])
def test_kill_at_any_rename_loses_and_repeats_nothing(
    table: SourceTable, watermark: str | None, tmp_path: Path
) -> None:
    table.add(range(1, 5))

    def program(place: Path) -> None:
        table.folder = place / "pulled"
        table.pull(watermark=watermark, shard_bytes=200, limit=2)

    left = 0
    for place in each_kill(tmp_path, program):
        left += 1
        table.folder = place / "pulled"
        # With an index, all rows are there, and only the state is not.
        assert read_index(table.folder) is None or len(table.rows()) == 4
        table.pull(watermark=watermark, shard_bytes=200, limit=2)
        assert table.answers() == [f"answer {number}" for number in range(1, 5)]
        assert not list(table.folder.glob("*.partial"))
    assert left >= 6


def test_state_of_a_killed_whole_pull_names_no_replaced_shards(tmp_path: Path) -> None:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "first")
    table.create()
    table.add(range(1, 4))
    table.pull(watermark=None, shard_bytes=200)
    table.execute("UPDATE notes SET answer = 'a longer new answer'")

    def program(place: Path) -> None:
        shutil.copytree(tmp_path / "first", place / "pulled")
        table.folder = place / "pulled"
        table.pull(watermark=None, shard_bytes=200)

    for place in each_kill(tmp_path, program):
        table.folder = place / "pulled"
        table.pull(watermark=None, shard_bytes=200)
        assert table.answers() == ["a longer new answer"] * 3


def test_personal_data_and_secrets_reach_no_file_and_no_log(
    table: SourceTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for number, value in enumerate(PERSONAL):
        table.execute(f"INSERT INTO notes VALUES ({number}, 'I am {value}', 'Hello {value}.', {table.ago(3600)})")
    table.execute(f"INSERT INTO notes VALUES (50, 'key?', 'It is {SECRET}', {table.ago(3600)})")
    report = table.pull()
    assert report.redactions == {"EMAIL": 2, "PHONE": 2, "IBAN": 2}
    assert report.dropped == {"SECRET": 1}
    assert len(table.rows()) == 3
    texts = [*(text for _, text in table.texts()), caplog.text, repr(report)]
    for value in (*PERSONAL, SECRET, "901820", "ann@"):
        assert not [text for text in texts if value in text], value
    prompts = [row["prompt"] for row in table.rows()]
    assert all(
        row["response"].split()[1][:-1] == prompt.split()[2] for row, prompt in zip(table.rows(), prompts, strict=True)
    )


def test_rows_that_cannot_be_written_are_counted(table: SourceTable) -> None:
    table.add([1])
    for number, answer in ((2, "NULL"), (3, "''"), (4, "'   '")):
        table.execute(f"INSERT INTO notes VALUES ({number}, 'q', {answer}, {table.ago(3600)})")
    report = table.pull()
    assert report.rows == 1
    assert report.dropped[NULL_VALUE] == 1
    assert report.dropped.total() == 3


def test_labels_keep_their_type_and_null_ones_are_left_out(table: SourceTable) -> None:
    table.add([1, 2])
    sql = f"SELECT *, CASE WHEN id = 1 THEN 4 END AS stars FROM ({table.spec['sql']}) AS x -- a comment"
    row = {
        "messages": [{"role": "user", "content": "{{ item.question }} 100%?"}, {"role": "assistant", "content": "{{ item.answer }}"}],
        "rating": "{{ item.stars }}", "category": "desk-{{ item.id }}",
    }  # fmt: skip
    table.pull(sql=sql, row=row)
    first, second = table.rows()
    assert first["messages"][0] == {"role": "user", "content": "question 1 100%?"}
    assert (first["rating"], first["category"]) == (4, "desk-1")
    assert "rating" not in second


def test_deletions_are_listed_and_left_out_of_the_training_file(table: SourceTable, tmp_path: Path) -> None:
    table.add(range(1, 5))
    table.pull()
    table.execute(
        "DELETE FROM notes WHERE id = 2", f"UPDATE notes SET answer = 'new', changed = {table.ago(900)} WHERE id = 3"
    )
    table.pull()
    assert compare_keys(PullSpec.of(table.spec), table.address(), table.folder) == 1
    assert (table.folder / GONE_NAME).read_text() == "[2]\n"
    assert write_newest(table.folder, tmp_path / "train.jsonl") == 3
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_bytes().splitlines()]
    assert [row["response"] for row in rows] == ["answer 1", "answer 4", "new"]
    origins = list(read_provenance(tmp_path / "train.sources.jsonl"))
    assert [origin.id for origin in origins] == [row["id"] for row in rows]


def test_row_that_is_added_again_after_a_comparison_is_in_the_training_file(table: SourceTable, tmp_path: Path) -> None:
    table.add([1, 2])
    table.pull()
    table.execute("DELETE FROM notes WHERE id = 2")
    assert compare_keys(PullSpec.of(table.spec), table.address(), table.folder) == 1
    assert write_newest(table.folder, tmp_path / "train.jsonl") == 1
    table.add([2], age=900)
    assert table.pull().rows == 1
    assert write_newest(table.folder, tmp_path / "train.jsonl") == 2


@pytest.mark.parametrize(
    "form",
    [
        "strftime('%Y-%m-%d', changed)",
        "printf('2026-01-%02d 10:00:00.%03d', 1 + id / 4, id)",
        "unixepoch(changed) + 0.75",
    ],
)
def test_coarse_watermark_gives_each_version_once(tmp_path: Path, form: str) -> None:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    for number in range(40):
        table.add([number], age=60 + 3600 * 2.5 * (40 - number))
    sql = f"SELECT id, question, answer, {form} AS changed FROM notes"
    assert table.pull(sql=sql, lag="90s").total <= 40
    for lag in ("90s", "1d", "30h", "3d"):
        table.pull(sql=sql, lag=lag)
        answers = table.answers()
        assert sorted(answers) == sorted(set(answers))


# -- bad input ----------------------------------------------------------------------------------------------------------


def test_watermark_in_milliseconds_is_refused(table: SourceTable) -> None:
    table.add([1])
    with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "divide milliseconds by 1000"):
        table.pull(sql="SELECT id, question, answer, 1764230400000 AS changed FROM notes")


def test_key_that_is_a_secret_is_refused(table: SourceTable) -> None:
    table.add([1])
    with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "secrets"):
        table.pull(sql=f"SELECT '{SECRET}' AS id, question, answer, changed FROM notes")
    assert not table.folder.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM notes", "INSERT INTO notes VALUES (99, 'q', 'a', NULL)", "DROP TABLE notes", "PRAGMA journal_mode = wal", "SELECT 1; DROP TABLE notes",
        "SELECT id, question, answer, changed FROM notes) AS q; DROP TABLE notes; --",
        "WITH gone AS (DELETE FROM notes RETURNING *) SELECT * FROM gone", "SELEC 1", "SELECT * FROM absent", "",
    ],
)  # fmt: skip
def test_statement_that_is_not_a_select_changes_nothing(table: SourceTable, sql: str) -> None:
    table.add([1])
    with refused(Code.CORPUS_QUERY_INVALID if sql else Code.CORPUS_RECIPE_INVALID):
        table.pull(sql=sql)
    assert len(table.execute("SELECT * FROM notes")) == 1
    assert not table.folder.exists()


@pytest.mark.postgres
def test_function_that_writes_is_refused_by_the_server(postgres_server: Any, tmp_path: Path) -> None:
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.create()
    table.add([1])
    body = "BEGIN DELETE FROM notes; RETURN 1; END"
    table.execute(f"CREATE FUNCTION sweep() RETURNS integer LANGUAGE plpgsql AS $$ {body} $$")
    with refused(Code.CORPUS_QUERY_INVALID, "read-only transaction"):
        table.pull(sql="SELECT id, question, answer, changed, sweep() FROM notes")
    assert len(table.execute("SELECT * FROM notes")) == 1
    postgres_server.drop(table.url)


def test_key_that_is_not_unique_is_refused(table: SourceTable) -> None:
    table.add([1, 2])
    twice = "SELECT n.id, n.question, n.answer, n.changed FROM notes n JOIN notes m ON m.id < 9"
    for watermark in ("changed", None):
        with refused(Code.CORPUS_KEY_NOT_UNIQUE, "(id)"):
            table.pull(sql=twice, watermark=watermark)
        with refused(Code.CORPUS_KEY_NOT_UNIQUE):
            table.pull(sql="SELECT nullif(id, 2) AS id, question, answer, changed FROM notes", watermark=watermark)
    assert not list(table.folder.glob("part-*"))


def test_watermark_that_is_null_is_refused(table: SourceTable) -> None:
    table.add([1])
    table.execute("INSERT INTO notes VALUES (2, 'q', 'a', NULL)")
    with refused(Code.CORPUS_WATERMARK_NULL, "changed", "COALESCE"):
        table.pull()
    table.execute("DELETE FROM notes WHERE id = 1")
    with refused(Code.CORPUS_WATERMARK_NULL):
        table.pull()


def test_columns_without_a_json_form_are_named(table: SourceTable) -> None:
    table.add([1])
    blob = "x'00ff'" if table.is_sqlite else "'\\x00ff'::bytea"
    found = [(blob, "bytes")] + (
        [] if table.is_sqlite else [("ARRAY[1, 2]", "array"), ("interval '1 day'", "timedelta")]
    )
    for expression, kind in found:
        sql = f"SELECT id, {expression} AS question, answer, changed FROM notes"
        with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "'question'", kind):
            table.pull(sql=sql)
    with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "watermark"):
        table.pull(watermark="question")


def test_names_that_the_query_does_not_have_are_refused(table: SourceTable) -> None:
    table.add([1])
    with refused(Code.CORPUS_QUERY_INVALID, "'number'", "id, question, answer, changed"):
        table.pull(key=["number"])
    with refused(Code.CORPUS_QUERY_INVALID, "'updated'"):
        table.pull(watermark="updated")
    with refused(Code.CORPUS_RECIPE_INVALID, "item.reply", "question"):
        table.pull(row={"prompt": "{{ item.reply }}", "response": "x"})
    with refused(Code.CORPUS_RECIPE_INVALID, "not closed"):
        table.pull(row={"prompt": "{{ item.question", "response": "x"})
    with refused(Code.CORPUS_RECIPE_INVALID, "pull.lagg"):
        table.pull(lagg="5m")
    with refused(Code.CORPUS_RECIPE_INVALID, "pull.lag"):
        table.pull(lag="soon")
    with refused(Code.CORPUS_REDACTOR_UNKNOWN):
        table.pull(redact=["presidio"])


def test_key_that_is_personal_data_is_refused(table: SourceTable) -> None:
    table.add([1])
    with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "personal data"):
        table.pull(sql="SELECT 'ann@example.org' AS id, question, answer, changed FROM notes")
    assert not table.folder.exists()


def test_another_query_does_not_continue(table: SourceTable) -> None:
    table.add([1])
    table.pull()
    for changes in (
        {"sql": table.spec["sql"] + " WHERE id > 0"},
        {"row": {"prompt": "x", "response": "{{ item.answer }}"}},
        {"redact": []},
    ):
        with refused(Code.CORPUS_STATE_MISMATCH):
            table.pull(**changes)
    (table.folder / "part-00000.jsonl").write_text("")
    with refused(Code.CORPUS_STATE_MISMATCH, "part-00000.jsonl"):
        table.pull()
    (table.folder / STATE_NAME).write_text("{")
    with refused(Code.CORPUS_STATE_MISMATCH):
        table.pull()


def test_query_without_rows_is_an_error_at_first_only(table: SourceTable) -> None:
    with refused(Code.CORPUS_SOURCE_EMPTY):
        table.pull()
    table.add([1], age=5)
    with refused(Code.CORPUS_SOURCE_EMPTY, "newer", "--lag 0s"):
        table.pull()
    table.add([2])
    assert table.pull().rows == 1
    table.execute("DELETE FROM notes")
    assert table.pull().rows == 0
    assert len(table.rows()) == 1


@pytest.mark.postgres
def test_running_transaction_holds_the_upper_end(postgres_server: Any, tmp_path: Path) -> None:
    """A row gets its time before another one and is committed after it: it is not lost."""
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.create()
    table.add([1])
    late = table.connect()
    late.execute("INSERT INTO notes VALUES (2, 'q', 'late', now())")
    time.sleep(0.05)
    table.execute("INSERT INTO notes VALUES (3, 'q', 'early', clock_timestamp())")
    report = table.pull(lag=0)
    assert table.answers() == ["answer 1"]
    assert any("has been running since" in note for note in report.notes)
    late.commit()
    late.close()
    table.pull(lag=0)
    assert table.answers() == ["answer 1", "late", "early"]
    postgres_server.drop(table.url)


@pytest.mark.postgres
def test_role_that_sees_no_other_transactions_is_noted(postgres_server: Any, tmp_path: Path) -> None:
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.create()
    table.add([1])
    table.execute("DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN", "GRANT SELECT ON notes TO reader")
    owner = table.connect()
    owner.execute("SELECT 1")
    table.url = table.url.replace("postgres@", "reader@")
    assert any("pg_read_all_stats" in note for note in table.pull().notes)
    owner.close()
    postgres_server.drop(table.url)


@pytest.mark.postgres
def test_source_that_vanishes_half_way_is_continued(
    postgres_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.create()
    table.add(range(1, 9))
    from corpus.reading.window import PullWindow

    pages = PullWindow.pages

    def interrupted(self: PullWindow) -> Iterator[Any]:
        for number, page in enumerate(pages(self)):
            if number == 2:
                cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mens-corpus'"
                table.execute(cut)
            yield page

    with monkeypatch.context() as patch:
        patch.setattr(PullWindow, "pages", interrupted)
        with refused(Code.CORPUS_SOURCE_UNREACHABLE, "desk"):
            table.pull(limit=2, shard_bytes=150)
    assert read_index(table.folder) is None
    state = read_state(table.folder)
    assert state
    assert 0 < state.rows < 8
    table.pull(limit=2, shard_bytes=150)
    assert table.answers() == [f"answer {number}" for number in range(1, 9)]
    postgres_server.drop(table.url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hidden-word@127.0.0.1:9/desk",
        "sqlite:////absent/hidden-word/desk.db",
        "postgresql://ann:hidden-word@nowhere.invalid/desk",
    ],
)
def test_unreachable_source_is_named_without_its_password(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    table = SourceTable(url, tmp_path / "pulled")
    with pytest.raises(MensError) as failed:
        table.pull()
    assert failed.value.code == Code.CORPUS_SOURCE_UNREACHABLE
    assert failed.value.retryable
    assert "desk" in str(failed.value)
    for text in (str(failed.value), repr(failed.value.as_dict()), caplog.text, repr(table.address())):
        assert "hidden-word" not in text
        assert "ann" not in text


def test_full_disk_leaves_what_is_written(table: SourceTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.add(range(1, 9))
    write = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(28, "No space left on device")
        write(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with refused(Code.STORAGE_FULL):
            table.pull(limit=2, shard_bytes=150)
    assert read_index(table.folder) is None
    assert not list(table.folder.glob("*.partial"))
    table.pull(limit=2, shard_bytes=150)
    assert table.answers() == [f"answer {number}" for number in range(1, 9)]


@pytest.mark.postgres
def test_error_of_the_data_does_not_quote_it(postgres_server: Any, tmp_path: Path) -> None:
    table = SourceTable(postgres_server.empty_url(), tmp_path / "pulled")
    table.create()
    table.add([1])
    table.execute("UPDATE notes SET question = 'ann@example.org'")
    with pytest.raises(InvalidRequest, match="22P02") as failed:
        table.pull(sql="SELECT id, question::integer AS question, answer, changed FROM notes")
    assert failed.value.code == Code.CORPUS_QUERY_INVALID
    assert "ann" not in str(failed.value)
    assert failed.value.__suppress_context__
    postgres_server.drop(table.url)


@pytest.mark.parametrize(
    ("written", "word"),
    [("2026-01-02T10:00:00", "'T'"), ("2026-01-02 10:00:00+02:00", "+02:00"), ("2026-01-02 10:00:00-0530", "-0530")],
)
def test_texts_that_do_not_sort_by_time_are_not_a_watermark(tmp_path: Path, written: str, word: str) -> None:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    table.execute(
        "INSERT INTO notes VALUES (1, 'q', 'a', '2026-01-01 10:00:00'), (3, 'q', 'b', '2026-01-03 10:00:00.25')",
        f"INSERT INTO notes VALUES (2, 'q', 'c', '{written}')",
    )
    with refused(Code.CORPUS_COLUMN_UNSUPPORTED, "changed", word):
        table.pull()
    table.execute("UPDATE notes SET changed = replace(substr(changed, 1, 19), 'T', ' ') || 'Z'")
    assert table.pull().rows == 3


def test_changed_rules_of_redaction_are_another_pull(tmp_path: Path) -> None:
    table = SourceTable(f"sqlite:///{tmp_path / 'desk.db'}", tmp_path / "pulled")
    table.create()
    table.add([1])
    rules = tmp_path / "people.rules"
    rules.write_text("answer => <A>\n")
    table.pull(redact=[str(rules)])
    rules.write_text("answer => <B>\n")
    with refused(Code.CORPUS_STATE_MISMATCH, "files of rules"):
        table.pull(redact=[str(rules)])
    assert table.answers() == ["<A> 1"]
