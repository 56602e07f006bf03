"""Settings of the API tier."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from shared.database.overview.costs import Prices
from shared.database.tenancy import LARGEST_LIMIT, MOST_TOKENS, FileQuota, KeyLimits, Role, TenantName
from shared.http_retry import authorities
from shared.settings import AdapterRetentionSettings

NameList = Annotated[
    list[str],
    NoDecode,
    BeforeValidator(
        lambda value: [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    ),
]
"""Names, comma-separated in the environment."""
Price = Annotated[Decimal, Field(ge=0, lt=1_000_000, decimal_places=6)]


class SignInRule(BaseModel):
    """Rights of the people of a group of the identity provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    group: str = Field(min_length=1, max_length=256)
    tenant: TenantName
    role: Role


class ApiSettings(AdapterRetentionSettings):
    """Settings of the API tier, in addition to those that all tiers share (`shared/settings.py`)."""

    api_host: str = Field("127.0.0.1", description="Address to listen on.")
    gate_policy: Path | None = Field(
        None, description="Policy file that governs every alias that has no policy itself or through its tenant."
    )
    api_port: int = Field(8000, ge=0, le=65535, description="Port to listen on.")
    console: bool = Field(True, description="Serve the web console at `/`, and allow sign-ins to it.")
    public_url: str = Field(
        "",
        pattern=r"^(https?://[^\s/@?#]+/?)?$",
        description=(
            "Address by which browsers reach the API, https:// behind a proxy with TLS; empty: people can sign in "
            "only on the API's own machine."
        ),
    )
    oidc_issuer: str = Field(
        "",
        pattern=r"^(https://[^\s@?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?(/[^\s@?#]*)?)?$",
        description=(
            "Issuer of the identity provider that people sign in through (OpenID Connect), spelt as in its discovery "
            "document: https://, or http:// on this machine; empty: no single sign-on."
        ),
    )
    oidc_client_id: str = Field("", description="Name of this installation at the identity provider.")
    oidc_client_secret: SecretStr = Field(
        SecretStr(""),
        description="Its client secret at the identity provider; empty: a public client, protected only by PKCE.",
    )
    oidc_ca_bundle: str = Field(
        "",
        description=(
            "Certificate authorities that the provider's certificate is checked against, in place of the public "
            "ones: a file in PEM form, or its text."
        ),
    )
    oidc_scopes: str = Field(
        "openid profile email",
        pattern=r"^openid( [!#-\[\]-~]+)*$",
        description="Requested scopes, separated by spaces, `openid` first; some providers also need `groups`.",
    )
    oidc_groups_claim: str = Field("groups", min_length=1, description="Claim of the ID token that lists groups.")
    oidc_rules: list[SignInRule] = Field(
        default_factory=list,
        description="Tenant and role of the people of each group, as a JSON list: group, tenant, role.",
    )
    fetch_bases: bool = Field(
        False,
        description=(
            "Make the API fetch the catalogue's bases from the hub or the storage; needed if it shares no folder "
            "with the other tiers."
        ),
    )
    max_file_bytes: int = Field(1 << 30, gt=0, description="Largest file that can be uploaded in one request.")
    max_upload_bytes: int = Field(8 << 30, gt=0, description="Largest file that can be uploaded in parts.")
    max_part_bytes: int = Field(64 << 20, gt=0, description="Largest part of such a file.")
    upload_seconds: int = Field(3600, gt=0, description="How long parts of a file are accepted.")
    max_body_bytes: int = Field(16 << 20, gt=0, description="Largest request to a model.")
    max_grammar_bytes: int = Field(
        16 << 10,
        gt=0,
        description="Total size of the schemas, regular expressions, grammars and choices of one request to a model.",
    )
    max_grammar_depth: int = Field(32, gt=0, le=64, description="Nesting depth of objects and lists in such a schema.")
    max_request_bytes: int = Field(
        1 << 20, gt=0, description="Largest body of any other request; for uploads, only the file counts."
    )
    max_head_bytes: int = Field(64 << 10, gt=0, description="Largest request line and headers of a request, together.")
    head_seconds: float = Field(10.0, gt=0, description="Time within which a request's headers must arrive.")
    body_seconds: float = Field(
        30.0,
        gt=0,
        description="Longest silence of a client in the middle of a body; a body may also lag behind 16 KiB/s by at most this time.",
    )
    max_connections: int = Field(
        2000,
        gt=0,
        description=(
            "Largest number of open client connections; idle ones without an open request are closed to admit new ones."
        ),
    )
    trusted_proxies: str = Field(
        "", description="Addresses of proxies whose X-Forwarded-For names the client, comma-separated; `*`: of all."
    )
    tenant_requests_per_minute: int | None = Field(
        None, gt=0, le=LARGEST_LIMIT, description="Model requests per minute of all keys of a tenant; null: no limit."
    )
    tenant_concurrent_requests: int | None = Field(
        None, gt=0, le=LARGEST_LIMIT, description="Concurrent model requests of all keys of a tenant; null: no limit."
    )
    tenant_tokens_per_minute: int | None = Field(
        None, gt=0, le=MOST_TOKENS, description="Tokens per minute of all keys of a tenant; null: no limit."
    )
    tenant_uploads_per_minute: int | None = Field(
        120, gt=0, description="Uploads per minute of a tenant; null: no limit."
    )
    tenant_plans_per_minute: int | None = Field(
        120, gt=0, description="Plans and new jobs per minute of a tenant; null: no limit."
    )
    tenant_graders_per_minute: int | None = Field(
        600, gt=0, description="Runs and validations of graders per minute of a tenant; null: no limit."
    )
    tenant_file_views_per_minute: int | None = Field(
        300, gt=0, description="Pages of a file's rows, and reports on files, per minute of a tenant; null: no limit."
    )
    max_eval_items: int = Field(100_000, gt=0, description="Output items of one run of an eval.")
    tenant_max_files: int | None = Field(None, gt=0, description="Files that a tenant may keep; null: no limit.")
    tenant_max_bytes: int | None = Field(
        None, gt=0, description="Total size of the files that a tenant may keep; null: no limit."
    )
    tenant_body_bytes: int = Field(
        256 << 20,
        gt=0,
        description="Total size of a tenant's concurrent request bodies, in one API process; uploads do not count.",
    )
    failed_authentications_per_minute: int = Field(
        60, gt=0, description="Unknown keys per minute that one client address may try before it gets 429."
    )
    health_seconds: float = Field(2.0, gt=0, description="How often the health of the replicas and DNS are checked.")
    warm_seconds: float = Field(30.0, ge=0, description="How long a new replica may load the busiest adapters.")
    first_byte_seconds: float = Field(
        30.0, gt=0, description="Time after which a stream that has not begun is sent to another replica."
    )
    upstream_timeout_seconds: float = Field(600.0, gt=0, description="Longest silence of a serving replica.")
    event_poll_seconds: float = Field(
        0.25,
        gt=0,
        description="How often event streams look for new events, and how old a 304 for a polled job may be.",
    )
    max_event_streams: int = Field(20, gt=0, description="Concurrent event streams of one key, in one API process.")
    tenant_event_streams: int = Field(
        100, gt=0, description="Concurrent event streams of all keys of a tenant, in one API process."
    )
    metrics_tenants: NameList = Field(
        default_factory=list, description="Tenants that always have separate metrics, comma-separated."
    )
    metrics_max_tenants: int = Field(
        20, ge=0, le=1000, description="Number of other tenants with separate metrics; further ones count as `other`."
    )
    metrics_models: NameList = Field(
        default_factory=list, description="Models that always have separate metrics, comma-separated."
    )
    metrics_max_models: int = Field(
        50, ge=0, le=1000, description="Number of other models with separate metrics; further ones count as `other`."
    )
    price_currency: str = Field("", pattern=r"^([A-Z]{3})?$", description="Currency of the prices, e.g. `EUR`.")
    price_gpu_hour: Price | None = Field(
        None, description="Price of one GPU for an hour; null: GPU time is shown without a price."
    )
    price_million_prompt_tokens: Price | None = Field(
        None,
        description="Price per million prompt tokens, including cached ones; null: tokens are shown without a price.",
    )
    price_million_completion_tokens: Price | None = Field(
        None, description="Price per million answer tokens; set both token prices or neither."
    )

    @model_validator(mode="after")
    def _check_oidc(self) -> ApiSettings:
        if self.oidc_issuer and not (self.oidc_client_id and self.oidc_rules):
            raise ValueError("MENS_OIDC_ISSUER needs MENS_OIDC_CLIENT_ID and MENS_OIDC_RULES too")
        if not all("!" <= character <= "~" for character in self.oidc_client_secret.get_secret_value()):
            raise ValueError("MENS_OIDC_CLIENT_SECRET has a space, a line break or a letter that is not ASCII")
        try:
            authorities(self.oidc_ca_bundle)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ValueError(
                f"MENS_OIDC_CA_BUNDLE is neither a readable file of certificates in PEM form nor their text: {error}"
            ) from None
        return self

    @model_validator(mode="after")
    def _prices_are_complete(self) -> Self:
        of_tokens = (self.price_million_prompt_tokens, self.price_million_completion_tokens)
        if (of_tokens[0] is None) != (of_tokens[1] is None):
            raise ValueError(
                "set both MENS_PRICE_MILLION_PROMPT_TOKENS and MENS_PRICE_MILLION_COMPLETION_TOKENS, or neither"
            )
        if (self.price_gpu_hour is not None or of_tokens[0] is not None) != bool(self.price_currency):
            raise ValueError("set MENS_PRICE_CURRENCY and at least one price, or neither")
        return self

    @property
    def prices(self) -> Prices:
        """Prices of GPU time and tokens."""
        return Prices(
            self.price_currency,
            self.price_gpu_hour,
            self.price_million_prompt_tokens,
            self.price_million_completion_tokens,
        )

    @property
    def file_quota(self) -> FileQuota:
        """Storage quota of a tenant."""
        return FileQuota(self.tenant_max_files, self.tenant_max_bytes)

    @property
    def tenant_limits(self) -> KeyLimits:
        """Limits of a tenant's model requests."""
        return KeyLimits(
            requests_per_minute=self.tenant_requests_per_minute,
            concurrent_requests=self.tenant_concurrent_requests,
            tokens_per_minute=self.tenant_tokens_per_minute,
        )
