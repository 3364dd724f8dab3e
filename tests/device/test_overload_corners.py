"""Corners of single overloads, each called directly: what crashed, raised an internal error or differed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bringup.kit import op_table
from tests.conftest import RunPython
from tests.overloads.calls import overload_named

aten = torch.ops.aten


def test_a_compressed_tensor_without_indices_is_empty(device: str, run_python: RunPython) -> None:
    """ATen leaves the indices as the allocator gives them; what an earlier tensor left there ended the process."""
    run_python(f"""
        import torch
        used = [torch.full((n,), 1 << 43, dtype=torch.int64, device="{device}") for n in range(1, 64)]
        del used
        for layout, blocks in ((torch.sparse_csr, []), (torch.sparse_csc, []), (torch.sparse_bsr, [2, 2])):
            made = torch.ops.aten._sparse_compressed_tensor_with_dims(
                2, 0, [4, 4], blocks, torch.int64, dtype=torch.float32, layout=layout, device="{device}")
            assert made.to_dense().shape == (4, 4)
    """)


def test_two_compressed_tensors_in_one_call_keep_their_own_members(device: str, run_python: RunPython) -> None:
    """The CPU's kernel got one's values as the other's indices: MKL said ALLOC_FAILED, or the process ended."""
    run_python(f"""
        import torch

        torch.manual_seed(0)
        # Whole numbers, so that products are equal whatever the order of their sums.
        for layout in (torch.sparse_csr, torch.sparse_csc):
            one, other = ((torch.rand(12, 12) < 0.3) * torch.arange(1.0, 13.0) for _ in range(2))
            a, b = (x.to_sparse(layout=layout) for x in (one, other))
            for left, right, wanted in ((a, b, one @ other), (a, a, one @ one)):
                found = left.to("{device}") @ right.to("{device}")
                assert found.layout == (left @ right).layout
                assert torch.equal(found.to_dense().cpu(), wanted)
            both = a.to("{device}")
            both = both + both  # with one tensor twice ATen can add CSC, with two it cannot
            assert torch.equal(both.to_dense().cpu(), one + one)
    """)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_histc_counts_integers_as_cuda_does(device: str, dtype: torch.dtype) -> None:
    """The CPU has none: routers of mixtures of experts call it on every device that is not the CPU."""
    x = torch.randint(0, 12, (300,), dtype=dtype)
    for bins, low, high in ((10, 0, 0), (8, 0, 7), (4, 2, 9), (5, 0, 4), (3, 3, 3)):
        counts = torch.histc(x.to(device), bins=bins, min=low, max=high)
        first, last = (int(x.min()), int(x.max())) if low == high else (low, high)
        inside = x[(x >= first) & (x <= last)].long()
        place = ((inside - first) * bins // (last - first)).clamp(max=bins - 1)
        assert counts.dtype == dtype
        assert torch.equal(counts.cpu().long(), torch.bincount(place, minlength=bins))
    assert torch.histc(torch.full((4,), 5, dtype=dtype, device=device), bins=3).tolist() == [0, 4, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_histc_counts_past_what_the_half_type_counts_to(device: str, dtype: torch.dtype) -> None:
    """256 + 1 is 256 in bfloat16, 2048 + 1 is 2048 in float16."""
    counts = torch.full((4064,), 0.5, dtype=dtype, device=device).histc(4, 0, 1)
    assert counts.dtype == dtype
    assert counts.tolist() == [0, 0, 4064, 0]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16])
@pytest.mark.parametrize("op", [torch.gcd, torch.lcm])
def test_gcd_of_the_smallest_integer(device: str, op: Any, dtype: torch.dtype) -> None:
    numbers = torch.tensor([torch.iinfo(dtype).min, torch.iinfo(dtype).max, -6, -1, 0, 1, 4], dtype=dtype)
    a, b = torch.cartesian_prod(numbers, numbers).unbind(1)
    assert torch.equal(op(a.to(device), b.to(device)).cpu(), op(a, b))


@pytest.mark.parametrize("count", [2, 40, 70_000])
@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_first_of_signed_zeros_is_the_value(device: str, op: str, count: int, dim: int) -> None:
    """Value and index name the same element, along rows and across them."""
    x = torch.zeros(2, count)
    x[0, 1:] = -0.0
    x[1, 0] = -0.0
    x = x if dim == 1 else x.t()
    value, index = getattr(x.to(device), op)(dim)
    assert index.tolist() == [0, 0]
    assert torch.signbit(value).tolist() == [False, True]


def test_rrelu_without_training_has_one_slope_in_every_form(device: str) -> None:
    x = torch.linspace(-2, 2, 7)

    def forms(where: str) -> list[torch.Tensor]:
        noise = torch.full((7,), 5.0, device=where)
        mine, arguments = x.to(where), (0.1, 0.3, False, None)
        made = [
            aten.rrelu_with_noise(mine, noise, *arguments),
            *aten.rrelu_with_noise_functional(mine, noise, *arguments),
        ]
        out = aten.rrelu_with_noise.out(mine, noise, *arguments, out=torch.empty(0, device=where))
        return [t.cpu() for t in (*made, out, aten.rrelu_with_noise_(mine.clone(), noise, *arguments), noise)]

    for expected, actual in zip(forms("cpu"), forms(device)):
        assert torch.equal(expected, actual)


def test_patches_out_in_the_memory_of_the_input(device: str) -> None:
    """What is written early must not be read late."""
    image, columns = torch.arange(16.0).view(1, 1, 4, 4), torch.arange(36.0).view(1, 4, 9)
    shape = ([2, 2], [1, 1], [0, 0], [1, 1])
    memory = torch.zeros(64, device=device)
    memory[:16] = image.flatten().to(device)
    out = aten.im2col.out(memory[:16].view(1, 1, 4, 4), *shape, out=memory[:36].view(1, 4, 9))
    assert torch.equal(out.cpu(), aten.im2col(image, *shape))
    memory[:36] = columns.flatten().to(device)
    out = aten.col2im.out(memory[:36].view(1, 4, 9), [4, 4], *shape, out=memory[:16].view(1, 1, 4, 4))
    assert torch.equal(out.cpu(), aten.col2im(columns, [4, 4], *shape))


def bag_backward(where: str) -> Any:
    weight, indices = torch.ones(5, 3, device=where), torch.tensor([0, 1, 1, 4], device=where)
    _, bags, sizes, largest = aten._embedding_bag(weight, indices, torch.tensor([0, 2], device=where), False, 0)
    bags = torch.tensor([0, 0, 1, 1], device=where)
    grad, rest = torch.ones(2, 3, device=where), (5, False, 0, None, -1)
    return aten._embedding_bag_dense_backward.out(grad, indices, bags, sizes, largest, *rest, out=new(where))


def new(where: str) -> torch.Tensor:
    return torch.empty(0, device=where)


def ones(where: str, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=where)


#: Their meta kernels are Python functions that know no out=.
OUT_FORMS = {
    "embedding_bag": bag_backward,
    "adaptive_avg_pool3d": lambda d: aten._adaptive_avg_pool3d_backward.out(
        ones(d, 1, 2, 2, 2, 2), ones(d, 1, 2, 4, 4, 4), out=new(d)
    ),
    "grid_sampler_3d": lambda d: aten.grid_sampler_3d_backward.out(
        ones(d, 1, 1, 2, 2, 2), ones(d, 1, 1, 3, 3, 3), ones(d, 1, 2, 2, 2, 3) / 3, 0, 0, False, [True, True],
        out0=new(d), out1=new(d),
    ),
    "weight_norm": lambda d: aten._weight_norm_interface.out(
        ones(d, 2, 3), ones(d, 2, 1), 0, out0=new(d), out1=new(d)
    ),
    "glu_jvp": lambda d: aten.glu_jvp(ones(d, 3, 2), ones(d, 3, 4), ones(d, 3, 4) / 2, 1),
    "glu_jvp.out": lambda d: aten.glu_jvp.out(ones(d, 1), ones(d, 2), ones(d, 2) / 2, 0, out=new(d)),
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_FORMS)
def test_out_forms_whose_meta_kernel_takes_no_out(device: str, name: str) -> None:
    torch.testing.assert_close(_on_cpu(OUT_FORMS[name](device)), _on_cpu(OUT_FORMS[name]("cpu")))


def _on_cpu(value: Any) -> list[torch.Tensor]:
    return [t.cpu() for t in (value if isinstance(value, tuple) else (value,))]


@pytest.mark.parametrize("beta", [12.0, 120.0, 800.0])
@pytest.mark.parametrize("periodic", [True, False])
def test_kaiser_window(device: str, beta: float, periodic: bool) -> None:
    """PyTorch's composite asks a stub that knew no device type of ours."""
    window = torch.kaiser_window(8, periodic, beta, device=device)
    torch.testing.assert_close(window.cpu(), torch.kaiser_window(8, periodic, beta), equal_nan=True)


def test_igamma_is_right_where_the_cpu_is_not(device: str) -> None:
    """float64 at x = a: ATen's uniform expansion is off by 3e-10. The number is mpmath's, to 30 digits."""
    a = torch.tensor(28.683168411254883, dtype=torch.float64, device=device)
    assert abs(float(torch.igamma(a, a)) - 0.524834348981923997) < 1e-14


def test_gradients_of_bags_whose_owners_are_not_given(device: str, run_python: RunPython) -> None:
    """The CPU's forward returns an empty offset2bag; read as if it were full, it ended the process."""
    run_python(f"""
        import torch
        aten = torch.ops.aten
        grad, weight = torch.rand(2, 3), torch.rand(5, 3)
        indices, offsets, sizes = torch.tensor([0, 1, 1, 4]), torch.tensor([0, 1]), torch.tensor([1, 3])
        none = torch.empty(0, dtype=torch.int64)
        calls = {{
            aten._embedding_bag_backward:
                (grad, indices, offsets, none, sizes, none, 5, False, 0, False, torch.ones(4), -1),
            aten._embedding_bag_per_sample_weights_backward: (grad, weight, indices, offsets, none, 0, -1),
        }}
        for op, given in calls.items():
            there = [x.to("{device}") if isinstance(x, torch.Tensor) else x for x in given]
            torch.testing.assert_close(op(*there).cpu(), op(*given))
        try:
            aten._embedding_bag_dense_backward(*(x.to("{device}") if isinstance(x, torch.Tensor) else x
                for x in (grad, indices, none, sizes, none, 5, False, 0, None, -1)))
        except RuntimeError as error:
            assert "an argument has the shape [0], not [4]" in str(error), error
        else:
            raise AssertionError("indices without owners were taken")
    """)


def test_gradient_of_batch_norm_is_laid_out_as_on_the_cpu(device: str) -> None:
    """Contiguous or channels last, whatever order the dimensions of the input are in."""

    def gradients(where: str, x: torch.Tensor, mask: list[bool]) -> Any:
        mine, grad = x.to(where), torch.ones_like(x).to(where)
        channels = [torch.linspace(0.5, 1, 3, device=where) for _ in range(5)]
        return aten.native_batch_norm_backward(grad, mine, *channels, True, 1e-5, mask)

    for x in (torch.rand(4, 3, 2, 5).permute(2, 1, 0, 3), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        for mask in ([True, True, True], [True, False, False]):
            for expected, actual in zip(gradients("cpu", x, mask), gradients(device, x, mask)):
                assert (expected is None) == (actual is None)
                if expected is not None:
                    assert expected.stride() == actual.stride()
                    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norms_of_halves_are_float32(device: str, dtype: torch.dtype) -> None:
    v, g = torch.rand(2, 3).to(dtype), torch.rand(2, 1).to(dtype)
    for expected, actual in zip(
        aten._weight_norm_interface(v, g), aten._weight_norm_interface(v.to(device), g.to(device))
    ):
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("fill", [lambda x: x.fill_(3), lambda x: x.zero_(), lambda x: x.fill_(torch.tensor(2.0))])
def test_an_expanded_tensor_can_be_filled(device: str, fill: Any) -> None:
    """Writing a value twice is writing it once: PyTorch refuses this of other in-place ops only."""
    x = torch.ones(4, device=device)
    fill(x.expand(3, 4))
    assert torch.equal(x.cpu(), fill(torch.ones(4)))
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(3, 4).add_(1)


# ---- in-place forms ----
def in_place_overloads() -> list[str]:
    """Names the in-place overloads that the device registers and Python can call."""
    names = [name for name in op_table.routes() if name.startswith("aten::") and overload_named(name) is not None]
    return [name for name in names if overload_named(name)._schema.name.endswith("_") and "__" not in name]


PLAIN = {"number": 2, "int": 0, "float": 0.5, "bool": False, "str": "none", "SymInt": 0}


def refusal_of(name: str, device: str, shapes: Any, dtypes: Any) -> Exception | None:
    """Calls an in-place overload with tensors of these shapes and types (self, others); returns what it raised."""
    needed = [a for a in overload_named(name)._schema.arguments if not a.has_default_value()]
    kinds = [str(a.type) for a in needed]
    if kinds[:1] != ["Tensor"] or "Tensor" not in kinds[1:] or set(kinds) - {"Tensor", *PLAIN}:
        return None
    types = [torch.bool if "mask" in a.name else dtypes[n > 0] for n, a in enumerate(needed)]
    made = [torch.ones(shapes[n > 0], dtype=dtype, device=device) for n, dtype in enumerate(types)]
    try:
        overload_named(name)(*(tensor if kind == "Tensor" else PLAIN[kind] for tensor, kind in zip(made, kinds)))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return error
    return None


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (((5, 1), (5,)), (torch.float32, torch.float32)),
        (((4,), (4,)), (torch.int32, torch.float32)),
        (((4,), (4,)), (torch.bool, torch.int64)),
    ],
    ids=["broadcast", "float into int", "int into bool"],
)
def test_in_place_forms_refuse_what_the_cpu_refuses(device: str, shapes: Any, dtypes: Any) -> None:
    """PyTorch's meta kernels in Python do not look whether a result fits into what it is written to."""
    accepted = []
    for name in in_place_overloads():
        refusal = refusal_of(name, "cpu", shapes, dtypes)
        if refusal and "not implemented for" not in str(refusal) and not refusal_of(name, device, shapes, dtypes):
            accepted.append(f"{name}: {refusal}")
    assert not accepted


@pytest.mark.parametrize("types", [(torch.float32, torch.float64), (torch.int32, torch.float32)], ids=str)
def test_floor_division_into_a_wider_type(device: str, types: Any) -> None:
    """An op of TensorIterator casts to the type of its out=, also where the lowering says what comes out."""
    x, out = torch.arange(1, 6).to(types[0]), torch.empty(5, dtype=types[1])
    on_device = torch.floor_divide(x.to(device), 2, out=out.to(device))
    assert torch.equal(on_device.cpu(), torch.floor_divide(x, 2, out=out))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: aten.rrelu_with_noise(x, torch.zeros_like(x)),
        lambda x: aten.rrelu(x),
        lambda x: aten.huber_loss_backward(torch.ones_like(x), x, x * 2, 2, 1.0),
    ],
    ids=["rrelu_with_noise", "rrelu", "huber_loss_backward"],
)
def test_results_that_the_cpu_makes_contiguous(device: str, call: Any) -> None:
    x = torch.rand(3, 2).t() - 0.5
    expected, actual = call(x), call(x.to(device))
    assert actual.stride() == expected.stride()
    assert torch.equal(actual.cpu(), expected)


def test_noise_of_another_shape_is_refused(device: str) -> None:
    """A kernel would write as many slopes as there are elements."""
    with pytest.raises(RuntimeError, match="noise tensor shape must match"):
        aten.rrelu_with_noise(-torch.ones(1000, device=device), torch.zeros(1, device=device), 0.1, 0.3, True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_a_float_does_not_go_into_integers_in_place(device: str, dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.ones(4, dtype=dtype, device=device).logit_()


@pytest.mark.parametrize("train", [None, True, False])
def test_dropout_does_not_write_to_its_input(device: str, train: bool | None) -> None:
    x = torch.ones(1000, device=device)
    result, mask = aten.native_dropout(x, 0.5, train)
    assert torch.equal(x.cpu(), torch.ones(1000))
    assert mask.all() == (train is False)
    assert torch.equal(result.cpu(), mask.cpu() * (1.0 if train is False else 2.0))


def test_statistics_of_groups_of_halves_are_float32(device: str) -> None:
    x, weight = torch.rand(2, 6, 3).half(), torch.rand(6)
    expected = aten.native_group_norm(x, weight, weight, 2, 6, 3, 2, 0.5)
    actual = aten.native_group_norm(x.to(device), weight.to(device), weight.to(device), 2, 6, 3, 2, 0.5)
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("polynomial", [torch.special.legendre_polynomial_p, torch.special.laguerre_polynomial_l])
def test_polynomials_of_a_number(device: str, polynomial: Any) -> None:
    """An op that is composed in Python gets the number itself in the place of a tensor."""
    x = torch.tensor([0.25, 0.5, 2.0])
    torch.testing.assert_close(polynomial(x.to(device), 3).cpu(), polynomial(x, 3))
    torch.testing.assert_close(polynomial(0.5, x.to(device)).cpu(), polynomial(0.5, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_divided_by_a_number(device: str, dtype: torch.dtype) -> None:
    """The number is not rounded to a half before: 1 // 0.1 is 9, and 10 with 0.1 in float16."""
    x = torch.arange(-40, 41).to(dtype) / 8
    for number in (0.1, 0.7, torch.tensor(0.3, dtype=torch.float64)):
        other = number.to(device) if isinstance(number, torch.Tensor) else number
        assert torch.equal((x.to(device) // other).cpu(), x // number)
        for mode in ("floor", "trunc"):
            assert torch.equal(x.to(device).div(other, rounding_mode=mode).cpu(), x.div(number, rounding_mode=mode))


def test_an_argument_that_a_meta_kernel_returns_is_not_written(device: str) -> None:
    """Nor is it the result: the schema says that a new tensor is. native_dropout(train=None) wrote over its input."""
    from bringup.lowering.registry import lowering

    library = torch.library.Library("corners", "DEF")
    library.define("grown(Tensor x, bool really) -> Tensor")
    library.impl("grown", lambda x, really: x.new_empty(x.shape) if really else x, "Meta")

    @lowering("corners::grown")
    def grown(call, x, really):
        k = call.kernel()
        source, out = k.read(x), k.write(call.outs[0], x.shape)
        places = tuple(k.grid(size) for size in x.shape)
        k.store(out, places, source[places] + 1)
        k.launch()

    for x in (
        torch.ones(3, 4, device=device),
        torch.ones(4, 3, device=device).t(),
        torch.ones(3, 1, device=device).expand(3, 4),
    ):
        for really in (True, False):
            result = torch.ops.corners.grown(x, really)
            assert result.data_ptr() != x.data_ptr()
            assert torch.equal(x, torch.ones_like(x))
            assert torch.equal(result, torch.full_like(result, 2))


@pytest.mark.parametrize("name", ["log_sigmoid", "bucketize"])
def test_an_empty_out_grows_to_an_empty_shape_with_the_cpus_strides(name: str, device: str) -> None:
    """Strides of a tensor without elements count a size of 0 as 1: (3, 3, 1), not (0, 3, 1)."""
    strides = []
    for place in ("cpu", device):
        x, out = torch.randn(1, 0, 3, device=place), torch.empty(0, device=place)
        if name == "log_sigmoid":
            torch._C._nn.log_sigmoid(x, out=out)
        else:
            out = out.long()
            torch.bucketize(x, torch.arange(3.0, device=place), out=out)
        assert out.shape == (1, 0, 3)
        strides.append(out.stride())
    assert strides[0] == strides[1]
