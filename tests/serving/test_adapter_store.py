"""AdapterStore returns only verified adapters."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from serving.private_cache import LOCK_NAME
from serving.process import open_store
from shared.artifacts.manifests import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME
from shared.base_models.catalog import TwinOf
from shared.base_models.weights import read_tensors
from shared.errors import ArtifactInvalid, Code, InvalidRequest, MensError, NotFound
from tests.support.serving_installation import build_base, save_adapter
from tests.support.tiny_base import write_adapter

ZEROS = "0" * 64


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(serving_installation, cache):
    store = serving_installation.store(cache)
    yield store
    store.close()


@pytest.fixture(scope="session")
def valid(serving_installation):
    return serving_installation.publish("valid", seed=21)


@pytest.fixture
def victim(serving_installation, request, tmp_path):
    """An adapter of this test alone, which it may damage."""
    labels = (f"victim-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}-{number}" for number in count())
    return serving_installation.publish(next(labels), seed=22)


@pytest.mark.torch
def test_adapters_of_these_tests_are_what_peft_saves(tmp_path):
    base = tmp_path / "base"
    build_base(base)
    save_adapter(base, tmp_path / "saved", seed=1, rank=4)
    write_adapter(base, tmp_path / "written", seed=1, rank=4)
    saved, written = (json.loads((tmp_path / name / CONFIG_NAME).read_text()) for name in ("saved", "written"))
    assert saved | {"target_modules": sorted(saved["target_modules"])} == written
    assert read_tensors(tmp_path / "saved" / WEIGHTS_NAME) == read_tensors(tmp_path / "written" / WEIGHTS_NAME)


def refused(store, adapter_id):
    with pytest.raises(MensError) as caught:
        store.fetch(adapter_id)
    return caught.value.code


def entries(folder):
    return sorted(path.name for path in folder.iterdir())


def cached(cache):
    """Names in the cache folders of all processes."""
    return sorted(path.name for path in cache.glob("*/*") if path.name != LOCK_NAME)


def test_valid_adapter_is_copied_and_verified(serving_installation, store, cache, valid):
    adapter = store.fetch(valid.adapter_id)
    assert adapter.folder == next(cache.iterdir()) / valid.digest
    assert entries(adapter.folder) == [CONFIG_NAME, WEIGHTS_NAME]
    assert (adapter.folder / WEIGHTS_NAME).read_bytes() == (
        serving_installation.folder(valid) / WEIGHTS_NAME
    ).read_bytes()
    assert adapter.manifest == valid
    assert cached(cache) == [valid.digest]


INVALID_IDS = [
    "",
    "valid",
    "@" + ZEROS,
    "valid@",
    "valid@" + "0" * 63,
    "valid@" + "0" * 65,
    "valid@" + "A" * 64,
    "valid@" + ZEROS + "\n",
    "Valid@" + ZEROS,
    ".hidden@" + ZEROS,
    "../x@" + ZEROS,
    "a/b@" + ZEROS,
    "/etc/passwd",
    "../" + ZEROS,
    "a@../../" + "0" * 58,
    "a@" + "\u0660" * 64,
    "a\0@" + ZEROS,
    "x" * 65 + "@" + ZEROS,
    "x" * 100_000,
]


@pytest.mark.parametrize("adapter_id", INVALID_IDS, ids=range(len(INVALID_IDS)))
def test_invalid_id_never_reaches_the_storage(store, cache, adapter_id):
    with pytest.raises(InvalidRequest) as caught:
        store.fetch(adapter_id)
    assert caught.value.code == Code.NAME_INVALID
    assert len(str(caught.value)) < 500
    assert cached(cache) == []


def test_missing_manifest_is_not_found(serving_installation, store, victim):
    assert refused(store, f"gone@{ZEROS}") == Code.ADAPTER_NOT_FOUND
    (serving_installation.folder(victim) / MANIFEST_NAME).unlink()
    with pytest.raises(NotFound):
        store.fetch(victim.adapter_id)


def test_other_name_with_same_digest_is_not_found(store, valid):
    assert refused(store, f"other@{valid.digest}") == Code.ADAPTER_NOT_FOUND
    store.fetch(valid.adapter_id)
    assert refused(store, f"other@{valid.digest}") == Code.ADAPTER_NOT_FOUND


@pytest.mark.parametrize("name", [WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME])
def test_flipped_bit_is_refused(serving_installation, store, cache, victim, name):
    path = serving_installation.folder(victim) / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert refused(store, victim.adapter_id) == Code.ADAPTER_DIGEST_MISMATCH
    assert cached(cache) == []


def test_missing_file_is_refused(serving_installation, store, cache, victim):
    (serving_installation.folder(victim) / WEIGHTS_NAME).unlink()
    assert refused(store, victim.adapter_id) == Code.STORAGE_OBJECT_MISSING
    assert cached(cache) == []


def test_symlink_in_the_storage_is_refused(serving_installation, store, victim, tmp_path):
    path = serving_installation.folder(victim) / WEIGHTS_NAME
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refused(store, victim.adapter_id) == Code.ADAPTER_MANIFEST_INVALID


def test_adapter_of_other_base_is_refused(serving_installation, store):
    digests = serving_installation.entry.digests | {"model.safetensors": ZEROS}
    manifest = serving_installation.publish("stranger", seed=23, base_digests=digests)
    assert refused(store, manifest.adapter_id) == Code.ADAPTER_BASE_MISMATCH


def test_twin_takes_adapters_of_itself_and_its_original_only(serving_installation, cache):
    original = TwinOf(
        name="original", digests=serving_installation.entry.digests | {"model.safetensors": "1" * 64}, double_quant=True
    )
    store = serving_installation.store(cache)
    store.base = serving_installation.entry.model_copy(update={"twin_of": original})
    for name, digests in (("of-original", original.digests), ("of-twin", serving_installation.entry.digests)):
        adapter_id = serving_installation.publish(name, seed=24, base_digests=digests).adapter_id
        assert store.fetch(adapter_id).adapter_id == adapter_id
    digests = serving_installation.entry.digests | {"model.safetensors": ZEROS}
    assert (
        refused(store, serving_installation.publish("stranger", seed=23, base_digests=digests).adapter_id)
        == Code.ADAPTER_BASE_MISMATCH
    )


def test_rank_over_the_limit_is_refused(serving_installation, store, cache):
    manifest = serving_installation.publish("wide", rank=17)
    with pytest.raises(ArtifactInvalid) as error:
        store.fetch(manifest.adapter_id)
    assert error.value.code == Code.ADAPTER_RANK_TOO_LARGE
    assert "`MENS_SERVING_MAX_LORA_RANK=17 mens up`" in error.value.remedy
    assert serving_installation.store(cache, max_rank=32).fetch(manifest.adapter_id).manifest.rank == 17


def test_head_is_refused_where_the_engine_does_not_take_it(serving_installation, cache):
    head = {"base_key_map": {"l.lm_head": "lm_head.weight"}, "layer_order": ["l.lm_head"]}
    manifest = serving_installation.publish("head", **head)
    ours = {"serving_max_lora_rank": 16, "serving_cache_dir": cache}
    on_gpu = open_store(serving_installation.settings(serving_device="cuda", **ours))
    assert refused(on_gpu, manifest.adapter_id) == Code.NOT_SERVABLE_HEAD
    on_cpu = open_store(serving_installation.settings(**ours))
    assert refused(on_cpu, manifest.adapter_id) != Code.NOT_SERVABLE_HEAD, "there it is looked at"


def test_shapes_of_another_model_are_refused(serving_installation, store, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(
        serving_installation.folder(serving_installation.publish("valid", seed=21)), tmp_path / "made"
    )
    tensors = load_file(folder / WEIGHTS_NAME)
    first = next(key for key in sorted(tensors) if "lora_A" in key)
    tensors[first] = tensors[first][:, :-1].copy()
    save_file(tensors, folder / WEIGHTS_NAME)
    assert store_and_refuse(serving_installation, store, folder) == Code.ADAPTER_SHAPE_MISMATCH


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30], ids=str)
def test_values_that_would_break_the_replica_are_refused_once_and_for_all(
    serving_installation, store, cache, tmp_path, monkeypatch, value
):
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(
        serving_installation.folder(serving_installation.publish("valid", seed=21)), tmp_path / "made"
    )
    tensors = load_file(folder / WEIGHTS_NAME)
    last = max(tensors)
    tensors[last] = tensors[last].copy()
    tensors[last][-1, -1] = value
    save_file(tensors, folder / WEIGHTS_NAME)
    manifest = store_changed(serving_installation, folder)
    assert refused(store, manifest.adapter_id) == Code.ADAPTER_VALUES_INVALID
    assert cached(cache) == []
    # Asking again reads nothing: callers may ask as often as they like.
    monkeypatch.setattr("serving.adapter_store.verify_adapter", None)
    assert refused(store, manifest.adapter_id) == Code.ADAPTER_VALUES_INVALID


def test_restored_adapter_is_served_again(serving_installation, store, victim):
    path = serving_installation.folder(victim) / WEIGHTS_NAME
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert refused(store, victim.adapter_id) == Code.ADAPTER_DIGEST_MISMATCH
    path.write_bytes(raw)
    assert store.fetch(victim.adapter_id).manifest == victim


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (
            b'{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": true}',
            Code.ADAPTER_NOT_SERVABLE,
        ),
        (b"[]", Code.ADAPTER_MANIFEST_INVALID),
        (b"\xff{", Code.ADAPTER_MANIFEST_INVALID),
        (b"[" * 100_000, Code.ADAPTER_MANIFEST_INVALID),
    ],
    ids=["dora", "list", "bytes", "deep"],
)
def test_unservable_config_is_refused(serving_installation, store, tmp_path, config, code):
    folder = shutil.copytree(
        serving_installation.folder(serving_installation.publish("valid", seed=21)), tmp_path / "made"
    )
    (folder / CONFIG_NAME).write_bytes(config)
    assert store_and_refuse(serving_installation, store, folder) == code


def store_and_refuse(serving_installation, store, folder):
    """The code that a changed folder is refused with."""
    return refused(store, store_changed(serving_installation, folder).adapter_id)


def store_changed(serving_installation, folder):
    """Store a changed folder under its own, correct digests."""
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (WEIGHTS_NAME, CONFIG_NAME)}
    manifest = serving_installation.publish("valid", seed=21).model_copy(update={"files": digests})
    return serving_installation.store_adapter(folder, manifest)


def test_non_canonical_manifest_is_refused(serving_installation, store, valid):
    raw = valid.to_bytes() + b"\n"
    digest = hashlib.sha256(raw).hexdigest()
    shutil.copytree(
        serving_installation.folder(valid), serving_installation.storage.folder("adapters", digest), dirs_exist_ok=True
    )
    (serving_installation.storage.folder("adapters", digest) / MANIFEST_NAME).write_bytes(raw)
    with pytest.raises(ArtifactInvalid) as caught:
        store.fetch(f"valid@{digest}")
    assert caught.value.code == Code.ADAPTER_MANIFEST_INVALID


def test_verified_adapter_is_not_read_again(serving_installation, store, victim):
    first = store.fetch(victim.adapter_id)
    shutil.rmtree(serving_installation.folder(victim))
    assert store.fetch(victim.adapter_id) == first


def test_valid_cache_of_earlier_process_is_used(serving_installation, cache, victim):
    earlier = serving_installation.store(cache)
    inode = (earlier.fetch(victim.adapter_id).folder / WEIGHTS_NAME).stat().st_ino
    earlier.close()
    again = serving_installation.store(cache).fetch(victim.adapter_id)
    assert (again.folder / WEIGHTS_NAME).stat().st_ino == inode


def test_unpublished_entries_of_earlier_process_are_deleted(serving_installation, cache, valid, victim):
    earlier = serving_installation.store(cache)
    own = earlier.fetch(valid.adapter_id).folder.parent
    earlier.fetch(victim.adapter_id)
    earlier.close()
    (own / "incoming-of-a-killed-process").mkdir()
    (own / "stray").write_bytes(b"")
    (own / "link").symlink_to(serving_installation.base)
    (serving_installation.folder(victim) / MANIFEST_NAME).unlink()
    serving_installation.store(cache).close()
    assert cached(cache) == [valid.digest]
    assert serving_installation.base.is_dir()


def test_process_never_touches_the_folder_of_another(serving_installation, cache, victim):
    other = serving_installation.store(cache)
    folder = other.fetch(victim.adapter_id).folder
    (serving_installation.folder(victim) / MANIFEST_NAME).unlink()
    mine = serving_installation.store(cache)
    mine.remove(victim.adapter_id)
    assert entries(folder) == [CONFIG_NAME, WEIGHTS_NAME]
    other.close()


def test_removed_adapter_is_gone_until_published_again(serving_installation, store, cache, victim):
    folder = serving_installation.folder(victim)
    raw = (folder / MANIFEST_NAME).read_bytes()
    store.fetch(victim.adapter_id)
    serving_installation.storage.unpublish("adapters", victim.digest, MANIFEST_NAME)
    assert not store.is_stored(victim.adapter_id)
    store.remove(victim.adapter_id)
    store.remove(victim.adapter_id)
    assert cached(cache) == []
    assert refused(store, victim.adapter_id) == Code.ADAPTER_NOT_FOUND
    (folder / MANIFEST_NAME).write_bytes(raw)
    assert store.is_stored(victim.adapter_id)
    assert entries(store.fetch(victim.adapter_id).folder) == [CONFIG_NAME, WEIGHTS_NAME]


def test_lost_cache_folder_is_made_again(store, valid):
    shutil.rmtree(store.fetch(valid.adapter_id).folder)
    assert (store.fetch(valid.adapter_id).folder / WEIGHTS_NAME).is_file()


def change_a_byte(folder, tmp_path):
    (folder / WEIGHTS_NAME).write_bytes((folder / WEIGHTS_NAME).read_bytes()[:-1] + b"\xff")


def add_a_file(folder, tmp_path):
    (folder / "adapter_model.bin").write_bytes(b"pickle")


def replace_by_symlink(folder, tmp_path):
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")


def replace_by_file(folder, tmp_path):
    shutil.rmtree(folder)
    folder.write_bytes(b"")


@pytest.mark.parametrize("damage", [change_a_byte, add_a_file, replace_by_symlink, replace_by_file])
def test_damaged_cache_of_earlier_process_is_replaced(serving_installation, cache, valid, tmp_path, damage):
    earlier = serving_installation.store(cache)
    damage(earlier.fetch(valid.adapter_id).folder, tmp_path)
    earlier.close()
    folder = serving_installation.store(cache).fetch(valid.adapter_id).folder
    assert not folder.is_symlink()
    assert entries(folder) == [CONFIG_NAME, WEIGHTS_NAME]
    assert hashlib.sha256((folder / WEIGHTS_NAME).read_bytes()).hexdigest() == valid.files[WEIGHTS_NAME]
    assert cached(cache) == [valid.digest]


@pytest.mark.parametrize("stores", [1, 8], ids=["one process", "many processes"])
def test_concurrent_fetches(serving_installation, cache, valid, stores):
    """Stores share nothing but the cache's root, like processes."""
    pool_of_stores = [serving_installation.store(cache) for _ in range(stores)]
    other = serving_installation.publish("other-valid", seed=24)
    barrier = threading.Barrier(16)

    def fetch(number):
        barrier.wait(10)
        return pool_of_stores[number // 2 % stores].fetch((valid, other)[number % 2].adapter_id)

    with ThreadPoolExecutor(16) as pool:
        adapters = list(pool.map(fetch, range(16)))
    assert {adapter.folder.name for adapter in adapters} == {valid.digest, other.digest}
    assert len({adapter.folder for adapter in adapters}) == 2 * stores
    assert cached(cache) == sorted([valid.digest, other.digest] * stores)
