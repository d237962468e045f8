# Sourced: cudarc's own tests.
set -euo pipefail

# package NAME: the folder of one of CUDA's packages on PyPI, of CUDA 12.4. Where it cannot be had, an
# empty one: the tests that need it fail.
package() {
    local folder=$work/../$1
    [ -d "$folder/nvidia" ] || {
        mkdir -p "$folder"
        python3 -m pip install -q --no-deps --target "$folder" "nvidia-cuda-$1-cu12==12.4.*" >&2 || true
    }
    realpath "$folder"
}

# Builds the crate's tests, of the version that this workspace uses: `binary`, `version`.
build_tests() {
    local source
    source=$(cargo metadata --format-version 1 --locked |
        grep -o '"manifest_path":"[^"]*/cudarc-[0-9][^"]*/Cargo.toml"' | head -n 1 | cut -d '"' -f 4)
    source=$(dirname "$source")
    version=${source##*-} passed=0
    rm -rf "$work/cudarc-$version"
    cp -r "$source" "$work/cudarc-$version"
    cd "$work/cudarc-$version"
    # It lies inside of this repository, and is no member of its workspace.
    printf '\n[workspace]\n' >>Cargo.toml
    export CARGO_TARGET_DIR=$work/../cudarc-target
    binary=$(cargo test --release --lib --no-run --no-default-features \
        --features std,driver,nccl,nvrtc,f16,cuda-12040,dynamic-loading 2>&1 | tee >(cat >&2) |
        sed -n 's/.*Executable.*(\(.*\))$/\1/p')
    # NVRTC is NVIDIA's compiler to PTX.
    libraries=$lib:$(find "$(package nvrtc)" -name 'libnvrtc.so.*' -printf '%h\n' | head -n 1)
}

# run_tests LAUNCHER... -- ARGUMENT...: some of the tests, on four GPUs. Fails unless they pass, and some
# have run.
run_tests() {
    local launcher=() counts status=0
    while [ "$1" != -- ]; do
        launcher+=("$1")
        shift
    done
    shift
    LD_LIBRARY_PATH=$libraries "$hwsim" run -q --machine pcie4 -- "${launcher[@]}" "$binary" "$@" \
        --test-threads 1 >"$work/tests" 2>&1 || status=$?
    cat "$work/tests"
    counts=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' "$work/tests")
    [ "$status" = 0 ] && [ "${counts% *}" -gt 0 ] || {
        echo "cudarc $version, $*: ${counts:-no summary} (passed, failed)"
        exit 1
    }
    passed=$((passed + ${counts% *}))
}

end_tests() {
    echo "cudarc $version: $passed passed, 0 failed${left_out:-}"
}
