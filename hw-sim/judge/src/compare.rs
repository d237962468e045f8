//! Two files of answers, side by side.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Questions and answers of a file. Lines without ` = ` and those that begin with `#` are remarks.
pub fn parse(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" = ")).collect()
}

/// What `a` and `b` answer differently, and how many questions both have answered. `open` says why
/// PTX or the driver's documentation leaves an answer open, where they do.
pub fn differences(
    a: &str,
    b: &str,
    only: &str,
    open: impl Fn(&str) -> Option<&'static str>,
) -> (String, usize) {
    let (first, second) = (parse(a), parse(b));
    let (mut text, mut both, mut different) = (String::new(), 0, 0);
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    for (question, answer) in first.iter().filter(|(question, _)| question.starts_with(only)) {
        let Some(other) = second.get(question) else { continue };
        both += 1;
        if answer == other {
            continue;
        }
        different += 1;
        let group = groups.entry(question.split(' ').next().unwrap_or_default()).or_default();
        *group += 1;
        // A form that is wrong has many wrong answers: the first ones tell.
        if *group <= 3 {
            let note =
                open(question).map(|why| format!("  (left open: {why})")).unwrap_or_default();
            let _ = writeln!(text, "{question} = {answer} | {other}{note}");
        }
    }
    for (group, count) in groups.iter().filter(|(_, count)| **count > 3) {
        let _ = writeln!(text, "# {group}: {count} differences in all");
    }
    let _ = writeln!(text, "# {different} of {both} answers differ");
    (text, both)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this fails, a difference between a real and a virtual driver is not seen.
    #[test]
    fn only_answers_that_differ_are_shown() {
        let a = "# device: A\ndriver.x = waits\ndriver.y = 8\nptx.add 1 = 2\n";
        let b = "driver.x = runs\ndriver.z = 8\nptx.add 1 = 2\n";
        let (text, both) = differences(a, b, "", |_| None);
        assert_eq!(both, 2);
        assert_eq!(text, "driver.x = waits | runs\n# 1 of 2 answers differ\n");
        let (text, both) = differences(a, b, "ptx", |_| None);
        assert_eq!((text.as_str(), both), ("# 0 of 1 answers differ\n", 1));
        let (text, _) = differences(a, b, "driver", |_| Some("why"));
        assert!(text.contains("waits | runs  (left open: why)"), "{text}");
    }

    /// If this fails, a file that was cut off or damaged on its way ends the comparison.
    #[test]
    fn no_text_breaks_the_comparison() {
        let known = include_str!("../known/h100-580.159.txt");
        let seed: u64 = 0x5eed;
        println!("seed {seed:#x}");
        let mut state = seed;
        let mut random = |below: usize| {
            // A linear congruence; its upper bits are good enough to cut text.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        for _ in 0..2000 {
            let mut bytes = known.as_bytes().to_vec();
            for _ in 0..1 + random(8) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes.truncate(at + 1),
                    _ => bytes.splice(at..at, *b" = \n").for_each(drop),
                }
            }
            let text = String::from_utf8_lossy(&bytes);
            let (report, both) = differences(known, &text, "", |_| None);
            assert!(both <= 15, "{both} questions in both");
            assert!(report.ends_with(&format!("of {both} answers differ\n")), "{report}");
        }
    }
}
