"""Global state that PyTorch reads beside the arguments: known calls see a change of it as new ones do."""

from __future__ import annotations

import json
from typing import Any

import pytest

#: Name → (statements that change the state, statements that put it back).
STATES = {
    "default dtype float64": ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype(torch.float32)"),
    "default dtype bfloat16": ("torch.set_default_dtype(torch.bfloat16)", "torch.set_default_dtype(torch.float32)"),
    "deterministic": ("torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)"),
    "deterministic after warnings": (
        "torch.use_deterministic_algorithms(True, warn_only=True); warm(); torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "memory not filled": (
        "torch.use_deterministic_algorithms(True); warm(); torch.utils.deterministic.fill_uninitialized_memory = False",
        "torch.use_deterministic_algorithms(False); torch.utils.deterministic.fill_uninitialized_memory = True",
    ),
    "matmul precision": (
        "torch.set_float32_matmul_precision('medium')",
        "torch.set_float32_matmul_precision('highest')",
    ),
    "oneDNN off": ("torch.backends.mkldnn.enabled = False", "torch.backends.mkldnn.enabled = True"),
    "math attention only": (
        "torch.backends.cuda.enable_flash_sdp(False); torch.backends.cuda.enable_mem_efficient_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True); torch.backends.cuda.enable_mem_efficient_sdp(True)",
    ),
    "autocast": ("mode = torch.autocast('sim', torch.bfloat16); mode.__enter__()", "mode.__exit__(None, None, None)"),
    "inference mode": ("mode = torch.inference_mode(); mode.__enter__()", "mode.__exit__(None, None, None)"),
    "no gradients": ("mode = torch.no_grad(); mode.__enter__()", "mode.__exit__(None, None, None)"),
    "fallbacks refused": (
        "mode = bringup.fallback_policy('error'); mode.__enter__()",
        "mode.__exit__(None, None, None)",
    ),
    "subnormal numbers are 0": ("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)"),
    "one thread": ("torch.set_num_threads(1)", "torch.set_num_threads(2)"),
}

PROGRAM = """
    import json, sys, warnings
    import torch, bringup
    import torch.nn.functional as F
    from bringup import _C as core
    warnings.simplefilter("ignore")

    f = (torch.arange(1.0, 25.0).view(4, 6) / 7).to("sim")
    i = torch.arange(1, 25).view(4, 6).to("sim")
    b, h = i > 7, f.to(torch.bfloat16)
    picks, image = torch.tensor([3, 0, 0, 2], device="sim"), f.view(1, 2, 3, 4)
    # What promotes whole numbers to the default dtype,
    CALLS = {
        "div": lambda: i / 2, "true divide": lambda: i / i, "mul by a float": lambda: i * 0.5, "add": lambda: f + 1,
        "bool by a float": lambda: b * 0.5, "sqrt of ints": lambda: i.sqrt(), "exp of bools": lambda: b.exp(),
        "pow": lambda: i ** 0.5, "sigmoid": lambda: i.sigmoid(), "rsqrt": lambda: i.rsqrt(),
        "atan2": lambda: i.atan2(i), "reciprocal": lambda: i.reciprocal(), "logit": lambda: b.logit(),
        "hermite": lambda: torch.special.hermite_polynomial_h(i, 2), "xlogy": lambda: torch.xlogy(i, 2),
        "where": lambda: i.where(b, 0.5), "nan_to_num": lambda: i.nan_to_num(1.0), "clamp": lambda: i.clamp(0.5),
    }
    # what makes new tensors,
    CALLS |= {
        "arange": lambda: torch.arange(0.0, 5.0, device="sim"), "eye": lambda: torch.eye(3, device="sim"),
        "linspace": lambda: torch.linspace(0, 1, 5, device="sim"), "ones": lambda: torch.ones(3, device="sim"),
        "full": lambda: torch.full((2,), 1.5, device="sim"), "empty": lambda: torch.empty_like(f).shape,
        "resize": lambda: f.clone().resize_(30).shape,
    }
    # what has another order of sums where it must be repeatable, or refuses to run then,
    CALLS |= {
        "index_add": lambda: f.index_add(0, picks, f), "put": lambda: f.put(picks, f[0, :4], True),
        "scatter_add": lambda: f.scatter_add(0, picks.expand(6, 4).t(), f), "cumsum": lambda: f.cumsum(0),
        "index_put": lambda: f.index_put((picks,), f, accumulate=True), "histc": lambda: f.histc(4),
        "index_copy": lambda: f.index_copy(0, picks[:1], f[:1]), "median": lambda: f.median(1),
        "gather": lambda: f.gather(0, picks.expand(6, 4).t()), "kthvalue": lambda: f.kthvalue(2),
        "bincount": lambda: picks.bincount(f[:, 0].contiguous()),
        "upsample": lambda: F.interpolate(image, scale_factor=2),
        "pad": lambda: F.pad(image, (1, 1), "reflect"), "nll": lambda: F.nll_loss(f.log_softmax(1), picks),
        "max_pool": lambda: F.max_pool2d(image, 2),
    }
    # what multiplies matrices, and the usual rest.
    CALLS |= {
        "mm": lambda: f @ f.t(), "half mm": lambda: h @ h.t(), "addmm": lambda: torch.addmm(f[:, :4], f, f.t()),
        "bmm": lambda: image[0] @ image[0].mT, "linear": lambda: F.linear(f, f), "svd": lambda: torch.linalg.svdvals(f),
        "conv": lambda: F.conv2d(image, image.view(2, 1, 3, 4), groups=2, padding=1), "std": lambda: f.std(1),
        "attention": lambda: F.scaled_dot_product_attention(image, image, image), "softmax": lambda: f.softmax(1),
        "layer_norm": lambda: F.layer_norm(f, (6,)), "gelu": lambda: F.gelu(f), "topk": lambda: f.topk(2),
        "embedding": lambda: F.embedding(picks, f), "cross": lambda: F.cross_entropy(f, picks),
        "norm": lambda: f.norm(), "mean": lambda: f.mean(0), "prod": lambda: i.prod(), "sort": lambda: f.sort(1),
        "tiny": lambda: f * 1e-40,
        "bucketize": lambda: torch.bucketize(i, f[0]), "addcmul": lambda: torch.addcmul(f, f, f, value=2),
        "lerp": lambda: torch.lerp(f, f, 0.5), "tiny sum": lambda: (f * 1e-40).sum(),
    }

    def one(call):
        try:
            value = call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        parts = value if isinstance(value, (tuple, list)) else [value]
        return [[str(p.dtype), list(p.stride()), p.requires_grad, p.is_inference(), p.cpu().tolist()]
                if isinstance(p, torch.Tensor) else str(p) for p in parts]

    def warm():
        return {name: one(call) for name, call in CALLS.items()}

    def cold():
        core.kernel_cache_clear()

    found = {}
    for state, (change, back) in json.loads(sys.argv[1]).items():
        cold()
        before = warm()
        exec(change)
        after = warm()
        cold()
        fresh = warm()
        exec(back)
        found[state] = {
            "differ": {name: [after[name], fresh[name]] for name in CALLS if repr(after[name]) != repr(fresh[name])},
            "changed": sum(repr(after[name]) != repr(before[name]) for name in CALLS),
        }
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What differs, by state: one process, as each of them would compile the same kernels."""
    run_python = request.getfixturevalue("run_python")
    settings = {"BRINGUP_DRIVERS": "sim", "BRINGUP_SIM": "mode=kernels", "BRINGUP_FALLBACK": "allow"}
    result: dict[str, Any] = json.loads(run_python(PROGRAM, json.dumps(STATES), env=settings).stdout)
    return result


@pytest.mark.parametrize("state", STATES)
def test_a_change_is_seen_by_calls_that_are_known(found: dict[str, Any], state: str) -> None:
    assert not found[state]["differ"]


def test_the_calls_depend_on_states(found: dict[str, Any]) -> None:
    """Else the test above could not fail."""
    for state in ("default dtype float64", "deterministic", "autocast", "inference mode"):
        assert found[state]["changed"], state
