//! Containers as NVIDIA's tools write them, and broken ones.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

const PLAIN: &[u8] = include_bytes!("../../../tests/fixtures/fatbin/several-none.fatbin");
const LZ4: &[u8] = include_bytes!("../../../tests/fixtures/fatbin/several-speed.fatbin");
const ZSTD: &[u8] = include_bytes!("../../../tests/fixtures/fatbin/several-size.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("../../../tests/fixtures/fatbin/machine-code.fatbin");

#[test]
fn each_coding_gives_the_text_that_was_packed() {
    let source = include_str!("../../../tests/fixtures/fatbin/scale.ptx");
    let kernel = &source[source.find(".visible .entry").unwrap()..];
    // The packer takes the indentation away.
    let kernel: String = kernel.lines().flat_map(|line| [line.trim_start(), "\n"]).collect();
    for (bytes, coding) in [(PLAIN, Coding::Plain), (LZ4, Coding::Lz4), (ZSTD, Coding::Zstd)] {
        let fat = FatBinary::parse(bytes).unwrap();
        assert_eq!(fat.ptx.len(), 5);
        assert_eq!(fat.machine_code.len(), 1);
        let best = fat.best((7, 0)).unwrap();
        assert_eq!(best.coding, coding, "or the fixture does not show what it should");
        let text = best.text().unwrap();
        assert!(text.contains(".target sm_70\n") && text.contains(&kernel), "{text}");
        assert_eq!(best.code().unwrap().kernel_names().collect::<Vec<_>>(), ["scale"]);
    }
}

/// PTX runs on what is newer, that with special features nowhere else.
#[test]
fn the_best_text_is_the_newest_that_the_device_runs() {
    let fat = FatBinary::parse(ZSTD).unwrap();
    let best = |capability| fat.best(capability).map(|ptx| ptx.architecture.to_string());
    for (capability, expected) in [
        ((6, 0), "60"),
        ((6, 1), "60"),
        ((7, 5), "70"),
        ((8, 0), "80"),
        ((8, 9), "80"),
        ((9, 0), "90a"),
        ((10, 0), "100f"),
        ((10, 3), "100f"),
        ((12, 0), "80"),
    ] {
        assert_eq!(best(capability).unwrap(), expected, "on {capability:?}");
    }
    let refused = best((5, 2)).unwrap_err();
    assert_eq!(refused.code, NO_BINARY_FOR_GPU);
    for name in ["5.2", "compute_60", "compute_90a", "sm_80", "compute_52,code=compute_52"] {
        assert!(refused.words.contains(name), "{}", refused.words);
    }
}

#[test]
fn machine_code_alone_is_refused_and_named() {
    let refused = FatBinary::parse(MACHINE_CODE).unwrap().require_ptx().unwrap_err();
    assert_eq!(refused.code, NO_BINARY_FOR_GPU);
    assert!(refused.words.contains("machine code: sm_80"), "{}", refused.words);
}

/// A text that nobody uses costs nothing, and one that is used is decoded once.
#[test]
fn texts_are_decoded_when_they_are_used_and_once() {
    let fat = FatBinary::parse(LZ4).unwrap();
    assert!(fat.ptx.iter().all(|ptx| ptx.code.get().is_none()), "decoded while taking apart");
    let first: *const Code = fat.best((8, 0)).unwrap().code().unwrap();
    let again: *const Code = fat.best((8, 0)).unwrap().code().unwrap();
    assert_eq!(first, again);
    assert_eq!(fat.ptx.iter().filter(|ptx| ptx.code.get().is_some()).count(), 1);
}

/// A cut container must not be read beyond its end.
#[test]
fn every_beginning_of_a_container_is_refused() {
    for bytes in [PLAIN, LZ4, ZSTD] {
        for length in 0..bytes.len() {
            let refused = FatBinary::parse(&bytes[..length]).err().map(|failure| failure.code);
            assert_eq!(refused, Some(INVALID_IMAGE), "{length} bytes of {}", bytes.len());
        }
    }
}

/// A header that promises 2^60 bytes must be an error, not an allocation.
#[test]
fn promised_sizes_take_no_memory() {
    let fields = [8usize, 16 + 8, 16 + 16, 16 + 56];
    for bytes in [PLAIN, LZ4, ZSTD] {
        for field in fields {
            for size in [u64::MAX, 1 << 60, 1 << 31] {
                let mut broken = bytes.to_vec();
                broken[field..field + 8].copy_from_slice(&size.to_le_bytes());
                decode_everything(&broken);
            }
        }
    }
}

/// Takes a container apart and decodes all of its texts: whatever the bytes, a result or an error.
fn decode_everything(bytes: &[u8]) {
    match FatBinary::parse(bytes) {
        Ok(fat) => {
            for ptx in &fat.ptx {
                if let Err(failure) = ptx.text() {
                    assert_eq!(failure.code, INVALID_IMAGE);
                }
            }
            let _ = fat.best((8, 0)).map(|best| best.architecture);
        }
        Err(failure) => assert_eq!(failure.code, INVALID_IMAGE),
    }
}

/// Bytes changed at random: an error code, never a panic. Deterministic: a failure comes back.
#[test]
fn broken_containers_are_errors_and_not_crashes() {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let config = Config { cases: 6000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let strategy = (0..3usize, prop::collection::vec(change, 1..12));
    let outcome = runner.run(&strategy, |(which, changes)| {
        let mut bytes = [PLAIN, LZ4, ZSTD][which].to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        decode_everything(&bytes);
        Ok(())
    });
    outcome.unwrap();
}
