"""README, docs/ and ARCHITECTURE state what the code does. `make readme` writes the generated tables again."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from megatron_monitor.cli import COMMANDS, command
from megatron_monitor.detectors import RULES
from megatron_monitor.detectors.base import RuleSettings
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.parsers.declared.schema import built_in
from megatron_monitor.parsers.declared.targets import UNITS
from megatron_monitor.parsers.events import ANSI, Failure
from megatron_monitor.run.attempts import OUTCOMES, STATES, Seen
from megatron_monitor.run.phases import RUN_STATES, Phase
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from tests.conftest import loaded

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def metrics_table() -> str:
    """The catalogue as Markdown."""
    rows = ["| metric | type | labels beside `run` | meaning |", "| --- | --- | --- | --- |"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or ""
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    for own in MONITOR_CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in own.labels) or ""
        rows.append(f"| `{own.name}` | {own.kind} | {labels} | {own.help} |")
    return "\n".join(rows)


def commands_table() -> str:
    """Every command with the first sentence of its help."""
    rows = ["| command | does |", "| --- | --- |"]
    helps = {name: command(name).help or "" for several in COMMANDS.values() for name in several}
    rows += [f"| `megatron-monitor {name}` | {text.split('.')[0].strip()} |" for name, text in helps.items()]
    return "\n".join(rows)


def dialects_table() -> str:
    """Every dialect that is data, with its first sample."""
    rows = ["| dialect | program | a line | source |", "| --- | --- | --- | --- |"]
    for dialect in (one for one in built_in() if one.source):
        line = ANSI.sub("", dialect.samples[0].line).strip()
        line = " / ".join(part.strip() for part in line.split("\n")).replace("|", "\\|")
        rows.append(f"| `{dialect.name}` | {dialect.about} | `{line[:300]}` | {dialect.source} |")
    return "\n".join(rows)


def targets_table() -> str:
    """What a name can stand for, and the units in which it may be printed."""
    rows = ["| ours | units |", "| --- | --- |"]
    by_units: dict[str, list[str]] = {}
    for name, units in UNITS.items():
        by_units.setdefault(", ".join(f"`{unit}`" for unit in units if unit), []).append(f"`{name}`")
    rows += [f"| {', '.join(sorted(names))} | {units} |" for units, names in sorted(by_units.items())]
    return "\n".join(rows)


def attempts_table() -> str:
    """What begins an attempt."""
    rows = [f"| seen | {' | '.join(STATES)} |", "| --- |" + " --- |" * len(STATES)]
    rows += [f"| {seen} | {' | '.join(OUTCOMES[state, seen] for state in STATES)} |" for seen in get_args(Seen)]
    return "\n".join(rows)


TABLES = {
    "metrics": (ROOT / "docs" / "metrics.md", metrics_table),
    "commands": (ROOT / "docs" / "commands.md", commands_table),
    "dialects": (ROOT / "docs" / "dialects.md", dialects_table),
    "targets": (ROOT / "docs" / "dialects.md", targets_table),
    "attempts": (ROOT / "ARCHITECTURE.md", attempts_table),
}


def with_table(name: str) -> tuple[Path, str]:
    """The file that holds the generated table, and its text with the table as it should be."""
    path, build = TABLES[name]
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    text = path.read_text()
    assert pattern.search(text), f"{path} has no place for the {name} table"
    return path, pattern.sub(lambda match: match[1] + build() + "\n" + match[2], text)


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    """`make readme` has been run."""
    path, text = with_table(name)
    assert path.read_text() == text


DOCS = {str(path.relative_to(ROOT / "docs")): path for path in sorted((ROOT / "docs").rglob("*.md"))}


def nav_of(section: list[dict[str, Any]]) -> list[str]:
    """The pages of the site in their order."""
    return [
        page
        for entry in section
        for named in entry.values()
        for page in (nav_of(named) if isinstance(named, list) else [named])
    ]


SITE = nav_of(loaded((ROOT / "mkdocs.yml").read_text())["nav"])


def headings(path: Path) -> list[str]:
    """The headings of a page."""
    return [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]


def anchor(heading: str) -> str:
    """The address of a heading within its page."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_citations_of_the_docs_exist() -> None:
    """Code names a page of docs/, often with a section in quotes: both exist."""
    folders = ("monitor", "parsers", "tests", "docs", "deploy")
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    for path in [*files, *ROOT.glob("*.md"), ROOT / "config.yaml"]:
        text = re.sub(r"\s+", " ", path.read_text())
        for name, section in re.findall(r'docs/([\w/-]+\.md)(?:, "([^"]+)")?', text):
            assert name in DOCS, (path, name)
            assert not section or section in headings(DOCS[name]), (path, name, section)


@pytest.mark.parametrize("name", SITE)
def test_links_point_at_what_exists(name: str) -> None:
    """Relative links, pictures and anchors of the site's pages, as strict as mkdocs is of them."""
    page = ROOT / name
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)  # a line of a log may look like one
    for target, place in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", text):
        linked = page.parent / target if target else page
        assert linked.is_file(), target
        assert not place or place in map(anchor, headings(linked)), (target, place)


def test_every_document_is_a_page_of_the_site() -> None:
    """Once each; what `make docs` copies holds them all."""
    wanted = [*DOCS.values(), *ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.md"), *(ROOT / "grafana").rglob("*.md")]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= set(SITE)
    assert len(SITE) == len(set(SITE))
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    copied = tuple(word for word in recipe.split() if (ROOT / word).exists())
    assert [name for name in SITE if not name.startswith(copied)] == []


def test_the_rule_of_the_document_works() -> None:
    """The example in detectors.md fires at 20 iterations with a learning rate of 0, not at 19 and not without one."""
    code = DOCS["development/detectors.md"].read_text().partition("```python\n")[2].partition("```")[0]
    own: dict[str, Any] = {}
    exec(compile(code, "detectors.md", "exec"), own)

    def status(rates: list[float | None]) -> str:
        state, rule, settings = RunState("train"), own["ZeroRate"](), RuleSettings()
        steps = [Step(iteration=at, at=at, counted=True, learning_rate=rate) for at, rate in enumerate(rates, 1)]
        rule.attempt = state.attempt.number
        changed = rule.on_steps(state, steps, settings)
        found = rule.evaluate(state, 100.0, settings)
        assert changed == (found.state == "firing")
        return str(found.state)

    assert status([1e-4, *[0.0] * 20]) == "firing"
    assert status([1e-4, *[0.0] * 19, 1e-4, 0.0]) == "clear"
    assert status([None] * 30) == "clear"


def test_the_interface_lists_every_name() -> None:
    """docs/interface.md has every kind of incident, failure, phase and state; docs/formulas.md every formula."""
    named = (*RULES, *get_args(Failure), *get_args(Phase), *RUN_STATES)
    for page, names in (("interface.md", named), ("formulas.md", tuple(FORMULAS))):
        assert [name for name in names if f"`{name}`" not in DOCS[page].read_text()] == []


def test_every_room_of_the_architecture_exists() -> None:
    """Each path that ARCHITECTURE.md names in code stands in the tree."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:monitor|parsers)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path


if __name__ == "__main__":
    for table in TABLES:
        target, text = with_table(table)
        target.write_text(text)
