"""A folder of an older release is brought forward, and what it holds is read as it was meant."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from art.store.records import RewardChange
from art.store.schema import MIGRATIONS, migrate
from art.store.store import DATABASE, Store
from art.types.wire_keys import Quotas


def test_calls_recorded_before_they_were_told_apart_are_read_and_rewarded(tmp_path: Path) -> None:
    conn = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    migrate(conn, MIGRATIONS[:2])
    conn.execute(
        "INSERT INTO rollouts VALUES ('r', 'p', 'm', 0, 'train', 'training', 'finished', '', 0, 1.0, NULL, NULL,"
        " 0, 0, '{}', '{}', '{}', NULL, 1.0, 2.0)"
    )
    conn.execute(
        "INSERT INTO calls VALUES ('c', 'r', NULL, 0, 0, NULL, 'openai.chat', 'p/m@0', 'train', 0, '{}', '{}',"
        " 3, 0, 1.0, 1.5, 2.0, NULL, '{}')"
    )
    conn.execute("INSERT INTO choices VALUES ('c', 0, 'stop', 4, '[]', 'trained', '', 4, NULL, 1.0)")
    conn.close()

    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            row = await store.get_rollout("r")
            assert (row.reward, row.auxiliary, row.agent_rewards) == (1.0, "detect", {})
            (call,) = await store.calls_of("r")
            assert (call.auxiliary, call.auxiliary_asked, call.tool_count, call.opening_number) == (
                False,
                None,
                0,
                0,
            )
            assert (call.choices[0].trained_tokens, call.choices[0].trained_step) == (4, None)
            await store.set_reward(RewardChange(rollout_id="r", calls={"c": 0.5}, agents={"a": 2.0}))
            assert (await store.get_rollout("r")).agent_rewards == {"a": 2.0}
            (call,) = await store.calls_of("r")
            assert call.choices[0].reward == 0.5
        finally:
            await store.close()

    asyncio.run(main())


def test_keys_made_before_there_were_quotas_work_on(tmp_path: Path) -> None:
    """The schema before `key_usage`: a key, and the key of a rollout that it opened."""
    before = next(i for i, found in enumerate(MIGRATIONS) if any("key_usage" in text for text in found))
    conn = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    migrate(conn, MIGRATIONS[:before])
    conn.execute(
        "INSERT INTO rollouts (rollout_id, project, model, step, purpose, sampling, status, reason, implicit, member,"
        " run_seed, limits, metrics, metadata, key_id, created_at)"
        " VALUES ('r', 'p', 'm', 0, 'train', 'training', 'finished', '', 0, 0, 0, '{}', '{}', '{}', 'person', 1.0)"
    )
    kept = "(key_id, sha256, role, project, rollout_id, label, created_at, expires_at, revoked_at)"
    conn.execute(f"INSERT INTO keys {kept} VALUES ('person', 's1', 'train', 'p', NULL, 'ci', 1.0, NULL, 9.0)")
    conn.execute(f"INSERT INTO keys {kept} VALUES ('agent', 's2', 'infer', 'p', 'r', '', 2.0, 3.0, NULL)")
    conn.close()

    async def main() -> None:
        store = await Store.open(tmp_path)
        try:
            person, agent = await store.get_key("person"), await store.get_key("agent")
            assert person is not None
            assert agent is not None
            assert (person.label, person.revoked_at, person.quotas, person.opened_by) == (
                "ci",
                9.0,
                Quotas(),
                None,
            )
            assert (person.account, agent.account, agent.opened_by) == ("person", "agent", "person")
            await store.put_key(person.model_copy(update={"quotas": Quotas(tokens_per_day=5)}))
            await store.accounts.add_tokens("person", 7, 3)
            await store.accounts.add_tokens("person", 7, 4)
        finally:
            await store.close()
        store = await Store.open(tmp_path)
        try:
            (person,) = await store.list_keys()
            assert person.quotas.tokens_per_day == 5
            assert await store.accounts.tokens_of_all(7) == {"person": 7}
        finally:
            await store.close()

    asyncio.run(main())
