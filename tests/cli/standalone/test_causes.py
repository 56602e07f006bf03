"""The cause of a failed start, extracted from logs that vLLM 0.32 really wrote (`tests/cli/standalone/logs`), and from
ours.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.standalone.causes import MOST_CHARACTERS, find_cause

LOGS = Path(__file__).with_name("logs")
RECORDED = {
    "architecture": (
        "ValueError: Model architectures ['Qwen3_5ForCausalLM'] failed to be inspected.",
        "locked environment",
    ),
    "context": ("User-specified max_model_len (100000) is greater", "Lower MENS_SERVING_MAX_MODEL_LEN to what"),
    "kv-cache": (
        "ValueError: To serve at least one request with the model's max seq len (8192)",
        "MENS_SERVING_KV_CACHE",
    ),
    "memory": ("ValueError: Available memory on node 0", "MENS_SERVING_DTYPE=bfloat16"),
    "port": ("OSError: [Errno 98] Address already in use", "start again"),
    "weights": ("SafetensorError: Error while deserializing header: ", "download them again"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_cause_of_a_recorded_start(name: str) -> None:
    line, remedy = RECORDED[name]
    cause = find_cause((LOGS / f"{name}.log").read_text())
    assert cause is not None
    assert cause.line.startswith(line)
    assert remedy in cause.remedy
    assert not cause.coded


def test_every_recorded_log_is_expected() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == RECORDED.keys()


def test_error_of_ours_has_its_code_and_its_remedy() -> None:
    log = "BASE_DOES_NOT_FIT: x needs 3 GiB. Serve fewer bases.\nValueError: later\n"
    cause = find_cause(log)
    assert cause is not None
    assert (cause.line, cause.remedy, cause.coded) == ("BASE_DOES_NOT_FIT: x needs 3 GiB. Serve fewer bases.", "", True)
    assert find_cause("NOTE: nothing\nHTTP: 200\n") is None


def test_last_start_counts() -> None:
    cause = find_cause("OSError: [Errno 98] Address already in use\nstarting again\nOSError: No space left on device\n")
    assert cause is not None
    assert cause.line.endswith("No space left on device")


@given(log=st.text())
def test_any_text_is_read(log: str) -> None:
    cause = find_cause(log)
    assert cause is None or ("\n" not in cause.line and 0 < len(cause.line) <= MOST_CHARACTERS)


NOISE = st.lists(st.sampled_from([
    "(APIServer pid=7) INFO 11-25 23:24:11 [parallel_state.py:2350] rank 0 in world size 1",
    '(EngineCore pid=9) ERROR 11-25 23:45:10 [core.py:1301]   File "/x/core.py", line 9, in f',
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "", "During handling of the above exception, another exception occurred:", "    raise RuntimeError(",
]))  # fmt: skip


@given(before=NOISE, after=NOISE, engine=st.booleans())
def test_cause_is_found_among_other_lines(before: list[str], after: list[str], engine: bool) -> None:
    line = "ValueError: No available memory for the cache blocks."
    prefix = "(EngineCore pid=9) ERROR 11-25 23:45:10 [core.py:1301] " if engine else ""
    cause = find_cause("\n".join([*before, prefix + line, *after]))
    assert cause is not None
    assert cause.line == line
