"""The adapters of a run: its checkpoints and, last, the result, without those that were deleted meanwhile."""

from __future__ import annotations

from pathlib import Path

from shared.hashing import digest_file
from worker.checkpoints.adapters import adapter_folders


def test_a_checkpoint_that_was_deleted_meanwhile_is_left_out(tmp_path: Path) -> None:
    folders = [tmp_path / "checkpoints" / f"step-{step:08d}" for step in (2, 4)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "adapter_manifest.json").write_text(folder.name)
    assert adapter_folders(tmp_path) == [*folders, tmp_path / "adapter"]
    gone = digest_file(folders[0] / "adapter_manifest.json")
    assert adapter_folders(tmp_path, {gone}) == [folders[1], tmp_path / "adapter"]
