//! `CUDA_VISIBLE_DEVICES`: which GPUs of the machine a process sees, and in which order.
//!
//! The driver's numbers for devices count visible GPUs alone. NVML does not know the variable.

use hwsim_machine::description::Gpu;

/// The variable.
pub(super) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that `value` names, by their place in the machine: numbers, or `GPU-` and as much of
/// the UUID as tells it apart. The first word that names none hides what stands behind it, as do
/// two words for one GPU; so the driver does, without an error.
pub(super) fn visible(value: Option<&str>, gpus: &[Gpu]) -> Vec<usize> {
    let Some(value) = value else { return (0..gpus.len()).collect() };
    let mut seen = Vec::new();
    for word in value.split(',').map(str::trim) {
        let found = match word.starts_with("GPU-") {
            true => by_uuid(word, gpus),
            false => word.parse().ok().filter(|&index| index < gpus.len()),
        };
        match found {
            Some(gpu) if !seen.contains(&gpu) => seen.push(gpu),
            _ => break,
        }
    }
    seen
}

/// The one GPU whose UUID begins like this.
fn by_uuid(start: &str, gpus: &[Gpu]) -> Option<usize> {
    let mut fitting = (0..gpus.len()).filter(|&gpu| gpus[gpu].uuid_text().starts_with(start));
    let found = fitting.next();
    found.filter(|_| fitting.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::visible;
    use hwsim_machine::description::Description;

    /// If this fails, a process that was given one GPU computes on another one's.
    #[test]
    fn words_are_read_as_the_driver_reads_them() {
        let gpus = Description::builtin("pcie4").unwrap().gpus;
        let uuid = gpus[2].uuid_text();
        for (value, expected) in [
            ("0,1,2,3", &[0, 1, 2, 3][..]),
            ("2", &[2]),
            (" 3, 1", &[3, 1]),
            (&uuid, &[2]),
            (&uuid[..12], &[2]),
            ("1,4,2", &[1]),
            ("1,-1,2", &[1]),
            ("2,2,1", &[2]),
            ("GPU-", &[]),
            ("", &[]),
        ] {
            assert_eq!(visible(Some(value), &gpus), expected, "{value:?}");
        }
        assert_eq!(visible(None, &gpus), [0, 1, 2, 3]);
    }
}
