//! The model against ARK's Fig. 8.

use hwsim_timing::Profile;
use hwsim_timing::ark::{Curve, FIGURE_8, claims, compare, errors};

/// If this fails, the model no longer reproduces the system that the design follows: all fifty
/// published points, from one profile.
#[test]
fn all_fifty_points_of_figure_8_are_met() {
    let profile = Profile::find("ark-v100").expect("built in");
    let points = compare(&profile).expect("a complete profile");
    for point in &points {
        println!(
            "{:>8} {:>8} {:>8} {:>9.4} {:+.1} %",
            point.bytes,
            point.curve.name(),
            point.published,
            point.modelled,
            100.0 * point.error()
        );
    }
    assert_eq!(points.len(), FIGURE_8.len() * Curve::ALL.len());
    let (median, worst) = errors(&points);
    println!("median {:.2} %, worst {:.2} %", 100.0 * median, 100.0 * worst);
    assert!(median <= 0.02, "median error {median}");
    assert!(worst <= 0.10, "worst error {worst}");
    for (name, published, modelled) in claims(&points) {
        let error = modelled / published - 1.0;
        assert!(error.abs() <= 0.05, "{name}: {modelled}, published {published}");
    }
}
