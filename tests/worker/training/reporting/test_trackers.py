"""Real trackers: TensorBoard's files, MLflow's own store on this machine, W&B offline; and that a tracker's failure
does not affect a run.
"""

from __future__ import annotations

import math
import re
import struct
import sys
import threading
import time

import pytest

from shared.contract.plan import plan_finetune
from tests.support.training_runs import contract_for
from worker.settings import TrackerName, WorkerSettings, parse_trackers
from worker.training.reporting import trackers as module
from worker.training.reporting.tracker_clients import CLIENTS, Mlflow, Point, TrackedRun, TrackedStatus
from worker.training.reporting.trackers import Trackers, flatten, run_params, trackers_of, without_credentials

RUN_ID = "01K9ZZZZZZZZZZZZZZZZZZZZZZ"
LOSSES = {1: 3.5, 2: 2.5, 3: 1.25}


@pytest.fixture
def plan():
    """A plan that is never run."""
    from shared.base_models.catalog import BaseModelEntry, LocalSource
    from shared.contract.plan import DataFile

    entry = BaseModelEntry(name="base", source=LocalSource(path="base"), digests={"config.json": "0" * 64})
    return plan_finetune(
        contract_for("base"), entry, DataFile(file_id="file-1", sha256="1" * 64, bytes=9, rows=6), None, "tiny"
    )


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Tracker libraries take long to import on a loaded machine."""
    monkeypatch.setattr(module, "FINISH_SECONDS", 120.0)


def follow(names, plan, folder, losses=LOSSES, status=TrackedStatus.FINISHED):
    """Report a whole run as telemetry does; return the failures."""
    trackers = Trackers(names)
    trackers.start(plan, folder, RUN_ID)
    for step, loss in losses.items():
        trackers.log(step, {"train/loss": loss, "speed/tokens_per_sec": 10.0 * step})
    trackers.finish(status)
    return trackers.failures()


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """Records of a TFRecord file with both checksums verified, as TensorBoard does."""
    raw, at = path.read_bytes(), 0
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        assert struct.unpack_from("<I", raw, at + 8) == (masked(raw[at : at + 8]),)
        data = raw[at + 12 : at + 12 + size]
        assert struct.unpack_from("<I", raw, at + 12 + size) == (masked(data),)
        yield data
        at += 16 + size


def test_crc32c_of_the_standards_example():
    assert crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.torch  # tensorboardX loads it where it is installed
def test_tensorboard_files_hold_what_was_reported(plan, tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    assert follow([TrackerName.TENSORBOARD], plan, tmp_path) == []
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    events = [Event.FromString(record) for record in records(file)]
    assert events[0].file_version == "brain.Event:2"
    scalars = [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
    assert [(step, value) for step, tag, value in scalars if tag == "train/loss"] == list(LOSSES.items())
    assert {tag for _, tag, _ in scalars} == {"train/loss", "speed/tokens_per_sec"}
    assert all(abs(event.wall_time - time.time()) < 60 for event in events)
    assert plan.digest.encode() in file.read_bytes()


# -- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    """MLflow's real SQL store on this machine; its tables are made once, which takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def mlflow_home(mlflow_store, request, tmp_path, monkeypatch):
    """The store with an experiment of this test's own: (address, experiment)."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    monkeypatch.chdir(tmp_path)
    return mlflow_store, request.node.name


@pytest.mark.network
def test_mlflow_holds_what_was_reported_and_a_resume_continues_with_the_run(plan, tmp_path, mlflow_home):
    from mlflow import MlflowClient

    assert follow([TrackerName.MLFLOW], plan, tmp_path, status=TrackedStatus.STOPPED) == []
    uri, name = mlflow_home
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(name).experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("tiny", "KILLED")
    assert run.data.params["adapter.rank"] == "4"
    assert run.data.params["plan_digest"] == plan.digest
    assert run.data.tags["mens.run_id"] == RUN_ID

    assert follow([TrackerName.MLFLOW], plan, tmp_path, losses={4: 1.0}) == []
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {metric.step: metric.value for metric in history} == LOSSES | {4: 1.0}


@pytest.mark.network
def test_more_than_one_batch_arrives(plan, tmp_path, mlflow_home, monkeypatch):
    from mlflow import MlflowClient

    tracker = Mlflow()
    tracker.start(TrackedRun(RUN_ID, "tiny", tmp_path, {f"p{i}": i for i in range(130)}))
    tracker.write([Point(step, 1_700_000_000_000 + step, {"a": step, "b": -step}) for step in range(1, 121)])
    tracker.finish(TrackedStatus.FAILED)
    uri, name = mlflow_home
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    assert len(run.data.params) == 130
    assert len(client.get_metric_history(run.info.run_id, "b")) == 120
    assert run.info.status == "FAILED"


# -- W&B --------------------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_wandb_offline_keeps_the_run_in_the_run_folder(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert follow([TrackerName.WANDB], plan, tmp_path) == []
    (file,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{RUN_ID}.wandb")
    wanted = (b"train/loss", b"3.5", b"1.25", plan.digest.encode())
    deadline = time.monotonic() + 60  # its own process writes the file, and may do so after the client has finished
    while time.monotonic() < deadline and not all(told in file.read_bytes() for told in wanted):
        time.sleep(0.1)
    assert [told for told in wanted if told not in file.read_bytes()] == []


# -- no harm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [TrackerName.MLFLOW, TrackerName.WANDB])
def test_a_tracker_without_its_address_is_dropped(name, plan, tmp_path, monkeypatch):
    for variable in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    assert follow([name], plan, tmp_path) == [(name, "LookupError")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch  # as above
def test_a_tracker_that_is_not_installed_is_dropped_and_the_others_continue(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///nowhere.db")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert follow([TrackerName.MLFLOW, TrackerName.TENSORBOARD], plan, tmp_path) == [("mlflow", "ModuleNotFoundError")]
    assert list((tmp_path / "tensorboard").glob("events.*"))


class Slow:
    """A client whose server does not answer."""

    def __init__(self):
        self.open, self.written, self.asked = threading.Event(), [], 0

    def start(self, run):
        self.open.wait(30)

    def write(self, points):
        self.asked += 1
        self.written += points

    def finish(self, status):
        self.status = status


def test_a_slow_tracker_slows_no_step_and_loses_nothing(plan, tmp_path, monkeypatch):
    slow = Slow()
    monkeypatch.setitem(CLIENTS, TrackerName.MLFLOW, lambda: slow)
    trackers = Trackers([TrackerName.MLFLOW])
    began = time.monotonic()
    trackers.start(plan, tmp_path, RUN_ID)
    for step in range(1, 1001):
        trackers.log(step, {"train/loss": 1.0})
    assert time.monotonic() - began < 60
    slow.open.set()
    trackers.finish(TrackedStatus.STOPPED)
    assert [point.step for point in slow.written] == list(range(1, 1001))
    assert slow.asked < 1000
    assert slow.status is TrackedStatus.STOPPED
    assert trackers.failures() == []


def test_a_tracker_that_hangs_is_left_behind(plan, tmp_path, monkeypatch):
    slow = Slow()
    monkeypatch.setitem(CLIENTS, TrackerName.MLFLOW, lambda: slow)
    monkeypatch.setattr(module, "FINISH_SECONDS", 0.05)
    assert follow([TrackerName.MLFLOW], plan, tmp_path) == [("all", "TimeoutError")]
    slow.open.set()


class Failing(Slow):
    """A client that fails from its second write on, with a password in its message."""

    def start(self, run):
        self.folder = run.folder

    def write(self, points):
        self.asked += 1
        raise SystemExit("no route to https://user:secret@tracker.example/api")


def test_a_failing_tracker_is_dropped_once_and_its_password_not_shown(plan, tmp_path, monkeypatch, capsys):
    failing = Failing()
    monkeypatch.setitem(CLIENTS, TrackerName.WANDB, lambda: failing)
    trackers = Trackers([TrackerName.WANDB])
    trackers.start(plan, tmp_path, RUN_ID)
    for step in (1, 2, 3):
        trackers.log(step, {"train/loss": 1.0})
        time.sleep(0.05)
    trackers.finish(TrackedStatus.FINISHED)
    assert failing.asked == 1
    assert trackers.failures() == [("wandb", "SystemExit")]
    assert trackers.failures() == []
    told = capsys.readouterr().err
    assert "tracker.example" in told
    assert "secret" not in told


def test_without_trackers_nothing_is_started(plan, tmp_path):
    before = threading.active_count()
    assert follow([], plan, tmp_path) == []
    assert threading.active_count() == before


# -- names and parameters ---------------------------------------------------------------------------------------------


def test_names():
    assert parse_trackers(" TensorBoard, wandb,tensorboard ") == ["tensorboard", "wandb"]
    assert parse_trackers("none") == []
    with pytest.raises(ValueError, match="'comet'"):
        parse_trackers("mlflow,comet")


@pytest.mark.parametrize(
    ("environment", "names"),
    [({}, ["tensorboard"]), ({"MENS_TRACKERS": ""}, ["tensorboard"]), ({"MENS_TRACKERS": "none"}, [])],
)
def test_the_engine_and_the_workers_settings_agree(environment, names, monkeypatch):
    monkeypatch.delenv("MENS_TRACKERS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert list(trackers_of(environment)._live) == names
    assert WorkerSettings().trackers == names


def test_a_wrong_name_stops_the_worker_at_once(monkeypatch):
    monkeypatch.setenv("MENS_TRACKERS", "tensorbord")
    with pytest.raises(ValueError, match="tensorbord"):
        WorkerSettings()


def test_params_are_the_plans_values(plan):
    params = run_params(plan)
    assert params["exec.learning_rate"] == 0.01
    assert params["train_file_sha256"] == "1" * 64
    assert not [key for key, value in params.items() if value is None or not isinstance(value, str | int | float)]
    assert all(re.fullmatch(r"[\w.]+", key) for key in params)
    assert all(math.isfinite(value) for value in params.values() if isinstance(value, float))
    assert flatten({"a": {"b": [1, 2], "c": None}, "d": True}) == {"a.b": "1, 2", "d": True}


def test_credentials_are_cut_out_of_urls():
    assert without_credentials("GET http://me:pw@host/x and //k@h") == "GET http://…@host/x and //…@h"
