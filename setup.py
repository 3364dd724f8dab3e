"""Builds the C++ core ``bringup._C`` and the C libraries beside it; metadata is in pyproject.toml.

A precompiled header was tried: it saves 4 of 9 s per file and costs 13 s, too little for a second set of build rules.
Folders that are compiled together (UNITED) took 320 s of CPU time file by file.
Environment: ``MAX_JOBS`` (compilers at once, default: all cores), ``CC``/``CXX`` (then ccache is left to you).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# An installed bringup would otherwise be activated by the `import torch` below, while its binary is being replaced.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths

ROOT = Path(__file__).parent.resolve()
CSRC = Path("bringup/csrc")
INCLUDE = Path("bringup/include")
#: Folders of csrc/ whose files are one translation unit: torch's headers take 5 to 20 s, the code behind them 1 or 2.
UNITED = {
    "bindings": ("amp", "distributed", "profiler", "python"),  # with ATen.h
    "operators": ("aten", "placement", "pytorch"),
    "runtime": ("runtime",),
}
#: C libraries: where each lies in the package, its sources, and its own flags.
LIBRARIES = (
    ("bringup/drivers/sim/_sim.so", "bringup/drivers/sim/*.c", ("-O2", "-pthread")),
    # Hidden names call each other directly; fused multiply-adds only where the guest asks for one.
    ("bringup/riscv/_iss.so", "bringup/riscv/iss/*.c", ("-O3", "-fvisibility=hidden", "-ffp-contract=off")),
    # libdpu's calls keep their names; faults of DPU programs leave by longjmp, from their own stacks.
    (
        "bringup/upmem/_dpu.so",
        "bringup/upmem/native/*.c",
        ("-O2", "-pthread", "-fvisibility=hidden", "-U_FORTIFY_SOURCE", "-Ibringup/upmem/include/host"),
    ),
)
TORCH_VERSION = torch.__version__.split("+")[0]
TORCH_MAJOR, TORCH_MINOR = (int(part) for part in TORCH_VERSION.split(".")[:2])


def prepare_environment() -> None:
    """Makes ninja of this Python findable, uses every core, and puts ccache before the compilers if it is there."""
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count() or 1))
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    ccache = shutil.which("ccache")
    if ccache and not os.environ.get("CC") and not os.environ.get("CXX"):
        # By symlinks, because torch's compiler check and distutils both want CXX to be one plain program.
        links = ROOT / "build" / "ccache"
        links.mkdir(parents=True, exist_ok=True)
        for compiler in ("cc", "gcc", "c++", "g++"):
            link = links / compiler
            if shutil.which(compiler) and not link.is_symlink():
                link.symlink_to(ccache)
        search.insert(0, str(links))
    os.environ["PATH"] = os.pathsep.join(search)


def core_sources() -> list[str]:
    """Every C++ file under csrc/, those of a united folder by one file that includes them."""
    united = [Path("build") / "united" / f"{name}.cpp" for name in UNITED]
    for file, folders in zip(united, UNITED.values()):
        parts = [path.relative_to(CSRC) for folder in folders for path in sorted((CSRC / folder).glob("*.cpp"))]
        text = "".join(f'#include "{path}"\n' for path in parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text() != text:  # ninja looks at its time
            file.write_text(text)
    return sorted(map(str, united))


def core() -> CppExtension:
    """The extension module."""
    paths = [*include_paths(), str(Path(torch.__file__).parent / "include/kineto")]  # whose headers include each other
    torch_headers = [flag for path in paths for flag in ("-isystem", path)]  # -Wall is for our code only
    return CppExtension(
        "bringup._C",
        core_sources(),
        include_dirs=[str(ROOT / CSRC), str(ROOT / INCLUDE)],
        define_macros=[
            ("BRINGUP_TORCH_VERSION", f'"{TORCH_VERSION}"'),
            ("BRINGUP_TORCH_MINOR", str(TORCH_MAJOR * 100 + TORCH_MINOR)),  # 213: feature probes compare with this
        ],
        extra_compile_args={"cxx": ["-std=c++20", "-O2", "-g0", "-fvisibility=hidden", "-Wall", *torch_headers]},
        extra_link_args=["-Wl,--exclude-libs,ALL", "-s"],
    )


class BuildCore(BuildExtension):
    """BuildExtension that compiles again only what changed, and builds the C libraries beside the core."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # A fixed folder per torch and Python: editable installs get a temporary one, which compiles everything again.
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        self.build_temp = str(ROOT / "build" / f"torch{TORCH_VERSION}-{python}")
        self.force = True  # ninja knows which files are stale, also by their headers; distutils does not

    def run(self) -> None:
        try:
            super().run()
        except RuntimeError as error:  # the compiler has said what is wrong; a traceback would push it off the screen
            sys.exit(f"bringup._C was not built: {error}")
        for place, sources, flags in LIBRARIES:
            self.build_library(Path(place), sorted(str(path) for path in Path().glob(sources)), flags)

    def build_library(self, place: Path, sources: list[str], flags: tuple[str, ...]) -> None:
        library = Path(self.build_lib) / place
        library.parent.mkdir(parents=True, exist_ok=True)
        needed = [Path(__file__), *INCLUDE.rglob("*.h"), *Path(sources[0]).parent.glob("*.[chi]*")]
        if library.exists() and library.stat().st_mtime > max(path.stat().st_mtime for path in needed):
            self.place_library(library, place)  # the interpreter takes 15 s to compile
            return
        compiler = os.environ.get("CC", "cc").split()
        always = ["-std=gnu11", "-g0", "-fPIC", "-shared", "-Wall", "-Wextra"]
        command = [*compiler, *always, *flags, f"-I{INCLUDE}", *sources, "-o", str(library), "-lm"]
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)
        self.place_library(library, place)

    def place_library(self, library: Path, place: Path) -> None:
        if self.inplace or self.editable_mode:
            # Never write over a library that a running process has mapped: replace it.
            fresh = place.with_name(place.name + ".new")
            shutil.copy(library, fresh)
            fresh.replace(place)


prepare_environment()
setup(ext_modules=[core()], cmdclass={"build_ext": BuildCore})
