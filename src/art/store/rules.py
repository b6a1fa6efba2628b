"""The rules of a server and its projects, as the hook that everything stored passes (`store/redaction`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

from art.config.content import PATTERNS, ContentRule
from art.errors import ConfigError
from art.store.records import CallText
from art.store.redaction import KeepEverything, KeptCall, Redaction
from art.store.scrub import Scrubber
from art.types.tokens import CallRecord

COUNTED = frozenset({"metrics", "group"})
"""Of logged content that is not kept, the fields that hold figures."""
NAMED = frozenset({"model", "tool_choice"})
"""Of what a call asked for, the texts that are names."""


class Rules:
    """One rule a project. The rules of projects that have none of their own are the server's."""

    def __init__(self, default: ContentRule, projects: Mapping[str, ContentRule]) -> None:
        """ConfigError where an own function cannot be imported."""
        self._default = _Applied(default)
        self._projects = {name: _Applied(rule) for name, rule in projects.items()}

    def content(self, value: Any, project: str | None = None) -> Any:
        return self._of(project).content(value)

    def report(self, value: Any, project: str | None = None) -> Any:
        return self._of(project).words.json(value)

    def call(self, call: CallRecord, text: CallText, project: str | None = None) -> KeptCall:
        return self._of(project).call(call, text)

    def seals(self, project: str | None = None) -> bool:
        return self._of(project).rule.changes

    def log_line(self, text: str) -> str:
        """A line of a log, which may be about any project."""
        for applied in (self._default, *self._projects.values()):
            text = applied.words.text(text)
        return text

    def _of(self, project: str | None) -> _Applied:
        return self._default if project is None else self._projects.get(project, self._default)


class _Applied:
    """A rule with its patterns compiled and its function imported."""

    def __init__(self, rule: ContentRule) -> None:
        self.rule = rule
        function = None if rule.redact_with is None else _imported(rule.redact_with)
        # Where nothing is kept, what ART itself says of an error still is, with every pattern taken out.
        words = rule.model_copy(update={"redact": PATTERNS}) if rule.content == "none" else rule
        self.words = Scrubber.of(words, function)

    def content(self, value: Any) -> Any:
        return _counts(value) if self.rule.content == "none" else self.words.json(value)

    def call(self, call: CallRecord, text: CallText) -> KeptCall:
        if not self.rule.changes:
            return KeptCall(call, text)
        if self.rule.content == "none":
            asked = {
                name: value if _is_figure(value) or name in NAMED else {}
                for name, value in call.sampling_asked.items()
                if name != "stop"
            }
            used = call.sampling_used.model_copy(update={"stop": ()})
            settings = {"sampling_asked": asked, "sampling_used": used}
            return KeptCall(call.model_copy(update=settings), _without_words(text), hides=True)
        fields = text.model_dump(mode="json", include={"tail", "tools", "completions", "kept"})
        said = {name: self.words.json(value) for name, value in fields.items()}
        kept = text.model_copy(update=said)
        return KeptCall(self._with_settings(call), kept, hides=said != fields)

    def _with_settings(self, call: CallRecord) -> CallRecord:
        """Sampling parameters hold texts too: stop strings, a schema. Their numbers are no one's."""
        asked = {
            name: value if _is_figure(value) or name in NAMED else self.words.json(value)
            for name, value in call.sampling_asked.items()
        }
        stop = tuple(self.words.text(text) for text in call.sampling_used.stop)
        used = call.sampling_used.model_copy(update={"stop": stop})
        return call.model_copy(update={"sampling_asked": asked, "sampling_used": used})


def redaction_of(default: ContentRule, projects: Mapping[str, ContentRule]) -> Redaction:
    """The hook for a store. ConfigError where an own function cannot be imported."""
    if not any(rule.changes for rule in (default, *projects.values())):
        return KeepEverything()
    return Rules(default, projects)


def _is_figure(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _without_words(text: CallText) -> CallText:
    """Who spoke how often, and what a dialect needs to answer for the call."""
    return CallText(
        tail=[{"role": message.get("role"), "content": ""} for message in text.tail],
        completions=[{"role": "assistant", "content": ""} for _ in text.completions],
        cached_tokens=text.cached_tokens,
        parent_choice=text.parent_choice,
        outlines=[[] for _ in text.outlines],
        kept=_without_texts(text.kept),
        dropped=True,
    )


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_texts(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_texts(item) for item in value]
    return "" if isinstance(value, str) else value


def _counts(value: Any) -> Any:
    """The figures of logged content, nothing else of it."""
    if not isinstance(value, dict):
        return None
    found = {name: item for name, item in value.items() if name in COUNTED and isinstance(item, dict)}
    return {
        name: _counts(item)
        if name == "group"
        else {key: figure for key, figure in item.items() if _is_figure(figure)}
        for name, item in found.items()
    }


def _imported(path: str) -> Callable[[str], str]:
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"redact_with names {path}, which cannot be imported",
            cause=f"{type(error).__name__}: {error}",
            hint="the module must be installed, or on PYTHONPATH, where the server is started",
        ) from error
    if not callable(function):
        raise ConfigError(f"redact_with names {path}, which is no function")
    return cast(Callable[[str], str], function)
