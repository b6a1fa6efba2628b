"""`Model`: a model an agent talks to. `TrainableModel`: one whose LoRA the server trains.

A model is bound to no event loop. Set-up on the server happens when `register` is awaited, or at first use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel, ConfigDict, PrivateAttr
from typing_extensions import TypeVar

from art.backends.handover import as_groups
from art.backends.options import internal_config, model_config, one_name, refuse_server_options, require_json
from art.config.model import LoraConfig, ModelConfig
from art.errors import ConfigError
from art.integrations.tracking import Reporting, Tracking
from art.missing import MODEL, explain
from art.model_log import Logging, ModelLog
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import wire
from art.utils.background import run_blocking
from art.utils.lazy import LazyCoroutine
from art.utils.model_files import ModelFiles

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from art.backends.protocol import Backend
    from art.backends.results import TrainResult
    from art.config.sft import TrainSFTConfig
    from art.config.train import TrainConfig

ConfigT = TypeVar("ConfigT", default=Any)
StateT = TypeVar("StateT", bound=Mapping[str, Any], default=dict[str, Any])

DEFAULT_PATH = ".art"
"""Where a model's files lie; a model on a LocalBackend takes over the backend's folder."""


class Model(Logging, Reporting, BaseModel, Generic[ConfigT, StateT]):
    """A model by name, for prompting and logging. See TrainableModel for one that learns."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    name: str
    project: str
    entity: str | None = None
    id: str | None = None
    run_id: str | None = None
    config: Any = None
    base_path: str = DEFAULT_PATH
    report_metrics: list[str] | None = None
    trainable: bool = False

    _inference_base_url: str | None = PrivateAttr(None)
    _inference_api_key: str | None = PrivateAttr(None)
    _inference_model_name: str | None = PrivateAttr(None)
    _backend: Any = PrivateAttr(None)
    _registered: bool = PrivateAttr(False)
    _setting_up: asyncio.Task[None] | None = PrivateAttr(None)
    _step: int | None = PrivateAttr(None)
    _openai: Any = PrivateAttr(None)
    _log: ModelLog = PrivateAttr(default_factory=ModelLog)
    _tracking: Tracking | None = PrivateAttr(None)

    def __init__(
        self,
        *,
        name: str,
        project: str,
        entity: str | None = None,
        id: str | None = None,
        run_id: str | None = None,
        config: ConfigT | None = None,
        inference_api_key: str | None = None,
        inference_base_url: str | None = None,
        inference_model_name: str | None = None,
        base_path: str = DEFAULT_PATH,
        report_metrics: list[str] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(
            name=name,
            project=project,
            entity=entity,
            id=id,
            run_id=run_id,
            config=config,
            base_path=base_path,
            report_metrics=report_metrics,
            **fields,
        )
        self._inference_api_key = inference_api_key
        self._inference_base_url = inference_base_url
        self._inference_model_name = inference_model_name

    if not TYPE_CHECKING:  # a declared __getattr__ would make every misspelt attribute type-check

        def __getattr__(self, name: str) -> Any:
            if said := explain("model", name, MODEL):
                raise AttributeError(said)
            return super().__getattr__(name)

    # -- what the backend needs

    def server_config(self) -> ModelConfig | None:
        """What the server fixes at registration; None for a model that is only prompted."""
        return None

    def bind(self, info: wire.ModelInfo, *, url: str, key: str, base_path: str | None) -> None:
        """Take over what the server knows of the model; it need not be registered again."""
        self._registered = True
        self._inference_base_url = f"{url}/v1"
        self._inference_api_key = key
        self._step = info.step
        if base_path is not None and self.base_path == DEFAULT_PATH:
            self.base_path = base_path

    def note_step(self, step: int) -> None:
        """The model's published step, as the server last told it."""
        self._step = step

    # -- registration

    @property
    def served(self) -> bool:
        """Whether a server keeps the model: it trains, and has a backend."""
        return self._backend is not None and self.server_config() is not None

    def backend(self) -> Backend:
        """The registered backend; ConfigError when there is none."""
        if self._backend is None:
            raise ConfigError(f"{self.name} has no backend", hint="await model.register(backend) first")
        backend: Backend = self._backend
        return backend

    def register(
        self, backend: Backend, _openai_client_config: Mapping[str, Any] | None = None
    ) -> LazyCoroutine[None]:
        """Connect the model with a backend. Await the result to set it up now; else first use does."""
        refuse_server_options(_openai_client_config)
        require_json(self.config)
        self.tracking.require()
        if backend is not self._backend:
            self._backend, self._registered, self._openai = backend, False, None
        return LazyCoroutine(self.ready)

    async def ready(self) -> None:
        """Make sure that the model is set up on its backend. Cheap when it is."""
        if self._registered or self._backend is None:
            return
        loop = asyncio.get_running_loop()
        task = self._setting_up
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._setting_up = loop.create_task(self._set_up(), name=f"register {self.name}")
        # Shared by all tasks of this loop that need it: one that is cancelled does not cancel the others.
        await asyncio.shield(task)

    async def _set_up(self) -> None:
        await self.backend().register(self)
        self._registered = True
        self._log.begin()

    def _ready_now(self) -> None:
        if not self._registered and self._backend is not None and self.server_config() is not None:
            run_blocking(self.ready)

    # -- inference

    @property
    def inference_base_url(self) -> str | None:
        """Base URL for any OpenAI client."""
        if self._inference_base_url is None:
            self._ready_now()
        return self._inference_base_url

    @inference_base_url.setter
    def inference_base_url(self, value: str | None) -> None:
        self._inference_base_url = value

    @property
    def inference_api_key(self) -> str | None:
        """The key that goes with `inference_base_url`."""
        if self._inference_api_key is None:
            self._ready_now()
        return self._inference_api_key

    @inference_api_key.setter
    def inference_api_key(self, value: str | None) -> None:
        self._inference_api_key = value

    @property
    def inference_model_name(self) -> str | None:
        """The name to ask for; `get_inference_name()` for a model on a backend."""
        return self._inference_model_name

    @inference_model_name.setter
    def inference_model_name(self, value: str | None) -> None:
        self._inference_model_name = value

    def get_inference_name(self, step: int | None = None) -> str:
        """The name under which the model answers: `name@step`, by default at its current step."""
        base = self._inference_model_name or self.name
        return base if step is None else f"{base}@{step}"

    def openai_client(self) -> AsyncOpenAI:
        """An AsyncOpenAI for this model; the same object each time, usable from any event loop."""
        if self._openai is None:
            from art.backends.clients import plain_client, server_client

            served = self.server_config() is not None
            if served and (self._backend is not None or self._inference_base_url is None):
                self.backend()  # ConfigError where none was registered
                self._openai = server_client(self)
            else:
                self._openai = plain_client(self)
        client: AsyncOpenAI = self._openai
        return client

    def litellm_completion_params(self, step: int | None = None) -> dict[str, Any]:
        """Keyword arguments for litellm's `completion`."""
        name = self.get_inference_name(step)
        return {
            "model": f"hosted_vllm/{name}" if self.trainable else name,
            "base_url": self.inference_base_url,
            "api_key": self.inference_api_key,
            "temperature": 1,
        }

    def _repr_html_(self) -> str:
        from art.notebook import model_html

        names = {"name": f"{self.project}/{self.name}", "base model": str(getattr(self, "base_model", ""))}
        return model_html({key: text for key, text in names.items() if text}, self.files().history())

    # -- state

    def safe_model_dump(self) -> dict[str, Any]:
        """`model_dump` without the program's own config."""
        return {**self.model_dump(exclude={"config"}), "config": None}

    def logbook(self) -> ModelLog:
        """What this program has logged of the model."""
        return self._log

    def files(self) -> ModelFiles:
        """The model's files on this side."""
        return ModelFiles(Path(self.base_path) / self.project / "models" / self.name)

    def read_state(self) -> StateT | None:
        """The program's own state, kept beside the checkpoints; None when never written."""
        state: StateT | None = self.files().read_state()
        return state

    def overwrite_state(self, state: StateT) -> None:
        """Replace the state (atomically)."""
        self.files().write_state(dict(state))

    def merge_state(self, state: StateT) -> StateT:
        """Merge into the state, nested dicts key by key; returns the whole."""
        merged: Any = self.files().merge_state(state)
        result: StateT = merged
        return result

    def write_state(self, state: StateT) -> None:
        """Older name of `overwrite_state`."""
        self.overwrite_state(state)

    async def get_step(self) -> int:
        """The latest published step; 0 for a model that does not train."""
        return 0


class TrainableModel(Model[ConfigT, StateT], Generic[ConfigT, StateT]):
    """A lineage `project/name` of steps. `run_name` is another word for `name`; the fields: config.model.ModelConfig."""

    base_model: str
    training: str = "lora"
    quantization: str | None = None
    lora: LoraConfig = LoraConfig()
    initial_adapter: str | None = None
    history: str = "keep"
    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    trainable: bool = True

    _given_config: dict[str, Any] = PrivateAttr(default_factory=dict)

    def __init__(
        self,
        *,
        name: str | None = None,
        run_name: str | None = None,
        project: str,
        base_model: str,
        lora: LoraConfig | Mapping[str, Any] | None = None,
        _internal_config: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        settings = {"name": one_name(name, run_name), **internal_config(_internal_config), **fields}
        settings.update({} if lora is None else {"lora": lora})
        super().__init__(project=project, base_model=str(base_model), **settings)
        self._given_config = dict(_internal_config or {})

    @property
    def run_name(self) -> str:
        """The model's name."""
        return self.name

    def server_config(self) -> ModelConfig:
        """What the server fixes at registration."""
        return model_config(self.name, {field: getattr(self, field) for field in ModelConfig.model_fields})

    @property
    def _internal_config(self) -> Mapping[str, Any]:
        """openpipe-art's settings, as they were given. Assigning others applies them until registration."""
        return self._given_config

    @_internal_config.setter
    def _internal_config(self, config: Mapping[str, Any] | None) -> None:
        settings = internal_config(config)
        changed = any(getattr(self, name) != value for name, value in settings.items())
        if changed and self._registered:
            raise ConfigError(
                f"{self.name} is registered; its settings are fixed",
                hint="assign _internal_config before `await model.register(backend)`",
            )
        for name, value in settings.items():
            setattr(self, name, value)
        self._given_config = dict(config or {})

    @property
    def inference_model_name(self) -> str | None:
        """`get_inference_name()` once the model is on a backend."""
        if self._inference_model_name is None and self._backend is not None:
            return self.get_inference_name()
        return self._inference_model_name

    @inference_model_name.setter
    def inference_model_name(self, value: str | None) -> None:
        self._inference_model_name = value

    def get_inference_name(self, step: int | None = None) -> str:
        """`name@step`: pinned to a step, by default the one this program last saw published."""
        if step is None and self._backend is not None:
            self._ready_now()
            step = self._step
        return super().get_inference_name(step)

    async def get_step(self) -> int:
        """The latest published step, asked from the server."""
        return (await self.info()).step

    async def info(self) -> wire.ModelInfo:
        """The model as the server knows it: step, batch counter, base model, folder."""
        await self.ready()
        info = await self.backend().connection.api.model(self.project, self.name)
        self._step = info.step
        return info

    async def train(
        self,
        trajectory_groups: Iterable[TrajectoryGroup],
        config: TrainConfig | None = None,
        **options: Any,
    ) -> TrainResult:
        """Train on the groups and record the step: `backend.train` and `log` in one."""
        groups = as_groups(trajectory_groups, "train")
        result = await self.backend().train(self, groups, config=config, **options)
        # The groups are with the server since the train call; only their averages are sent again.
        return await self.log_result(groups, result)

    async def train_sft(
        self,
        trajectories: Iterable[Trajectory],
        config: TrainSFTConfig | None = None,
        _config: Mapping[str, Any] | None = None,
        verbose: bool = False,
    ) -> TrainResult:
        """Supervised fine-tuning on what the assistant says, recorded as one step: `backend.train_sft` and `log`."""
        train = self.backend().train_sft
        result = await train(self, trajectories, config=config, _config=_config, verbose=verbose)
        return await self.log_result([], result)

    async def delete_checkpoints(self, best_checkpoint_metric: str = "val/reward") -> list[int]:
        """Delete all checkpoints but the latest and the best by a metric; returns the deleted steps."""
        await self.ready()
        return await self.backend().delete_checkpoints(self, best_checkpoint_metric)
