//! Slurm's compressed lists of host names: `node[003-010,12],gpu7`.

/// The first host of a list; `None` if it is none.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    // Bounded: every turn takes something off `rest`.
    loop {
        let end = rest.find(['[', ']', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        rest = &rest[end..];
        let Some(inner) = rest.strip_prefix('[') else { break };
        let (ranges, after) = inner.split_once(']')?;
        host.push_str(first_number(ranges)?);
        rest = after;
    }
    let named = !host.is_empty() && host.chars().all(is_host_character);
    (named && (rest.is_empty() || rest.starts_with(','))).then_some(host)
}

/// `003` of `003-010,12`, with its zeros.
fn first_number(ranges: &str) -> Option<&str> {
    let first = ranges.split([',', '-']).next()?;
    (!first.is_empty() && first.bytes().all(|byte| byte.is_ascii_digit())).then_some(first)
}

fn is_host_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || "-._".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_host_of_every_form() {
        for (list, host) in [
            ("node7", "node7"),
            ("node[003-010,12],gpu7", "node003"),
            ("gpu7,node[003-010]", "gpu7"),
            ("rack[2-3]node[01,05]", "rack2node01"),
            ("a-b.c[9]-ib", "a-b.c9-ib"),
            ("[0-3]x", "0x"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in ["", ",", "node[", "node[]", "node[a-b]", "node]3", "no de", "n[1]]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    proptest! {
        #[test]
        fn any_text_ends_in_an_answer(list in "[a-z0-9\\[\\],-]{0,40}") {
            if let Some(host) = first_host(&list) {
                prop_assert!(!host.is_empty() && !host.contains(['[', ']', ',']));
            }
        }
    }
}
