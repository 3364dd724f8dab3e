"""Programs that move tensors: copies between dtypes and layouts, files, pickles, storages, text."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import torch

from tests.device.device_programs import EVERY_DTYPE, agree, both_refuse, close, identical, numbers, program, raw


@program
def copies_between_all_dtypes(device: str) -> None:
    """Every pair: device to device, CPU to device, device to CPU; what the CPU refuses the device refuses too."""
    for source in EVERY_DTYPE:
        here = numbers(2, 3, dtype=source, seed=3)
        there = here.to(device)
        for target in EVERY_DTYPE:
            what = f"{source} to {target}"
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # complex to real
                    expected = torch.zeros(2, 3, dtype=target).copy_(here)
            except (RuntimeError, NotImplementedError) as error:
                try:
                    torch.zeros(2, 3, dtype=target, device=device).copy_(there)
                except type(error):
                    continue
                raise AssertionError(f"{what}: the CPU refuses this") from error
            identical(torch.zeros(2, 3, dtype=target, device=device).copy_(there), expected, what)
            identical(torch.zeros(2, 3, dtype=target, device=device).copy_(here), expected, f"{what} from the CPU")
            identical(torch.zeros(2, 3, dtype=target).copy_(there), expected, f"{what} to the CPU")
            identical(there.to(target), expected, f"{what} by to()")


@program
def copies_between_layouts(device: str) -> None:
    shapes = {
        "contiguous": lambda t: t.view(4, 6),
        "transposed": lambda t: t.view(6, 4).t(),
        "stepped": lambda t: t.new_zeros(8, 12).copy_(t.view(2, 12).repeat(4, 1))[::2, ::2],
        "offset": lambda t: torch.cat([t, t])[5:29].view(4, 6),
        "expanded": lambda t: t[:6].expand(4, 6),
        "column": lambda t: t.view(4, 6)[:, 2:3].expand(4, 6),
    }
    for from_type, to_type in (
        (torch.float32, torch.float32),
        (torch.float32, torch.int16),
        (torch.int8, torch.complex64),
    ):
        for source_name, source in shapes.items():
            for target_name, target in shapes.items():
                if target_name in ("expanded", "column"):
                    continue
                data = numbers(24, dtype=from_type)
                expected = target(torch.zeros(24, dtype=to_type)).copy_(source(data))
                for where_from in ("cpu", device):
                    for where_to in ("cpu", device):
                        made = target(torch.zeros(24, dtype=to_type, device=where_to))
                        made.copy_(source(data.to(where_from)))
                        what = f"{source_name} on {where_from} to {target_name} on {where_to}, {from_type} to {to_type}"
                        identical(made, expected, what)
    agree(device, lambda x, y: x.copy_(y), torch.zeros(3, 4), numbers(4))  # broadcast
    agree(device, lambda x, y: x.copy_(y), torch.zeros(3, 4), numbers(3, 1))
    both_refuse(device, lambda x, y: x.copy_(y), torch.zeros(3, 4), numbers(5))


@program
def conjugate_and_negative_views(device: str) -> None:
    x = numbers(4, 4, dtype=torch.complex64)
    agree(device, lambda x: x.conj() @ x, x, exact=False)
    agree(device, lambda x: (x.conj().imag, x.conj().clone(), x.resolve_conj(), x.mH.contiguous()), x)
    agree(device, lambda x: x.conj().mul_(2j) + x, x)
    agree(device, lambda x: (x._neg_view() + 1, x._neg_view().sum(), x._neg_view()[1:].clone()), x.real.clone())
    agree(device, lambda x: x.imag.copy_(x.conj().imag), x)
    agree(device, lambda x: torch.zeros_like(x).copy_(x.conj()), x)
    agree(device, lambda x: torch.zeros_like(x).conj().copy_(x).resolve_conj(), x)
    there = x.to(device)
    assert there.conj().is_conj()
    identical(there.conj().cpu().resolve_conj(), x.conj().resolve_conj(), "to the CPU")
    identical(x.conj().to(device), x.conj().resolve_conj(), "from the CPU")


@program
def printing(device: str) -> None:
    assert repr(torch.ones(2, device=device)) == f"tensor([1., 1.], device='{torch.device(device)}')"
    for dtype in EVERY_DTYPE:
        text = str(numbers(2, 3, dtype=dtype).to(device))
        assert str(torch.device(device)) in text, text
    assert "grad_fn" in str(torch.ones(2, device=device, requires_grad=True) * 2)
    assert "size=(0, 3)" in str(torch.ones(0, 3, device=device))
    assert "..." in str(torch.ones(2000, device=device))
    assert f"{torch.tensor(1.25, device=device):.1f}" == "1.2"


@program
def saving_loading_and_copying(device: str) -> None:
    base = numbers(4, 6).to(device)
    parts = {"base": base, "view": base[1:, ::2], "half": base.half(), "number": base[0, 0], "none": base[:0]}
    buffer = io.BytesIO()
    torch.save(parts, buffer)
    for map_location, where in ((None, device), ("cpu", "cpu"), (device, device)):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=map_location)
        for name, tensor in parts.items():
            assert loaded[name].device == torch.device(where)
            identical(loaded[name], tensor.cpu(), name)
        loaded["base"].fill_(3)
        assert (loaded["view"] == 3).all(), "views of one storage stay views of one storage"
    copied = copy.deepcopy(parts)
    copied["base"].zero_()
    assert (copied["view"] == 0).all()
    assert (raw(base) != 0).any()
    unpickled = pickle.loads(pickle.dumps(base.t()))
    identical(unpickled, base.t().cpu())
    layer = torch.nn.Linear(3, 2).to(device)
    close(copy.deepcopy(layer).state_dict(), {k: v.cpu() for k, v in layer.state_dict().items()}, device, True)


@program
def storages(device: str) -> None:
    x = numbers(6).to(device)
    storage = x.untyped_storage()
    assert (storage.nbytes(), storage.device) == (24, torch.device(device))
    assert bytes(storage.cpu().tolist()) == bytes(x.cpu().untyped_storage().tolist())
    identical(torch.empty(0, device=device).set_(storage, 2, (2, 2), (2, 1)), x[2:].view(2, 2).cpu())
    storage.resize_(48)
    grown = torch.empty(0, device=device).set_(storage)
    identical(grown[:6], numbers(6), "what was there stays")
    y = numbers(3, 3).to(device).t()
    identical(y.resize_(5, 3)[:3], torch.empty(9).set_(numbers(3, 3).untyped_storage()).view(3, 3), "resize_")
    x.data = torch.zeros(2, device=device)
    identical(x, torch.zeros(2))
    storage.fill_(0)
    assert storage.clone().cpu().tolist() == [0] * 48
    many = torch.arange(100, device=device, dtype=torch.uint8)
    storage, here, there = many.untyped_storage(), torch.UntypedStorage(100), torch.UntypedStorage(100, device=device)
    storage[70] = 3
    assert [storage[69], storage[70], many[70].item()] == [69, 3, 3]
    here.copy_(storage)
    there.copy_(here)
    assert there.tolist() == here.tolist() == storage.tolist() == [*range(70), 3, *range(71, 100)]


@program
def storages_as_plain_memory(device: str) -> None:
    """The ways that hand a storage on by its address: the old file format, pickle, DLPack. Right, or refused."""
    x = torch.arange(200.0, device=device)
    old = io.BytesIO()
    torch.save(x, old, _use_new_zipfile_serialization=False)
    old.seek(0)
    identical(torch.load(old), torch.arange(200.0), "the old file format")
    identical(pickle.loads(pickle.dumps(x[60:])), torch.arange(60.0, 200.0), "pickle")
    for name, view in {
        "whole": lambda t: t,
        "view": lambda t: t[60:],
        "transposed": lambda t: t.view(10, 20).t(),
    }.items():
        try:
            y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(view(x)))
            y.cpu()  # a view into partitioned memory is refused when it is used
        except (BufferError, RuntimeError):
            assert torch.get_device_module(x.device.type).get_device_properties(x.device).partitions > 1, "refused"
            continue
        identical(y, view(torch.arange(200.0)), f"DLPack, {name}")
        y.add_(1)
        identical(view(x), view(torch.arange(200.0)) + 1, f"DLPack, {name}: the same memory")
        x.copy_(torch.arange(200.0))
