"""What the environment says about places outside of this machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

HUB = "https://huggingface.co"
TRUE = frozenset({"1", "true", "yes", "on"})
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy")
TRACKERS = {
    "WANDB_API_KEY": "Weights & Biases",
    "WANDB_BASE_URL": "Weights & Biases",
    "MLFLOW_TRACKING_URI": "MLflow",
    "COMET_API_KEY": "Comet",
    "NEPTUNE_API_TOKEN": "Neptune",
    "LANGSMITH_TRACING": "LangSmith",
    "LANGCHAIN_TRACING_V2": "LangSmith",
    "LANGFUSE_PUBLIC_KEY": "Langfuse",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "OpenTelemetry",
    "SENTRY_DSN": "Sentry",
}
"""Variables by which libraries that an agent may use begin to send what they see. ART sends nothing because one of them is
set: a tracker is asked for by name, and then its library may read them."""
MODELS = {
    "OPENAI_API_KEY": ("OPENAI_BASE_URL", "https://api.openai.com"),
    "ANTHROPIC_API_KEY": ("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
}
"""Keys that an agent or a judge of this environment may use, with what says where they are sent."""


def hub(environment: Mapping[str, str] | None = None) -> str | None:
    """Where base models are downloaded from; None where that is switched off."""
    known = os.environ if environment is None else environment
    off = any(known.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return None if off else host_of(known.get("HF_ENDPOINT") or HUB)


def proxies(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Hosts of the proxies that requests leave by, by variable."""
    known = os.environ if environment is None else environment
    return {name: host_of(known[name]) for name in PROXIES if known.get(name)}


def trackers(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Trackers that libraries of this environment would send to, by variable."""
    known = os.environ if environment is None else environment
    return {name: tracker for name, tracker in TRACKERS.items() if known.get(name)}


def models(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Hosts that clients of this environment ask, by the variable that holds their key."""
    known = os.environ if environment is None else environment
    return {
        key: host_of(known.get(where) or usual)
        for key, (where, usual) in MODELS.items()
        if known.get(key) or known.get(where)
    }


def host_of(url: str) -> str:
    """Host and port of an address, without user, password and path."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    host = parts.hostname or "?"
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{parts.port}" if _has_port(url, parts.netloc) else host


def _has_port(url: str, place: str) -> bool:
    return place.rpartition("]")[2].rpartition("@")[2].rpartition(":")[2].isdigit() and ":" in place


def is_loopback(place: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    host = place.rpartition("]")[0].lstrip("[") or place.partition(":")[0]
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
