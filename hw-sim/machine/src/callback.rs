//! The thread that calls host functions: they may block, and so must not hold a worker.

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

/// A host function, and what follows it.
type Call = Box<dyn FnOnce() + Send>;

/// The thread, which starts with the first call.
#[derive(Default)]
pub(crate) struct Callbacks {
    sender: Mutex<Option<Sender<Call>>>,
}

impl Callbacks {
    /// Calls `call` later.
    pub fn call(&self, call: Call) {
        let mut sender = self.sender.lock().unwrap();
        let sender = sender.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Call>();
            let serve = move || receiver.into_iter().for_each(|call| call());
            // If no thread can be had, `serve` is dropped and with it the receiver: see below.
            let _ = Builder::new().name("hwsim-callbacks".into()).spawn(serve);
            sender
        });
        // Without the thread the receiver is gone; the function is then called here, late but
        // once, as dropping it would lose the program's work.
        if let Err(returned) = sender.send(call) {
            returned.0();
        }
    }
}
