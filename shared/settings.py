"""Settings that at least two tiers read, from the environment (prefix ``MENS_``).

Tier-only settings live in a subclass next to the tier's entry point. Settings are passed, never global; only the
entry points (`python -m api`, `worker/app.py`, `python -m serving`, `mens`) read the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from shared.errors import Code, InvalidRequest
from shared.observability.logs import LogFormat
from shared.webhooks.targets import AllowedTargets


class RemoteModel(BaseModel):
    """A model of another server, which has OpenAI's routes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(
        pattern=r"^https?://[^\s@?#]+$", description="Base URL, as OpenAI's clients take it: with its /v1."
    )
    key: SecretStr = Field(SecretStr(""), description="Sent as the bearer token.")
    model: str = Field("", description="Name of the model at that server; empty: the same name.")

    @field_validator("key")
    @classmethod
    def _can_be_sent(cls, key: SecretStr) -> SecretStr:
        if not all("!" <= character <= "~" for character in key.get_secret_value()):
            raise ValueError(
                "the key has a character that a header cannot have: a space, a line break or a letter that is not ASCII"
            )
        return key


class Settings(BaseSettings):
    """Locations of an installation's parts that several tiers use."""

    model_config = SettingsConfigDict(env_prefix="MENS_", extra="ignore", frozen=True)

    home: Path = Field(Path(".mens"), description="Folder of everything Mens keeps on this machine.")
    database_url: str = Field("", description="SQLAlchemy URL of the database; SQLite in the home folder when empty.")
    broker_url: str = Field("redis://127.0.0.1:6379/0", description="Redis ≥ 6.2 or Valkey.")
    storage_dir: Path = Field(
        Path(), description="Blob folder: files, adapters, merged models; not used if a bucket is set."
    )
    s3_bucket: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?$",
        description="Bucket of an S3-compatible store for these files; empty: the folder is used.",
    )
    s3_prefix: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._/-]{0,256}$",
        description="Prefix of the keys in the bucket, to share it between installations.",
    )
    s3_endpoint: str = Field(
        "",
        pattern=r"^(https?://[^\s/@?#]+/?)?$",
        description="Address of the object store, http:// or https://; empty: Amazon's.",
    )
    s3_region: str = Field("", description="Region of the bucket; empty: as the environment says (AWS_REGION).")
    s3_path_style: bool = Field(
        False,
        description="Put the bucket into the path, not into the host name, as most other stores require.",
    )
    cache_dir: Path = Field(Path(), description="Local copies of files in the bucket; best on a disk of this machine.")
    cache_bytes: int = Field(
        20 << 30, ge=0, description="Largest total size of these copies; copies in use are kept even beyond it."
    )
    quant_base: Literal["auto", "none", "nf4"] = Field(
        "auto",
        description="Precision of the base if a job leaves it open; auto: none if it fits with headroom, else nf4.",
    )
    runs_dir: Path = Field(Path(), description="Run folders of job attempts, with their checkpoints.")
    prepared_dir: Path = Field(Path(), description="Encoded data files: a cache, which may be removed between jobs.")
    catalog_path: Path = Field(Path(), description="The catalogue of base models.")
    serving_urls: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Base URLs of the serving replicas, comma-separated."
    )
    serving_dns: str = Field(
        "", pattern=r"^(\S+:[0-9]{1,5})?$", description="host:port of a headless service; its addresses are replicas."
    )
    serving_key: SecretStr = Field(SecretStr(""), description="Key that the serving replicas require of their callers.")
    drain_seconds: float = Field(
        60.0,
        ge=0,
        le=86400,
        description=(
            "Time for requests in flight to end by themselves: a deleted adapter's, or those of a server that stops."
        ),
    )

    metrics_host: str = Field("127.0.0.1", description="Address of the metrics; any but loopback needs a metrics key.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the metrics of an API process or a worker; null: no metrics."
    )
    metrics_key: SecretStr = Field(
        SecretStr(""),
        description="Key that a scraper of metrics sends as its bearer token; without it, a replica serves no metrics.",
    )

    webhook_allowed: Annotated[list[str], NoDecode] = Field(
        default_factory=list,
        description=(
            "Hosts and networks that webhooks may be sent to although they are not public, comma-separated; also over http://."
        ),
    )
    log_format: LogFormat = Field(
        "text", description="text: plain lines; json: one object per line, with the ids of request, job and tenant."
    )
    otlp_endpoint: str = Field(
        "",
        pattern="^(https?://.+)?$",
        description="Base URL of an OpenTelemetry receiver (OTLP over HTTP) for traces; empty: none.",
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "off"] = Field(
        "auto",
        description="Sandbox of Python graders: auto for the strongest that passes its probe, one level, or off.",
    )
    grader_models: dict[str, RemoteModel] = Field(
        default_factory=dict,
        description="Older name of MENS_REMOTE_MODELS. If both name a model, MENS_REMOTE_MODELS applies.",
    )
    remote_models: dict[str, RemoteModel] = Field(
        default_factory=dict,
        description=(
            "Models of other servers that graders and `mens generate-data` may name, as JSON: url, key, model by name."
        ),
    )
    grader_embeddings: RemoteModel | None = Field(
        None, description="The model of another server that `cosine` takes embeddings from, as JSON: url, key, model."
    )

    corpus_sources: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Databases that `mens corpus pull` reads, as JSON: URL by name.",
    )
    corpus_key: SecretStr = Field(
        SecretStr(""),
        description=(
            "Key of the placeholders that replace personal data in corpora; empty: a key is created once and kept in "
            "the home folder."
        ),
    )

    @property
    def named_models(self) -> dict[str, RemoteModel]:
        """Models of other servers, by name."""
        return self.grader_models | self.remote_models

    @field_validator("webhook_allowed")
    @classmethod
    def _check_webhook_allowed(cls, entries: list[str]) -> list[str]:
        AllowedTargets.parse(entries)
        return entries

    @model_validator(mode="before")
    @classmethod
    def _resolve_paths(cls, values: dict[str, object]) -> dict[str, object]:
        home = Path(str(values.get("home") or ".mens")).expanduser().resolve()
        # An empty variable counts as not set.
        present = {key: value for key, value in values.items() if value not in ("", None)}
        urls = present.get("serving_urls", [])
        if isinstance(urls, str):
            urls = [url.strip() for url in urls.split(",") if url.strip()]
        allowed = present.get("webhook_allowed", [])
        if isinstance(allowed, str):
            allowed = [entry.strip() for entry in allowed.split(",") if entry.strip()]
        return {**paths_in(home), **present, "home": home, "serving_urls": urls, "webhook_allowed": allowed}


def paths_in(home: Path) -> dict[str, object]:
    """Return the settings that name a place in the home folder, where the environment does not set them."""
    return {
        "database_url": f"sqlite:///{home / 'mens.db'}",
        "storage_dir": home / "storage",
        "runs_dir": home / "runs",
        "prepared_dir": home / "prepared",
        "cache_dir": home / "cache",
        "catalog_path": home / "catalog.json",
    }


AnySettings = TypeVar("AnySettings", bound=Settings)


class TrainerShareSettings(Settings):
    """The trainer's part of a GPU. Worker and trainer keep to it, and the command line plans for it."""

    trainer_gpu_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of a GPU's memory that the trainer may use; the rest is for a replica on the same GPU.",
    )


class AdapterRetentionSettings(Settings):
    """Retention of adapters. The worker tier deletes them; the API shows when."""

    retain_checkpoints: int | None = Field(
        None, ge=0, description="Number of the newest checkpoints that are kept of each job; null: all."
    )
    retain_unaliased_days: float | None = Field(
        None,
        ge=0,
        le=36500,
        description="Time without an alias after which an adapter is deleted; null: never.",
    )
    retain_failed_checkpoint_days: float | None = Field(
        30.0,
        ge=0,
        le=36500,
        description="Time after which the checkpoints of a failed or cancelled job are deleted.",
    )
    retain_alias_moves: int = Field(
        10,
        ge=0,
        description="Number of each alias's last moves whose adapters are kept, so that it can be rolled back.",
    )


class RetentionSettings(AdapterRetentionSettings):
    """Retention limits. A limit that is null deletes nothing."""

    retain_run_days: float | None = Field(
        None,
        ge=0,
        le=36500,
        description="Time after which run folder, logs and curves of a finished job are removed; null: never.",
    )
    retain_model_days: float | None = Field(
        None,
        ge=0,
        le=36500,
        description="Time after the end of its job after which a merged model is deleted; null: never.",
    )
    retain_leftover_days: float | None = Field(
        None, ge=0, le=36500, description="Time after which the stored files of a failed job are removed; null: never."
    )
    prepared_bytes: int | None = Field(
        None, ge=0, description="Largest total size of the encoded data files; null: no limit."
    )


def read_settings(kind: type[AnySettings]) -> AnySettings:
    """Read the settings of a tier from the environment.

    Raises:
        InvalidRequest: ``SETTINGS_INVALID`` naming the first variable that is wrong.
    """
    try:
        return kind()
    except ValidationError as error:
        # The message leaves out the value, which may be the key.
        fault = error.errors(include_input=False, include_url=False)[0]
        variable = "_".join(["MENS", *(str(part).upper() for part in fault["loc"])])
        reason = fault["msg"].removeprefix("Value error, ")
        raise InvalidRequest(
            Code.SETTINGS_INVALID,
            f"{variable if fault['loc'] else 'The settings'}: {reason}.",
            remedy="Set the environment variable and start again.",
            param=variable if fault["loc"] else None,
        ) from None
