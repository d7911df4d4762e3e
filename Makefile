# memleak-android. `make help` lists what can be done; every target names what it fetches before it does.
# Nothing here needs root. Stamp files make a second run work offline.

PYTHON3 ?= python3
VENV    := .venv
PY      := $(VENV)/bin/python
STAMPS  := build/stamps
PIP     := $(PY) -m pip install -q --disable-pip-version-check --no-build-isolation
DIST    := build/dist
# Tests start hundreds of interpreters: where the environment forbids .pyc files, each would compile all modules again.
PYTEST  := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
# Whose device binaries are built: Android's names.
ABIS    ?= x86_64
proof emulator test-emulator wheel: ABIS := x86_64 arm64-v8a armeabi-v7a

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test test-all dev lint format messages pictures bench real-leaks proof sanitize fuzz emulator test-emulator device wheel clean installed FORCE

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 15

demo: installed ## set everything up and find the leaks of a small leaky program
	$(VENV)/bin/memleak-android demo

# A worker that was killed ends the run with the name of its test: by loadscope, xdist waits for ever once it has started another.
# Four workers also on two processors: half of the time a test waits for its target.
test: $(STAMPS)/dev installed ## the tests (about 6 minutes); says what it installs and what it skips
	@$(PYTHON3) .ci/packages.py test
	$(PYTEST) -m "not proof and not emulator" -n 4 --dist loadscope --max-worker-restart=0

test-all: test test-emulator proof fuzz ## all tests, the long ones too

pictures: $(STAMPS)/dev installed ## the pictures in docs, from real runs (by chromium)
	rm -rf build/pictures
	$(PY) -m tests.pictures

proof: $(STAMPS)/dev installed ## the long tests: what every issue had to show
	@$(PYTHON3) .ci/packages.py test proof emulator
	$(PYTEST) -m proof

# A finding ends the agent and is in a file of its own, UBSan's as a SIGILL; ASan would forbid the targets their core files.
SANITIZED := $(CURDIR)/build/device/sanitized
WITH_SANITIZED = MEMLEAKD=$(SANITIZED)/memleakd MEMLEAK_SHIM=$(SANITIZED)/libmemleak.so \
	ASAN_OPTIONS=detect_leaks=0:disable_coredump=0:handle_sigill=1:log_path=$(SANITIZED)/finding $(PYTEST)
sanitize: $(STAMPS)/dev installed ## the tests of the device parts and the sessions with an agent under ASan and UBSan and a shim under UBSan
	@$(PYTHON3) .ci/packages.py test
	@$(MAKE) --no-print-directory -j"$$(nproc)" -f ndk-build/Makefile PYTHON=$(PY) sanitized
	@rm -f $(SANITIZED)/finding*
	$(WITH_SANITIZED) -m "not proof and not emulator" -n 4 --dist loadscope --max-worker-restart=0 tests/device tests/sessions || touch $(SANITIZED)/finding.tests
	$(WITH_SANITIZED) -n 4 tests/proof/test_matrix.py || touch $(SANITIZED)/finding.tests
	@cat $(SANITIZED)/finding* 2>/dev/null || true; ! ls $(SANITIZED)/finding* 2>/dev/null

FUZZ_SECONDS ?= 60
fuzz: $(STAMPS)/dev installed ## coverage-guided fuzzing of the parsers, FUZZ_SECONDS for each; inputs stay in build/fuzz
	@echo "installing into $(VENV) what is missing of: the fuzz extra (atheris)"
	@$(PIP) -e '.[fuzz]' --config-settings editable_mode=strict
	@for kind in $$($(PY) -c 'from tests.unwind.fuzz.seeds import all_seeds; print(*all_seeds())'); do \
		$(PY) -m tests.unwind.fuzz.coverage_guided "$$kind" build/fuzz/"$$kind" -max_total_time=$(FUZZ_SECONDS); done

emulator: $(STAMPS)/dev device ## start an arm64 machine that answers adb, and say how to reach it
	@$(PYTHON3) .ci/packages.py emulator
	@$(PY) -m tests.emulator start

test-emulator: $(STAMPS)/dev installed ## the tests over adb, in machines that they start themselves
	@$(PYTHON3) .ci/packages.py emulator
	$(PYTEST) -m "emulator and not proof" -n auto --maxprocesses=3 --dist loadfile --max-worker-restart=0

bench: $(STAMPS)/dev installed ## overhead, paired against other tools
	@$(PYTHON3) .ci/packages.py bench
	$(PY) -m bench

real-leaks: $(STAMPS)/dev installed ## leaks that users reported of released packages, found by us and by the peers; downloads them
	@$(PYTHON3) .ci/packages.py bench real-leaks
	@$(PIP) -e '.[peers]' --config-settings editable_mode=strict
	$(PY) -m bench.real_leaks $(CASES)

dev: $(STAMPS)/dev installed ## an editable install; run again after adding a file

C_SOURCES = $(wildcard device/*.h device/*/*.[ch] device/*/*/*.[ch] unwind/engine/*.[ch])
TIDY = xargs -P"$$(nproc)" -n8 sh -c '$(VENV)/bin/clang-tidy --quiet "$$@" -- -std=gnu11 -D_GNU_SOURCE -I device $(1) -Wno-everything' _ 2>&1 | { grep -v 'Processing file' || true; }

lint: $(STAMPS)/dev installed ## ruff, mypy --strict, import floors, shellcheck, clang-format, clang-tidy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy -p memleak_android.host -p memleak_android.unwind
	$(VENV)/bin/lint-imports
	$(VENV)/bin/shellcheck .ci/run
	@$(VENV)/bin/clang-format --dry-run -Werror $(C_SOURCES)
	@printf '%s\n' $(wildcard device/agent/*.c device/agent/*/*.c device/cfi/*.c unwind/engine/*.c) | $(call TIDY,-I device/agent $(HEADERS_OF_OTHERS))
	@printf '%s\n' $(wildcard device/preload/*.c device/preload/*/*.c) | $(call TIDY,-I device/preload -ffreestanding -fno-builtin)

messages: $(STAMPS)/dev ## every message of an error, room by room, to read them in one go
	@$(PY) -m tests.messages

format: $(STAMPS)/dev ## ruff and clang-format write their layout
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(C_SOURCES)

# What the agent includes that is not ours: libbpf, libelf, zlib, and the kernel's headers of the zig wheel.
ZIG = $(shell $(PY) -c 'import os, ziglang; print(os.path.dirname(ziglang.__file__))')
HEADERS_OF_OTHERS = -isystem build/device/include $(addprefix -isystem ,$(wildcard build/device/src/elfutils-*/libelf build/device/src/zlib-*)) \
	-isystem $(ZIG)/lib/libc/include/any-linux-any

device: $(STAMPS)/venv ## build the agent, the shim, the unwinder's engine and the demo program; ABIS="x86_64 arm64-v8a armeabi-v7a"
	@mkdir -p build # one build at a time, in this or another make
	@flock build/device.lock $(MAKE) --no-print-directory -j"$$(nproc)" -f ndk-build/Makefile PYTHON=$(PY) ABIS="$(ABIS)"

wheel: device ## a wheel with the device binaries of all ABIs inside: build/dist/
	rm -rf build/lib build/bdist.* $(DIST)
	$(PY) -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w $(DIST) .
	@ls $(DIST)/*.whl

clean: ## remove what was built; keeps .venv and the downloaded sources
	rm -rf $(filter-out build/downloads,$(wildcard build/*)) host/prebuilt/*/ unwind/engine/*.so *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# ---- stamps ---------------------------------------------------------------------------------------

# The run-time packages and the compiler for the device parts.
$(STAMPS)/venv: pyproject.toml
	@mkdir -p $(@D)
	@if [ ! -x $(PY) ]; then echo "making $(VENV)"; $(PYTHON3) -m venv $(VENV); fi
	@echo "installing into $(VENV) what is missing of: setuptools, pyproject.toml's dependencies, ziglang (about 100 MB)"
	@$(PY) -m pip install -q --disable-pip-version-check 'setuptools>=77' wheel
	@$(PIP) -e '.[device]' --config-settings editable_mode=strict
	@touch $@

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml
	@echo "installing into $(VENV) what is missing of: pytest, hypothesis, mypy, ruff and the rest of the dev extra"
	@$(PIP) -e '.[dev,device]' --config-settings editable_mode=strict
	@touch $@

# The strict editable install is a tree of links: it has to be made again when a file comes or goes.
$(STAMPS)/files: FORCE
	@mkdir -p $(@D)
	@find host unwind \( -name '*.py' -o -name '*.json' -o -path 'host/reports/html/web/*' -o -path 'host/prebuilt/*/*' -o -path 'unwind/engine/*.so' \) | sort >$@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

installed: device $(STAMPS)/venv
	@$(MAKE) --no-print-directory $(STAMPS)/linked

$(STAMPS)/linked: $(STAMPS)/files $(STAMPS)/venv
	@$(PIP) --no-deps -e . --config-settings editable_mode=strict
	@touch $@
