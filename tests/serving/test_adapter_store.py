"""AdapterStore: what is given out was verified, and nothing else is given out."""

from __future__ import annotations

import hashlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from serving.private_cache import LOCK_NAME
from shared.catalog import TwinOf
from shared.errors import ArtifactInvalid, Code, InvalidRequest, MensError, NotFound
from shared.manifest import CONFIG_NAME, MANIFEST_NAME, WEIGHTS_NAME

ZEROS = "0" * 64


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(lab, cache):
    store = lab.store(cache)
    yield store
    store.close()


@pytest.fixture(scope="session")
def sound(lab):
    return lab.publish("sound", seed=21)


@pytest.fixture
def victim(lab, request, tmp_path):
    """An adapter of this test alone, to be damaged."""
    from itertools import count

    names = (f"victim-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}-{number}" for number in count())
    return lab.publish(next(names), seed=22)


def refused(store, adapter_id):
    with pytest.raises(MensError) as caught:
        store.fetch(adapter_id)
    return caught.value.code


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def cached(cache):
    """What is in the folders of all processes."""
    return sorted(path.name for path in cache.glob("*/*") if path.name != LOCK_NAME)


def test_a_sound_adapter_is_copied_and_verified(lab, store, cache, sound):
    adapter = store.fetch(sound.adapter_id)
    assert adapter.folder == next(cache.iterdir()) / sound.digest
    assert leftovers(adapter.folder) == [CONFIG_NAME, WEIGHTS_NAME]
    assert (adapter.folder / WEIGHTS_NAME).read_bytes() == (lab.folder(sound) / WEIGHTS_NAME).read_bytes()
    assert adapter.manifest == sound
    assert cached(cache) == [sound.digest]


BAD_IDS = [
    "",
    "sound",
    "@" + ZEROS,
    "sound@",
    "sound@" + "0" * 63,
    "sound@" + "0" * 65,
    "sound@" + "A" * 64,
    "sound@" + ZEROS + "\n",
    "Sound@" + ZEROS,
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


@pytest.mark.parametrize("adapter_id", BAD_IDS, ids=range(len(BAD_IDS)))
def test_what_is_no_id_never_reaches_the_storage(store, cache, adapter_id):
    with pytest.raises(InvalidRequest) as caught:
        store.fetch(adapter_id)
    assert caught.value.code == Code.NAME_INVALID
    assert len(str(caught.value)) < 500
    assert cached(cache) == []


def test_missing_manifest(lab, store, victim):
    assert refused(store, f"gone@{ZEROS}") == Code.ADAPTER_NOT_FOUND
    (lab.folder(victim) / MANIFEST_NAME).unlink()
    with pytest.raises(NotFound):
        store.fetch(victim.adapter_id)


def test_another_name_for_the_same_digest_is_not_there(store, sound):
    assert refused(store, f"other@{sound.digest}") == Code.ADAPTER_NOT_FOUND
    store.fetch(sound.adapter_id)
    assert refused(store, f"other@{sound.digest}") == Code.ADAPTER_NOT_FOUND


@pytest.mark.parametrize("name", [WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME])
def test_one_flipped_bit(lab, store, cache, victim, name):
    path = lab.folder(victim) / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert refused(store, victim.adapter_id) == Code.ADAPTER_DIGEST_MISMATCH
    assert cached(cache) == []


def test_missing_file(lab, store, cache, victim):
    (lab.folder(victim) / WEIGHTS_NAME).unlink()
    assert refused(store, victim.adapter_id) == Code.STORAGE_OBJECT_MISSING
    assert cached(cache) == []


def test_symlink_in_the_storage(lab, store, victim, tmp_path):
    path = lab.folder(victim) / WEIGHTS_NAME
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refused(store, victim.adapter_id) == Code.ADAPTER_MANIFEST_INVALID


def test_other_base(lab, store):
    digests = lab.entry.digests | {"model.safetensors": ZEROS}
    manifest = lab.publish("stranger", seed=23, base_digests=digests)
    assert refused(store, manifest.adapter_id) == Code.ADAPTER_BASE_MISMATCH


def test_a_twin_takes_the_adapters_of_its_original_and_its_own_and_no_others(lab, cache):
    original = TwinOf(name="original", digests=lab.entry.digests | {"model.safetensors": "1" * 64}, double_quant=True)
    store = lab.store(cache)
    store.base = lab.entry.model_copy(update={"twin_of": original})
    for name, digests in (("of-original", original.digests), ("of-twin", lab.entry.digests)):
        adapter_id = lab.publish(name, seed=24, base_digests=digests).adapter_id
        assert store.fetch(adapter_id).adapter_id == adapter_id
    digests = lab.entry.digests | {"model.safetensors": ZEROS}
    assert (
        refused(store, lab.publish("stranger", seed=23, base_digests=digests).adapter_id) == Code.ADAPTER_BASE_MISMATCH
    )


def test_rank_over_the_limit(lab, store, cache):
    manifest = lab.publish("wide", rank=17)
    assert refused(store, manifest.adapter_id) == Code.ADAPTER_RANK_TOO_LARGE
    assert lab.store(cache, max_rank=32).fetch(manifest.adapter_id).manifest.rank == 17


def test_shapes_of_another_model(lab, store, tmp_path):
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(lab.folder(lab.publish("sound", seed=21)), tmp_path / "made")
    tensors = load_file(folder / WEIGHTS_NAME)
    first = next(key for key in sorted(tensors) if "lora_A" in key)
    tensors[first] = tensors[first][:, :-1].copy()
    save_file(tensors, folder / WEIGHTS_NAME)
    assert store_and_refuse(lab, store, folder) == Code.ADAPTER_SHAPE_MISMATCH


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
def test_unservable_config(lab, store, tmp_path, config, code):
    folder = shutil.copytree(lab.folder(lab.publish("sound", seed=21)), tmp_path / "made")
    (folder / CONFIG_NAME).write_bytes(config)
    assert store_and_refuse(lab, store, folder) == code


def store_and_refuse(lab, store, folder):
    """Store a changed folder under its own, correct digests; the code it is refused with."""
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (WEIGHTS_NAME, CONFIG_NAME)}
    manifest = lab.publish("sound", seed=21).model_copy(update={"files": digests})
    return refused(store, lab.store_adapter(folder, manifest).adapter_id)


def test_manifest_that_is_not_canonical(lab, store, sound):
    raw = sound.to_bytes() + b"\n"
    digest = hashlib.sha256(raw).hexdigest()
    shutil.copytree(lab.folder(sound), lab.storage.folder("adapters", digest), dirs_exist_ok=True)
    (lab.storage.folder("adapters", digest) / MANIFEST_NAME).write_bytes(raw)
    with pytest.raises(ArtifactInvalid) as caught:
        store.fetch(f"sound@{digest}")
    assert caught.value.code == Code.ADAPTER_MANIFEST_INVALID


def test_what_was_verified_in_this_process_is_not_read_again(lab, store, victim):
    first = store.fetch(victim.adapter_id)
    shutil.rmtree(lab.folder(victim))
    assert store.fetch(victim.adapter_id) == first


def test_cache_of_an_earlier_process_is_used_when_it_is_sound(lab, cache, victim):
    earlier = lab.store(cache)
    inode = (earlier.fetch(victim.adapter_id).folder / WEIGHTS_NAME).stat().st_ino
    earlier.close()
    again = lab.store(cache).fetch(victim.adapter_id)
    assert (again.folder / WEIGHTS_NAME).stat().st_ino == inode


def test_what_an_earlier_process_left_and_is_no_longer_published_goes(lab, cache, sound, victim):
    earlier = lab.store(cache)
    own = earlier.fetch(sound.adapter_id).folder.parent
    earlier.fetch(victim.adapter_id)
    earlier.close()
    (own / "incoming-of-a-killed-process").mkdir()
    (own / "stray").write_bytes(b"")
    (own / "link").symlink_to(lab.base)
    (lab.folder(victim) / MANIFEST_NAME).unlink()
    lab.store(cache).close()
    assert cached(cache) == [sound.digest]
    assert lab.base.is_dir()


def test_a_process_never_touches_what_another_one_uses(lab, cache, victim):
    other = lab.store(cache)
    folder = other.fetch(victim.adapter_id).folder
    (lab.folder(victim) / MANIFEST_NAME).unlink()
    mine = lab.store(cache)
    mine.forget(victim.adapter_id)
    assert leftovers(folder) == [CONFIG_NAME, WEIGHTS_NAME]
    other.close()


def test_a_forgotten_adapter_is_gone_until_it_is_published_again(lab, store, cache, victim):
    folder = lab.folder(victim)
    raw = (folder / MANIFEST_NAME).read_bytes()
    store.fetch(victim.adapter_id)
    lab.storage.withdraw("adapters", victim.digest, MANIFEST_NAME)
    assert not store.is_stored(victim.adapter_id)
    store.forget(victim.adapter_id)
    store.forget(victim.adapter_id)
    assert cached(cache) == []
    assert refused(store, victim.adapter_id) == Code.ADAPTER_NOT_FOUND
    (folder / MANIFEST_NAME).write_bytes(raw)
    assert store.is_stored(victim.adapter_id)
    assert leftovers(store.fetch(victim.adapter_id).folder) == [CONFIG_NAME, WEIGHTS_NAME]


def test_a_lost_cache_folder_is_made_again(store, sound):
    shutil.rmtree(store.fetch(sound.adapter_id).folder)
    assert (store.fetch(sound.adapter_id).folder / WEIGHTS_NAME).is_file()


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
def test_damaged_cache_of_an_earlier_process_is_replaced(lab, cache, sound, tmp_path, damage):
    earlier = lab.store(cache)
    damage(earlier.fetch(sound.adapter_id).folder, tmp_path)
    earlier.close()
    folder = lab.store(cache).fetch(sound.adapter_id).folder
    assert not folder.is_symlink()
    assert leftovers(folder) == [CONFIG_NAME, WEIGHTS_NAME]
    assert hashlib.sha256((folder / WEIGHTS_NAME).read_bytes()).hexdigest() == sound.files[WEIGHTS_NAME]
    assert cached(cache) == [sound.digest]


@pytest.mark.parametrize("stores", [1, 8], ids=["one process", "many processes"])
def test_many_fetches_at_once(lab, cache, sound, stores):
    """Stores share nothing but the cache's root, like processes."""
    pool_of_stores = [lab.store(cache) for _ in range(stores)]
    other = lab.publish("other-sound", seed=24)
    barrier = threading.Barrier(16)

    def fetch(number):
        barrier.wait(10)
        return pool_of_stores[number // 2 % stores].fetch((sound, other)[number % 2].adapter_id)

    with ThreadPoolExecutor(16) as pool:
        adapters = list(pool.map(fetch, range(16)))
    assert {adapter.folder.name for adapter in adapters} == {sound.digest, other.digest}
    assert len({adapter.folder for adapter in adapters}) == 2 * stores
    assert cached(cache) == sorted([sound.digest, other.digest] * stores)
