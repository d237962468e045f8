//! The linker: several inputs of PTX become one image.

use super::call::{In, Out, driver_calls, string};
use super::code::{
    Failure, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, Outcome, refuse,
};
use super::fatbin;
use super::handles::Handle;
use super::image::{bytes_at, file_bytes};
use super::linked::{self, OwnedInput};
use super::logs::LogBuffers;
use super::text::text_of;
use super::{refusal, requirement, state};
use hwsim_machine::Context;
use hwsim_machine::module::{Code, LinkError};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{Arc, Mutex, MutexGuard};

/// `CUjitInputType`.
const CUBIN: c_int = 0;
const PTX: c_int = 1;
const FAT_BINARY: c_int = 2;
const OBJECT: c_int = 3;
const LIBRARY: c_int = 4;

/// What an archive begins with.
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";

/// A link under way.
pub(crate) struct Linker {
    /// Whose GPU fat binaries are opened for.
    context: Arc<Context>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    logs: LogBuffers,
    inputs: Vec<OwnedInput>,
    /// Archives that hold machine code alone.
    unused: Vec<String>,
    info: String,
    errors: String,
    /// The image, once it is made. It stays in place for as long as the linker lives.
    image: Option<Box<[u8]>>,
}

impl Work {
    /// Adds an error as the real driver words it.
    fn note_error(&mut self, words: &str) {
        Self::note(&mut self.errors, &format!("error   : {words}"));
    }

    fn note(log: &mut String, words: &str) {
        if !log.is_empty() {
            log.push('\n');
        }
        log.push_str(words);
    }

    fn write_logs(&mut self) -> Outcome {
        self.logs.write(&self.info, &self.errors)
    }
}

/// What a call that adds an input was given.
struct Given<'a> {
    kind: c_int,
    name: &'a str,
    bytes: &'a [u8],
    /// The logs of this call alone; else those of the linker.
    logs: LogBuffers,
}

impl Linker {
    /// The work, until the image is made.
    fn open(&self) -> Outcome<MutexGuard<'_, Work>> {
        let work = self.work.lock().unwrap();
        if work.image.is_some() {
            return refuse(INVALID_VALUE, "the link is complete: begin another one");
        }
        Ok(work)
    }

    fn add(&self, given: Outcome<Given<'_>>) -> Outcome {
        let mut work = self.open()?;
        let mut logs = given.as_ref().map_or(LogBuffers::default(), |given| given.logs);
        let name = given.as_ref().map_or("", |given| given.name).to_owned();
        let added = given.and_then(|given| self.inputs(&given));
        match added {
            Ok(inputs) if inputs.is_empty() => work.unused.push(name),
            Ok(inputs) => work.inputs.extend(inputs),
            Err(failure) => {
                work.note_error(&failure.words);
                refusal::say(&failure.words);
                logs.write("", &failure.words)?;
                work.write_logs()?;
                return Err(failure);
            }
        }
        Ok(())
    }

    /// The texts of an input, each looked through.
    fn inputs(&self, given: &Given<'_>) -> Outcome<Vec<OwnedInput>> {
        let Given { name, bytes, .. } = *given;
        let one = |text| vec![OwnedInput { name: name.to_owned(), text }];
        let inputs = match given.kind {
            PTX => one(text_of(bytes).into_owned()),
            FAT_BINARY => one(self.text_in(bytes)?),
            CUBIN if bytes.starts_with(&linked::LINKED_MAGIC.to_le_bytes()) => {
                linked::decode(bytes)?
            }
            CUBIN => return refuse_machine_code(name),
            OBJECT => match self.in_objects(name, bytes) {
                found if found.is_empty() => return refuse_machine_code(name),
                found => found,
            },
            // Of an archive linkers take what is needed: what is then missing has a name.
            LIBRARY if bytes.starts_with(ARCHIVE_MAGIC) => self.in_objects(name, bytes),
            LIBRARY => return refuse(INVALID_IMAGE, format!("{name} is no archive")),
            kind => return refuse(INVALID_VALUE, format!("{name}: input type {kind}")),
        };
        for OwnedInput { name, text } in &inputs {
            let refused = |error| Failure { code: INVALID_PTX, words: format!("{name}: {error}") };
            requirement::check_version(text)?;
            requirement::check_target(text, self.context.machine.model(self.context.gpu))?;
            Code::check(text).map_err(refused)?;
        }
        Ok(inputs)
    }

    /// The text of a fat binary that fits the GPU best.
    fn text_in(&self, bytes: &[u8]) -> Outcome<String> {
        let model = self.context.machine.model(self.context.gpu);
        fatbin::FatBinary::parse(bytes)?.best(model.compute_capability)?.text()
    }

    /// The fat binaries inside of object files and archives of them.
    fn in_objects(&self, name: &str, bytes: &[u8]) -> Vec<OwnedInput> {
        let magic = fatbin::CONTAINER_MAGIC.to_le_bytes();
        let mut inputs = Vec::new();
        let starts = bytes.windows(magic.len()).enumerate().filter(|(_, word)| **word == magic);
        for (start, _) in starts {
            // The magic number may be anything else, too.
            let text = self.text_in(&bytes[start..]);
            if let Ok(text) = text {
                inputs.push(OwnedInput { name: format!("{name}[{}]", inputs.len()), text });
            }
        }
        inputs
    }

    /// Joins the inputs; the address and the bytes of the image.
    fn complete(&self) -> Outcome<(u64, usize)> {
        let mut guard = self.work.lock().unwrap();
        let work = &mut *guard;
        if work.image.is_none() {
            let joined = Code::join(&linked::borrowed(&work.inputs));
            match joined {
                Ok(code) => {
                    let kernels: Vec<_> = code.kernel_names().collect();
                    let (inputs, kernels) = (work.inputs.len(), kernels.join(" "));
                    Work::note(&mut work.info, &format!("{inputs} inputs; kernels: {kernels}"));
                    work.image = Some(linked::encode(&work.inputs));
                }
                Err(error) => {
                    let code = match error {
                        LinkError::Ptx { .. } => INVALID_PTX,
                        _ => INVALID_IMAGE,
                    };
                    let mut words = error.to_string();
                    if let (LinkError::Undefined { .. }, [_, ..]) = (&error, &work.unused[..]) {
                        let unused = work.unused.join(", ");
                        words += &format!(" ({unused}: machine code alone, which was not used)");
                    }
                    work.note_error(&words);
                    refusal::say(&words);
                    work.write_logs()?;
                    return Err(Failure { code, words });
                }
            }
        }
        work.write_logs()?;
        let image = work.image.as_ref().expect("made above");
        Ok((image.as_ptr() as u64, image.len()))
    }
}

fn refuse_machine_code<T>(name: &str) -> Outcome<T> {
    let words = format!(
        "{name} holds no PTX that this GPU runs, and a virtual GPU runs PTX only: link PTX, or \
         build with -gencode arch=compute_80,code=compute_80"
    );
    refuse(NO_BINARY_FOR_GPU, words)
}

fn create(count: c_uint, options: In<c_int>, values: In<u64>, linker: Out<Handle>) -> Outcome {
    let (driver, context) = state::current()?;
    linker.require()?;
    let logs = LogBuffers::read(count, options, values)?;
    logs.clear()?;
    let work = Mutex::new(Work { logs, ..Work::default() });
    linker.set(driver.linkers.add(Arc::new(Linker { context, work })))
}

/// The arguments that describe options.
type Options = (c_uint, In<c_int>, In<u64>);

fn add_data(
    linker: Handle,
    kind: c_int,
    (data, bytes): (In<u8>, usize),
    name: In<c_char>,
    (count, options, values): Options,
) -> Outcome {
    let linker = state::driver()?.linkers.get(linker)?;
    let logs = LogBuffers::read(count, options, values)?;
    if data.is_null() || bytes == 0 {
        return refuse(INVALID_VALUE, "an input without data");
    }
    let name = if name.is_null() { "<unnamed>" } else { string(name)? };
    linker.add(bytes_at(data, bytes).map(|bytes| Given { kind, name, bytes, logs }))
}

fn add_file(
    linker: Handle,
    kind: c_int,
    path: In<c_char>,
    (count, options, values): Options,
) -> Outcome {
    let linker = state::driver()?.linkers.get(linker)?;
    let logs = LogBuffers::read(count, options, values)?;
    let name = string(path)?;
    let read = file_bytes(name);
    linker.add(match &read {
        Ok(bytes) => Ok(Given { kind, name, bytes, logs }),
        Err(failure) => Err(Failure { code: failure.code, words: failure.words.clone() }),
    })
}

driver_calls! {
    fn cuLinkCreate(
        count: c_uint, options: In<c_int>, values: In<u64>, linker: Out<Handle>,
    ) {
        create(count, options, values, linker)
    }

    fn cuLinkCreate_v2(
        count: c_uint, options: In<c_int>, values: In<u64>, linker: Out<Handle>,
    ) {
        create(count, options, values, linker)
    }

    fn cuLinkAddData(
        linker: Handle,
        kind: c_int,
        data: In<u8>,
        bytes: usize,
        name: In<c_char>,
        count: c_uint,
        options: In<c_int>,
        values: In<u64>,
    ) {
        add_data(linker, kind, (data, bytes), name, (count, options, values))
    }

    fn cuLinkAddData_v2(
        linker: Handle,
        kind: c_int,
        data: In<u8>,
        bytes: usize,
        name: In<c_char>,
        count: c_uint,
        options: In<c_int>,
        values: In<u64>,
    ) {
        add_data(linker, kind, (data, bytes), name, (count, options, values))
    }

    fn cuLinkAddFile(
        linker: Handle,
        kind: c_int,
        path: In<c_char>,
        count: c_uint,
        options: In<c_int>,
        values: In<u64>,
    ) {
        add_file(linker, kind, path, (count, options, values))
    }

    fn cuLinkAddFile_v2(
        linker: Handle,
        kind: c_int,
        path: In<c_char>,
        count: c_uint,
        options: In<c_int>,
        values: In<u64>,
    ) {
        add_file(linker, kind, path, (count, options, values))
    }

    fn cuLinkComplete(linker: Handle, image: Out<u64>, bytes: Out<usize>) {
        let linker = state::driver()?.linkers.get(linker)?;
        image.require()?;
        let (address, length) = linker.complete()?;
        bytes.set_if(length);
        image.set(address)
    }

    fn cuLinkDestroy(linker: Handle) {
        state::driver()?.linkers.remove(linker).map(drop)
    }
}
