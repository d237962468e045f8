//! Runs one closure for each share of the ranks.

use super::error::PerfError;

/// Cuts `items` into shares of `share_size` and runs `work` on each, every share in a thread of
/// its own (one share alone runs in the caller's). Answers come in the order of the shares. Of
/// several errors the first wins that is not a mere echo of another.
pub fn each<T: Send, A: Send>(
    items: &mut [T],
    share_size: usize,
    work: impl Fn(&mut [T]) -> Result<A, PerfError> + Sync,
) -> Result<Vec<A>, PerfError> {
    if items.len() <= share_size {
        return Ok(vec![work(items)?]);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            items.chunks_mut(share_size).map(|share| scope.spawn(move || work(share))).collect();
        let mut answers: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        let cause = |answer: &Result<A, PerfError>| {
            answer.as_ref().is_err_and(|error| !matches!(error, PerfError::OtherThread))
        };
        match answers.iter().position(cause) {
            Some(first) => answers.swap_remove(first).map(|answer| vec![answer]),
            None => answers.into_iter().collect(),
        }
    })
}
