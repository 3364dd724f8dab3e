"""Programs about tensors themselves: factories, dtypes, layouts, views, changes in place, ``out=``."""

from __future__ import annotations

import warnings

import torch

from tests.device.device_programs import EVERY_DTYPE, agree, both_refuse, close, identical, numbers, program


@program
def factories(device: str) -> None:
    dense = {
        "zeros": lambda d: torch.zeros(2, 3, device=d),
        "ones": lambda d: torch.ones(4, device=d, dtype=torch.int16),
        "full": lambda d: torch.full((2, 2), 7.5, device=d),
        "arange": lambda d: torch.arange(3, 20, 4, device=d),
        "linspace": lambda d: torch.linspace(-1, 1, 7, device=d),
        "logspace": lambda d: torch.logspace(0, 2, 3, device=d),
        "eye": lambda d: torch.eye(3, 4, device=d),
        "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
        "scalar_tensor": lambda d: torch.scalar_tensor(3, device=d),
        "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
        "hann_window": lambda d: torch.hann_window(5, device=d),
        "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
        "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()),
        "new_full": lambda d: torch.ones(1, device=d).new_full((2,), 3),
        "new_tensor": lambda d: torch.ones(1, device=d).new_tensor([1.0, 2.0]),
        "from_numpy": lambda d: torch.from_numpy(numbers(3).numpy()).to(d),
        "empty_fill": lambda d: torch.empty(2, 3, device=d).fill_(2),
        "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(2),
        "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij"),
        "cartesian_prod": lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
    }
    computed = ("linspace", "logspace", "hann_window")
    for name, make in dense.items():
        close(make(device), make("cpu"), device, name not in computed, name)
        strides = [
            [t.stride() for t in (r if isinstance(r, (tuple, list)) else [r])] for r in (make(device), make("cpu"))
        ]
        assert strides[0] == strides[1], (name, strides)
    with torch.device(device):
        assert torch.zeros(2).device == torch.device(device)
    last = torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)


@program
def dtypes_make_round_trips(device: str) -> None:
    for dtype in EVERY_DTYPE:
        here = numbers(3, 5, dtype=dtype)
        there = here.to(device)
        assert (there.dtype, there.device) == (dtype, torch.device(device))
        identical(there, here, f"{dtype}")
        identical(there.clone(), here, f"{dtype} clone")
        identical(there.t(), here.t(), f"{dtype} transposed")
        identical(there[1:, ::2], here[1:, ::2], f"{dtype} sliced")
        identical(there.to("cpu", copy=True), here, f"{dtype} back")
        assert there[1, 2].item() == here[1, 2].item(), dtype
        assert there.tolist() == here.tolist(), dtype
        if dtype.itemsize > 1 and not dtype.is_complex:
            identical(there.view(torch.uint8), here.view(torch.uint8), f"{dtype} as bytes")


@program
def layouts_make_round_trips(device: str) -> None:
    base = numbers(4, 5, 6)
    layouts = {
        "offset": lambda x: x.view(-1)[7:],
        "strided": lambda x: x[::2, 1::3],
        "transposed": lambda x: x.transpose(0, 2),
        "permuted": lambda x: x.permute(2, 0, 1)[1:],
        "expanded": lambda x: x[:, :1].expand(4, 9, 6),
        "flipped": lambda x: x.flip(1),
        "diagonal": lambda x: x.diagonal(0, 0, 1),
        "overlapping": lambda x: x.as_strided((5, 4), (1, 2), 3),
        "scalar": lambda x: x[1, 2, 3],
        "empty": lambda x: x[2:2],
        "negative": lambda x: x._neg_view()[1:],
        "wide_gap": lambda x: x[::3, ::4, ::5],
    }
    there = base.to(device)
    for name, view in layouts.items():
        identical(view(there), view(base), name)
        identical(view(there).cpu(), view(base), f"{name}, strided copy back")
        identical(view(there).contiguous(), view(base), f"{name}, contiguous")
        identical(view(there).clone(), view(base), f"{name}, clone")
        identical(view(base).to(device), view(base), f"{name}, made on the CPU")
        assert view(there).stride() == view(base).stride(), name
        assert view(there).storage_offset() == view(base).storage_offset(), name
        agree(device, lambda x, view=view: view(x) * 2 + 1, base, what=name)


@program
def nothing_and_one_number(device: str) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool):
        agree(
            device,
            lambda x: (x.sum(), x.sum(0), x.clone(), x.t(), x.reshape(3, 0), x.any()),
            torch.zeros(0, 3, dtype=dtype),
        )
    both_refuse(device, lambda x: x.max(), torch.zeros(0))
    agree(device, lambda a, b: a @ b, torch.zeros(2, 0), torch.zeros(0, 3))
    agree(device, lambda a, b: torch.cat([a, b, a]), torch.zeros(0), numbers(3))
    agree(device, lambda x: (x + 1, x.sum(), x.view(1), x.expand(3), x.item()), torch.tensor(2.5))
    agree(device, lambda x: torch.nonzero(x), torch.zeros(4))
    agree(device, lambda x: x[x > 100], numbers(5))
    empty = torch.empty(0, device=device)
    assert empty.data_ptr() == 0
    empty.resize_(3).fill_(1)
    identical(empty, torch.ones(3))
    assert bool(torch.tensor(True, device=device))
    assert int(torch.tensor(3, device=device)) == 3


VIEWS = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(2, 12),
    "slice": lambda x: x[1:3, 2:],
    "step": lambda x: x[::2, ::3],
    "select": lambda x: x.select(1, 2),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 3),
    "as_strided": lambda x: x.as_strided((3, 3), (6, 2), 1),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "unbind": lambda x: x.unbind(0)[3],
    "unsqueeze": lambda x: x[1].unsqueeze(0),
    "flatten": lambda x: x.flatten(),
    "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2)[1],
    "detach": lambda x: x.detach()[2],
    "bytes": lambda x: x.view(torch.int32)[1:],
    "real": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    "number": lambda x: x[2, 3],
}


@program
def views_share_memory(device: str) -> None:
    for name, view in VIEWS.items():

        def fill(x: torch.Tensor, view=view) -> torch.Tensor:
            view(x).fill_(9)
            return x

        def add(x: torch.Tensor, view=view) -> tuple[torch.Tensor, torch.Tensor]:
            seen = view(x)
            seen.add_(seen.clone())
            return x, seen

        def copied(x: torch.Tensor, view=view) -> torch.Tensor:
            seen = view(x)
            seen.copy_(torch.arange(seen.numel(), device=x.device).view(seen.shape))
            return x

        def from_cpu(x: torch.Tensor, view=view) -> torch.Tensor:
            seen = view(x)
            seen.copy_(torch.arange(seen.numel()).view(seen.shape))
            return x

        for change in (fill, add, copied, from_cpu):
            agree(device, change, numbers(4, 6), what=f"{change.__name__} through {name}")
    x = torch.zeros(4, 6, device=device)
    assert x.t().untyped_storage()._cdata == x.untyped_storage()._cdata


def _changes() -> dict[str, object]:
    def on(view, change):  # type: ignore[no-untyped-def]
        def program(x: torch.Tensor) -> torch.Tensor:
            change(view(x))
            return x

        return program

    transposed, sliced, stepped = (lambda x: x.t()), (lambda x: x[1:4, 1:5]), (lambda x: x[::2, ::2])
    changes = {
        "mul_": lambda v: v.mul_(3),
        "add_ other": lambda v: v.add_(v * 2, alpha=0.5),
        "exp_": lambda v: v.exp_(),
        "clamp_": lambda v: v.clamp_(1, 2),
        "zero_": lambda v: v.zero_(),
        "masked_fill_": lambda v: v.masked_fill_(v > 2, -1),
        "index_fill_": lambda v: v.index_fill_(0, torch.tensor([1], device=v.device), 8),
        "index_add_": lambda v: v.index_add_(0, torch.tensor([0, 0], device=v.device), v[:2].clone()),
        "scatter_": lambda v: v.scatter_(1, torch.zeros(v.shape[0], 1, dtype=torch.long, device=v.device), 5.0),
        "cumsum_": lambda v: v.cumsum_(1),
        "sort copied back": lambda v: v.copy_(v.sort(1, descending=True)[0]),
        "setitem mask": lambda v: v.__setitem__(v > 3, 0.0),
        "setitem indices": lambda v: v.__setitem__(
            (slice(None), torch.tensor([1, 0], device=v.device)), v[:, :2].clone()
        ),
        "swap rows": lambda v: v.__setitem__([0, 1], v[[1, 0]]),
        "tril_": lambda v: v.tril_(),
        "addmm_": lambda v: v.addmm_(v, torch.eye(v.shape[1], device=v.device)),
        "addcmul_": lambda v: v.addcmul_(v, v, value=0.1),
        "lerp_": lambda v: v.lerp_(torch.ones_like(v), 0.25),
        "relu_": lambda v: torch.relu_(v.sub_(2)),
        "square_ transposed again": lambda v: v.t().square_(),
        "fill_diagonal_": lambda v: v.fill_diagonal_(4),
        "renorm_": lambda v: v.renorm_(2, 0, 1.5),
        "erfinv_": lambda v: v.div_(10).erfinv_(),
        "__ior__": lambda v: v.copy_((v > 2).__ior__(v < 1)),
    }
    views = {"whole": lambda x: x, "transposed": transposed, "sliced": sliced, "stepped": stepped}
    return {f"{c} on {v}": on(view, change) for v, view in views.items() for c, change in changes.items()}


@program
def changes_in_place_on_views(device: str) -> None:
    for name, change in _changes().items():
        agree(device, change, numbers(5, 6), exact=False, what=name)  # type: ignore[arg-type]


@program
def overlapping_memory(device: str) -> None:
    windows = numbers(12)
    agree(device, lambda x: x.as_strided((5, 4), (2, 1)) @ x[:4], windows, exact=False)
    agree(device, lambda x: x.as_strided((5, 4), (2, 1)).sum(0), windows, exact=False)
    agree(device, lambda x: x.expand(3, 12).clone(), windows)
    agree(device, lambda x: torch.add(x, x, out=x), windows)
    agree(device, lambda x: (x.add_(x), x.mul_(x[0].clone())), windows)
    agree(device, lambda x: torch.add(x[::2], x[1::2], out=x[::2]) + 0, windows)

    # Writing to one place from two elements is refused, as on the CPU.
    def one_place(x: torch.Tensor) -> None:
        x[:1].expand(4).add_(1)

    def partly(x: torch.Tensor) -> None:
        x[1:].add_(x[:-1])

    def copied_partly(x: torch.Tensor) -> None:
        x[1:].copy_(x[:-1])

    def copied_partly_as_other_type(x: torch.Tensor) -> None:
        x[1:].copy_(x.view(torch.int32)[:-1])

    def one_of_its_own(x: torch.Tensor) -> None:
        x.mul_(x[0])

    for function in (one_place, one_of_its_own, partly, copied_partly, copied_partly_as_other_type):
        both_refuse(device, function, windows)


@program
def out_tensors_grow_and_shrink(device: str) -> None:
    ops = {
        "add": lambda x, out: torch.add(x, 1, out=out),
        "mm": lambda x, out: torch.mm(x, x.t(), out=out),
        "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
        "nonzero": lambda x, out: torch.nonzero(x, out=out),
        "masked_select": lambda x, out: torch.masked_select(x, x > 1, out=out),
        "cat": lambda x, out: torch.cat([x, x], out=out),
        "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([1, 0], device=x.device), out=out),
        "take": lambda x, out: torch.take(x, torch.tensor([3, 1, 2], device=x.device), out=out),
        "stack": lambda x, out: torch.stack([x, x], out=out),
        "median": lambda x, out: torch.median(x, 1, out=(out, torch.empty(0, dtype=torch.long, device=x.device))),
        "sort": lambda x, out: torch.sort(x, 1, out=(out, torch.empty(0, dtype=torch.long, device=x.device))),
        "linalg.qr": lambda x, out: torch.linalg.qr(x, out=(out, torch.empty(0, device=x.device))),
        "arange": lambda x, out: torch.arange(7, out=out),
        "bmm": lambda x, out: torch.bmm(x[None], x.t()[None], out=out),
        "histc": lambda x, out: torch.histc(x, 4, out=out),
        "kthvalue": lambda x, out: torch.kthvalue(x, 1, out=(out, torch.empty(0, dtype=torch.long, device=x.device))),
    }
    given = {
        "nothing": lambda like: like.new_empty(0),
        "too small": lambda like: like.new_zeros(2),
        "too large": lambda like: like.new_zeros(40),
        "transposed": lambda like: like.new_zeros(4, 3).t(),
    }
    for op_name, op in ops.items():
        dtype = torch.long if op_name in ("nonzero", "arange") else torch.float32
        for name, make in given.items():

            def run(x: torch.Tensor, op=op, make=make, dtype=dtype):  # type: ignore[no-untyped-def]
                out = make(x.to(dtype))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # "An output with one or more elements was resized"
                    returned = op(x, out)
                first = returned[0] if isinstance(returned, tuple) else returned
                assert first.data_ptr() == out.data_ptr()
                assert first.shape == out.shape
                return out, out + 1, list(out.stride())

            agree(device, run, numbers(3, 4), exact=False, what=f"{op_name} into {name}")


@program
def out_views_of_a_larger_storage(device: str) -> None:
    """An ``out=`` that is a part of a storage changes that part, or grows the storage, for all its views."""
    ops = {
        "add": lambda x, out: torch.add(x, 1, out=out),
        "take": lambda x, out: torch.take(x, torch.arange(x.numel(), device=x.device), out=out),
        "masked_select": lambda x, out: torch.masked_select(x, x > -1, out=out),
        "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
        "cat": lambda x, out: torch.cat([x[:3], x[3:]], out=out),
        "index_select": lambda x, out: torch.index_select(x, 0, torch.arange(x.numel(), device=x.device), out=out),
        "sort": lambda x, out: torch.sort(x, 0, out=(out, torch.empty(0, dtype=torch.long, device=x.device))),
        "kthvalue": lambda x, out: torch.kthvalue(
            x[:, None].expand(-1, 1), 1, out=(out, torch.empty(0, dtype=torch.long, device=x.device))
        ),
        "histc": lambda x, out: torch.histc(x, 6, out=out),
    }
    parts = {
        "in the middle": lambda base: base[4:10],
        "every second": lambda base: base[1:13:2],
        "empty at the front": lambda base: base[:0],
        "empty in the middle": lambda base: base[5:5],
        "small at the end": lambda base: base[13:],
        "small in the middle": lambda base: base[3:5],
    }
    for op_name, op in ops.items():
        for name, part in parts.items():

            def run(x: torch.Tensor, base: torch.Tensor, op=op, part=part):  # type: ignore[no-untyped-def]
                out = part(base)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    op(x, out)
                grown = list(out.shape), list(out.stride()), out.storage_offset()
                return base, out, grown, base.untyped_storage().nbytes() >= 60

            agree(device, run, numbers(6), torch.full((15,), -5.0), exact=False, what=f"{op_name} into a part {name}")
