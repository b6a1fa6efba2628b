"""An MCP server with two tools: the catalogue of a small library. Over stdio, as MCP clients start it."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

SHELVES = {
    "Emma": "A1",
    "Ulysses": "C4",
    "Middlemarch": "B2",
    "Dracula": "D3",
    "Persuasion": "A2",
    "Walden": "E1",
}
ON_LOAN = {"Ulysses", "Dracula", "Walden"}

server = MCPServer("library", log_level="WARNING")


@server.tool()
def find_book(title: str) -> str:
    """The shelf of a book of the library."""
    return SHELVES.get(title, f"the library has no book {title!r}")


@server.tool()
def is_on_loan(title: str) -> str:
    """Whether somebody has borrowed a book: `on loan` or `on its shelf`."""
    if title not in SHELVES:
        return f"the library has no book {title!r}"
    return "on loan" if title in ON_LOAN else "on its shelf"


if __name__ == "__main__":
    server.run()
