"""The resolver and its registration, without an engine."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from serving.process import process_settings, process_store
from shared.errors import Code, Unavailable

ZEROS = "0" * 64

pytestmark = [pytest.mark.torch, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


@pytest.fixture
def plugin():
    """`serving.resolver`, imported late: it imports vLLM, which takes seconds."""
    from serving import resolver

    return resolver


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """vLLM's registry, empty; no settings, nothing cached."""
    from vllm.lora.resolver import LoRAResolverRegistry

    for name in [name for name in os.environ if name.upper().startswith("MENS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(LoRAResolverRegistry, "resolvers", {})
    process_settings.cache_clear()
    process_store.cache_clear()
    yield LoRAResolverRegistry
    process_settings.cache_clear()
    process_store.cache_clear()


def resolve(resolver, base, name):
    return asyncio.run(resolver.resolve_lora(str(base), name))


def test_valid_adapter_resolves_to_its_verified_folder(plugin, serving_installation, tmp_path):
    store = serving_installation.store(tmp_path)
    manifest = serving_installation.publish("valid", seed=21)
    request = resolve(plugin.MensResolver(lambda: store), serving_installation.base, manifest.adapter_id)
    assert request.lora_name == manifest.adapter_id
    assert request.lora_path == str(store.fetch(manifest.adapter_id).folder)
    assert (store.fetch(manifest.adapter_id).folder / "adapter_model.safetensors").is_file()
    assert request.base_model_name == serving_installation.entry.name


def test_refused_adapter_is_none_and_logged_with_its_code(plugin, serving_installation, tmp_path, caplog, monkeypatch):
    resolver = plugin.MensResolver(lambda: serving_installation.store(tmp_path))
    cases = [
        (serving_installation.base, f"a@{ZEROS}", "ADAPTER_NOT_FOUND"),
        (serving_installation.base, "../x", "NAME_INVALID"),
        (serving_installation.base, "a\nb", "NAME_INVALID"),
        (serving_installation.base, serving_installation.publish("wide", rank=17).adapter_id, "ADAPTER_RANK_TOO_LARGE"),
        (tmp_path, serving_installation.publish("valid", seed=21).adapter_id, "ADAPTER_BASE_MISMATCH"),
    ]
    # vLLM's logger may or may not hand its records on, depending on who configured it first.
    monkeypatch.setattr(logging.getLogger("vllm.mens.resolver"), "handlers", [caplog.handler])
    monkeypatch.setattr(logging.getLogger("vllm.mens.resolver"), "propagate", False)
    caplog.set_level(logging.WARNING, "vllm.mens.resolver")
    for base, name, code in cases:
        caplog.clear()
        assert resolve(resolver, base, name) is None
        assert len(caplog.records) == 1
        assert code in caplog.text
        assert caplog.text.count("\n") == 1


def test_transient_fault_is_raised(plugin, serving_installation):
    def full():
        raise Unavailable(Code.STORAGE_FULL, "The storage has no space left.")

    with pytest.raises(Unavailable):
        resolve(plugin.MensResolver(full), serving_installation.base, f"a@{ZEROS}")


def test_registration_is_idempotent(plugin, serving_installation, monkeypatch, registry):
    for name, value in serving_installation.environment().items():
        monkeypatch.setenv(name, value)
    plugin.register()
    first = registry.get_resolver(plugin.RESOLVER_NAME)
    plugin.register()
    assert registry.get_resolver(plugin.RESOLVER_NAME) is first
    assert registry.get_supported_resolvers() == {plugin.RESOLVER_NAME}


def test_registration_reads_no_storage(plugin, monkeypatch, registry, tmp_path):
    monkeypatch.setenv("MENS_SERVING_BASE", "not-in-the-catalogue")
    monkeypatch.setenv("MENS_HOME", str(tmp_path))
    plugin.register()
    assert list(tmp_path.iterdir()) == []
    assert resolve(registry.get_resolver(plugin.RESOLVER_NAME), tmp_path, f"a@{ZEROS}") is None


@pytest.mark.parametrize("variables", [{}, {"MENS_HOME": "/x"}, {"MENS_SERVING_BASE": "b", "MENS_SERVING_PORT": "x"}])
def test_nothing_is_registered_without_settings(plugin, monkeypatch, registry, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plugin.register()
    assert registry.get_supported_resolvers() == set()


def test_vllm_finds_the_entry_point():
    code = (
        "from importlib.metadata import entry_points\n"
        "print(*[p.value for p in entry_points(group='vllm.general_plugins') if p.name == 'mens_lora_resolver'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "serving.resolver:register"
