"""``exec.seq_len`` if it is not set: the data decides, within base and memory, and truncated rows are reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shared.base_models.catalog import BaseModelEntry, LocalSource, digest_model_folder
from shared.base_models.config import ModelConfig, parse_model_config
from shared.contract.contracts import FineTuneContract
from shared.contract.flat_keys import parse_contract
from shared.contract.presets import resolve_contract
from shared.hashing import digest_file
from shared.preflight import data_files
from shared.preflight.activations import Recompute
from shared.preflight.estimate import VRAM_FRACTION, estimate
from shared.preflight.pipeline import preflight
from shared.preflight.sequence_length import STEP, UNKNOWN_MEMORY_TOKENS, OpenLength, open_length
from shared.preflight.types import InputFile, JobRequest, Machine, Preflight
from tests.support.tiny_base import CONFIG, write_base

GIB = 1 << 30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of one token a character, with room for 2,000 of them."""
    folder = write_base(tmp_path_factory.mktemp("bases") / "tiny")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 2_000}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def check(base: Path, folder: Path, lengths: list[int], machine: Machine | None = None, **request: Any) -> Preflight:
    path = folder / "rows.jsonl"
    rows = [{"prompt": f"{number:q>{length}}", "response": "yes"} for number, length in enumerate(lengths)]
    path.write_text("\n".join(map(json.dumps, rows)))
    sections = {"model": {"name": "tiny"}, "data": {"train_file": "f"}} | request.pop("sections", {})
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    file = InputFile("f", digest_file(path), path)
    return preflight(JobRequest(parse_contract(sections), **request), entry, base, file, None, machine or Machine())


def test_longest_row_decides(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, [10] * 30 + [700])
    assert (found.plan.contract.exec.seq_len, found.sources["exec.seq_len"]) == (768, "data")
    assert (found.supervision.truncated_rows, found.warnings) == (0, [])
    assert 700 < found.supervision.longest_row < 768
    assert found.estimate.max_tokens % 768 == 0


def test_short_rows_keep_the_default(base: Path, tmp_path: Path) -> None:
    assert check(base, tmp_path, [10] * 30).plan.contract.exec.seq_len == STEP


def test_base_bounds_the_length_and_cut_rows_are_warned_of(base: Path, tmp_path: Path) -> None:
    found = check(base, tmp_path, [10, 2_500, 10, 3_000])
    assert found.plan.contract.exec.seq_len == 2_000
    [warning] = found.warnings
    assert warning.startswith("2 of 4 rows are longer than exec.seq_len (2000 tokens)")
    assert "in lines 2, 4" in warning
    assert warning in found.notes
    assert found.record()["warnings"] == [warning]


@pytest.mark.parametrize("request_", [{"sections": {"exec": {"seq_len": 300}}}, {"preset": "tiny"}])
def test_what_somebody_wrote_stays(base: Path, tmp_path: Path, request_: dict[str, Any]) -> None:
    expected = resolve_contract(
        parse_contract({"data": {"train_file": "f"}} | request_.get("sections", {})),
        **{key: value for key, value in request_.items() if key != "sections"},
    ).contract.exec.seq_len
    found = check(base, tmp_path, [10] * 40 + [700], **request_)
    assert found.plan.contract.exec.seq_len == expected < 700
    assert found.sources["exec.seq_len"] != "data"
    assert "1 of 41 rows are longer than exec.seq_len" in found.warnings[-1]


def test_row_outside_the_sample_decides_too(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "SAMPLED_ROWS", 5)
    for place in (0, 17, 39):
        found = check(base, tmp_path, [10] * place + [700] + [10] * (39 - place), Machine(thorough=False))
        assert (found.supervision.sampled, found.plan.contract.exec.seq_len) == (True, 768)


def test_plan_of_a_data_length_is_a_fixed_point(base: Path, tmp_path: Path) -> None:
    """The worker checks the plan again as it was submitted."""
    first = check(base, tmp_path, [10] * 30 + [700])
    again = check(base, tmp_path, [10] * 30 + [700], sections=first.plan.contract.model_dump(mode="json"))
    assert again.plan.contract == first.plan.contract


def test_a_rules_batch_that_memory_has_cut_is_called_the_datas(base: Path, tmp_path: Path) -> None:
    """Fails while every field of an auto rule is called auto, though its value is another one."""
    asked = {"sections": {"quant": {"base": "nf4"}, "exec": {"batch_size": 8, "grad_accum": 1, "epochs": 2}}}
    auto = frozenset({"exec.batch_size", "exec.grad_accum", "exec.epochs"})
    lengths = [10] * 40 + [700]
    names = ("exec.batch_size", "exec.grad_accum", "exec.epochs")

    def planned(memory: int) -> tuple[list[int], list[str]]:
        found = check(base, tmp_path, lengths, Machine(device="cuda", vram_bytes=memory), auto=auto, **asked)
        exec_ = found.plan.contract.exec
        return [exec_.batch_size, exec_.grad_accum, exec_.epochs], [found.sources[name] for name in names]

    assert planned(80 * GIB) == ([8, 1, 2], ["auto", "auto", "auto"])
    whole = check(base, tmp_path, lengths, Machine(device="cuda", vram_bytes=80 * GIB), auto=auto, **asked).estimate
    assert planned(math.ceil(whole.vram_bytes / VRAM_FRACTION) - 1) == ([4, 2, 2], ["data", "data", "auto"])


# -- memory


def a_base(vocab: int = 1_000) -> ModelConfig:
    return parse_model_config(
        CONFIG | {"vocab_size": vocab, "max_position_embeddings": 100_000, "num_hidden_layers": 8}
    )


def length_of(memory: int | None, request: JobRequest, *, on_gpu: bool = True, vocab: int = 1_000) -> OpenLength:
    resolution = resolve_contract(request.contract)
    machine = Machine(vram_bytes=memory) if on_gpu else Machine(host_bytes=memory)
    found = open_length(request, resolution, a_base(vocab), machine, on_gpu=on_gpu)
    assert found
    return found


def request(**exec_: int) -> JobRequest:
    return JobRequest(contract(**exec_))


def contract(**exec_: int) -> FineTuneContract:
    return parse_contract({"model": {"name": "x"}, "data": {"train_file": "f"}, "exec": exec_})


def fits(
    config: ModelConfig, memory: int, seq_len: int, batch: int, accumulated: int, *, on_gpu: bool = True
) -> bool | None:
    asked = contract(seq_len=seq_len, batch_size=batch, grad_accum=accumulated)
    return estimate(asked, config, rows=100, vram_bytes=memory, recompute=Recompute.BLOCKS, on_gpu=on_gpu).fits


@pytest.mark.parametrize("vocab", [1_000, 200_000])
@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("memory", [2 * GIB, 3 * GIB, 8 * GIB])
def test_the_longest_that_memory_allows_fits_and_a_longer_one_does_not(memory: int, on_gpu: bool, vocab: int) -> None:
    """Fails where a row's logits are counted at once, or a CPU's memory is not."""
    length, config = length_of(memory, request(), on_gpu=on_gpu, vocab=vocab), a_base(vocab)
    values = length.decide(contract(), 10**6)
    batch, accumulated = values.get("exec.batch_size", 4), values.get("exec.grad_accum", 4)
    assert values["exec.seq_len"] == length.limit
    assert batch * accumulated == 16
    assert fits(config, memory, length.limit, batch, accumulated, on_gpu=on_gpu)
    assert length.limit > 99_000 or not fits(config, memory, length.limit + STEP, 1, 16, on_gpu=on_gpu)


def test_explicit_batch_is_not_split_and_bounds_the_length() -> None:
    whole, split = length_of(2 * GIB, request(batch_size=8, grad_accum=1)), length_of(2 * GIB, request())
    assert not whole.may_split
    assert whole.limit < split.limit
    assert whole.decide(contract(batch_size=8, grad_accum=1), 10**6) == {"exec.seq_len": whole.limit}
    assert fits(a_base(), 2 * GIB, whole.limit, 8, 1)


def test_batch_that_counts_a_steps_rows_is_split() -> None:
    asked = JobRequest(contract(batch_size=8, grad_accum=1), batch_is_step=True)
    values = length_of(2 * GIB, asked).decide(asked.contract, 10**6)
    assert values["exec.batch_size"] * values["exec.grad_accum"] == 8
    assert values["exec.batch_size"] < 8


def test_unknown_memory_has_a_bound_of_its_own() -> None:
    assert length_of(None, request()).limit == UNKNOWN_MEMORY_TOKENS
    assert length_of(None, request()).decide(contract(), 10**6) == {"exec.seq_len": UNKNOWN_MEMORY_TOKENS}


def test_memory_that_is_too_small_is_left_to_the_estimate() -> None:
    assert length_of(1, request()).limit == STEP
    assert VRAM_FRACTION < 1


def test_mobile_limit_holds() -> None:
    asked = parse_contract(
        {"model": {"name": "x"}, "data": {"train_file": "f"}, "artifact": {"deployment_target": "mobile_edge"}}
    )
    assert length_of(None, JobRequest(asked)).limit == 512
