//! Who has a session's nodes, by what the real library says while it makes one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{Dim, Memory, Model, built};
use rust_ort::protocol::message::{Optimization, Placed, Placement, SessionSpec};
use rust_ort::runtime::StopToken;
use rust_ort::tensor::DType;

/// A provider of the CPU's library that takes no node: the session is asked as one with a GPU's would be.
fn beside_the_cpu() -> SessionSpec {
    let providers = vec![("AzureExecutionProvider".to_owned(), BTreeMap::new())];
    SessionSpec { providers, ..SessionSpec::default() }
}

fn on_the_cpu(nodes: u32) -> Placement {
    let placed = Placed { nodes, ops: BTreeMap::new() };
    Placement::Told(BTreeMap::from([("CPUExecutionProvider".to_owned(), placed)]))
}

/// (x + x)², and a node that the optimizers take away.
fn model() -> Vec<u8> {
    let dims = [Dim::Is(2)];
    Model::default()
        .node("Identity", &["x"], &["same"])
        .node("Add", &["x", "same"], &["sum"])
        .node("Mul", &["sum", "sum"], &["y"])
        .input("x", DType::F32, &dims)
        .output("y", DType::F32, &dims)
        .build()
}

#[test]
fn the_library_tells_how_many_nodes_it_placed_after_its_optimizers() {
    assert_eq!(built(&model(), &beside_the_cpu()).unwrap().placement(), on_the_cpu(2));
    let as_it_is = SessionSpec { optimization: Optimization::Disable, ..beside_the_cpu() };
    assert_eq!(built(&model(), &as_it_is).unwrap().placement(), on_the_cpu(3));
}

#[test]
fn a_session_of_the_cpu_alone_is_not_asked() {
    assert_eq!(built(&model(), &SessionSpec::default()).unwrap().placement(), Placement::CpuOnly);
}

#[test]
fn a_session_that_was_asked_runs_and_its_runs_tell_nothing() {
    let session = built(&model(), &beside_the_cpu()).unwrap();
    let memory = Memory::new(1 << 20);
    let (x, y) = (memory.put(&[2], &[1., -3.]), memory.alloc(DType::F32, &[2]));
    let lease = memory.table.lease(&[x], std::slice::from_ref(&y)).unwrap();
    let mut call = Arc::clone(&session).bind(lease, &StopToken::default()).unwrap();
    for _ in 0..3 {
        call.run().unwrap();
    }
    assert_eq!(memory.get(&y), [4., 36.]);
    assert_eq!(session.placement(), on_the_cpu(2));
}

#[test]
fn what_sessions_of_one_part_tell_is_added_up() {
    let told = |provider: &str, nodes, ops: &[(&str, u32)]| {
        let ops = ops.iter().map(|&(op, n)| (op.to_owned(), n)).collect();
        Placement::Told(BTreeMap::from([(provider.to_owned(), Placed { nodes, ops })]))
    };
    let both = told("A", 2, &[("Add", 2)]).and(told("A", 3, &[("Add", 1), ("Mul", 2)])).and(told("B", 1, &[]));
    let Placement::Told(placed) = both else { panic!("{both:?}") };
    assert_eq!(placed["A"], Placed { nodes: 5, ops: BTreeMap::from([("Add".to_owned(), 3), ("Mul".to_owned(), 2)]) });
    assert_eq!(placed["B"].nodes, 1);
    assert_eq!(told("A", 2, &[]).and(Placement::CpuOnly), told("A", 2, &[]));
    for other in [Placement::CpuOnly, Placement::Unknown, told("A", 2, &[])] {
        assert_eq!(Placement::Unknown.and(other.clone()), Placement::Unknown);
        assert_eq!(other.and(Placement::Unknown), Placement::Unknown);
    }
}
