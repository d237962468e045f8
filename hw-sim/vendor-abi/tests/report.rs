//! The report of a process: what it did is counted, once, and what was refused has its reason.

mod common;
#[path = "common/ptx.rs"]
mod ptx;

use common::{context, device_memory, is_inside, kernel, launch, run_again};
use serde_json::Value;
use std::ptr::null_mut;

#[test]
fn a_report_counts_calls_kernels_bytes_and_refusals() {
    let test = "a_report_counts_calls_kernels_bytes_and_refusals";
    if is_inside(test) {
        context(0);
        let store = kernel(ptx::STORE, "store");
        let memory = device_memory(4096);
        for value in 0..3 {
            assert_eq!(launch(store, 2, 64, null_mut(), &[memory, value]) as u32, 0);
        }
        ok!(cuMemsetD8_v2(memory, 0, 1000));
        let mut bytes = [0u8; 300];
        ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), memory, 300));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(memory + 8));
        refused!(CUDA_ERROR_INVALID_VALUE: cuMemFree_v2(memory + 8));
        let mut array = null_mut();
        refused!(CUDA_ERROR_NOT_SUPPORTED: cuArrayCreate_v2(&mut array, std::ptr::null()));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let path = file.to_str().unwrap();
    // Two processes, one line each.
    for _ in 0..2 {
        let output = run_again(test, "one-gpu", &[("HWSIM_REPORT", path), ("RANK", "5")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        let report: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&report["rank"], &report["driver"]), (&"5".into(), &"12.4".into()));
        let calls = |name: &str| report["functions"][name]["calls"].as_u64();
        assert_eq!(calls("cuLaunchKernel"), Some(3));
        assert_eq!(calls("cuMemFree_v2"), Some(2));
        assert_eq!(calls("cuArrayCreate_v2"), Some(1));
        assert_eq!(calls("cuGraphCreate"), None);
        let failed = &report["functions"]["cuMemFree_v2"]["failed"];
        assert_eq!(failed["CUDA_ERROR_INVALID_VALUE"], 2);
        let store = &report["kernels"]["store"];
        // Six blocks of two warps, seven instructions each.
        assert_eq!((&store["launches"], &store["blocks"]), (&3.into(), &6.into()));
        let instructions = ptx::STORE.lines().skip_while(|line| !line.contains("ld.param"));
        let instructions = 1 + instructions.take_while(|line| !line.contains("ret;")).count();
        assert_eq!(store["instructions"].as_u64(), Some(6 * 2 * instructions as u64), "{line}");
        assert_eq!(report["instructions"], store["instructions"]);
        assert_eq!(
            (&report["bytes"]["copied"], &report["bytes"]["filled"]),
            (&300.into(), &1000.into())
        );
        let refused = report["refused"].as_array().unwrap();
        let free = refused.iter().find(|entry| entry["function"] == "cuMemFree_v2").unwrap();
        assert_eq!(
            (&free["times"], &free["result"]),
            (&2.into(), &"CUDA_ERROR_INVALID_VALUE".into())
        );
        assert!(free["why"].as_str().unwrap().contains("no device allocation"), "{free}");
        assert!(refused.iter().any(|entry| entry["function"] == "cuArrayCreate_v2"));
    }
}
