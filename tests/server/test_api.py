"""The control API against a live server: what is repeated changes nothing, what is wrong is told and does no harm."""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import httpx2
import pytest
from chat_kit import Served, says

MODEL = "tests/alpha"


def failed(response: httpx2.Response, status: int, code: str) -> dict[str, str]:
    """The error of an answer that must have failed this way."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    return dict(error)


def fresh() -> str:
    return f"api-{uuid.uuid4().hex[:12]}"


def query(served: Served, sql: str, *args: Any) -> list[Any]:
    with sqlite3.connect(f"file:{served.server.path}/server/art.db?mode=ro", uri=True) as conn:
        return conn.execute(sql, args).fetchall()


class TestModels:
    def test_registering_again_changes_nothing(self, served: Served) -> None:
        name = fresh()  # other files train `tests/alpha`
        first = served.register("tests", name)
        assert served.register("tests", name) == first
        assert (first["step"], first["batch"], first["inference_name"]) == (0, 0, f"tests/{name}")
        assert Path(first["model_dir"], "model.json").exists()
        served.register(fresh(), name)
        names = [model["name"] for model in served.api("GET", "models")["models"]]
        assert names.count(name) == 2  # one in each project
        assert served.api("GET", f"models/tests/{name}") == first

    def test_another_configuration_under_the_name_is_refused_by_field(self, served: Served) -> None:
        config = {"base_model": served.base_model, "lora": {"r": 4}}
        body = {"project": "tests", "name": "alpha", "config": config}
        error = failed(served.raw("POST", "/api/v1/models", body), 409, "conflict")
        assert "lora" in error["cause"]
        assert "base_model" not in error["cause"]

    def test_an_unknown_base_model_leaves_nothing_behind(self, served: Served) -> None:
        body = {"project": "tests", "name": "ghost", "config": {"base_model": "/no/such/folder"}}
        error = failed(served.raw("POST", "/api/v1/models", body), 404, "not_found")
        assert "/no/such/folder" in error["message"] + error["cause"]
        failed(served.raw("GET", "/api/v1/models/tests/ghost"), 404, "not_found")
        assert not (served.server.path / "tests" / "models" / "ghost").exists()

    def test_a_registration_that_fails_late_leaves_no_ghost(self, served: Served, tmp_path: Path) -> None:
        config = {"base_model": served.base_model, "initial_adapter": str(tmp_path)}
        body = {"project": "tests", "name": "ghost", "config": config}
        response = served.raw("POST", "/api/v1/models", body)
        assert response.status_code in (400, 404), response.text
        assert "ghost" not in [item["name"] for item in served.api("GET", "models")["models"]]
        assert served.register("tests", "ghost")["step"] == 0, "the name is free for a better attempt"

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"project": "../up", "name": "m", "config": {"base_model": "b"}}, "project"),
            ({"project": "p", "name": "", "config": {"base_model": "b"}}, "name"),
            ({"project": "p", "name": "m", "config": {"base_modle": "b"}}, "config.base_modle"),
            ({"project": "p", "name": "m", "config": {"base_model": "b"}, "extra": 1}, "extra"),
            ([], "body"),
        ],
    )
    def test_wrong_fields_are_named(self, served: Served, body: Any, field: str) -> None:
        error = failed(served.raw("POST", "/api/v1/models", body), 400, "invalid_input")
        assert field in error["cause"]

    def test_the_latest_checkpoint_is_not_deleted(self, served: Served) -> None:
        listed = served.api("GET", f"models/{MODEL}/checkpoints")["checkpoints"]
        assert [item["step"] for item in listed] == [0]
        path = f"/api/v1/models/{MODEL}/checkpoints"
        failed(served.raw("DELETE", path, {"steps": [0, 7]}), 409, "conflict")
        assert served.api("DELETE", f"models/{MODEL}/checkpoints", {"steps": [7]}) == {
            "deleted": [],
            "missing": [7],
        }
        assert Path(listed[0]["path"], "adapter_config.json").exists()


class TestRollouts:
    def test_opening_and_rewarding_again_changes_nothing(self, served: Served) -> None:
        rollout_id = fresh()
        opened = served.open(rollout_id=rollout_id, scenario_id="s", metadata={"a": 1})
        assert served.open(rollout_id=rollout_id)["rollout_id"] == rollout_id
        assert opened["model"] == f"{MODEL}@0"
        served.agent(opened).chat.completions.create(model=MODEL, messages=says("count"))  # type: ignore[arg-type]
        for _ in range(2):
            info = served.api("POST", f"rollouts/{rollout_id}/reward", {"reward": 0.25, "metrics": {"n": 2}})
            assert (info["reward"], info["metrics"], info["metadata"]) == (0.25, {"n": 2}, {"a": 1})
        for _ in range(2):
            info = served.api("POST", f"rollouts/{rollout_id}/finish", {})
            assert info["status"] == "finished"
        late = served.api("POST", f"rollouts/{rollout_id}/reward", {"reward": 0.5})
        assert (late["reward"], late["status"]) == (0.5, "finished")
        assert len(late["calls"]) == 1
        assert [message["role"] for message in late["messages"]] == ["user", "assistant"]
        assert late["messages"][1]["choice"]["art"]["call_id"] == late["calls"][0]["call_id"]
        assert query(served, "SELECT COUNT(*) FROM rollouts WHERE rollout_id = ?", rollout_id) == [(1,)]

    @pytest.mark.parametrize("reward", ["NaN", "Infinity", "-Infinity", "1e999", "null", '"high"', "[]"])
    def test_a_reward_that_is_no_number_is_refused_and_the_old_one_stays(
        self, served: Served, reward: str
    ) -> None:
        rollout_id = served.open()["rollout_id"]
        served.api("POST", f"rollouts/{rollout_id}/reward", {"reward": 1.0})
        headers = {"Authorization": f"Bearer {served.server.admin_key}"}
        response = httpx2.post(
            f"{served.server.url}/api/v1/rollouts/{rollout_id}/reward",
            content=f'{{"reward": {reward}}}',
            headers=headers,
            timeout=30,
        )
        failed(response, 400, "invalid_reward")
        assert served.rollout(rollout_id)["reward"] == 1.0

    def test_a_rollout_without_calls_says_so(self, served: Served) -> None:
        rollout_id = served.open()["rollout_id"]
        served.api("POST", f"rollouts/{rollout_id}/reward", {"reward": 1.0})
        info = served.api("POST", f"rollouts/{rollout_id}/finish", {})
        assert (info["status"], info["reward"]) == ("no_calls", 1.0)
        assert "never called the model" in info["reason"]

    def test_an_evaluated_rollouts_choices_are_never_trained(self, served: Served) -> None:
        opened = served.open(purpose="evaluate")
        served.agent(opened).chat.completions.create(model=MODEL, messages=says("count"))  # type: ignore[arg-type]
        info = served.api("POST", f"rollouts/{opened['rollout_id']}/finish", {"status": "evaluated"})
        assert info["status"] == "evaluated"
        assert [choice["fate"] for call in info["calls"] for choice in call["choices"]] == ["evaluation"]

    def test_a_failed_rollout_keeps_its_reason(self, served: Served) -> None:
        rollout_id = served.open()["rollout_id"]
        body = {"status": "agent_error", "reason": "ValueError: no"}
        served.api("POST", f"rollouts/{rollout_id}/finish", body)
        info = served.api("POST", f"rollouts/{rollout_id}/finish", {"status": "finished"})
        assert (info["status"], info["reason"], info["reward"]) == ("agent_error", "ValueError: no", None)

    def test_what_does_not_exist_is_told(self, served: Served) -> None:
        failed(served.raw("GET", "/api/v1/rollouts/nothing"), 404, "not_found")
        failed(served.raw("POST", "/api/v1/rollouts/nothing/reward", {"reward": 1}), 404, "not_found")
        error = failed(served.raw("POST", "/api/v1/rollouts", {"model": "tests/gamma"}), 404, "not_found")
        assert MODEL in error["hint"], "what exists is told"
        failed(
            served.raw("POST", "/api/v1/rollouts", {"model": MODEL, "rollout_id": "../x"}),
            400,
            "invalid_input",
        )


class TestHistory:
    def test_log_records_once_and_averages(self, served: Served) -> None:
        opened = served.open("tests/beta", purpose="evaluate")
        answer = served.agent(opened).chat.completions.create(model="tests/beta", messages=says("count"))  # type: ignore[arg-type]
        choice = answer.choices[0].model_dump(mode="json")
        groups = [
            {
                "trajectories": [
                    {
                        "messages_and_choices": [*says("count"), choice],
                        "reward": 1.0,
                        "metrics": {"won": True},
                    },
                    {"messages_and_choices": says("count"), "reward": 0.0, "metrics": {"won": False}},
                ],
                "exceptions": [
                    {"type": "ValueError", "message": "no"},
                    {"type": "ValueError", "message": "no"},
                ],
            }
        ]
        body = {
            "split": "val", "step": 0, "groups": groups, "recorded_at": "2026-01-01T00:00:00Z",
            "metrics": {"loss/train": 0.5, "seen": 3},
        }  # fmt: skip
        for _ in range(2):
            answer = served.api("POST", "models/tests/beta/log", body)
        (row,) = served.api("GET", "models/tests/beta/history")["rows"]
        assert answer == {"rollouts": 2, "row": row}
        assert row["val/reward"] == 0.5
        assert row["val/reward_std_dev"] == 0.5
        assert row["val/won"] == 0.5
        assert row["val/exception_rate"] == 0.5
        assert (row["loss/train"], row["val/seen"], row["step"]) == (0.5, 3, 0)
        folder = Path(served.api("GET", "models/tests/beta")["model_dir"])
        lines = (folder / "history.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [row]
        info = served.rollout(opened["rollout_id"])
        assert info["status"] == "evaluated"
        assert info["calls"][0]["choices"][0]["fate"] == "evaluation"


class TestEveryRoute:
    def test_the_description_covers_what_is_served(self, served: Served) -> None:
        described = served.api("GET", "openapi.json")
        assert described["openapi"] == "3.1.0"
        schemas = described["components"]["schemas"]
        references = set()

        def walk(node: Any) -> None:
            if isinstance(node, dict):
                if isinstance(node.get("$ref"), str):
                    references.add(node["$ref"].rpartition("/")[2])
                for item in node.values():
                    walk(item)
            elif isinstance(node, list):
                for item in node:
                    walk(item)

        walk(described)
        assert references <= set(schemas)
        assert {"RegisterModel", "ModelInfo", "JobInfo", "Error"} <= set(schemas)
        operations = [
            (path, method, operation)
            for path, methods in described["paths"].items()
            for method, operation in methods.items()
        ]
        assert len(operations) >= 18
        assert len({operation["operationId"] for _, _, operation in operations}) == len(operations)
        for _, _, operation in operations:
            assert operation["x-art-role"] in {"infer", "rollout", "train", "admin"}

    def test_unknown_paths_and_methods(self, served: Served) -> None:
        failed(served.raw("GET", "/api/v1/nothing"), 404, "not_found")
        failed(served.raw("DELETE", "/api/v1/health"), 405, "method_not_allowed")
        error = failed(served.raw("POST", "/v1/nothing", {}), 404, "not_found")
        assert error["type"] == "invalid_request_error", "inference routes answer in OpenAI's shape"

    @pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000])
    def test_what_is_no_json(self, served: Served, body: bytes) -> None:
        headers = {"Authorization": f"Bearer {served.server.admin_key}"}
        response = httpx2.post(
            f"{served.server.url}/api/v1/models", content=body, headers=headers, timeout=30
        )
        failed(response, 400, "invalid_input")

    def test_a_body_over_the_bound_is_refused(self, start_art_server: Any) -> None:
        server = start_art_server(environment={"ART_SERVER__MAX_BODY_BYTES": "2000"})
        headers = {"Authorization": f"Bearer {server.admin_key}"}

        def chunks() -> Any:
            yield b"{"
            yield b" " * 3000

        for content in (b"{" + b" " * 3000, chunks()):
            response = httpx2.post(
                f"{server.url}/api/v1/models", content=content, headers=headers, timeout=30
            )
            failed(response, 413, "body_too_large")
        server.stop()

    def test_a_foreign_host_name_is_refused(self, served: Served) -> None:
        """A web page can point its own name at 127.0.0.1; its Host header gives it away."""
        for host in (
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost:1@evil",
            "[::1]x",
        ):
            failed(served.raw("GET", "/api/v1/health", headers={"Host": host}), 403, "forbidden")
        for host in ("localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:9"):
            assert served.raw("GET", "/api/v1/health", headers={"Host": host}).status_code == 200

    def test_changes_are_audited_and_reads_are_not(self, served: Served) -> None:
        rollout_id = fresh()
        served.open(rollout_id=rollout_id)
        served.rollout(rollout_id)
        served.api("POST", f"rollouts/{rollout_id}/reward", {"reward": 1.0})
        served.raw("POST", f"/api/v1/rollouts/{rollout_id}/reward", {"reward": None})
        rows = query(
            served, "SELECT key_id, action FROM audit WHERE target LIKE ? ORDER BY id", f"%{rollout_id}%"
        )
        assert rows == [
            ("admin", "POST /api/v1/rollouts"),
            ("admin", "POST /api/v1/rollouts/{rollout_id}/reward"),
        ]
