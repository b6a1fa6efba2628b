"""`art key` and `art audit` against a live server: what a person types, and what the keys may do afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import httpx2
import pytest
from chat_kit import Served

from art.cli._units import seconds_of
from art.cli._usage import WrongUsage
from art.cli.key import change_quotas, line
from art.errors import ConfigError
from art.types.wire_keys import KeyInfo


def art(served: Served, *arguments: str, exit_status: int = 0, typed: str = "") -> Any:
    """The command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "art.cli", *arguments, "--url", served.server.url],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "ART_API_KEY": served.server.admin_key},
        input=typed,
    )
    assert done.returncode == exit_status, done.stderr + done.stdout
    return done


def status(served: Served, key: str, method: str = "GET", path: str = "health") -> int:
    return served.raw(method, f"/api/v1/{path}", None, key=key).status_code


def test_a_key_from_its_making_to_its_end(served: Served) -> None:
    made = art(
        served, "key", "create", "--role", "infer", "--project", "tests", "--label", "ci", "--expires", "1h"
    )
    secret = made.stdout.strip()
    assert "not shown again" in made.stderr
    assert secret not in made.stderr
    assert status(served, secret) == 200
    assert status(served, secret, "GET", "keys") == 403

    listed = [line for line in art(served, "key", "list").stdout.splitlines() if line.endswith("ci")]
    assert len(listed) == 1
    key_id = listed[0].split()[0]
    assert secret not in listed[0]
    assert "infer" in listed[0]
    assert "works until" in listed[0]

    kept = json.loads(art(served, "key", "rotate", key_id, "--grace", "1h", "--json").stdout)
    assert kept["info"]["role"] == "infer"
    assert kept["info"]["project"] == "tests"
    assert status(served, kept["key"]) == 200
    assert status(served, secret) == 200  # for another hour
    replaced = art(served, "key", "rotate", kept["info"]["key_id"]).stdout.strip()
    assert status(served, kept["key"]) == 401
    assert status(served, replaced) == 200

    refused = art(served, "key", "revoke", key_id, typed="n\n", exit_status=1)
    assert "Revoke the key" in refused.stderr
    assert status(served, secret) == 200
    assert "revoked" in art(served, "key", "revoke", key_id, typed="y\n").stdout
    assert status(served, secret) == 401
    ended = art(served, "key", "rotate", key_id, exit_status=1)
    assert "has ended already" in ended.stderr


def test_the_way_back_in_stays(served: Served) -> None:
    for command in (("rotate",), ("revoke", "--yes")):
        answer = art(served, "key", command[0], "admin", *command[1:], exit_status=1)
        assert "the admin key cannot be" in answer.stderr
        assert "delete server/admin.key" in answer.stderr
    key = served.open()["api_key"].removeprefix("art_").partition("_")[0]
    assert "key of a rollout" in art(served, "key", "rotate", key, exit_status=1).stderr
    assert "no key nothing" in art(served, "key", "rotate", "nothing", exit_status=1).stderr


def test_changes_are_in_the_audit_log(served: Served) -> None:
    made = served.api("POST", "keys", {"role": "infer", "label": "audited"})
    served.api("DELETE", f"keys/{made['info']['key_id']}")
    found = json.loads(art(served, "audit", "--limit", "2", "--json").stdout)["entries"]
    assert [entry["action"] for entry in found] == ["DELETE /api/v1/keys/{key_id}", "POST /api/v1/keys"]
    assert found[0]["target"] == made["info"]["key_id"]
    assert found[0]["key_id"] == "admin"
    assert found[0]["detail"]["from"] == "127.0.0.1"
    assert made["key"] not in json.dumps(found)
    older = json.loads(art(served, "audit", "--before", str(found[1]["id"]), "--json").stdout)["entries"]
    assert all(entry["id"] < found[1]["id"] for entry in older)
    assert "DELETE /api/v1/keys/{key_id}" in art(served, "audit", "--limit", "1").stdout


def test_the_audit_log_is_for_who_sees_all_projects(served: Served) -> None:
    key = served.api("POST", "keys", {"role": "admin", "project": "tests"})["key"]
    assert status(served, key, "GET", "audit") == 403
    for wrong in ("limit=x", "limit=0", "before=-1", f"limit={'9' * 30}"):
        answer = httpx2.get(
            f"{served.server.url}/api/v1/audit?{wrong}",
            headers={"Authorization": f"Bearer {served.server.admin_key}"},
            timeout=30,
        )
        assert answer.status_code == 400, wrong


def test_spans_of_time() -> None:
    assert [seconds_of(text, "--expires") for text in ("90s", "30m", "12h", "30d")] == [
        90,
        1800,
        43200,
        2592000,
    ]
    for wrong in ("", "5", "1y", "-1h", "1,5h", "٣h"):
        with pytest.raises(ConfigError, match="--expires"):
            seconds_of(wrong, "--expires")


def test_quotas_are_shown_and_changed(served: Served) -> None:
    quotas = ("--calls-per-minute", "600", "--tokens-per-day", "2000000", "--max-concurrent", "8")
    made = art(
        served, "key", "create", "--role", "infer", "--project", "tests", "--label", "bounded", *quotas
    )
    assert "600 calls a minute  0 of 2,000,000 tokens today  8 at once  bounded" in made.stderr
    key_id = made.stdout.strip().removeprefix("art_").partition("_")[0]
    changed = art(served, "key", "quota", key_id, "--calls-per-minute", "none", "--max-concurrent", "4")
    assert "0 of 2,000,000 tokens today  4 at once  bounded" in changed.stdout
    (listed,) = [row for row in art(served, "key", "list").stdout.splitlines() if row.startswith(key_id)]
    assert listed == changed.stdout.strip()
    assert "calls a minute" not in listed
    refused = art(served, "key", "quota", key_id, "--max-concurrent", "many", exit_status=2)
    assert refused.stderr.startswith("error: --max-concurrent is")
    for wrong in ({"max_concurrent": "0"}, {"tokens_per_day": "9" * 30}, {}):
        with pytest.raises(WrongUsage):
            change_quotas(key_id, **wrong)


def test_a_label_moves_no_cursor() -> None:
    info = KeyInfo(key_id="k", role="infer", created_at=0.0, label="\x1b[2Jcleared\n")
    assert line(info, now=0.0).endswith(r"'\x1b[2Jcleared\n'")
