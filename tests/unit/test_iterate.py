"""Going through a data set: complete, reproducible, resumable, and without touching global randomness."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.errors import InvalidInput
from art.rollouts.fit import scenario_id, scenarios_of_batch
from art.utils import DatasetBatch, iterate_dataset

sizes = st.integers(0, 12)


@given(size=sizes, per_step=st.integers(1, 5), epochs=st.integers(0, 3), seed=st.integers(0, 3))
def test_every_epoch_holds_every_item_once(size: int, per_step: int, epochs: int, seed: int) -> None:
    batches = list(iterate_dataset(list(range(size)), per_step, epochs, use_tqdm=False, seed=seed))
    for epoch in range(epochs):
        items = [item for batch in batches if batch.epoch == epoch for item in batch.items]
        assert sorted(items) == list(range(size))
    assert [batch.step for batch in batches] == list(range(len(batches)))
    assert all(len(batch.items) <= per_step for batch in batches)


@given(size=st.integers(1, 12), per_step=st.integers(1, 5), start=st.integers(0, 12))
def test_resuming_gives_what_the_whole_run_would_have_given(size: int, per_step: int, start: int) -> None:
    data = list(range(size))
    whole = list(iterate_dataset(data, per_step, 3, use_tqdm=False))
    assert list(iterate_dataset(data, per_step, 3, initial_step=start, use_tqdm=False)) == whole[start:]


def test_epochs_differ_and_global_randomness_is_left_alone() -> None:
    random.seed(1)
    before = random.getstate()
    batches = list(art.iterate_dataset(list(range(50)), 50, 2, use_tqdm=False))
    assert random.getstate() == before
    random.seed(2)
    assert list(art.iterate_dataset(list(range(50)), 50, 2, use_tqdm=False)) == batches
    assert batches[0].items != batches[1].items
    assert batches[0].items != list(range(50))
    assert isinstance(batches[0], DatasetBatch)
    assert (batches[1].step, batches[1].epoch, batches[1].epoch_step) == (1, 1, 0)


def test_empty_steps_are_refused() -> None:
    with pytest.raises(InvalidInput, match="groups_per_step"):
        iterate_dataset([1], 0)


@given(size=st.integers(1, 7), per_step=st.integers(1, 5), seed=st.integers(0, 3))
def test_a_fit_sees_all_scenarios_equally_often(size: int, per_step: int, seed: int) -> None:
    data = list(range(size))
    seen = [item for batch in range(size * 2) for item in scenarios_of_batch(data, batch, per_step, seed)]
    assert sorted(seen) == sorted(data * 2 * per_step)
    assert sorted(seen[:size]) == data


def test_scenarios_are_known_by_their_id_or_their_content() -> None:
    assert scenario_id({"id": 7, "x": 1}) == "7"
    assert scenario_id({"x": 1, "y": 2}) == scenario_id({"y": 2, "x": 1}) != scenario_id({"x": 2, "y": 2})
    assert len(scenario_id("Find the capital of France")) == 16
