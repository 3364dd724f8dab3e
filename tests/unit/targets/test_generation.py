"""The hash that tells one kernel compiler from another."""

from __future__ import annotations

from pathlib import Path

from bringup.compile import kernel_cache as module


def test_every_source_of_the_compiler_counts(tmp_path: Path, monkeypatch) -> None:
    for name in ("ir/verify.py", "targets/c/render.py", "targets/c/math/base.c", "lowering/ops/sums.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    before = module.generation.__wrapped__()
    assert module.generation.__wrapped__() == before
    for name in ("ir/verify.py", "targets/c/render.py", "targets/c/math/base.c"):
        (tmp_path / name).write_text("two")
        after = module.generation.__wrapped__()
        assert after != before, name
        before = after
    (tmp_path / "lowering" / "sums.py").write_text("two")  # what it makes is the kernel, which is in the key itself
    (tmp_path / "ir" / "verify.pyc").write_text("two")
    assert module.generation.__wrapped__() == before


def test_this_compiler_has_one() -> None:
    assert module.generation() == module.generation()
    assert len(module.generation()) == 64
