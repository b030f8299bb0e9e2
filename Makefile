# Newcomers need two commands: `make demo` and `make test`. They install everything into .venv, with
# the versions in constraints.txt. A target can be made again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COOKBOOK := .venv-cookbook
RAY := .venv-ray
PEERS := .venv-peers
HARBOR := .venv-harbor
TRACKERS := .venv-trackers
PYTHON312 ?= python3.12
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all slow lint types unit e2e kills faketime chaos live cookbook trackers ray harbor podman peers fuzz ceph alarms bench dev tmux bubblewrap chromium slurm sshd sacct outage quickstarts elsewhere image screens picture clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## install sweeper and its dependencies into .venv

dev: $(VENV)/.installed-dev ## also install what the tests need

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sweeper needs Python 3.11 or newer; this is $$($(PYTHON) --version): make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "this Python cannot make a venv (Debian: apt-get install python3-venv)"; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing sweeper and what it needs into $(VENV): about two minutes"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(PIP) --editable '.[dev]'
	@touch $@

tmux: ## install tmux if possible, else print how to install it
	@command -v tmux >/dev/null || sh .ci/apt-install tmux || \
	  { echo "tmux is missing: apt-get install tmux (Debian), brew install tmux (macOS)"; exit 1; }

bubblewrap: ## install bubblewrap, which isolates a model's commands (Debian's package, 50 kB)
	@command -v bwrap >/dev/null || sh .ci/apt-install bubblewrap || \
	  echo "no bubblewrap here: its tests skip (Debian: apt-get install bubblewrap)"

podman: ## install podman for the tests of containers (Debian's packages, 90 MB), which skip without it
	@command -v podman >/dev/null || sh .ci/apt-install podman runc || \
	  echo "no podman here: its tests skip (Debian: apt-get install podman runc)"

harbor: dev bubblewrap $(HARBOR)/.installed ## test with the package harbor, in a separate environment (Python 3.12, 5 GB)
	@$(BIN)/pytest -q tests/e2e/test_harbor.py

$(HARBOR)/.installed: harbor-constraints.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing harbor into $(HARBOR)"
	@test -x $(HARBOR)/bin/python || $(PYTHON312) -m venv $(HARBOR) || \
	  { echo "harbor needs Python 3.12 or newer: make harbor PYTHON312=/path/to/python3.12"; exit 1; }
	@$(HARBOR)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --requirement harbor-constraints.txt
	@$(HARBOR)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

faketime: ## install faketime for the tests that change the clock, which skip without it
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || sh .ci/apt-install faketime || \
	  echo "no faketime here: its tests skip (Debian: apt-get install faketime)"

chromium: ## install the browser for the tests of the report
	@command -v chromium >/dev/null || sh .ci/apt-install chromium

SLURM := slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins

slurm: ## install Slurm for its tests (Debian's packages, 20 MB), which skip without it
	@test -x /usr/sbin/slurmctld || sh .ci/apt-install $(SLURM) || \
	  echo "no Slurm here: its tests skip (Debian: apt-get install $(SLURM))"

sshd: ## install sshd for the tests of the ssh backend (Debian's package, 2 MB), which skip without it
	@test -x /usr/sbin/sshd || sh .ci/apt-install openssh-server || \
	  echo "no sshd here: its tests skip (Debian: apt-get install openssh-server)"

sacct: dev slurm ## test Slurm's accounting, with slurmdbd and MariaDB (Debian's packages)
	@test -x /usr/sbin/slurmdbd -a -x /usr/sbin/mariadbd || \
	  sh .ci/apt-install slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
	@$(BIN)/pytest -q tests/e2e/test_slurm_accounting.py

outage: dev slurm ## test on a real Slurm: 1,000 runs while launchers are killed, and a controller that stops for 75 s
	@$(BIN)/python tests/chaos/slurm_array.py --seed $(SEED)
	@$(BIN)/python tests/chaos/slurm_array.py --seed $(SEED) --outage 75 --kills 3 \
	  --runs 32 --steps 50 --seconds 100

quickstarts: dev slurm ## launch whole grids: grpo, and the quickstart on a real Slurm, emulated AWS Batch, and stand-ins for Kubernetes and Beaker
	@SWEEPER_TEST_WHOLE=1 $(BIN)/pytest -q -s tests/e2e/test_quickstart_elsewhere.py \
	  tests/e2e/test_grpo_grid.py

elsewhere: dev ## test 300 runs, and a service that does not answer for a minute: emulated AWS Batch, stand-ins for Kubernetes, Beaker and Modal
	@SWEEPER_TEST_WHOLE=1 $(BIN)/pytest -q -o timeout=1500 tests/e2e/test_aws_batch.py \
	  tests/e2e/test_elsewhere.py \
	  -k "many_quick or killed_or_lost or host_is_lost"

image: dev ## build docker/Dockerfile without Docker (buildah, as root), and run a sweep's jobs in the image
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || \
	  sh .ci/apt-install buildah debootstrap
	@sh .ci/build-image $(CURDIR)/build/image
	@SWEEPER_TEST_IMAGE=$(CURDIR)/build/image $(BIN)/pytest -q tests/e2e/test_image.py

demo: install tmux ## run a real sweep on this machine, and write its report
	@echo "training 18 small models, 4 at once: about two minutes"
	@$(BIN)/sweeper launch grids/quickstart.yaml --wait
	@$(BIN)/sweeper analyze quickstart
	@echo
	@echo "the engine keeps running for your next sweep; '$(BIN)/sweeper engine stop' ends it"
	@echo "to type 'sweeper' yourself: source $(VENV)/bin/activate"

# A part that uses one processor runs beside another part.
# The unit tests keep all processors busy. The tests of the whole program often wait, so pyright runs
# beside them.
test: dev tmux bubblewrap ## lint, check types, and run the tests that must pass before each commit
	@$(MAKE) --no-print-directory lint unit
	@$(MAKE) --no-print-directory --jobs 2 types e2e

test-all: dev tmux ## run the other tests that must pass on main: other backends, browsers, S3, long kills
	@$(MAKE) --no-print-directory slow kills

lint: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: dev
	@$(BIN)/pyright

unit: dev tmux ## run the quick tests
	@$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder tests/contract tests/unit

# These tests wait most of the time.
# The files with the longest tests run first (`tests/e2e/conftest.py`), not those with the most tests.
ABREAST = --dist loadfile --no-loadscope-reorder

e2e: dev tmux bubblewrap ## run the tests of the whole program, on local and tmux
	@$(BIN)/pytest -q -n 4 $(ABREAST) -m 'not slow' tests/e2e

slow: dev tmux bubblewrap ## run the tests on other backends, with browsers and S3, and of the other recipes
	@$(BIN)/pytest -q -n 4 $(ABREAST) -m slow tests/e2e

kills: dev tmux faketime ## run the quick part of tests/chaos: kill processes, and check that nothing is lost
	@$(BIN)/pytest -q -n 3 $(ABREAST) tests/chaos

SEED ?= 1
LAUNCHERS ?= 2000
WORKERS ?= 1000
SIMULATED ?= 20000
CROWD ?= 2000

chaos: kills ## run all programs of tests/chaos, two hours: SEED=1 LAUNCHERS=2000 WORKERS=1000 SIMULATED=20000 CROWD=2000
	@$(BIN)/python tests/chaos/run.py --seed $(SEED) --launchers $(LAUNCHERS) \
	  --workers $(WORKERS) --simulated $(SIMULATED)
	@$(BIN)/python tests/chaos/crowd.py --runs $(CROWD)
	@$(BIN)/python tests/chaos/quota.py --seed $(SEED)
	@$(BIN)/python tests/chaos/big_sweep.py --seed $(SEED)
	@$(BIN)/python tests/chaos/pipeline.py --seed $(SEED)
	@$(BIN)/python tests/chaos/caches.py --seed $(SEED)
	@$(BIN)/python tests/chaos/s3_faults.py
	@SWEEPER_TEST_WHOLE=1 $(BIN)/pytest -q -rP -n 4 tests/chaos/test_remote_writes.py tests/chaos/test_s3.py
	@$(BIN)/python tests/chaos/remote_kills.py --seed $(SEED)
	@$(BIN)/python tests/chaos/mutations.py

live: dev tmux ## run 300 runs of sft at once on this machine, while tmux, the launcher and the fork server are killed
	@$(BIN)/python tests/chaos/live_runs.py --runs 300

cookbook: dev $(COOKBOOK)/.installed ## test tinker-cookbook's programs, in an environment with tinker-cookbook and sweeper (2 GB)
	@$(BIN)/pytest -q tests/e2e/test_cookbook.py tests/e2e/test_cookbook_weights.py

$(COOKBOOK)/.installed: cookbook-constraints.txt tests/support/hub_datasets.py | $(VENV)/bin/python
	@echo "installing tinker-cookbook and sweeper into $(COOKBOOK)"
	@test -x $(COOKBOOK)/bin/python || $(PYTHON) -m venv $(COOKBOOK)
	@$(COOKBOOK)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --requirement cookbook-constraints.txt
	@$(COOKBOOK)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(COOKBOOK)/bin/python tests/support/hub_datasets.py $(COOKBOOK)/data
	@touch $@

trackers: dev $(TRACKERS)/.installed ## test Trackio and TensorBoard, in an environment on top of .venv (100 MB)
	@$(BIN)/pytest -q tests/e2e/test_trackers.py

$(TRACKERS)/.installed: trackers-constraints.txt | $(VENV)/bin/python
	@echo "installing Trackio and TensorBoard into $(TRACKERS)"
	@test -x $(TRACKERS)/bin/python || $(BIN)/python -m venv $(TRACKERS)
	@$(TRACKERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --requirement trackers-constraints.txt
	@$(TRACKERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | { read -r lib; \
	  $(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(" + repr(sysconfig.get_path("purelib")) + ")")' \
	  > "$$lib/below.pth"; }
	@touch $@

ray: $(RAY)/.installed ## test sweeps on a real Ray with two nodes, in a separate environment (1.6 GB)
	@SWEEPER_TEST_WHOLE=1 $(RAY)/bin/pytest -q tests/e2e/test_ray.py \
	  tests/e2e/test_quickstart_elsewhere.py -k "ray or Ray"
	@$(RAY)/bin/python tests/chaos/ray_jobs.py --seed $(SEED)

$(RAY)/.installed: pyproject.toml constraints.txt
	@echo "installing Ray and sweeper into $(RAY)"
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[ray,dev]'
	@touch $@

ceph: dev ## run the store contract on a real Ceph's S3 gateway (installs Debian's packages, 200 MB)
	@command -v radosgw >/dev/null || sh .ci/apt-install ceph-mon ceph-osd radosgw ceph-common
	@$(BIN)/python tests/support/ceph.py $(BIN)/pytest -q tests/contract/test_store.py -k ceph

peers: dev $(PEERS)/.installed ## measure a grid in SEML and Hydra, in a separate environment
	@$(BIN)/python tests/bench/grid_peers.py

$(PEERS)/.installed: | $(VENV)/bin/python
	@echo "installing SEML and Hydra into $(PEERS)"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  seml==0.5.7 hydra-core==1.3.8 sacred==0.8.7 'setuptools<81'
	@touch $@

CASES ?= 10000

fuzz: dev ## test `sweeper plan` with hostile grids, and all verbs with damaged stores, an hour: CASES=10000 SEED=1
	@$(BIN)/python tests/fuzz/run.py --cases $(CASES) --seed $(SEED)
	@$(BIN)/python tests/fuzz/documents.py --cases $(CASES) --seed $(SEED) --jobs 2

ALARMS ?= build/alarms

alarms: dev ## measure the alarms on healthy and misconfigured runs, an hour (docs/alarms.md)
	@$(BIN)/python tests/bench/alarms_judged.py tune --out $(ALARMS) --healthy 40 --wrong 6
	@$(BIN)/python tests/bench/alarms_judged.py judge --out $(ALARMS)

bench: dev ## run the measurements of docs/ (slow; use a quiet machine)
	@$(BIN)/python tests/bench/engine_calls.py
	@$(BIN)/python tests/bench/engine_turns.py
	@$(BIN)/python tests/bench/worker_start.py
	@$(BIN)/python tests/bench/warm_start.py --runs 6
	@$(BIN)/python tests/bench/tmux_submit.py
	@$(BIN)/python tests/bench/batch_submit.py
	@$(BIN)/python tests/bench/slurm_submit.py
	@$(BIN)/python tests/bench/status.py
	@$(BIN)/python tests/bench/watch_refresh.py
	@$(BIN)/python tests/bench/logs.py
	@$(BIN)/python tests/bench/startup.py
	@$(BIN)/python tests/bench/skill_walk.py
	@$(BIN)/python tests/bench/grid_points.py
	@$(BIN)/python tests/bench/sync.py
	@$(BIN)/python tests/bench/remote.py
	@$(BIN)/python tests/bench/report.py
	@$(BIN)/python tests/bench/statistics_coverage.py
	@$(BIN)/python tests/bench/registry.py
	@$(BIN)/python tests/bench/alarms_cost.py
	@$(BIN)/python tests/bench/environments.py
	@$(BIN)/python tests/bench/estimates.py

screens: dev tmux ## update the screens of docs/watch.md from a real sweep
	@$(BIN)/python tests/support/screens.py

picture: dev chromium ## update the picture of README.md from a real sweep
	@$(BIN)/python tests/support/report_picture.py

clean: ## remove .venv, .venv-cookbook, .venv-ray, .venv-peers, .venv-harbor, .venv-trackers and build/image (sweeps are kept)
	rm -rf $(VENV) $(COOKBOOK) $(RAY) $(PEERS) $(HARBOR) $(TRACKERS) build/image
