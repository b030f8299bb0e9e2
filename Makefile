# The two commands a newcomer needs: `make demo` and `make test`. Everything is installed into
# .venv; pinned by constraints.txt. Running a target twice is fine.

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

install: $(VENV)/.installed ## sweeper and what it needs, into .venv

dev: $(VENV)/.installed-dev ## and what its tests need

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

tmux: ## make sure of tmux: install it where that is possible, else say how
	@command -v tmux >/dev/null || sh .ci/apt-install tmux || \
	  { echo "tmux is missing: apt-get install tmux (Debian), brew install tmux (macOS)"; exit 1; }

bubblewrap: ## what keeps the commands of a model apart from this machine (Debian's package, 50 kB)
	@command -v bwrap >/dev/null || sh .ci/apt-install bubblewrap || \
	  echo "no bubblewrap here: its tests skip (Debian: apt-get install bubblewrap)"

podman: ## what the tests of containers need (Debian's packages, 90 MB); they skip without it
	@command -v podman >/dev/null || sh .ci/apt-install podman runc || \
	  echo "no podman here: its tests skip (Debian: apt-get install podman runc)"

harbor: dev bubblewrap $(HARBOR)/.installed ## the package harbor, in an environment of its own (Python 3.12, 5 GB)
	@$(BIN)/pytest -q tests/e2e/test_harbor.py

$(HARBOR)/.installed: harbor-constraints.txt pyproject.toml | $(VENV)/bin/python
	@echo "installing harbor into $(HARBOR)"
	@test -x $(HARBOR)/bin/python || $(PYTHON312) -m venv $(HARBOR) || \
	  { echo "harbor needs Python 3.12 or newer: make harbor PYTHON312=/path/to/python3.12"; exit 1; }
	@$(HARBOR)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --requirement harbor-constraints.txt
	@$(HARBOR)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

faketime: ## what the tests of clocks that are set need; they skip without it
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || sh .ci/apt-install faketime || \
	  echo "no faketime here: its tests skip (Debian: apt-get install faketime)"

chromium: ## what the tests that look at the report in a browser need
	@command -v chromium >/dev/null || sh .ci/apt-install chromium

SLURM := slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins

slurm: ## what the tests on a real Slurm need (Debian's packages, 20 MB); they skip without it
	@test -x /usr/sbin/slurmctld || sh .ci/apt-install $(SLURM) || \
	  echo "no Slurm here: its tests skip (Debian: apt-get install $(SLURM))"

sshd: ## what the tests of machines reached by SSH need (Debian's package, 2 MB); they skip without it
	@test -x /usr/sbin/sshd || sh .ci/apt-install openssh-server || \
	  echo "no sshd here: its tests skip (Debian: apt-get install openssh-server)"

sacct: dev slurm ## the tests of Slurm's accounting, with slurmdbd and MariaDB (Debian's packages)
	@test -x /usr/sbin/slurmdbd -a -x /usr/sbin/mariadbd || \
	  sh .ci/apt-install slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
	@$(BIN)/pytest -q tests/e2e/test_slurm_accounting.py

outage: dev slurm ## on a real Slurm: a thousand runs while launchers are killed; a controller away for 75 s
	@$(BIN)/python tests/chaos/slurm_array.py --seed $(SEED)
	@$(BIN)/python tests/chaos/slurm_array.py --seed $(SEED) --outage 75 --kills 3 \
	  --runs 32 --steps 50 --seconds 100

quickstarts: dev slurm ## whole grids: grpo, and the quickstart on a real Slurm, emulated AWS Batch, stand-ins for Kubernetes and Beaker
	@SWEEPER_TEST_WHOLE=1 $(BIN)/pytest -q -s tests/e2e/test_quickstart_elsewhere.py \
	  tests/e2e/test_grpo_grid.py

elsewhere: dev ## 300 runs, and a minute without an answer: emulated AWS Batch, stand-ins for Kubernetes, Beaker and Modal
	@SWEEPER_TEST_WHOLE=1 $(BIN)/pytest -q -o timeout=1500 tests/e2e/test_aws_batch.py \
	  tests/e2e/test_elsewhere.py \
	  -k "many_quick or killed_or_lost or host_is_lost"

image: dev ## build docker/Dockerfile without Docker (buildah, as root), and run a sweep's jobs in it
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || \
	  sh .ci/apt-install buildah debootstrap
	@sh .ci/build-image $(CURDIR)/build/image
	@SWEEPER_TEST_IMAGE=$(CURDIR)/build/image $(BIN)/pytest -q tests/e2e/test_image.py

demo: install tmux ## a real sweep on this machine, and its report
	@echo "training 18 small models, 4 at once: about two minutes"
	@$(BIN)/sweeper launch grids/quickstart.yaml --wait
	@$(BIN)/sweeper analyze quickstart
	@echo
	@echo "the engine is still there for your next sweep; '$(BIN)/sweeper engine stop' ends it"
	@echo "to type 'sweeper' yourself: source $(VENV)/bin/activate"

# What takes one processor is done beside what takes the other.
test: dev tmux ## what must be green before each commit
	@$(MAKE) --no-print-directory --jobs 2 lint types unit
	@$(MAKE) --no-print-directory e2e

test-all: dev tmux ## what else must be green on main: other backends, browsers, S3, long kills
	@$(MAKE) --no-print-directory slow kills

lint: dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: dev
	@$(BIN)/pyright

unit: dev tmux ## the quick tests
	@$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder tests/contract tests/unit

# Tests that wait more than they work.
# The files with the longest tests come first (`tests/e2e/conftest.py`), not those with the most.
ABREAST = --dist loadfile --no-loadscope-reorder

e2e: dev tmux bubblewrap ## the tests that drive the whole program, on local and tmux
	@$(BIN)/pytest -q -n 4 $(ABREAST) -m 'not slow' tests/e2e

slow: dev tmux bubblewrap ## those on other backends, with browsers and S3, and the other recipes
	@$(BIN)/pytest -q -n 4 $(ABREAST) -m slow tests/e2e

kills: dev tmux faketime ## the quick part of tests/chaos: kill things on purpose, see that nothing is lost
	@$(BIN)/pytest -q -n 3 $(ABREAST) tests/chaos

SEED ?= 1
LAUNCHERS ?= 2000
WORKERS ?= 1000
SIMULATED ?= 20000
CROWD ?= 2000

chaos: kills ## the whole of it, two hours: SEED=1 LAUNCHERS=2000 WORKERS=1000 SIMULATED=20000 CROWD=2000
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

live: dev tmux ## 300 runs of sft at once on this machine, while tmux, the launcher and the fork server are killed
	@$(BIN)/python tests/chaos/live_runs.py --runs 300

cookbook: dev $(COOKBOOK)/.installed ## tinker-cookbook and sweeper in one environment (2 GB, minutes), and its own programs
	@$(BIN)/pytest -q tests/e2e/test_cookbook.py tests/e2e/test_cookbook_weights.py

$(COOKBOOK)/.installed: cookbook-constraints.txt tests/support/hub_datasets.py | $(VENV)/bin/python
	@echo "installing tinker-cookbook and sweeper into $(COOKBOOK)"
	@test -x $(COOKBOOK)/bin/python || $(PYTHON) -m venv $(COOKBOOK)
	@$(COOKBOOK)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --requirement cookbook-constraints.txt
	@$(COOKBOOK)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@$(COOKBOOK)/bin/python tests/support/hub_datasets.py $(COOKBOOK)/data
	@touch $@

trackers: dev $(TRACKERS)/.installed ## Trackio and TensorBoard, in an environment on top of .venv (100 MB)
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

ray: $(RAY)/.installed ## sweeps on a real Ray of two nodes, in an environment of its own (1.6 GB)
	@SWEEPER_TEST_WHOLE=1 $(RAY)/bin/pytest -q tests/e2e/test_ray.py \
	  tests/e2e/test_quickstart_elsewhere.py -k "ray or Ray"
	@$(RAY)/bin/python tests/chaos/ray_jobs.py --seed $(SEED)

$(RAY)/.installed: pyproject.toml constraints.txt
	@echo "installing Ray and sweeper into $(RAY)"
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[ray,dev]'
	@touch $@

ceph: dev ## the store contract on a real Ceph's S3 gateway (installs Debian's packages, 200 MB)
	@command -v radosgw >/dev/null || sh .ci/apt-install ceph-mon ceph-osd radosgw ceph-common
	@$(BIN)/python tests/support/ceph.py $(BIN)/pytest -q tests/contract/test_store.py -k ceph

peers: dev $(PEERS)/.installed ## what a grid costs in SEML and Hydra, in an environment of their own
	@$(BIN)/python tests/bench/grid_peers.py

$(PEERS)/.installed: | $(VENV)/bin/python
	@echo "installing SEML and Hydra into $(PEERS)"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  seml==0.5.7 hydra-core==1.3.8 sacred==0.8.7 'setuptools<81'
	@touch $@

CASES ?= 10000

fuzz: dev ## hostile grids through `sweeper plan`, damaged stores through all verbs, an hour: CASES=10000 SEED=1
	@$(BIN)/python tests/fuzz/run.py --cases $(CASES) --seed $(SEED)
	@$(BIN)/python tests/fuzz/documents.py --cases $(CASES) --seed $(SEED) --jobs 2

ALARMS ?= build/alarms

alarms: dev ## how good the alarms are, on healthy and misconfigured runs, an hour: docs/alarms.md
	@$(BIN)/python tests/bench/alarms_judged.py tune --out $(ALARMS) --healthy 40 --wrong 6
	@$(BIN)/python tests/bench/alarms_judged.py judge --out $(ALARMS)

bench: dev ## the measurements of docs/: slow, and better on a quiet machine
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

screens: dev tmux ## take the screens of docs/watch.md again, from a real sweep
	@$(BIN)/python tests/support/screens.py

picture: dev chromium ## take the picture of README.md again, from a real sweep
	@$(BIN)/python tests/support/report_picture.py

clean: ## remove .venv, .venv-cookbook, .venv-ray, .venv-peers, .venv-harbor, .venv-trackers and build/image (sweeps stay)
	rm -rf $(VENV) $(COOKBOOK) $(RAY) $(PEERS) $(HARBOR) $(TRACKERS) build/image
