# Sourced: cudarc's own tests.
set -euo pipefail

# nvrtc: the folder of NVIDIA's compiler to PTX, which is on PyPI. Where it cannot be had, nothing: the
# tests that need it fail.
nvrtc() {
    local folder=$work/../nvrtc
    [ -d "$folder/nvidia" ] ||
        python3 -m pip install -q --no-deps --target "$folder" 'nvidia-cuda-nvrtc-cu12==12.4.*' >&2 || true
    find "$(realpath "$folder")" -name 'libnvrtc.so.*' -printf '%h\n' | head -n 1
}

# run_tests FILTER [OPTION...] [-- ARGUMENT...]: builds the crate's tests, of the version that this
# workspace uses, and runs those that FILTER names: hwsim run OPTION... -- tests FILTER ARGUMENT...
run_tests() {
    local filter=$1 options=() source version binary counts status=0
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    [ $# = 0 ] || shift
    source=$(cargo metadata --format-version 1 --locked |
        grep -o '"manifest_path":"[^"]*/cudarc-[0-9][^"]*/Cargo.toml"' | head -n 1 | cut -d '"' -f 4)
    source=$(dirname "$source")
    version=${source##*-}
    rm -rf "$work/cudarc-$version"
    cp -r "$source" "$work/cudarc-$version"
    cd "$work/cudarc-$version"
    # It lies inside of this repository, and is no member of its workspace.
    printf '\n[workspace]\n' >>Cargo.toml
    export CARGO_TARGET_DIR=$work/../cudarc-target
    binary=$(cargo test --release --lib --no-run --no-default-features \
        --features std,driver,nccl,nvrtc,f16,cuda-12040,dynamic-loading 2>&1 | tee /dev/stderr |
        sed -n 's/.*Executable.*(\(.*\))$/\1/p')
    LD_LIBRARY_PATH=$lib:$(nvrtc) "$hwsim" run -q "${options[@]}" -- "$binary" "$filter" "$@" \
        --test-threads 1 >"$work/tests" 2>&1 || status=$?
    cat "$work/tests"
    counts=$(grep -o '[0-9]* passed; [0-9]* failed' "$work/tests" || echo 'no summary')
    echo "version $version: $counts"
    [ "$status" = 0 ] && ! grep -q '^0 passed' <<<"$counts"
}
