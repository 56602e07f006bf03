"""Hostile adapters: each is refused with its code, whatever its fault, and no part of it reaches the folder that the
engine reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from serving.adapter_store import AdapterStore
from serving.private_cache import LOCK_NAME
from shared.artifacts.manifests import (
    CONFIG_NAME,
    MANIFEST_NAME,
    UNSERVABLE_FEATURES,
    WEIGHTS_NAME,
    AdapterManifest,
    verify_adapter,
)
from shared.artifacts.tensor_values import MAX_MAGNITUDE
from shared.base_models.weights import MAX_HEADER_BYTES, read_folder_tensors
from shared.errors import Code, MensError
from shared.hashing import canonical_json
from tests.support.serving_installation import ServingInstallation


@dataclass
class Made:
    """A valid adapter's folder, to be spoilt before it is published under digests that fit."""

    folder: Path
    manifest: AdapterManifest

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS_NAME

    def edit_tensors(self, change: Callable[[dict[str, np.ndarray]], object]) -> None:
        tensors = {name: value.copy() for name, value in load_file(self.weights).items()}
        change(tensors)
        save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, self.weights)

    def edit_header(self, change: Callable[[dict[str, Any]], object]) -> None:
        raw = self.weights.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:end])
        change(header)
        self.write_raw(json.dumps(header).encode(), raw[end:])

    def write_raw(self, header: bytes, data: bytes, length: int | None = None) -> None:
        size = len(header) if length is None else length
        self.weights.write_bytes(size.to_bytes(8, "little") + header + data)

    def edit_config(self, **changes: Any) -> None:
        path = self.folder / CONFIG_NAME
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


Spoil = Callable[[Made], object]


def tensors(change: Callable[[dict[str, np.ndarray]], object]) -> Spoil:
    return lambda made: made.edit_tensors(change)


def header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    return lambda made: made.edit_header(change)


def config(**changes: Any) -> Spoil:
    return lambda made: made.edit_config(**changes)


def first(names: Any) -> str:
    return min(name for name in names if "lora_A" in name)


def set_value(value: float) -> Spoil:
    return tensors(lambda held: held[first(held)].__setitem__((0, 0), value))


def cut(keep: int) -> Spoil:
    return lambda made: made.weights.write_bytes(made.weights.read_bytes()[:keep])


def raw(data: bytes) -> Spoil:
    return lambda made: made.weights.write_bytes(data)


def renamed_tensor(name: str) -> Spoil:
    return tensors(lambda held: held.__setitem__(name, held.pop(first(held))))


def resized(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    return tensors(lambda held: held.__setitem__(first(held), change(held[first(held)])))


def lying_shape(held: dict[str, Any]) -> None:
    held[first(held)]["shape"] = [1 << 40, 1 << 40]


def overlapping(held: dict[str, Any]) -> None:
    one, other = sorted(name for name in held if name != "__metadata__")[:2]
    held[one]["data_offsets"] = held[other]["data_offsets"]


def negative(held: dict[str, Any]) -> None:
    held[first(held)]["data_offsets"] = [-8, 0]


INVALID, SHAPE = Code.SAFETENSORS_INVALID, Code.ADAPTER_SHAPE_MISMATCH
VALUES, DTYPE, UNSERVABLE = Code.ADAPTER_VALUES_INVALID, Code.ADAPTER_DTYPE_UNSUPPORTED, Code.ADAPTER_NOT_SERVABLE
BROKEN = Code.ADAPTER_MANIFEST_INVALID

PUBLISHED: dict[str, tuple[Spoil, Code]] = {
    "header of 2⁶⁴ bytes": (raw(b"\xff" * 8 + b"{}"), INVALID),
    "header past the limit": (raw((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b" " * 64), INVALID),
    "header longer than the file": (lambda made: made.write_raw(b"{}", b"", length=3), INVALID),
    "header cut short": (lambda made: made.write_raw(b'{"a": {}}', b"", length=4), INVALID),
    "header of brackets": (lambda made: made.write_raw(b"[" * 100_000, b""), INVALID),
    "header that is a list": (lambda made: made.write_raw(b"[]", b""), INVALID),
    "header with one name twice": (
        lambda made: made.write_raw(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"\0" * 8,
        ),
        INVALID,
    ),
    "no file at all": (raw(b""), INVALID),
    "pickle": (raw(b"\x80\x04\x95" + b"\0" * 64), INVALID),
    "a shape that lies": (header(lying_shape), INVALID),
    "tensors on one another": (header(overlapping), INVALID),
    "offsets below zero": (header(negative), INVALID),
    "bytes behind the last tensor": (lambda made: made.weights.write_bytes(made.weights.read_bytes() + b"x"), INVALID),
    "truncated in its data": (lambda made: cut(made.weights.stat().st_size - 4)(made), INVALID),
    "truncated in its header": (cut(40), INVALID),
    "a name with a path": (renamed_tensor("../../../etc/passwd"), SHAPE),
    "a name with a null": (renamed_tensor("a\0b"), SHAPE),
    "a layer that the base does not have": (
        renamed_tensor("base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight"),
        SHAPE,
    ),
    "a layer more": (
        tensors(lambda held: held.__setitem__("extra.lora_A.weight", np.ones((8, 64), np.float32))),
        SHAPE,
    ),
    "a tensor of DoRA": (
        tensors(lambda held: held.__setitem__("x.lora_magnitude_vector", np.ones(64, np.float32))),
        SHAPE,
    ),
    "a bias": (tensors(lambda held: held.__setitem__("base_model.model.lm_head.bias", np.ones(64, np.float32))), SHAPE),
    "a whole module": (
        tensors(
            lambda held: held.__setitem__("base_model.model.model.embed_tokens.weight", np.ones((9, 64), np.float32))
        ),
        SHAPE,
    ),
    "a tensor less": (tensors(lambda held: held.pop(first(held))), SHAPE),
    "another rank": (resized(lambda a: np.concatenate([a, a])), SHAPE),
    "another width": (resized(lambda a: a[:, :-1]), SHAPE),
    "transposed": (resized(lambda a: a.T), SHAPE),
    "three dimensions": (resized(lambda a: a[None]), SHAPE),
    "no rows": (resized(lambda a: a[:0]), SHAPE),
    "NaN": (set_value(float("nan")), VALUES),
    "infinity": (set_value(float("-inf")), VALUES),
    "a number that overflows": (set_value(1e30), VALUES),
    "double precision": (resized(lambda a: a.astype(np.float64)), DTYPE),
    "integers": (resized(lambda a: a.astype(np.int8)), DTYPE),
    "bias of the config": (config(bias="all"), UNSERVABLE),
    "another method": (config(peft_type="IA3"), UNSERVABLE),
    "another scaling": (config(lora_alpha=999), UNSERVABLE),
    "a base that was changed at the start": (config(init_lora_weights="pissa"), UNSERVABLE),
    **{f"feature {name}": (config(**{name: {"a": 1}}), UNSERVABLE) for name in UNSERVABLE_FEATURES},
    "a config of brackets": (lambda made: (made.folder / CONFIG_NAME).write_bytes(b"[" * 100_000), BROKEN),
    "an endless config": (lambda made: (made.folder / CONFIG_NAME).write_bytes(b'{"a": "' + b"x" * (2 << 20)), BROKEN),
}
"""How an adapter is spoilt before it is published, its digests and all, and what it is refused with."""


def symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


CHANGED, MISSING = {Code.ADAPTER_DIGEST_MISMATCH}, {Code.STORAGE_OBJECT_MISSING, Code.ADAPTER_DIGEST_MISMATCH}
AFTERWARDS: dict[str, tuple[str, Callable[[Path], object], set[Code]]] = {
    "weights changed": (WEIGHTS_NAME, flip_bit, CHANGED),
    "config changed": (CONFIG_NAME, flip_bit, CHANGED),
    "manifest changed": (MANIFEST_NAME, flip_bit, CHANGED),
    "weights truncated": (WEIGHTS_NAME, lambda path: os.truncate(path, 100), CHANGED),
    "weights gone": (WEIGHTS_NAME, Path.unlink, MISSING),
    "a link for the weights": (WEIGHTS_NAME, symlink, {*MISSING, BROKEN}),
    "a link for the config": (CONFIG_NAME, symlink, {*MISSING, BROKEN}),
    "a pipe for the weights": (WEIGHTS_NAME, pipe, {*MISSING, BROKEN}),
    "a folder for the weights": (WEIGHTS_NAME, folder_in_place, {*MISSING, BROKEN}),
}
"""Damage to an adapter after it was certified: file, damage, codes."""

MANIFESTS: dict[str, dict[str, Any]] = {
    "a file outside": {"files": {"../../x.safetensors": "0" * 64, CONFIG_NAME: "0" * 64}},
    "a file more": {"files": {WEIGHTS_NAME: "0" * 64, CONFIG_NAME: "0" * 64, "tokenizer.json": "0" * 64}},
    "no weights": {"files": {CONFIG_NAME: "0" * 64}},
    "a layer without a place": {"layer_order": ["nothing"]},
    "another version": {"version": 4},
    "a field that nobody reads": {"run": "me"},
    "a name with a path": {"name": "../up"},
    "a rank of zero": {"rank": 0},
    "an alpha that overflows": {"alpha": 10**30},
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(serving_installation: ServingInstallation, cache: Path) -> Iterator[AdapterStore]:
    store = serving_installation.store(cache)
    yield store
    store.close()


@pytest.fixture
def made(serving_installation: ServingInstallation, tmp_path: Path) -> Made:
    valid = serving_installation.publish("hostile", seed=51)
    return Made(Path(shutil.copytree(serving_installation.folder(valid), tmp_path / "made")), valid)


def refusal(store: AdapterStore, cache: Path, adapter_id: str) -> Code:
    """Return the code that an adapter is refused with; the engine's cache must not contain any of its files."""
    with pytest.raises(MensError) as refused:
        store.fetch(adapter_id)
    assert refused.value.remedy
    assert [path.name for path in cache.glob("*/*") if path.name != LOCK_NAME] == []
    return refused.value.code


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_published_spoilt_is_refused(
    serving_installation: ServingInstallation, store: AdapterStore, cache: Path, made: Made, name: str
) -> None:
    spoil, code = PUBLISHED[name]
    spoil(made)
    files = {file: hashlib.sha256((made.folder / file).read_bytes()).hexdigest() for file in made.manifest.files}
    stored = serving_installation.store_adapter(made.folder, made.manifest.model_copy(update={"files": files}))
    assert refusal(store, cache, stored.adapter_id) == code


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_changes_after_it_was_certified_is_refused(
    serving_installation: ServingInstallation, store: AdapterStore, cache: Path, made: Made, name: str
) -> None:
    file, damage, codes = AFTERWARDS[name]
    label = f"hostile-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    stored = serving_installation.store_adapter(made.folder, made.manifest.model_copy(update={"name": label}))
    damage(serving_installation.folder(stored) / file)
    assert refusal(store, cache, stored.adapter_id) in codes


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_hostile_manifest_is_refused_before_a_file_is_opened(
    serving_installation: ServingInstallation, store: AdapterStore, cache: Path, made: Made, name: str
) -> None:
    content = canonical_json(made.manifest.model_dump(mode="json", exclude_none=True) | MANIFESTS[name])
    digest = hashlib.sha256(content).hexdigest()
    folder = serving_installation.storage.folder("adapters", digest)
    folder.mkdir(parents=True)
    (folder / MANIFEST_NAME).write_bytes(content)
    assert refusal(store, cache, f"hostile@{digest}") == BROKEN


def test_another_base_of_equal_shapes_is_refused(
    serving_installation: ServingInstallation, store: AdapterStore, cache: Path, made: Made
) -> None:
    digests = serving_installation.entry.digests | {"model.safetensors": "f" * 64}
    manifest = made.manifest.model_copy(update={"base_digests": digests})
    stored = serving_installation.store_adapter(made.folder, manifest)
    assert refusal(store, cache, stored.adapter_id) == Code.ADAPTER_BASE_MISMATCH


@pytest.fixture(scope="module")
def valid(
    serving_installation: ServingInstallation, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, AdapterManifest, Path]:
    manifest = serving_installation.publish("hostile", seed=51)
    folder = Path(shutil.copytree(serving_installation.folder(manifest), tmp_path_factory.mktemp("fuzz") / "made"))
    return (folder / WEIGHTS_NAME).read_bytes(), manifest, folder


@settings(max_examples=80)
@given(st.data())
def test_no_damage_of_the_weights_passes_with_other_tensors(
    serving_installation: ServingInstallation, valid: tuple[bytes, AdapterManifest, Path], data: st.DataObject
) -> None:
    """Random bytes anywhere, most of them in the header: refused with a code, or still these tensors with sound numbers."""
    content, manifest, folder = bytearray(valid[0]), valid[1], valid[2]
    header_end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 6))):
        end = data.draw(st.sampled_from([8, header_end, len(content)]))
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    kept = bytes(content[: data.draw(st.sampled_from([len(content), header_end, header_end + 1]))])
    (folder / WEIGHTS_NAME).write_bytes(kept)
    files = manifest.files | {WEIGHTS_NAME: hashlib.sha256(kept).hexdigest()}
    base = read_folder_tensors(serving_installation.base)
    try:
        verify_adapter(folder, manifest.model_copy(update={"files": files}), base)
    except MensError as error:
        assert error.code in {INVALID, SHAPE, VALUES, DTYPE}
        return
    found = load_file(folder / WEIGHTS_NAME)
    assert len(found) == 2 * len(manifest.base_key_map)
    assert all((np.abs(tensor) <= MAX_MAGNITUDE).all() for tensor in found.values())
