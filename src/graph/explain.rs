//! A plan in words.

use super::model::{Graph, Tensor};
use super::plan::{Edge, Method, Step, TransferPlan, Use, Why};
use super::shapes::shown;
use std::fmt::Write;

impl TransferPlan {
    /// Why a transfer goes as it does, in words.
    pub fn reason(&self, edge: &Edge) -> String {
        let name = |tensor: usize| &self.graph.tensors()[tensor].name;
        match &edge.why {
            Why::Shape => "its shape is known".to_owned(),
            Why::Unknown(extent) => format!("not known before it runs: {extent}"),
            Why::Unbounded => "its size is not known, and nothing bounds it (bytes_max)".to_owned(),
            Why::Foreign(root) => format!("somebody else allocates '{}'", name(*root)),
            Why::Received(root) => {
                format!("'{}' is a view of what comes from another rank", name(*root))
            }
            Why::Elsewhere(root) => {
                format!("the trace found '{}' outside of registered memory", name(*root))
            }
        }
    }

    /// The whole plan as text: tensors that cross, places, and what each rank does.
    pub fn explain(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let graph = &self.graph;
        let (tensors, operators) = (graph.tensors(), graph.operators());
        let count = |method| self.edges.iter().filter(|edge| edge.method == method).count();
        writeln!(
            text,
            "{} operators and {} tensors on {} ranks; {} transfers: {} zero copy, {} read, \
             {} staged\n",
            operators.len(),
            tensors.len(),
            graph.ranks(),
            self.edges.len(),
            count(Method::ZeroCopy),
            count(Method::Read),
            count(Method::Staged)
        )?;
        writeln!(text, "transfers")?;
        for edge in &self.edges {
            let Tensor { name, shape, .. } = &tensors[edge.tensor];
            let (shape, reason) = (shown(shape.as_deref()), self.reason(edge));
            let bytes = edge.bytes.map_or("unknown".to_owned(), |bytes| bytes.to_string());
            let (from, to, method) = (edge.from, edge.to, edge.method);
            writeln!(
                text,
                "  {name} {shape}  rank {from} -> {to}  {bytes} bytes  {method}: {reason}"
            )?;
        }
        for (tensor, earlier) in &self.shared {
            let (name, earlier) = (&tensors[*tensor].name, &tensors[*earlier].name);
            writeln!(text, "  {name} is produced in place of {earlier} (traced)")?;
        }
        writeln!(text, "\nregistered memory: {} bytes on each rank", self.window_bytes)?;
        for ((rank, usage, tensor), place) in &self.places {
            let (name, usage) = (&tensors[*tensor].name, use_name(*usage));
            let (from, to) = (place.offset, place.offset + place.bytes);
            writeln!(text, "  rank {rank}  {from}..{to}  {name}, {usage}")?;
        }
        writeln!(text, "\nsteps")?;
        for (rank, steps) in self.steps.iter().enumerate() {
            let steps: Vec<_> = steps.iter().map(|step| self.step_name(step)).collect();
            writeln!(text, "  rank {rank}: {}", steps.join(", "))?;
        }
        Ok(())
    }

    fn step_name(&self, step: &Step) -> String {
        let Graph { tensors, operators, .. } = &self.graph;
        let name = |edge: usize| &tensors[self.edges[edge].tensor].name;
        match *step {
            Step::Run(operator) => operators[operator].name.clone(),
            Step::Await(edge) if self.edges[edge].method == Method::Read => {
                format!("read {}", name(edge))
            }
            Step::Await(edge) => format!("await {}", name(edge)),
            Step::AwaitSent(edge) => format!("await that {} was sent", name(edge)),
            Step::Send(edge) => {
                let (name, to) = (name(edge), self.edges[edge].to);
                match self.edges[edge].method {
                    Method::Read => format!("tell {to} of {name}"),
                    Method::ZeroCopy => format!("write {name} to {to}"),
                    Method::Staged => format!("copy {name}, write it to {to}"),
                }
            }
        }
    }
}

fn use_name(usage: Use) -> &'static str {
    match usage {
        Use::Produced => "computed there",
        Use::Received => "received there",
        Use::Metadata => "its metadata",
        Use::Staging => "copied there to be sent",
    }
}
