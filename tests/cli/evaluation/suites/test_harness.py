"""The harness's command line, environment and exit; here with a small substitute program, in `tests/system` with the
real harness.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli.evaluation.suites.harness import LOG_NAME, SuiteRun, command, environment, run_suite
from shared.errors import Code, JobFailed

OURS = {"PATH": "/bin", "HOME": "/home/a", "MENS_API_KEY": "k", "HF_TOKEN": "t", "HTTPS_PROXY": "p", "PYTHONPATH": "x"}


def test_key_is_in_the_environment_and_nowhere_else(tmp_path: Path) -> None:
    run = SuiteRun(["a", "b"], tmp_path, tmp_path, 512, chat=True, shots=2, limit=3)
    line = command(Path("python"), run, "support@1", "http://host", tmp_path)
    assert "secret" not in " ".join(line)
    assert environment("secret", tmp_path, online=False, ours=OURS)["OPENAI_API_KEY"] == "secret"
    arguments = dict(pair.split("=", 1) for pair in line[line.index("--model_args") + 1].split(","))
    assert arguments["model"] == "support@1"
    assert arguments["base_url"] == "http://host/v1/completions"
    assert (arguments["tokenizer"], arguments["max_length"]) == (str(tmp_path), "512")
    assert line[line.index("--tasks") + 1 : line.index("--log_samples")] == ["a", "b"]
    assert "-I" in line
    assert {"--apply_chat_template", "--num_fewshot", "--limit", "--include_path"} <= set(line)


def test_offline_child_has_no_secret_and_no_way_out(tmp_path: Path) -> None:
    offline = environment("secret", tmp_path, online=False, ours=OURS)
    assert offline.keys().isdisjoint({"MENS_API_KEY", "HF_TOKEN", "HTTPS_PROXY", "PYTHONPATH"})
    assert offline["HF_HUB_OFFLINE"] == offline["HF_DATASETS_OFFLINE"] == "1"
    online = environment("secret", tmp_path, online=True, ours=OURS)
    assert (online["HF_TOKEN"], online["HTTPS_PROXY"]) == ("t", "p")
    assert online.keys().isdisjoint({"MENS_API_KEY", "HF_HUB_OFFLINE", "PYTHONPATH"})


def program(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_progress_is_read_from_the_bar(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    bar = "Requesting API:  33%|###   | 1/3 [00:01<00:02]\\rRequesting API: 100%|######| 3/3 [00:03<00:00]\\n"
    run_suite(program(f"print('{bar}')"), {}, tmp_path / "out", None, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (3, 3)]
    assert "Requesting API" in (tmp_path / "out" / LOG_NAME).read_text()


def test_failure_has_the_last_lines_and_the_log_all(tmp_path: Path) -> None:
    text = "import sys; print('first'); [print(n) for n in range(50)]; sys.stdout.flush(); sys.exit('no task: summing')"
    with pytest.raises(JobFailed) as failed:
        run_suite(program(text), {}, tmp_path, None, lambda *_: None)
    assert failed.value.code == Code.SUITE_FAILED
    assert "no task: summing" in failed.value.message
    assert "first" not in failed.value.message
    assert "first" in (tmp_path / LOG_NAME).read_text()


def test_child_ends_with_its_caller(tmp_path: Path) -> None:
    """As at Ctrl-C: what interrupts the reading ends the child too."""
    text = "import os, time; print(os.getpid(), flush=True); print('Requesting API: 0%| 0/9 [', flush=True); time.sleep(60)"

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_suite(program(text), {}, tmp_path, None, interrupt)
    pid = int((tmp_path / LOG_NAME).read_text().split()[0])
    assert not Path(f"/proc/{pid}").exists()
