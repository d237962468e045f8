//! Modules and functions.

use super::call::{In, Out, driver_calls, string};
use super::code::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_PERMITTED, Outcome, refuse};
use super::handles::Handle;
use super::image::Image;
use super::logs::LogBuffers;
use super::{gate, state};
use hwsim_machine::footprint::registers_per_thread;
use hwsim_machine::{Function, Module};
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;

/// Loads an image into the current context.
fn load(module: Out<Handle>, image: Outcome<Image>, mut logs: LogBuffers) -> Outcome {
    let (driver, context) = state::current()?;
    module.require()?;
    let placed = image.and_then(|image| {
        let code = image.code_for(context.machine.model(context.gpu))?;
        Ok(Module::place(&context, code, None)?)
    });
    match placed {
        Ok(loaded) => {
            logs.write("", "")?;
            module.set(driver.modules.add(loaded))
        }
        Err(failure) => {
            logs.write("", &failure.words)?;
            Err(failure)
        }
    }
}

/// The function of a module by name; asking twice gives the same handle.
pub(super) fn function_handle(owner: Handle, module: &Arc<Module>, name: &str) -> Outcome<Handle> {
    let driver = state::driver()?;
    let mut names = driver.function_names.lock().unwrap();
    let key = (owner, name.to_owned());
    if let Some(&known) = names.get(&key)
        && driver.functions.find(known).is_some()
    {
        return Ok(known);
    }
    let Some(function) = module.function(name) else {
        return refuse(NOT_FOUND, format!("the module has no kernel {name}"));
    };
    if gate::is_lazy() {
        gate::drain(&module.context);
    }
    let handle = driver.functions.add(function);
    names.insert(key, handle);
    Ok(handle)
}

fn global(address: Out<u64>, bytes: Out<usize>, module: Handle, name: In<c_char>) -> Outcome {
    let module = state::driver()?.modules.get(module)?;
    let name = string(name)?;
    let Some(variable) = module.variable(name) else {
        return refuse(NOT_FOUND, format!("the module has no variable {name}"));
    };
    address.set_if(variable.address);
    bytes.set_if(variable.bytes as usize);
    Ok(())
}

/// `CU_FUNC_ATTRIBUTE_*`, by number.
pub(super) fn function_attribute(function: &Function, attribute: c_int) -> Outcome<c_int> {
    let kernel = &function.kernel;
    let context = &function.module.context;
    let capability = context.machine.model(context.gpu).compute_capability;
    let version = (capability.0 * 10 + capability.1) as c_int;
    Ok(match attribute {
        0 => match kernel.max_block {
            Some(limit) => limit.iter().map(|&extent| extent.max(1)).product::<u32>() as c_int,
            None => hwsim_machine::gpu::BLOCK_THREADS_MAX as c_int,
        },
        1 => kernel.static_shared_bytes as c_int,
        // Those of the module: a real compiler counts what the kernel uses.
        2 => function.module.constant_bytes as c_int,
        7 => 0,
        3 => kernel.local_bytes as c_int,
        4 => registers_per_thread(kernel) as c_int,
        5 | 6 => version,
        8 => function.dynamic_shared_max() as c_int,
        9 => -1,
        10 => c_int::from(kernel.clusters.explicit),
        11..=13 => {
            let set = function.cluster_settings().required;
            kernel.clusters.required.unwrap_or(set)[attribute as usize - 11] as c_int
        }
        14 => c_int::from(function.cluster_settings().beyond_portable),
        15 => function.cluster_settings().policy,
        _ => return refuse(INVALID_VALUE, format!("function attribute {attribute}")),
    })
}

/// Sets an attribute: dynamic shared memory and the size of clusters have an effect, the carve-out
/// and the order of clusters are hints.
pub(super) fn set_attribute(function: &Function, attribute: c_int, value: c_int) -> Outcome {
    match (attribute, u32::try_from(value)) {
        (8, Ok(bytes)) => Ok(function.set_dynamic_shared_max(bytes)?),
        (9, _) if (-1..=100).contains(&value) => Ok(()),
        (11..=13, Ok(_)) if function.kernel.clusters.required.is_some() => {
            refuse(NOT_PERMITTED, "the kernel itself says the shape of its clusters")
        }
        (11..=13, Ok(extent)) => {
            let axis = attribute as usize - 11;
            function.change_clusters(|clusters| clusters.required[axis] = extent);
            Ok(())
        }
        (14, _) => {
            function.change_clusters(|clusters| clusters.beyond_portable = value != 0);
            Ok(())
        }
        // Any, spread, balanced.
        (15, Ok(0..=2)) => {
            function.change_clusters(|clusters| clusters.policy = value);
            Ok(())
        }
        _ => refuse(INVALID_VALUE, format!("function attribute {attribute} = {value}")),
    }
}

/// Offset and size of a parameter.
pub(super) fn parameter(function: &Function, index: usize) -> Outcome<(usize, usize)> {
    match function.kernel.params.get(index) {
        Some(param) => Ok((param.offset, param.size_bytes)),
        None => refuse(INVALID_VALUE, format!("parameter {index}")),
    }
}

driver_calls! {
    fn cuModuleLoad(module: Out<Handle>, path: In<c_char>) {
        load(module, Image::in_file(string(path)?), LogBuffers::default())
    }

    fn cuModuleLoadData(module: Out<Handle>, image: In<u8>) {
        load(module, Image::at(image), LogBuffers::default())
    }

    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: In<u8>, count: c_uint, options: In<c_int>, values: In<u64>,
    ) {
        load(module, Image::at(image), LogBuffers::read(count, options, values)?)
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: In<u8>) {
        load(module, Image::at(image), LogBuffers::default())
    }

    fn cuModuleUnload(module: Handle) {
        let driver = state::driver()?;
        let removed = driver.modules.remove(module)?;
        driver.function_names.lock().unwrap().retain(|(owner, _), _| *owner != module);
        driver.functions.remove_all(|function| Arc::ptr_eq(&function.module, &removed));
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<c_int>) {
        // 1 eager, 2 lazy.
        mode.set(if gate::is_lazy() { 2 } else { 1 })
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: In<c_char>) {
        function.require()?;
        let found = state::driver()?.modules.get(module)?;
        function.set(function_handle(module, &found, string(name)?)?)
    }

    fn cuModuleGetGlobal(
        address: Out<u64>, bytes: Out<usize>, module: Handle, name: In<c_char>,
    ) {
        global(address, bytes, module, name)
    }

    fn cuModuleGetGlobal_v2(
        address: Out<u64>, bytes: Out<usize>, module: Handle, name: In<c_char>,
    ) {
        global(address, bytes, module, name)
    }

    fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) {
        value.set(function_attribute(&*super::library::function(function)?, attribute)?)
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) {
        set_attribute(&*super::library::function(function)?, attribute, value)
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: c_int) {
        super::library::function(function).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: Handle, _config: c_int) {
        super::library::function(function).map(drop)
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        let driver = state::driver()?;
        let function = super::library::function(function)?;
        match driver.modules.handle_where(|module| std::ptr::eq(module, &*function.module)) {
            Some(handle) => module.set(handle),
            None => Err(INVALID_HANDLE.into()),
        }
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: Handle) {
        let function = super::library::function(function)?;
        name.set(super::library::lasting_name(&function.kernel.name))
    }

    fn cuFuncGetParamInfo(
        function: Handle, index: usize, offset: Out<usize>, size: Out<usize>,
    ) {
        let found = parameter(&*super::library::function(function)?, index)?;
        offset.set(found.0)?;
        size.set_if(found.1);
        Ok(())
    }

    fn cuFuncLoad(function: Handle) {
        gate::load(&*super::library::function(function)?);
        Ok(())
    }

    fn cuFuncIsLoaded(state: Out<c_int>, function: Handle) {
        let function = super::library::function(function)?;
        state.set(c_int::from(!gate::is_lazy() || function.is_loaded()))
    }
}
