"""Variants run as `python -m` does, in new processes and in forks of a preloaded one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.harness.processes import VariantFailed, variant_processes

PYTHON = Path(sys.executable)


@pytest.fixture(params=[False, True], ids=["new processes", "forks"])
def processes(request):
    with variant_processes(smoke=request.param, python=PYTHON, preloaded=("json", "timeit")) as processes:
        yield processes


def test_output_and_arguments_are_those_of_the_module(processes, tmp_path):
    file = tmp_path / "one.json"
    file.write_text('{"a": 1}')
    assert processes.run(PYTHON, "json.tool", "--compact", str(file)) == '{"a":1}\n'


def test_environment_is_the_modules_own(processes):
    printed = "import os; print(os.environ['MENS_ONE'], os.environ['HF_HUB_OFFLINE'])"
    assert processes.run(PYTHON, "timeit", "-n1", "-r1", printed, MENS_ONE="here").startswith("here 1\n")
    with pytest.raises(VariantFailed, match="MENS_ONE"):
        processes.run(PYTHON, "timeit", "-n1", "-r1", printed)


def test_failed_module_is_reported_with_its_last_line(processes, tmp_path):
    with pytest.raises(VariantFailed) as failure:
        processes.run(PYTHON, "json.tool", str(tmp_path / "missing.json"))
    assert "No such file or directory" in failure.value.reason
    assert "json.tool failed" in str(failure.value)


def test_killed_module_is_a_failure(processes):
    with pytest.raises(VariantFailed):
        processes.run(PYTHON, "timeit", "-n1", "-r1", "import os; os.kill(os.getpid(), 9)")


def test_server_that_cannot_preload_is_a_failure():
    with (
        variant_processes(smoke=True, python=PYTHON, preloaded=("no_such_module",)) as processes,
        pytest.raises(VariantFailed),
    ):
        processes.run(PYTHON, "timeit", "-n1", "pass")
