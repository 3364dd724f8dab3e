"""Files that bringup.export did not write so: damaged, foreign or hostile ones are errors, and nothing in them runs."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

import bringup
from bringup.graph.export import artifact
from bringup.graph.export.artifact import ArtifactFile, write_artifact

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]
WIDTH = 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is good: three kernels, dynamic sizes, constants of two types."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 3)
            self.register_buffer("mask", torch.tensor([True, False, True]))

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.layer(x).softmax(1)
            return {"y": torch.where(self.mask, y, 2.0), "sum": x.sum()}

    out = tmp_path_factory.mktemp("files") / "model.bup"
    return bringup.export(Model().eval(), (example(3),), out=out, dynamic_shapes=({0: Dim("batch", min=1, max=5)},))


def example(batch: int) -> torch.Tensor:
    return torch.arange(batch * WIDTH, dtype=torch.float32).reshape(batch, WIDTH)


def parts(path: Path) -> tuple[Manifest, list[bytes]]:
    with ArtifactFile(path) as file:
        blobs = [bytes(file.blob(n)) for n in range(len(file.blob_bytes))]
        return copy.deepcopy(file.manifest), blobs


def changed(path: Path, change: Change, name: str = "changed.bup") -> Path:
    """The file with another manifest, and checksums that are right."""
    manifest, blobs = parts(path)
    change(manifest)
    out = path.with_name(name)
    write_artifact(out, manifest, blobs)
    return out


# ---- damaged ----
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_noticed(path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    place = data.draw(st.one_of(st.integers(0, 80), st.integers(0, len(content) - 1)))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    damaged = path.with_name("damaged.bup")
    damaged.write_bytes(content)
    with pytest.raises(bringup.ArtifactError, match=r"damaged.bup: "):
        bringup.load(damaged)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_short_or_too_long_is_noticed(path: Path, data: st.DataObject) -> None:
    content = path.read_bytes()
    length = data.draw(st.one_of(st.integers(0, 100), st.integers(0, len(content) - 1)))
    damaged = path.with_name("short.bup")
    for wrong in (content[:length], content + content[:1] * (length + 1)):
        damaged.write_bytes(wrong)
        with pytest.raises(bringup.ArtifactError):
            bringup.load(damaged)


def test_something_between_blobs_is_noticed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content, 16)
    first = -(-(64 + length) // 64) * 64
    blobs = json.loads(content[64 : 64 + length])["blobs"]
    gaps = [first + start + nbytes for start, nbytes, _ in blobs[:-1] if nbytes % 64]
    assert gaps
    for place in gaps:
        damaged = bytearray(content)
        damaged[place] = 1
        path.with_name("gap.bup").write_bytes(damaged)
        with pytest.raises(bringup.ArtifactError, match="something between its parts"):
            bringup.load(path.with_name("gap.bup"))


# ---- foreign ----
class Bomb:
    """Unpickling it would leave a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def foreign_files(trace: Path) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "a pickle", pickle.dumps(Bomb(trace))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Bomb(trace)))
    yield "a zip", packed.getvalue()
    saved = io.BytesIO()
    torch.save({"a": torch.ones(3)}, saved)
    yield "a checkpoint", saved.getvalue()
    yield "text", b"import os\n" * 100
    yield "only the magic", artifact.MAGIC
    huge = struct.pack("<8sIIQQ", artifact.MAGIC, artifact.FORMAT, 0, 1 << 62, 1 << 63)
    yield "a huge header", huge + bytes(100)
    yield "magic and a pickle", artifact.MAGIC + pickle.dumps(Bomb(trace)) * 10
    yield "zeros", bytes(1000)


def test_foreign_files_are_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "was here"
    for name, content in foreign_files(trace):
        file = tmp_path / "foreign.bup"
        file.write_bytes(content)
        with pytest.raises(bringup.ArtifactError) as caught:
            bringup.load(file)
        assert str(file) in str(caught.value), name
    assert not trace.exists()


def test_what_a_foreign_file_is_is_said(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(torch.ones(3), file)
    with pytest.raises(bringup.ArtifactError, match=r"not a model that bringup.export wrote but a zip file"):
        bringup.load(file)


def test_another_version_says_what_to_do(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] = artifact.FORMAT + 1
    other = path.with_name("newer.bup")
    other.write_bytes(content)
    with pytest.raises(bringup.ArtifactError, match=r"format 2, and this bringup reads format 1: export"):
        bringup.load(other)


def test_no_file_and_a_folder_are_the_systems_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bringup.load(tmp_path / "none.bup")
    with pytest.raises(IsADirectoryError):
        bringup.load(tmp_path)


# ---- hostile: checksums are right ----
HOSTILE: dict[str, tuple[Change, str]] = {}


def refused(words: str) -> Callable[[Change], Change]:
    """A change after which the file must be refused with these words."""

    def note(change: Change) -> Change:
        HOSTILE[change.__name__] = change, words
        return change

    return note


def call_of(manifest: Manifest, role: str) -> tuple[list[Any], int]:
    """A call of the first variant, and the number of a buffer of this role."""
    for call in manifest["variants"][0]["calls"]:
        lines = [line.split() for line in manifest["kernels"][call[0]].splitlines()]
        roles = [words[0] for words in lines if words and words[0] in ("in", "out", "inout")]
        if role in roles:
            return call, roles.index(role)
    raise AssertionError(f"no buffer is {role}")


@refused(r"bounds: x\[i \+ 1\]")
def reads_too_far(manifest: Manifest) -> None:
    manifest["kernels"][0] = (
        "kernel k\n  size n\n  in x: float32[n] strides [1]\n  out y: float32[n] strides [1]\n  grid i < n\n  {\n"
        "    store y[i] = x[i + 1]\n  }"
    )
    for variant in manifest["variants"]:
        variant["calls"] = [[0, [["tensor", 0, 0], ["temporary", 0, 0]], [1], []]]


@refused(r"may write to temporaries only")
def writes_to_the_input(manifest: Manifest) -> None:
    call, buffer = call_of(manifest, "out")
    call[1][buffer] = ["tensor", len(manifest["constants"]), 0]


@refused(r"may write to temporaries only")
def writes_to_a_weight(manifest: Manifest) -> None:
    call, buffer = call_of(manifest, "out")
    call[1][buffer] = ["tensor", 0, 0]


@refused(r"lies outside of its memory")
def starts_before_its_memory(manifest: Manifest) -> None:
    call, buffer = call_of(manifest, "in")
    call[1][buffer][2] = -1


@refused(r"lies outside of its memory")
def starts_far_behind_its_memory(manifest: Manifest) -> None:
    call, buffer = call_of(manifest, "in")
    call[1][buffer][2] = 1 << 40


@refused(r"lies outside of its memory")
def makes_memories_small(manifest: Manifest) -> None:
    for variant in manifest["variants"]:
        variant["temporaries"] = [0 for _ in variant["temporaries"]]


@refused(r"lies outside of its memory")
def makes_loops_large(manifest: Manifest) -> None:
    for variant in manifest["variants"]:
        for call in variant["calls"]:
            call[2] = [["+", [1 << 20, size]] if type(size) is str else 1 << 20 for size in call[2]]


@refused(r"lies outside of its memory|a formula gives")
def shows_more_than_there_is(manifest: Manifest) -> None:
    for variant in manifest["variants"]:
        for result in variant["results"]:
            result[3] = [1 << 30 for _ in result[3]]


@refused(r"is not a size")
def names_code_as_a_size(manifest: Manifest) -> None:
    manifest["variants"][0]["temporaries"][0] = "__import__('os').abort()"


@refused(r"no name")
def names_a_size_as_code(manifest: Manifest) -> None:
    manifest["sizes"][0][0] = "__import__('os').abort()"


@refused(r"nested too deeply")
def nests_formulas(manifest: Manifest) -> None:
    formula: Any = "batch"
    for _ in range(100):
        formula = ["max", formula, 3]
    manifest["variants"][0]["temporaries"][0] = formula


@refused(r"divides by 0")
def divides_by_zero(manifest: Manifest) -> None:
    for variant in manifest["variants"]:
        variant["temporaries"] = [["//", 1 << 20, ["+", [-1], [1, "batch"]]] for _ in variant["temporaries"]]
        variant["guards"] = []


@refused(r"divides by 0")
def divides_by_zero_in_guards(manifest: Manifest) -> None:
    for variant in manifest["variants"]:
        variant["guards"] = [["ge", ["//", 8, ["+", [-1], [1, "batch"]]]]]


@refused(r"its shape and strides say others")
def has_weights_of_another_shape(manifest: Manifest) -> None:
    manifest["constants"][0][2][0] += 1


@refused(r"negative")
def has_negative_strides(manifest: Manifest) -> None:
    manifest["inputs"][0][3] = [-4, 1]


@refused(r"there is none")
def has_no_variant(manifest: Manifest) -> None:
    manifest["variants"] = []


@refused(r"no kernel")
def has_a_kernel_that_is_none(manifest: Manifest) -> None:
    manifest["kernels"][0] = "kernel k {" + "(" * 5000


@refused(r"not as bringup prints")
def has_a_kernel_in_other_words(manifest: Manifest) -> None:
    manifest["kernels"][0] = manifest["kernels"][0] + "\n"


@refused(r"wanted a whole number")
def asks_for_unknown_numbers(manifest: Manifest) -> None:
    for call in manifest["variants"][0]["calls"]:
        call[3] = [["number", 0] for _ in call[3]]
    manifest["variants"][0]["number_guards"] = [[0, "eq", 1]]


@refused(r"no type of kernels")
def has_a_type_that_is_none(manifest: Manifest) -> None:
    manifest["inputs"][0][1] = "save"


@refused(r"wanted a whole number")
def gives_results_that_are_not_there(manifest: Manifest) -> None:
    manifest["gives"] = ["tuple", {"result": 99}]


@refused(r"no kind of container")
def imports_a_container(manifest: Manifest) -> None:
    manifest["gives"] = ["collections.defaultdict", {"result": 0}]


@refused(r"no arguments")
def takes_something_else(manifest: Manifest) -> None:
    manifest["takes"] = ["tuple", manifest["takes"][1]]


@refused(r"input 0 is not there")
def takes_no_input(manifest: Manifest) -> None:
    manifest["takes"] = ["tuple", ["tuple", {"value": 1}], ["dict"]]


@refused(r"divides by 0")
def gives_what_divides_by_zero(manifest: Manifest) -> None:
    manifest["gives"] = {"size": ["//", 1, ["+", [1, "batch"], [-3]]]}


@refused(r"shape of the state|another type")
def becomes_another_state(manifest: Manifest) -> None:
    manifest["constants"][0][4] = True
    manifest["updates"] = [[0, n] for n in range(len(manifest["variants"][0]["results"]))]


@refused(r"no kernel|not as bringup prints")
def a_kernel_whose_name_has_a_line_end(manifest: Manifest) -> None:
    name, dot, rest = manifest["kernels"][0].partition("(")
    manifest["kernels"][0] = f"{name}\n{dot}{rest}"


@refused(r"not state")
def changes_what_is_no_state(manifest: Manifest) -> None:
    manifest["updates"] = [[0, 0]]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_lies_is_refused(path: Path, name: str) -> None:
    change, words = HOSTILE[name]
    file = changed(path, change)

    def use() -> None:
        loaded = bringup.load(file)
        for batch in (3, 1, 5):
            loaded(example(batch))

    with pytest.raises(bringup.ArtifactError, match=words):
        use()


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"{}", b"1e999", b"9" * 10_000, b"\xff", b""]
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    head = struct.pack("<8sIIQQ", artifact.MAGIC, artifact.FORMAT, 0, len(text), 64 + len(text))
    file = tmp_path / "manifest.bup"
    file.write_bytes(head + hashlib.sha256(head + text).digest() + text)
    with pytest.raises(bringup.ArtifactError, match=r"manifest"):
        bringup.load(file)


def test_a_bool_that_is_none_is_refused(path: Path) -> None:
    manifest, blobs = parts(path)
    (number,) = [n for n, constant in enumerate(manifest["constants"]) if constant[1] == "bool"]
    blobs[number] = b"\x02" + blobs[number][1:]
    file = path.with_name("bool.bup")
    write_artifact(file, manifest, blobs)
    with pytest.raises(bringup.ArtifactError, match="not bool"):
        bringup.load(file)


SOMETHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([-1, 0, 1, 2, 1 << 40, "batch", "tensor", "temporary", "float64", "", [], {}, [1], ["+"], 0.5]),
    st.text(max_size=8),
    st.recursive(st.integers(-9, 9), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)


def spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    found: list[tuple[Any, Any]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, inner in entries:
        found += [(value, key), *spots(inner)]
    return found


#: What a model that asks for other arguments says of those that it gets.
ARGUMENTS = r"argument|input|this model takes|exported for|not lowered"


def _refused_or_harmless(file: Path, given: torch.Tensor) -> None:
    """What the file says is wrong is an ArtifactError; what is wrong with the arguments then, another."""
    with contextlib.suppress(bringup.ArtifactError, torch.OutOfMemoryError):
        loaded = bringup.load(file)
        try:
            loaded(given)
            torch.sim.synchronize()
        except (ValueError, TypeError) as error:
            if not isinstance(error, bringup.ArtifactError) and not re.search(ARGUMENTS, str(error)):
                raise


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_other_manifest_is_refused_or_harmless(path: Path, data: st.DataObject) -> None:
    """A value somewhere in it is replaced: loading and calling ends in an error that explains, or well."""

    def change(manifest: Manifest) -> None:
        places = spots(manifest)
        container, key = places[data.draw(st.integers(0, len(places) - 1))]
        container[key] = data.draw(SOMETHING)

    file = changed(path, change, "fuzzed.bup")
    given = example(2)
    _refused_or_harmless(file, given)
    assert torch.equal(given, example(2))


@pytest.mark.sweep
def test_every_wrong_value_in_every_place(path: Path) -> None:
    """The same, for all places and a list of values that are wrong in most of them."""
    wrong: list[Any] = [None, True, -1, 0, 1, 2, 1 << 40, 1 << 70, 0.5, "", "x", "batch", "tensor", "float64", "a\n"]
    wrong += [[], {}, [1], ["+"], ["tuple"], ["dict"], {"input": 0}, {"input": -1}, {"size": "batch"}, {"value": None}]
    manifest, blobs = parts(path)
    for place in range(len(spots(manifest))):
        for value in wrong:
            changed_manifest = copy.deepcopy(manifest)
            container, key = spots(changed_manifest)[place]
            container[key] = value
            file = path.with_name("wrong.bup")
            write_artifact(file, changed_manifest, blobs)
            _refused_or_harmless(file, example(2))


def test_a_size_that_no_graph_serves_is_an_error(path: Path) -> None:
    """As of a range too large to try every size in it."""

    def change(manifest: Manifest) -> None:
        manifest["variants"] = manifest["variants"][:1]
        manifest["variants"][0]["guards"] = [["eq", ["+", [-3], [1, "batch"]]]]

    loaded = bringup.load(changed(path, change))
    loaded(example(3))
    with pytest.raises(ValueError, match="not lowered for batch = 2"):
        loaded(example(2))


# ---- writing ----
def test_a_failing_export_leaves_the_old_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model.bup"
    out.write_bytes(path.read_bytes())
    manifest, blobs = parts(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_artifact(out, manifest, blobs)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["model.bup"]
    assert out.read_bytes() == path.read_bytes()
    bringup.load(out)


def test_writing_twice_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    manifest, blobs = parts(path)
    write_artifact(tmp_path / "again.bup", manifest, blobs)
    assert (tmp_path / "again.bup").read_bytes() == path.read_bytes()


def test_the_manifest_is_json_without_code(path: Path) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content, 16)
    manifest = json.loads(content[64 : 64 + length])
    assert manifest["bringup"] == bringup.__version__
    assert all(kernel.startswith("kernel ") for kernel in manifest["kernels"])
    assert all(offset % 64 == 0 for offset, _, _ in manifest["blobs"])
