"""``torch.compile(model)`` without a backend, and ``backend="<device name>"``: what is ours, what stays inductor's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.backends import registry

from tests.graph.comparing import Net, same

pytestmark = pytest.mark.skipif(
    not hasattr(registry, "set_default_backend"), reason="this torch has no default backend to set (2.13 has)"
)
MODES = [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@pytest.fixture(autouse=True)
def _default_comes_back() -> Iterator[None]:
    before = registry.get_default_backend()
    yield
    registry.set_default_backend(before)


def work(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * x.sum()


def names_seen(function: Callable[..., Any], *arguments: Any, **choices: Any) -> list[str]:
    """Who compiled the graphs of a function: bringup, inductor."""
    from torch._inductor import compile_fx

    from bringup.graph.compile.backend import Backend

    seen = []
    ours = Backend.__call__

    def of_bringup(self: Backend, *given: Any, **named: Any) -> Any:
        seen.append("bringup")
        return ours(self, *given, **named)

    def of_inductor(module: Any, *_: Any, **__: Any) -> Any:
        seen.append("inductor")
        return module.forward

    with mock.patch.object(Backend, "__call__", of_bringup), mock.patch.object(compile_fx, "compile_fx", of_inductor):
        torch.compile(function, **choices)(*arguments)
    return seen


# ---- by the device's name ----
def test_the_device_is_a_backend(numbers: Any, device: str) -> None:
    assert device in torch._dynamo.list_backends()
    x = numbers(4, 4)
    same(torch.compile(work, backend=device)(x), work(x))
    same(torch.compile(work, backend=device, mode="reduce-overhead", options=None)(x), work(x))


def test_a_wrong_name_is_dynamos_error(device: str) -> None:
    with pytest.raises(Exception, match=f"Invalid backend.*{device}x"):
        torch.compile(work, backend=f"{device}x")


@pytest.mark.parametrize(
    ("name", "module"), [("mychip", "bringup.graph.compile.backend"), ("tvm", "torch._dynamo.backends.tvm")]
)
def test_a_renamed_device(name: str, module: str, run_python: Any, tmp_path: Any) -> None:
    """A backend of torch's keeps its name, and the device of that name still works."""
    lines = [
        "from bringup.drivers.sim import Driver as Sim",
        "class Driver(Sim):",
        f"    name = device_name = {name!r}",
    ]
    (tmp_path / "driver.py").write_text("\n".join(lines))
    code = """
    import sys, torch, torch._dynamo
    assert sys.argv[1] in torch._dynamo.list_backends()
    print(torch._dynamo.lookup_backend(sys.argv[1]).__module__)
    print(torch.compile(lambda x: x + 1)(torch.ones(3, device=sys.argv[1])).cpu().tolist())
    """
    said = run_python(code, name, env={"BRINGUP_DRIVERS": str(tmp_path / "driver.py")}).stdout
    assert said == f"{module}\n[2.0, 2.0, 2.0]\n"


# ---- when Dynamo is imported ----
def test_import_torch_does_not_import_dynamo(run_python: Any) -> None:
    code = """
    import sys, torch
    before = list(sys.meta_path)
    assert torch.sim.is_available() and "torch._dynamo" not in sys.modules
    import importlib.util
    assert importlib.util.find_spec("torch._dynamo") is not None  # a look is not an import
    import torch._dynamo
    assert len(before) == len(sys.meta_path) + 1, "the finder goes when it has found"
    from torch._dynamo.device_interface import get_interface_for_device
    print(get_interface_for_device("sim").device_count(), torch.sim.is_initialized())
    print("bringup.graph.compile.backend" in sys.modules)
    """
    assert run_python(code, env={"BRINGUP_SIM": "devices=3"}, fresh=True).stdout == "3 False\nFalse\n"


def test_activation_after_the_import_of_dynamo(run_python: Any) -> None:
    code = """
    import torch, torch._dynamo
    import bringup
    bringup.activate("sim")
    print(torch.compile(lambda x: x + 1)(torch.ones(2, device="sim")).cpu().tolist())
    """
    assert run_python(code, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, fresh=True).stdout == "[2.0, 2.0]\n"


# ---- without a backend: our device ----
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_inductor_is_accepted(mode: str | None, numbers: Any) -> None:
    x = numbers(4, 4)
    assert names_seen(work, x, mode=mode) == ["bringup"]
    torch._dynamo.reset()
    same(torch.compile(work, mode=mode)(x), work(x))


def test_training(numbers: Any, device: str) -> None:
    torch.manual_seed(0)
    model = Net().to(device)
    x = numbers(16, 12)
    expected = model(x)
    slopes = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    found = torch.compile(model, dynamic=True)(x)
    same(found.detach(), expected.detach())
    same(list(torch.autograd.grad(found.square().sum(), list(model.parameters()))), list(slopes))


def test_module_compile_and_the_decorator(numbers: Any, device: str) -> None:
    model = torch.nn.Linear(4, 4).to(device)
    x = numbers(2, 4)
    expected = model(x).detach()
    model.compile()
    same(model(x).detach(), expected)

    @torch.compile(fullgraph=True)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return work(x)

    same(decorated(x), work(x))


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (lambda _: torch.ones(3, device="sim") * 2, "cpu"),
        (lambda x: x.to("sim") * 2, "cpu"),
        (lambda x: (x * 2).cpu() + 1, "sim"),
        (lambda x: torch.cond(x.sum() > 0, lambda x: x.to("sim").sin().cpu(), lambda x: x.cos(), (x,)), "cpu"),
    ],
    ids=["made inside", "moved inside", "moved away", "inside a branch"],
)
def test_nodes_count_as_inputs_do(function: Any, where: str, device: str) -> None:
    """Inductor has no code for a graph with one node on our device, wherever its inputs are."""
    if device != "sim":
        pytest.skip("the functions name sim")
    assert names_seen(function, torch.ones(3, device=where)) == ["bringup"]


def test_a_graph_over_two_device_types_is_ours(numbers: Any) -> None:
    """The rule: one tensor on our device makes it our graph; nodes of other devices run as ordinary ops."""
    x, y = numbers(3), torch.ones(3)

    def mixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() + 1, y.sin() + 1

    assert names_seen(mixed, x, y) == ["bringup"]
    torch._dynamo.reset()
    same(list(torch.compile(mixed)(x, y)), list(mixed(x, y)))


def test_options_of_inductor_are_refused_on_our_device(numbers: Any, device: str) -> None:
    run = torch.compile(work, options={"max_autotune": True, "epilogue_fusion": True})
    with pytest.raises(Exception, match="options of inductor") as caught:
        run(numbers(3))
    for word in ("max_autotune", "epilogue_fusion", device, 'backend="bringup"'):
        assert word in str(caught.value)


# ---- without a backend: all other devices ----
@pytest.mark.parametrize("mode", MODES)
def test_inductor_has_its_configuration(mode: str | None) -> None:
    ours, theirs = torch.compile(work, mode=mode), torch.compile(work, mode=mode, backend="inductor")
    assert ours.get_compiler_config() is not None
    assert ours.get_compiler_config() == theirs.get_compiler_config()


def calls_of_inductor(**choices: Any) -> Any:
    from torch._inductor import compile_fx

    with mock.patch.object(compile_fx, "compile_fx", side_effect=lambda module, *_, **__: module.forward) as called:
        torch.compile(work, **choices)(torch.ones(3))
    torch._dynamo.reset()
    return [(str(given[0].graph), named) for given, named in called.call_args_list]


@pytest.mark.parametrize(
    "choices",
    [
        *({"mode": mode} for mode in MODES),
        {"options": {"max_autotune": True, "cpp.threads": 1}},
        {"name": "region"},
        {"dynamic": True, "mode": "max-autotune"},
        {"dynamic": False, "name": "another", "fullgraph": True},
    ],
    ids=str,
)
def test_inductor_is_called_as_ever(choices: dict[str, Any]) -> None:
    ours, theirs = calls_of_inductor(**choices), calls_of_inductor(backend="inductor", **choices)
    assert len(ours) == 1
    assert ours == theirs


@pytest.mark.sweep
@pytest.mark.parametrize("mode", MODES)
def test_inductors_code_is_the_same(mode: str | None) -> None:
    from torch._inductor.utils import run_and_get_code

    def code(**choices: Any) -> list[str]:
        torch._dynamo.reset()
        _, found = run_and_get_code(torch.compile(work, mode=mode, **choices), torch.ones(8))
        return [text.partition("\n")[2] for text in found]  # the first line counts the graphs of the process

    with torch._inductor.config.patch(fx_graph_cache=False, force_disable_caches=True):
        ours = code()
        assert ours == code(backend="inductor")
    assert "cpp_fused" in ours[0]


@pytest.mark.parametrize(
    "choices",
    [{"options": {"max_autotunee": True}}, {"options": {"max_autotune": "yes"}}, {"mode": "fast"}, {"mode": "trace"}],
    ids=str,
)
def test_bad_choices_raise_at_compile(choices: dict[str, Any]) -> None:
    """As without bringup: not at the first call."""
    with pytest.raises(RuntimeError) as theirs:
        torch.compile(work, backend="inductor", **choices)
    with pytest.raises(RuntimeError) as ours:
        torch.compile(work, **choices)
    assert str(ours.value) == str(theirs.value)


def test_reset_reaches_inductor() -> None:
    from torch._inductor import cudagraph_trees

    torch.compile(work, mode="reduce-overhead")
    with mock.patch.object(cudagraph_trees, "reset_cudagraph_trees") as called:
        torch._dynamo.reset()
    assert called.called


def test_aot_compile_and_aot_inductor() -> None:
    """What asks for inductor's wrapper by its class, and what becomes another class of it."""
    saved = torch.compile(work, fullgraph=True).aot_compile(((torch.ones(3),), {}))
    torch.testing.assert_close(saved(torch.ones(3)), work(torch.ones(3)))
    run = torch.compile(work, options={"use_aoti": True})
    assert run.get_compiler_config()["aot_inductor.package"] is True


@pytest.mark.parametrize("backend", [None, "bringup"])
def test_aot_compile_on_our_device_names_export(backend: str | None, numbers: Any) -> None:
    run = torch.compile(work, fullgraph=True, backend=backend)
    with pytest.raises(RuntimeError, match=r"aot_compile cannot store graphs of bringup: bringup\.export"):
        run.aot_compile(((numbers(3),), {}))


def test_code_of_inductor_is_not_taken_for_ours(numbers: Any) -> None:
    """The two wrappers differ for Dynamo's cache, though their configurations are equal."""
    x = numbers(3)
    torch.compile(work)(x)
    with pytest.raises(Exception, match='backend="bringup"'):
        torch.compile(work, backend="inductor")(x)


# ---- whose default it is ----
def test_the_users_default_wins(numbers: Any) -> None:
    x = numbers(3)
    for choice in ("eager", lambda module, _: module.forward):
        registry.set_default_backend(choice)
        assert names_seen(work, x) == []
        torch._dynamo.reset()
    registry.set_default_backend(None)  # PyTorch's own
    with pytest.raises(Exception, match=r'inductor generates no code.*backend="bringup"'):
        torch.compile(work)(x)


def test_the_users_earlier_default_wins() -> None:
    """Before an activation that comes after the import of Dynamo."""
    from bringup.graph.compile import dynamo_registration

    registry.set_default_backend("eager")
    dynamo_registration.register(default=True)
    assert registry.get_default_backend() == "eager"


def test_the_off_switch(run_python: Any) -> None:
    """The way it was: inductor, and on our device its error that names the backend. Torch before 2.13 does the same."""
    code = """
    import torch, torch._dynamo
    from torch._dynamo.backends import registry
    print(registry.get_default_backend(), "sim" in torch._dynamo.list_backends())
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device="sim"))
    except Exception as error:
        print(error)
    """
    said = run_python(code, env={"BRINGUP_DEFAULT_BACKEND": "off"}).stdout
    assert said.startswith("inductor True\n")
    assert 'inductor generates no code for sim: compile with torch.compile(model, backend="bringup")' in said


def test_torch_without_a_default_to_set() -> None:
    from bringup.graph.compile import dynamo_registration

    older = mock.Mock(spec=["_BACKENDS"], _BACKENDS={})
    with mock.patch.object(dynamo_registration, "registry", older):
        dynamo_registration.register(default=True)
    assert list(older._BACKENDS) == [torch._C._get_privateuse1_backend_name()]
