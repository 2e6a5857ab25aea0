//! The first value that is not finite, found in a device's memory.

use stepgraph::Builder;
use stepgraph::ir::Init;
use stepgraph::plan::FusionPlan;
use stepgraph::runtime::Session;

use crate::support::{device, plan};

/// Protects: the node that made the first NaN on the device is named, with the element, while temps are there to be looked at; and a
/// plan that reuses their memory still finds what came of it.
#[test]
fn the_node_that_made_the_first_nan_is_named() {
    let Some(device) = device() else { return };
    let mut p = Builder::new("roots");
    let x = p.input::<f32>("x", [300]);
    let w = p.param::<f32>("w", [300], Init::Constant(1.0));
    p.step("run", |s| {
        let root = s.phase("first", |f| f.map::<f32>("root", x.val().sqrt()));
        let scaled = s.phase("second", |f| f.map::<f32>("scaled", root * 2.0f32));
        s.phase("third", |f| f.map_to("add", w, w + scaled));
    });
    let program = p.build().expect("valid");
    let mut values = [4.0f32; 300];
    values[171] = -4.0;
    for fusion in [FusionPlan::debug(), FusionPlan::mega()] {
        let mut session = Session::open(device, [plan(&program, "run", &fusion)]).expect("it opens");
        session.launch("run").expect("it launches");
        assert_eq!(session.first_non_finite().expect("it is read"), None, "{}", fusion.name);
        session.write_input(x, &values).expect("an input");
        session.launch("run").expect("it launches");
        let found = session.first_non_finite().expect("it is read").expect("there is a NaN");
        assert_eq!((found.index, found.value.is_nan()), (171, true), "{}: {found}", fusion.name);
        if fusion == FusionPlan::debug() {
            assert_eq!(found.node.as_deref(), Some("first.root"), "{found}");
        }
    }
}
