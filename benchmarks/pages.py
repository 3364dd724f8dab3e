"""Fills the numbers of README.md and docs/*.md from recorded runs: ``make docs``.

A number stands between comments, which Markdown does not show. A path leads into ``results/NAME.json``; behind ``|``
comes a format as f-strings have it. ``ops/…`` are the counts of docs/ops.md, which a test compares with the code:

    takes <!-- eager_kernels/tiny | .2f -->0.90<!-- . --> of the CPU's time

A table stands below its comment and above ``<!-- . -->``; columns are named behind ``|``, with a format if need be:

    <!-- table matrix | torch, passed, failed -->

``python benchmarks/pages.py --check`` only says what differs, and what was measured too long ago.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.recording import RESULTS, ROOT, recorded

OPS = ROOT / "docs" / "ops.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
END = "<!-- . -->"
INLINE = re.compile(r"<!-- ([a-z_0-9]+/[^|>]+?)(?: \| (\S+))? -->([^<\n]*)" + re.escape(END))
BEGIN = re.compile(r"<!-- (?:[a-z_0-9]+/|table )[^>]*-->")
TABLE = re.compile(r"<!-- table ([a-z_0-9]+(?:/[^|>]+?)?)(?: \| (.+?))? -->\n(.*?)" + re.escape(END), re.DOTALL)
#: What a run says about itself, beside its data.
HEADER = ("commit", "date", "machine", "torch", "python", "command")
#: A run is too old when so many changes have touched what it measures since (a merge is one), or after so many days.
MOST_COMMITS, MOST_DAYS = 150, 30
#: What a run measures, where that is less than the package.
MEASURES = {
    "earlier": (),  # of runs that were not kept
    "eager_library": ("bringup/csrc", "bringup/drivers/sim"),
    "op_db_library": ("bringup/csrc", "bringup/drivers/sim", "bringup/kit"),
    "eager": ("bringup/csrc", "bringup/drivers/sim", "bringup/lowering", "bringup/targets"),
    "eager_kernels": ("bringup/csrc", "bringup/drivers/sim", "bringup/lowering", "bringup/targets"),
    "random_kernels": ("bringup/ir", "bringup/targets"),
    "test_time": ("tests",),
}


#: Counts in docs/ops.md, by what its lines say.
COUNTED = {
    "lowered": r"^- (\d+) distinct ops have a lowering",
    "on the device": r"^- (\d+) overloads run on the device",
}


class NoSuchValue(LookupError):
    """A page asks for what no recorded run has."""


def value_of(path: str) -> Any:
    """Follows ``NAME/key/key`` into ``results/NAME.json``; an item of a list is named by its ``name``."""
    name, *keys = path.split("/")
    if name == "ops" and (found := re.search(COUNTED.get(keys[0], r"(?!)"), OPS.read_text(), re.MULTILINE)):
        return int(found[1])
    if not (RESULTS / f"{name}.json").is_file():
        raise NoSuchValue(f"there is no results/{name}.json")
    content = recorded(name)
    value = content if keys and keys[0] in HEADER else content["data"]
    for key in keys:
        if isinstance(value, list):
            value = {item["name"]: item for item in value}
        if not isinstance(value, dict) or key not in value:
            raise NoSuchValue(f"results/{name}.json has no {path.partition('/')[2]!r}")
        value = value[key]
    return value


def text_of(value: Any, how: str | None = None) -> str:
    """Writes a value: whole numbers with commas, others as ``how`` says."""
    if how:
        return format(value, how)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text_of, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def table_of(value: Any, columns: str | None) -> str:
    """Writes a table: ``{"columns": …, "rows": …}`` as it is, a list or dict of records by its columns."""
    if isinstance(value, dict) and set(value) == {"columns", "rows"}:
        return _table(value["columns"], [[text_of(cell) for cell in row] for row in value["rows"]])
    records = value
    if isinstance(value, dict):
        records = [{"name": name, **(row if isinstance(row, dict) else {"value": row})} for name, row in value.items()]
    if columns is None:
        chosen = [(key, key, None) for key in dict.fromkeys(key for record in records for key in record)]
    else:
        chosen = [_column(text) for text in columns.split(", ")]
    rows = [[text_of(record.get(key), how if key in record else None) for _, key, how in chosen] for record in records]
    return _table([title for title, _, _ in chosen], rows)


def _column(text: str) -> tuple[str, str, str | None]:
    """``title=key:format``; the title is the key's if there is none."""
    title, _, key = text.rpartition("=")
    key, _, how = key.partition(":")
    return title or key, key, how or None


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    ruled = ["|" + "|".join(line) + "|" if line is lines[1] else "| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(line.replace("|  |", "| |") for line in ruled) + "\n"


def filled(text: str) -> str:
    """Returns the page with every number and table as its recorded run has it."""

    def inline(found: re.Match[str]) -> str:
        return found[0].replace(f"-->{found[3]}<!--", f"-->{text_of(value_of(found[1]), found[2])}<!--")

    def table(found: re.Match[str]) -> str:
        return found[0][: found.start(3) - found.start()] + table_of(value_of(found[1]), found[2]) + END

    return INLINE.sub(inline, TABLE.sub(table, text))


def runs_of(text: str) -> set[str]:
    """Names the recorded runs that a page takes numbers from."""
    return {found[1].partition("/")[0] for kind in (INLINE, TABLE) for found in kind.finditer(text)}


def too_old(name: str, today: datetime | None = None) -> str | None:
    """Says why a recorded run is too old to be quoted; None if it is not."""
    run: Mapping[str, Any] = recorded(name)
    commit = run["commit"].removesuffix("+changes")
    days = ((today or datetime.now(timezone.utc)).date() - datetime.strptime(run["date"][:10], "%Y-%m-%d").date()).days
    again = f"results/{name}.json is too old: {{}} since. Again: {run['command']}"
    if days > MOST_DAYS:
        return again.format(f"{days} days")
    if not MEASURES.get(name, True):
        return None
    count = ["git", "rev-list", "--count", "--first-parent", f"{commit}..HEAD", "--", *MEASURES.get(name, ("bringup",))]
    done = subprocess.run(count, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and int(done.stdout) > MOST_COMMITS:  # an archive or a shallow clone does not know
        return again.format(f"{done.stdout.strip()} commits to what it measures")
    return None


def problems() -> Iterator[str]:
    """Says for every page what differs from its recorded runs, and which of those are too old."""
    for page in PAGES:
        text = page.read_text()
        where = page.relative_to(ROOT)
        try:
            if filled(text) != text:
                yield f"{where} differs from its recorded runs: run `make docs`"
        except NoSuchValue as error:
            yield f"{where}: {error}"
        if re.search(r"^ *<!-- (?!table )[a-z_0-9]+/", text, re.MULTILINE):
            yield f"{where}: a number begins its line, where Markdown takes its comment for HTML and the line with it"
        if not len(BEGIN.findall(text)) == text.count(END) == sum(len(kind.findall(text)) for kind in (INLINE, TABLE)):
            yield f"{where}: a comment that does not end, or ends twice"
    for name in sorted(set().union(*(runs_of(page.read_text()) for page in PAGES))):
        if (RESULTS / f"{name}.json").is_file() and (old := too_old(name)):
            yield old


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; say what differs")
    if parser.parse_args().check:
        found = list(problems())
        print("\n".join(found) or "README and docs are as recorded")
        return int(bool(found))
    for page in PAGES:
        text = page.read_text()
        new = filled(text)
        if new != text:
            page.write_text(new)
            print(f"written: {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
