//! Sizes on all cores: each is a separate run.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Does `work` for each item, on all cores, and shows each result once those before it were shown.
/// The first failure, in the order of the items, ends it.
pub(super) fn in_parallel<T: Sync, R: Send, E: Send, F: From<E>>(
    items: &[T],
    work: impl Fn(&T) -> Result<R, E> + Sync,
    show: impl Fn(&R) -> Result<(), F>,
) -> Result<Vec<R>, F> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..cores.min(items.len()) {
            let (next, work, sender) = (&next, &work, sender.clone());
            // Ends with the items, or when nobody wants results any more.
            scope.spawn(move || {
                loop {
                    // Relaxed: items are given out once each; nothing else hangs on it.
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(number) else { return };
                    if sender.send((number, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut early, mut done) = (BTreeMap::new(), Vec::new());
        for (number, result) in receiver {
            early.insert(number, result);
            while let Some(result) = early.remove(&done.len()) {
                let result = result?;
                show(&result)?;
                done.push(result);
            }
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// If this fails, rows of a table are mixed up, or a size that has no plan hides.
    #[test]
    fn results_come_in_order_up_to_the_first_failure() {
        let items: Vec<u32> = (0..100).collect();
        let shown = RefCell::new(Vec::new());
        let show = |number: &u32| {
            shown.borrow_mut().push(*number);
            Ok::<_, u32>(())
        };
        let done = in_parallel(&items, |number| Ok::<u32, u32>(*number), show);
        assert_eq!((done.as_ref(), &*shown.borrow()), (Ok(&items), &items));
        shown.borrow_mut().clear();
        let fails = |number: &u32| if *number % 40 == 39 { Err(*number) } else { Ok(*number) };
        assert_eq!(in_parallel(&items, fails, show), Err(39));
        assert_eq!(*shown.borrow(), items[..39]);
    }
}
