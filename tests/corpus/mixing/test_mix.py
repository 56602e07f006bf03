"""The mix: weights, order, lanes, duplicates, held-out rows, shares, provenance; and equal bytes however it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corpus.filters.filtering import Filtering
from corpus.mixing.mix import run_mix
from corpus.mixing.mix_file import read_mix
from corpus.mixing.mix_report import read_report, report_path
from corpus.provenance import Provenance, read_provenance
from corpus.shards import StageWriter
from corpus.sources import find_files
from shared.datasets.report import inspect_file
from shared.errors import Code, MensError
from tests.corpus.mixing.mixes import (
    content,
    divided,
    ids,
    mixed,
    output,
    question,
    report_of,
    rows_of,
    write_rows,
)
from tests.support.killed_renames import each_kill

ORIGINAL = """
output: target/dogfood/train_mixed.jsonl
include_lanes: [vox_codegen, vox_tooling, vox_speech]
sources:
  - path: target/dogfood/validated.jsonl
    weight: 6
  - path: target/dogfood/docs.jsonl
    weight: 2.0
    optional: true
  - path: target/dogfood/tool_traces.jsonl
    weight: 1.0
    record_format: tool_trace
  - path: target/dogfood/asr.jsonl
    weight: 0.5
    record_format: asr_refine
    optional: true
  - path: target/dogfood/dpo.jsonl
    record_format: dpo
    optional: true
  - path: target/dogfood/off.jsonl
    weight: 0
  - path: target/dogfood/absent.jsonl
    optional: true
    sample_rate: 0.5
"""
TRACE = {
    "task_prompt": "List the files",
    "tool_name": "ls",
    "arguments_json": '{"path": "."}',
    "result_json": '["a"]',
    "success": True,
    "session_id": "s1",
}


def questions(folder: Path, name: str, count: int, **labels: Any) -> None:
    write_rows(folder / name, *(question(number, **labels) for number in range(count)))


def code_of(*call: Any, **keys: Any) -> Code:
    with pytest.raises(MensError) as raised:
        mixed(*call, **keys)
    return raised.value.code


# -- the original's mixes ---------------------------------------------------------------------------------------------


def test_mix_of_the_original_runs_as_it_is(tmp_path: Path) -> None:
    data = tmp_path / "target" / "dogfood"
    write_rows(data / "validated.jsonl", question(1, category="function", rating=5), {"prompt": "x", "response": ""})
    write_rows(data / "docs.jsonl", question(2, category="documentation"))
    write_rows(data / "tool_traces.jsonl", TRACE)
    write_rows(data / "asr.jsonl", *(question(number) for number in range(10, 110)))
    write_rows(data / "dpo.jsonl", {"prompt": "a", "chosen": "b", "rejected": "c"})
    write_rows(data / "off.jsonl", question(3))
    config = tmp_path / "mens" / "mix.yaml"
    config.parent.mkdir()
    config.write_text(ORIGINAL)
    result = run_mix(read_mix(config), config, root=tmp_path)
    found = {Path(source.path).stem: source for source in result.report.sources}
    assert {name: source.skipped_reason for name, source in found.items() if source.skipped_reason} == {
        "docs": "no_lines_passed_filters",
        "off": "weight_zero",
        "absent": "missing_file_optional",
    }
    assert (found["validated"].input_lines, found["validated"].repeats, found["validated"].emitted_lines) == (2, 6, 6)
    assert found["validated"].dropped == {"ROW_ANSWER_EMPTY": 1}
    assert found["docs"].dropped == {"LANE": 1}
    assert 30 < found["asr"].emitted_lines < 70
    report = json.loads((data / "train_mixed.mix_report.json").read_bytes())
    assert {"config_path", "output_path", "strict", "config_fingerprint", "sources", "total_emitted"} <= report.keys()
    fields = {
        "path", "weight", "optional", "record_format", "resolved_path", "source_fingerprint", "input_lines", "repeats",
        "emitted_lines", "skipped_reason", "share_of_output",
    }  # fmt: skip
    assert all(fields <= source.keys() for source in report["sources"])
    assert report["total_emitted"] == len(rows_of(data / "train_mixed.jsonl"))
    (trace,) = [row for row in rows_of(data / "train_mixed.jsonl") if row.get("category") == "tool_trace"]
    assert trace["prompt"] == "[vox_tool_supervision] List the files"
    assert json.loads(trace["response"]) == {
        "tool_name": "ls", "arguments": {"path": "."}, "result": ["a"], "success": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ({"path": "absent.jsonl"}, Code.CORPUS_SOURCE_MISSING),
        ({"path": "empty.jsonl"}, Code.CORPUS_SOURCE_EMPTY),
        ({"path": "bad.jsonl"}, Code.CORPUS_SOURCE_EMPTY),
        ({"path": "."}, Code.CORPUS_SOURCE_EMPTY),
    ],
)
def test_required_source_without_rows_is_an_error_unless_allowed(
    tmp_path: Path, source: dict[str, Any], code: Code
) -> None:
    (tmp_path / "empty.jsonl").touch()
    write_rows(tmp_path / "bad.jsonl", {"prompt": "a"}, {"prompt": "b", "response": " "})
    questions(tmp_path / "good", "a.jsonl", 3)
    assert code_of(tmp_path, source, "good") == code
    assert not (tmp_path / "out" / "train.jsonl").exists()
    assert mixed(tmp_path, source, "good", strict=False).report.total_emitted == 3
    assert mixed(tmp_path, source | {"optional": True}, "good").report.total_emitted == 3


def test_empty_output_is_an_error_even_if_sources_may_be_missing(tmp_path: Path) -> None:
    assert code_of(tmp_path, "absent.jsonl", strict=False) == Code.CORPUS_OUTPUT_EMPTY
    questions(tmp_path, "a.jsonl", 3)
    assert code_of(tmp_path, {"path": "a.jsonl", "max_share": 0.5}) == Code.CORPUS_OUTPUT_EMPTY
    assert code_of(tmp_path, "a.jsonl", holdout={"rows": 3}) == Code.CORPUS_OUTPUT_EMPTY


def test_failed_mix_leaves_the_output_before_it_and_no_work(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 3)
    mixed(tmp_path, "a.jsonl")
    before = content(tmp_path)
    (tmp_path / "a.jsonl").write_text("")
    assert code_of(tmp_path, "a.jsonl") == Code.CORPUS_SOURCE_EMPTY
    assert content(tmp_path) == before


# -- weights and order ------------------------------------------------------------------------------------------------


def test_weight_under_one_keeps_that_share_and_a_larger_weight_keeps_these_rows_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", *({"prompt": f"p {n}", "response": "r"} for n in range(10_000)))
    kept = {}
    for weight in (0.25, 0.5, 1.5):
        mixed(tmp_path, {"path": "a.jsonl", "weight": weight})
        kept[weight] = ids(tmp_path)
        expected, deviation = 10_000 * weight, 3 * (10_000 * weight % 1 * (1 - weight % 1)) ** 0.5 + 150
        assert abs(len(kept[weight]) - expected) < deviation
    assert set(kept[0.25]) < set(kept[0.5]) < set(kept[1.5])
    assert len(set(kept[1.5])) == 10_000


def test_sample_rate_keeps_a_share_of_the_rows_before_their_weight(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 200)
    mixed(tmp_path, {"path": "a.jsonl", "weight": 3, "sample_rate": 0.5})
    found = ids(tmp_path)
    assert 60 < len(set(found)) < 140
    assert len(found) == 3 * len(set(found))


def test_added_row_moves_no_other(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 50)
    mixed(tmp_path, "a.jsonl")
    before = ids(tmp_path)
    questions(tmp_path, "a.jsonl", 51)
    mixed(tmp_path, "a.jsonl")
    assert [row for row in ids(tmp_path) if row in before] == before
    assert before != sorted(before)


def test_another_seed_gives_another_order_of_the_same_rows(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 50)
    mixed(tmp_path, "a.jsonl")
    before = ids(tmp_path)
    mixed(tmp_path, "a.jsonl", seed=7)
    assert sorted(before) == sorted(ids(tmp_path))
    assert before != ids(tmp_path)


def test_most_rows_and_shares_hold_together(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 100, category="human")
    write_rows(tmp_path / "b.jsonl", *(question(number, category="made") for number in range(1_000, 1_500)))
    result = mixed(tmp_path, "a.jsonl", {"path": "b.jsonl", "max_share": 0.3})
    assert report_of(result, "b.jsonl").share_of_output <= 0.3
    assert [source.emitted_lines for source in result.report.sources] == [100, 42]
    result = mixed(tmp_path, "a.jsonl", {"path": "b.jsonl", "max_share": 0.3}, max_rows=50)
    assert [source.emitted_lines for source in result.report.sources] == [35, 15]


# -- lanes and labels -------------------------------------------------------------------------------------------------


def test_lanes_are_selected_with_and_without_the_originals_prefix(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "a.jsonl",
        question(1, lane="vox_docs_qa"),
        question(2, category="documentation"),
        question(3, lane="code"),
        question(4),
        question(5, category="asr_noise"),
    )
    mixed(tmp_path, "a.jsonl", include_lanes=["docs_qa", "vox_speech"])
    assert {row.get("lane") for row in output(tmp_path)} == {"vox_docs_qa", "docs_qa", "speech"}
    mixed(tmp_path, "a.jsonl", exclude_lanes=["docs_qa", "codegen"])
    assert {row["lane"] for row in output(tmp_path)} == {"code", "speech"}
    assert mixed(tmp_path, "a.jsonl").report.total_emitted == 5


def test_row_keeps_its_keys_and_gets_its_id_first(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", question(1, rating=4, id="mine", origin="human", note={"a": [1.50]}))
    mixed(tmp_path, "a.jsonl")
    (row,) = output(tmp_path)
    assert list(row) == ["id", "prompt", "response", "rating", "origin", "note"]
    assert (row["note"], len(row["id"])) == ({"a": [1.5]}, 16)


def test_pairs_of_answers_pass_through(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": "d"},
        {"prompt": "a"},
    ]
    write_rows(tmp_path / "a.jsonl", *rows)
    result = mixed(tmp_path, "a.jsonl", dedup={"exact": False})
    assert {row["rejected"] for row in output(tmp_path)} == {"c", "d"}
    assert len(set(ids(tmp_path))) == 2
    assert sum(result.report.dropped.values()) == 1


# -- duplicates and holdout -------------------------------------------------------------------------------------------


def test_of_equal_rows_the_best_rated_stays_then_the_first_source(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", question(1, rating=3, lane="a"), question(2, lane="a"))
    write_rows(tmp_path / "b.jsonl", question(1, rating=5, lane="b"), question(2, lane="b"), question(3))
    result = mixed(tmp_path, "a.jsonl", "b.jsonl")
    assert sorted((row.get("lane", ""), row.get("rating")) for row in output(tmp_path)) == [
        ("", None),
        ("a", None),
        ("b", 5),
    ]
    assert [source.dropped for source in result.report.sources] == [{"DUPLICATE_EXACT": 1}, {"DUPLICATE_EXACT": 1}]
    assert mixed(tmp_path, "a.jsonl", "b.jsonl", dedup={"exact": False}).report.total_emitted == 5


def test_mix_that_keeps_duplicates_takes_no_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(texts: list[str], **_: Any) -> tuple[list[int], bytes]:
        assert not texts
        return [], b""

    monkeypatch.setattr("corpus.mixing.pieces.fingerprints", refuse)
    questions(tmp_path, "a.jsonl", 20)
    assert mixed(tmp_path, "a.jsonl", dedup={"exact": False}).report.total_emitted == 20


def test_near_duplicate_is_left_out_with_its_equals(tmp_path: Path) -> None:
    long = " ".join(f"w{n}" for n in range(200))
    rows = [{"prompt": long, "response": end} for end in ("first", "second", "Second")]
    write_rows(tmp_path / "a.jsonl", *rows, question(1))
    assert mixed(tmp_path, "a.jsonl").report.total_emitted == 3
    result = mixed(tmp_path, "a.jsonl", dedup={"near": 0.8})
    assert {row["response"] for row in output(tmp_path)} == {"first", question(1)["response"]}
    assert result.report.dropped == {"DUPLICATE_EXACT": 1, "DUPLICATE_NEAR": 1}


def test_holdout_takes_whole_groups_and_leaves_no_near_pair_across(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", *(question(n, category=f"group {n % 20}") for n in range(200)))
    long = " ".join(f"w{n}" for n in range(200))
    write_rows(
        tmp_path / "b.jsonl", *({"prompt": long, "response": f"end {n}", "category": f"group {n}"} for n in range(20))
    )
    for near in (None, 0.8):
        result = mixed(tmp_path, "a.jsonl", "b.jsonl", holdout={"rows": 70, "by": "category"}, dedup={"near": near})
        train, held_out = tmp_path / "out" / "train.jsonl", tmp_path / "out" / "train.validation.jsonl"
        sides = [{row["category"] for row in rows_of(path)} for path in (train, held_out)]
        assert not sides[0] & sides[1]
        assert 50 <= result.report.total_held_out == len(rows_of(held_out)) <= 70
        leakage = inspect_file(train, validation=held_out).leakage
        assert leakage
        assert (leakage.exact_rows, leakage.near_rows) == (0, 0)


def test_rows_of_one_repository_are_on_one_side(tmp_path: Path) -> None:
    with StageWriter(tmp_path / "pairs", stage="pairs", key="k" * 64) as writer:
        for number in range(60):
            locator = {"repo": f"r{number % 6}", "path": f"{number}.py", "lines": [1, 2]}
            writer.write_row(question(number), Provenance(id="", source="code:x", locator=locator))
    mixed(tmp_path, "pairs", holdout={"rows": 20})
    repositories = [
        {record.locator["repo"] for record in read_provenance(tmp_path / "out" / f"train{kind}.sources.jsonl")}
        for kind in ("", ".validation")
    ]
    assert (len(repositories[0]), len(repositories[1])) == (4, 2)
    assert not repositories[0] & repositories[1]


def test_holdout_without_a_group_that_fits_is_refused_and_files_are_smaller_groups(tmp_path: Path) -> None:
    with StageWriter(tmp_path / "pairs", stage="pairs", key="k" * 64) as writer:
        for number in range(30):
            locator = {"repo": "r", "path": f"{number % 6}.py", "lines": [number, number]}
            writer.write_row(question(number), Provenance(id="", source="code:x", locator=locator))
    assert code_of(tmp_path, "pairs", holdout={"rows": 10}) == Code.CORPUS_RECIPE_INVALID
    assert not (tmp_path / "out" / "train.jsonl").exists()
    assert mixed(tmp_path, "pairs", holdout={"rows": 10, "by": "path"}).report.total_held_out == 10
    held_out = read_provenance(tmp_path / "out" / "train.validation.sources.jsonl")
    assert len({record.locator["path"] for record in held_out}) == 2


def test_mix_without_holdout_removes_the_validation_file_of_an_earlier_one(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 20)
    mixed(tmp_path, "a.jsonl", holdout={"rows": 5})
    mixed(tmp_path, "a.jsonl")
    assert sorted(content(tmp_path)) == [
        "train.jsonl",
        "train.metadata.json",
        "train.mix_report.json",
        "train.sources.jsonl",
    ]


# -- provenance -------------------------------------------------------------------------------------------------------


def test_origin_of_each_row_lies_next_to_it(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 5)
    with StageWriter(tmp_path / "pulled", stage="pull", key="6f1c" * 16, max_bytes=300) as writer:
        for number in range(10, 15):
            origin = Provenance(id="", source="sql:t", locator={"key": [number]}, stages=["pull@6f1c"])
            writer.write_row(question(number), origin)
    mixed(tmp_path, "a.jsonl", "pulled")
    records = list(read_provenance(tmp_path / "out" / "train.sources.jsonl"))
    assert [record.id for record in records] == ids(tmp_path)
    lines = {record.locator["line"] for record in records if record.source == "file:a.jsonl"}
    keys = {record.locator["key"][0] for record in records if record.source == "sql:t"}
    assert (lines, keys) == ({1, 2, 3, 4, 5}, {10, 11, 12, 13, 14})
    marks = {tuple(record.stages) for record in records}
    (own,) = {stages[-1] for stages in marks}
    assert own.startswith("mix@")
    assert marks == {(own,), ("pull@6f1c", own)}


def test_changed_shard_stops_the_mix(tmp_path: Path) -> None:
    with StageWriter(tmp_path / "pulled", stage="pull", key="k") as writer:
        writer.write_row(question(1), Provenance(id="", source="sql:t", locator={}))
    (tmp_path / "pulled" / "part-00000.jsonl").write_text("{}\n")
    assert code_of(tmp_path, "pulled") == Code.CORPUS_SHARD_CHANGED


def test_rows_that_are_not_those_of_the_provenance_stop_the_mix(tmp_path: Path) -> None:
    with StageWriter(tmp_path / "made", stage="x", key="k") as writer:
        writer.write_row(question(1), Provenance(id="", source="sql:t", locator={}))
    rows = tmp_path / "made" / "part-00000.jsonl"
    (tmp_path / "a.sources.jsonl").write_bytes((tmp_path / "made" / "part-00000.sources.jsonl").read_bytes())
    (tmp_path / "a.jsonl").write_text(rows.read_text() + json.dumps(question(2)) + "\n")
    assert code_of(tmp_path, "a.jsonl") == Code.CORPUS_SHARD_CHANGED
    (tmp_path / "a.jsonl").write_text(rows.read_text() + "\n")
    mixed(tmp_path, "a.jsonl")
    questions(tmp_path, "b.jsonl", 1)
    (tmp_path / "b.sources.jsonl").write_text('{"title": "not ours"}\n')
    assert code_of(tmp_path, "b.jsonl") == Code.CORPUS_SHARD_CHANGED


# -- equal bytes ------------------------------------------------------------------------------------------------------


def everything(folder: Path) -> None:
    """A mix with each kind of source and each decision."""
    questions(folder, "a.jsonl", 120, rating=3)
    write_rows(folder / "b.jsonl", *(question(n, rating=5, category=f"c{n % 7}") for n in range(80, 200)))
    long = " ".join(f"w{n}" for n in range(150))
    write_rows(folder / "c.jsonl", *({"prompt": long, "response": f"end {n}"} for n in range(20)), *[TRACE] * 2)
    with StageWriter(folder / "pulled", stage="pull", key="k", max_bytes=4_000) as writer:
        for number in range(300, 400):
            writer.write_row(question(number), Provenance(id="", source="sql:t", locator={"key": [number]}))
    mixed(
        folder,
        {"path": "a.jsonl", "weight": 2.5},
        "b.jsonl",
        {"path": "c.jsonl", "weight": 0.7, "max_share": 0.2},
        {"path": "pulled", "sample_rate": 0.8},
        dedup={"near": 0.8},
        holdout={"rows": 40},
        max_rows=300,
    )


GOLDEN = "ca5fedfc10c460ad9f1d171acc6ab46ee95e68e25efa82541ceeed8a29ddffc7"


def test_row_with_the_provenance_of_another_stops_the_mix_and_the_filters(tmp_path: Path) -> None:
    """Two lines were exchanged: a retraction would find the wrong one."""
    with StageWriter(tmp_path / "stage", stage="x", key="k") as writer:
        for number in range(3):
            writer.write_row(question(number), Provenance(id="", source="sql:desk", locator={"key": [number]}))
    for name in ("part-00000.jsonl", "part-00000.sources.jsonl"):
        (tmp_path / name.replace("part-00000", "copy")).write_bytes((tmp_path / "stage" / name).read_bytes())
    assert mixed(tmp_path, "copy.jsonl").report.total_emitted == 3
    lines = (tmp_path / "copy.jsonl").read_text().splitlines()
    (tmp_path / "copy.jsonl").write_text("\n".join([lines[0], lines[2], lines[1]]) + "\n")
    files = find_files(tmp_path / "copy.jsonl")
    assert files
    filtering = Filtering(files, "copy", True, (), tmp_path)
    for read in (lambda: mixed(tmp_path, "copy.jsonl"), lambda: filtering.run(tmp_path / "filtered", "k")):
        with pytest.raises(MensError, match=r"Line 2 of .*copy\.jsonl is the row") as raised:
            read()
        assert raised.value.code is Code.CORPUS_SHARD_CHANGED


def test_bytes_are_those_of_this_version(tmp_path: Path) -> None:
    """If this fails, raise `mix.VERSION` and take the new digest: an unchanged mix would not be made again."""
    everything(tmp_path)
    assert content(tmp_path)["train.jsonl"] == GOLDEN


@pytest.mark.parametrize("processes", [1, 2, 7])
def test_any_number_of_processes_gives_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    everything(tmp_path / "one")
    divided(monkeypatch, processes)
    everything(tmp_path / "many")
    expected, found = content(tmp_path / "one"), content(tmp_path / "many")
    del expected["train.mix_report.json"], found["train.mix_report.json"]  # which names the folder
    assert found == expected


def test_killed_at_any_rename_the_next_run_gives_the_same_bytes(tmp_path: Path) -> None:
    everything(tmp_path / "whole")
    kills = 0
    for folder in each_kill(tmp_path, everything):
        kills += 1
        everything(folder)
        expected, found = content(tmp_path / "whole"), content(folder)
        del expected["train.mix_report.json"], found["train.mix_report.json"]
        assert found == expected
        assert not (folder / "out" / "train.mix_work").exists()
    assert kills > len(expected)


def test_unchanged_mix_writes_nothing_and_any_change_writes_it_again(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 20)
    assert not mixed(tmp_path, "a.jsonl").unchanged
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert mixed(tmp_path, "a.jsonl").unchanged
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before
    assert not mixed(tmp_path, {"path": "a.jsonl", "weight": 2}).unchanged
    assert mixed(tmp_path, {"path": "a.jsonl", "weight": 2}).unchanged
    (tmp_path / "out" / "train.jsonl").write_text("{}\n")
    assert not mixed(tmp_path, {"path": "a.jsonl", "weight": 2}).unchanged
    questions(tmp_path, "a.jsonl", 21)
    assert not mixed(tmp_path, {"path": "a.jsonl", "weight": 2}).unchanged


def test_full_disk_has_its_code_and_leaves_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions(tmp_path, "a.jsonl", 20)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert code_of(tmp_path, "a.jsonl") == Code.STORAGE_FULL
    assert read_report(report_path(tmp_path / "out" / "train.jsonl")) is None
    assert list((tmp_path / "out").iterdir()) == []


# -- contamination ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3])
def test_rows_with_items_of_an_eval_are_left_out_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    questions(tmp_path, "a.jsonl", 60)
    planted = [{"prompt": f"Please: {question(n)['prompt']}", "response": "It is so."} for n in (100, 101)]
    write_rows(
        tmp_path / "b.jsonl", *planted, {"prompt": "Where?", "response": question(102)["response"]}, question(200)
    )
    write_rows(tmp_path / "eval.jsonl", *({**question(n), "note": "x"} for n in range(100, 103)))
    divided(monkeypatch, processes)
    result = mixed(tmp_path, "a.jsonl", "b.jsonl", decontaminate={"files": ["eval.jsonl"]})
    assert result.report.dropped == {"CONTAMINATED": 3}
    listed = {(one.line, one.overlap.eval, one.overlap.item, one.overlap.side) for one in result.report.contaminated}
    assert listed == {(1, "eval.jsonl", 1, "prompt"), (2, "eval.jsonl", 2, "prompt"), (3, "eval.jsonl", 3, "reference")}
    assert all(one.left_out for one in result.report.contaminated)
    assert mixed(tmp_path, "a.jsonl", "b.jsonl", decontaminate={"files": ["eval.jsonl"]}).unchanged
    write_rows(tmp_path / "eval.jsonl", question(1))
    assert not mixed(tmp_path, "a.jsonl", "b.jsonl", decontaminate={"files": ["eval.jsonl"]}).unchanged


def test_another_eval_in_the_same_place_is_used_by_the_next_mix(tmp_path: Path) -> None:
    questions(tmp_path, "a.jsonl", 5)
    for number in (1, 3):
        write_rows(tmp_path / "eval.jsonl", question(number))
        mixed(tmp_path, "a.jsonl", decontaminate={"files": ["eval.jsonl"]})
        left_out = question(number)["prompt"]
        assert sorted(row["prompt"] for row in output(tmp_path)) == sorted(
            question(one)["prompt"] for one in range(5) if question(one)["prompt"] != left_out
        )


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("a.jsonl", "a.jsonl"), ("a.validation.jsonl", "a.jsonl"), ("a.jsonl", "link/a.jsonl"), (".", "train.jsonl"),
    ],
)  # fmt: skip
def test_mix_never_replaces_or_reads_its_own_files(tmp_path: Path, source: str, target: str) -> None:
    questions(tmp_path, "a.jsonl", 5)
    questions(tmp_path, "a.validation.jsonl", 5)
    (tmp_path / "link").symlink_to(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")}
    with pytest.raises(MensError) as failed:
        mixed(tmp_path, source, output=target)
    assert failed.value.code is Code.CORPUS_RECIPE_INVALID
    assert {path: path.read_bytes() for path in tmp_path.glob("*.jsonl")} == before


@pytest.mark.parametrize("holdout", [None, {"rows": 2, "by": "category"}])
def test_rows_that_are_not_compared_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holdout: dict[str, Any] | None
) -> None:
    rows = [question(number, category=str(number)) for number in range(6)]
    later = rows[5] | {"response": rows[5]["response"] + " Indeed."}
    write_rows(tmp_path / "rows.jsonl", *rows, later)
    keys: dict[str, Any] = {"dedup": {"near": 0.8}} | ({"holdout": holdout} if holdout else {})
    whole = mixed(tmp_path, "rows.jsonl", **keys).report
    assert (whole.notes, whole.dropped) == ([], {"DUPLICATE_NEAR": 1})
    monkeypatch.setattr("shared.datasets.duplicates.MAX_NEAR_ROWS", 4)
    (tmp_path / "out" / "train.mix_report.json").unlink()
    part = mixed(tmp_path, "rows.jsonl", **keys).report
    assert part.dropped == {}
    assert [note.split(";")[0] for note in part.notes] == [
        "Near duplicates: each of the 7 rows was compared only with the first 4 rows"
    ]
    assert ("both sides of the holdout" in part.notes[0]) == bool(holdout)


def test_without_near_duplicates_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.datasets.duplicates.MAX_NEAR_ROWS", 4)
    write_rows(tmp_path / "rows.jsonl", *map(question, range(6)))
    assert mixed(tmp_path, "rows.jsonl").report.notes == []


def test_two_outputs_in_one_folder_keep_their_files(tmp_path: Path) -> None:
    questions(tmp_path, "a", 3)
    mixed(tmp_path, "a", output="out/one.jsonl")
    before = content(tmp_path)
    mixed(tmp_path, "a", output="out/two.jsonl")
    assert before.items() <= content(tmp_path).items()
    assert len(content(tmp_path)) == 2 * len(before)
