"""An adapter through a real registry: ORAS' client pushes the exported layout, and the pulled files are the adapter,
including its signature.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.export.download import README_NAME, Downloaded
from cli.export.formats import Format, write
from cli.main import app
from cli.standalone.ports import free_port
from shared.artifacts.signatures import make_key, sign_folder
from tests.support.exported_adapter import store_small_adapter
from tests.support.processes import stop_at_exit
from tests.support.waiting import eventually
from tests.system.fetched import oras_client, registry_server

pytestmark = pytest.mark.network
COPY = """
import sys
from oras.client import OrasClient
from oras.layout import NewLayout, NewLayoutFromRegistry
layout, pulled, files, target, tag = sys.argv[1:]
client = OrasClient(insecure=True)
NewLayout(layout).push_to_registry(client, target, tag)
NewLayoutFromRegistry(pulled, client, target, tag)
client.pull(target=target, outdir=files)
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry without accounts on a loopback port."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [registry_server(), "serve", config], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    stop = stop_at_exit(process)
    try:
        eventually(lambda: b"listening on" in (folder / "log").read_bytes(), what="the registry listens")
        yield f"127.0.0.1:{port}"
    finally:
        stop()


def test_pulled_is_what_was_pushed_and_verifies(registry: str, tmp_path: Path) -> None:
    folder, manifest = store_small_adapter(tmp_path / "made")
    (folder / README_NAME).write_text("# helper\n")
    trusted = tmp_path / "trusted"
    trusted.write_text(make_key(tmp_path / "key.pem"))
    sign_folder(folder, tmp_path / "key.pem")
    layout = tmp_path / "layout"
    layout.mkdir()
    advice = write(Downloaded(folder, manifest, ""), layout, Format.OCI, None)
    tag = f"helper-{manifest.digest[:12]}"
    assert f"--from-oci-layout {layout}:{tag} " in advice
    pulled, files = tmp_path / "pulled", tmp_path / "files"
    done = subprocess.run(
        [sys.executable, "-c", COPY, layout, pulled, files, f"{registry}/team/helper:{tag}", tag],
        env=os.environ | {"PYTHONPATH": str(oras_client()), "NO_PROXY": "127.0.0.1"},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in files.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    for copy in (pulled, files):
        result = CliRunner().invoke(app, ["adapter", "verify", str(copy), "--trusted", str(trusted)])
        assert result.exit_code == 0, result.output
        assert manifest.adapter_id in result.output
