//! User objects, and the memory of graphs, of which there is none.

use super::memory_nodes;
use crate::driver::call::{Out, driver_calls};
use crate::driver::code::{INVALID_VALUE, Outcome, refuse};
use crate::driver::handles::Handle;
use crate::driver::state;
use crate::driver::stream::{Host, host_function};
use hwsim_machine::graph::UserObject;
use std::ffi::{c_int, c_uint, c_void};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`
const NO_DESTRUCTOR_SYNC: c_uint = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`
const MOVE: c_uint = 1;

/// A number of references as programs count them.
fn references(count: c_uint) -> Outcome<u64> {
    if (1..=c_int::MAX as c_uint).contains(&count) {
        return Ok(count.into());
    }
    refuse(INVALID_VALUE, format!("{count} references"))
}

fn release(handle: Handle, count: u64) -> Outcome {
    let driver = state::driver()?;
    if driver.user_objects.get(handle)?.release(count)? {
        // Another thread may have released the last reference as well, of which it had none.
        let _ = driver.user_objects.remove(handle);
    }
    Ok(())
}

driver_calls! {
    fn cuUserObjectCreate(
        object: Out<Handle>, data: *mut c_void, destroy: Option<Host>, count: c_uint,
        flags: c_uint,
    ) {
        let driver = state::driver()?;
        object.require()?;
        let count = references(count)?;
        let Some(destroy) = destroy.filter(|_| flags == NO_DESTRUCTOR_SYNC) else {
            return refuse(INVALID_VALUE, format!("user object flags {flags:#x}, or no destructor"));
        };
        let destroy = host_function(destroy, data);
        let end = Box::new(move || (destroy.call)(Ok(())));
        object.set(driver.user_objects.add(UserObject::new(count, end)))
    }

    fn cuUserObjectRetain(object: Handle, count: c_uint) {
        Ok(state::driver()?.user_objects.get(object)?.retain(references(count)?)?)
    }

    fn cuUserObjectRelease(object: Handle, count: c_uint) {
        release(object, references(count)?)
    }

    fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) {
        let (graph, count) = (super::graph(graph)?, references(count)?);
        let object = state::driver()?.user_objects.get(object)?;
        match flags {
            0 => object.retain(count)?,
            MOVE => {}
            _ => return refuse(INVALID_VALUE, format!("flags {flags:#x}")),
        }
        graph.hold(&object, count);
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) {
        let graph = super::graph(graph)?;
        let object = state::driver()?.user_objects.get(object)?;
        Ok(graph.let_go(&object, references(count)?)?)
    }

    fn cuDeviceGraphMemTrim(device: c_int) {
        state::device(device).map(drop)
    }

    fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: Out<u64>) {
        let (_, gpu) = state::device(device)?;
        value.set(memory_nodes::attribute(gpu, attribute)?)
    }

    fn cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: Out<u64>) {
        let (driver, gpu) = state::device(device)?;
        // The two marks of the most memory used can be set back, and nothing else.
        match (attribute, value.get()?) {
            (1 | 3, 0) => {
                driver.machine.memory.reset_used_by_graphs(gpu);
                Ok(())
            }
            (_, value) => {
                refuse(INVALID_VALUE, format!("graph memory attribute {attribute} = {value}"))
            }
        }
    }
}
