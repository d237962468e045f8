//! What calls of the driver do beside a GPU that is busy. A kernel that waits for the host keeps it
//! busy; it ends by itself after a while, and each question is asked in a process of its own, so
//! that a call which never returns costs a line.

mod calls;
mod queues;

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::driver::{Gpu, Kernel, Pinned, Stream, load};

/// A question about the driver.
pub struct Probe {
    /// `driver.SUBJECT`
    pub name: &'static str,
    /// For the environment of its process.
    variables: &'static [(&'static str, &'static str)],
    ask: fn(&Gpu) -> Result<String>,
}

/// A question about a driver as it is.
const fn plain(name: &'static str, ask: fn(&Gpu) -> Result<String>) -> Probe {
    Probe { name, variables: &[], ask }
}

/// All questions.
pub const ALL: [Probe; 15] = [
    plain("driver.kernels-at-once", queues::kernels_at_once),
    plain("driver.copy-behind-8-busy-streams", queues::copy_behind_busy_streams),
    Probe {
        name: "driver.copy-behind-8-busy-streams-of-32-queues",
        variables: &[("CUDA_DEVICE_MAX_CONNECTIONS", "32")],
        ask: queues::copy_behind_busy_streams,
    },
    plain("driver.urgent-copy-behind-8-busy-streams", queues::urgent_copy_behind_busy_streams),
    plain("driver.launches-until-the-caller-waits", queues::launches),
    plain("driver.records-until-the-caller-waits", queues::records),
    plain("driver.host-functions-until-the-caller-waits", queues::host_functions),
    plain("driver.host-to-host-copy-behind-a-held-stream", calls::host_to_host),
    plain("driver.cuMemAlloc-beside-a-held-stream", calls::allocate),
    plain("driver.cuMemHostAlloc-beside-a-held-stream", calls::allocate_pinned),
    plain("driver.cuMemHostRegister-beside-a-held-stream", calls::register),
    plain("driver.cuStreamCreate-beside-a-held-stream", calls::create_stream),
    plain("driver.call-in-a-host-function", calls::in_a_host_function),
    plain("driver.cuGraphInstantiate-beside-a-global-capture", calls::instantiate),
    plain("driver.fault-in-shared-memory", calls::fault_in_shared_memory),
];

/// A call that has not returned by then waits.
const RETURNS: Duration = Duration::from_millis(1500);
/// A count that has not risen for so long has reached its end.
const STEADY: Duration = Duration::from_millis(700);
/// The most that a question may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Less than a kernel waits for the host.
const HELD: Duration = Duration::from_secs(25);

/// Waits until the host stores its second parameter's word, or 30 s. Parameters: the word to store
/// 1 in when it runs, the word to wait for.
const HOLD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n\
.visible .entry test(.param .u64 p0, .param .u64 p1)\n{\n\
.reg .pred %p<3>;\n.reg .b64 %d<8>;\n\
ld.param.u64 %d1, [p0];\nld.param.u64 %d2, [p1];\n\
mov.u64 %d5, %globaltimer;\n\
st.relaxed.sys.global.u64 [%d1], 1;\n\
again:\n\
ld.relaxed.sys.global.u64 %d3, [%d2];\nsetp.ne.u64 %p1, %d3, 0;\n@%p1 bra done;\n\
mov.u64 %d4, %globaltimer;\nsub.u64 %d4, %d4, %d5;\n\
setp.lt.u64 %p2, %d4, 30000000000;\n@%p2 bra again;\n\
done:\nret;\n}\n";

/// Kernels that keep streams busy until they are let go.
struct Holder {
    kernel: Kernel,
    /// Word 0 lets all go; the others say that a kernel runs.
    words: Pinned,
    next: usize,
}

impl Holder {
    /// Of at most so many kernels. The first launch, which may load code, comes at once.
    fn new(most: usize) -> Result<Self> {
        let kernel = load(HOLD).map_err(|number| format!("cuModuleLoadData: error {number}"))?;
        let words = Pinned::new(most + 2)?;
        words.store(0, 1);
        let stream = Stream::new()?;
        kernel.launch(stream, &[words.address() + 8, words.address()])?;
        stream.synchronize()?;
        words.store(0, 0);
        words.store(1, 0);
        Ok(Self { kernel, words, next: 1 })
    }

    /// Enqueues one more.
    fn hold(&mut self, stream: Stream) -> Result<()> {
        let runs = self.words.address() + 8 * self.next as u64;
        self.next += 1;
        self.kernel.launch(stream, &[runs, self.words.address()])
    }

    /// How many run or have run.
    fn running(&self) -> usize {
        (1..self.next).filter(|&word| self.words.load(word) != 0).count()
    }

    /// Waits until so many run.
    fn wait_for(&self, count: usize) -> Result<()> {
        let began = Instant::now();
        while self.running() < count {
            if began.elapsed() > LIMIT / 3 {
                return Err(format!("{} of {count} kernels run", self.running()).into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets all go.
    fn release(&self) {
        self.words.store(0, 1);
    }
}

/// The last value of a count that does not rise any more.
fn steady(count: impl Fn() -> usize) -> usize {
    let (mut last, mut since) = (count(), Instant::now());
    while since.elapsed() < STEADY {
        std::thread::sleep(Duration::from_millis(2));
        let now = count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Does a call return while the holder holds? The call is made in another thread; it is waited for
/// once the holder has let go.
fn returns(gpu: &Gpu, holder: &Holder, call: impl FnOnce() -> Result<()> + Send) -> Result<String> {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || {
            let result = gpu.enter().and_then(|()| call());
            // The receiver waits for it.
            let _ = sender.send(result);
        });
        let answer = match receiver.recv_timeout(RETURNS) {
            Ok(result) => result.map(|()| "returns".to_owned()),
            Err(_) => Ok("waits".to_owned()),
        };
        holder.release();
        answer
    })
}

/// Answers a question in this process.
pub fn answer(name: &str) -> Result<String> {
    let probe = ALL.iter().find(|probe| probe.name == name);
    let probe = probe.ok_or_else(|| format!("there is no question {name}"))?;
    let gpu = Gpu::open()?;
    (probe.ask)(&gpu)
}

/// Asks a question in a process of its own.
pub fn in_a_process(probe: &Probe) -> Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["probe", probe.name]).envs(probe.variables.iter().copied());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let began = Instant::now();
    while child.try_wait()?.is_none() {
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(format!("no answer within {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // A line, which fits a pipe.
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(if output.status.success() { text } else { format!("none: {}", output.status) })
}
