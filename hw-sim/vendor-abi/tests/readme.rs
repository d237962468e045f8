//! The lists of functions in hw-sim/README.md are those of the code.

#[path = "../../readme_section.rs"]
mod readme_section;

use readme_section::check;

/// One test for all lists of this crate: with HWSIM_UPDATE they write to the same file.
#[test]
fn the_lists_of_functions_are_the_codes() {
    let mut driver = hwsim::driver::implemented();
    driver.retain(|name| !name.ends_with("_ptsz") && !name.ends_with("_ptds"));
    check("driver functions", &columns(driver));
    let mut names = vec!["nvmlErrorString"];
    names.extend(hwsim::nvml::IMPLEMENTED.into_iter().flatten());
    check("NVML functions", &columns(names));
    check("driver profile", &hwsim_machine::profile::table());
    check("verbs", &columns(hwsim::verbs::implemented()));
}

/// The names as one paragraph, sorted.
fn columns(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    names.dedup();
    let mut text = String::new();
    let mut column = 0;
    for name in names {
        let width = name.len() + 3;
        if column > 0 && column + width > 98 {
            text.push('\n');
            column = 0;
        }
        text += &format!("{}`{name}`", if column == 0 { "" } else { " " });
        column += width;
    }
    text + "\n"
}
