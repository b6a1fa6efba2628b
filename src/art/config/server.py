"""What a user may set about a server."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from art.config.content import Content, ContentRule, Projects, Redact, RedactPatterns, RedactWith
from art.config.engine import EngineConfig, TrainerConfig
from art.config.upstreams import Upstreams


class ServerConfig(BaseModel):
    """Settings of `art serve`. Times are seconds, sizes bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Path(".art")
    """Folder with everything the server keeps."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback needs `tls_cert`, or `allow_remote`."""
    port: int = Field(7999, ge=0, le=65535)
    """0 takes a free port, written to server.json."""
    allow_remote: bool = False
    """Permits plain HTTP on a host that other machines can reach: whoever listens on the way reads keys and texts."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, beside loopback and `host`, that a request's Host header may carry (a proxy's name)."""
    tls_cert: Path | None = None
    """Certificate chain in PEM. With it `host` and `port` speak TLS; programs on this machine use plain HTTP on a free
    port of loopback, which server.json names. Read again when the file changes."""
    tls_key: Path | None = None
    """Its key in PEM, without a password. None: it lies in the file `tls_cert`."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are believed: a proxy's. The audit log then
    names the client's address instead of the proxy's. From all others these headers are ignored."""
    stop_with_clients: bool = False
    """Stop when no client holds a file in server/clients any more."""
    max_body_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Largest request body. A batch of 256 rollouts with log-probabilities is about 20 MiB."""
    max_waiting_calls: int = Field(1024, ge=1)
    """Calls admitted at once, by one project at most eight ninths of it; past it, 429 with Retry-After."""
    max_held_bytes: int = Field(128 * 1024 * 1024, ge=1024)
    """Bytes of request bodies held at once, of calls and of the control API each; past it, 429 with Retry-After. What is
    made of a body takes several times as much memory. One that is larger is taken when no other is held."""
    engine_start_seconds: float = Field(300.0, gt=0)
    """Deadline of an engine's start: reading 15 GB of weights from a slow disk takes minutes."""
    trainer_start_seconds: float = Field(120.0, gt=0)
    """Deadline of the trainer's start: importing torch from a cold disk takes tens of seconds."""
    heartbeat_seconds: float = Field(10.0, gt=0)
    """A worker silent for this long is dead; workers send a heartbeat every second."""
    call_seconds: float = Field(600.0, gt=0)
    """Longest silence of one call to the engine. An engine that answers nobody at all for this long is started anew."""
    max_call_seconds: float = Field(3600.0, gt=0)
    """Deadline of one call, its wait for a place in the engine included. A client may ask for less (`X-ART-Timeout`)."""
    silent_client_seconds: float = Field(60.0, gt=0)
    """A client that neither sends the rest of its request nor takes any of its answer for this long is cut off."""
    train_seconds: float = Field(24 * 3600.0, gt=0)
    """Longest silence of one training job; a trainer that is silent for this long is started anew."""
    stall_seconds: float = Field(60.0, gt=0)
    """Work in hand of which nothing is done for this long: the stacks of gateway and worker go to the logs. Ends nothing."""
    stop_seconds: float = Field(20.0, gt=0)
    """How long running calls get to end after the first SIGTERM; a step in progress always ends."""
    keep_checkpoints: int = Field(5, ge=1)
    """Retention: the last this many steps, beside the latest and the best by validation reward."""
    deterministic: bool = False
    """A seeded run can be repeated bit by bit: the engine computes in fixed shapes, and the threads of engine and
    trainer are those that the folder was first used with. Costs speed (docs/deterministic.md)."""
    import_losses: bool = False
    """Whether every key that may train may name a loss as `package.module:function`, which imports that module in the
    trainer. An administrator of all projects always may."""
    content: Content = "full"
    """Whether what agents and models say is kept (docs/sensitive-data.md)."""
    redact: Redact = ()
    """Built-in patterns whose finds are taken out before anything is stored; `standard` is all of them."""
    redact_patterns: RedactPatterns = Field(default_factory=dict)
    """Own regular expressions, by name."""
    redact_with: RedactWith | None = None
    """An own function from text to text, by import path; it gets every text after the patterns."""
    projects: Projects = Field(default_factory=dict)
    """What projects have otherwise: `[server.projects.NAME]` with content, redact, redact_patterns, redact_with."""
    upstreams: Upstreams = Field(default_factory=dict)
    """Other models that requests reach by name (see config/upstreams)."""
    engine: EngineConfig = Field(default_factory=lambda: EngineConfig())
    trainer: TrainerConfig = Field(default_factory=lambda: TrainerConfig())

    @field_validator("trusted_proxies")
    @classmethod
    def _are_addresses(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for address in given:  # a name, or "*", would believe more than it says
            if ipaddress.ip_network(address).prefixlen == 0:
                raise ValueError(f"{address} believes everybody: name the proxy's own address")
        return given

    @field_validator("tls_key")
    @classmethod
    def _needs_a_certificate(cls, given: Path | None, info: ValidationInfo) -> Path | None:
        if given is not None and info.data.get("tls_cert") is None:
            raise ValueError("a key without a certificate: give tls_cert too")
        return given

    def content_rule(self) -> ContentRule:
        """The rule of projects that have none of their own."""
        return ContentRule(
            content=self.content,
            redact=self.redact,
            redact_patterns=self.redact_patterns,
            redact_with=self.redact_with,
        )

    def project_rules(self) -> dict[str, ContentRule]:
        """The rules of the projects that have one."""
        return {name: own.over(self.content_rule()) for name, own in self.projects.items()}

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach `host`."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
