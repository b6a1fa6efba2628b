"""`python run_program.py PROGRAM BASE_MODEL ART_PATH RESULT`: run a program's main as its user would.

What main returns goes to the file RESULT, as JSON. An error of the program ends this process, with its traceback.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path
from typing import Any


def run(program: str, base_model: str, art_path: str) -> dict[str, Any]:
    """The dict that the program's main returned."""
    main = runpy.run_path(program, run_name="program")["main"]
    return dict(asyncio.run(main(base_model, art_path)))


if __name__ == "__main__":
    program, base_model, art_path, file = sys.argv[1:]
    Path(file).write_text(json.dumps(run(program, base_model, art_path)))
