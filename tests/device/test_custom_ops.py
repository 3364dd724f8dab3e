"""A new pointwise op is one line: eager, in-place, ``out=``, autograd by formula, all dtypes, CPU and device."""

from __future__ import annotations

import json
from typing import Any

import pytest

#: What a user writes.
DEFINITIONS = """
    import json, os, sys, warnings
    import bringup, torch
    from bringup import formulas as f
    from torch.testing import assert_close

    if os.environ.get("OPEN_FIRST"):
        torch.ones(1, device="sim").add(1)

    swish = bringup.pointwise(
        "mychip::swish(Tensor self, float beta=1.0) -> Tensor",
        lambda x, beta: x * f.sigmoid(beta * x),
        backward=lambda g, x, beta: g * f.sigmoid(beta * x) * (1.0 + beta * x * (1.0 - f.sigmoid(beta * x))),
    )
    blend = bringup.pointwise(
        "mychip::blend(Tensor self, Tensor other, Scalar weight, bool flip=False) -> Tensor",
        lambda x, y, w, flip: f.where(x < y, y, x + w * (y - x)) if not flip else y - w * x,
        backward=lambda g, x, y, w, flip: (f.where(x < y, 0.0, g * (1 - w)), f.where(x < y, g, g * w)) if not flip
            else (-w * g, g),
        to="same",
    )
    plain = bringup.pointwise("mychip::plain(Tensor self) -> Tensor", lambda x: f.maximum(x, -x) + 1, to="same")

    def swished(x, beta=1.0):
        return x * torch.sigmoid(beta * x)

    def blended(x, y, w):
        return torch.where(x < y, y, x + w * (y - x))
"""

PROGRAMS = {
    "values": """
        x = torch.randn(4, 7)
        for device in ("cpu", "sim"):
            assert_close(swish(x.to(device)).cpu(), swished(x))
            assert_close(swish(x.to(device), 2.5).cpu(), swished(x, 2.5))
            assert_close(torch.ops.mychip.swish(x.to(device), beta=0.5).cpu(), swished(x, 0.5))
            assert_close(blend(x.to(device), x.flip(0).to(device), 0.25).cpu(), blended(x, x.flip(0), 0.25))
            assert_close(blend(x.to(device), x.to(device), 2, True).cpu(), -x)
            assert_close(swish(x.to(device).t()[::2]).cpu(), swished(x.t()[::2]))
            assert swish(torch.empty(0, 3, device=device)).shape == (0, 3)
    """,
    "in_place_and_out": """
        x = torch.randn(4, 7)
        for device in ("cpu", "sim"):
            y = x.clone().to(device)
            version, address = y._version, y.data_ptr()
            assert torch.ops.mychip.swish_(y, 2.0) is y
            assert y._version > version and y.data_ptr() == address
            assert_close(y.cpu(), swished(x, 2.0))
            for shape, expected in (((4, 7), 0), ((0,), 0), ((3,), 1)):
                out = torch.empty(shape, device=device)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    assert torch.ops.mychip.swish(x.to(device), 2.0, out=out) is out
                assert sum("was resized" in str(w.message) for w in caught) == expected, caught
                assert_close(out.cpu(), swished(x, 2.0))
            double = torch.empty(4, 7, dtype=torch.float64, device=device)
            assert_close(torch.ops.mychip.swish(x.to(device), out=double).cpu(), swished(x).double())
    """,
    "autograd": """
        for device in ("cpu", "sim"):
            x, y = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((4, 7), (1, 7)))
            a, b = (t.detach().to(device).requires_grad_() for t in (x, y))
            (swished(x, 1.5).square().sum() + (blended(x, y, 0.25) ** 3).sum()).backward()
            (swish(a, 1.5).square().sum() + (blend(a, b, 0.25) ** 3).sum()).backward()
            assert_close(a.grad.cpu(), x.grad)
            assert_close(b.grad.cpu(), y.grad)
            c = x.detach().to(device).requires_grad_()
            d = c * 1
            torch.ops.mychip.swish_(d, 1.5)
            d.square().sum().backward()
            e = x.detach().requires_grad_()
            swished(e, 1.5).square().sum().backward()
            assert_close(c.grad.cpu(), e.grad)
            out = torch.empty(4, 7, device=device)
            for call in (lambda: torch.ops.mychip.swish(c, out=out), lambda: plain(c).sum().backward()):
                try:
                    call()
                except RuntimeError as error:
                    said = str(error)
                    assert "automatic differentiation" in said or "give bringup.pointwise a backward" in said
                else:
                    raise AssertionError("no error")
        assert torch.autograd.gradcheck(swish, (torch.randn(3, dtype=torch.float64, requires_grad=True), 0.7))
    """,
    "every_dtype": """
        for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8, torch.bool):
            x = (torch.randn(40) * 3).to(dtype)
            result = swish(x.to("sim"))
            assert result.dtype == (dtype if dtype.is_floating_point else torch.float32)
            assert_close(result.cpu(), swish(x))
            assert_close(result.cpu().double(), swished(x.double()), rtol=1e-2, atol=1e-2)
            if dtype != torch.bool:
                assert plain(x.to("sim")).dtype == dtype
                assert_close(plain(x.to("sim")).cpu(), plain(x))
        x = torch.randn(5)
        half = blend(x.half().to("sim"), x.flip(0).to("sim"), 0.5)
        assert half.dtype == torch.float32
        assert blend(x.half().to("sim"), torch.tensor(0.5).to("sim"), 0.5).dtype == torch.float16
        image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        assert swish(image.to("sim")).stride() == image.stride() == swish(image).stride()
    """,
    "errors": """
        def said(call):
            try:
                call()
            except Exception as error:
                return type(error), str(error)
            raise AssertionError("no error")
        for device in ("cpu", "sim"):
            x, whole = torch.randn(3, device=device), torch.arange(3, device=device)
            assert said(lambda: torch.ops.mychip.swish_(whole)) == said(lambda: whole.exp_())
            assert said(lambda: torch.ops.mychip.blend_(x, torch.randn(2, 3, device=device), 1.0)) == said(
                lambda: x.add_(torch.randn(2, 3, device=device)))
            assert said(lambda: torch.ops.mychip.swish(x, out=whole))[1] == said(lambda: torch.exp(x, out=whole))[1]
        for schema, words in (
            ("mychip::bad(int n) -> Tensor", "first argument"),
            ("mychip::bad(Tensor x) -> (Tensor, Tensor)", "one Tensor"),
            ("bad(Tensor x) -> Tensor", "mychip::name"),
            ("mychip::bad.two(Tensor x) -> Tensor", "overload"),
            ("mychip::bad(Tensor(a!) x) -> Tensor", "functional"),
        ):
            kind, text = said(lambda: bringup.pointwise(schema, lambda x: x))
            assert kind is ValueError and words in text, text
    """,
    "fits_together": """
        for sample in (torch.randn(3, requires_grad=True), torch.randn(2, 3)):
            torch.library.opcheck(swish.default, (sample, 2.0))
        x = torch.randn(4, 3).to("sim")
        assert_close(torch.vmap(lambda row: row.sum() * 1)(swish(x)).cpu(), swish(x).sum(1).cpu())
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode():
            assert swish(torch.empty(2, 5, device="sim")).shape == (2, 5)
    """,
}
MODES = {
    "kernels": {"BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error", "OPEN_FIRST": ""},
    "kernels, defined late": {"BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "error", "OPEN_FIRST": "1"},
    "library": {"BRINGUP_SIM": "mode=library", "BRINGUP_FALLBACK": "allow", "OPEN_FIRST": ""},
}


@pytest.fixture(scope="module", params=MODES)
def outcomes(request: pytest.FixtureRequest, run_python: Any) -> Any:
    code = f"""
import json, textwrap, traceback
space, results = {{}}, {{}}
exec(textwrap.dedent({DEFINITIONS!r}), space)
for name, program in {PROGRAMS!r}.items():
    try:
        exec(compile(textwrap.dedent(program), name, "exec"), dict(space))
        results[name] = None
    except BaseException:
        results[name] = traceback.format_exc()
print(json.dumps(results))
"""
    done = run_python(code, env={"BRINGUP_DRIVERS": "sim", **MODES[request.param]})
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, outcomes: Any) -> None:
    if outcomes[name] is not None:
        pytest.fail(outcomes[name], pytrace=False)


def test_the_package_stays_light(run_python: Any) -> None:
    run_python("import sys, bringup; assert 'bringup.ir' not in sys.modules and 'torch' not in sys.modules")
