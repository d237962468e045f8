//! `ringdove plan import`: a plan of MSCCL or MSCCL++, for one size, as one of this library.

use clap::Args;
use ringdove::plan::{CollectiveRequest, ImportedPlan, Limits, PlanFile};
use ringdove::{ReduceOp, Settings};
use ringdove_figures::size::{parse_size, with_unit};
use std::path::PathBuf;

/// Bytes of a chunk where no size is asked for.
const CHUNK_BYTES: u64 = 4096;

/// Command line of `ringdove plan import`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// MSCCL's XML, or MSCCL++'s JSON
    file: PathBuf,
    /// Bytes of each rank's data; of its part, where there are parts [default: what comes next to
    /// 4 KiB in each chunk]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    bytes: Option<usize>,
    /// Bytes of an element: 1, 2, 4 or 8
    #[arg(long, value_name = "BYTES", default_value_t = 4)]
    element: u32,
    /// Input and output are the same memory [default: as the file says]
    #[arg(long)]
    in_place: bool,
    /// Input and output are not the same memory
    #[arg(long, conflicts_with = "in_place")]
    out_of_place: bool,
    /// GPU threads write into other GPUs' memory: lanes of stores, as over NVLink
    #[arg(long)]
    nvlink: bool,
    /// Writes the plan into a file of this library
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), String> {
    let name = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file)
        .map_err(|error| format!("cannot read {name}: {error}"))?;
    let imported =
        ImportedPlan::read(&text).map_err(|error| format!("{name} cannot be imported: {error}"))?;
    let settings = Settings::from_env().map_err(|error| error.to_string())?;
    let limits = Limits {
        stores: arguments.nvlink,
        store_blocks: if arguments.nvlink { settings.store_blocks } else { 0 },
        nvlink: arguments.nvlink,
        ..Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count)
    };
    if !matches!(arguments.element, 1 | 2 | 4 | 8) {
        return Err(format!("--element {}: 1, 2, 4 or 8 is expected", arguments.element));
    }
    let usual = imported.request(CHUNK_BYTES, arguments.element);
    let request = CollectiveRequest {
        bytes: arguments.bytes.map_or(usual.bytes, |bytes| bytes as u64),
        reduce_op: imported.reduce_op.unwrap_or(ReduceOp::Sum),
        in_place: (usual.in_place || arguments.in_place) && !arguments.out_of_place,
        ..usual
    };
    let proved =
        imported.prove(&request, &limits).map_err(|error| format!("{name} is refused: {error}"))?;
    let plan = proved.plan();
    let blocks = plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0);
    super::super::say(&format!(
        "{} of {} among {} ranks{}: {:?}, {} chunks, {blocks} blocks\n",
        request.collective.name(),
        with_unit(request.bytes as f64),
        request.rank_count,
        if request.in_place { ", in place" } else { "" },
        imported.name,
        imported.chunks,
    ))?;
    if let Some(path) = &arguments.json {
        super::save(&PlanFile::new(request, plan.clone()), path)?;
    }
    super::print_proved(&proved)
}
