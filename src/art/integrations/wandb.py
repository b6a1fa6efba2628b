"""Weights & Biases: one W&B run for a model's history, its x-axis the training step."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.config.outside import host_of, is_loopback
from art.config.trackers import WandbOptions
from art.errors import ConfigError
from art.integrations.tracker import About, PublishedStep, Row, RunInfo

if TYPE_CHECKING:
    from art.integrations.seen import RolloutBatch

CLOUD = "https://api.wandb.ai"
X_AXIS = "training_step"
"""As programs for openpipe-art find it; W&B's own counter could only grow, and evaluations come late."""


class WandbTracker:
    """Sends figures and, when asked, adapters. Neither printed text nor code nor this machine's doings go with them."""

    def __init__(self, options: WandbOptions) -> None:
        self._options = options
        self._sections: set[str] = set()
        self._run: RunInfo | None = None
        self.run: Any = None
        """The `wandb.Run`; None until it has begun."""

    @property
    def _mode(self) -> str:
        return self._options.mode or os.environ.get("WANDB_MODE") or "online"

    @property
    def _offline(self) -> bool:
        return self._mode in ("offline", "dryrun", "disabled")

    @property
    def _address(self) -> str:
        return self._options.base_url or os.environ.get("WANDB_BASE_URL") or CLOUD

    @property
    def about(self) -> About:
        """W&B's server, or the folder of an offline run."""
        place = "its offline files" if self._offline else host_of(self._address)
        away = not self._offline and not is_loopback(place)
        return About(
            name="wandb",
            place=place,
            leaves=away,
            lacks=self._lacks,
            checkpoints=self._options.checkpoints,
        )

    @property
    def _lacks(self) -> ConfigError | None:
        if self._offline or _has_key(self._address):
            return None
        return ConfigError(
            "W&B has no key",
            cause="neither WANDB_API_KEY is set nor was `wandb login` run",
            hint='set WANDB_API_KEY, or mode="offline" for files alone',
        )

    def start(self, run: RunInfo) -> None:
        """Begin the W&B run, or go on with it: its id is the model's name. ConfigError without a key."""
        os.environ.setdefault(
            "WANDB_ERROR_REPORTING", "false"
        )  # W&B reports its own errors to its makers otherwise
        import wandb

        self._run = run
        if (lacking := self._lacks) is not None:
            raise lacking
        options = self._options
        run.folder.mkdir(parents=True, exist_ok=True)
        folder = options.dir or (None if os.environ.get("WANDB_DIR") else run.folder)
        settings = wandb.Settings(
            base_url=self._address,
            console="off",  # what the program prints may be what was said
            save_code=False,
            disable_git=True,
            x_disable_meta=not options.system,
            x_disable_stats=not options.system,
            silent=True,
        )
        self.run = wandb.init(
            project=options.project or run.project,
            entity=options.entity or run.entity,
            name=run.name,
            id=run.run_id,
            resume="allow",
            reinit="create_new",  # a run that the program has of its own goes on
            mode=self._mode,
            dir=None if folder is None else str(folder),
            tags=list(options.tags) or None,
            config=dict(run.config),
            settings=settings,
        )
        self.run.define_metric(X_AXIS)

    def log(self, row: Row) -> None:
        """One W&B row; each new section of names gets the training step as its axis."""
        for section in {name.partition("/")[0] for name in row.metrics} - self._sections:
            self._sections.add(section)
            self.run.define_metric(f"{section}/*", step_metric=X_AXIS)
        self.run.log({**row.metrics, X_AXIS: row.step})

    def rollouts(self, batch: RolloutBatch) -> None:
        """Never called: texts belong into Weave."""
        raise AssertionError("W&B is given no rollouts")

    def artifact(self, checkpoint: PublishedStep) -> None:
        """The adapter as an artifact of type `lora`, with the aliases `step<N>` and `latest`."""
        import wandb

        assert self._run is not None, "artifacts follow a start"
        artifact = wandb.Artifact(self._run.name, type="lora", metadata={"step": checkpoint.step})
        for file in ("adapter_config.json", "adapter_model.safetensors", "manifest.json"):
            if (checkpoint.path / file).exists():
                artifact.add_file(str(checkpoint.path / file), name=file)
        self.run.log_artifact(artifact, aliases=[f"step{checkpoint.step}", "latest"])

    def update_config(self, config: Mapping[str, Any]) -> None:
        """More values for the run's configuration."""
        self.run.config.update(dict(config), allow_val_change=True)

    def close(self, seconds: float) -> None:
        """Send what is left. W&B knows no deadline; whoever called gives up on this thread when it is over."""
        self.run.finish()


def _has_key(address: str) -> bool:
    """Whether W&B would find one by itself. It asks on the terminal otherwise, and waits."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = os.environ.get("NETRC") or Path("~/.netrc").expanduser()
    try:
        return netrc.netrc(str(file)).authenticators(host_of(address).partition(":")[0]) is not None
    except (OSError, netrc.NetrcParseError):
        return False
