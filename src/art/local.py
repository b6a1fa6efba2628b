"""The import path that programs for openpipe-art use."""

from art.backends.local import LocalBackend
from art.backends.results import LocalTrainResult

__all__ = ["LocalBackend", "LocalTrainResult"]
