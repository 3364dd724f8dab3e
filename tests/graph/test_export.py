"""Exported models give what the model gives, at every size, without its code; what cannot be exported says why."""

from __future__ import annotations

import copy
import json
import threading
import warnings
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

import bringup
from bringup.graph.export.artifact import ArtifactFile
from bringup.graph.export.artifact_manifest import manifest_of, program_from
from bringup.graph.export.targets import export_target, target_names
from bringup.graph.program import GraphProgram
from tests.graph.comparing import Calls
from tests.graph.export_models import CASES, ConvolutionalNet, Decomposition, Normalised, WritesToItsInput


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@cache
def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = CASES[name].make()
    for module in model.modules():  # as after training: nothing that a wrong fold could leave out
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


@cache
def exported(name: str, folder: Path) -> Path:
    case = CASES[name]
    out = folder / f"{name}.bup"
    return bringup.export(
        model_of(name), case.calls()[0], case.kwargs(), out=out, target="host", dynamic_shapes=case.shapes
    )


def moved(tree: Any, device: str) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), tree)


def wide(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, tree)


def errors(found: Any, exact: Any) -> list[float]:
    pairs = zip(tree_leaves(found), tree_leaves(exact), strict=True)
    return [
        (one.cpu().double() - other).abs().max().item() if one.numel() else 0.0
        for one, other in pairs
        if isinstance(one, torch.Tensor)
    ]


def test_an_export_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert bringup.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), out=tmp_path / "model.bup").is_file()


# ---- results ----
@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_is_as_exact_as_the_cpu(name: str, folder: Path, device: str) -> None:
    case, model = CASES[name], model_of(name)
    loaded = bringup.load(exported(name, folder))
    kwargs = case.kwargs()
    for call in case.calls():
        found = loaded(*moved(call, device), **moved(kwargs, device))
        on_cpu = model(*call, **kwargs)
        exact = copy.deepcopy(model).double()(*wide(call), **wide(kwargs))
        assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(on_cpu)
        for ours, theirs in zip(tree_leaves(found), tree_leaves(on_cpu), strict=True):
            if not isinstance(ours, torch.Tensor):
                assert ours == theirs
                continue
            assert (ours.shape, ours.dtype, ours.device.type) == (theirs.shape, theirs.dtype, device)
        for ours, theirs, leaf in zip(errors(found, exact), errors(on_cpu, exact), tensors(exact), strict=True):
            largest = leaf.abs().max().item() if leaf.numel() else 0.0
            assert ours <= 2 * theirs + 2 * torch.finfo(torch.float32).eps * largest, (
                name,
                [t.shape for t in call[:1]],
            )


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_every_batch_from_1_to_64_gives_the_devices_own_bits(name: str, folder: Path, device: str) -> None:
    loaded = bringup.load(exported(name, folder))
    model = copy.deepcopy(model_of(name)).to(device)
    (example,) = CASES[name].calls()[0]
    with torch.no_grad():
        for batch in range(1, 65):
            x = torch.randn(batch, *example.shape[1:], device=device)
            for ours, eager in zip(tensors(loaded(x)), tensors(model(x)), strict=True):
                assert torch.equal(ours, eager), f"batch {batch}"
    with pytest.raises(ValueError, match=r"batch = 65 .*exported for 1…64"):
        loaded(torch.randn(65, *example.shape[1:]))
    with pytest.raises(ValueError, match=r"batch = 0 "):
        loaded(torch.randn(0, *example.shape[1:]))


def test_an_example_with_a_batch_of_one_is_good_enough(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    path = bringup.export(
        model, (torch.randn(1, 3),), out=tmp_path / "m.bup", dynamic_shapes=({0: Dim("batch", min=1, max=8)},)
    )
    loaded = bringup.load(path)
    for batch in (1, 2, 8):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(loaded(x), model(x))


def test_what_is_loaded_is_the_program_that_was_exported(tmp_path: Path) -> None:
    """Files hold the form that lowering and fusion make, without the notes for people."""
    made: list[GraphProgram] = []

    @export_target("kept-by-this-test")
    def keep(program: GraphProgram, constants: Any, out: Path, *, examples: Any) -> None:
        made.append(program)

    model, shapes = model_of("cnn"), ({0: Dim("batch", min=1, max=8)},)
    bringup.export(
        model, CASES["cnn"].calls()[0], out=tmp_path / "m", target="kept-by-this-test", dynamic_shapes=shapes
    )
    (program,) = made
    assert all(call.note for variant in program.variants for call in variant.kernel_calls)
    read = program_from(json.loads(json.dumps(manifest_of(program))))
    assert read.kernels == program.kernels
    variants = [
        replace(variant, calls=tuple(replace(call, note="") for call in variant.kernel_calls))
        for variant in program.variants
    ]
    assert read == replace(program, variants=tuple(variants))


def test_a_batch_norm_is_folded_into_constants(folder: Path) -> None:
    with ArtifactFile(exported("cnn", folder)) as file:
        program = program_from(file.manifest)
    names = [constant.name for constant in program.constants]
    assert "norm.running_var" not in names
    assert "norm.weight" not in names
    assert any(name.startswith("folded") for name in names)
    first = program.variants[0]
    assert not [n for n in first.calls if "rsqrt" in n.kernel.name]
    assert len(first.calls) <= 3


def test_tied_weights_are_stored_once(folder: Path) -> None:
    with ArtifactFile(exported("language_model", folder)) as file:
        assert sum(file.blob_bytes) == 4 * (50 * 8 + 32 * 8)


def test_random_numbers_are_the_devices(tmp_path: Path, device: str) -> None:
    model = nn.Dropout(0.5).train()
    loaded = bringup.load(bringup.export(model, (torch.ones(64),), out=tmp_path / "m.bup"))
    x = torch.ones(64, device=device)
    torch.manual_seed(7)
    first, second = loaded(x), loaded(x)
    torch.manual_seed(7)
    torch.testing.assert_close(first, model(x))
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}


# ---- what a loaded model is ----
def test_it_runs_without_the_models_code(folder: Path, tmp_path: Path, run_python: Any) -> None:
    """In a process that cannot import the model's class, from another folder."""
    path = exported("cnn", folder)
    x = torch.randn(3, 3, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    code = """
        import sys, torch, bringup
        model = bringup.load(sys.argv[1])
        torch.save(model(torch.load(sys.argv[2]))["logits"], sys.argv[3])
        assert not [name for name in sys.modules if "export_models" in name]
    """
    run_python(code, str(path), str(tmp_path / "x.pt"), str(tmp_path / "y.pt"), cwd=tmp_path)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), bringup.load(path)(x)["logits"], rtol=0, atol=0)


def test_it_says_what_it_takes_and_gives(folder: Path) -> None:
    loaded = bringup.load(exported("cnn", folder))
    (spec,) = loaded.input_specs
    assert (spec.name, spec.dtype, len(spec.shape)) == ("picture", "float32", 4)
    assert {name: (size.low, size.high) for name, size in loaded.sizes.items()} == {"batch": (1, 64)}
    assert loaded.output_spec == {
        "logits": "float32[batch, 5]",
        "count": "batch",
        "features": ("float32[batch, 8, 4, 4]", None),
    }
    small, large = loaded.report(batch=1), loaded.report(batch=64)
    assert small.weight_bytes == large.weight_bytes > 4 * 5 * 128
    assert 0 < small.arena_bytes < large.arena_bytes
    assert 0 < small.flops < large.flops
    assert len(large.kernels) == len(loaded.report().kernels) > 0
    assert "batch = 64" in str(large)
    with pytest.raises(TypeError, match="no size 'tokens'"):
        loaded.report(tokens=3)


def test_inputs_on_the_cpu_give_results_there(folder: Path, device: str) -> None:
    loaded = bringup.load(exported("mlp", folder))
    x = torch.randn(5, 6, requires_grad=True)
    assert loaded(x).device.type == "cpu"
    assert not loaded(x).requires_grad
    assert loaded(x.detach().to(device)).device.type == device
    odd = torch.randn(6, 5, device=device).t()
    assert torch.equal(loaded(odd), loaded(odd.contiguous()))


def test_a_result_that_is_a_weight_is_a_copy(tmp_path: Path, device: str) -> None:
    class Shows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + self.weight, self.weight

    loaded = bringup.load(bringup.export(Shows(), (torch.ones(3),), out=tmp_path / "m.bup"))
    loaded(torch.ones(3, device=device))[1].zero_()
    assert loaded(torch.ones(3))[0].tolist() == [2.0, 2.0, 2.0]


def test_state_lives_in_the_loaded_model(tmp_path: Path, device: str) -> None:
    model = Normalised().train()
    twin = copy.deepcopy(model).to(device)
    path = bringup.export(
        model, (torch.randn(5, 4),), out=tmp_path / "m.bup", dynamic_shapes=({0: Dim("batch", min=2, max=16)},)
    )
    assert model.seen.tolist() == [0] * 4  # exporting changes no model
    loaded = bringup.load(path)
    for batch in (2, 16, 5):
        x = torch.randn(batch, 4, device=device)
        torch.testing.assert_close(loaded(x), twin(x))
    assert set(loaded.state) == {"seen", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(loaded.state[name], buffer)
    assert bringup.load(path).state["seen"].tolist() == [0] * 4


def test_many_threads_call_one_model(folder: Path, device: str) -> None:
    loaded = bringup.load(exported("mlp", folder))
    given = [torch.randn(batch, 6, device=device) for batch in range(1, 33)]
    wanted = [bringup.load(exported("mlp", folder))(x) for x in given]
    wrong: list[int] = []

    def work(start: int) -> None:
        for step in range(64):
            n = (start * 7 + step) % len(given)
            if not torch.equal(loaded(given[n]), wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_take_turns_with_state(tmp_path: Path, device: str) -> None:
    model = Normalised().train()
    loaded = bringup.load(bringup.export(model, (torch.ones(2, 4),), out=tmp_path / "m.bup"))
    x = torch.tensor([[1.0] * 4, [2.0] * 4], device=device)
    threads = [threading.Thread(target=lambda: [loaded(x) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded.state["norm.num_batches_tracked"].item() == 80
    assert loaded.state["seen"].tolist() == [240.0] * 4


def test_it_loads_on_any_device(folder: Path, device: str) -> None:
    loaded = bringup.load(exported("mlp", folder), device=f"{device}:1")
    x = torch.randn(3, 6)
    assert loaded.device.index == loaded(x.to(f"{device}:1")).device.index == 1
    assert torch.equal(loaded(x), bringup.load(exported("mlp", folder))(x))
    assert loaded(x.to(f"{device}:0")).device.index == 1


def test_empty_and_strided_constants(tmp_path: Path) -> None:
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())
            self.register_buffer("part", torch.arange(100.0)[::10])
            self.register_buffer("nothing", torch.empty(0, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x + self.turned.sum(1), self.nothing]) + self.part[:3]

    model, x = Holds(), torch.randn(2, 3)
    path = bringup.export(model, (x,), out=tmp_path / "m.bup")
    torch.testing.assert_close(bringup.load(path)(x), model(x))


def test_a_device_without_kernels_says_so(folder: Path, run_python: Any) -> None:
    code = """
        import sys, torch, bringup
        for use in (
            lambda: bringup.load(sys.argv[1]),
            lambda: bringup.export(torch.nn.Identity(), (torch.ones(1),), out=sys.argv[1] + ".new", target="host"),
        ):
            try:
                use()
            except RuntimeError as error:
                assert "compiles no kernels" in str(error) and "mode=kernels" in str(error), error
            else:
                raise AssertionError
    """
    run_python(code, str(exported("mlp", folder)), env={"BRINGUP_SIM": "mode=library"})


# ---- wrong calls ----
def test_wrong_calls_say_which_input_is_wrong(folder: Path) -> None:
    loaded = bringup.load(exported("cnn", folder))
    x = torch.randn(2, 3, 8, 8)
    for call, error, words in [
        ((), TypeError, r"takes 1 arguments \('picture'\), it got 0"),
        ((x, x), TypeError, "it got 2"),
        ((x.double(),), TypeError, r"'picture' is a tensor of torch.float32, not of torch.float64"),
        ((3,), TypeError, "'picture' is a tensor, not a int"),
        ((x[0],), ValueError, r"\[batch, 3, 8, 8\] \(batch = 1…64\), not \[3, 8, 8\]"),
        ((x[:, :2],), ValueError, r"not \[2, 2, 8, 8\]"),
        ((x.to_sparse(),), TypeError, "strided"),
    ]:
        with pytest.raises(error, match=words):
            loaded(*call)
    with pytest.raises(TypeError, match="by name"):
        loaded(image=x)
    assert torch.equal(loaded(picture=x)["logits"], loaded(x)["logits"])


def test_constants_of_the_example_stay_what_they_are(folder: Path) -> None:
    loaded = bringup.load(exported("options", folder))
    x, more = torch.randn(4, 2), {"a": [torch.randn(2)]}
    loaded(x, 3.0, flag=True, more=more)
    with pytest.raises(ValueError, match=r"'scale' is 2.0, and the model was exported with 3.0"):
        loaded(x, 2.0, True, more=more)
    with pytest.raises(TypeError, match=r"'more' is a dict with the keys \['a'\]"):
        loaded(x, 3.0, True, more={"b": [x]})
    with pytest.raises(TypeError, match=r"'more'\['a'\] is a list of 1, not 2"):
        loaded(x, 3.0, True, more={"a": [x, x]})


# ---- what cannot be exported ----
def test_an_op_without_a_kernel_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(bringup.ExportError, match=r"_linalg_svd(.|\n)*export_models.py") as caught:
        bringup.export(Decomposition(), (torch.randn(4, 4),), out=tmp_path / "m.bup")
    assert "no lowering" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_model_that_writes_to_its_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bringup.ExportError, match="writes to its input 'x'"):
        bringup.export(WritesToItsInput(), (torch.randn(4),), out=tmp_path / "m.bup")


def test_a_size_that_only_the_data_know_is_refused(tmp_path: Path) -> None:
    class Finds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.nonzero()

    with pytest.raises((bringup.ExportError, RuntimeError)):
        bringup.export(Finds(), (torch.randn(4),), out=tmp_path / "m.bup")
    assert not list(tmp_path.iterdir())


def test_an_index_that_only_the_data_know_is_refused(tmp_path: Path) -> None:
    """Its range has no lower end, which was an AttributeError of sympy."""

    class Takes(nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[i[0]]

    # Older PyTorch refuses it itself.
    with pytest.raises(
        (bringup.ExportError, RuntimeError), match=r"cannot be lowered|data-dependent|depends on the data"
    ):
        bringup.export(Takes(), (torch.randn(4), torch.tensor([1])), out=tmp_path / "m.bup")


def test_a_refused_model_leaves_no_hook(tmp_path: Path) -> None:
    """torch.export 2.12 leaves one that fails every later torch.compile of a module that assigns a buffer."""

    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    before = dict(nn.modules.module._global_buffer_registration_hooks)
    with pytest.raises((bringup.ExportError, RuntimeError)):
        bringup.export(Refused(), (torch.randn(4),), out=tmp_path / "m.bup")
    assert dict(nn.modules.module._global_buffer_registration_hooks) == before


def test_results_with_names_are_tuples(tmp_path: Path, device: str) -> None:
    x = torch.randn(3, 5, device=device)
    path = bringup.export(Calls(lambda x: {"top": x.topk(2), "all": x.aminmax()}), (x,), out=tmp_path / "m.bup")
    found = bringup.load(path)(x)
    assert type(found["top"]) is tuple
    for ours, theirs in zip((*found["top"], *found["all"]), (*x.topk(2), *x.aminmax())):
        assert torch.equal(ours, theirs)


def test_results_in_other_containers_are_refused_in_words(tmp_path: Path) -> None:
    @dataclass
    class Output:
        logits: torch.Tensor

    torch.export.register_dataclass(Output, serialized_type_name="tests.Output")
    with pytest.raises(bringup.ExportError, match="the results: a Output; there are tuples, lists and dicts in a file"):
        bringup.export(Calls(lambda x: Output(x * 2)), (torch.ones(3),), out=tmp_path / "m.bup")


def test_an_assertion_of_the_model_is_part_of_the_file(tmp_path: Path, device: str) -> None:
    index = torch.tensor([0, 4], device=device)
    if "_assert_async" not in str(torch.export.export(Calls(lambda i: F.one_hot(i, 5)), (index,)).graph):
        pytest.skip(f"PyTorch {torch.__version__} does not trace the check of one_hot")
    path = bringup.export(Calls(lambda i: F.one_hot(i, 5)), (index,), out=tmp_path / "m.bup")
    model = bringup.load(path)
    assert torch.equal(model(index), F.one_hot(index, 5))
    with pytest.raises(IndexError, match="assertion"):
        model(index + 1).cpu()


def test_an_unknown_target_is_an_error_that_lists_them(tmp_path: Path) -> None:
    # Other tests of the same process may have registered more.
    with pytest.raises(ValueError, match=r"no target 'abacus'; there are host, (.+, )?riscv, sim"):
        bringup.export(nn.Identity(), (torch.ones(1),), out=tmp_path / "m.bup", target="abacus")


def test_a_target_of_ones_own_gets_the_program(tmp_path: Path) -> None:
    got: list[Any] = []

    @export_target("a-target-of-this-test")
    def write(program: Any, constants: Any, out: Path, *, examples: Any, size: int) -> None:
        assert torch.equal(examples[0], torch.ones(1, 2))
        assert size == 3
        got.append((program, [bytes(constant) for constant in constants]))
        out.write_text(program.target)

    assert "a-target-of-this-test" in target_names()
    with pytest.raises(ValueError, match="already"):
        export_target("host")(write)
    model = nn.Linear(2, 1, bias=False)
    path = bringup.export(model, (torch.ones(1, 2),), out=tmp_path / "project", target="a-target-of-this-test", size=3)
    assert path.read_text() == "a-target-of-this-test"
    ((program, (weight,)),) = got
    assert weight == model.weight.detach().numpy().tobytes()
    assert program.constants[0].shape == (1, 2)


def test_wrong_arguments_of_export_are_errors(tmp_path: Path) -> None:
    model, x = nn.Identity(), torch.ones(1)
    with pytest.raises(TypeError, match=r"torch.nn.Module, not a function"):
        bringup.export(lambda x: x, (x,), out=tmp_path / "m.bup")
    with pytest.raises(TypeError, match="args is a tuple"):
        bringup.export(model, x, out=tmp_path / "m.bup")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        bringup.export(model, (x,), out=tmp_path / "no" / "m.bup")
    with pytest.raises(ValueError, match="of type 'sim'"):
        bringup.load(bringup.export(model, (x,), out=tmp_path / "m.bup"), device="cpu")


def test_exporting_leaves_the_model_where_it_is(tmp_path: Path, device: str) -> None:
    model = ConvolutionalNet().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    bringup.export(model, (torch.randn(2, 3, 8, 8, device=device),), out=tmp_path / "m.bup")
    for name, value in model.state_dict().items():
        assert value.device.type == "cpu"
        assert torch.equal(value, before[name])
    assert all(parameter.requires_grad for parameter in model.parameters())
