"""docs/figures.md is what `benchmarks.figures` makes of the committed results, and the results are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.defaults import page as defaults_page
from benchmarks.harness import Claim, write_results


def test_the_page_is_made_of_the_committed_results() -> None:
    text = figures.page(figures.load_results())
    assert figures.PAGE.read_text() == text, "docs/figures.md is out of date; run: python -m benchmarks.figures"


@pytest.mark.parametrize("path", sorted(figures.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_result_has_its_command_machine_date_and_claims(path: Path) -> None:
    body = json.loads(path.read_text())
    assert body["command"].startswith("python -m benchmarks")
    assert body["machine"]["cores"] >= 1
    assert len(body["machine"]["date"]) >= 10
    assert not body["quick"]
    assert [Claim(**claim) for claim in body["claims"]] or body["tables"]


def test_every_benchmark_has_a_section() -> None:
    files = [*(figures.ROOT / "benchmarks").glob("*.py"), *(figures.ROOT / "benchmarks").glob("*/__init__.py")]
    runs = {path for path in files if re.search(r"^def run\(", path.read_text(), re.MULTILINE)}
    names = {path.parent.name if path.stem == "__init__" else path.stem for path in runs}
    assert {"epochs", "loaders", "faults"} <= names
    assert not names - {name for section in figures.SECTIONS for name in section.benchmarks}


def test_all_claims_are_shown_with_their_verdicts(tmp_path: Path) -> None:
    claims = [
        Claim.at_least("fast", 5.2, 5, note="cold"),
        Claim.at_most("close", 1.2, 1.05),
        Claim.not_measured("peer", "≥ 2×", "not installed"),
        Claim("only printed", 7, "printed", True),
    ]
    write_results(tmp_path / "epochs.json", claims, quick=False, command="python -m benchmarks epochs")
    text = figures.page(figures.load_results(tmp_path))
    assert "Of 3 bars 1 are met, 1 missed and 1 not measured." in text
    assert "| fast | 5.2× | ≥ 5× | met | cold |" in text
    assert "| close | 1.2× | ≤ 1.05× | **missed** |  |" in text
    assert "| peer | – | ≥ 2× | not measured | not installed |" in text
    assert "| only printed | 7 | – | no bar |  |" in text
    assert "`python -m benchmarks epochs`; " in text
    assert "numpy " in text


def test_tables_and_remarks_are_shown(tmp_path: Path) -> None:
    more = {"tables": [{"title": "Seconds", "columns": ["a", "b"], "rows": [["x|y", "1"]]}], "remarks": ["Warm."]}
    write_results(tmp_path / "factor.json", [], quick=True, command="python -m benchmarks factor", **more)
    text = figures.page(figures.load_results(tmp_path))
    assert "Seconds:\n\n| a | b |\n| --- | --- |\n| x\\|y | 1 |\n\nWarm.\n" in text
    assert "figures are only indicative" in text


def test_a_result_without_a_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nonsense.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no section of the page has nonsense; add them to SECTIONS"):
        figures.load_results(tmp_path)


def test_the_page_of_defaults_has_the_committed_results():
    text = defaults_page.PAGE.read_text()
    for mark, folder in defaults_page.PARTS.items():
        assert f"<!-- {mark} -->\n{defaults_page.figures(folder)}\n<!-- end of {mark} -->" in text
