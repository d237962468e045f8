//! `--adapters`: what each port has carried, and what went wrong on it, as far as its driver tells.
//!
//! Drivers show counters below `/sys/class/infiniband/NAME/ports/N`: `counters`, whose names the
//! kernel sets, and `hw_counters`, whose names are each driver's own. Virtual adapters have a page
//! of their own there, with what no kernel tells: queue pairs, posts, faults. A counter that cannot
//! be read counts as one that is not there.

use super::facts::Facts;
use super::report::{Level, Report};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Files of one folder, and bytes of one file, that are looked at.
const FILES_MAX: usize = 512;
const FILE_BYTES_MAX: u64 = 64;
/// The page of a virtual adapter: entries of a name and a number.
const PAGE: &str = "virtual_counters";
const PAGE_BYTES_MAX: u64 = 1 << 16;
const ENTRY_BYTES: usize = 64;
const NAME_BYTES: usize = 48;
/// The unit in which the kernel counts data.
const WORD_BYTES: u64 = 4;

/// Counters of an adapter in good order, with the words of the report and bytes of a unit.
const TRAFFIC: [(&str, &str, u64); 8] = [
    ("port_xmit_data", "bytes sent", WORD_BYTES),
    ("port_xmit_packets", "packets sent", 1),
    ("port_rcv_data", "bytes received", WORD_BYTES),
    ("port_rcv_packets", "packets received", 1),
    ("bytes_sent", "bytes sent", 1),
    ("packets_sent", "packets sent", 1),
    ("bytes_received", "bytes received", 1),
    ("packets_received", "packets received", 1),
];
/// Attempts that were repeated, or waits for the peer: mlx5, rxe, and virtual adapters.
const RETRIES: [&str; 19] = [
    "port_xmit_wait",
    "packet_seq_err",
    "out_of_sequence",
    "out_of_buffer",
    "duplicate_request",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_slow_restart",
    "completer_retry_err",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "send_rnr_err",
    "sent_rnr_err",
    "roce_adp_retrans_to",
    "receiver_not_ready",
    "retries",
];
/// What went wrong on the wire, or to a request: of the kernel's names all that count errors.
const ERRORS: [&str; 22] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "req_cqe_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rx_icrc_encapsulated",
    "retry_exceeded_err",
    "datagrams_dropped",
    "requests_failed",
];

/// Counters by their names.
type Counters = BTreeMap<String, u64>;

/// The section of the report.
pub fn statistics(facts: &Facts, report: &mut Report) {
    report.section("adapter statistics");
    if facts.adapters.is_empty() {
        report.ok("adapters", "none, so there is nothing to count");
    }
    for adapter in &facts.adapters {
        for port in &adapter.ports {
            let class = facts.sysfs.join("class/infiniband").join(&adapter.name);
            let folder = class.join(format!("ports/{}", port.number));
            let mut told = folder_of_counters(&folder.join("counters"));
            told.append(&mut folder_of_counters(&folder.join("hw_counters")));
            let subject = format!("{} port {}", adapter.name, port.number);
            let virtual_page = page(&folder.join(PAGE));
            report.ok(&subject, format!("{}, {}", port.state, traffic(&told, &virtual_page)));
            details(&subject, told, virtual_page, report);
        }
    }
}

/// Lines for what a port has told besides its traffic.
fn details(subject: &str, told: Counters, virtual_page: Counters, report: &mut Report) {
    let is_virtual = !virtual_page.is_empty();
    let mut all = told;
    all.extend(virtual_page);
    let named =
        |names: &[&str]| list(all.iter().filter(|(name, _)| names.contains(&name.as_str())));
    if let Some(retries) = named(&RETRIES) {
        report.ok(subject, format!("repeated or waiting: {retries}"));
    }
    if let Some(errors) = named(&ERRORS) {
        let advice = "counted since the adapter was started: look again whether they grow; cables \
                      and switches for the link's, the program's own errors for the requests'";
        report.complain(Level::Warning, subject, format!("errors: {errors}"), advice);
    }
    let known = |name: &String| {
        let name = name.as_str();
        RETRIES.contains(&name)
            || ERRORS.contains(&name)
            || TRAFFIC.iter().any(|row| row.0 == name)
            // No counter: how often the driver asks the adapter.
            || name == "lifespan"
    };
    let others = list(all.iter().filter(|(name, _)| !known(name)));
    match (is_virtual, others) {
        (true, Some(others)) => {
            report.ok(subject, format!("of virtual adapters alone: {others}"));
        }
        (false, Some(others)) => report.ok(subject, format!("also: {others}")),
        (_, None) => {}
    }
}

/// The counters that are not zero.
fn list<'a>(counters: impl Iterator<Item = (&'a String, &'a u64)>) -> Option<String> {
    let counters = counters.filter(|(_, count)| **count > 0);
    let words: Vec<_> = counters.map(|(name, count)| format!("{name} {count}")).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// What a port has carried.
fn traffic(told: &Counters, virtual_page: &Counters) -> String {
    let row = |(name, words, unit): &(&str, &str, u64)| {
        let count = told.get(*name).or_else(|| virtual_page.get(*name))?;
        Some(format!("{} {words}", count.saturating_mul(*unit)))
    };
    let rows: Vec<_> = TRAFFIC.iter().filter_map(row).collect();
    if rows.is_empty() { "its driver counts nothing in sysfs".into() } else { rows.join(", ") }
}

/// A folder with a file for each counter.
fn folder_of_counters(folder: &Path) -> Counters {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX);
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let text = String::from_utf8(start_of(&entry.path(), FILE_BYTES_MAX)?).ok()?;
            Some((name, text.trim().parse().ok()?))
        })
        .collect()
}

/// The page of a virtual adapter.
fn page(path: &Path) -> Counters {
    entries(&start_of(path, PAGE_BYTES_MAX).unwrap_or_default())
}

/// Its entries; what is no name ends them.
fn entries(bytes: &[u8]) -> Counters {
    let entry = |entry: &[u8; ENTRY_BYTES]| {
        let (name, rest) = entry.split_at(NAME_BYTES);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let is_name = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'_';
        let count = rest.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        (!name.is_empty() && name.iter().all(is_name))
            .then(|| (String::from_utf8_lossy(name).into_owned(), count))
    };
    bytes.as_chunks::<ENTRY_BYTES>().0.iter().map_while(entry).collect()
}

/// The first bytes of a plain file: anything else could keep its reader waiting.
fn start_of(path: &Path, bytes_max: u64) -> Option<Vec<u8>> {
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(bytes_max).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A port with files that a driver could show, and others that none does.
    fn port(folder: &Path, files: &[(&str, &[u8])]) {
        for (name, content) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    #[test]
    fn a_real_port_is_told_in_bytes_and_its_errors_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let files: [(&str, &[u8]); 7] = [
            ("counters/port_xmit_data", b"25\n"),
            ("counters/port_rcv_packets", b"3\n"),
            ("counters/symbol_error", b"2\n"),
            ("counters/link_downed", b"0\n"),
            ("hw_counters/rnr_nak_retry_err", b"7\n"),
            ("hw_counters/lifespan", b"10\n"),
            ("hw_counters/np_cnp_sent", b"1\n"),
        ];
        port(folder.path(), &files);
        let mut told = folder_of_counters(&folder.path().join("counters"));
        told.append(&mut folder_of_counters(&folder.path().join("hw_counters")));
        assert_eq!(traffic(&told, &Counters::new()), "100 bytes sent, 3 packets received");
        let mut report = Report::default();
        details("mlx5_0 port 1", told, Counters::new(), &mut report);
        let seen: Vec<_> = report.findings().map(|one| (one.level, one.seen.as_str())).collect();
        assert_eq!(
            seen,
            [
                (Level::Ok, "repeated or waiting: rnr_nak_retry_err 7"),
                (Level::Warning, "errors: symbol_error 2"),
                (Level::Ok, "also: np_cnp_sent 1"),
            ]
        );
    }

    /// Entries as virtual adapters write them.
    fn page_of(entries: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, count) in entries {
            let start = bytes.len();
            bytes.extend(name.as_bytes());
            bytes.resize(start + NAME_BYTES, 0);
            bytes.extend(count.to_le_bytes());
            bytes.resize(start + ENTRY_BYTES, 0);
        }
        bytes
    }

    #[test]
    fn what_only_virtual_adapters_tell_is_marked() {
        let bytes = page_of(&[("bytes_sent", 5), ("queue_pairs_made", 2), ("faults", 1)]);
        let mut report = Report::default();
        assert_eq!(traffic(&Counters::new(), &entries(&bytes)), "5 bytes sent");
        details("hwsim0 port 1", Counters::new(), entries(&bytes), &mut report);
        let seen: Vec<_> = report.findings().map(|one| one.seen.as_str()).collect();
        assert_eq!(seen, ["of virtual adapters alone: faults 1, queue_pairs_made 2"]);
    }

    /// If this fails, a file below `/sys` that is not as expected ends the doctor, or holds it up.
    #[test]
    fn no_file_of_a_port_breaks_the_reader() {
        let folder = tempfile::tempdir().unwrap();
        let counters = folder.path().join("counters");
        let long = vec![b'9'; 4096];
        let files: [(&str, &[u8]); 6] = [
            ("counters/empty", b""),
            ("counters/text", b"N/A (no PMA)\n"),
            ("counters/negative", b"-1\n"),
            ("counters/long", &long),
            ("counters/bytes", &[0xff, 0xfe, 0]),
            ("counters/good", b" 18446744073709551615 \n"),
        ];
        port(folder.path(), &files);
        fs::create_dir(counters.join("folder")).unwrap();
        std::os::unix::fs::symlink("nowhere", counters.join("link")).unwrap();
        nix::unistd::mkfifo(&counters.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let read = folder_of_counters(&counters);
        assert_eq!(read, Counters::from([("good".to_owned(), u64::MAX)]));
        let told = Counters::from([("port_xmit_data".to_owned(), u64::MAX)]);
        assert_eq!(traffic(&told, &read), format!("{} bytes sent", u64::MAX));
        // Pages: each byte of a good one changed, and each length.
        let whole = page_of(&[("bytes_sent", 5), ("faults", 1)]);
        for at in 0..whole.len() {
            assert!(entries(&whole[..at]).len() <= 2);
            for byte in [0, 1, b'/', 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                assert!(entries(&changed).len() <= 2);
            }
        }
        assert_eq!(entries(&[0; 4096]), Counters::new());
    }
}
