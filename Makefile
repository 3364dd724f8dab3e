# Every target sets up what it needs: .venv, torch, the build. A fresh machine needs Python >= 3.10, a C++20 compiler
# and make. Nothing is done twice: stamps in .venv and ninja's own records say what is up to date.
#
#   make demo TORCH=torch==2.12.0     another torch
#   make test ARGS="-k allocator"     more options for pytest (for demo and bench: of the program)

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
MATRIX ?= 2.11.0 2.12.1 2.14.1 2.15.0

# Some machines forbid bytecode for everybody; then every process of a test compiles bringup's sources again.
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check
STAMP := $(VENV)/.stamp
SAY := @printf '\n== %s\n'

CORE := $(shell find bringup/csrc bringup/include -name '*.cpp' -o -name '*.h')
# targets/c/math/ holds templates, in C's words only.
FORMATTED = $(shell find bringup tests examples benchmarks -not -path '*/targets/c/math/*' '(' -name '*.c' -o -name '*.cpp' -o -name '*.h' -o -name '*.inc' ')')
SIM := $(wildcard bringup/drivers/sim/*.c bringup/drivers/sim/*.h)
ISS := $(wildcard bringup/riscv/iss/*.c bringup/riscv/iss/*.h bringup/riscv/iss/*.inc)
DPU := $(wildcard bringup/upmem/native/*.c bringup/upmem/native/*.h bringup/upmem/include/host/*.h)

.PHONY: help demo test test-all integrations fuzz order matrix bench docs lint format sanitize build clean system-deps

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: build ## trains small networks on the simulated device and prints what ran where
	$(SAY) "demo"
	@$(PY) examples/demo.py $(ARGS)

# Files, not tests, go to a worker: what the tests of a file share is made once.
PYTEST := $(PY) -m pytest --durations=15 -n 2 --dist loadfile

test: build ## the test suite; ends with its CPU minutes (ARGS=--cpu-times=results/test_time.json records them)
	$(SAY) "tests"
	@$(PYTEST) $(ARGS)

test-all: build $(STAMP)-integrations ## the test suite with its long sweeps and the programs of other libraries
	$(SAY) "tests and sweeps"
	@$(PYTEST) -m "sweep or not sweep" $(ARGS)

integrations: build $(STAMP)-integrations ## programs of transformers, Lightning, timm … on the device (docs/integrations.md)
	$(SAY) "integrations"
	@$(PYTEST) -m "sweep or not sweep" tests/integrations $(ARGS)

matrix: build ## builds and tests with other versions of torch: MATRIX="2.12.1 2.15.0" ARGS="tests/unit"
	$(SAY) "torch $(MATRIX)"
	@$(PY) -m tests.matrix $(MATRIX) -- $(ARGS)

fuzz: build ## random programs through every route; goes on where the last run of this commit stopped
	$(SAY) "random programs"
	@$(PY) -m tests.fuzz $(ARGS)

order: build ## random programs with threads and streams on a device that delays its work: results/order.json
	$(SAY) "order checker"
	@$(PY) -m tests.order --seeds 0:2000 --record $(ARGS)

bench: build ## the device against the CPU, side by side
	$(SAY) "benchmarks/eager.py"
	@$(PY) benchmarks/eager.py $(ARGS)

docs: build ## writes the pages that come from the code, and the numbers that come from recorded runs
	$(SAY) "docs/ops.md"
	@$(PY) -m bringup ops --driver sim --mode kernels --markdown docs/ops.md
	$(SAY) "docs/reference.md"
	@$(PY) -m bringup contract --full > docs/reference.md
	$(SAY) "docs/decompositions.md"
	@$(PY) -m bringup decompositions --markdown docs/decompositions.md
	$(SAY) "numbers of README.md and docs/"
	@$(PY) benchmarks/pages.py

lint: build $(STAMP)-lint ## ruff, mypy, clang-format
	$(SAY) "ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	$(SAY) "mypy"
	@$(PY) -m mypy
	$(SAY) "clang-format"
	@$(VENV)/bin/clang-format --dry-run -Werror $(FORMATTED)

format: build $(STAMP)-lint ## rewrites the sources as lint wants them
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .
	@$(VENV)/bin/clang-format -i $(FORMATTED)

# ---- sanitizers: plain programs without torch, which is not instrumented and would only add noise ----
# What each program of tests/sanitize/ is linked with.
LINKS_allocator_stress := $(addprefix bringup/csrc/runtime/,allocator.cpp block_pool.cpp)
LINKS_runtime_stress := $(filter-out %philox.cpp,$(wildcard bringup/csrc/runtime/*.cpp))
FLAGS_runtime_stress := -DBRINGUP_YIELD_POINTS
LINKS_sim_stress := $(filter %.c,$(SIM))
LINKS_iss_stress := $(filter %.c,$(ISS))

STRESS := $(basename $(notdir $(wildcard tests/sanitize/*.c tests/sanitize/*.cpp)))
SANITIZE_THREAD := -fsanitize=thread
SANITIZE_ADDRESS := -fsanitize=address,undefined -fno-sanitize-recover=all
COMPILE_c = $(CC) -std=gnu11
COMPILE_cpp = $(CXX) -std=c++20
export TSAN_OPTIONS ?= halt_on_error=1
# ThreadSanitizer of older compilers cannot start where the kernel randomises addresses widely.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)

sanitize: $(foreach s,$(STRESS),build/sanitize/$(s).thread.ran build/sanitize/$(s).address.ran) ## stress programs under thread, address and undefined-behaviour sanitizers
	@test -n "$(STRESS)" || { echo "tests/sanitize/ holds no program"; exit 1; }
	@echo "clean under sanitizers: $(STRESS)"

define stress_program
build/sanitize/$(1).$(2): $(wildcard tests/sanitize/$(1).c tests/sanitize/$(1).cpp) $(LINKS_$(1)) $(CORE) $(SIM) $(ISS)
	@mkdir -p build/sanitize
	@echo "== building $$@"
	@$$(COMPILE_$$(patsubst .%,%,$$(suffix $$<))) -O1 -g -Wall $(3) $(FLAGS_$(1)) -Ibringup/csrc -Ibringup/include \
	  $$< $(LINKS_$(1)) -o $$@ -pthread -lm
build/sanitize/$(1).$(2).ran: build/sanitize/$(1).$(2)
	@echo "== running $$<"
	@$(if $(filter thread,$(2)),$(NO_ASLR)) ./$$<
	@touch $$@
endef
$(foreach s,$(STRESS),$(eval $(call stress_program,$(s),thread,$(SANITIZE_THREAD))))
$(foreach s,$(STRESS),$(eval $(call stress_program,$(s),address,$(SANITIZE_ADDRESS))))

# ---- the environment, step by step ----
build: $(STAMP)-install $(STAMP)-build ## .venv with torch, the compiled core and the package, editable

$(STAMP)-venv:
	$(SAY) "creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "bringup needs Python >= 3.10; say which: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s, sys; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
	  || { echo "Python.h is missing; on Debian and Ubuntu: make system-deps"; exit 1; }
	@echo | $(CXX) -std=c++20 -x c++ -fsyntax-only - \
	  || { echo "$(CXX) does not compile C++20; on Debian and Ubuntu: make system-deps"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

TORCH_STAMP := $(STAMP)-$(subst =,-,$(TORCH))
$(TORCH_STAMP): $(STAMP)-venv
	$(SAY) "installing $(TORCH)"
	@$(PIP) "$(TORCH)" 'numpy>=1.26' 'setuptools>=77' wheel ninja
	@rm -f $(STAMP)-torch* && touch $@

# Also when a source was deleted: the list is compared, not only the dates.
build/.sources: FORCE
	@mkdir -p build
	@echo $(sort $(CORE) $(SIM) $(ISS) $(DPU)) | cmp -s - $@ || echo $(sort $(CORE) $(SIM) $(ISS) $(DPU)) > $@
FORCE:

$(STAMP)-build: $(TORCH_STAMP) setup.py $(CORE) $(SIM) $(ISS) $(DPU) build/.sources
	$(SAY) "compiling the C++ core (a few minutes the first time)"
	@$(PY) setup.py build_ext --inplace 2>&1 | sed -u -E \
	  -e 's#^(\[[0-9]+/[0-9]+\]).* -c [^ ]*/((bringup/csrc|build/united)/[^ ]+) .*#\1 \2#' \
	  -e 's#^[^ ]*(cc|\+\+|clang) .*/([^/ ]+\.so) .*#linking \2#' \
	  -e '/^(running|building|copying|ninja: no work)/d'
	@touch $@

$(STAMP)-install: $(TORCH_STAMP) pyproject.toml setup.py | $(STAMP)-build
	$(SAY) "installing bringup"
	@$(PIP) -q --no-build-isolation -e '.[cli,test]'
	@$(PY) -m compileall -q bringup # an editable install compiles none, and some machines forbid it to every process
	@touch $@

$(STAMP)-lint: $(STAMP)-install pyproject.toml
	$(SAY) "installing the linters"
	@$(PIP) -q --no-build-isolation -e '.[lint]'
	@touch $@

$(STAMP)-integrations: $(STAMP)-install pyproject.toml
	$(SAY) "installing the libraries of docs/integrations.md"
	@$(PIP) -q --no-build-isolation -e '.[integrations]' "$(TORCH)"
	@touch $@

system-deps: ## what apt can give: compiler, Python headers, ccache, and for RISC-V QEMU and gcc
	apt-get install -y --no-install-recommends g++ make python3-dev python3-venv ccache \
	  qemu-system-misc gcc-riscv64-unknown-elf

clean: ## removes what was built; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -f bringup/*.so bringup/drivers/*/*.so bringup/riscv/*.so $(STAMP)-build $(STAMP)-install $(STAMP)-lint $(STAMP)-integrations
