"""The import path that programs for openpipe-art use."""

from art.rollouts.pipeline import PipelineTrainer
from art.rollouts.pipeline_groups import make_group_rollout_fn
from art.rollouts.pipeline_retention import (
    CHECKPOINT_CREATED_AT_UNIX,
    CHECKPOINT_EVAL_COMPLETED,
    CHECKPOINT_SAVED,
    CheckpointInfo,
    CheckpointRetentionContext,
    CheckpointRetentionStrategy,
    keep_recent_and_top,
)
from art.rollouts.pipeline_status import StatusReporter

__all__ = [
    "CHECKPOINT_CREATED_AT_UNIX",
    "CHECKPOINT_EVAL_COMPLETED",
    "CHECKPOINT_SAVED",
    "CheckpointInfo",
    "CheckpointRetentionContext",
    "CheckpointRetentionStrategy",
    "PipelineTrainer",
    "StatusReporter",
    "keep_recent_and_top",
    "make_group_rollout_fn",
]
