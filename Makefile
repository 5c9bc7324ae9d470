# Every target: `make help`. The steps themselves are in tests/make.sh.
STEPS := tests/make.sh
# make gpu-check: folder of an onnxruntime-gpu library, and a binary built elsewhere (as the module beside the sources)
ORT_GPU_LIB ?=
BIN ?=
# make gpu-pack: GPU architecture (90 of sm_90) and folder
ARCH ?=
OUT ?=
# further arguments of demo, bench, coverage, op-census, matrix, gpu-check and pytest, e.g. make demo ARGS="--size small"
ARGS ?=
export ORT_GPU_LIB BIN ARCH OUT ARGS

.DEFAULT_GOAL := help
.PHONY: help setup build build-torch demo guide test test-torch lint fmt fmt-check bench coverage random-graphs op-census planted blame same-size keep prove zoo align studies torch-nodes fuzz soak audit requirements matrix gpu-check gpu-pack clean doctor

help: ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: ## the virtual environment .venv with the pinned wheels
	@$(STEPS) setup

build: ## setup; the release binary and the native module; both and the package installed into .venv
	@$(STEPS) build

build-torch: ## build; rust-ort-torch, the same program with the environment's libtorch in it, into target/release
	@$(STEPS) build-torch

demo: ## build; the main job: Llama forward and backward through the daemon, dumped and compared with eager
	@$(STEPS) demo

guide: ## build; options, commands and README's output as the program has them, into docs/guide and README.md
	@$(STEPS) guide

test: ## build; lint; all Rust and Python tests
	@$(STEPS) test

test-torch: ## build-torch; the Rust and Python tests that need libtorch, which `make test` leaves out
	@$(STEPS) test-torch

lint: ## rustfmt, clippy, ruff and mypy; changes nothing
	@$(STEPS) lint

fmt: ## format Rust and Python
	@$(STEPS) fmt

fmt-check: ## formatting only; changes nothing
	@$(STEPS) fmt-check

bench: ## build; time of compiled calls against eager, inductor and in-process ONNX Runtime, into docs/results/bench.md
	@$(STEPS) bench

coverage: ## build; all samples of torch's OpInfo database in eight dtypes against eager, and again with dynamic sizes, into docs/results/coverage*.md
	@$(STEPS) coverage

random-graphs: ## build; random functions against eager, all that a compiled function can do, totals into docs/results/random-graphs.md
	@$(STEPS) random-graphs

op-census: ## build; which operators transformers' architectures reach and where they run, into docs/results/op-census.md
	@$(STEPS) op-census

planted: ## build; faults planted in twelve families of models: is each found and its node named; into docs/results/planted.md
	@$(STEPS) planted

blame: ## build; faults planted in twenty families in three precisions: does rust_ort.blame name each first, and nobody else; into docs/results/blame.md
	@$(STEPS) blame

same-size: ## build; faults no larger than what rounding does to a bfloat16 value, and such rounding: is each told, into docs/results/same-size.md
	@$(STEPS) same-size

keep: ## build; which values of a Llama decoder to keep in float32, error before and after, into docs/results/keep-in-float32.md
	@$(STEPS) keep

prove: ## build; faults planted in a Llama decoder's own dumped graphs, and how many are found
	@$(STEPS) prove

zoo: ## build; public models of six packages as their classes make them, every tool on each, into docs/results/zoo.md; ARGS="--models 'timm/*'"
	@$(STEPS) zoo

align: ## build; rust_ort.align beside onnx-array-api: letters, pairs and time on twenty models, into docs/results/align.md
	@$(STEPS) align

studies: ## build-torch; published examples of numerical differences made again over five draws, sizes that broadcast, generation; into docs/results/studies.md, study-*.svg
	@$(STEPS) studies

torch-nodes: ## build-torch; every architecture's graphs and ONNX's node tests on libtorch, into docs/results/torch-runtime.md
	@$(STEPS) torch-nodes

fuzz: ## build; bytes that nobody sent on purpose, for all that reads bytes of others, into docs/results/trust.md; ARGS="--target frames --seconds 3600"
	@$(STEPS) fuzz

soak: ## build; clients that train and dump while they, executors and daemons are killed and disks are full, for 24 hours or ARGS="--minutes 10", into docs/results/trust.md
	@$(STEPS) soak

audit: ## setup; licences, sources and advisories of the crates (cargo-deny), hashes and vulnerabilities of the Python environment
	@$(STEPS) audit

requirements: ## setup; the pinned Python environment with everything that it needs and the hashes, into tests/requirements/
	@$(STEPS) requirements

matrix: ## every declared version of torch and onnxruntime: installed, main job and Python tests, into docs/results/versions.md
	@$(STEPS) matrix

gpu-check: ## everything on a GPU in eight minutes, into docs/results/gpu.md; needs no setup: ORT_GPU_LIB=folder BIN=binary; exits 2 without a GPU
	@$(STEPS) gpu-check

gpu-pack: ## build; CUDA provider of one architecture and stripped product for an offline GPU machine, into OUT=build/gpu-pack (ARCH=90)
	@$(STEPS) gpu-pack

doctor: ## what of the tools is there, and what `rust-ort doctor` says
	@$(STEPS) doctor

clean: ## remove build products and .venv; dumps stay
	@$(STEPS) clean
