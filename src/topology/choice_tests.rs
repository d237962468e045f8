use super::*;
use crate::topology::gid::GidType;

fn port(adapter: &str, path: &[&str]) -> Port {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    Port {
        adapter: adapter.into(),
        number: 1,
        state: PortState::Active,
        link_layer: LinkLayer::Ethernet,
        rate_mbps: 100_000,
        mtu_bytes: 4096,
        gids: vec![Gid { index: 3, raw, kind: GidType::RoceV2 }],
        pci_path: path.iter().map(|part| (*part).to_owned()).collect(),
        numa: None,
    }
}

fn gpu(path: &[&str]) -> PciLocation {
    PciLocation { pci_path: path.iter().map(|part| (*part).to_owned()).collect(), numa: None }
}

const FAR: [&str; 3] = ["pci0000:80", "0000:80:00.0", "0000:81:00.0"];
const ROOT: [&str; 3] = ["pci0000:00", "0000:00:02.0", "0000:02:00.0"];
const SWITCH: [&str; 3] = ["pci0000:00", "0000:00:01.0", "0000:04:00.0"];
const GPU: [&str; 3] = ["pci0000:00", "0000:00:01.0", "0000:03:00.0"];

fn chosen(ports: &[Port], ordinal: usize, settings: &Wanted) -> String {
    choose(ports, &gpu(&GPU), ordinal, settings).unwrap().adapter
}

/// If this fails, ranks cannot agree on a network that all of them reach.
#[test]
fn link_layers_come_with_that_of_the_nearest_port_first() {
    let mut ports = [port("a", &FAR), port("b", &ROOT), port("c", &SWITCH)];
    ports[1].link_layer = LinkLayer::InfiniBand;
    let layers = |ports: &[Port]| link_layers(ports, &gpu(&GPU), 0, &Wanted::default()).unwrap();
    assert_eq!(layers(&ports), [LinkLayer::Ethernet, LinkLayer::InfiniBand]);
    assert_eq!(layers(&ports[..2]), [LinkLayer::InfiniBand, LinkLayer::Ethernet]);
    assert_eq!(layers(&ports[2..]), [LinkLayer::Ethernet]);
}

#[test]
fn the_adapter_behind_the_gpus_switch_wins_over_faster_ones_further_off() {
    let mut ports = [port("a", &FAR), port("b", &ROOT), port("c", &SWITCH)];
    ports[0].rate_mbps = 400_000;
    let settings = Wanted::default();
    assert_eq!(chosen(&ports, 0, &settings), "c");
    assert_eq!(chosen(&ports[..2], 0, &settings), "b");
    assert_eq!(chosen(&ports[..1], 0, &settings), "a");
}

#[test]
fn a_port_that_is_down_is_passed_over_and_named() {
    let mut ports = [port("near", &SWITCH), port("far", &FAR)];
    ports[0].state = PortState::Down;
    let choice = choose(&ports, &gpu(&GPU), 0, &Wanted::default()).unwrap();
    assert_eq!(choice.adapter, "far");
    assert!(choice.to_string().contains("not used: near port 1: the port is down"), "{choice}");
}

#[test]
fn ranks_spread_over_equal_adapters_in_the_order_of_their_numbers() {
    let names = ["mlx5_10", "mlx5_9", "mlx5_1"];
    let ports = names.map(|name| port(name, &ROOT));
    let settings = Wanted::default();
    let spread: Vec<_> = (0..4).map(|ordinal| chosen(&ports, ordinal, &settings)).collect();
    assert_eq!(spread, ["mlx5_1", "mlx5_9", "mlx5_10", "mlx5_1"]);
}

#[test]
fn settings_override_nearness_and_an_adapter_that_is_asked_for_is_never_replaced() {
    let mut ports = [port("near", &SWITCH), port("far", &FAR)];
    let named = |name: &str| Wanted { adapter: Some(name.parse().unwrap()), ..Wanted::default() };
    assert_eq!(chosen(&ports, 0, &named("far")), "far");
    assert_eq!(chosen(&ports, 0, &named("far:1")), "far");

    ports[1].state = PortState::Down;
    let refusal =
        |settings: &Wanted| choose(&ports, &gpu(&GPU), 0, settings).unwrap_err().to_string();
    assert!(refusal(&named("far")).contains("far port 1: the port is down"));
    let unknown = refusal(&named("mlx5_7"));
    assert!(unknown.contains("mlx5_7") && unknown.contains("near:1, far:1"), "{unknown}");
    let gid = Wanted { gid_index: Some(0), ..Wanted::default() };
    assert!(refusal(&gid).contains("GID 0"), "{}", refusal(&gid));
}

#[test]
fn no_adapter_at_all_is_an_error_that_says_where_was_looked() {
    let error = choose(&[], &PciLocation::default(), 0, &Wanted::default()).unwrap_err();
    assert!(error.to_string().contains("ibv_get_device_list finds none"), "{error}");
}
