"""`art tail`: what happens on a server, as it happens."""

from __future__ import annotations

from typing import Annotated

import typer

from art.cli._complete import model_names
from art.cli._served import AsJson, Key, ReadPath, Url
from art.cli._units import span_option
from art.cli._views import Views, read, run_path
from art.types.wire_views import RunDetail

JSON_LINES = "art.cli._output:TailLine"


def command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="project/name; default: all of them.", metavar="MODEL", autocompletion=model_names
        ),
    ] = None,
    *,
    since: Annotated[
        float | None, span_option("Begin with what happened in the last 30s, 5m, ...", show_default=False)
    ] = None,
    url: Url = None,
    key: Key = None,
    path: ReadPath = None,
    as_json: AsJson = False,
) -> None:
    """Follow runs: a line for each rollout that ends and for each train call, with warnings. Ctrl-C ends it.

    A server that goes away is waited for, for ten minutes; what happened meanwhile is shown when it is back.

    Examples:

      art tail shop/agent --since 5m

      art tail --json --url http://gpu:7999 | jq -r .text
    """
    from art.cli._tail import Tail, show

    async def follow(views: Views) -> None:
        only = None if model is None else await views.run(model)
        if only is not None:
            await views.get(RunDetail, run_path(only))  # a run that there is not would be waited for
        await Tail(views, only, lambda line: show(line, as_json=as_json)).run(since or 0.0)

    read(follow, url, key, path)
