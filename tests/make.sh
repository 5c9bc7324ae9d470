#!/usr/bin/env bash
# The steps behind the Makefile: tests/make.sh <target>.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
VENV=$ROOT/.venv
PY=$VENV/bin/python
REQUIREMENTS=python_shim/requirements-dev.txt
MIN_RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
MIN_PYTHON=3.11
MODULE=python_shim/rust_ort/_native.abi3.so
SOCKET_HOME=
RUN_ID=
BOUNDED=
BESIDE=
TIMES=
AHEAD=

# An empty environment has neither cargo's nor pyenv's folder on PATH. Without HOME, bash takes ~ from the user database.
export HOME="${HOME:-$(cd ~ && pwd)}"
export PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}:${CARGO_HOME:-$HOME/.cargo}/bin:$HOME/.pyenv/shims:$HOME/.local/bin"

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# step <name> <command...>: runs it, prints its name and how long it took, into the file TIMES as well.
step() {
    local name=$1 begin=$SECONDS status=0
    shift
    printf '==> %s\n' "$name"
    "$@" || status=$?
    [[ -z $TIMES ]] || printf '%s\t%d\n' "$name" $((SECONDS - begin)) >>"$TIMES"
    if ((status)); then
        printf '<== %s: FAILED (exit %d) after %d s\n' "$name" "$status" $((SECONDS - begin))
        return "$status"
    fi
    printf '<== %s: %d s\n' "$name" $((SECONDS - begin))
}

at_least() { # at_least <version> <minimum>
    [[ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1)" == "$2" ]]
}

python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# The first Python that is new enough; PYTHON=<interpreter> decides alone.
find_python() {
    local candidate version seen=""
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3}; do
        version=$(python_version "$candidate") || continue
        seen="$seen $candidate=$version"
        if at_least "$version" $MIN_PYTHON; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python $MIN_PYTHON or later is needed; found:${seen:- none}. Install one or name it: make setup PYTHON=/path/to/python3"
}

need_rust() {
    command -v cargo >/dev/null || fail "cargo is not on PATH; Rust $MIN_RUST or later is needed: https://rustup.rs"
    local version
    version=$(rustc --version | awk '{print $2}')
    at_least "$version" "$MIN_RUST" || fail "Rust $MIN_RUST or later is needed, found $version; run: rustup update stable"
}

need_cc() {
    command -v cc >/dev/null || command -v gcc >/dev/null || fail "no C compiler (cc or gcc) on PATH: Rust links with it; install gcc"
}

# pip's output, one line a package, with the seconds since the start: a long step that is seen to move.
install_wheels() {
    local log=$VENV/pip.log begin=$SECONDS line
    if ! "$PY" -m pip install --disable-pip-version-check --progress-bar off -r "$REQUIREMENTS" 2>&1 | tee "$log" |
        while IFS= read -r line; do
            case $line in
            *Downloading* | Installing* | Successfully* | ERROR* | *error*)
                line=$(sed -E 's/^ +//; s#https?://[^ ]*/##' <<<"$line")
                printf '    %4d s  %s\n' $((SECONDS - begin)) "${line:0:140}"
                ;;
            esac
        done; then
        tail -n 20 "$log" >&2
        fail "pip could not install $REQUIREMENTS (whole output: $log); with the network back, run make setup again"
    fi
}

setup() {
    local python want
    need_cc
    need_rust
    want=$(sha256sum "$REQUIREMENTS" | cut -d' ' -f1)
    if [[ -x $PY && "$(cat "$VENV/.requirements" 2>/dev/null)" == "$want" ]] && "$PY" -c '' 2>/dev/null; then
        return
    fi
    python=$(find_python)
    mkdir -p "$ROOT/build"
    exec 9>"$ROOT/build/setup.lock"
    flock 9
    if ! [[ -x $PY ]] || ! "$PY" -m pip --version >/dev/null 2>&1; then
        rm -rf "$VENV"
        step "virtual environment in .venv with $("$python" --version)" "$python" -m venv "$VENV" ||
            fail "$python has no working venv module; install it (Debian and Ubuntu: apt install python3-venv)"
    fi
    step "pinned wheels into .venv (several GB with torch's CUDA libraries)" install_wheels
    printf '%s\n' "$want" >"$VENV/.requirements"
    exec 9>&-
}

sources_hash() {
    find src protos build.rs Cargo.toml Cargo.lock .cargo README.md python_shim -type f \
        -not -path '*/__pycache__/*' -not -path '*_cache/*' -not -path '*/wheel_data/*' \
        -not -name '*.egg-info' -not -name '_native.*.so' -print0 |
        sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# The native module beside the sources, which run from there, too. Renamed into place: who has it mapped keeps the old one.
place_module() {
    cmp -s target/release/lib_native.so "$MODULE" && return
    cp target/release/lib_native.so "${MODULE%.abi3.so}.$$.so"
    mv -f "${MODULE%.abi3.so}.$$.so" "$MODULE"
}

install_package() {
    PATH="$VENV/bin:$PATH" "$PY" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation \
        --force-reinstall ./python_shim
}

build() { # build [<cargo's options>...]
    local want wheels
    need_cc
    need_rust
    # Wheels come over the network while cargo builds: in a process group of their own, which an end here takes along.
    set -m
    {
        setup
        $AHEAD
    } &
    wheels=$!
    set +m
    trap 'kill -- "-$wheels" 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    want=$(sources_hash)
    if ! [[ -f $MODULE && "$(cat "$VENV/.package" 2>/dev/null)" == "$want" ]]; then
        rm -f "$VENV/.package" # until the end what is there may be of other sources
        step "release binary and native module" cargo build --release --locked "$@"
        place_module
    fi
    wait "$wheels" || exit 2
    trap - EXIT INT TERM
    if [[ -x $VENV/bin/rust-ort && "$(cat "$VENV/.package" 2>/dev/null)" == "$want" ]]; then
        return
    fi
    step "package and binary into .venv" install_package
    printf '%s\n' "$want" >"$VENV/.package"
}

# Its own cargo invocation, so that nothing else is built with libtorch's feature. torch-sys asks no Python and downloads
# nothing: headers and libraries are those of the environment's torch.
build_torch() {
    build
    LIBTORCH=$("$PY" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])')
    export LIBTORCH
    step "rust-ort-torch" cargo build --release --locked --features torch --bin rust-ort-torch
    printf 'built %s; start it with LD_LIBRARY_PATH=%s\n' "$ROOT/target/release/rust-ort-torch" "$LIBTORCH/lib"
}

ids_of_run() { # processes that carry this run's mark in their environment
    local environ pid
    for environ in /proc/[0-9]*/environ; do
        pid=${environ#/proc/}
        pid=${pid%/environ}
        if [[ $pid != "$$" && $pid != "$BASHPID" ]] && grep -qzF "RUST_ORT_MAKE_RUN=$RUN_ID" "$environ" 2>/dev/null; then
            if [[ "$(readlink "/proc/$pid/exe" 2>/dev/null)" == */rust-ort* ]]; then
                printf '%s\n' "$pid"
            fi
        fi
    done
}

# Ends, by id, every rust-ort process that this run started, and removes its folder.
end_own_processes() {
    local pid ids
    trap - EXIT
    [[ -z $BOUNDED ]] || kill -TERM "$BOUNDED" 2>/dev/null || true
    [[ -z $BESIDE ]] || kill -TERM -- "-$BESIDE" 2>/dev/null || true
    ids=$(ids_of_run)
    for pid in $ids; do kill -TERM "$pid" 2>/dev/null || true; done
    for _ in {1..50}; do
        [[ -z "$(ids_of_run)" ]] && break
        sleep 0.1
    done
    for pid in $(ids_of_run); do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$SOCKET_HOME"
}

# A daemon of this run's own, whatever else serves the user, and no setting of the user's shell.
own_daemon() {
    local name
    for name in $(compgen -e RUST_ORT_ || true); do [[ $name == RUST_ORT_MATRIX_HOME ]] || unset "$name"; done
    SOCKET_HOME=$(mktemp -d "${TMPDIR:-/tmp}/rust-ort-make.XXXXXX")
    RUN_ID=$(basename "$SOCKET_HOME")
    trap end_own_processes EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    export RUST_ORT_MAKE_RUN=$RUN_ID
    export RUST_ORT_SOCKET=$SOCKET_HOME/v1.sock
    export RUST_ORT_STATE_DIR=$SOCKET_HOME/state
    export RUST_ORT_BINARY=$VENV/bin/rust-ort
}

onnxruntime_library() {
    "$PY" - <<'EOF'
import importlib.util, pathlib
spec = importlib.util.find_spec("onnxruntime")
print(next(iter(sorted(pathlib.Path(spec.origin).parent.glob("capi/libonnxruntime.so*")))))
EOF
}

# within <seconds> <command...>: ends it, and what it started in its process group, when it takes longer. A test has a
# watchdog of its own; this one is for what hangs outside of tests, so that what was printed until then is seen: at
# SIGABRT, pytest and all its processes write where they are.
within() {
    local seconds=$1 status=0
    shift
    set -m # or it would ignore SIGINT, and all that it starts would
    timeout --signal=ABRT --kill-after=30 "$seconds" "$@" &
    BOUNDED=$!
    set +m
    wait "$BOUNDED" || status=$?
    BOUNDED=
    ((status != 124 && status != 137)) || printf 'error: ended after %d s: %s\n' "$seconds" "$*" >&2
    return "$status"
}

cargo_tests() {
    # In release: one build serves the tests, the demo and the installed binary. Not a pipe to tee: what a test left
    # running would hold it open.
    : >"$ROOT/build/rust-tests.log"
    within 1200 bash -c 'cargo test --release --locked --no-fail-fast >"$0" 2>&1 & tail -n +1 -f --pid=$! "$0"; wait $!' \
        "$ROOT/build/rust-tests.log"
}

python_tests() {
    # sympy's cache of a thousand entries is small for graphs with symbolic sizes: a fifth of their time.
    # shellcheck disable=SC2086  # ARGS is a list
    SYMPY_CACHE_SIZE=100000 within 2400 "$PY" -m pytest -c python_shim/pyproject.toml --rootdir . --junitxml build/python-tests.xml \
        @tests/python/parallel.args tests/python ${ARGS:-}
}

# `cargo build` was before, with the same target folder: pip's own build takes seconds.
fresh_install() {
    within 1200 "$PY" tests/fresh.py
}

# Over the network while cargo builds. What fails here is tried again where it is needed, and told there.
wheels_of_tests() {
    zoo_packages || true
    step "wheels of the fresh install" timeout 1200 "$PY" tests/fresh.py --ahead || true
}

fresh_counts() {
    cat build/fresh-counts 2>/dev/null || { printf 'Fresh install: no result (see above)\n'; return 1; }
}

rust_counts() {
    awk '/^test result:/ {passed += $4; failed += $6; ignored += $8}
         END {printf "Rust:   %d passed, %d failed, %d ignored\n", passed, failed, ignored}' build/rust-tests.log
    sed -n 's/^test \(.*\) \.\.\. FAILED$/    FAILED \1/p' build/rust-tests.log
}

# python_counts <seconds>: what the Python tests gave, the slowest of their files; build/times.json.
python_counts() {
    "$PY" tests/times.py --steps "$TIMES" --seconds "$1"
}

# What keeps one core busy goes on beside the Rust tests and clippy, which keep another one so.
beside_rust() {
    local status=0
    trap '[[ -z $BOUNDED ]] || kill -TERM "$BOUNDED" 2>/dev/null; exit 143' TERM
    zoo_packages || status=1
    step "fresh install" fresh_install || status=1
    lint_python || status=1
    return "$status"
}

run_tests() {
    local begin=$SECONDS status=0
    mkdir -p build
    TIMES=$ROOT/build/steps.tsv
    : >"$TIMES"
    AHEAD=wheels_of_tests
    # The tests' own build of the library beside the library's.
    build --lib --bins --tests --examples
    rm -f build/rust-tests.log build/python-tests.xml build/fresh-counts build/times.json
    own_daemon
    RUST_ORT_TEST_ONNXRUNTIME=$(onnxruntime_library)
    export RUST_ORT_TEST_ONNXRUNTIME
    export RUST_ORT_WRITE_DUMP=$ROOT/target/release/examples/write_dump
    export RUST_ORT_CUSTOM_OPS=$ROOT/target/release/examples/libcustom_ops.so
    set -m
    beside_rust >build/beside-rust.log 2>&1 &
    BESIDE=$!
    set +m
    step "Rust tests" cargo_tests || status=1
    lint_rust || status=1
    wait "$BESIDE" || status=1
    BESIDE=
    cat build/beside-rust.log
    step "Python tests" python_tests || status=1
    printf '\n'
    rust_counts || status=1
    python_counts $((SECONDS - begin)) || status=1
    fresh_counts || status=1
    printf 'Time:   %d s, setup and build included\n' $((SECONDS - begin))
    if ((status)); then printf 'FAILED (see above; logs in build/)\n'; else printf 'all passed\n'; fi
    return "$status"
}

# What measures: title | Python's arguments | those that ARGS replaces. With ARGS, only what they name is written: a part
# is not what a page of docs/results holds.
declare -A MEASURES=(
    [guide]="guide|-m measure.guide|"
    [bench]="bench|-m measure.bench|--output docs/results/bench.md"
    [coverage]="coverage|-m measure.coverage|--output docs/results/coverage.md"
    [random-graphs]="random functions|-m measure.random_graphs|--output docs/results/random-graphs.md --runs docs/results/random-graphs.json"
    [op-census]="census of operators|-W ignore -m measure.op_census|--output docs/results/op-census.md"
    [planted]="planted faults|-W ignore -m measure.planted|--output docs/results/planted.md"
    [blame]="who is blamed|-W ignore -m measure.blame|--output docs/results/blame.md"
    [same-size]="faults no larger than rounding|-W ignore -m measure.same_size|--output docs/results/same-size.md"
    [keep]="what to keep in float32|-W ignore -m measure.keep|--output docs/results/keep-in-float32.md"
    [prove]="faults planted in a Llama decoder|-W ignore -m rust_ort.studies.prove|"
    [torch-nodes]="models on libtorch|-W ignore -m measure.torch_nodes|--output docs/results/torch-runtime.md"
    [fuzz]="fuzzing|-m measure.fuzz|--output docs/results/trust.md"
    [soak]="soak|-m measure.soak|--output docs/results/trust.md"
    [align]="align beside onnx-array-api|-W ignore -m measure.align|--output docs/results/align.md"
)

# measured <name> [<more of PYTHONPATH>]: its step alone.
measured() {
    local title arguments default
    IFS='|' read -r title arguments default <<<"${MEASURES[$1]}"
    # shellcheck disable=SC2086  # lists
    step "$title" env PYTHONPATH="$ROOT/tests${2:+:$2}" "$PY" $arguments ${ARGS:-$default}
}

measure() {
    build
    own_daemon
    measured "$1"
}

demo() {
    build
    own_daemon
    # shellcheck disable=SC2086
    step "main job" "$PY" -m rust_ort.studies.main_job --folder "$ROOT/dumps" ${ARGS:-}
}

coverage() {
    local status=0
    build
    own_daemon
    measured coverage || status=1
    [[ -n ${ARGS:-} ]] || step "coverage with dynamic sizes" env PYTHONPATH="$ROOT/tests" "$PY" -m measure.coverage \
        --dynamic --output docs/results/coverage-dynamic.md || status=1
    return "$status"
}

# What `make test` skips, since building it takes as long as all the rest: the runtimes' tests over libtorch.
test_torch() {
    local status=0
    build_torch
    own_daemon
    RUST_ORT_TEST_ONNXRUNTIME=$(onnxruntime_library)
    export RUST_ORT_TEST_ONNXRUNTIME
    LD_LIBRARY_PATH=$LIBTORCH/lib step "Rust tests with libtorch" within 1800 \
        cargo test --release --locked --features torch --no-fail-fast --lib --test executor || status=1
    # It has built the plain program with libtorch, too, which does not start without.
    step "release binary as it was" cargo build --release --locked || status=1
    # shellcheck disable=SC2086  # ARGS is a list
    step "Python tests with libtorch" within 1200 "$PY" -m pytest -c python_shim/pyproject.toml --rootdir . \
        tests/python/test_torch_runtime.py tests/python/test_runtimes.py ${ARGS:-} || status=1
    return "$status"
}

# With ARGS in float32 alone.
torch_nodes() {
    local status=0
    build_torch
    own_daemon
    measured torch-nodes || status=1
    [[ -n ${ARGS:-} ]] || step "models in half precision on libtorch" env PYTHONPATH="$ROOT/tests" "$PY" -W ignore \
        -m measure.torch_half --output docs/results/torch-half.md || status=1
    return "$status"
}

# The tests are built in release, as `make test` builds them.
fuzz() {
    build --lib --bins --tests --examples
    own_daemon
    RUST_ORT_TEST_ONNXRUNTIME=$(onnxruntime_library)
    export RUST_ORT_TEST_ONNXRUNTIME
    measured fuzz
}

# packages_apart <name> <what>: those of tests/requirements/<name>.txt in build/<name>/site, beside the environment, which
# stays what the tests know.
packages_apart() {
    local site=$ROOT/build/$1/site pins=tests/requirements/$1.txt
    cmp -s "$pins" "$site/.requirements" && return
    rm -rf "$site"
    mkdir -p "$site"
    step "$2" "$PY" -m pip install --disable-pip-version-check --quiet --no-deps --target "$site" -r "$pins" || return
    cp "$pins" "$site/.requirements"
}

zoo_packages() {
    packages_apart zoo "packages of public models"
}

# With ARGS, only what they name is written.
zoo() {
    build
    zoo_packages
    own_daemon
    eval "set -- ${ARGS:---output docs/results/zoo.md}"
    step "zoo" env PYTHONPATH="$ROOT/tests:$ROOT/build/zoo/site" "$PY" -W ignore -m measure.zoo "$@"
}

align() {
    build
    packages_apart align "onnx-array-api"
    own_daemon
    measured align "$ROOT/build/align/site"
}

# With ARGS="--only generate", only these sections are written. Studies are their own judges: what they find is told, not asserted.
studies() {
    build_torch
    own_daemon
    RUST_ORT_ONNXRUNTIME=$(onnxruntime_library)
    export RUST_ORT_ONNXRUNTIME
    # shellcheck disable=SC2086
    LD_LIBRARY_PATH=$LIBTORCH/lib step "studies" env PYTHONPATH="$ROOT/tests" "$PY" -W ignore -m measure.studies \
        --program "$ROOT/target/release/rust-ort-torch" ${ARGS:-}
}

# Each part is run, or said to be skipped.
audit() {
    local status=0
    setup
    mkdir -p build
    if cargo deny --version >/dev/null 2>&1; then
        step "crates: licences, sources, versions" cargo deny check licenses sources bans || status=1
        if cargo deny fetch db >build/advisories.log 2>&1; then
            step "crates: advisories" cargo deny check advisories || status=1
        else
            printf 'advisories: skipped, no advisory database (build/advisories.log)\n'
        fi
    else
        printf 'crates: skipped, cargo-deny is missing; install it: cargo install --locked cargo-deny\n'
    fi
    step "Python environment" env PYTHONPATH="$ROOT/tests" "$PY" -m measure.audit || status=1
    return "$status"
}

requirements() {
    setup
    step "hashes" env PYTHONPATH="$ROOT/tests" "$PY" -m measure.audit --write
}

# Environments of its own, see tests/matrix.py; `cargo build` first, so that pip finds all built. The examples apart: their
# dependencies turn on features of others, with which the module would be built, and then again by pip.
matrix() {
    local python
    need_cc
    need_rust
    python=$(find_python)
    step "release binary and native module" cargo build --release --locked
    step "what the tests run" cargo build --release --locked --examples
    own_daemon
    eval "set -- ${ARGS:-}"
    step "matrix of versions" "$python" tests/matrix.py "$@"
}

# Needs no setup: a GPU machine may be offline, with binary and module built elsewhere and a Python that has torch.
gpu_check() {
    local python=${PYTHON:-} binary=${BIN:-}
    if [[ -z $python ]]; then
        if [[ -x $PY ]]; then python=$PY; else python=$(find_python); fi
    fi
    if [[ -z $binary ]]; then
        for binary in target/release/rust-ort "$VENV/bin/rust-ort"; do [[ -x $binary ]] && break; done
    fi
    own_daemon
    # With ARGS, only what they name is written. Steps have daemons of their own, which the check ends.
    # shellcheck disable=SC2086
    PYTHONPATH=$ROOT/python_shim "$python" python_shim/rust_ort/studies/gpu_check.py --binary "$binary" \
        ${ORT_GPU_LIB:+--onnxruntime "$ORT_GPU_LIB"} ${ARGS:---output docs/results/gpu.md}
}

# What an offline GPU machine needs, in $OUT (build/gpu-pack): provider/ with the code of one architecture ($ARCH) alone, and
# product/ stripped. The provider comes from ORT_GPU_LIB, else from the wheel of the pinned version.
gpu_pack() {
    local out=${OUT:-build/gpu-pack} arch=${ARCH:-90} capi=${ORT_GPU_LIB:-} binary=${BIN:-target/release/rust-ort} work version
    [[ -n ${BIN:-} ]] || build
    work=$(mktemp -d)
    # shellcheck disable=SC2064  # the name is gone when the function is
    trap "rm -rf '$work'" EXIT
    rm -rf "$out"
    mkdir -p "$out/provider" "$out"/product/{bin,tests,docs/results,python_shim}
    out=$(cd "$out" && pwd)
    if [[ -z $capi ]]; then
        version=$(sed -n 's/^onnxruntime==//p' "$REQUIREMENTS")
        step "onnxruntime-gpu $version" "$PY" -m pip download -q --no-deps --only-binary=:all: -d "$work" "onnxruntime-gpu==$version"
        "$PY" -m zipfile -e "$work"/onnxruntime_gpu-*.whl "$work/wheel"
        capi=$work/wheel/onnxruntime/capi
    fi
    step "code of sm_$arch" env PYTHONPATH=tests "$PY" -m measure.keep_arch "$capi/libonnxruntime_providers_cuda.so" \
        "$out/provider/libonnxruntime_providers_cuda.so" "$arch"
    cp "$capi"/libonnxruntime.so.* "$capi/libonnxruntime_providers_shared.so" "$out/provider/"
    cp -r python_shim/rust_ort "$out/product/python_shim/"
    cp -r tests/measure tests/make.sh "$out/product/tests/"
    cp Makefile Cargo.toml "$out/product/"
    cp "$binary" "$out/product/bin/rust-ort"
    # An entry point, so that backend="rust_ort" is found by its name from sources.
    mkdir "$out/product/python_shim/rust_ort-0.dist-info"
    printf 'Metadata-Version: 2.1\nName: rust-ort\nVersion: 0\n' >"$out/product/python_shim/rust_ort-0.dist-info/METADATA"
    printf '[torch_dynamo_backends]\nrust_ort = rust_ort.backend:rust_ort\n' >"$out/product/python_shim/rust_ort-0.dist-info/entry_points.txt"
    strip "$out/product/bin/rust-ort" "$out/product/$MODULE"
    find "$out/product" -name __pycache__ -prune -exec rm -rf {} +
    tar -C "$out" -cf - provider | xz -T0 -3 >"$out/provider.tar.xz"
    tar -C "$out" -cf - product | xz -T0 -3 >"$out/product.tar.xz"
    du -h "$out"/*.tar.xz
    printf 'there: tar -xf provider.tar.xz; tar -xf product.tar.xz; cd product; make gpu-check ORT_GPU_LIB=$PWD/../provider BIN=bin/rust-ort\n'
}

rust_format() {
    step "rustfmt" cargo fmt --all --check
}

python_format() {
    step "ruff format" "$VENV/bin/ruff" format --check --config python_shim/pyproject.toml python_shim tests
}

# Every check runs, whichever failed before: bash's -e is off inside a condition, so the statuses are gathered by hand.
lint_rust() {
    local status=0
    rust_format || status=1
    step "clippy" within 1200 cargo clippy --release --locked --workspace --all-targets -- -D warnings || status=1
    return "$status"
}

lint_python() {
    local status=0
    python_format || status=1
    step "ruff" "$VENV/bin/ruff" check --config python_shim/pyproject.toml python_shim tests || status=1
    step "mypy" bash -c "cd python_shim && '$VENV/bin/mypy' --strict rust_ort build_backend.py ../tests/measure" || status=1
    return "$status"
}

fmt_check() {
    local status=0
    rust_format || status=1
    python_format || status=1
    return "$status"
}

lint() {
    local status=0
    lint_rust || status=1
    lint_python || status=1
    return "$status"
}

fmt() {
    cargo fmt --all
    "$VENV/bin/ruff" format --config python_shim/pyproject.toml python_shim tests
    "$VENV/bin/ruff" check --fix --config python_shim/pyproject.toml python_shim tests
}

doctor() {
    local tool
    for tool in "${PYTHON:-python3}" rustc cargo cc make git; do
        printf '%-8s %s\n' "$tool" "$("$tool" --version 2>&1 | head -n1 || true)"
    done
    printf '%-8s %s\n' ".venv" "$([[ -f $VENV/.requirements ]] && echo "set up" || echo "missing: make setup")"
    if [[ -x $VENV/bin/rust-ort ]]; then
        "$VENV/bin/rust-ort" doctor
    else
        printf '%-8s %s\n' "rust-ort" "missing: make build"
    fi
}

case ${1:-} in
setup | build | demo | coverage | zoo | align | studies | fuzz | audit | requirements | matrix | doctor) "$1" ;;
guide | bench | random-graphs | op-census | planted | blame | same-size | keep | prove | soak) measure "$1" ;;
test) run_tests ;;
lint | fmt)
    setup
    "$1"
    ;;
fmt-check)
    setup
    fmt_check
    ;;
build-torch) build_torch ;;
torch-nodes) torch_nodes ;;
test-torch) test_torch ;;
gpu-check) gpu_check ;;
gpu-pack) gpu_pack ;;
clean) rm -rf target build "$VENV" python_shim/wheel_data python_shim/rust_ort/_native.*.so ;;
*) fail "no target '${1:-}'; see make help" ;;
esac
