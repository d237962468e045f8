//! Device engines, their free channels, and which GPU uses which.

use super::facts::Facts;
use super::gpus::counted;
use super::report::{Level, Report};
use ringdove::Error;
use ringdove::engine::device::Function;
use ringdove::id::EngineKind;
use ringdove::topology::EngineFunction;
use ringdove::topology::engine::candidates;
use serde::Serialize;

/// A PCI function that should be a device engine, and what it says when it is opened.
pub struct Engine {
    pub function: EngineFunction,
    pub state: Result<EngineState, String>,
}

/// Capacities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineState {
    pub channels: u64,
    pub free: u64,
    /// 0 where the engine does not say.
    pub link_bytes_per_second: u64,
}

/// Which engine the rank on a GPU will use, if it is to use one.
#[derive(Clone, Debug, Serialize)]
pub struct GpuEngine {
    pub gpu: usize,
    /// `None`: there is none that it could use.
    pub engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
}

impl Engine {
    /// Opens the function. Nothing in it is changed.
    pub fn look_at(function: EngineFunction) -> Self {
        let state = |function: &EngineFunction| {
            let name = function.address.to_string();
            let opened = Function::open(&name, &function.resource)?;
            let identity = opened.identity();
            let (channels, link) = (identity.channel_count, identity.link_bytes_per_second);
            Ok(EngineState { channels, free: opened.free_channels()?, link_bytes_per_second: link })
        };
        let state = state(&function).map_err(|error: Error| error.to_string());
        Self { function, state }
    }
}

/// Will device engines be used? If not, no finding about them stops a run.
fn wanted(facts: &Facts) -> bool {
    facts.settings.as_ref().is_ok_and(|settings| settings.engine == EngineKind::Device)
}

/// How bad it is if there is none.
fn without(facts: &Facts) -> Level {
    if wanted(facts) { Level::Missing } else { Level::Warning }
}

/// One line for each engine.
pub fn engines(facts: &Facts, report: &mut Report) {
    report.section("device engines");
    if facts.engines.is_empty() {
        let seen = "no PCI function is one";
        if wanted(facts) {
            let advice = "load the engine's driver, name its maker's numbers in \
                          RINGDOVE_ENGINE_IDS, or use RINGDOVE_ENGINE=proxy";
            return report.complain(Level::Missing, "device engines", seen, advice);
        }
        return report.ok("device engines", format!("{seen}; the proxy needs none"));
    }
    for Engine { function, state } in &facts.engines {
        let subject = format!("engine {}", function.address);
        match state {
            Ok(state) => one(function, *state, subject, without(facts), report),
            Err(why) => {
                let advice = "check that its resource0 is writable, and that its PCI ids are \
                              those of a device engine";
                report.complain(without(facts), subject, why, advice);
            }
        }
    }
}

fn one(
    function: &EngineFunction,
    state: EngineState,
    subject: String,
    if_bad: Level,
    report: &mut Report,
) {
    let EngineState { channels, free, link_bytes_per_second } = state;
    let numa = function.location.numa.map(|numa| format!(", NUMA node {numa}")).unwrap_or_default();
    let rate = match link_bytes_per_second {
        0 => "link of unknown rate".to_owned(),
        bytes => format!("link of {} GB/s", bytes as f64 / 1e9),
    };
    let seen = format!("{}, {free} of {} free, {rate}{numa}", function.id, channel(channels));
    if free == 0 {
        let advice = "a rank needs one: end another job, or use RINGDOVE_ENGINE=proxy";
        return report.complain(if_bad, subject, seen, advice);
    }
    report.ok(subject, seen);
}

fn channel(count: u64) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), "channel")
}

/// The engine of each GPU, chosen as the library will; none where there are no engines.
pub fn choices(facts: &Facts) -> Vec<GpuEngine> {
    let Ok(settings) = &facts.settings else { return Vec::new() };
    if facts.engines.is_empty() {
        return Vec::new();
    }
    let functions: Vec<_> = facts.engines.iter().map(|engine| engine.function.clone()).collect();
    let has_room = |function: &&EngineFunction| {
        let engine = facts.engines.iter().find(|engine| engine.function == **function);
        engine.is_some_and(|engine| engine.state.as_ref().is_ok_and(|state| state.free > 0))
    };
    let choice = |(gpu, one): (usize, &super::facts::Gpu)| {
        let sorted = candidates(&functions, &one.place, gpu, &settings.engine_devices);
        let (engine, why_not) = match sorted {
            Ok(sorted) => match sorted.into_iter().find(has_room) {
                Some(function) => (Some(function.address.to_string()), None),
                None => (None, Some("no engine has a free channel".to_owned())),
            },
            Err(error) => (None, Some(error.to_string())),
        };
        GpuEngine { gpu, engine, why_not }
    };
    facts.gpus.iter().enumerate().map(choice).collect()
}

/// A line for each GPU, if device engines will be used.
pub fn choice_findings(facts: &Facts, choices: &[GpuEngine], report: &mut Report) {
    for GpuEngine { gpu, engine, why_not } in choices {
        let subject = format!("GPU {gpu}'s engine");
        match (engine, wanted(facts)) {
            (Some(engine), true) => report.ok(subject, format!("device engine {engine}")),
            (Some(engine), false) => {
                let seen = format!("the proxy; with RINGDOVE_ENGINE=device it would be {engine}");
                report.ok(subject, seen);
            }
            (None, _) => {
                let why = why_not.as_deref().unwrap_or("no engine");
                let advice = "see above, or use RINGDOVE_ENGINE=proxy";
                report.complain(without(facts), subject, why, advice);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::healthy;
    use super::*;
    use ringdove::Settings;
    use ringdove::id::PciId;

    fn engine(bus: u8, state: Result<EngineState, String>) -> Engine {
        let function = EngineFunction {
            address: format!("0000:{bus:02x}:00.0").parse().unwrap(),
            id: PciId { vendor: 0, device: 0x5244 },
            resource: "/nowhere/resource0".into(),
            location: Default::default(),
        };
        Engine { function, state }
    }

    fn complaints(facts: &Facts) -> Vec<(Level, String)> {
        let mut report = Report::default();
        engines(facts, &mut report);
        choice_findings(facts, &choices(facts), &mut report);
        let bad = report.findings().filter(|finding| finding.level != Level::Ok);
        bad.map(|finding| (finding.level, format!("{}: {}", finding.subject, finding.seen)))
            .collect()
    }

    #[test]
    fn engines_are_missed_only_where_they_are_wanted() {
        let mut facts = healthy();
        assert_eq!(complaints(&facts), []);
        facts.settings = Ok(Settings { engine: EngineKind::Device, ..Settings::default() });
        let missing = complaints(&facts);
        assert_eq!((missing.len(), missing[0].0), (1, Level::Missing));
        let state = |free| Ok(EngineState { channels: 4, free, link_bytes_per_second: 0 });
        facts.engines = vec![engine(5, state(0)), engine(6, state(3))];
        let bad = complaints(&facts);
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].1.contains("engine 0000:05:00.0: 0000:5244, 0 of 4 channels free"));
        // A full engine is passed over, as the library does.
        let chosen: Vec<_> = choices(&facts).into_iter().map(|choice| choice.engine).collect();
        assert_eq!(chosen, vec![Some("0000:06:00.0".to_owned()); 2]);
    }

    #[test]
    fn an_engine_that_cannot_be_opened_says_why() {
        let function = engine(5, Err(String::new())).function;
        let Err(why) = Engine::look_at(function.clone()).state else { panic!("nothing is there") };
        assert!(why.contains("/nowhere/resource0"), "{why}");
        let mut facts = healthy();
        facts.engines = vec![Engine { function, state: Err(why) }];
        let bad = complaints(&facts);
        assert!(bad.iter().all(|(level, _)| *level == Level::Warning), "{bad:?}");
        assert!(bad.iter().any(|(_, text)| text.contains("no engine has a free channel")));
    }
}
