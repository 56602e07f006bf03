"""Large files with the stock OpenAI client against an API process on PostgreSQL, which is killed in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from api.settings import ApiSettings
from cli.standalone.ports import free_port
from shared.database.callers.keys import Keys
from shared.database.connection import Database
from tests.support.api_process import ApiProcess, running_api
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.system, pytest.mark.postgres]

CONTENT = random.Random(7).randbytes(5 << 20)
MD5 = hashlib.md5(CONTENT).hexdigest()
PART_BYTES = 1 << 20
FORM = {"filename": "rows.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}


def new_installation(home: Path, postgres_server: PostgresServer) -> tuple[ApiSettings, str]:
    """Settings of an installation with a database of its own, and a key for it."""
    url = postgres_server.fresh_url()
    settings = ApiSettings(home=home, database_url=url, api_port=free_port(), broker_url="redis://127.0.0.1:9/0")
    database = Database(url)
    secret = Keys(database).create("test")[1]
    database.close()
    return settings, secret


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[tuple[ApiProcess, str]]:
    """An API that is never killed, and a key for it."""
    settings, secret = new_installation(tmp_path_factory.mktemp("uploads"), postgres_server)
    with start(settings) as api:
        yield api, secret
    postgres_server.give_back(settings.database_url)


def start(settings: ApiSettings) -> Iterator[ApiProcess]:
    return running_api(settings, database_url=settings.database_url, api_port=str(settings.api_port))


def stock_client(api: ApiProcess, secret: str) -> OpenAI:
    return OpenAI(base_url=f"{api.url}/v1", api_key=secret, _strict_response_validation=True)


def test_stock_client_uploads_in_parts(api: tuple[ApiProcess, str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(CONTENT)
    with stock_client(*api) as client:
        more = {"mime_type": "text/jsonl", "purpose": "fine-tune", "part_size": PART_BYTES}
        upload = client.uploads.upload_file_chunked(file=path, md5=MD5, **more)
        assert (upload.status, upload.filename) == ("completed", "rows.jsonl")
        assert upload.file
        assert client.files.content(upload.file.id).read() == CONTENT
        with pytest.raises(openai.BadRequestError) as wrong:
            client.uploads.upload_file_chunked(file=path, md5="0" * 32, **more)
        assert wrong.value.param == "md5"


def test_parts_of_several_clients_come_at_once(api: tuple[ApiProcess, str]) -> None:
    async def send(url: str, secret: str) -> bytes:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key=secret, max_retries=0) as client:
            upload = await client.uploads.create(bytes=len(CONTENT), **FORM)
            pieces = [CONTENT[start : start + PART_BYTES] for start in range(0, len(CONTENT), PART_BYTES)]
            parts = await asyncio.gather(*(client.uploads.parts.create(upload.id, data=piece) for piece in pieces))
            ids = [part.id for part in parts]
            done = await asyncio.gather(*(client.uploads.complete(upload.id, part_ids=ids, md5=MD5) for _ in range(4)))
            (file_id,) = {each.file.id for each in done if each.file}
            return (await client.files.content(file_id)).content

    process, secret = api
    assert asyncio.run(send(process.url, secret)) == CONTENT


@pytest.mark.long  # three starts of the API; parts that are sent again are in tests/api/routes/files/test_uploads.py
def test_upload_survives_kills_of_the_api(tmp_path: Path, postgres_server: PostgresServer) -> None:
    settings, secret = new_installation(tmp_path, postgres_server)
    part_ids = []
    with start(settings) as api, stock_client(api, secret) as client:
        upload = client.uploads.create(bytes=len(CONTENT), **FORM)
        part_ids.append(client.uploads.parts.create(upload.id, data=CONTENT[:PART_BYTES]).id)
        api.process.kill()
        with pytest.raises(openai.APIConnectionError):
            client.with_options(max_retries=0).uploads.parts.create(upload.id, data=CONTENT[PART_BYTES:])
    with start(settings) as api, stock_client(api, secret) as client:
        part_ids.append(client.uploads.parts.create(upload.id, data=CONTENT[PART_BYTES:]).id)
        done = client.uploads.complete(upload.id, part_ids=part_ids, md5=MD5)
        api.process.kill()
    with start(settings) as api, stock_client(api, secret) as client:
        assert client.uploads.complete(upload.id, part_ids=part_ids, md5=MD5) == done
        assert done.file
        assert client.files.content(done.file.id).read() == CONTENT
    blobs = [path for path in (settings.storage_dir / "blobs").rglob("*") if path.is_file()]
    assert [path.name for path in blobs] == [hashlib.sha256(CONTENT).hexdigest()]
    postgres_server.give_back(settings.database_url)
