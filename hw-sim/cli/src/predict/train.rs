//! `hwsim predict train`: synchronous training on many workers, layer by layer.

use super::{PredictError, print, write};
use crate::error::Error;
use hwsim_timing::training::{
    Activity, Cluster, Exchange, Job, Model, Prediction, Sharing, StrategyError,
};
use ringdove_figures::run::{Span, timeline_in_colours};
use ringdove_figures::table::fitted;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use super::arguments::Size;

#[derive(clap::Args)]
pub(super) struct TrainArguments {
    /// A built-in network (vgg-a, overfeat-fast, dnn-7, transformer-70b), or the path of a file
    #[arg(long, value_name = "NAME|FILE")]
    model: String,
    /// Built-in workers and their network (haswell-aries, xeon-fdr, cloud-10g, h100-400g), or the
    /// path of a file
    #[arg(long, short, value_name = "NAME|FILE")]
    machine: String,
    /// Numbers of workers: nodes, or GPUs where the machine's file counts GPUs
    #[arg(long, value_name = "N,...", value_delimiter = ',', required = true)]
    nodes: Vec<u32>,
    /// Samples of all workers in a step
    #[arg(long, short = 'B', value_name = "COUNT", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// How dense layers are shared out: data, model, groups:N (N workers share each), or auto
    #[arg(long, value_name = "NAME", default_value = "auto")]
    parallel: SharingName,
    /// How gradients are added: ring, tree, or servers:N
    #[arg(long, value_name = "NAME", default_value = "tree")]
    exchange: ExchangeName,
    /// Gradients of layers travel together until they have so many bytes
    #[arg(long, value_name = "SIZE", default_value = "1")]
    bucket: Size,
    /// Write the results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw a step of the last number of workers to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug)]
struct SharingName(Sharing);

impl FromStr for SharingName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let groups = text.strip_prefix("groups:").and_then(|count| count.parse().ok());
        match (text, groups) {
            ("data", _) => Ok(Self(Sharing::Data)),
            ("model", _) => Ok(Self(Sharing::Model)),
            ("auto", _) => Ok(Self(Sharing::Auto)),
            (_, Some(count)) => Ok(Self(Sharing::Groups(count))),
            _ => Err("expected data, model, groups:N or auto".into()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ExchangeName(Exchange);

impl FromStr for ExchangeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let servers = text.strip_prefix("servers:").and_then(|count| count.parse().ok());
        match (text, servers) {
            ("ring", _) => Ok(Self(Exchange::Ring)),
            ("tree", _) => Ok(Self(Exchange::Tree)),
            (_, Some(count)) => Ok(Self(Exchange::Servers(count))),
            _ => Err("expected ring, tree or servers:N".into()),
        }
    }
}

/// One number of workers.
struct Row {
    workers: u32,
    seen: Prediction,
    speedup: f64,
    /// Seconds of computation, if many workers computed as well as one.
    ideal: f64,
}

impl Row {
    /// What costs most of the time that is lost against so many times one worker.
    fn limit(&self) -> &'static str {
        let step = &self.seen.step;
        let losses = [
            (step.compute - self.ideal, "few samples on each worker"),
            (step.exchange, "activations of shared layers"),
            (step.waits(), "gradients"),
        ];
        let most = losses.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        // Less than a hundredth is no limit.
        most.filter(|(loss, _)| *loss > step.period / 100.0).map_or("computation", |(_, name)| name)
    }

    /// Layers that workers share, with how many do.
    fn groups(&self, model: &Model) -> String {
        let mut shared: Vec<(String, u32)> = Vec::new();
        for (layer, group) in model.layers.iter().zip(&self.seen.groups) {
            let entry = (layer.name.clone(), *group);
            if *group > 1 && shared.last() != Some(&entry) {
                shared.push(entry);
            }
        }
        if shared.is_empty() {
            return "none".into();
        }
        let named = shared.iter().map(|(name, group)| format!("{name} by {group}"));
        named.collect::<Vec<_>>().join(", ")
    }
}

impl From<StrategyError> for Error {
    fn from(error: StrategyError) -> Self {
        PredictError::from(error).into()
    }
}

pub(super) fn predict(arguments: &TrainArguments) -> Result<ExitCode, Error> {
    let model = Model::find(&arguments.model).map_err(PredictError::from)?;
    let cluster = Cluster::find(&arguments.machine).map_err(PredictError::from)?;
    let mut rows = Vec::new();
    print(&header(arguments, &model, &cluster))?;
    for workers in &arguments.nodes {
        let job = Job {
            model: &model,
            cluster: &cluster,
            workers: *workers,
            batch: arguments.batch,
            sharing: arguments.parallel.0,
            exchange: arguments.exchange.0,
            bucket_bytes: arguments.bucket.0 as f64,
        };
        let alone = Job { workers: 1, sharing: Sharing::Data, ..job.clone() }.predict()?;
        let seen = job.predict()?;
        let row = Row {
            workers: *workers,
            speedup: seen.rate / alone.rate,
            ideal: alone.step.compute / f64::from(*workers),
            seen,
        };
        print(&line(&row, &model, &cluster))?;
        rows.push(row);
    }
    if let Some(path) = &arguments.json {
        write(path, &document(arguments, &model, &cluster, &rows))?;
    }
    if let (Some(path), Some(row)) = (&arguments.plot, rows.last()) {
        write(path, &drawing(row, &model, &cluster)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn header(arguments: &TrainArguments, model: &Model, cluster: &Cluster) -> String {
    let parameters: f64 = model.layers.iter().map(|layer| layer.parameters).sum();
    let flops: f64 = model.layers.iter().map(|layer| layer.flops).sum();
    format!(
        "# hwsim predict train\n# modelled: no time was measured, nothing was trained\n\
         # model {}: {} layers, {} million parameters, {} GFLOP forwards for a sample\n\
         # machine {}: {}\n# {} samples in a step, gradients by {:?}\n#\n\
         # {:>7} {:>9} {:>9} {:>9} {:>9} {:>11} {:>8} {:>10} {:>7}  limited by; shared layers\n\
         # {:>7} {:>9} {:>9} {:>9} {:>9} {:>11} {:>8} {:>10} {:>7}\n",
        model.name,
        model.layers.len(),
        fitted(parameters / 1e6, 9),
        fitted(flops / 1e9, 9),
        cluster.name,
        cluster.summary,
        arguments.batch,
        arguments.exchange.0,
        "workers",
        "step",
        "compute",
        "exchange",
        "waits",
        "samples",
        "speedup",
        "efficiency",
        "memory",
        "",
        "(ms)",
        "(ms)",
        "(ms)",
        "(ms)",
        "(1/s)",
        "",
        "",
        "(GB)",
    )
}

fn line(row: &Row, model: &Model, cluster: &Cluster) -> String {
    let step = &row.seen.step;
    let ms = |seconds: f64| fitted(seconds * 1e3, 9);
    let memory = row.seen.memory_bytes;
    let too_much = if memory > cluster.memory { " (does not fit a worker)" } else { "" };
    format!(
        "  {:>7} {:>9} {:>9} {:>9} {:>9} {:>11} {:>8.2} {:>10.2} {:>7}  {}; {}{too_much}\n",
        row.workers,
        ms(step.period),
        ms(step.compute),
        ms(step.exchange),
        ms(step.waits()),
        fitted(row.seen.rate, 11),
        row.speedup,
        row.speedup / f64::from(row.workers),
        fitted(memory / 1e9, 7),
        row.limit(),
        row.groups(model),
    )
}

/// Times in milliseconds.
fn document(arguments: &TrainArguments, model: &Model, cluster: &Cluster, rows: &[Row]) -> String {
    let result = |row: &Row| {
        let step = &row.seen.step;
        json!({
            "workers": row.workers, "step": step.period * 1e3, "compute": step.compute * 1e3,
            "exchange": step.exchange * 1e3, "waits": step.waits() * 1e3,
            "gradients": step.gradient * 1e3, "samples_per_s": row.seen.rate,
            "speedup": row.speedup, "memory_bytes": row.seen.memory_bytes,
            "fits": row.seen.memory_bytes <= cluster.memory, "limited_by": row.limit(),
            "groups": row.seen.groups,
        })
    };
    let document = json!({
        "version": 1, "operation": "train", "modelled": true, "model": model.name,
        "machine": cluster.name, "batch": arguments.batch,
        "results": rows.iter().map(result).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn drawing(row: &Row, model: &Model, cluster: &Cluster) -> Result<String, PredictError> {
    let spans = row.seen.step.spans.iter();
    let (mut drawn, mut colours) = (Vec::new(), Vec::new());
    for span in spans {
        let (lane, colour) = match span.activity {
            Activity::Compute => (0, 0),
            Activity::Exchange => (0, 1),
            Activity::Gradient => (1, 2),
        };
        let (start, end) = (span.start * 1e3, span.end * 1e3);
        drawn.push(Span { row: lane, name: span.name.clone(), start, end });
        colours.push(((start, lane), colour));
    }
    let title = format!("{} on {} x {}: one step, modelled", model.name, row.workers, cluster.name);
    let colour = |span: &Span| {
        let found = colours.iter().find(|(key, _)| *key == (span.start, span.row));
        found.map_or(0, |(_, colour)| *colour)
    };
    Ok(timeline_in_colours(&title, &["worker", "network"], &drawn, colour)?)
}

#[cfg(test)]
mod tests;
