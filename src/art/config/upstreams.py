"""What a user may set about an upstream: another model (teacher, judge, opponent, embeddings) reached through the server.

[server.upstreams.teacher]
base_url = "https://api.openai.com/v1"
model = "gpt-4o"
api_key_env = "OPENAI_API_KEY"
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from art.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")
_ROUTE = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")


class UpstreamConfig(BaseModel):
    """One upstream. Its key is never part of the settings: they say where it is to be found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str
    """Up to and including the version, as `https://api.openai.com/v1` or `https://api.anthropic.com/v1`."""
    model: str | None = None
    """The model's name there; None is the upstream's own name."""
    api_key_env: str | None = None
    """Environment variable of the server that holds the key."""
    api_key_file: Path | None = None
    """File that holds the key."""
    dialect: Literal["openai", "anthropic"] | None = None
    """Which routes it serves and how it takes its key; None passes every route through and sends the key as the
    route's own clients do."""
    timeout: float = Field(600.0, gt=0, le=24 * 3600.0)
    """Seconds. Longest silence; of an answer in one piece, the longest wait for all of it. A large model may think for minutes."""
    routes: tuple[str, ...] = ()
    """Further routes to pass through (POST, JSON with a `model`), as `rerank` or `images/generations`."""

    @model_validator(mode="before")
    @classmethod
    def _no_key_in_the_settings(cls, data: object) -> object:
        if isinstance(data, dict) and any(name in data for name in ("api_key", "key", "token")):
            raise ValueError("a key does not belong into the settings: name api_key_env or api_key_file")
        return data

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it must begin with http:// or https:// and a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("it must hold no user or password: name api_key_env or api_key_file")
        if parts.query or parts.fragment:
            raise ValueError("it must hold no query and no fragment")
        return value.rstrip("/")

    @field_validator("routes")
    @classmethod
    def _are_routes(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        found = tuple(route.removeprefix("/").removeprefix("v1/") for route in value)
        for route in found:
            if _ROUTE.fullmatch(route) is None:
                raise ValueError(f"{route!r} is no route; write it as `rerank` or `images/generations`")
        return found

    @model_validator(mode="after")
    def _one_place(self) -> UpstreamConfig:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("name api_key_env or api_key_file, not both")
        return self


def read_key(
    name: str, config: UpstreamConfig, environment: Mapping[str, str] | None = None
) -> SecretStr | None:
    """The key of an upstream, None where it wants none. ConfigError when it is not where the settings say."""
    if config.api_key_env is not None:
        found = (os.environ if environment is None else environment).get(config.api_key_env, "").strip()
        where = f"the environment variable {config.api_key_env}"
        hint = f"set {config.api_key_env} where the server is started"
    elif config.api_key_file is not None:
        try:
            found = config.api_key_file.expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the key file of the upstream {name} cannot be read", cause=str(error)
            ) from error
        where, hint = f"the file {config.api_key_file}", "write the key into it"
    else:
        return None
    if not found:
        raise ConfigError(f"the upstream {name} has no key", cause=f"{where} is empty or not set", hint=hint)
    if not (found.isascii() and found.isprintable()) or " " in found:
        raise ConfigError(f"the key of the upstream {name} cannot be sent", cause=f"{where} holds no key")
    return SecretStr(found)


def parse_flag(text: str) -> tuple[str, dict[str, Any]]:
    """`NAME=URL[,setting=value...]`, one upstream in a line, as a name and its settings. ConfigError for anything else."""
    name, _, rest = text.partition("=")
    url, *others = rest.split(",")
    settings: dict[str, Any] = {"base_url": url.strip()}
    for item in others:
        field, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(
                f"server.upstreams.{name}: {item!r} is no setting",
                hint="server.upstreams.teacher=https://api.openai.com/v1,model=gpt-4o,api_key_env=OPENAI_API_KEY",
            )
        settings[field.strip()] = value.strip().split("+") if field.strip() == "routes" else value.strip()
    return name.strip(), settings


def _from_text(value: object) -> object:
    """The environment gives JSON: ART_SERVER__UPSTREAMS='{"judge": {"base_url": ...}}'."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"it must be a JSON object of upstreams: {error}") from error


def _names(value: dict[str, UpstreamConfig]) -> dict[str, UpstreamConfig]:
    for name in value:
        if _NAME.fullmatch(name) is None:
            raise ValueError(
                f"{name!r} cannot be an upstream's name: letters, digits and . _ : / - (no @), at most 200"
            )
    return value


Upstreams = Annotated[dict[str, UpstreamConfig], BeforeValidator(_from_text), AfterValidator(_names)]
"""By the name that requests give as their `model`."""
