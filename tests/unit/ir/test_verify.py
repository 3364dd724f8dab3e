"""The verifier proves what lowerings write: shapes taken apart, windows, halves, attention in tiles."""

import numpy as np
import pytest

from bringup.ir.interpret import run
from bringup.ir.parser import parse
from bringup.ir.simplify import simplify
from bringup.ir.verify import VerifyError, verify
from tests.loops.interpret_scalar import run_scalar

GOOD = {
    "reshape": """kernel reshape size n size a size b in x: float32[n, a, b] strides [a*b, b, 1]
        out y: float32[n*a*b] strides [1] grid p < n*a*b
        { store y[p] = x[(p // (a*b)), ((p // b) % a), (p % b)] }""",
    "flat store": """kernel flat size n size a size b in x: float32[n*a*b] strides [1]
        out y: float32[n, a, b] strides [a*b, b, 1] grid p < n*a*b
        { store y[(p // (a*b)), ((p // b) % a), (p % b)] = x[p] }""",
    "roll": """kernel roll size n size s in x: float32[n] strides [1] out y: float32[n] strides [1] grid i < n
        { store y[i] = x[((i + s) % n)] }""",
    "cat": """kernel cat size n size m in a: float32[n] strides [1] in b: float32[m] strides [1]
        out y: float32[n + m] strides [1]
        { loop i < n parallel { store y[i] = a[i] } loop j < m parallel { store y[n + j] = b[j] } }""",
    "upsample": """kernel upsample size n size m in x: float32[n, m] strides [m, 1]
        out y: float32[2*n, 2*m] strides [2*m, 1] grid i < 2*n, j < 2*m { store y[i, j] = x[(i // 2), (j // 2)] }""",
    "pool": """kernel pool size n in x: float32[2*n + 1] strides [1] out y: float32[n] strides [1] grid i < n
        { reduce (t) over k < 3 lanes 1 { init (float32(-inf)) value (x[2*i + k]) combine (a), (b) -> (max(a, b)) }
          store y[i] = t }""",
    "pixel shuffle": """kernel shuffle size c size h size r: 1.. in x: float32[c*r, h] strides [h, 1]
        out y: float32[c, h*r] strides [h*r, 1] grid q < c, i < h, k < r
        { store y[q, i*r + k] = x[q*r + k, i] }""",
    "flip": """kernel flip size n inout y: float32[n] strides [1] in x: float32[n] strides [1] grid i < n
        { store add y[n - 1 - i] = x[i] }""",
    "in place rows": """kernel rows size n size m inout x: float32[n, m] strides [m, 1] grid i < n
        { reduce (t) over j < m lanes 32 { init (float32(0.0)) value (x[i, j]) combine (a), (b) -> ((a + b)) }
          loop k < m parallel { store x[i, k] = (x[i, k] / t) } }""",
    "blocks with a tail": """kernel blocks size n in x: float32[n] strides [1] out y: float32[n] strides [1]
        grid b < ((n + 31) // 32), l < 32 { store y[32*b + l] = (x[32*b + l] if (index(32*b + l) < index(n)))
          if (index(32*b + l) < index(n)) }""",
    "attention": """kernel attention size t size s param scale: float32
        in q: float32[t, 16] strides [16, 1] in k: float32[s, 16] strides [16, 1] in v: float32[s, 16] strides [16, 1]
        out o: float32[t, 16] strides [16, 1] local acc: float32[16] grid i < t
        { loop z < 16 parallel { store acc[z] = float32(0.0) }
          loop j < s carry (peak, total) from (float32(-inf), float32(0.0)) {
            contract dot over d < 16 lanes 16 = q[i, d] by k[j, d]
            let score = (dot * scale)
            let new = max(peak, score)
            let keep = exp((peak - new))
            let weight = exp((score - new))
            loop e < 16 parallel { store acc[e] = fma(weight, v[j, e], (acc[e] * keep)) }
            next (new, fma(total, keep, weight)) }
          loop f < 16 parallel { store o[i, f] = (acc[f] / total) } }""",
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_proved(name):
    kernel = parse(GOOD[name])
    verify(kernel)
    verify(simplify(kernel))


def test_attention_without_a_score_matrix():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, 16)).astype(np.float32) for rows in (5, 9, 9))
    o, again = np.zeros_like(q), np.zeros_like(q)
    run(parse(GOOD["attention"]), {"q": q, "k": k, "v": v, "o": o}, None, {"scale": 0.25})
    run_scalar(parse(GOOD["attention"]), {"q": q, "k": k, "v": v, "o": again}, None, {"scale": 0.25})
    scores = np.exp(q.astype(np.float64) @ k.T.astype(np.float64) * 0.25)
    np.testing.assert_allclose(o, scores / scores.sum(1, keepdims=True) @ v, rtol=1e-5, atol=1e-6)
    assert np.array_equal(o, again)


def test_a_local_within_a_limit():
    kernel = parse(GOOD["attention"])
    verify(kernel, local_limit=64)
    with pytest.raises(VerifyError, match="Locals take 64 bytes, 63 are allowed"):
        verify(kernel, local_limit=63)


def test_guards_stay_visible_to_the_verifier():
    """A guard used twice is not given a name: a name would hide the comparison from the proof."""
    kernel = parse("""kernel twice size n param p: float32 in x: float32[n] strides [1] in w: float32[n] strides [1]
        out y: float32[n] strides [1] grid i < n
        { store y[i] = ((x[i + 1] if ((index(i + 1) < index(n)) & (p < p))) +
                        (w[i + 1] if ((index(i + 1) < index(n)) & (p < p)))) }""")
    verify(simplify(kernel))
