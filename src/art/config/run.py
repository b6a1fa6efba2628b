"""What a `run.toml` says: the model, the agent, what it is given, how it is judged, and how long it trains.

[model]
project = "weather"
name = "agent"
base_model = "HuggingFaceTB/SmolLM2-135M-Instruct"

[run]
agent = "agent:run"
reward = "reward:score"
scenarios = "scenarios.jsonl"
steps = 20

[train]
learning_rate = 3e-4

`[train]`, `[server]`, `[engine]` and `[trainer]` are TrainConfig, ServerConfig, EngineConfig and TrainerConfig, as everywhere.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from art.config.budget import ModelPrice
from art.config.model import ModelConfig
from art.config.sft import TrainSFTConfig

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_SECRET = re.compile(r"(^|_)(api_?key|key|token|secret|password|passwd)$", re.IGNORECASE)


def _words(value: object) -> object:
    """A command line in one text, as a shell would cut it."""
    return tuple(shlex.split(value)) if isinstance(value, str) else value


def _import_path(value: str) -> str:
    if IMPORT_PATH.fullmatch(value) is None:
        raise ValueError("write it like module:name")
    return value


def _no_keys(value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The settings are kept with the run and shown."""
    for tracker, table in value.items():
        for name in table:
            if _SECRET.search(name):
                raise ValueError(
                    f"{tracker}.{name}: a key does not belong into the settings, which are kept with the run; "
                    "the tracker's own environment variable holds it"
                )
    return value


ImportPath = Annotated[str, AfterValidator(_import_path)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
TrackerTables = Annotated[dict[str, dict[str, Any]], AfterValidator(_no_keys)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSection(ModelConfig):
    """The model that is trained. It is registered when it does not exist yet."""

    project: str = ""
    """Its project; runs of one project are listed together."""
    name: str = ""
    """Its name in the project. The same name goes on where the last run stopped, another one is a fresh start."""
    base_model: str = ""
    """A folder (`./...` is relative to the file), or a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct."""


class RunSection(_Section):
    """The loop: who runs on what, how often, how many at once, and when it ends."""

    agent: ImportPath | None = None
    """`module:name` of a rollout function, an agent, or what makes one (docs/training.md). The file's folder is looked in first."""
    command: Words = ()
    """Instead of `agent`: a program in any language and its arguments, as a list or as one line (docs/rollouts.md)."""
    reward: ImportPath | None = None
    """`module:name` of `reward(result[, scenario])`. None: the agent returns its reward, or a trajectory that has one."""
    reward_command: str | None = None
    """For a `command`: the shell runs it with the transcript on stdin, and it prints the reward. None: the program prints it."""
    isolate: bool = False
    """Each rollout of the agent in a process of its own: for agents that cannot share one."""
    scenarios: str = ""
    """A file with one JSON value a line, or `module:name` of a list or of a function that gives one."""
    steps: int = Field(default=20, ge=1)
    """Batches to train in all, those of earlier runs of this model included."""
    groups_per_step: int = Field(default=4, ge=1)
    """Scenarios of one batch; each is a group of rollouts that are compared with one another."""
    rollouts_per_group: int = Field(default=8, ge=1)
    """Rollouts of each scenario. With fewer than 4 most groups of a hard task have equal rewards and teach nothing."""
    concurrency: int | None = Field(default=None, ge=1)
    """Rollouts at the same time. None: 64 in this process, which only waits for them; 8 where each is a process."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds for one run of a `command`. None: an hour, a bound against hanging for ever."""
    max_exceptions: float = Field(default=0.25, ge=0)
    """Exceptions of the agent that a batch puts up with: a share below 1, else a count. More of them end the run."""
    infra_retries: int = Field(default=3, ge=0)
    """Times that a rollout which ART failed is run anew. Such a failure is never a reward."""
    seed: int = Field(default=0, ge=0)
    """Of the scenarios' order and of all sampling. Together with `server.deterministic` a run repeats itself bit by bit."""
    loop: Literal["steps", "pipeline"] = "steps"
    """`steps`: all rollouts of a batch, then its training. `pipeline`: rollouts go on while a step trains (docs/pipeline.md)."""
    budget_usd: float | None = Field(default=None, gt=0)
    """US dollars after which the run ends behind the batch in hand: paid models whose price is known, and the machine where
    its price an hour is given. Earlier runs of the model count. None: no bound."""
    budget_tokens: int | None = Field(default=None, ge=1)
    """Tokens sampled by training rollouts after which it ends likewise. None: no bound."""
    budget_seconds: float | None = Field(default=None, gt=0)
    """Seconds of the run's steps after which it ends likewise; pauses between two runs do not count. None: no bound."""
    gpu_cost_per_hour_usd: float | None = Field(default=None, ge=0)
    """US dollars that an hour of the server's machine costs; each step has its share as `costs/gpu`. None: not counted."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """US dollars for a million tokens of paid models, a table each: `[run.prices."acme/judge"]` with `prompt` and
    `completion`. They win over those that ART knows (docs/metrics.md)."""
    trackers: tuple[str, ...] = ()
    """Trackers that get the run's figures, by name. Never asked for by what happens to be in the environment."""
    tracker: TrackerTables = Field(default_factory=dict)
    """Their settings, a table each: `[run.tracker.NAME]`. Without keys: those stay in the tracker's own variables."""
    url: str | None = None
    """A server that runs already; its key is in ART_API_KEY. None: one on this machine, started when none runs."""
    folder: Path = Path()
    """Where agent, reward and scenarios are looked for, and where a `command` runs. Relative to the file, whose own folder it is."""


class EvaluationSection(_Section):
    """Scenarios kept apart, on which nothing is trained."""

    scenarios: str = ""
    """As `run.scenarios`. Empty: no evaluation."""
    every: int | None = Field(default=None, ge=1)
    """Batches between two evaluations; published steps where `run.loop` is `pipeline`. None: before the first batch and at the end."""
    rollouts: int = Field(default=1, ge=1)
    """Runs of each scenario. More of them narrow the interval around the mean."""


class SftSection(TrainSFTConfig):
    """Demonstrations to train on before the first batch, once: one published step."""

    file: Path | None = None
    """One conversation a line, `{"messages": [...], "tools": [...]}` (docs/sft.md). None: no such training."""
    epochs: int = Field(default=1, ge=1)
    """Times that each demonstration is seen."""


class PipelineSection(_Section):
    """What `run.loop = "pipeline"` takes beside `[run]`."""

    workers: int = Field(default=16, ge=1)
    """Groups that run at the same time."""
    max_batch: int | None = Field(default=None, ge=1)
    """Groups of one train call at most, `run.groups_per_step` being the fewest. None: ten times as many."""
    max_steps_off_policy: int = Field(default=4, ge=0)
    """Published steps that a group may be older than the one it trains; older ones are discarded and counted."""
    queue: int | None = Field(default=None, ge=1)
    """Finished groups that may wait while a step trains. None: as many as the steps off policy allow."""
