"""The fallback table and the policies, with a stand-in for the C++ core."""

from __future__ import annotations

import io
import json

import pytest

from bringup.torch_device import ledger
from bringup.torch_device.ledger import Fallback, FallbackTable, capture_stack, policy_from_environment


class Core:
    """The ledger's part of bringup._C."""

    def __init__(self) -> None:
        self.policy = "allow"
        self.ops: dict[str, str] = {}

    def fallback_policy(self) -> str:
        return self.policy

    def set_fallback_policy(self, policy: str) -> None:
        self.policy = policy

    def op_policies(self) -> dict[str, str]:
        return dict(self.ops)

    def set_op_policy(self, op: str, policy: str | None) -> None:
        self.ops.pop(op, None)
        if policy is not None:
            self.ops[op] = policy

    def ledger(self) -> list[dict[str, object]]:
        return [
            {"op": "aten::sort", "calls": 2, "bytes": 4096, "ms": 1.5, "stack": "train.py:12 in step", "device": 0},
            {"op": "aten::cumsum", "calls": 1000, "bytes": 12, "ms": 20.25, "stack": None, "device": 1},
        ]

    def set_stack_capture(self, function: object) -> None:
        self.capture = function


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    monkeypatch.setattr(ledger, "_core", lambda: core)
    monkeypatch.setattr(ledger, "_waiting", None)
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
    assert (core.policy, core.ops) == ("warn", {"aten::sort": "error"})
    ledger.fallback_policy(ops={"aten::sort": None, "aten::mm": "allow"})
    assert (core.policy, core.ops) == ("warn", {"aten::mm": "allow"})


def test_a_block_restores_what_was_before(core: Core) -> None:
    ledger.fallback_policy("warn", ops={"aten::mm": "allow"})
    with ledger.fallback_policy("error", ops={"aten::sort": "allow"}):
        assert (core.policy, core.ops) == ("error", {"aten::mm": "allow", "aten::sort": "allow"})
    assert (core.policy, core.ops) == ("warn", {"aten::mm": "allow"})


def test_a_wrong_policy_changes_nothing(core: Core) -> None:
    with pytest.raises(ValueError, match="allow, warn, error, not 'never'"):
        ledger.fallback_policy("never")
    with pytest.raises(ValueError, match="aten::sort, not 'sort'"):
        ledger.fallback_policy("error", ops={"sort": "error"})
    with pytest.raises(ValueError, match="not 'never'"):
        ledger.fallback_policy("error", ops={"aten::sort": "never"})
    assert (core.policy, core.ops) == ("allow", {})


def test_a_policy_set_before_activation_waits(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_core", lambda: None)
    assert len(ledger.fallbacks()) == 0
    ledger.fallback_policy("error")
    monkeypatch.setattr(ledger, "_core", lambda: core)
    ledger.install(("allow", {}))
    assert core.policy == "error"
    assert core.capture is capture_stack


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
