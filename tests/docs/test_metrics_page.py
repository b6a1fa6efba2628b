"""docs/metrics.md lists what types/metrics knows. `python tests/docs/test_metrics_page.py` writes the list anew."""

from __future__ import annotations

from pathlib import Path

from art.types.metrics import METRICS, SECTIONS
from art.types.wire_views import MetricInfo

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
BEGIN, END = "<!-- made by tests/docs/test_metrics_page.py -->\n", "<!-- end -->\n"


def listed() -> list[MetricInfo]:
    """All but the sums over a run and the families that say nothing more than the ones before them."""
    return [metric for metric in METRICS if "/cum/" not in metric.name and metric.name.count("*/*") == 0]


def table() -> str:
    parts = []
    for section, title in SECTIONS.items():
        own = {"val": ("val", "*")}.get(section, (section,))
        rows = [metric for metric in listed() if metric.name.partition("/")[0] in own]
        if not rows:
            continue
        parts += [f"### {title}: `{section}/`\n", "| name | unit | meaning |", "|---|---|---|"]
        for metric in rows:
            name = metric.name.replace("*/", "val/", 1) if metric.name.startswith("*/") else metric.name
            meaning = f"{metric.meaning} *{band(metric)}*" if metric.warning else metric.meaning
            parts.append(f"| `{name}` | {'share' if metric.unit == '1' else metric.unit} | {meaning} |")
        parts.append("")
    return "\n".join(parts) + "\n"


def band(metric: MetricInfo) -> str:
    ends = [f"under {metric.warn_below:g}"] if metric.warn_below is not None else []
    ends += [f"over {metric.warn_above:g}"] if metric.warn_above is not None else []
    return f"{' or '.join(ends).capitalize()}: {metric.warning}"


def written(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


def test_the_page_lists_what_is_known() -> None:
    page = PAGE.read_text()
    assert BEGIN in page
    assert page == written(page), "python tests/docs/test_metrics_page.py writes it anew"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
