//! What settings name: files with plans, of this library, of MSCCL and of MSCCL++; and constants of
//! the cost model.
//!
//! They are read when a communicator is made, and what is for as many ranks is proved then, for one
//! size. Each call for which one fits has the plan for its own size proved, once. What a file asks
//! for and the machine lacks is no error then: the call goes another way, and the log says why.

use super::sync::lock;
use crate::cost::Profile;
use crate::cost::profile::CONSTANTS;
use crate::error::{Error, Result};
use crate::plan::{
    Collective, CollectiveRequest, ImportedPlan, Limits, PlanFile, SCRATCH_BYTES_MAX, Verified,
    lacks,
};
use crate::settings::Settings;
use lru::LruCache;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Requests of which it is remembered what the files have for them.
const FOUND_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Bytes of a chunk with which a plan is proved when it is read.
const CHUNK_BYTES: u64 = 4096;

/// A plan in a file.
#[derive(Debug)]
enum Kind {
    /// Of this library: for one request.
    Own(Box<PlanFile>, Arc<Verified>),
    /// Of another one.
    Imported(Box<ImportedPlan>),
}

/// What files have for a request: which file, and the plan.
type Found = Option<(usize, Arc<Verified>)>;

/// All plans that settings name, for one number of ranks, and the constants.
#[derive(Debug)]
pub(crate) struct PlanFiles {
    digest: Option<u64>,
    profile: Option<(Profile, u64)>,
    plans: Vec<(PathBuf, Kind)>,
    found: Mutex<LruCache<CollectiveRequest, Found>>,
}

impl PlanFiles {
    /// Reads the files of the settings, for a communicator of so many ranks.
    ///
    /// # Errors
    /// [`Error::Setting`] for a file that cannot be read, that is no plan, and whose plan does not
    /// hold what it promises.
    pub fn read(rank_count: u32, settings: &Settings) -> Result<Self> {
        let mut hasher = blake3::Hasher::new();
        let mut plans = Vec::new();
        for path in &settings.plan_files {
            let wrong = |reason: String| Error::Setting {
                name: "RINGDOVE_PLAN_FILES".into(),
                value: path.display().to_string(),
                expected: format!("a file with a plan; {reason}"),
            };
            let text = read(path).map_err(|error| wrong(error.to_string()))?;
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
            let kind = kind(path, &text, rank_count, settings).map_err(wrong)?;
            plans.extend(kind.map(|kind| (path.clone(), kind)));
        }
        let digest = digest_of(&hasher);
        Ok(Self {
            profile: profile(settings)?,
            digest: digest.filter(|_| !settings.plan_files.is_empty()),
            plans,
            found: Mutex::new(LruCache::new(FOUND_MAX)),
        })
    }

    /// What all ranks must have alike; `None` without files.
    pub fn digest(&self) -> Option<u64> {
        self.digest
    }

    /// The constants of the cost model that a setting names.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref().map(|(profile, _)| profile)
    }

    /// What all ranks must have alike of them.
    pub fn profile_digest(&self) -> Option<u64> {
        self.profile.as_ref().map(|(_, digest)| *digest)
    }

    /// Scratch memory that a rank needs for any of the plans.
    pub fn scratch_bytes(&self) -> u64 {
        let of = |(_, kind): &(PathBuf, Kind)| match kind {
            Kind::Own(file, _) => {
                let ranks = 0..file.plan.ranks.len() as u32;
                ranks.map(|rank| file.plan.scratch_bytes(rank)).max().unwrap_or(0)
            }
            Kind::Imported(plan) => plan.scratch_bytes_max(),
        };
        self.plans.iter().map(of).max().unwrap_or(0).min(SCRATCH_BYTES_MAX)
    }

    /// The most blocks of a rank, by plans of this library's form that have what they use.
    pub fn blocks_max(&self, lanes: &Limits, is_stored: &dyn Fn(u32, u32) -> bool) -> u32 {
        let of = |kind: &Kind| match kind {
            Kind::Own(file, _) if lacks(&file.plan, lanes, is_stored).is_none() => {
                file.plan.ranks.iter().map(|rank| rank.blocks.len()).max().unwrap_or(0) as u32
            }
            // Others are lowered to what selection may use.
            _ => 0,
        };
        self.plans.iter().map(|(_, kind)| of(kind)).max().unwrap_or(0)
    }

    /// The first plan for `request` that fits a machine, with its file: one of this library's form
    /// uses `lanes`, which are all that there are, by stores where `is_stored` says so; another one
    /// is lowered within `limits`.
    pub fn find(
        &self,
        request: &CollectiveRequest,
        limits: &Limits,
        lanes: &Limits,
        is_stored: &dyn Fn(u32, u32) -> bool,
    ) -> Option<(&Path, Arc<Verified>)> {
        if self.plans.is_empty() {
            return None;
        }
        // Held meanwhile: the other ranks of the process want the same plan.
        let mut found = lock(&self.found);
        let found = found.get_or_insert(*request, || {
            let lacks = |file: &PlanFile| lacks(&file.plan, lanes, is_stored);
            self.look(request, limits, &lacks)
        });
        found.as_ref().map(|(place, plan)| (self.plans[*place].0.as_path(), plan.clone()))
    }

    fn look(
        &self,
        request: &CollectiveRequest,
        limits: &Limits,
        lacks: &dyn Fn(&PlanFile) -> Option<String>,
    ) -> Found {
        for (place, (path, kind)) in self.plans.iter().enumerate() {
            let plan = match kind {
                Kind::Own(file, plan) if is_for(file, request) => match lacks(file) {
                    None => Ok(plan.clone()),
                    Some(reason) => Err(reason),
                },
                Kind::Imported(plan) if plan.covers(request) => {
                    plan.prove(request, limits).map(Arc::new).map_err(|error| error.to_string())
                }
                _ => continue,
            };
            match plan {
                Ok(plan) => return Some((place, plan)),
                Err(reason) => {
                    let file = path.display();
                    let (bytes, collective) = (request.bytes, request.collective.name());
                    tracing::warn!(%file, collective, bytes, reason, "the file's plan is not used");
                }
            }
        }
        None
    }
}

/// A plan for one request serves the same one of registered buffers, too. Where ranks do not know
/// of one another whether a call is in place, or sends from registered memory, none is used.
fn is_for(file: &PlanFile, request: &CollectiveRequest) -> bool {
    let collective = request.collective;
    let alone = collective == Collective::ReduceScatter && file.request.registered;
    if collective.root().is_some() || alone {
        return false;
    }
    let registered = request.registered && file.request.registered;
    file.request == CollectiveRequest { registered, ..*request }
}

fn digest_of(hasher: &blake3::Hasher) -> Option<u64> {
    let digest = hasher.finalize();
    digest.as_bytes().first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// The constants that a setting names, with a digest of what they are.
///
/// # Errors
/// [`Error::Setting`] for a name that is neither built in nor a file, and for a file that is no
/// profile, with the reason.
fn profile(settings: &Settings) -> Result<Option<(Profile, u64)>> {
    let name = settings.profile.trim();
    if name.is_empty() {
        return Ok(None);
    }
    let wrong = |reason: String| Error::Setting {
        name: "RINGDOVE_PROFILE".into(),
        value: name.into(),
        expected: format!("a built-in profile or a file; {reason}"),
    };
    let profile = match Profile::names().any(|known| known == name) {
        true => Profile::built_in(name)?,
        false => {
            let text = read(Path::new(name)).map_err(|error| wrong(error.to_string()))?;
            Profile::parse(name, &text).map_err(|error| wrong(error.to_string()))?
        }
    };
    let mut hasher = blake3::Hasher::new();
    for (constant, ..) in CONSTANTS {
        hasher.update(&profile.value(constant).unwrap_or(0.0).to_le_bytes());
    }
    Ok(digest_of(&hasher).map(|digest| (profile, digest)))
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(std::io::Error::other("it has more than 64 MiB")),
        false => Ok(text),
    }
}

/// The plan of a file's text; `None` if it is for another number of ranks, as it is for some of a
/// program that has communicators of several sizes.
fn kind(
    path: &Path,
    text: &str,
    rank_count: u32,
    settings: &Settings,
) -> Result<Option<Kind>, String> {
    let for_others = |ranks: u32| {
        let file = path.display();
        tracing::info!(%file, ranks, rank_count, "the file's plan is for other communicators");
    };
    if let Some(file) = PlanFile::read(text).map_err(|error| error.to_string())? {
        if file.request.rank_count != rank_count {
            for_others(file.request.rank_count);
            return Ok(None);
        }
        let proved = file.clone().prove().map_err(|error| error.to_string())?;
        return Ok(Some(Kind::Own(Box::new(file), Arc::new(proved))));
    }
    let plan = ImportedPlan::read(text).map_err(|error| error.to_string())?;
    if plan.rank_count != rank_count {
        for_others(plan.rank_count);
        return Ok(None);
    }
    let limits = Limits::new(settings.blocks_max, settings.slot_bytes, settings.slot_count);
    let proved = plan.prove(&plan.request(CHUNK_BYTES, 4), &limits);
    proved.map_err(|error| error.to_string())?;
    Ok(Some(Kind::Imported(Box::new(plan))))
}
