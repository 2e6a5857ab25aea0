#!/usr/bin/env bash
# Builds the GPU tests, the command line and the examples here, and packs them into gpu-pack/ with a script that runs them on
# a machine that has a GPU and no Rust. See docs/testing.md.
set -euo pipefail
cd "$(dirname "$0")/.."

pack="$PWD/gpu-pack"
jobs="${STEPGRAPH_JOBS:-2}"

step() { printf '\n== %s\n' "$*"; }

step "build"
cargo build --release -j "$jobs" --bins --examples
tests=$(cargo test --release -j "$jobs" --test gpu --no-run --message-format=json |
    grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | grep '/gpu-' | tail -1)

step "pack into $pack"
rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/examples"
cp "$tests" "$pack/bin/gpu"
for name in stepgraph examples/digits examples/dqn; do
    if [ -x "target/release/$name" ]; then cp "target/release/$name" "$pack/bin/"; fi
done
strip "$pack"/bin/*
cp -r examples/data "$pack/examples/"
mkdir -p "$pack/tests"
cp -r tests/golden "$pack/tests/"
if [ -d graph_specs ]; then cp -r graph_specs "$pack/"; fi

cat > "$pack/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs the packed GPU tests; logs go to $OUT (./out by default). Arguments select parts: tests sanitizer examples runtime overhead
# soak. Without arguments: the first three.
set -uo pipefail
cd "$(dirname "$0")"
OUT="${OUT:-$PWD/out}"
mkdir -p "$OUT"
chmod +x bin/*
export LD_LIBRARY_PATH="/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PATH="/usr/local/cuda/bin:$PATH"
export STEPGRAPH_REQUIRE_GPU=1
export STEPGRAPH_CACHE="${STEPGRAPH_CACHE:-$PWD/cache}"
export RUST_BACKTRACE=0
parts="${*:-tests sanitizer examples}"
# Seconds after which a part is ended: a device that does not come back must not hold the machine.
limit="${STEPGRAPH_LIMIT:-600}"
failed=0

run() {
    local log="$OUT/$1.log"
    shift
    printf '\n== %s\n' "$*"
    timeout "$limit" "$@" > >(tee "$log") 2>&1
    local code=$?
    [ $code -ne 124 ] || echo "did not end within $limit s: the last line of $log says where it was"
    [ $code -eq 0 ] || { echo "failed with exit code $code"; failed=1; }
}

{ nvidia-smi -L; nvidia-smi --query-gpu=driver_version --format=csv,noheader; date -u +%F; } 2>&1 | tee "$OUT/machine.log"

for part in $parts; do
    case "$part" in
        tests) run tests bin/gpu --test-threads=1 --show-output ;;
        sanitizer)
            if command -v compute-sanitizer > /dev/null; then
                few="nodes::copies nodes::hand_written products::epilogues control::branches replay::tickets"
                # The number of a kernel's parameters is found by asking until the driver says no: no API errors, then.
                run memcheck compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 bin/gpu --test-threads=1 $few
                run racecheck compute-sanitizer --tool racecheck --error-exitcode 9 bin/gpu --test-threads=1 nodes::reductions
            else
                echo "compute-sanitizer is not here"
            fi
            ;;
        examples)
            if [ -x bin/stepgraph ]; then run doctor bin/stepgraph doctor; fi
            if [ -x bin/digits ]; then
                for plan in phases mega; do run "digits-$plan" bin/digits --device cuda --plan "$plan"; done
            fi
            ;;
        runtime)
            few="lanes:: epochs:: backtest:: checkpoint:: repeat:: finite:: side_by_side:: lifetime::sessions control::stop"
            run runtime bin/gpu --test-threads=1 --show-output $few
            ;;
        overhead) run overhead bin/dqn overhead ;;
        soak) run soak env STEPGRAPH_SOAK=1000000 bin/gpu --test-threads=1 --show-output soak:: ;;
        *) echo "unknown part $part"; failed=1 ;;
    esac
done
exit $failed
RUN
chmod +x "$pack/run.sh"

size=$(du -sm "$pack" | cut -f1)
step "$size MiB; copy gpu-pack/ to the GPU machine and run: OUT=/some/folder gpu-pack/run.sh"
[ "$size" -lt 60 ] || { echo "the pack is too large to travel (60 MiB)"; exit 1; }
