//! `ringdove doctor --adapter-words`: does each GPU's adapter write words of 8 bytes in one piece?

use super::facts::Facts;
use super::report::{Level, Report};
use ringdove::communicator::words::{AdapterWords, WordsMemory, try_adapter_words};
use ringdove::{Error, InterNodeSlots, Settings, open_device};
use std::time::Duration;

/// Tries the adapter of each GPU for `duration`, with the memory that slots between nodes are in.
pub fn words(facts: &Facts, duration: Duration, report: &mut Report) {
    report.section("words of 8 bytes that adapters write");
    let settings = match Settings::from_env() {
        Ok(settings) => settings,
        Err(error) => {
            return report.complain(Level::Missing, "settings", error, "correct it");
        }
    };
    for (index, gpu) in facts.gpus.iter().enumerate() {
        let tried = memories(settings.inter_node_slots).iter().find_map(|&memory| {
            let tried = open_device(index)
                .and_then(|context| try_adapter_words(&context, memory, duration, &settings));
            // Where adapters do not reach the GPU, slots are in host memory.
            let falls_back = memory == WordsMemory::Device
                && settings.inter_node_slots == InterNodeSlots::Auto
                && matches!(tried, Err(Error::System { .. }));
            (!falls_back).then_some((memory, tried))
        });
        let (memory, tried) = tried.expect("host memory is the last");
        finding(&format!("GPU {index} ({})", gpu.device.name), memory, tried, report);
    }
}

fn memories(slots: InterNodeSlots) -> &'static [WordsMemory] {
    match slots {
        InterNodeSlots::Auto => &[WordsMemory::Device, WordsMemory::Host],
        InterNodeSlots::Device => &[WordsMemory::Device],
        InterNodeSlots::Host => &[WordsMemory::Host],
    }
}

fn finding(
    subject: &str,
    memory: WordsMemory,
    tried: ringdove::Result<AdapterWords>,
    report: &mut Report,
) {
    let place = match memory {
        WordsMemory::Device => "GPU memory",
        WordsMemory::Host => "host memory",
    };
    let words = match tried {
        Ok(words) => words,
        Err(error) => {
            let advice = "without a usable adapter there is nothing to try";
            return report.complain(Level::Warning, subject, error, advice);
        }
    };
    let AdapterWords { adapter, writes, changes, torn, .. } = &words;
    let seen =
        format!("{adapter} into {place}: {writes} writes, {changes} changes seen, {torn} torn");
    match (words.are_whole(), words.is_telling()) {
        (true, _) => report.ok(
            subject,
            format!(
                "{seen}; if all nodes say so, RINGDOVE_LOW_LATENCY_ADAPTERS=true may be set (this \
                 is evidence, no proof: adapters promise nothing of the kind)"
            ),
        ),
        (false, false) if *torn == 0 => report.complain(
            Level::Warning,
            subject,
            format!("{seen}: too few to tell"),
            "try for longer: --adapter-words SECONDS",
        ),
        (false, _) => report.complain(
            Level::Missing,
            subject,
            seen,
            "leave RINGDOVE_LOW_LATENCY_ADAPTERS unset: low-latency messages over this adapter \
             would be wrong",
        ),
    }
}
