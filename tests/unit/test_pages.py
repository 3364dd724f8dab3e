"""Numbers of README and docs come from recorded runs: pages and files agree, and no file is too old."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from benchmarks import pages, recording


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with one run of this commit."""
    for module in (pages, recording):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    data = {
        "ratio": 0.8961,
        "cases": 5389,
        "rows": [{"name": "mm 512", "ratio": 1.0}],
        "table": {"columns": ["", "passed"], "rows": [["forward", 5389], ["backward", "3*"]]},
        "minors": {"2.12.1": {"passed": 4000, "failed": 0}, "2.15.0": {"passed": 4001, "failed": 2}},
    }
    recording.record("speed", data, command="python speed.py")
    return tmp_path


def test_pages_are_as_recorded() -> None:
    assert list(pages.problems()) == []


def test_the_readme_and_the_page_of_numbers_quote_runs() -> None:
    quoted = {page.name: pages.runs_of(page.read_text()) for page in pages.PAGES}
    assert quoted["README.md"] >= {"eager_kernels", "op_db_strict"}
    assert len(quoted["conformance.md"]) >= 10


@pytest.mark.parametrize("file", sorted(recording.RESULTS.glob("*.json")), ids=lambda file: file.name)
def test_every_run_says_where_it_comes_from(file: Path) -> None:
    run = json.loads(file.read_text())
    assert set(run) - {"transcribed"} == {*pages.HEADER, "data"}
    assert all(run[name] for name in run)
    datetime.strptime(run["date"], "%Y-%m-%d %H:%M UTC")


@pytest.mark.parametrize(
    ("comment", "shown"),
    [
        ("speed/ratio | .2f", "0.90"),
        ("speed/cases", "5,389"),
        ("speed/rows/mm 512/ratio", "1.0"),
        ("speed/command", "python speed.py"),
        ("speed/minors/2.15.0/failed", "2"),
    ],
)
@pytest.mark.usefixtures("results")
def test_a_number_is_filled_in(comment: str, shown: str) -> None:
    page = f"takes <!-- {comment} -->0.87<!-- . --> of it\n"
    assert pages.filled(page) == f"takes <!-- {comment} -->{shown}<!-- . --> of it\n"
    assert pages.filled(pages.filled(page)) == pages.filled(page)


def test_counts_of_the_code_come_from_the_page_that_is_written_from_it() -> None:
    assert pages.value_of("ops/lowered") > 350
    assert pages.value_of("ops/on the device") > 900
    with pytest.raises(pages.NoSuchValue):
        pages.value_of("ops/nosuch")


@pytest.mark.usefixtures("results")
def test_tables_are_filled_in() -> None:
    page = "<!-- table speed/table -->\n| old |\n<!-- . -->\n"
    assert pages.filled(page) == (
        "<!-- table speed/table -->\n| | passed |\n|---|---|\n| forward | 5,389 |\n| backward | 3* |\n<!-- . -->\n"
    )
    page = "<!-- table speed/minors | torch=name, passed -->\n<!-- . -->\n"
    assert pages.filled(page) == (
        "<!-- table speed/minors | torch=name, passed -->\n"
        "| torch | passed |\n|---|---|\n| 2.12.1 | 4,000 |\n| 2.15.0 | 4,001 |\n<!-- . -->\n"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x <!-- speed/ratio | .2f -->0.87<!-- . -->\n", "differs from its recorded runs"),
        ("x <!-- speed/nosuch -->1<!-- . -->\n", "results/speed.json has no 'nosuch'"),
        ("x <!-- nosuch/ratio -->1<!-- . -->\n", "there is no results/nosuch.json"),
        ("x\n<!-- speed/ratio | .2f -->0.90<!-- . -->\n", "a number begins its line"),
        ("x <!-- speed/ratio | .2f -->0.90\n", "does not end, or ends twice"),
        ("x 0.90<!-- . -->\n", "does not end, or ends twice"),
    ],
)
@pytest.mark.usefixtures("results")
def test_what_is_wrong_with_a_page(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr(pages, "PAGES", [tmp_path / "page.md"])
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert [said in line for line in pages.problems()] == [True]


@pytest.mark.usefixtures("results")
def test_an_old_run_is_named_with_its_command() -> None:
    now = datetime.now(timezone.utc)
    assert pages.too_old("speed", now) is None
    assert pages.too_old("speed", now + timedelta(days=pages.MOST_DAYS)) is None
    old = pages.too_old("speed", now + timedelta(days=pages.MOST_DAYS + 1))
    assert old == f"results/speed.json is too old: {pages.MOST_DAYS + 1} days since. Again: python speed.py"


def test_commits_to_what_is_measured_make_a_run_old(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = json.loads((results / "speed.json").read_text())
    if run["commit"] == "unknown":
        pytest.skip("not a git checkout")
    first = recording._git("rev-list", "--max-parents=0", "HEAD").split()[0]
    (results / "speed.json").write_text(json.dumps({**run, "commit": first}))
    monkeypatch.setattr(pages, "MOST_COMMITS", 0)
    old = pages.too_old("speed")
    assert old is None or "commits to what it measures since" in old
    if recording._git("rev-list", "--count", f"{first}..HEAD", "--", "bringup") not in ("", "0"):
        assert old is not None
