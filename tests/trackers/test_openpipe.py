"""OpenPipe's request log, read back as what it is: JSON lines of `input`, `output` and `tags`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

from report_kit import SECRET, tell


def test_a_line_for_each_call(tmp_path: Path) -> None:
    tell({"name": "openpipe", "content": True}, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "openpipe.jsonl").read_text().splitlines()]
    assert [sorted(line) for line in lines] == [["input", "output", "tags"]] * 4
    first, last = lines[0], lines[-1]
    assert first["input"]["model"] == "weather/agent-001"
    assert first["input"]["messages"] == [{"role": "user", "content": f"weather in Oslo? {SECRET}"}]
    assert first["output"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert first["output"]["usage"] == {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    assert [message["role"] for message in last["input"]["messages"]] == ["user", "assistant", "tool"]
    assert (last["tags"]["reward"], last["tags"]["step"], last["tags"]["rollout_id"]) == ("1.0", "1", "ro-1")
    assert all(isinstance(value, str) for line in lines for value in line["tags"].values())


def test_without_content_no_text_is_in_it_and_others_cannot_read_it(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "requests.jsonl"
    tell({"name": "openpipe", "file": str(file)}, tmp_path)
    tell({"name": "openpipe", "file": str(file)}, tmp_path)
    assert len(file.read_text().splitlines()) == 8, "a resumed run adds to it"
    assert SECRET not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
