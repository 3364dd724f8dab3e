"""Statements that random programs are made of, as text with slots.

==========  ==================================================================================
``{a}``     any tensor; ``{b}``, ``{c}`` tensors that broadcast with it
``{f}``     a tensor of floats; ``{g}`` another that broadcasts with it
``{e}``     a tensor whose numbers involve no rounding so far; ``{h}`` another that broadcasts with it
``{i}``     a tensor of integers or bools; ``{j}`` another that broadcasts with it
``{m}``     a tensor of bools that broadcasts with the first
``{x}``     positions, int64, one-dimensional, 0 or 1
``{t}``     what a statement changes in place
``{n}``     a Python number; ``{q}`` one with few bits; ``{k}`` a small positive integer
``{s}``     a size, as an expression
``{d}``     a dimension of the first tensor
``{T}``     any dtype; ``{F}`` a dtype of floats
==========  ==================================================================================
"""

from __future__ import annotations

#: Without rounding where their operands have few bits: whether a result has none is measured, not assumed.
ARITHMETIC = """
    {a} + {b} | {a} - {b} | {a} * {b} | {a} + {n} | {n} + {a} | {a} - {n} | {n} - {a} | {a} * {n} | {n} * {a} | -{a}
    {a}.abs() | {a}.square() | {a}.add({b}, alpha={n}) | torch.sub({a}, {b}, alpha={k}) | torch.rsub({a}, {n})
    torch.maximum({a}, {b}) | torch.minimum({a}, {b}) | {a}.clamp({q}, 2) | {a}.clamp(max={q}) | {a}.clamp(min={q})
    {a}.relu() | F.hardtanh({f}) | F.leaky_relu({f}, 0.25) | F.threshold({f}, 0.5, {q}) | {a}.clone()
    torch.addcmul({f}, {f}, {g}, value={q}) | {a}.to({T}) + {b} | {a} * {s} | {a} + {s} | {s} - {a}
    torch.zeros_like({a}) + {b} | torch.full_like({a}, {k}) | {a} * torch.tensor({n})
    {a} + torch.tensor({q}, dtype={F}) | torch.arange({s}, device={a}.device) * {n}
    torch.ones({s}, dtype={T}, device={a}.device) | {a}.new_full(({s},), {k}) | {a}.positive() | {f}.nan_to_num()
    torch.clamp({f}, {g} - 1, {g} + 1) | {f}.fmax({g}) | {a} + True | torch.lerp({f}, {g}, 0.5) | {f}.fmin({g})
"""
#: Smooth functions: what the last bits of an operand do to the result is measured by the perturbed run.
SMOOTH = """
    {f}.tanh() | {f}.sigmoid() | {f}.sin() | {f}.cos() | {f}.erf() | {f}.exp() | {f}.expm1() | {f}.atan()
    {f}.abs().sqrt() | {f}.abs().log1p() | F.gelu({f}) | F.silu({f}) | F.softplus({f}) | F.elu({f}) | F.mish({f})
    {f}.rsqrt() | {f}.reciprocal() | {f}.clamp(min=0.25).log() | {f} / 1.5 | {a} / {n} | {n} / ({a} * {a} + 1)
    {a} / ({b} * {b} + 1) | {f} ** 2 | ({f} * {f} + 1) ** 0.5 | {k} ** {f} | torch.lerp({f}, {g}, 0.3)
    torch.hypot({f}, {g}) | torch.atan2({f}, {g} * {g} + 1) | torch.logaddexp({f}, {g}) | {a} / {s} | {a}.sin()
    {a}.sigmoid() | {a}.exp() | {f}.asinh() | F.hardswish({f}) | F.logsigmoid({f}) | F.gelu({f}, approximate='tanh')
    {a} * 0.1 | torch.addcdiv({f}, {g}, {g} * {g} + 1) | {f}.sinc() | {f}.log_softmax({d}) | F.tanhshrink({f})
    {f}.sinh() | {f}.cosh() | ({f} + (~{m}) * -1e9).softmax(-1) | F.l1_loss({f}, {g}.detach())
    F.mse_loss({f}, {g}, reduction='sum') | {f}.exp2() | F.smooth_l1_loss({f}, {g}) | F.softsign({f})
"""
#: Sums, products and extrema over dimensions.
REDUCTION = """
    {a}.sum({d}) | {a}.sum() | {a}.sum({d}, keepdim=True) | {f}.mean({d}) | {f}.mean() | {f}.mean({d}, keepdim=True)
    {a}.amax({d}) | {a}.amin({d}, keepdim=True) | {a}.max() | {a}.min() | {f}.var({d}, correction=0)
    {f}.std({d}, correction=0) | {f}.softmax({d}) | {f}.logsumexp({d}) | {a}.cumsum({d}) | {f}.norm(dim={d})
    F.normalize({f}, dim={d}) | {f}.norm() | F.layer_norm({f}, {f}.shape[-1:]) | F.rms_norm({f}, {f}.shape[-1:])
    {a}.sum({d}, dtype={F}) | {a}.prod({d}) | {f}.cumprod({d}) | {f}.logcumsumexp({d}) | {i}.sum(dtype=torch.int64)
    {a}.cumsum({d}, dtype={F}) | {f}.norm(1, {d}) | F.softmin({f}, {d}) | {a}.mean({d}, dtype={F})
    {f}.aminmax(dim={d})[1] | {a}.cummax({d})[0] | {a}.amax() | {f}.nansum({d}) | {a}.sum((0, -1))
    {f}.mean((0, 1), keepdim=True) | {f}.softmax({d}, dtype={F}) | F.group_norm({f}[None], 1)[0]
"""
#: Results that jump: operands without rounding only, so that no last bit decides. Logical ops end in contiguous(), as
#: PyTorch's meta kernels do not promise the strides that its CPU kernels give.
DECISION = """
    {e} > {h} | {e} <= {q} | {e} == {h} | {e} != {q} | {q} >= {e} | {e} < {h} | {e}.eq({h}) | ~({e} > {q})
    ({e} > {q}) * {n} | ({e} < {h}) + {n} | ({e} >= {q}) * {a} | ({e} > 0).sum({d}) | ({e} > 0).any({d})
    ({e} > 0).all() | {e}.floor() | {e}.ceil() | {e}.round() | {e}.trunc() | {e}.sign() | {e}.argmax({d})
    {e}.argmin({d}) | {e}.argmax() | {e}.to({T}) | {e} // {q} | {e} % {q} | {e}.fmod({q})
    torch.div({e}, {q}, rounding_mode='trunc') | {e} % ({h} * {h} + 1) | {e}.sort({d}, stable=True)[0]
    {e}.sort({d}, descending=True, stable=True)[1] | {e}.argsort({d}, stable=True) | {e}.topk(2, {d})[0]
    {e}.max({d})[0] | {e}.max({d})[1] | {e}.min({d})[1] | torch.isnan({e}) | {e}.isfinite()
    torch.where({e} > {q}, {a}, {b}) | torch.where({e} == {h}, {a}, {n}) | {a}.masked_fill({e} > {q}, {k})
    {e}.bool() | torch.logical_and({e}, {h}).contiguous() | {e}.logical_not() | {e}.count_nonzero({d}) | {e}.any()
    {e}.kthvalue(1, {d})[0] | {e} // ({h} * {h} + 1) | {e}.isinf() | {e}.to({T}) // {k} | {q} // ({e} * {e} + 1)
    torch.bucketize({e}, torch.tensor([-1.0, 0.5, 2.0], device={e}.device)) | {e}.cummin({d})[1] | {e} ^ ({h} > 0)
    torch.isclose({e}, {h}) | {e}.all({d}, keepdim=True) | torch.sign({e}) * {a} | ({e} > {q}) / {k}
    ({e} > {q}) - ({h} > {q}).to({T}) | ({e} > {q}) // {k} | {k} // ({h} * {h} + {k}) | ({e} != 0).cumsum({d})
"""
INTEGER = """
    {i} & {j} | {i}|{k} | {i} ^ {j} | ~{i} | {i} // {k} | {i} % {k} | {i} // ({j} * {j} + 1) | ({i} + 0) << 1
    ({i} + 0) >> {k} | {i} * {j} | {i} ** 2 | {i} + {n} | {i} * {n} | {i} / {k} | {i}.sum({d}) | {i}.cumsum({d})
    {i}.prod({d}) | {i}.float() | torch.gcd({i}, {j}) | {i}.bitwise_and({k}) | {i}.to({T}) | {i}.sign() | {i}.abs()
    {i} > {j} | {i} == {k} | {i}.bool() | {i}.logical_xor({j}).contiguous() | {i}.float().mean() | {i}.argmax({d})
    {i}.sort({d}, stable=True)[0] | -{i} | {i}.clamp({k}, 5) | torch.floor_divide({i}, {k})
    torch.remainder({i}, -{k}) | {i}.fmod({k}) | torch.div({i}, {k}, rounding_mode='floor') | {i}.square() | {i} - {j}
    {i} * {j} + {k} | {i}.amax({d}) | {i}.any({d}) | {i}.bitwise_or({j}) | {i}.max({d})[1] | {i} % {q}
    F.one_hot({x}, 3) | {i} // {q} | {i}.to(f32) * {i} | torch.pow({i}, {k}) | {i} ** 0.5 | {i}.cumprod({d})
    {n} * {i}
"""
VIEW = """
    {a}.t() | {a}.transpose(0, -1) | {a}.reshape(-1) | {a}.unsqueeze({d}) | {a}.squeeze() | {a}[1:] | {a}[..., ::2]
    {a}[0] | {a}[..., -1] | {a}.unsqueeze(0).expand(3, *{a}.shape) | {a}.flatten() | {a}.chunk(2, {d})[0]
    {a}.split(2, {d})[-1] | {a}.movedim(0, -1) | {a}.diagonal() | {a}.mT | {a}.narrow({d}, 0, 1) | {a}.view(-1, 1)
    {a}.unbind({d})[0] | {a}[None] | {a}[:, 1:] | {a}[:2] | {a}[..., None] | {a}.swapaxes(0, -1) | {a}.select({d}, 0)
    {a}.expand(2, *{a}.shape) | {a}[::2, 1:] | {a}.permute(*reversed(range({a}.dim()))) | {a}.contiguous()
    {a}.squeeze({d}) | {a}.unfold({d}, 2, 1) | {a}[-1:] | {a}.view({a}.shape) | {a}.expand_as({b})
    {a}.broadcast_to({b}.shape) | {a}.view_as({a}) | {a}.detach() | {a}.flatten(0, 1)
"""
PRODUCT = """
    {f} @ {f} | {f} @ {g}.mT | {f}.mT @ {g} | torch.addmm({g}.sum(), {f}, {g}.t()) | F.linear({f}, {g})
    torch.einsum('...i,...j->...ij', {f}, {g}) | torch.outer({a}.flatten()[:6], {b}.flatten()[:5]) | {f}.mT @ {f}
    {f}.unsqueeze(-2) @ {g}.unsqueeze(-1) | torch.einsum('ij,kj->ik', {f}, {g}) | {i} @ {j}.mT
    {f}.flatten() @ {f}.flatten() | torch.bmm({f}[None], {g}.mT[None])
    torch.baddbmm({f}[None, :1, :1], {f}[None], {g}.mT[None], beta={q}, alpha=0.5) | torch.mv({f}, {g}[0])
    {f} @ {f}.mT + {n} | F.linear({f}, {f}, {f}[:, 0]) | F.cosine_similarity({f}, {g}, dim=-1)
    F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None])
"""
JOIN = """
    torch.cat([{a}, {b}], {d}) | torch.stack([{a}, {a}], {d}) | torch.cat([{a}, {a}.to({T})]) | F.pad({a}, (1, 2))
    {a}.roll(1, {d}) | {a}.flip({d}) | {a}.repeat(2, *[1] * ({a}.dim() - 1)) | {a}.tril() | {a}.triu(1)
    torch.hstack([{a}, {b}]) | {a}.to({T}, copy=True) | torch.where({m}, {a}, {b}) | torch.where({m}, {a}, {n})
    torch.where({m}, {n}, {a}) | {a}.masked_fill({m}, {k}) | {m} * {n} | {a} * {m} | {m} + {a} | {m} + {n}
    {a} - {m}.to({T}) | torch.cat([{a}[:1], {a}]) | {f}.to({F}) | {a} + {i}.sum() | torch.stack([{a}, {b}])
    {a}.repeat_interleave(2, {d}) | F.pad({a}, (1, 0), value={k}) | {a}.tile(2) | {m} & ~{m} | {a}.diag()
    {a}.type_as({b}) | torch.where({m}, {q}, {k}) | torch.broadcast_tensors({a}, {b})[1] | {m}|{m} | {m}.to({T}) * {n}
    {m}.sum({d}) | F.avg_pool1d({f}[None], 2)[0] | F.max_pool1d({f}[None], 2)[0] | torch.block_diag({a}, {a})
    torch.vstack([{a}, {b}])
"""
INDEX = """
    {a}[{x}] | {a}.index_select({d}, {x}) | {a}[..., {x}] | {a}.index_add(0, {x}, {a}[{x}])
    {a}.index_put(({x},), {a}[0]) | F.embedding({x}, {f}) | {a}.index_fill(0, {x}, {k}) | torch.take({a}, {x})
    {a}.scatter_add(0, {x}, {a}[{x}]) | {a}.gather({d}, {a}.long() * 0) | {a}[{x}, 0]
    {a}.index_put(({x},), {a}[{x}], accumulate=True) | {a}[{x}][:, {x}]
    {a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64), {k}) | {a}[{x}[0]] | {a}[{x}] * {n}
    {a}.take_along_dim({x}, 0) | {a}.index_copy(0, {x}[:1], {a}[:1]) | {a}.scatter_reduce(0, {x}, {a}[{x}], 'amax')
"""
IN_PLACE = """
    {t}.add_({b}) | {t}.mul_({n}) | {t}[0].mul_({n}) | {t}[..., 0] = {n} | {t}.clamp_(-1, 1) | {t}[1:].add_({n})
    {t}.t().sub_({n}) | {t}.copy_({b}) | {t}.zero_() | {t}.relu_() | {t}.masked_fill_({m}, {k}) | {t}[{x}] = {n}
    {t}.fill_({n}) | {t}[0] = {b} | {t} += {n} | {t} *= {b} | {t}[..., ::2].add_({k}) | {t}[:, 1:] = {b} | {t}.neg_()
    {t}.sub_({b}, alpha={k}) | {t}[{x}] += {n} | {t}.transpose(0, -1)[0].fill_({k}) | {t}.view(-1)[:2].mul_({k})
    {t}.unsqueeze(0).add_({n}) | {t}.index_fill_(0, {x}, {k}) | {t}.diagonal().fill_({k})
    {t}.select({d}, 0).copy_({b}) | {t}.square_() | {t}.index_add_(0, {x}, {t}[{x}]) | {t}[-1] -= {n}
    {t}.mul_({b}).add_({n}) | {t}.tanh_() | {t}.div_({k}) | {t}.logical_not_() | {t}.squeeze_() | {t}.unsqueeze_({d})
    {t}.masked_scatter_({m} & False, {t}) | {t}.scatter_(0, {x}[:1], {k}) | {t}.cumsum_({d}) | {t}.exp_()
    {t}.abs_().sqrt_()
"""


def words(text: str) -> tuple[str, ...]:
    """Returns the statements of a list above."""
    return tuple(one.strip() for line in text.strip().splitlines() for one in line.split(" | "))


#: Kinds of statements by name, with how often each is taken.
KINDS: dict[str, tuple[tuple[str, ...], int]] = {
    "arithmetic": (words(ARITHMETIC), 6),
    "smooth": (words(SMOOTH), 4),
    "reduction": (words(REDUCTION), 4),
    "decision": (words(DECISION), 5),
    "integer": (words(INTEGER), 3),
    "view": (words(VIEW), 4),
    "product": (words(PRODUCT), 2),
    "join": (words(JOIN), 3),
    "index": (words(INDEX), 2),
    "in place": (words(IN_PLACE), 3),
}
