"""The fallback table and the policies, with a stand-in for the C++ core."""

from __future__ import annotations

import io
import json

import pytest

from bringup.torch_device import ledger
from bringup.torch_device.ledger import Fallback, FallbackTable, capture_stack, policy_from_environment


class Core:
    """The ledger's part of bringup._C."""

    def ledger(self) -> list[tuple[str, int, int, int, float]]:
        return [("aten::sort", 0, 2, 4096, 1.5), ("aten::cumsum", 1, 1000, 12, 20.25)]

    def ledger_ask_again(self) -> None:
        pass

    def ask_about_fallbacks(self, function: object) -> None:
        self.asked = function


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    monkeypatch.setattr(ledger, "_core", lambda: core)
    monkeypatch.setattr(ledger, "_policies", None)
    monkeypatch.setattr(ledger, "_stacks", {("aten::sort", 0): "train.py:12 in step"})
    monkeypatch.setattr(ledger, "_warned", set())
    return core


# ---- the table ----
def test_the_table_shows_the_most_expensive_first(core: Core) -> None:
    table = ledger.fallbacks()
    assert [row.op for row in table] == ["aten::cumsum", "aten::sort"]
    lines = str(table).splitlines()
    assert lines[0].split() == ["op", "device", "calls", "bytes", "ms", "first", "called", "from"]
    assert lines[1].split()[0] == "aten::cumsum"
    assert lines[1].split()[2:] == ["1,000", "12", "20.250"]
    assert lines[2].endswith("train.py:12 in step")
    calls = lines[0].index("calls") + len("calls")
    assert [line[:calls].split()[-1] for line in lines[1:]] == ["1,000", "2"]  # right-aligned
    assert repr(table) == str(table)


def test_the_table_is_a_sequence_and_json() -> None:
    table = FallbackTable([Fallback("aten::sort", 2, 8, 0.5, "sim:0", "a\nb")])
    assert len(table) == 1
    assert table.calls == 2
    assert table[0] is table["aten::sort"]
    assert isinstance(table[:1], FallbackTable)
    assert json.loads(table.to_json())[0]["stack"] == "a\nb"
    with pytest.raises(KeyError, match="these did: aten::sort"):
        table["aten::mm"]
    assert str(FallbackTable([])) == "no op fell back to the CPU"


def test_rich_prints_it_too() -> None:
    console = pytest.importorskip("rich.console").Console(width=120, record=True, file=io.StringIO())
    console.print(FallbackTable([Fallback("aten::sort", 2, 8, 0.5, "sim:0", "train.py:1 in f")]))
    assert "aten::sort" in console.export_text()


# ---- policies ----
def test_a_policy_is_set_at_once(core: Core) -> None:
    ledger.fallback_policy("warn", ops={"aten::sort": "error"})
    assert ledger._current() == ("warn", {"aten::sort": "error"})
    ledger.fallback_policy(ops={"aten::sort": None, "aten::mm": "allow"})
    assert ledger._current() == ("warn", {"aten::mm": "allow"})


def test_a_block_restores_what_was_before(core: Core) -> None:
    ledger.fallback_policy("warn", ops={"aten::mm": "allow"})
    with ledger.fallback_policy("error", ops={"aten::sort": "allow"}):
        assert ledger._current() == ("error", {"aten::mm": "allow", "aten::sort": "allow"})
    assert ledger._current() == ("warn", {"aten::mm": "allow"})


def test_a_wrong_policy_changes_nothing(core: Core) -> None:
    with pytest.raises(ValueError, match="allow, warn, error, not 'never'"):
        ledger.fallback_policy("never")
    with pytest.raises(ValueError, match="aten::sort, not 'sort'"):
        ledger.fallback_policy("error", ops={"sort": "error"})
    with pytest.raises(ValueError, match="not 'never'"):
        ledger.fallback_policy("error", ops={"aten::sort": "never"})
    assert ledger._current() == ("allow", {})


def test_a_policy_set_before_activation_waits(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_core", lambda: None)
    assert len(ledger.fallbacks()) == 0
    ledger.fallback_policy("error")
    monkeypatch.setattr(ledger, "_core", lambda: core)
    ledger.install(("allow", {}))
    assert ledger._current() == ("error", {})
    assert core.asked is ledger.first_fallback


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("allow", {})),
        ("warn", ("warn", {})),
        ("warn, aten::sort=error ,aten::mm=allow", ("warn", {"aten::sort": "error", "aten::mm": "allow"})),
        ("aten::sort.stable=error", ("allow", {"aten::sort.stable": "error"})),
    ],
)
def test_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, expected: object) -> None:
    monkeypatch.setenv("BRINGUP_FALLBACK", text)
    assert policy_from_environment() == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no", "BRINGUP_FALLBACK is one of allow, warn, error, not 'no'"),
        ("sort=error", "such as aten::sort, not 'sort'"),
        ("aten::sort=never", "the policy of aten::sort is one of"),
    ],
)
def test_a_wrong_environment(monkeypatch: pytest.MonkeyPatch, text: str, reason: str) -> None:
    monkeypatch.setenv("BRINGUP_FALLBACK", text)
    with pytest.raises(ValueError, match=reason):
        policy_from_environment()


# ---- stacks ----
def test_the_stack_is_the_users_part() -> None:
    def train() -> str:
        return capture_stack()

    lines = train().splitlines()
    assert "test_ledger.py" in lines[0]
    assert lines[0].endswith("in train: return capture_stack()")
    assert "in test_the_stack_is_the_users_part" in lines[1]
    assert len(lines) <= 6


def test_the_stack_skips_torch() -> None:
    torch = pytest.importorskip("torch")
    seen = []
    torch.autograd.graph.save_on_cpu  # noqa: B018 - torch is imported completely
    module = torch.nn.ReLU()
    module.register_forward_pre_hook(lambda *_: seen.append(capture_stack()))
    module(torch.ones(1))
    assert not [line for line in seen[0].splitlines() if "torch/nn" in line]
    assert "module(torch.ones(1))" in seen[0]
