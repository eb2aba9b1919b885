"""README, docs/ and ARCHITECTURE state what the code does. `make readme` writes the generated tables again."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import inspect

from megatron_monitor.cli import COMMANDS, command
from megatron_monitor.config import Config, load
from megatron_monitor.detectors import RULES
from megatron_monitor.detectors.base import RuleSettings, Severity
from megatron_monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.parsers.declared.schema import DEFAULTS, LineSpec, built_in
from megatron_monitor.parsers.declared.targets import UNITS
from megatron_monitor.parsers.events import ANSI, Failure
from megatron_monitor.run.attempts import OUTCOMES, STATES, Seen
from megatron_monitor.run.phases import RUN_STATES, Phase
from megatron_monitor.run.state import RunState
from megatron_monitor.run.steps.step import Step
from tests.conftest import loaded
from tests.deploy import chart_schema

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


def formats_table() -> str:
    """Every format that is data, with the beginning of its first sample."""
    rows = ["| format | program | line |", "| --- | --- | --- |"]
    for format_ in (built for built in built_in() if built.source):
        line = ANSI.sub("", format_.samples[0].line).strip()
        line = " / ".join(part.strip() for part in line.split("\n"))[:120].rstrip()
        rows.append(f"| `{format_.name}` | {format_.about} | `{line.replace('|', chr(92) + '|')}` |")
    return "\n".join(rows)


def targets_table() -> str:
    """What a printed name can mean, and its units."""
    rows = ["| our name | units |", "| --- | --- |"]
    by_units: dict[str, list[str]] = {}
    for name, units in UNITS.items():
        by_units.setdefault(", ".join(f"`{unit}`" for unit in units if unit), []).append(f"`{name}`")
    rows += [f"| {', '.join(sorted(names))} | {units} |" for units, names in sorted(by_units.items())]
    return "\n".join(rows)


def attempts_table() -> str:
    """What begins an attempt."""
    rows = [f"| seen | {' | '.join(STATES)} |", "| --- |" + " --- |" * len(STATES)]
    for seen in get_args(Seen):
        outcomes = [OUTCOMES[state, seen] for state in STATES]
        rows.append(f"| {' | '.join((seen, *outcomes))} |")
    return "\n".join(rows)


TABLES = {
    "metrics": (ROOT / "docs" / "metrics.md", metrics_table),
    "commands": (ROOT / "docs" / "interface.md", commands_table),
    "formats": (ROOT / "docs" / "formats.md", formats_table),
    "targets": (ROOT / "docs" / "formats.md", targets_table),
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
PAGES = [*DOCS.values(), *ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.md"), *(ROOT / "grafana").rglob("*.md")]


def nav_of(section: list[dict[str, Any]]) -> list[str]:
    """The pages of the site in their order."""
    return [
        page
        for entry in section
        for named in entry.values()
        for page in (nav_of(named) if isinstance(named, list) else [named])
    ]


RECIPE = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
COPIED = tuple(word for word in RECIPE.split() if (ROOT / word).exists())
"""Files and folders that `make docs` copies."""
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
    files = [
        path
        for folder in folders
        for kind in ("*.py", "*.md", "*.y*ml", "*.service")
        for path in (ROOT / folder).rglob(kind)
    ]
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
        assert str(linked.resolve().relative_to(ROOT)).startswith(COPIED), target
        assert not place or place in map(anchor, headings(linked)), (target, place)


def test_every_document_is_a_page_of_the_site() -> None:
    """Once each; what `make docs` copies holds them all."""
    assert {str(path.relative_to(ROOT)) for path in PAGES} <= set(SITE)
    assert len([name for name in DOCS if "/" not in name]) <= 16
    assert len(SITE) == len(set(SITE))
    assert [name for name in SITE if not name.startswith(COPIED)] == []


def test_the_rule_of_the_document_works() -> None:
    """The example of writing-a-rule.md fires after 20 iterations at rate 0, not after 19 and not without a rate."""
    code = DOCS["development/writing-a-rule.md"].read_text().partition("```python\n")[2].partition("```")[0]
    own: dict[str, Any] = {}
    exec(compile(code, "writing-a-rule.md", "exec"), own)

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
    """docs/interface.md has every kind of incident, failure, phase and state; docs/reports.md every formula."""
    named = (*RULES, *get_args(Failure), *get_args(Phase), *RUN_STATES)
    for page, names in (("interface.md", named), ("reports.md", tuple(FORMULAS))):
        assert [name for name in names if f"`{name}`" not in DOCS[page].read_text()] == []


def test_objects_named_in_the_architecture_exist() -> None:
    """A class that was renamed keeps no old name in a table."""
    objects = re.findall(r"^\| `([A-Z]\w+)`", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    code = "".join(path.read_text() for folder in ("monitor", "parsers") for path in (ROOT / folder).rglob("*.py"))
    assert objects
    assert [name for name in objects if f"class {name}" not in code] == []


def test_paths_named_in_documents_exist() -> None:
    """Documents name files and folders of the repository in code: all of them exist."""
    named = re.compile(r"`(?:[^`\n]*[ =])?((?:monitor|parsers|tests|deploy|grafana|benchmarks|locks)/[\w/.-]*)")
    missing = [(page.name, path) for page in PAGES for path in named.findall(page.read_text())]
    assert [(page, path) for page, path in missing if not (ROOT / path).exists()] == []


def config_keys(info: inspect.Type, prefix: str = "") -> Iterator[str]:
    """The dotted names of all configuration keys."""
    if isinstance(info, inspect.StructType):
        for field in info.fields:
            yield prefix + field.encode_name
            yield from config_keys(field.type, f"{prefix}{field.encode_name}.")


def test_names_in_the_glossary_exist() -> None:
    """Each name in code is a metric, label, key, incident, phase, state, cause, severity or command."""
    metrics = [*CATALOGUE, *MONITOR_CATALOGUE]
    known = {"run", *RULES, *get_args(Phase), *RUN_STATES, *get_args(Failure), *get_args(Severity)}
    known |= {metric.name for metric in metrics} | {label for metric in metrics for label in metric.labels}
    known |= {*config_keys(inspect.type_info(Config))} | {name for group in COMMANDS.values() for name in group}
    table = DOCS["glossary.md"].read_text().partition("| --- |")[2]
    assert [name for name in re.findall(r"`([^`]+)`", table) if name not in known] == []
    assert len(table.strip().splitlines()) <= 31


def test_every_key_of_a_format_is_documented() -> None:
    """docs/formats.md explains each key of a line and each meaning, and names no other key."""
    page = DOCS["formats.md"].read_text()
    missing = [name for name in (*LineSpec.__struct_fields__, *DEFAULTS) if f"`{name}`" not in page]
    rows = page.partition("| key of a line |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert (missing, named - set(LineSpec.__struct_fields__)) == ([], set())


def test_the_runbook_explains_every_incident() -> None:
    """A section for each kind of incident, which says more than its name."""
    sections = dict(re.findall(r"^### (.+)\n((?:(?!^#).*\n)*)", (ROOT / "deploy/runbook.md").read_text(), re.MULTILINE))
    assert [kind for kind in RULES if len(sections.get(kind.replace("_", " ").capitalize(), "")) < 200] == []


def test_the_readme_quotes_what_was_measured() -> None:
    """Each row of its table is a row of docs/development/measured.md."""
    rows = README.read_text().partition("## Measured\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) > 4
    assert set(rows) <= set(DOCS["development/measured.md"].read_text().splitlines())


def test_configurations_in_documents_are_accepted() -> None:
    """The README's example has at most 40 lines; every YAML block of a page is a valid configuration."""
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert sum(len(block.splitlines()) for page, block in blocks if page == README) <= 40
    for _, block in blocks:
        load(block)


def test_the_schema_of_the_chart_has_the_keys_of_the_configuration() -> None:
    """`make readme` writes it again after a change of values.yaml or of the configuration."""
    assert chart_schema.FILE.read_text() == chart_schema.schema()


def test_every_command_that_a_message_names_exists() -> None:
    """Advice, errors and documents that say `megatron-monitor NAME` name a command of the program."""
    known = {name for several in COMMANDS.values() for name in several}
    sources = [*(ROOT / "monitor").rglob("*.py"), *(ROOT / "monitor").glob("*.csv"), *PAGES, ROOT / "config.yaml"]
    texts = {path: re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sources if "site" not in path.parts}
    named = {
        (path.name, name)
        for path, text in texts.items()
        for name in re.findall(r"(?:`|: |run |with |by )megatron-monitor ([a-z][a-z-]+)\b(?=[ `\"])", text)
    }
    assert len(named) > 20
    assert {(path, name) for path, name in named if name not in known} == set()


if __name__ == "__main__":
    for table in TABLES:
        target, text = with_table(table)
        target.write_text(text)
    chart_schema.FILE.write_text(chart_schema.schema())
