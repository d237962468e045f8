//! `hwsim run`, with and without `--net`: the machine where Linux shows it.

mod sandbox;

use sandbox::{Sandbox, library, text};
use std::process::{Command, Output};

/// Runs a shell script, with the real library.
fn run(options: &[&str], script: &str) -> Output {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.hwsim(&[&["run", "-q"], options, &["--", "sh", "-c", script]].concat());
    command.env("HWSIM_LIB", library()).env_remove("LD_LIBRARY_PATH");
    let output = command.output().unwrap();
    sandbox.assert_nothing_left();
    output
}

fn said(options: &[&str], script: &str) -> String {
    let output = run(options, script);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{script}: {}\n{out}{err}", output.status);
    out
}

/// What programs read there must be the machine that driver, NVML and verbs speak of: NCCL joins
/// them by these addresses.
#[test]
fn the_tree_agrees_with_driver_management_library_and_verbs() {
    const SCRIPT: &str = r#"
import ctypes, glob, os
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
assert cuda.cuInit(0) == 0 and nvml.nvmlInit_v2() == 0
read = lambda path: open(path).read().strip()
pci = "/sys/bus/pci/devices"
count = ctypes.c_int()
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
gpus = sorted(d for d in os.listdir(pci) if read(f"{pci}/{d}/class") == "0x030200")
assert count.value == len(gpus) > 0, (count.value, gpus)
for index in range(count.value):
    text = ctypes.create_string_buffer(32)
    assert cuda.cuDeviceGetPCIBusId(text, 32, index) == 0
    address = text.value.decode().lower()
    assert address in gpus, address
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByPciBusId_v2(text, ctypes.byref(device)) == 0
    numbers = [ctypes.c_uint() for _ in range(2)]
    assert nvml.nvmlDeviceGetCurrPcieLinkWidth(device, ctypes.byref(numbers[0])) == 0
    assert nvml.nvmlDeviceGetCurrPcieLinkGeneration(device, ctypes.byref(numbers[1])) == 0
    assert read(f"{pci}/{address}/current_link_width") == str(numbers[0].value)
    speed = ["2.5", "5.0", "8.0", "16.0", "32.0"][numbers[1].value - 1]
    assert read(f"{pci}/{address}/current_link_speed") == speed + " GT/s PCIe"
    node = read(f"{pci}/{address}/numa_node")
    assert os.path.isdir(f"/sys/devices/system/node/node{node}")
    config = open(f"{pci}/{address}/config", "rb").read()
    assert f"0x{config[1]:02x}{config[0]:02x}" == read(f"{pci}/{address}/vendor") == "0x10de"
    words = (ctypes.c_ulong * 16)()
    assert nvml.nvmlDeviceGetCpuAffinity(device, 16, words) == 0
    mask = int(read(f"{pci}/{address}/local_cpus").replace(",", ""), 16)
    assert sum(word << 64 * at for at, word in enumerate(words)) & ~mask == 0
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
verbs.ibv_get_device_guid.restype = ctypes.c_uint64
verbs.ibv_get_device_guid.argtypes = [ctypes.c_void_p]
number = ctypes.c_int()
devices = verbs.ibv_get_device_list(ctypes.byref(number))
names = [verbs.ibv_get_device_name(devices[i]).decode() for i in range(number.value)]
assert sorted(names) == sorted(os.listdir("/sys/class/infiniband")) and names, names
for i, name in enumerate(names):
    guid = int(read(f"/sys/class/infiniband/{name}/node_guid").replace(":", ""), 16)
    assert guid.to_bytes(8, "big") == verbs.ibv_get_device_guid(devices[i]).to_bytes(8, "little")
    device = os.path.realpath(f"/sys/class/infiniband/{name}/device")
    assert device.startswith("/sys/devices/pci") and os.path.basename(device) in os.listdir(pci)
print("agreed")
"#;
    for machine in ["dgx-a100", "ark", "pcie4"] {
        let sandbox = Sandbox::new();
        let program = sandbox.path("agree.py");
        std::fs::write(&program, SCRIPT).unwrap();
        let script = format!("python3 {}", program.display());
        assert_eq!(said(&["-m", machine], &script), "agreed\n", "{machine}");
    }
}

/// A program that needs the host's disks, processors or networks must find them.
#[test]
fn the_hosts_own_stays_visible() {
    let list = "cd /sys; for d in class/net class/block devices/system/cpu bus module; do \
                ls $d | sort | tr '\\n' ' '; done; cat devices/system/cpu/online; \
                for l in class/net/* class/block/*; do [ -e $l ] && echo $l; done";
    let host = Command::new("sh").args(["-c", list]).output().unwrap();
    assert_eq!(said(&["-m", "dgx-a100"], list), text(&host.stdout));
}

/// Each process sees its own node's adapters, and with the option nobody sees anything.
#[test]
fn each_node_has_its_own() {
    let read = "cat /sys/class/infiniband/hwsim0/node_guid; echo $RANK";
    let out = said(&["-m", "dgx-a100 x 2"], read);
    assert!(out.contains("[0] 0268:73ff:fe00:0000\n"), "{out}");
    assert!(out.contains("[1] 0268:73ff:fe00:0100\n"), "{out}");
    for option in ["--no-sys", "--no-adapters"] {
        let none = run(&["-m", "dgx-a100", option], "test -e /sys/class/infiniband/hwsim0");
        assert_eq!(none.status.code(), Some(1), "{option}");
    }
}

/// A machine without adapters has a `/sys`, too, and so has a run inside of a run.
#[test]
fn machines_without_adapters_and_runs_within_runs_have_one() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("bare.toml");
    let shown = sandbox.output(&["machines", "one-gpu", "--toml"]);
    let machine = text(&shown.stdout);
    let (machine, _) = machine.split_once("[[adapters]]").unwrap();
    std::fs::write(&file, machine).unwrap();
    let file = file.to_str().unwrap();
    let count = "grep -l 0x030200 /sys/bus/pci/devices/*/class | wc -l";
    assert_eq!(said(&["-m", file], count), "1\n");
    let within = format!("{} run -q -m {file} -- sh -c '{count}'", env!("CARGO_BIN_EXE_hwsim"));
    assert_eq!(said(&["-m", "dgx-a100"], &format!("{count}; {within}; {count}")), "8\n1\n8\n");
}

/// In a container that forbids mounts, one line says what is missing, whatever the number of
/// processes, and the run goes on.
#[test]
fn where_mounts_are_forbidden_one_line_says_so() {
    let forbid = "echo 0 >/proc/sys/user/max_mnt_namespaces";
    let within = |script: String| {
        let sandbox = Sandbox::new();
        let mut command = Command::new("unshare");
        command.args(["-Ur", "sh", "-c", &script]);
        command.env("HWSIM_LIB", library()).env("TMPDIR", sandbox.path("tmp"));
        command.env_remove("HWSIM_MACHINE").env_remove("HWSIM_FABRIC").env_remove("HWSIM_NODE");
        let output = command.output().unwrap();
        sandbox.assert_nothing_left();
        output
    };
    if !within(format!("{forbid} && ! unshare -m true 2>/dev/null")).status.success() {
        return tally::skip("namespaces", "a run where mount namespaces are forbidden");
    }
    let hwsim = env!("CARGO_BIN_EXE_hwsim");
    for (options, lost) in [
        ("-m pcie4 -n 3 --no-label", "no virtual RDMA adapters, and /sys shows the host: "),
        ("-m pcie4 -n 3 --no-label --no-sys", "no virtual RDMA adapters: "),
        ("-m pcie4 -n 3 --no-label --no-adapters", ""),
    ] {
        let output = within(format!("{forbid} && exec {hwsim} run -q {options} -- echo goes on"));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((out.as_str(), output.status.code()), ("goes on\ngoes on\ngoes on\n", Some(0)));
        assert_eq!(err.lines().count(), usize::from(!lost.is_empty()), "{options}: {err}");
        assert!(err.contains(lost), "{options}: {err}");
    }
}

/// Interfaces are real ones: sockets can be bound to their addresses.
#[test]
fn interfaces_have_the_adapters_addresses() {
    let bind = "python3 -c 'import socket as n; s = n.socket(); s.bind((\"10.0.0.1\", 0))' && \
                ls /sys/class/net | tr '\\n' ' '; ls /sys/class/infiniband/hwsim0/device/net; \
                cat /sys/class/net/*/ifindex | tr '\\n' ' '; tail -n +3 /proc/net/dev | wc -l";
    assert_eq!(said(&["-m", "quad-pc", "--net"], bind), "eth0 lo eth0\n16 1 2\n");
    let out = said(&["-m", "dgx-a100 x 2", "--net"], "ls /sys/class/net | tr '\\n' ' '");
    assert!(out.contains("[0] ib0 ib1 ib2 ib3 ib4 ib5 ib6 ib7 lo"), "{out}");
    assert!(out.contains("[1] lo n1ib0 n1ib1 n1ib2 n1ib3 n1ib4 n1ib5 n1ib6 n1ib7"), "{out}");
}

/// Other users than root, by user namespaces, if the system permits them.
#[test]
fn it_works_without_privileges() {
    let sandbox = Sandbox::new();
    let hwsim = env!("CARGO_BIN_EXE_hwsim");
    let folder = sandbox.path("anybody");
    std::fs::create_dir(&folder).unwrap();
    let copy = |from: &std::path::Path, name: &str| {
        std::fs::copy(from, folder.join(name)).unwrap();
    };
    copy(hwsim.as_ref(), "hwsim");
    copy(&library(), "libhwsim.so");
    let open = format!("chmod -R a+rX {0}; chmod a+x {0}/hwsim; chmod 1777 {0}", folder.display());
    let script = "ls /sys/class/infiniband | wc -l; ls /sys/bus/pci/devices | wc -l; id -u; \
                  ls /sys/class/net";
    let as_nobody = format!(
        "{open}; chmod a+rx {}; cd {}; exec setpriv --reuid 65534 --regid 65534 --clear-groups \
         env TMPDIR={1} ./hwsim run -q -m quad-pc --net -- sh -c '{script}'",
        sandbox.folder.path().display(),
        folder.display(),
    );
    let test = |script: &str| Command::new("sh").args(["-c", script]).output().unwrap();
    if !nix::unistd::geteuid().is_root() {
        return tally::skip("root", "/sys of another user: the tests beside this one are");
    }
    let permitted = "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urmn true";
    if !test(permitted).status.success() {
        return tally::skip("user-namespaces", "/sys of other users than root");
    }
    let output = test(&as_nobody);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    // 4 GPUs, an adapter, a port above each of them, and the bridges of 4 root complexes.
    assert_eq!(out, "1\n14\n65534\neth0\nlo\n", "{}\n{err}", output.status);
}
