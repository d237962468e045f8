//! What the agents of a run did last, for people.

use hwsim_ptx::weak::{AgentId, Event};
use std::fmt::Write as _;

use super::World;

/// Events of an agent that a report shows.
const EVENTS_SHOWN: usize = 12;

impl World {
    /// All agents with their names: threads of blocks, engines with their lanes, and hosts.
    pub fn agents(&self) -> Vec<(String, AgentId)> {
        let mut agents = Vec::new();
        for (number, running) in self.blocks.iter().enumerate() {
            for thread in 0..running.threads {
                let name = format!("gpu {} block {number} thread {thread}", running.gpu);
                agents.push((name, running.view.agent_of(thread)));
            }
        }
        for (number, engine) in self.engines.iter().enumerate() {
            agents.push((format!("engine {number}"), engine.agent()));
            for lane in 0..engine.lanes() {
                agents.push((format!("engine {number} lane {lane}"), engine.lane_agent(lane)));
            }
        }
        for (number, host) in self.hosts.iter().enumerate() {
            agents.push((format!("host {number}"), host.agent));
        }
        for (number, gpu) in self.gpus.iter().enumerate() {
            agents.push((format!("intruder on gpu {number}"), gpu.intruder));
        }
        agents
    }

    /// What an agent did last, oldest first: when, and what.
    pub fn events_of(&self, agent: AgentId) -> Vec<(u64, String)> {
        let events = self.memory.events(agent);
        events.into_iter().map(|(time, event)| (time, self.describe(event))).collect()
    }

    /// The same of all agents that did anything, as text.
    pub fn last_events(&self) -> String {
        let mut text = String::new();
        for (name, agent) in self.agents() {
            let events = self.events_of(agent);
            if !events.is_empty() {
                let _ = writeln!(text, "  {name}");
            }
            let skipped = events.len().saturating_sub(EVENTS_SHOWN);
            for (time, event) in &events[skipped..] {
                let _ = writeln!(text, "    {time:>9} {event}");
            }
        }
        text
    }

    fn describe(&self, event: Event) -> String {
        let place = |address: u64| match self.memory.name_of(address) {
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{address:#x}"),
        };
        let how = |strength: hwsim_ptx::memory::Strength| {
            format!("{:?}.{:?}", strength.order, strength.scope).to_lowercase()
        };
        match event {
            Event::Read { address, value, strength, age } => {
                let stale = if age == 0 { String::new() } else { format!(", {age} newer") };
                format!("read {value:#x} at {} ({}{stale})", place(address), how(strength))
            }
            Event::Write { address, value, strength } => {
                format!("wrote {value:#x} at {} ({})", place(address), how(strength))
            }
            Event::Atomic { address, old, new, strength } => {
                format!("{old:#x} -> {new:#x} at {} ({})", place(address), how(strength))
            }
            Event::Fence(strength) => format!("fence ({})", how(strength)),
            Event::Barrier(id) => format!("passed barrier {id}"),
        }
    }
}
