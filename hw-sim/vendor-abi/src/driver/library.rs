//! Libraries: modules that belong to no context until a kernel of theirs is used in one.

use super::call::{In, Out, driver_calls, string};
use super::code::{INVALID_VALUE, NOT_FOUND, Outcome, refuse};
use super::gate;
use super::handles::Handle;
use super::image::Image;
use super::module::{function_attribute, function_handle, parameter, set_attribute};
use super::state::{self, Library, LibraryKernel};
use hwsim_machine::module::Code;
use hwsim_machine::{Context, Function, Module};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::{Arc, Mutex, OnceLock};

/// The library's module in a context, loaded on first use.
fn module_in(library: &Library, context: &Arc<Context>) -> Outcome<(Handle, Arc<Module>)> {
    let driver = state::driver()?;
    let mut modules = library.modules.lock().unwrap();
    if let Some((handle, module)) = modules.get(&context.id) {
        return Ok((*handle, Arc::clone(module)));
    }
    gate::drain(context);
    let code = library.image.code_for(context.machine.model(context.gpu))?;
    let first = library.first.get();
    let module = Module::place(context, code, first.map(|module| &**module))?;
    if first.is_none() {
        // The lock on `modules` is held: nobody else can have set it meanwhile.
        let _ = library.first.set(Arc::clone(&module));
    }
    let handle = driver.modules.add(Arc::clone(&module));
    modules.insert(context.id, (handle, Arc::clone(&module)));
    Ok((handle, module))
}

/// The function handle of a library's kernel in a context.
fn function_in(kernel: &LibraryKernel, context: &Arc<Context>) -> Outcome<Handle> {
    let (handle, module) = module_in(&kernel.library, context)?;
    function_handle(handle, &module, &kernel.name)
}

/// What a `CUfunction` stands for; a `CUkernel` stands for its function in the current context.
pub(super) fn function(handle: Handle) -> Outcome<Arc<Function>> {
    let driver = state::driver()?;
    if let Some(kernel) = driver.kernels.find(handle) {
        let (_, context) = state::current()?;
        return driver.functions.get(function_in(&kernel, &context)?);
    }
    driver.functions.get(handle)
}

/// The function of a library's kernel in a context, the current one for 0.
pub(super) fn function_for(kernel: Handle, context: Handle) -> Outcome<Handle> {
    let driver = state::driver()?;
    let kernel = driver.kernels.get(kernel)?;
    let context = match context {
        0 => state::current()?.1,
        handle => driver.contexts.get_context(handle)?,
    };
    function_in(&kernel, &context)
}

/// A NUL-terminated copy of a name that lives as long as the process, as callers expect. Each name
/// is copied once.
pub(super) fn lasting_name(name: &str) -> *const c_char {
    static NAMES: Mutex<Option<HashMap<String, CString>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap();
    let names = names.get_or_insert_default();
    let copy = names.entry(name.to_owned());
    copy.or_insert_with(|| CString::new(name).unwrap_or_default()).as_ptr()
}

fn load(library: Out<Handle>, image: Image) -> Outcome {
    let driver = state::driver()?;
    library.require()?;
    let (modules, kernels, first) = (Mutex::default(), Mutex::default(), OnceLock::new());
    library.set(driver.libraries.add(Arc::new(Library { image, modules, kernels, first })))
}

/// The code by which a library's kernels are known: that of the current context's GPU. Without a
/// context it is that of the first device, as a library need not have any context.
fn code(library: &Library) -> Outcome<&Code> {
    match state::current() {
        Ok((_, context)) => library.image.code_for(context.machine.model(context.gpu)),
        Err(_) => {
            let (driver, gpu) = state::device(0)?;
            library.image.code_for(driver.machine.model(gpu))
        }
    }
}

/// The handle of a library's kernel; asking twice gives the same one.
fn kernel_handle(library: &Arc<Library>, name: &str) -> Outcome<Handle> {
    let driver = state::driver()?;
    let mut kernels = library.kernels.lock().unwrap();
    Ok(*kernels.entry(name.to_owned()).or_insert_with(|| {
        let (name, library) = (name.to_owned(), Arc::clone(library));
        driver.kernels.add(Arc::new(LibraryKernel { library, name }))
    }))
}

driver_calls! {
    fn cuLibraryLoadData(
        library: Out<Handle>,
        image: In<u8>,
        _options: In<c_int>,
        _values: In<u64>,
        _count: c_uint,
        _library_options: In<c_int>,
        _library_values: In<u64>,
        _library_count: c_uint,
    ) {
        load(library, Image::at(image)?)
    }

    fn cuLibraryLoadFromFile(
        library: Out<Handle>,
        path: In<c_char>,
        _options: In<c_int>,
        _values: In<u64>,
        _count: c_uint,
        _library_options: In<c_int>,
        _library_values: In<u64>,
        _library_count: c_uint,
    ) {
        load(library, Image::in_file(string(path)?)?)
    }

    fn cuLibraryUnload(library: Handle) {
        let driver = state::driver()?;
        let removed = driver.libraries.remove(library)?;
        driver.kernels.remove_all(|kernel| Arc::ptr_eq(&kernel.library, &removed));
        for (_, (handle, module)) in removed.modules.lock().unwrap().drain() {
            driver.function_names.lock().unwrap().retain(|(owner, _), _| *owner != handle);
            driver.functions.remove_all(|function| Arc::ptr_eq(&function.module, &module));
            // A context that was destroyed took the handle already.
            let _ = driver.modules.remove(handle);
        }
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: In<c_char>) {
        let driver = state::driver()?;
        kernel.require()?;
        let (found, name) = (driver.libraries.get(library)?, string(name)?);
        if !code(&found)?.kernel_names().any(|known| known == name) {
            return refuse(NOT_FOUND, format!("the library has no kernel {name}"));
        }
        kernel.set(kernel_handle(&found, name)?)
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        let (driver, context) = state::current()?;
        module.set(module_in(&*driver.libraries.get(library)?, &context)?.0)
    }

    fn cuLibraryGetGlobal(
        address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>,
    ) {
        let (driver, context) = state::current()?;
        let (_, module) = module_in(&*driver.libraries.get(library)?, &context)?;
        let name = string(name)?;
        let Some(variable) = module.variable(name) else {
            return refuse(NOT_FOUND, format!("the library has no variable {name}"));
        };
        address.set_if(variable.address);
        bytes.set_if(variable.bytes as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(
        address: Out<u64>, bytes: Out<usize>, library: Handle, name: In<c_char>,
    ) {
        let (driver, context) = state::current()?;
        let library = driver.libraries.get(library)?;
        let name = string(name)?;
        if !code(&library)?.is_managed(name) {
            return refuse(NOT_FOUND, format!("the library has no managed variable {name}"));
        }
        let (_, module) = module_in(&library, &context)?;
        let Some(variable) = module.variable(name) else {
            return refuse(NOT_FOUND, format!("the module has no variable {name}"));
        };
        address.set_if(variable.address);
        bytes.set_if(variable.bytes as usize);
        Ok(())
    }

    fn cuLibraryEnumerateKernels(kernels: Out<Handle>, count: c_uint, library: Handle) {
        let found = state::driver()?.libraries.get(library)?;
        kernels.require()?;
        for (index, name) in code(&found)?.kernel_names().take(count as usize).enumerate() {
            kernels.at(index).set(kernel_handle(&found, name)?)?;
        }
        Ok(())
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: Handle) {
        let library = state::driver()?.libraries.get(library)?;
        count.set(code(&library)?.kernel_names().count() as c_uint)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        let (driver, context) = state::current()?;
        function.set(function_in(&*driver.kernels.get(kernel)?, &context)?)
    }

    fn cuKernelGetAttribute(value: Out<c_int>, attribute: c_int, kernel: Handle, _device: c_int) {
        state::driver()?.kernels.get(kernel)?;
        value.set(function_attribute(&*function(kernel)?, attribute)?)
    }

    fn cuKernelSetAttribute(attribute: c_int, value: c_int, kernel: Handle, _device: c_int) {
        state::driver()?.kernels.get(kernel)?;
        set_attribute(&*function(kernel)?, attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: Handle, _config: c_int, _device: c_int) {
        state::driver()?.kernels.get(kernel).map(drop)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: Handle) {
        name.set(lasting_name(&state::driver()?.kernels.get(kernel)?.name))
    }

    fn cuKernelGetParamInfo(
        kernel: Handle, index: usize, offset: Out<usize>, size: Out<usize>,
    ) {
        state::driver()?.kernels.get(kernel)?;
        let found = parameter(&*function(kernel)?, index)?;
        if offset.address() == 0 {
            return Err(INVALID_VALUE.into());
        }
        offset.set(found.0)?;
        size.set_if(found.1);
        Ok(())
    }
}
